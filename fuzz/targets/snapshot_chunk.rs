//! Chunks of a snapshot: read, installed, and the replica that comes of it started again from its journal.
//!
//! The settled keys and the entries in a chunk are records with checksums, which no fuzzer can guess. So the chunks in an
//! input are without them, and get them here.

use bytes::Bytes;
use eddy_crdt::{Birth, ClusterId, Identity, Installer, Loader, Now, ReplicaId, SnapshotChunk};
use prost::Message;

use super::input::{Input, seal};

/// A chunk as it travels, as far as it must be known to put checksums in.
#[derive(Clone, PartialEq, Message)]
pub struct Open {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub base: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub floor: Vec<Bytes>,
    #[prost(int64, tag = "3")]
    pub revision: i64,
    #[prost(bytes = "bytes", tag = "4")]
    pub keys: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub entries: Vec<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub next: Option<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub settled: Vec<Bytes>,
}

/// The chunks of one input: each behind its length.
const CHUNKS_MAX: usize = 4;

pub fn run(data: &[u8]) {
    let raw = Bytes::copy_from_slice(data);
    if let Ok(chunk) = SnapshotChunk::decode(&raw) {
        check(&chunk);
    }
    let (mut input, mut installer) = (Input::new(data), Installer::new());
    for _ in 0..CHUNKS_MAX {
        let len = input.short();
        let Ok(mut open) = Open::decode(Bytes::copy_from_slice(input.take(len))) else { return };
        open.keys = seal(&open.keys);
        open.entries.iter_mut().for_each(|entry| *entry = seal(entry));
        let Ok(chunk) = SnapshotChunk::decode(&open.encode_to_vec().into()) else { return };
        check(&chunk);
        match installer.chunk(chunk) {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => return,
        }
    }
    install(installer);
}

fn check(chunk: &SnapshotChunk) {
    let again = SnapshotChunk::decode(&chunk.encode()).expect("a chunk that was written here");
    assert_eq!(&again, chunk);
}

/// A replica that was begun with must come back from what it wrote.
fn install(installer: Installer) {
    let replica = ReplicaId::new(1);
    let identity = Identity { cluster: ClusterId::new(0xc1), replica, birth: Birth::new(99), ordinal: 0 };
    let now = Now { wall_ms: 1_800_000_000_000, mono_ms: 1 };
    let Ok(installed) = installer.finish(now, identity, None) else { return };
    let mut loader = Loader::new(Some(&installed.head)).expect("the head of a replica that began");
    for (number, record) in (1..).zip(&installed.records) {
        loader.record(number, record.clone()).expect("a record of a replica that began");
    }
    let mut again = |number: u64| installed.records.get(number as usize - 1).cloned();
    let restored = loader.finish(now, identity, &mut again).expect("a journal of a replica that began");
    assert_eq!(restored.state_hash(), installed.replica.state_hash());
    assert_eq!(restored.vector(), installed.replica.vector());
}
