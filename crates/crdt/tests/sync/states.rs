//! Snapshots, clocks, and states that differ.

use eddy_crdt::sync::{Equality, Message, SessionEvent, Stage, Tuning};
use eddy_crdt::{Birth, ChangeKind, Command, Entry, Input, Key, Keyspace, Op, Replica, Txn};

use crate::net::{Net, Node, id, identity, put};

#[test]
fn a_wiped_replica_is_told_to_take_a_snapshot_and_gets_it_in_parts() {
    let mut net = Net::new(2);
    net.connect(0, 1);
    for n in 0..3_000 {
        net.put(0, &format!("k{n:04}"), "x".repeat(1_000));
    }
    net.converge();
    net.run(3_000);
    net.cut();
    net.nodes[1] = Node::new(Replica::new(identity(1, 2)), Tuning::default());
    let wire = net.connect(0, 1);
    net.run(50);
    assert!(net.events(wire, 1).contains(&SessionEvent::SnapshotNeeded { member: id(0) }), "{:?}", net.events(wire, 1));
    assert!(net.events(wire, 0).contains(&SessionEvent::PeerNeedsSnapshot(id(1))), "{:?}", net.events(wire, 0));
    assert_eq!(net.report(wire, 0).stage, Stage::Snapshot);
    assert_eq!(net.report(wire, 0).tally.sent_entries, 0);

    let wanted = net.wires[wire].ends[1].session.request_snapshot(None);
    net.send(wire, 1, &wanted);
    net.run(50);
    assert_eq!(net.events(wire, 0).last(), Some(&SessionEvent::SnapshotWanted { after: None }));
    net.send(wire, 0, &Message::SnapshotChunk("first".into()));
    net.run(50);
    assert_eq!(net.events(wire, 1).last(), Some(&SessionEvent::SnapshotChunk("first".into())));
    // After a break it goes on behind the last key that arrived.
    let wire = net.connect(0, 1);
    net.run(50);
    let after = Some((Keyspace::Client, Key::from_static(b"k0999")));
    let wanted = net.wires[wire].ends[1].session.request_snapshot(after.clone());
    net.send(wire, 1, &wanted);
    net.run(50);
    assert_eq!(net.events(wire, 0).last(), Some(&SessionEvent::SnapshotWanted { after }));
}

/// Gives replica 1 the newest entry of replica 0 with other values: as a bug or a bad memory chip would.
fn corrupt(net: &mut Net, keys: &[&str]) {
    let (from, to) = (&net.nodes[0], &net.nodes[1]);
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
    let ms = net.ms;
    let births = [net.nodes[0].replica.identity().birth].into();
    net.nodes[1].handle(ms, Input::Entries { from: id(0), births, entries });
}

fn differing(keys: usize, damaged: &[&str]) -> Vec<SessionEvent> {
    let mut net = Net::new(2);
    let wire = net.connect(0, 1);
    for n in 0..keys {
        net.put(0, &format!("k{n:04}"), "v");
    }
    net.converge();
    net.run(3_000);
    assert_eq!(net.report(wire, 0).equality, Equality::Equal);
    let put = |key: &&str| match put(key, "right") {
        Input::Client(Command::Put(op)) => Op::Put(op),
        other => panic!("{other:?}"),
    };
    let txn = Txn { success: damaged.iter().map(put).collect(), ..Txn::default() };
    let ms = net.ms;
    net.nodes[0].handle(ms, Input::Client(Command::Txn(txn)));
    corrupt(&mut net, damaged);
    net.run(3_000);
    let events: Vec<_> = net.events(wire, 0).to_vec();
    for (side, peer) in [(0, id(1)), (1, id(0))] {
        let events = net.events(wire, side);
        assert_eq!(events.iter().filter(|e| **e == SessionEvent::HashDiffers(peer)).count(), 1, "{events:?}");
    }
    let Some(SessionEvent::KeyDiffers { place, .. }) = events.last() else { panic!("{events:?}") };
    assert_eq!(net.report(wire, 1).equality, Equality::Different(Some(place.clone())));
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
        let mut net = Net::new(2);
        net.nodes[1].wall_off_ms = off_ms;
        let wire = net.connect(0, 1);
        net.run(100);
        let told = |side: usize| {
            net.events(wire, side).iter().find_map(|event| match event {
                SessionEvent::ClockOff { ahead_ms, .. } => Some(*ahead_ms),
                _ => None,
            })
        };
        assert!(told(0).is_some_and(|ahead| (ahead - off_ms).abs() < 50), "{:?}", told(0));
        assert!(told(1).is_some_and(|ahead| (ahead + off_ms).abs() < 50), "{:?}", told(1));
        net.nodes[1].wall_off_ms = 5_000;
        net.run(10_000);
        assert!(net.events(wire, 0).contains(&SessionEvent::ClockRight(id(1))));
        assert!(net.report(wire, 0).clock_ahead_ms.is_some_and(|ahead| (ahead - 5_000).abs() < 50));
    }
}

/// What a member sent before it lost its disk can still wait to be applied when entries of its new birth come another way: by
/// then this replica may have told others that it knows of that, and they may have settled what this does not depend on.
#[test]
fn what_a_lost_disk_sent_is_not_taken_once_the_new_birth_is_known() {
    let mut net = Net::new(2);
    let own = net.nodes[0].replica.identity().birth;
    let mut hand_over = |value: &'static str, births: &[Birth]| {
        net.put(0, "key", value);
        let (from, to) = (&net.nodes[0].replica, &net.nodes[1].replica);
        let before = to.vector().clone();
        let entries = from.entries_for(&before, from.vector(), 1 << 20).expect("above the floor");
        let entries = entries.iter().map(|entry| (**entry).clone()).collect();
        let ms = net.ms;
        net.nodes[1].handle(ms, Input::Entries { from: id(0), births: births.into(), entries });
        *net.nodes[1].replica.vector() != before
    };
    assert!(hand_over("1", &[own]), "its only birth");
    assert!(!hand_over("2", &[Birth::new(99)]), "another birth has come since");
    assert!(hand_over("3", &[Birth::new(99), own]), "that one was known when it was greeted");
}
