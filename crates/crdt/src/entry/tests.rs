//! Records and chain hashes.

use super::*;
use crate::words::chain::{CHAIN_LEN, Chain};
use crate::words::clock::Stamp;
use crate::words::id::{Birth, Dot, LeaseId, Origin, ReplicaId};
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::value::Incarnation;
use crate::words::vector::VersionVector;
use bytes::Bytes;

fn record() -> Record {
    let origin = Origin { replica: ReplicaId::new(u64::MAX), birth: Birth::new(9) };
    let own = Incarnation { stamp: Stamp::new(77), dot: Dot { origin, seq: 3 } };
    let applied = |sub, after| Some(Applied { sub, create_revision: Some(Revision::new(4)), after });
    let change = |sub, kind, incarnation| Change {
        keyspace: Keyspace::Client,
        local: sub == 1,
        key: Key::from_static(b"k"),
        kind,
        incarnation,
        applied: applied(sub, 0),
    };
    let older = Incarnation { stamp: Stamp::new(5), dot: Dot { origin, seq: 1 } };
    Record {
        number: 12,
        revision: Some(Revision::new(5)),
        head: Some(EntryHead {
            dot: own.dot,
            first_seq: 2,
            stamp: own.stamp,
            rules: 3,
            depends: VersionVector::default(),
            previous: Chain::from_wire(&[7; CHAIN_LEN]).unwrap(),
            resulting: None,
        }),
        changes: vec![
            change(0, ChangeKind::Put { value: Bytes::new(), lease: Some(LeaseId::new(-3)), version: 1 }, own),
            change(1, ChangeKind::Delete, older),
            Change { applied: None, ..change(2, ChangeKind::Expire, older) },
        ],
        outcomes: [1, 2, 3, u32::MAX >> 5]
            .map(|after| Change { applied: applied(3, after), ..change(3, ChangeKind::Expire, older) })
            .into(),
        trimmed: false,
        settled: true,
        until: None,
        bases: Bases {
            none: [0, 7].into(),
            below: [(1, Below::Base(Some(3))), (2, Below::Base(None)), (3, Below::NoBase)].into(),
        },
        notes: Notes::default(),
    }
}

#[test]
fn records_come_back_as_they_were() {
    assert_eq!(Record::decode(record().encode()).unwrap(), record());
    let no_entry = Record { head: None, ..record() };
    assert_eq!(Record::decode(no_entry.encode()).unwrap(), no_entry);
    let bases = |number| (number, record().bases.into());
    let notes = Notes { left: [1, 7, u64::MAX].into(), bases: [bases(3), bases(400), bases(u64::MAX)].into() };
    let noted = Record::of_notes(900, notes);
    assert_eq!(Record::decode(noted.encode()).unwrap(), noted);
}

#[test]
fn every_cut_and_every_flipped_byte_is_handled() {
    let bytes = record().encode();
    for cut in 0..bytes.len() {
        let cut = Record::decode(bytes.slice(..cut));
        assert!(matches!(cut, Err(CodecError::Checksum)));
    }
    for place in 0..bytes.len() {
        for flip in [1u8, 0x80, 0xff] {
            let mut damaged = bytes.to_vec();
            damaged[place] ^= flip;
            let flipped = Record::decode(damaged.into());
            assert!(matches!(flipped, Err(CodecError::Checksum)), "byte {place}");
        }
    }
}

#[test]
fn the_chain_covers_what_travels_and_nothing_else() {
    let record = record();
    let head = record.head.clone().unwrap();
    let chain = Chain::default().extend(&head, &record.changes);
    let mut other = record.clone();
    other.changes[0].applied = None;
    other.changes[1].key = Key::from_static(b"local");
    assert_eq!(chain, Chain::default().extend(&head, &other.changes));
    other.changes[0].key = Key::from_static(b"other");
    assert_ne!(chain, Chain::default().extend(&head, &other.changes));
}
