//! The codecs: what goes in comes out, and nothing else does.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use crate::entry::{Applied, Change, ChangeKind, Entry, EntryHead};
use crate::merge::declared::counters;
use crate::merge::rules::Rules;
use crate::replica::marks::{Ack, Statement};
use crate::sync::entry_wire::{self, Unresolved};
use crate::sync::message::{AckBatch, ENTRY_MAX, Hello, MESSAGE_MAX, Message, PIECES_MAX, Part, Piece, Reason};
use crate::sync::wire::DecodeError;
use crate::sync::{delta, wire};
use crate::words::chain::Chain;
use crate::words::clock::Stamp;
use crate::words::id::{Birth, ClusterId, Dot, LeaseId, Origin, ReplicaId};
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::value::Incarnation;
use crate::words::vector::VersionVector;

fn dot(replica: u64, birth: u64, seq: u64) -> Dot {
    Dot { origin: Origin { replica: ReplicaId::new(replica), birth: Birth::new(birth) }, seq }
}

fn vector(dots: &[Dot]) -> VersionVector {
    dots.iter().copied().collect()
}

fn chain(seed: u8) -> Chain {
    Chain::from_wire(&[seed; 16]).expect("16 bytes")
}

fn entry(key: &'static str, value: Bytes) -> Entry {
    let name = dot(0x8e9e_05c5_2164_694d, 0x1234_5678_9abc_def0, 41_236);
    let put = ChangeKind::Put { value, lease: LeaseId::from_wire(77), version: 12 };
    let foreign = Incarnation { stamp: Stamp::new(5 << 40), dot: dot(0, 0, 1) };
    let own = Incarnation { stamp: Stamp::new(6 << 40), dot: dot(0x8e9e_05c5_2164_694d, 0x1234_5678_9abc_def0, 7) };
    let change = |keyspace, kind, incarnation| Change {
        keyspace,
        local: false,
        key: Key::from_static(key.as_bytes()),
        kind,
        incarnation,
        applied: None,
    };
    let stamp = Stamp::new(1_790_000_000_000 << 16);
    Entry {
        head: EntryHead {
            dot: name,
            first_seq: name.seq,
            stamp,
            rules: 300,
            depends: vector(&[dot(9, 9, 9)]),
            previous: chain(7),
            resulting: None,
        },
        changes: vec![
            change(Keyspace::Client, put, own),
            change(Keyspace::System, ChangeKind::Delete, foreign),
            change(Keyspace::Client, ChangeKind::Expire, Incarnation { stamp, dot: name }),
        ],
    }
}

fn messages() -> Vec<Message> {
    let place = || Some((Keyspace::System, Key::from_static(b"k")));
    let upto = [(ReplicaId::new(3), Arc::new(vector(&[dot(4, 5, 6)]))), (ReplicaId::new(4), Arc::default())];
    let said = Statement { version: 3, upto: Some(Arc::new(upto.into())) };
    let hello = Hello {
        protocol: 1,
        cluster: ClusterId::new(3),
        replica: ReplicaId::new(4),
        birth: Birth::new(5),
        vector: vector(&[dot(4, 5, 6), dot(7, 8, u64::MAX)]),
        chains: vec![(dot(4, 5, 6), chain(1)), (dot(4, 5, 2), chain(2))],
        begins: vector(&[dot(4, 5, 1)]),
        empty: true,
        doubtful: true,
        lineage: Some(dot(1, 2, 1).origin),
        revision: Revision::new(5 << 32),
        rules: Rules { counters: counters("apps/v1/Deployment:.spec.replicas:min=0").unwrap(), ..Rules::default() },
        founded: Rules::default(),
        marks: 12,
    };
    vec![
        Message::Hello(Box::new(hello)),
        Message::Entries {
            epoch: 3,
            number: 4,
            entries: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
            marks: 0,
            part: None,
        },
        Message::Entries {
            epoch: 3,
            number: 5,
            entries: vec![],
            marks: 9,
            part: Some(Part { first: 4, ends: true, more: true }),
        },
        Message::Acks(AckBatch {
            epoch: 1,
            number: 2,
            own: vector(&[dot(4, 5, 6)]),
            said: said.clone(),
            acks: vec![
                Ack { member: dot(1, 2, 0).origin, vector: vector(&[dot(1, 2, 3)]), said: Statement::default() },
                Ack { member: dot(2, 9, 0).origin, vector: vector(&[]), said },
            ],
            links: Some(vec![]),
            received: 7,
        }),
        Message::Acks(AckBatch { links: Some(vec![ReplicaId::new(9)]), ..AckBatch::default() }),
        Message::Acks(AckBatch::default()),
        Message::Again { epoch: 9, have: vector(&[dot(1, 1, 1)]), whole: true, floor: vector(&[dot(2, 1, 1)]) },
        Message::ChainsWanted { origin: dot(1, 2, 0).origin, seqs: vec![1, 2, 300] },
        Message::Chains(vec![(dot(1, 2, 3), chain(9))]),
        Message::Hash { at: 1 << 60, hash: Some(1 << 100) },
        Message::Hash { at: 0, hash: None },
        Message::Narrow {
            at: 1,
            from: place(),
            pieces: vec![Piece { end: place(), hash: 3 }, Piece { end: None, hash: 4 }],
            single: true,
        },
        Message::Narrow { at: 1, from: None, pieces: vec![], single: false },
        Message::Differs((Keyspace::Client, Key::from_static(b"x"))),
        Message::SnapshotWanted { after: place() },
        Message::SnapshotWanted { after: None },
        Message::SnapshotChunk(Bytes::from_static(b"chunk")),
        Message::Ping { number: 1, wall_ms: 2 },
        Message::Pong { number: 1, wall_ms: u64::MAX },
        Message::TooFarBehind { begins: vector(&[dot(1, 1, 1)]) },
        Message::Refuse { reason: Reason::RemovedMember, text: "removed".into() },
    ]
}

#[test]
fn every_message_comes_back_as_it_was() {
    for message in messages() {
        assert_eq!(Message::decode(message.encode()), Ok(message));
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_noticed() {
    for message in messages() {
        let bytes = message.encode();
        for at in 0..bytes.len() {
            assert!(Message::decode(bytes.slice(..at)).is_err(), "{message:?} cut at {at}");
            for bit in 0..8 {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 1 << bit;
                assert_eq!(Message::decode(flipped.into()), Err(DecodeError::Checksum), "{message:?} byte {at}");
            }
        }
    }
}

#[test]
fn entries_come_back_without_what_stays_on_their_replica() {
    let mut sent = entry("/registry/pods/default/web-1", Bytes::from_static(b"value"));
    let encoded = entry_wire::encode(&sent, |_| None);
    let received = entry_wire::decode(encoded.bytes).expect("an entry").resolve(|_, _, _| None);
    assert_eq!(received.as_ref(), Ok(&sent));

    sent.changes[1].local = true;
    sent.changes[0].applied = Some(Applied { sub: 4, create_revision: Some(Revision::new(9)), after: 0 });
    sent.head.first_seq -= 5;
    sent.head.resulting = Some(chain(8));
    let received = entry_wire::decode(entry_wire::encode(&sent, |_| None).bytes).expect("an entry");
    let received = received.resolve(|_, _, _| None).expect("no deltas");
    assert_eq!(received.head, sent.head);
    assert_eq!(received.changes.len(), 2);
    assert_eq!(received.changes[0], sent.changes[0].travelling());
    assert_eq!(received.changes[1], sent.changes[2]);
}

#[test]
fn what_is_read_holds_on_to_nothing_that_it_came_with() {
    let encoded = entry_wire::encode(&entry("/registry/pods/default/web-1", Bytes::from_static(b"value")), |_| None);
    let frame = Bytes::from([&encoded.bytes[..], &[0; 1 << 20]].concat());
    let received = entry_wire::decode(frame.slice(..encoded.bytes.len())).expect("an entry");
    let entry = received.resolve(|_, _, _| None).expect("no deltas");
    assert!(frame.is_unique(), "{} changes hold on to {} bytes", entry.changes.len(), frame.len());
}

/// A Pod of about 2 KB as a kube-apiserver stores it.
fn pod(resource_version: u32, phase: &str) -> Bytes {
    let env: String = (0..18).map(|n| format!(r#"{{"name":"SETTING_{n}","value":"{:x}"}},"#, n * 7_919)).collect();
    let conditions: String = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .iter()
        .map(|kind| format!(r#"{{"type":"{kind}","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"}},"#))
        .collect();
    let json = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"web-7c5ddbdf54-x9xkq","generateName":"web-7c5ddbdf54-","namespace":"default","uid":"7ad3a5d0-9b0e-4cbb-8a4f-6a3a3f8f1b11","creationTimestamp":"2026-01-02T03:04:01Z","labels":{{"app":"web","pod-template-hash":"7c5ddbdf54"}},"annotations":{{"example.com/checked":"{resource_version}"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7c5ddbdf54","uid":"0ac6a3d5-3c5f-4a5e-9b57-0f0f6a1f2b22","controller":true,"blockOwnerDeletion":true}}]}},"spec":{{"volumes":[{{"name":"kube-api-access-5v7xg","projected":{{"sources":[{{"serviceAccountToken":{{"expirationSeconds":3607,"path":"token"}}}}],"defaultMode":420}}}}],"containers":[{{"name":"web","image":"registry.example.com/web:1.27.3","ports":[{{"containerPort":8080,"protocol":"TCP"}}],"env":[{env}{{}}],"resources":{{"limits":{{"cpu":"500m","memory":"256Mi"}},"requests":{{"cpu":"100m","memory":"128Mi"}}}},"imagePullPolicy":"IfNotPresent"}}],"restartPolicy":"Always","nodeName":"edge-node-17","schedulerName":"default-scheduler"}},"status":{{"phase":"{phase}","conditions":[{conditions}{{}}],"hostIP":"10.1.2.3","podIP":"10.244.3.17"}}}}"#
    );
    Bytes::from(json.into_bytes())
}

#[test]
fn two_edited_fields_of_a_pod_travel_in_300_bytes() {
    let (before, after) = (pod(1000, "Pending"), pod(1001, "Running"));
    assert!((2_000..2_300).contains(&after.len()), "{} bytes", after.len());
    let mut sent = entry("/registry/pods/default/web-7c5ddbdf54-x9xkq", after);
    sent.changes.truncate(1);
    let encoded = entry_wire::encode(&sent, |_| Some(before.clone()));
    assert_eq!(encoded.deltas, 1);
    let message = Message::Entries { epoch: 0, number: 1, entries: vec![encoded.bytes], marks: 0, part: None }.encode();
    assert!(message.len() <= 300, "{} bytes", message.len());

    let Ok(Message::Entries { entries, .. }) = Message::decode(message) else { panic!("entries") };
    let received = entry_wire::decode(entries[0].clone()).expect("an entry");
    let find = |_, _: &Key, hash| (hash == delta::hash(&before)).then(|| before.clone());
    assert_eq!(received.clone().resolve(find), Ok(sent), "byte for byte");
    assert_eq!(received.resolve(|_, _, _| None), Err(Unresolved::NoBase));
}

#[test]
fn no_message_is_longer_than_it_may_be() {
    let half = Bytes::from(vec![0; MESSAGE_MAX / 2 + 1]);
    let two = Message::Entries { epoch: 0, number: 1, entries: vec![half.clone(), half.clone()], marks: 0, part: None }
        .encode();
    assert_eq!(Message::decode(two.clone()), Err(DecodeError::TooLong(two.len())));
    // A single entry may be: a value, or a delete of very many keys.
    let long = Bytes::from(vec![0; MESSAGE_MAX + 1]);
    assert!(
        Message::decode(Message::Entries { epoch: 0, number: 1, entries: vec![long], marks: 0, part: None }.encode())
            .is_ok()
    );
    let pieces = vec![Piece { end: None, hash: 0 }; PIECES_MAX + 1];
    let narrow = Message::Narrow { at: 0, from: None, pieces, single: false }.encode();
    assert_eq!(Message::decode(narrow), Err(DecodeError::Field("number of pieces")));
}

#[test]
fn an_entry_cannot_make_its_receiver_allocate_more_than_an_entry_may_have() {
    let delta = |len| wire::WireChange {
        flags: 1 << 2 | 2,
        key: Bytes::from_static(b"k"),
        base: Bytes::from(vec![0; 16]),
        len,
        ..wire::WireChange::default()
    };
    let decode = |lens: &[u64]| {
        let changes = lens.iter().map(|len| delta(*len)).collect();
        let previous = Bytes::from(vec![0; crate::words::chain::CHAIN_LEN]);
        let entry = wire::WireEntry { seq: 1, previous, changes, ..wire::WireEntry::default() };
        entry_wire::decode(prost::Message::encode_to_vec(&entry).into())
    };
    let most = ENTRY_MAX as u64 / 16;
    assert!(decode(&[most; 16]).is_ok());
    assert_eq!(decode(&[most; 17]), Err(DecodeError::TooLong(17 * most as usize)));
    assert_eq!(decode(&[u64::MAX, u64::MAX]), Err(DecodeError::TooLong(usize::MAX)));
}

#[test]
fn a_version_number_that_leaves_none_for_the_next_write_is_refused() {
    for (number, is_right) in [(0, true), (i64::MAX / 2, true), (-1, false), (i64::MAX, false)] {
        let mut sent = entry("k", Bytes::from_static(b"v"));
        if let ChangeKind::Put { version, .. } = &mut sent.changes[0].kind {
            *version = number;
        }
        let decoded = entry_wire::decode(entry_wire::encode(&sent, |_| None).bytes);
        assert_eq!(decoded.is_ok(), is_right, "{number}");
    }
}

/// Garbage with a right checksum: what a bug or a hostile member would send.
fn sealed(body: &[u8]) -> Bytes {
    let mut bytes = body.to_vec();
    bytes.push(15 << 3 | 1);
    bytes.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(body).to_le_bytes());
    bytes.into()
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Message::decode(bytes.clone().into()).is_err());
        if let Ok(message) = Message::decode(sealed(&bytes)) {
            prop_assert_eq!(Message::decode(message.encode()), Ok(message));
        }
        if let Ok(received) = entry_wire::decode(bytes.into()) {
            received.resolve(|_, _, _| Some(Bytes::from_static(b"base"))).ok();
        }
    }

    #[test]
    fn damaged_messages_never_panic(which in any::<usize>(), at in any::<usize>(), byte in any::<u8>()) {
        let all = messages();
        let mut bytes = all[which % all.len()].encode().to_vec();
        bytes.truncate(bytes.len() - 9);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(message) = Message::decode(sealed(&bytes)) {
            prop_assert_eq!(Message::decode(message.encode()), Ok(message));
        }
    }

    #[test]
    fn damaged_entries_never_panic(at in any::<usize>(), byte in any::<u8>()) {
        let before = pod(1, "Pending");
        let mut bytes = entry_wire::encode(&entry("/registry/k", pod(2, "Running")), |_| Some(before.clone())).bytes.to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(received) = entry_wire::decode(bytes.into()) {
            received.resolve(|_, _, _| Some(before.clone())).ok();
        }
    }
}

#[test]
fn a_refusal_reaches_the_log_as_one_line() {
    let text = "first\nsecond".repeat(1000);
    let message = Message::Refuse { reason: Reason::Other, text };
    let Ok(Message::Refuse { text, .. }) = Message::decode(message.encode()) else { panic!("a refusal") };
    assert!(text.starts_with("firstsecond") && text.len() == 512);
    let unknown =
        wire::Envelope { body: Some(wire::Body::Refuse(wire::WireRefuse { reason: 99, text: String::new() })) };
    let bytes = sealed(&prost::Message::encode_to_vec(&unknown));
    assert_eq!(Message::decode(bytes), Ok(Message::Refuse { reason: Reason::Other, text: String::new() }));
}
