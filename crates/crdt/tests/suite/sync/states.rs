//! Snapshots, clocks, and states that differ.

use eddy_crdt::sync::{Equality, Message, SessionEvent, Stage};
use eddy_crdt::{Birth, ChangeKind, Command, Entry, Input, Key, Keyspace, Op, Txn};

use crate::support::build::{id, identity, put_op};
use crate::support::node::Node;
use crate::support::world::World;

#[test]
fn a_wiped_replica_is_told_to_take_a_snapshot_and_gets_it_in_parts() {
    let mut world = World::wired(2);
    world.connect(0, 1);
    for n in 0..3_000 {
        world.put(0, &format!("k{n:04}"), "x".repeat(1_000));
    }
    world.converge();
    world.pass(3_000);
    world.cut();
    world.nodes[1] = Node::empty(identity(1, 2));
    let wire = world.connect(0, 1);
    world.pass(50);
    assert!(
        world.events(wire, 1).contains(&SessionEvent::SnapshotNeeded { member: id(0) }),
        "{:?}",
        world.events(wire, 1)
    );
    assert!(world.events(wire, 0).contains(&SessionEvent::PeerNeedsSnapshot(id(1))), "{:?}", world.events(wire, 0));
    assert_eq!(world.report(wire, 0).stage, Stage::Snapshot);
    assert_eq!(world.report(wire, 0).tally.sent_entries, 0);

    let wanted = world.wires[wire].ends[1].session.request_snapshot(None);
    world.send(wire, 1, &wanted);
    world.pass(50);
    assert_eq!(world.events(wire, 0).last(), Some(&SessionEvent::SnapshotWanted { after: None }));
    world.send(wire, 0, &Message::SnapshotChunk("first".into()));
    world.pass(50);
    assert_eq!(world.events(wire, 1).last(), Some(&SessionEvent::SnapshotChunk("first".into())));
    // After a break it goes on behind the last key that arrived.
    let wire = world.connect(0, 1);
    world.pass(50);
    let after = Some((Keyspace::Client, Key::from_static(b"k0999")));
    let wanted = world.wires[wire].ends[1].session.request_snapshot(after.clone());
    world.send(wire, 1, &wanted);
    world.pass(50);
    assert_eq!(world.events(wire, 0).last(), Some(&SessionEvent::SnapshotWanted { after }));
}

/// Gives replica 1 the newest entry of replica 0 with other values: as a bug or a bad memory chip would.
fn corrupt(world: &mut World, keys: &[&str]) {
    let (from, to) = (&world.nodes[0], &world.nodes[1]);
    let entries =
        from.replica.entries_for(to.replica.vector(), from.replica.vector(), 1 << 20).expect("above the floor");
    let entries = entries.iter().map(|entry| {
        let mut entry: Entry = (**entry).clone();
        for change in &mut entry.changes {
            if let ChangeKind::Put { value, .. } = &mut change.kind
                && keys.iter().any(|key| change.key == key.as_bytes())
            {
                *value = "corrupt".into();
            }
        }
        entry
    });
    let entries = entries.collect();
    let births = [world.nodes[0].replica.identity().birth].into();
    world.handle(1, Input::Entries { from: id(0), births, entries, together: None });
}

fn differing(keys: usize, damaged: &[&str]) -> Vec<SessionEvent> {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    for n in 0..keys {
        world.put(0, &format!("k{n:04}"), "v");
    }
    world.converge();
    world.pass(3_000);
    assert_eq!(world.report(wire, 0).equality, Equality::Equal);
    let put = |key: &&str| Op::Put(put_op(key, "right", None));
    let txn = Txn { success: damaged.iter().map(put).collect(), ..Txn::default() };
    world.handle(0, Input::Client(Command::Txn(txn)));
    corrupt(&mut world, damaged);
    world.pass(3_000);
    let events: Vec<_> = world.events(wire, 0).to_vec();
    for (side, peer) in [(0, id(1)), (1, id(0))] {
        let events = world.events(wire, side);
        assert_eq!(events.iter().filter(|e| **e == SessionEvent::HashDiffers(peer)).count(), 1, "{events:?}");
    }
    let Some(SessionEvent::KeyDiffers { place, .. }) = events.last() else { panic!("{events:?}") };
    assert_eq!(world.report(wire, 1).equality, Equality::Different(Some(place.clone())));
    events
}

#[test]
fn of_states_that_differ_the_first_key_is_named() {
    for (keys, damaged, first) in [
        (0, vec!["a"], "a"),
        (3, vec!["k0001"], "k0001"),
        (3, vec!["zz"], "zz"),
        (500, vec!["k0321", "k0499", "k0123"], "k0123"),
        (5_000, vec!["k4999"], "k4999"),
        (5_000, vec!["a", "k2000"], "a"),
    ] {
        let events = differing(keys, &damaged);
        let expected = SessionEvent::KeyDiffers {
            member: id(1),
            place: (Keyspace::Client, Key::copy_from_slice(first.as_bytes())),
        };
        assert_eq!(events.last(), Some(&expected), "{keys} keys, {damaged:?}");
    }
}

#[test]
fn a_clock_that_is_off_is_noticed_on_both_sides() {
    for off_ms in [-3_600_000, 3_600_000, -20_000] {
        let mut world = World::wired(2);
        world.nodes[1].wall_off_ms = off_ms;
        let wire = world.connect(0, 1);
        world.pass(100);
        let told = |side: usize| {
            world.events(wire, side).iter().find_map(|event| match event {
                SessionEvent::ClockOff { ahead_ms, .. } => Some(*ahead_ms),
                _ => None,
            })
        };
        assert!(told(0).is_some_and(|ahead| (ahead - off_ms).abs() < 50), "{:?}", told(0));
        assert!(told(1).is_some_and(|ahead| (ahead + off_ms).abs() < 50), "{:?}", told(1));
        world.nodes[1].wall_off_ms = 5_000;
        world.pass(10_000);
        assert!(world.events(wire, 0).contains(&SessionEvent::ClockRight(id(1))));
        assert!(world.report(wire, 0).clock_ahead_ms.is_some_and(|ahead| (ahead - 5_000).abs() < 50));
    }
}

/// What a member sent before it lost its disk can still wait to be applied when entries of its new birth come another
/// way. By then this replica may have told others that it knows of the new birth. They may then have settled entries
/// that those of the old birth do not depend on.
#[test]
fn what_a_lost_disk_sent_is_not_taken_once_the_new_birth_is_known() {
    let mut world = World::wired(2);
    let own = world.nodes[0].replica.identity().birth;
    let mut hand_over = |value: &'static str, births: &[Birth]| {
        world.put(0, "key", value);
        let (from, to) = (&world.nodes[0].replica, &world.nodes[1].replica);
        let before = to.vector().clone();
        let entries = from.entries_for(&before, from.vector(), 1 << 20).expect("above the floor");
        let entries = entries.iter().map(|entry| (**entry).clone()).collect();
        world.handle(1, Input::Entries { from: id(0), births: births.into(), entries, together: None });
        *world.nodes[1].replica.vector() != before
    };
    assert!(hand_over("1", &[own]), "its only birth");
    assert!(!hand_over("2", &[Birth::new(99)]), "another birth has come since");
    assert!(hand_over("3", &[Birth::new(99), own]), "that one was known when it was greeted");
}
