//! How entries get to where they are lacked.

use eddy_crdt::sync::{Equality, SessionEvent, Stage, Tuning};
use eddy_crdt::{Command, Input, Op, Txn};

use crate::support::build::{id, put_op};
use crate::support::wires::STEP_MS;
use crate::support::world::World;

#[test]
fn two_replicas_tell_each_other_everything_and_settle() {
    let mut world = World::wired(2);
    for n in 0..20 {
        world.put(0, &format!("a{n}"), format!("{n}"));
        world.put(1, &format!("b{n}"), format!("{n}"));
    }
    let wire = world.connect(0, 1);
    world.converge();
    assert_eq!(world.nodes[1].get("a7"), Some("7".to_owned()));
    assert_eq!(world.nodes[0].get("b19"), Some("19".to_owned()));

    world.pass(3_000);
    for side in 0..2 {
        let report = world.report(wire, side);
        assert_eq!(report.stage, Stage::Open);
        assert_eq!(report.member, Some(id(1 - side)));
        assert_eq!((report.entries_behind, report.entries_ahead, report.bytes_behind), (0, 0, 0));
        assert_eq!(report.equality, Equality::Equal);
        assert_eq!(report.in_flight_bytes, 0);
        assert_eq!(report.tally.sent_entries, 20);
        assert_eq!(report.tally.again, 0);
        assert!(report.round_trip_ms.is_some_and(|ms| ms <= 3 * STEP_MS));
        assert_eq!(world.nodes[side].replica.windows_len(), 0, "everything is known everywhere");
    }
    assert_eq!(world.nodes[0].notices, []);
}

/// There is a session with each member. Each kept the last eight megabytes that came over it.
#[test]
fn what_was_applied_is_hardly_kept_for_what_comes_next() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.converge();
    for n in 0..1_000 {
        // Like the one before, so that it travels as a delta.
        world.put(0, &format!("k{}", n % 10), format!("{n}{}", "x".repeat(2_000)));
        if n % 100 == 0 {
            world.step();
        }
    }
    world.converge();
    world.pass(1_000);
    let report = world.report(wire, 1);
    assert!(report.kept_bytes > 100_000, "the last ones are kept: {}", report.kept_bytes);
    assert!(report.kept_bytes <= 256 << 10, "of 2 MB {} are kept", report.kept_bytes);
    assert_eq!(report.tally.missing_bases, 0);
}

#[test]
fn what_is_written_later_follows_at_once() {
    let mut world = World::wired(2);
    world.connect(0, 1);
    world.converge();
    world.pass(200);
    for n in 0..10 {
        world.put(n % 2, "k", format!("{n}"));
        world.pass(2 * STEP_MS);
        assert!(world.converged(), "after write {n}");
    }
}

/// Peers are asked one after the other for what a replica lacks. Under load that took twenty peers twenty seconds, in which
/// they sent nothing of their own.
#[test]
fn who_has_nothing_new_is_asked_at_once() {
    let mut world = World::mesh(12);
    world.pass(8 * STEP_MS);
    for node in 0..12 {
        world.put(node, &format!("k{node}"), "v");
    }
    world.pass(2 * STEP_MS);
    assert!(world.converged());
}

#[test]
fn an_entry_reaches_a_replica_through_a_third() {
    let mut world = World::wired(3);
    world.connect(0, 1);
    world.connect(1, 2);
    world.pass(100);
    world.put(0, "k", "v");
    world.put(2, "l", "w");
    world.pass(4 * STEP_MS);
    assert!(world.converged());
    // Acknowledgements are passed on as well, or nothing would ever settle.
    world.pass(5_000);
    assert!(world.nodes.iter().all(|node| node.replica.windows_len() == 0));
}

#[test]
fn in_a_full_mesh_an_entry_is_sent_once_to_each() {
    let mut world = World::mesh(4);
    world.converge();
    world.pass(1_000);
    for n in 0..40 {
        world.put(n % 4, &format!("k{n}"), "v");
        world.step();
    }
    world.converge();
    world.pass(3_000);
    let sent: u64 =
        (0..world.wires.len()).flat_map(|w| [0, 1].map(|side| world.report(w, side).tally.sent_entries)).sum();
    assert_eq!(sent, 40 * 3);
}

#[test]
fn who_is_not_told_directly_is_told_by_others_soon() {
    let mut world = World::mesh(3);
    world.converge();
    world.pass(500);
    // The stream between 0 and 1 hangs: it is open and carries nothing.
    let hangs = world.wires.remove(0);
    world.put(0, "k", "v");
    world.pass(5_000);
    assert!(world.converged());
    drop(hangs);
}

/// All that have an entry used to pass it on once it was a second old. Peers that fell behind under load got everything
/// from everybody, and fell further behind.
#[test]
fn who_is_not_told_directly_is_told_by_one_of_the_others() {
    let mut world = World::mesh(6);
    world.converge();
    world.pass(1_000);
    let hangs = world.wires.remove(0);
    for n in 0..100 {
        world.put(0, &format!("k{n}"), "v");
        world.pass(100);
    }
    world.pass(3_000);
    assert!(world.converged());
    let ends = || (0..world.wires.len()).flat_map(|wire| [0, 1].map(|side| (wire, side)));
    let forwarders = ends().filter(|(wire, side)| {
        let [from, to] = [*side, 1 - *side].map(|side| world.wires[*wire].ends[side].node);
        from != 0 && to == 1 && world.report(*wire, *side).tally.sent_entries > 0
    });
    assert_eq!(forwarders.count(), 1);
    assert_eq!(ends().map(|(wire, side)| world.report(wire, side).tally.sent_entries).sum::<u64>(), 100 * 5);
    drop(hangs);
}

#[test]
fn who_falls_behind_is_not_told_by_others_what_is_on_its_way() {
    let mut world = World::mesh(5);
    world.converge();
    world.pass(1_000);
    assert_eq!(world.wires[0].ends.each_ref().map(|end| end.node), [0, 1]);
    // What 0 sends to 1 takes longer and longer, five seconds in the end.
    let mut late = std::collections::VecDeque::new();
    for n in 0..1_000 {
        world.put(0, &format!("k{n}"), "v");
        world.step();
        let ms = world.ms;
        let queue = &mut world.wires[0].ends[1].queue;
        late.extend(queue.drain(..).map(|message| (ms + 5 * n, message)));
        while late.front().is_some_and(|(due, _)| *due <= ms) {
            queue.extend(late.pop_front().map(|(_, message)| message));
        }
    }
    assert!(!late.is_empty());
    world.wires[0].ends[1].queue.extend(late.into_iter().map(|(_, message)| message));
    world.converge();
    let doubled = |wire, side| world.report(wire, side).tally.duplicates;
    assert_eq!((0..world.wires.len()).map(|wire| doubled(wire, 0) + doubled(wire, 1)).sum::<u64>(), 0);
}

/// What a replica sends of its own says that it has it, and it acknowledges it no other way. Where that entry had come
/// through a third replica before, this was overheard, and the key's window stayed open until its maker wrote again.
#[test]
fn an_entry_that_came_another_way_before_still_says_that_its_maker_has_it() {
    let mut world = World::mesh(3);
    world.converge();
    world.pass(3_000);
    let late = world.wires.remove(1);
    assert_eq!([late.ends[0].node, late.ends[1].node], [0, 2]);
    world.put(2, "k", "v");
    world.pass(3_000);
    assert!(world.converged(), "it came through the third");
    world.wires.push(late);
    world.pass(3_000);
    assert_eq!(world.report(2, 0).tally.duplicates, 1, "and then from its maker");
    assert!(world.nodes.iter().all(|node| node.replica.windows_len() == 0));
    assert!((0..3).all(|wire| [0, 1].iter().all(|side| world.report(wire, *side).equality == Equality::Equal)));
}

#[test]
fn after_a_break_it_goes_on_where_it_was() {
    let mut world = World::wired(2);
    world.connect(0, 1);
    for n in 0..50 {
        world.put(0, &format!("k{n}"), "v");
    }
    world.converge();
    world.cut();
    for n in 0..7 {
        world.put(0, &format!("l{n}"), "v");
    }
    let wire = world.connect(0, 1);
    world.converge();
    assert_eq!(world.report(wire, 0).tally.sent_entries, 7);
    assert_eq!(world.report(wire, 1).tally.duplicates, 0);
}

#[test]
fn what_was_never_flushed_is_neither_sent_nor_acknowledged() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.pass(200);
    world.nodes[0].flushes = false;
    world.put(0, "k", "v");
    world.pass(500);
    assert_eq!(world.nodes[1].get("k"), None);
    world.nodes[0].flushes = true;
    world.nodes[1].flushes = false;
    world.put(0, "l", "w");
    world.pass(500);
    assert_eq!(world.nodes[1].get("k"), Some("v".to_owned()));
    assert_eq!(world.report(wire, 0).entries_behind, 2, "it has them, but not on disk");
}

#[test]
fn only_so_much_is_on_its_way_to_a_peer_that_does_not_acknowledge() {
    let tuning = Tuning { in_flight_bytes: 300_000, batch_bytes: 50_000, ..Tuning::default() };
    let mut world = World::tuned(2, tuning);
    let wire = world.connect(0, 1);
    let value = "x".repeat(1_000);
    // Each asks the other for what it lacks first.
    world.pass(500);
    world.nodes[1].flushes = false;
    for n in 0..3_000 {
        world.put(0, &format!("k{n}"), &value);
    }
    world.pass(1_000);
    let report = world.report(wire, 0);
    assert!((100_000..140_000).contains(&report.in_flight_bytes), "little at first: {}", report.in_flight_bytes);
    assert!(report.bytes_behind > 3_000_000, "{}", report.bytes_behind);
    assert_eq!(report.entries_behind, 3_000);
    // Once the peer acknowledges it gets more at a time, up to the bound.
    world.nodes[1].flushes = true;
    world.nodes[1].flush();
    let mut most = 0;
    while !world.converged() {
        world.pass(10);
        most = most.max(world.report(wire, 0).in_flight_bytes);
    }
    assert!((250_000..310_000).contains(&most), "{most}");
}

/// Large entries are few: how many wait says nothing of how much.
#[test]
fn what_waits_for_a_peer_that_takes_little_is_bounded_in_bytes() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.pass(500);
    world.nodes[1].flushes = false;
    for n in 0..100u8 {
        world.put(0, "k", vec![n; 1 << 20]);
        // All of it takes less time than a peer may be silent.
        (n % 5 == 0).then(|| world.step());
    }
    let behind = world.report(wire, 0).bytes_behind;
    assert!(behind < 24 << 20, "{behind} bytes wait of 100 MiB that were written over");
    world.nodes[1].flushes = true;
    world.nodes[1].flush();
    world.converge();
}

/// A transaction of many keys leaves as a whole, once all of it is written over, and nobody is told that it waits.
#[test]
fn wide_transactions_that_were_written_over_leave() {
    const KEYS: usize = 120;
    let mut world = World::wired(3);
    world.connect(0, 1);
    world.pass(500);
    for n in 0..400 {
        let put = |key| Op::Put(put_op(&format!("k{key}"), format!("{n}"), None));
        let success = (0..KEYS).map(put).collect();
        let effects = world.handle(n % 2, Input::Client(Command::Txn(Txn { success, ..Txn::default() })));
        assert!(effects.reply.is_some_and(|reply| reply.is_ok()));
        world.pass(20);
    }
    world.pass(2_000);
    let lens: Vec<usize> = world.nodes[..2].iter().map(|node| node.replica.log_len()).collect();
    assert!(lens.iter().all(|len| *len <= 8), "{lens:?} entries stay of 400");
    let (here, away) = (world.nodes[0].replica.vector(), world.nodes[2].replica.vector());
    let lacks = world.nodes[0].replica.count_for(away, here);
    assert!((1..=8).contains(&lacks), "it lacks {lacks}, by what its peers tell operators");
    let before = world.nodes[2].replica.revision();
    world.connect(0, 2);
    world.converge();
    // One transaction stands of them, or one of each writer: its keys show at one revision.
    let revisions = world.nodes[2].replica.revision().get() - before.get();
    assert!(revisions <= 2, "{revisions}");
}

#[test]
fn an_update_of_two_fields_costs_300_bytes_with_its_acknowledgement() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    let pod = |n: u32, phase: &str| {
        let filler: String =
            (0..72u32).map(|n| format!(r#""annotation-{n}":"{:x}","#, n.wrapping_mul(2_654_435_761))).collect();
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"generation":{n},{filler}"x":0}},"status":{{"phase":"{phase}"}}}}"#
        )
    };
    world.put(0, "/registry/pods/default/web-7c5ddbdf54-x9xkq", pod(1, "Pending"));
    world.converge();
    // A ping falls in here otherwise.
    world.pass(5_200);
    let before: usize = world.wires[wire].ends.iter().map(|end| end.sent_bytes).sum();
    let value = pod(2, "Running");
    assert!((1_900..2_400).contains(&value.len()), "{}", value.len());
    world.put(0, "/registry/pods/default/web-7c5ddbdf54-x9xkq", value);
    world.pass(200);
    assert!(world.converged());
    let after: usize = world.wires[wire].ends.iter().map(|end| end.sent_bytes).sum();
    assert!(after - before <= 300, "{} bytes", after - before);
    assert_eq!(world.nodes[0].exchange.tally().deltas, 1);
}

#[test]
fn an_entry_is_encoded_once_for_all() {
    let mut world = World::mesh(4);
    world.converge();
    world.put(0, "k", "v");
    world.converge();
    let tally = world.nodes[0].exchange.tally();
    assert_eq!((tally.entries, tally.reused), (1, 2));
}

#[test]
fn idle_replicas_hardly_speak() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.put(0, "k", "v");
    world.pass(5_000);
    let before: usize = world.wires[wire].ends.iter().map(|end| end.sent_bytes).sum();
    world.pass(60_000);
    let after: usize = world.wires[wire].ends.iter().map(|end| end.sent_bytes).sum();
    assert!(after - before <= 2_000, "{} bytes in a minute", after - before);
}

#[test]
fn both_sides_learn_whom_they_met() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.step();
    let Some(SessionEvent::Met { member, empty, .. }) = world.events(wire, 0).first() else { panic!("met nobody") };
    assert_eq!((*member, *empty), (id(1), false));
    assert_eq!(world.nodes[0].exchange.links(), [id(1)]);
    world.cut();
    assert_eq!(world.nodes[0].exchange.links(), []);
}

/// What both wrote while they were apart is merged a key at a time before any of it shows. Clients write meanwhile, also to
/// keys that are merged already.
#[test]
fn clients_write_while_a_unit_is_prepared() {
    let mut world = World::tuned(2, Tuning { prepared_keys: 1, ..Tuning::default() });
    let key = |n: usize| format!("key{n:02}");
    for (node, n) in (0..20).flat_map(|n| [(0, n), (1, n)]) {
        world.put(node, &key(n), format!("{node}"));
    }
    world.connect(0, 1);
    while !world.wires[0].ends.iter().all(|end| end.session.prepares()) {
        world.step();
    }
    let mut steps = 0;
    while world.wires[0].ends[1].session.prepares() {
        assert_eq!(world.nodes[1].get(&key(19)).as_deref(), Some("1"), "something shows before all is prepared");
        world.put(1, &key(steps / 2), "meanwhile");
        world.step();
        steps += 1;
    }
    assert!(steps > 10, "{steps} steps");
    world.converge();
    let values = |node: usize| (0..20).map(|n| world.nodes[node].get(&key(n)).unwrap()).collect::<Vec<_>>();
    assert_eq!(values(0), values(1));
    assert!(values(0).iter().take(steps / 2).all(|value| value == "meanwhile"), "{:?}", values(0));
}
