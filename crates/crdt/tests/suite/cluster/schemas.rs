//! Custom resources merge by the schemas of their definitions, once all members have these.

use bytes::Bytes;
use eddy_crdt::{Command, Input, WaitsFor};

use crate::support::build::{delete, genesis, identity, put};
use crate::support::node::Node;
use crate::support::world::World;

const DEFINITION: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/things.example.com";
const THING: &str = "/registry/example.com/things/default/a";

/// A definition whose `parts` are of that list type; those of type map are told apart by `id`.
fn definition(list: &str) -> Command {
    let keys = if list == "map" { r#","x-kubernetes-list-map-keys":["id"]"# } else { "" };
    let items = r#"{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"n":{"type":"integer"}}}"#;
    let parts = format!(r#"{{"type":"array","x-kubernetes-list-type":"{list}"{keys},"items":{items}}}"#);
    let spec = format!(r#"{{"type":"object","properties":{{"parts":{parts}}}}}"#);
    let schema = format!(r#"{{"openAPIV3Schema":{{"type":"object","properties":{{"spec":{spec}}}}}}}"#);
    put(
        DEFINITION,
        format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"things.example.com","uid":"d"}},"spec":{{"group":"example.com","names":{{"kind":"Thing","plural":"things"}},"scope":"Namespaced","versions":[{{"name":"v1","schema":{schema},"served":true,"storage":true}}]}}}}"#
        ),
    )
}

/// A thing with these parts, each `id=n`.
fn thing(parts: &[(&str, i64)]) -> String {
    let parts: Vec<String> = parts.iter().map(|(id, n)| format!(r#"{{"id":"{id}","n":{n}}}"#)).collect();
    let parts = parts.join(",");
    format!(
        r#"{{"apiVersion":"example.com/v1","kind":"Thing","metadata":{{"name":"a","uid":"u"}},"spec":{{"parts":[{parts}]}}}}"#
    )
}

/// Time passes, and these hear each other.
fn pass(world: &mut World, present: &[usize]) {
    for _ in 0..8 {
        world.ms += 1_000;
        for node in present {
            world.handle(*node, Input::Tick);
        }
        for from in present {
            for to in present.iter().filter(|to| *to != from) {
                world.tell(*from, *to, usize::MAX).unwrap();
                world.tell_acks(*from, *to);
            }
        }
    }
}

/// What two sites make of it that change another part each.
fn both_edit(world: &mut World, key: &str) -> String {
    let all: Vec<usize> = (0..world.nodes.len()).collect();
    world.run(0, put(key, thing(&[("x", 1), ("y", 1)]))).unwrap();
    pass(world, &all);
    world.run(0, put(key, thing(&[("x", 2), ("y", 1)]))).unwrap();
    world.run(1, put(key, thing(&[("x", 1), ("y", 2)]))).unwrap();
    pass(world, &all);
    world.check_equal().unwrap();
    world.nodes[0].get(key).unwrap()
}

fn numbers(world: &World) -> Vec<u32> {
    world.nodes.iter().map(|node| node.replica.rules().current().number).collect()
}

#[test]
fn the_schema_counts_once_all_have_it_and_no_longer_than_it_is_there() {
    let mut world = World::new(3);
    let last = thing(&[("x", 1), ("y", 2)]);
    let both = thing(&[("x", 2), ("y", 2)]);
    assert_eq!(both_edit(&mut world, THING), last, "nothing says how parts merge");
    world.run(1, definition("map")).unwrap();
    pass(&mut world, &[0, 1, 2]);
    assert_eq!(numbers(&world), [2, 2, 2]);
    assert_eq!(both_edit(&mut world, THING), both);
    for node in &world.nodes {
        let kinds = node.replica.custom_kinds();
        assert_eq!((kinds.len(), kinds[0].waits), (1, None));
        assert_eq!(kinds[0].name.as_deref(), Some("example.com/Thing"));
    }
    world.run(2, definition("atomic")).unwrap();
    pass(&mut world, &[0, 1, 2]);
    assert_eq!(both_edit(&mut world, THING), last);
    world.run(0, definition("map")).unwrap();
    pass(&mut world, &[0, 1, 2]);
    world.restart(1).unwrap();
    assert_eq!(both_edit(&mut world, THING), both);
    world.run(0, delete(DEFINITION)).unwrap();
    pass(&mut world, &[0, 1, 2]);
    assert_eq!(both_edit(&mut world, THING), last, "nothing says it any more");
    assert!(world.nodes[2].replica.rules().current().custom.is_empty());
}

#[test]
fn while_one_is_away_nothing_changes_for_those_who_are_not() {
    let mut world = World::new(3);
    world.run(0, put(THING, thing(&[("x", 1), ("y", 1)]))).unwrap();
    pass(&mut world, &[0, 1, 2]);
    world.run(0, definition("map")).unwrap();
    pass(&mut world, &[0, 1]);
    assert_eq!(numbers(&world), [1, 1, 1]);
    let waits = |world: &World, node: usize| world.nodes[node].replica.custom_kinds()[0].waits;
    assert_eq!([waits(&world, 0), waits(&world, 1)], [Some(WaitsFor::Members); 2]);
    world.run(0, put(THING, thing(&[("x", 2), ("y", 1)]))).unwrap();
    world.run(1, put(THING, thing(&[("x", 1), ("y", 2)]))).unwrap();
    pass(&mut world, &[0, 1]);
    assert_eq!(world.nodes[0].get(THING), Some(thing(&[("x", 1), ("y", 2)])));
    pass(&mut world, &[0, 1, 2]);
    world.check_equal().unwrap();
    assert_eq!(numbers(&world), [2, 2, 2]);
    assert_eq!(waits(&world, 2), None);
    assert_eq!(both_edit(&mut world, THING), thing(&[("x", 2), ("y", 2)]));
}

#[test]
fn rules_that_nothing_needs_are_forgotten_by_all() {
    let mut world = World::new(3);
    for round in 0..12 {
        world.run(round % 3, definition(["map", "atomic"][round % 2])).unwrap();
        pass(&mut world, &[0, 1, 2]);
    }
    world.check_equal().unwrap();
    assert_eq!(numbers(&world), [13, 13, 13]);
    let keys: Vec<usize> = world.nodes.iter().map(|node| node.replica.system_len()).collect();
    for node in 0..3 {
        let book: Vec<u32> = world.nodes[node].replica.rules().numbers().collect();
        assert_eq!(book, [1, 13], "at {node}");
        world.restart(node).unwrap();
        assert_eq!(world.nodes[node].replica.rules().numbers().collect::<Vec<_>>(), [1, 13], "at {node}");
    }
    for round in 0..4 {
        world.run(0, definition(["map", "atomic"][round % 2])).unwrap();
        pass(&mut world, &[0, 1, 2]);
    }
    let later: Vec<usize> = world.nodes.iter().map(|node| node.replica.system_len()).collect();
    assert_eq!(later, keys);
}

/// One that lags holds versions that were merged by the old rules; it needs these until they are settled there.
#[test]
fn who_lags_keeps_forgotten_rules_as_long_as_it_needs_them() {
    let mut world = World::new(3);
    world.run(0, definition("map")).unwrap();
    pass(&mut world, &[0, 1, 2]);
    world.run(0, put(THING, thing(&[("x", 1), ("y", 1)]))).unwrap();
    pass(&mut world, &[0, 1, 2]);
    world.run(0, put(THING, thing(&[("x", 2), ("y", 1)]))).unwrap();
    world.run(1, put(THING, thing(&[("x", 1), ("y", 2)]))).unwrap();
    world.run(2, definition("atomic")).unwrap();
    // The third hears everything and is heard, and never learns what the others have.
    for _ in 0..8 {
        world.ms += 1_000;
        for node in [0, 1] {
            world.handle(node, Input::Tick);
        }
        for (from, to) in [(0, 1), (1, 0), (2, 0), (2, 1), (0, 2), (1, 2)] {
            world.tell(from, to, usize::MAX).unwrap();
            if to != 2 {
                world.tell_acks(from, to);
            }
        }
    }
    let book = |world: &World, node: usize| world.nodes[node].replica.rules().numbers().collect::<Vec<_>>();
    assert_eq!(book(&world, 0), [1, 3]);
    assert_eq!(book(&world, 2), [1, 2, 3]);
    world.restart(2).unwrap();
    assert_eq!(book(&world, 2), [1, 2, 3], "after a restart");
    assert_eq!(world.nodes[2].get(THING), Some(thing(&[("x", 2), ("y", 2)])));
    pass(&mut world, &[0, 1, 2]);
    assert_eq!(book(&world, 2), [1, 3]);
    world.check_equal().unwrap();
}

#[test]
fn one_alone_moves_at_once_and_a_restart_changes_nothing() {
    let mut world = World::new(1);
    world.nodes = vec![Node::found(identity(0, 1), &genesis(1))];
    world.run(0, definition("map")).unwrap();
    pass(&mut world, &[0]);
    assert_eq!(numbers(&world), [2]);
    world.restart(0).unwrap();
    pass(&mut world, &[0]);
    assert_eq!(numbers(&world), [2]);
    assert_eq!(world.nodes[0].replica.custom_kinds()[0].waits, None);
    world.run(0, definition("atomic")).unwrap();
    pass(&mut world, &[0]);
    let book: Vec<u32> = world.nodes[0].replica.rules().numbers().collect();
    assert_eq!(book, [1, 3]);
}

#[test]
fn what_cannot_be_read_or_is_too_large_merges_without_a_schema_and_is_told() {
    let mut world = World::new(1);
    let key = |name: &str| format!("/registry/apiextensions.k8s.io/customresourcedefinitions/{name}");
    world.run(0, put(&key("broken"), "{")).unwrap();
    let fields: Vec<String> =
        (0..4_000).map(|n| format!(r#""some-field-{n}":{{"type":"array","x-kubernetes-list-type":"set"}}"#)).collect();
    let schema = format!(r#"{{"type":"object","properties":{{{}}}}}"#, fields.join(","));
    let large = format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"l"}},"spec":{{"group":"l.l","names":{{"kind":"L"}},"versions":[{{"name":"v1","schema":{{"openAPIV3Schema":{schema}}}}}]}}}}"#
    );
    world.run(0, put(&key("large"), Bytes::from(large))).unwrap();
    world.run(0, definition("map")).unwrap();
    pass(&mut world, &[0]);
    let told: Vec<String> = world.nodes[0]
        .replica
        .custom_kinds()
        .iter()
        .filter_map(|kind| match kind.waits {
            Some(WaitsFor::Unfit(unfit)) => Some(unfit.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["its definition cannot be read", "its schema is too large"]);
    assert_eq!(world.nodes[0].replica.rules().current().custom.len(), 1);
}
