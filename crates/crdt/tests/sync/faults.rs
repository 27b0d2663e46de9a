//! Wires that lose, double, reorder and damage.

use std::collections::VecDeque;

use bytes::Bytes;
use eddy_crdt::sync::{DecodeError, Message, Stage, SyncError};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::net::{Net, STEP_MS};

/// Writes at all, and steps, for a while; then until all have the same.
fn busy(net: &mut Net, rng: &mut SmallRng) {
    for n in 0..200 {
        let node = rng.random_range(0..net.nodes.len());
        let key = format!("k{}", rng.random_range(0..20));
        net.put(node, &key, format!("{{\"value\":\"{n}\",\"filler\":\"{}\"}}", "x".repeat(200)));
        net.step();
    }
}

fn mangled(seed: u64, mut mangle: impl FnMut(&mut SmallRng, &mut VecDeque<Bytes>) + 'static) -> Net {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut own = SmallRng::seed_from_u64(seed + 1);
    let mut net = Net::mesh(3);
    // Greetings get through; what happens to them is a new stream.
    net.step();
    net.mangle = Some(Box::new(move |queue| mangle(&mut own, queue)));
    busy(&mut net, &mut rng);
    net.converge();
    for wire in 0..net.wires.len() {
        assert_eq!((net.error(wire, 0), net.error(wire, 1)), (None, None), "seed {seed}");
        assert_eq!(net.report(wire, 0).stage, Stage::Open);
    }
    net
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

#[test]
fn lost_messages_are_sent_again() {
    for seed in 0..20 {
        let net = mangled(seed, |rng, queue| queue.retain(|_| rng.random_range(0..5) > 0));
        assert!((0..3).any(|wire| net.report(wire, 0).tally.again + net.report(wire, 1).tally.again > 0));
    }
}

#[test]
fn streams_that_break_all_the_time_converge() {
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut net = Net::new(3);
        for _ in 0..30 {
            for (a, b) in [(0, 1), (1, 2), (0, 2)] {
                if rng.random_bool(0.5) {
                    net.connect(a, b);
                }
            }
            for _ in 0..rng.random_range(1..6) {
                let node = rng.random_range(0..3);
                net.put(node, "k", format!("{}", rng.random_range(0..100)));
                net.step();
            }
            net.cut();
        }
        net.connect(0, 1);
        net.connect(1, 2);
        net.converge();
        for node in &net.nodes {
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
    let mut net = Net::new(2);
    let wire = net.connect(0, 1);
    net.put(0, "k", "v");
    net.run(100);
    let before = net.nodes[1].replica.state_hash();
    net.wires[wire].ends[1].queue.push_back(Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"));
    net.run(2 * STEP_MS);
    assert_eq!(net.error(wire, 1), Some(&SyncError::Garbage(DecodeError::Checksum)));
    assert!(matches!(net.error(wire, 0), Some(SyncError::Refused { .. })), "it is told");
    assert_eq!(net.nodes[1].replica.state_hash(), before);
    net.cut();
    net.connect(0, 1);
    net.put(0, "k", "w");
    net.converge();
}

#[test]
fn a_well_sealed_message_with_a_broken_entry_ends_the_stream() {
    let mut net = Net::new(2);
    let wire = net.connect(0, 1);
    net.run(100);
    net.send(wire, 0, &Message::Entries { epoch: 0, number: 1, entries: vec![Bytes::from_static(b"\x09\x00")] });
    net.step();
    assert!(matches!(net.error(wire, 1), Some(SyncError::Garbage(_))), "{:?}", net.error(wire, 1));
}

#[test]
fn nothing_is_taken_before_the_greeting() {
    let mut net = Net::new(2);
    let wire = net.connect(0, 1);
    net.wires[wire].ends[1].queue.clear();
    net.send(wire, 0, &Message::Ping { number: 1, wall_ms: 1 });
    net.step();
    assert_eq!(net.error(wire, 1), Some(&SyncError::Unexpected("a ping")));
}

#[test]
fn a_delta_whose_base_is_missing_is_asked_for_whole() {
    let mut net = Net::new(2);
    let wire = net.connect(0, 1);
    net.converge();
    net.run(200);
    let value = |n: u32| Bytes::from(format!("{{\"n\":{n},\"filler\":\"{}\"}}", "filler ".repeat(60)));
    net.put(0, "k", value(1));
    // The entry that the session is about to send, as a change of something that nobody has.
    let node = &net.nodes[0];
    let entry =
        node.replica.entries_for(&net.nodes[1].durable, &node.durable, 1 << 20).expect("above the floor").remove(0);
    let encoded = eddy_crdt::sync::encode_entry(&entry, |_| Some(value(77)));
    assert_eq!(encoded.deltas, 1);
    net.send(wire, 0, &Message::Entries { epoch: 0, number: 1, entries: vec![encoded.bytes] });
    net.nodes[0].flushes = false;
    net.converge();
    assert_eq!(net.nodes[1].get("k"), Some(value(1)));
    assert_eq!(net.report(wire, 1).tally.missing_bases, 1);
    assert_eq!(net.error(wire, 1), None);
}

#[test]
fn a_request_repeated_for_ever_ends_the_stream() {
    let mut net = Net::new(2);
    let wire = net.connect(0, 1);
    net.run(100);
    for epoch in 1..200 {
        net.send(wire, 1, &Message::Again { epoch, have: Default::default(), whole: false });
    }
    net.step();
    assert!(matches!(net.error(wire, 0), Some(SyncError::Unexpected(_))));
}
