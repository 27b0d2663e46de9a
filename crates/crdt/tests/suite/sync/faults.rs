//! Wires that lose, double, reorder and damage.

use std::collections::VecDeque;

use bytes::Bytes;
use eddy_crdt::sync::{DecodeError, Message, Stage, SyncError};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::support::wires::STEP_MS;
use crate::support::world::World;

/// Writes at all, and steps, for a while; then until all have the same.
fn busy(world: &mut World, rng: &mut SmallRng) {
    for n in 0..200 {
        let node = rng.random_range(0..world.nodes.len());
        let key = format!("k{}", rng.random_range(0..20));
        world.put(node, &key, format!("{{\"value\":\"{n}\",\"filler\":\"{}\"}}", "x".repeat(200)));
        world.step();
    }
}

fn mangled(seed: u64, mut mangle: impl FnMut(&mut SmallRng, &mut VecDeque<Bytes>) + 'static) -> World {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut own = SmallRng::seed_from_u64(seed + 1);
    let mut world = World::mesh(3);
    // Greetings get through; what happens to them is a new stream.
    world.step();
    world.mangle = Some(Box::new(move |queue| mangle(&mut own, queue)));
    busy(&mut world, &mut rng);
    world.converge();
    for wire in 0..world.wires.len() {
        assert_eq!((world.error(wire, 0), world.error(wire, 1)), (None, None), "seed {seed}");
        assert_eq!(world.report(wire, 0).stage, Stage::Open);
    }
    world
}

#[test]
fn doubled_and_reordered_messages_change_nothing() {
    for seed in 0..20 {
        mangled(seed, |rng, queue| {
            let mut all: Vec<_> = queue.drain(..).flat_map(|bytes| [bytes.clone(), bytes]).collect();
            all.shuffle(rng);
            queue.extend(all);
        });
    }
}

/// What overtakes waits for what comes before it, and nothing is asked for again.
#[test]
fn entries_that_arrive_the_wrong_way_round_are_taken_when_the_first_is_there() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.pass(200);
    let mut late = VecDeque::new();
    for n in 0..8 {
        world.put(0, &format!("k{n}"), "v");
        world.step();
        late.extend(world.wires[wire].ends[1].queue.drain(..));
    }
    assert!(late.len() >= 8, "each in a message of its own");
    world.wires[wire].ends[1].queue = late.into_iter().rev().collect();
    world.pass(10 * STEP_MS);
    assert_eq!(world.nodes[1].replica.vector(), world.nodes[0].replica.vector());
    assert_eq!(world.report(wire, 1).tally.again, 0);
}

#[test]
fn lost_messages_are_sent_again() {
    for seed in 0..20 {
        let world = mangled(seed, |rng, queue| queue.retain(|_| rng.random_range(0..5) > 0));
        assert!((0..3).any(|wire| world.report(wire, 0).tally.again + world.report(wire, 1).tally.again > 0));
    }
}

#[test]
fn streams_that_break_all_the_time_converge() {
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::wired(3);
        for _ in 0..30 {
            for (a, b) in [(0, 1), (1, 2), (0, 2)] {
                if rng.random_bool(0.5) {
                    world.connect(a, b);
                }
            }
            for _ in 0..rng.random_range(1..6) {
                let node = rng.random_range(0..3);
                world.put(node, "k", format!("{}", rng.random_range(0..100)));
                world.step();
            }
            world.cut();
        }
        world.connect(0, 1);
        world.connect(1, 2);
        world.converge();
        for node in &world.nodes {
            assert_eq!(node.notices.iter().filter(|n| is_fault(n)).count(), 0, "seed {seed}: {:?}", node.notices);
        }
    }
}

fn is_fault(notice: &eddy_crdt::Notice) -> bool {
    use eddy_crdt::Notice::*;
    matches!(notice, BelowFloor { .. } | TooEarly { .. } | Forked { .. } | OwnTailLost { .. } | NotAMember { .. })
}

#[test]
fn garbage_ends_the_stream_and_nothing_else() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.put(0, "k", "v");
    world.pass(100);
    let before = world.nodes[1].replica.state_hash();
    world.wires[wire].ends[1].queue.push_back(Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"));
    world.pass(2 * STEP_MS);
    assert_eq!(world.error(wire, 1), Some(&SyncError::Garbage(DecodeError::Checksum)));
    assert!(matches!(world.error(wire, 0), Some(SyncError::Refused { .. })), "it is told");
    assert_eq!(world.nodes[1].replica.state_hash(), before);
    world.cut();
    world.connect(0, 1);
    world.put(0, "k", "w");
    world.converge();
}

#[test]
fn a_well_sealed_message_with_a_broken_entry_ends_the_stream() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.pass(100);
    let entries = vec![Bytes::from_static(b"\x09\x00")];
    world.send(wire, 0, &Message::Entries { epoch: 1, number: 9, entries, marks: 0, part: None });
    world.step();
    assert!(matches!(world.error(wire, 1), Some(SyncError::Garbage(_))), "{:?}", world.error(wire, 1));
}

#[test]
fn nothing_is_taken_before_the_greeting() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.wires[wire].ends[1].queue.clear();
    world.send(wire, 0, &Message::Ping { number: 1, wall_ms: 1 });
    world.step();
    assert_eq!(world.error(wire, 1), Some(&SyncError::Unexpected("a ping")));
}

#[test]
fn a_delta_whose_base_is_missing_is_asked_for_whole() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.converge();
    world.pass(200);
    let value = |n: u32| format!("{{\"n\":{n},\"filler\":\"{}\"}}", "filler ".repeat(60));
    world.put(0, "k", value(1));
    // The entry that the session is about to send, as a change of something that nobody has.
    let node = &world.nodes[0];
    let entry =
        node.replica.entries_for(&world.nodes[1].durable, &node.durable, 1 << 20).expect("above the floor").remove(0);
    let encoded = eddy_crdt::sync::encode_entry(&entry, |_| Some(value(77).into()));
    assert_eq!(encoded.deltas, 1);
    world.send(wire, 0, &Message::Entries { epoch: 1, number: 9, entries: vec![encoded.bytes], marks: 0, part: None });
    world.nodes[0].flushes = false;
    world.converge();
    assert_eq!(world.nodes[1].get("k"), Some(value(1)));
    assert_eq!(world.report(wire, 1).tally.missing_bases, 1);
    assert_eq!(world.error(wire, 1), None);
}

#[test]
fn a_request_repeated_for_ever_ends_the_stream() {
    let mut world = World::wired(2);
    let wire = world.connect(0, 1);
    world.pass(100);
    for epoch in 1..200 {
        world.send(
            wire,
            1,
            &Message::Again { epoch, have: Default::default(), whole: false, floor: Default::default() },
        );
    }
    world.step();
    assert!(matches!(world.error(wire, 0), Some(SyncError::Unexpected(_))));
}
