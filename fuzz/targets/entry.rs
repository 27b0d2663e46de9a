//! An entry as a peer sends it: read, its deltas resolved, written whole, and read again.

use bytes::Bytes;
use eddy_crdt::sync::{ENTRY_MAX, decode_entry, encode_entry};
use xxhash_rust::xxh3::xxh3_128;

/// The values that deltas may be changes of.
pub const BASES: &[&[u8]] = &[
    b"base",
    br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u1","labels":{"a":"1","b":"2","c":"3"}},"spec":{}}"#,
];

pub fn run(data: &[u8]) {
    let Ok(received) = decode_entry(Bytes::copy_from_slice(data)) else { return };
    let head = received.head.clone();
    assert!(received.expanded_len() <= ENTRY_MAX, "an entry of {} bytes", received.expanded_len());
    // What a fuzzer can make large by one number makes every run slow: the bound itself has a test.
    if received.expanded_len() > 1 << 20 {
        return;
    }
    let found = received.resolve(|_, _, hash| {
        let base = BASES.iter().find(|base| xxh3_128(base) == hash)?;
        Some(Bytes::from_static(base))
    });
    let Ok(entry) = found else { return };
    assert_eq!(entry.head, head);
    assert!(!entry.net().is_empty() && entry.weight() > 0);
    let whole = decode_entry(encode_entry(&entry, |_| None).bytes).expect("an entry that was written here");
    assert_eq!(whole.expanded_len(), 0);
    assert_eq!(whole.resolve(|_, _, _| None).expect("no deltas"), entry);
    // Put values may travel as deltas of a base that both sides have.
    let base = Bytes::from_static(BASES[1]);
    let delta = decode_entry(encode_entry(&entry, |_| Some(base.clone())).bytes).expect("an entry with deltas");
    assert_eq!(delta.resolve(|_, _, _| Some(base.clone())).expect("the base is here"), entry);
}
