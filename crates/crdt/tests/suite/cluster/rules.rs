//! What the founders chose counts at every member, whatever becomes of it.

use bytes::Bytes;
use eddy_crdt::Genesis;
use eddy_crdt::merge::{Rules, counters};

use crate::support::build::{genesis, identity, put};
use crate::support::node::Node;
use crate::support::world::World;

fn deployment(replicas: i64) -> String {
    format!(
        r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"uid":"u"}},"spec":{{"replicas":{replicas}}}}}"#
    )
}

/// So many founders who chose these rules.
fn founded(count: usize, rules: &Rules) -> World {
    let mut world = World::new(count);
    let genesis = Genesis { rules: rules.clone(), ..genesis(count) };
    world.nodes = (0..count).map(|n| Node::found(identity(n, 1), &genesis)).collect();
    world
}

#[test]
fn one_more_replica_at_each_of_two_sites_is_two_more_under_the_founders_prefix() {
    let counters = counters("apps/v1/Deployment:.spec.replicas:min=0").unwrap();
    let rules = Rules { counters, prefix: Bytes::from_static(b"/k8s/"), ..Rules::default() };
    let mut world = founded(3, &rules);
    let (inside, outside) = ("/k8s/deployments/default/a", "/registry/deployments/default/a");
    for key in [inside, outside] {
        world.run(0, put(key, deployment(3))).unwrap();
    }
    world.tell_all().unwrap();
    for site in [0, 1] {
        // Who starts again reads the rules from its journal.
        world.restart(site).unwrap();
        for key in [inside, outside] {
            world.run(site, put(key, deployment(4))).unwrap();
        }
    }
    world.run(0, put("/k8s/masterleases/10.0.0.1", "one")).unwrap();
    world.run(1, put("/k8s/masterleases/10.0.0.1", "two")).unwrap();
    world.tell_all().unwrap();
    for node in &world.nodes {
        assert!(node.get(inside).unwrap().contains(r#""replicas":5"#), "{:?}", node.get(inside));
        assert_eq!(node.get(outside), Some(deployment(4)), "no object under this prefix");
        assert_eq!(node.replica.rules().current(), &rules);
    }
    let leases = world.nodes.iter().map(|node| node.get("/k8s/masterleases/10.0.0.1"));
    assert_eq!(leases.collect::<Vec<_>>(), [Some("one".to_owned()), Some("two".to_owned()), None]);
    // Of what stays on a replica nothing is in the hash, also after a restart.
    let hashes = |world: &World| world.nodes.iter().map(|node| node.replica.state_hash()).collect::<Vec<_>>();
    let before = hashes(&world);
    assert!(before.iter().all(|hash| *hash == before[0]));
    world.restart(0).unwrap();
    assert_eq!(hashes(&world), before);
}
