//! A member that loses its disk again and again leaves nothing behind that grows.

use eddy_crdt::sync::SessionEvent;
use eddy_crdt::{Birth, Input, Notice, Replica};

use super::stories::install;
use crate::support::build::{genesis, id, identity, put};
use crate::support::node::Node;
use crate::support::world::World;

/// What births leave behind at a replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Left {
    head_bytes: usize,
    vector: usize,
    acks: usize,
    longest_ack: usize,
    system_keys: usize,
    births: usize,
}

impl Left {
    fn of(replica: &Replica) -> Self {
        Self {
            head_bytes: replica.head().encode().len(),
            vector: replica.vector().len(),
            acks: replica.acks().len(),
            longest_ack: replica.acks().values().map(|ack| ack.len()).max().unwrap_or(0),
            system_keys: replica.system_len(),
            births: replica.members().map(|member| replica.births_of(member.id).count()).sum(),
        }
    }
}

/// The third member loses its disk, begins from what `giver` has, and all hear of it but those that are away.
fn lose(world: &mut World, n: u64, giver: usize, away: Option<usize>) {
    world.nodes[2] = install(world, giver, identity(2, 1000 + 7 * n), usize::MAX, None);
    world.handle(giver, Input::Release);
    world.run(2, put("k", n.to_string())).unwrap();
    world.run(giver, put("other", n.to_string())).unwrap();
    let present: Vec<usize> = (0..3).filter(|node| Some(*node) != away).collect();
    for _ in 0..4 {
        for (from, to) in present.iter().flat_map(|from| present.iter().map(move |to| (*from, *to))) {
            if from != to {
                world.tell(from, to, usize::MAX).unwrap();
                world.tell_acks(from, to);
            }
        }
    }
}

#[test]
fn a_thousand_lost_disks_leave_no_more_than_a_few() {
    let mut world = World::new(3);
    world.run(2, put("k", "first")).unwrap();
    world.tell_all().unwrap();
    let mut seen = vec![];
    for n in 1..=1000 {
        // The second one is away for a hundred losses, and comes back with a vector that names what others lost since.
        let away = (400..500).contains(&n).then_some(1);
        lose(&mut world, n, if away.is_some() { 0 } else { n as usize % 2 }, away);
        if [10, 60, 499, 1000].contains(&n) {
            seen.push(Left::of(&world.nodes[0].replica));
        }
    }
    println!("after 10, 60, 499 and 1000 lost disks: {seen:#?}");
    world.tell_all().unwrap();
    world.check_equal().unwrap();
    for node in 0..3 {
        world.restart(node).unwrap();
        let left = Left::of(&world.nodes[node].replica);
        assert!(
            left.head_bytes <= seen[0].head_bytes + 128 && left.births <= seen[0].births,
            "{left:?}, was {:?}",
            seen[0]
        );
        assert!(left.vector <= 8 && left.acks <= 3 && left.longest_ack <= 8, "{left:?}");
        assert_eq!(left.system_keys, seen[0].system_keys);
    }
}

/// The copy names births that are forgotten, with fewer entries than they had in the end.
#[test]
fn a_copy_from_before_what_is_forgotten_covers_less_than_what_is_there() {
    let mut world = World::new(3);
    world.nodes.iter_mut().for_each(|node| node.replica.keep_births(0));
    world.run(2, put("k", "first")).unwrap();
    world.tell_all().unwrap();
    let (early, third) = (world.nodes[1].disk.clone(), world.nodes[2].disk.clone());
    world.run(2, put("k", "second")).unwrap();
    world.tell_all().unwrap();
    for n in 1..4 {
        lose(&mut world, n, 0, Some(1));
    }
    let known = world.nodes[0].replica.vector().clone();
    assert_eq!(known.fences().count(), 0, "the second one has not heard of the new births");
    world.tell_all().unwrap();
    lose(&mut world, 4, 0, None);
    world.tell_all().unwrap();
    let base = world.nodes[0].replica.log_base().clone();
    assert_eq!(base.fences().count(), 1);
    let now = world.now();
    for (node, copy) in [(1, early), (2, third)] {
        assert!(world.nodes[node].replica.vector().covers(&base));
        world.nodes[node].start_from(now, copy);
        assert!(!world.nodes[node].replica.vector().covers(&base));
    }
}

/// Two of three lose their disks at once; one founds again, and the other begins with what that has. The third has all
/// that was known to be everywhere. Of that it still keeps entries, because something that is not everywhere was written
/// beside them. It took the other for one that has all of that, and said of its writes that the floor forbids them (found
/// by hot seed 3508).
#[test]
fn one_that_began_with_less_than_was_everywhere_begins_anew() {
    let mut world = World::new(3);
    world.run(0, put("k", "everywhere")).unwrap();
    world.run(1, put("k", "at one")).unwrap();
    for (from, to) in [(0, 1), (0, 2), (2, 1)] {
        world.tell(from, to, usize::MAX).unwrap();
        world.tell_acks(from, to);
    }
    let third = &world.nodes[1].replica;
    assert!(third.floor().covers(world.nodes[0].replica.vector()) && !third.log_base().covers(third.floor()));
    world.nodes[0] = Node::found(identity(0, 1_000), &genesis(3));
    world.run(0, put("k", "again")).unwrap();
    world.nodes[2] = install(&mut world, 0, identity(2, 2_000), usize::MAX, None);
    world.run(2, put("other", "again")).unwrap();
    let wire = world.connect(1, 2);
    world.pass(1_000);
    assert!(!world.nodes[1].notices.iter().any(Notice::is_refusal), "{:?}", world.nodes[1].notices);
    assert_eq!(world.events(wire, 1).last(), Some(&SessionEvent::SnapshotNeeded { member: id(1) }));
}

/// Somebody announces another birth of a member, which then announces its own again. What it acknowledges with that comes
/// before the entry. It was dropped as that of a birth that is over, and nothing settled until the member acknowledged
/// something else (found by hot seed 7000026).
#[test]
fn an_acknowledgement_that_comes_before_the_birth_is_announced_counts() {
    let mut world = World::new(3);
    world.run(0, put("k", "v")).unwrap();
    world.tell_all().unwrap();
    world.handle(1, Input::Begins { member: id(0), birth: Birth::new(1_000) });
    for to in [0, 2] {
        world.tell(1, to, usize::MAX).unwrap();
    }
    world.tell_acks(0, 2);
    world.tell(0, 2, usize::MAX).unwrap();
    let (all, third) = (world.nodes[0].replica.vector(), &world.nodes[2].replica);
    assert_eq!(third.vector(), all);
    assert_eq!(third.acks().get(&identity(0, 1).origin()), Some(all));
}

/// The third founder loses its disk and founds again, alone. The first one knows of nothing that all have, so it takes what
/// the third writes without having seen what is everywhere. The second knows, and refused that for ever (found by the
/// seeds 6000326 and 6001542 of the schedules of lost disks).
#[test]
fn one_that_took_what_the_floor_of_another_forbids_begins_anew() {
    let mut world = World::new(3);
    world.run(0, put("k", "everywhere")).unwrap();
    for to in [1, 2] {
        world.tell(0, to, usize::MAX).unwrap();
        world.tell_acks(to, 1);
    }
    world.tell_acks(0, 1);
    assert!(world.nodes[1].replica.floor().covers(world.nodes[0].replica.vector()));
    assert!(!world.nodes[0].replica.floor().covers(world.nodes[0].replica.vector()));
    world.nodes[2] = Node::found(identity(2, 1_000), &genesis(3));
    world.run(2, put("again", "alone")).unwrap();
    world.connect(0, 2);
    world.pass(1_000);
    world.put(0, "first", "on top");
    world.part(0, 2);
    let wire = world.connect(0, 1);
    world.pass(1_000);
    assert!(!world.nodes[1].notices.iter().any(Notice::is_refusal), "{:?}", world.nodes[1].notices);
    assert_eq!(world.events(wire, 0).last(), Some(&SessionEvent::SnapshotNeeded { member: id(1) }));

    // Each hands over what it wrote: nobody else can.
    for node in [0, 2] {
        world.part(node, 1);
        let old = world.nodes[node].found_again(world.now());
        world.nodes[node] = install(&mut world, 1, identity(node, 2_000), usize::MAX, Some(&old));
    }
    world.handle(1, Input::Release);
    world.connect(0, 1);
    world.connect(1, 2);
    world.converge();
    for node in &world.nodes {
        for (key, value) in [("k", "everywhere"), ("again", "alone"), ("first", "on top")] {
            assert_eq!(node.get(key).as_deref(), Some(value), "{key}");
        }
    }
}
