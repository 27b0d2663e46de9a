//! What is compared, and what must hold once all have heard everything.

use std::fmt::{Debug, Display};

use bytes::Bytes;
use eddy_crdt::{KeyRange, KeyValue, LeaseId, RangeOp, Replica};

macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

/// Two views of one thing.
pub fn same<T: PartialEq + Debug>(ours: &T, theirs: &T, what: impl Display) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{what}:\n     now {ours:?}\n  should {theirs:?}")) }
}

/// All keys that a replica shows.
pub fn everything(replica: &Replica) -> Vec<KeyValue> {
    let range = RangeOp::all(KeyRange::From(Bytes::from_static(b"\0")));
    replica.range(&range, replica.revision()).map(|reply| reply.kvs).unwrap_or_default()
}

/// All that a replica holds beside what is its own alone.
pub fn shared_keys(replica: &Replica) -> Vec<(Bytes, Bytes, i64, Option<LeaseId>)> {
    let local = eddy_crdt::LocalKeys::default();
    let shared = everything(replica).into_iter().filter(|kv| !local.contains(&kv.key));
    shared.map(|kv| (kv.key, kv.value, kv.version, kv.lease)).collect()
}

/// What must hold once all have heard everything.
pub fn converged(replicas: &[&Replica]) -> Result<(), String> {
    let Some(first) = replicas.first() else { return Ok(()) };
    for replica in replicas {
        same(replica.vector(), first.vector(), "vectors")?;
        same(replica.floor(), replica.vector(), "floor and vector")?;
        same(&replica.windows_len(), &0, "windows")?;
        same(&replica.log_len(), &0, "log")?;
    }
    for replica in replicas {
        same(&shared_keys(replica), &shared_keys(first), "keys")?;
        same(&replica.state_hash(), &first.state_hash(), "state hashes")?;
    }
    Ok(())
}
