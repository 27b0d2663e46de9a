//! What is compared, and what must hold once all have heard everything.

use std::fmt::{Debug, Display};

use bytes::Bytes;
use eddy_crdt::merge::{RuleBook, Window, Windows};
use eddy_crdt::{KeyRange, KeyValue, LeaseId, Log, PastValues, RangeOp, Replica};

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
    replica.range(&range, replica.revision(), &PastValues::default()).map(|reply| reply.kvs).unwrap_or_default()
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

/// After a restart every version that stood stands. What had left may stand again, until its record goes.
pub fn stands_again(now: &Windows, before: &Windows) -> Result<(), String> {
    same(&now.len(), &before.len(), "how many windows there are after a restart")?;
    for (keyspace, key, open) in before.iter() {
        let again = now.get(keyspace, key).ok_or_else(|| format!("the window of {key:?} is gone"))?;
        same(&again.window.base(), &open.window.base(), "what is settled after a restart")?;
        same(&again.base_number, &open.base_number, "where the base is after a restart")?;
        for version in open.window.versions() {
            let stands = again.window.versions().iter().find(|again| again.dot == version.dot);
            same(&stands, &Some(version), "a version after a restart")?;
        }
        let rules = RuleBook::default();
        let live = |window: &Window| window.outcome(&rules, keyspace, key).live;
        same(&live(&again.window), &live(&open.window), "what the versions mean after a restart")?;
    }
    Ok(())
}

/// After a restart every entry is in the log that was.
pub fn is_kept(now: &Log, before: &Log) -> Result<(), String> {
    for logged in before.iter() {
        let again = now.by_number(logged.number).ok_or_else(|| format!("{:?} is gone", logged.entry.head.dot))?;
        same(
            &(&again.entry.changes, again.chain, &again.deps),
            &(&logged.entry.changes, logged.chain, &logged.deps),
            "an entry after a restart",
        )?;
    }
    Ok(())
}
