//! Ranges as etcd answers them.

use bytes::Bytes;
use eddy_crdt::{KeyValue, RangeOp, RangeReply, ReadAt, Refusal, Revision, SortOrder, SortTarget};

/// The number that a client gave for the revision.
pub fn named(at: ReadAt) -> Option<i64> {
    match at {
        ReadAt::Latest => None,
        ReadAt::Revision(at) => Some(at.get()),
        ReadAt::Negative(at) => Some(at),
    }
}

/// The revision at which a range is read where `current` is the newest one.
pub fn read_at(op: &RangeOp, current: i64, compacted: i64) -> Result<i64, Refusal> {
    let at = match named(op.at) {
        Some(at) if at > current => return Err(Refusal::FutureRevision),
        Some(at) if at > 0 => at,
        _ => current,
    };
    if at < compacted { Err(Refusal::Compacted) } else { Ok(at) }
}

/// What etcd answers where a range holds these, in the order of their keys.
pub fn answer(mut kvs: Vec<KeyValue>, op: &RangeOp, revision: Revision) -> RangeReply {
    let mut count = kvs.len() as i64;
    if op.count_only {
        return RangeReply { revision, kvs: vec![], more: false, count };
    }
    let b = op.bounds;
    let plain = matches!(op.sort, (_, SortOrder::Unspecified) | (SortTarget::Key, SortOrder::Ascend));
    let limit = op.limit.unwrap_or(usize::MAX);
    if plain && b.is_empty() {
        kvs.truncate(limit.saturating_add(1));
    }
    if !op.total_count {
        count = kvs.len() as i64;
    }
    kvs.retain(|kv| b.max_mod.is_none_or(|max| kv.mod_revision <= max));
    kvs.retain(|kv| b.min_mod.is_none_or(|min| kv.mod_revision >= min));
    kvs.retain(|kv| b.max_create.is_none_or(|max| kv.create_revision <= max));
    kvs.retain(|kv| b.min_create.is_none_or(|min| kv.create_revision >= min));
    match op.sort.0 {
        SortTarget::Key => kvs.sort_by_key(|kv| kv.key.clone()),
        SortTarget::Version => kvs.sort_by_key(|kv| kv.version),
        SortTarget::Create => kvs.sort_by_key(|kv| kv.create_revision),
        SortTarget::Mod => kvs.sort_by_key(|kv| kv.mod_revision),
        SortTarget::Value => kvs.sort_by_key(|kv| kv.value.clone()),
    }
    if op.sort.1 == SortOrder::Descend {
        // Equal ones stay in the order of their keys.
        kvs.reverse();
        match op.sort.0 {
            SortTarget::Key => {}
            SortTarget::Version => stable_runs(&mut kvs, |kv| Bytes::copy_from_slice(&kv.version.to_be_bytes())),
            SortTarget::Create => stable_runs(&mut kvs, |kv| revision_bytes(kv.create_revision)),
            SortTarget::Mod => stable_runs(&mut kvs, |kv| revision_bytes(kv.mod_revision)),
            SortTarget::Value => stable_runs(&mut kvs, |kv| kv.value.clone()),
        }
    }
    let more = kvs.len() > limit;
    kvs.truncate(limit);
    for kv in &mut kvs {
        if op.keys_only {
            kv.value = Bytes::new();
            kv.lease = kv.lease.filter(|_| op.sort.0 == SortTarget::Value);
        }
    }
    RangeReply { revision, kvs, more, count }
}

fn revision_bytes(revision: Revision) -> Bytes {
    Bytes::copy_from_slice(&revision.get().to_be_bytes())
}

/// Puts the members of each run of equals back in the order of their keys.
fn stable_runs(kvs: &mut [KeyValue], by: impl Fn(&KeyValue) -> Bytes) {
    kvs.chunk_by_mut(|a, b| by(a) == by(b)).for_each(|run| run.sort_by_key(|kv| kv.key.clone()));
}
