//! The naive store: a list of every version ever written, everything else recomputed from it by looking at all of it. What a
//! command makes of the newest keys, the model of all suites says.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use eddy_crdt::{
    Alarm, Command, Commit, Event, EventKind, KeyRange, KeyValue, LeaseId, LeaseStatus, Now, RangeOp, RangeReply,
    Refusal, Reply, Revision,
};

use crate::support::range::{answer, read_at};
use crate::support::shadow::{Beside, Shadow};

#[derive(Clone, Debug)]
struct Version {
    revision: i64,
    kv: Option<KeyValue>,
    key: Bytes,
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub ttl: i64,
    pub deadline_ms: u64,
}

#[derive(Clone, Debug)]
pub struct Naive {
    versions: Vec<Version>,
    pub revision: i64,
    pub compacted: i64,
    pub leases: BTreeMap<LeaseId, Lease>,
    pub alarms: BTreeSet<Alarm>,
}

fn deadline(now: Now, ttl: i64) -> u64 {
    now.mono_ms.saturating_add(ttl as u64 * 1000)
}

impl Naive {
    pub fn new() -> Self {
        Self { versions: vec![], revision: 1, compacted: -1, leases: BTreeMap::new(), alarms: BTreeSet::new() }
    }

    /// What a key holds at a revision.
    pub fn at(&self, key: &[u8], revision: i64) -> Option<KeyValue> {
        self.versions.iter().rfind(|v| v.key == key && v.revision <= revision)?.kv.clone()
    }

    /// Every key that was ever written, in order.
    pub fn keys(&self) -> BTreeSet<Bytes> {
        self.versions.iter().map(|v| v.key.clone()).collect()
    }

    fn live(&self, range: &KeyRange, revision: i64) -> Vec<KeyValue> {
        self.keys().iter().filter(|key| range.contains(key)).filter_map(|key| self.at(key, revision)).collect()
    }

    /// How many keys are live, and how many were deleted at the compacted revision and not since compacted away.
    pub fn needed_versions(&self) -> usize {
        let everything = KeyRange::From(Bytes::new());
        let tombstones = |v: &&Version| v.revision == self.compacted && v.kv.is_none();
        let deleted: BTreeSet<_> = self.versions.iter().filter(tombstones).map(|v| &v.key).collect();
        let gone = deleted.iter().filter(|key| self.at(key, self.compacted).is_none()).count();
        self.live(&everything, self.revision).len() + gone
    }

    /// The commits from one revision to another. Those at the compacted revision without what they replaced: etcd does
    /// not tell it any more.
    pub fn commits(&self, from: i64, to: i64) -> Vec<Commit> {
        let mut commits: Vec<Commit> = vec![];
        for (place, version) in self.versions.iter().enumerate() {
            if version.revision < from || version.revision > to {
                continue;
            }
            // etcd looks up what was there at the revision before, not what the same transaction wrote.
            let before = self.versions[..place].iter().rfind(|v| v.key == version.key && v.revision < version.revision);
            let revision = Revision::new(version.revision);
            let kind = match &version.kv {
                Some(kv) => EventKind::Put(kv.clone()),
                None => EventKind::Delete { key: version.key.clone(), revision },
            };
            let event = Event { kind, prev: before.and_then(|v| v.kv.clone()) };
            match commits.last_mut() {
                Some(last) if last.revision == revision => last.events.push(event),
                _ => commits.push(Commit { revision, events: [event].into_iter().collect() }),
            }
        }
        commits
    }

    pub fn lease_status(&self, now: Now, id: LeaseId) -> Option<LeaseStatus> {
        let lease = self.leases.get(&id)?;
        let everything = self.live(&KeyRange::From(Bytes::new()), self.revision);
        Some(LeaseStatus {
            id,
            granted_ttl: lease.ttl,
            remaining_ms: lease.deadline_ms.saturating_sub(now.mono_ms),
            keys: everything.into_iter().filter(|kv| kv.lease == Some(id)).map(|kv| kv.key).collect(),
        })
    }

    /// A restart counts every lease anew.
    pub fn restart(&mut self, now: Now) {
        for lease in self.leases.values_mut() {
            lease.deadline_ms = deadline(now, lease.ttl);
        }
    }

    pub fn tick(&mut self, now: Now) {
        let mut expired: Vec<_> = self
            .leases
            .iter()
            .filter(|(_, l)| l.deadline_ms <= now.mono_ms)
            .map(|(id, l)| (l.deadline_ms, *id))
            .collect();
        expired.sort();
        for (_, id) in expired {
            self.end_lease(now, id);
        }
    }

    fn end_lease(&mut self, now: Now, id: LeaseId) {
        let keys = self.lease_status(now, id).map(|status| status.keys).unwrap_or_default();
        let next = self.revision + 1;
        for key in keys {
            self.versions.push(Version { revision: next, kv: None, key });
            self.revision = next;
        }
        self.leases.remove(&id);
    }

    pub fn command(&mut self, now: Now, command: &Command) -> Result<Reply, Refusal> {
        let beside = Beside {
            has_lease: &|id| self.leases.contains_key(&id),
            past: &|range, at| self.live(range, at),
            compacted: self.compacted,
        };
        if let Some((reply, events)) = self.newest().predict(command, &beside) {
            for event in events {
                self.revision = event.revision().get();
                let (key, kv) = (event.key().clone(), event.written().cloned());
                self.versions.push(Version { revision: self.revision, kv, key });
            }
            return reply;
        }
        match command {
            Command::Compact(at) if *at <= self.compacted => Err(Refusal::Compacted),
            Command::Compact(at) if *at > self.revision => Err(Refusal::FutureRevision),
            Command::Compact(at) => {
                self.compacted = *at;
                Ok(Reply::Compact { revision: Revision::new(self.revision) })
            }
            Command::LeaseGrant { ttl, .. } if *ttl > 9_000_000_000 => Err(Refusal::LeaseTtlTooLarge),
            Command::LeaseGrant { id, .. } if self.leases.contains_key(id) => Err(Refusal::LeaseExists),
            Command::LeaseGrant { id, ttl } => {
                let ttl = (*ttl).max(2);
                self.leases.insert(*id, Lease { ttl, deadline_ms: deadline(now, ttl) });
                Ok(Reply::LeaseGrant { id: *id, ttl, revision: Revision::new(self.revision) })
            }
            Command::LeaseRevoke(id) => {
                self.leases.get(id).ok_or(Refusal::LeaseNotFound)?;
                self.end_lease(now, *id);
                Ok(Reply::LeaseRevoke { revision: Revision::new(self.revision) })
            }
            Command::LeaseRenew(id) => {
                let lease = self.leases.get_mut(id).filter(|lease| lease.deadline_ms > now.mono_ms);
                let lease = lease.ok_or(Refusal::LeaseNotFound)?;
                lease.deadline_ms = deadline(now, lease.ttl);
                Ok(Reply::LeaseRenew { ttl: lease.ttl })
            }
            Command::SetAlarm { alarm, raised } => {
                let changed = if *raised { self.alarms.insert(*alarm) } else { self.alarms.remove(alarm) };
                Ok(Reply::SetAlarm { changed, revision: Revision::new(self.revision) })
            }
            // Members and leaps are not this model's: the cluster test has them.
            other => unreachable!("{other:?} is not in the model"),
        }
    }

    /// What can be read now.
    fn newest(&self) -> Shadow {
        let kvs = self.live(&KeyRange::From(Bytes::new()), self.revision);
        Shadow { kvs: kvs.into_iter().map(|kv| (kv.key.clone(), kv)).collect(), revision: Revision::new(self.revision) }
    }

    /// A range as etcd answers it when `current` is the newest revision.
    pub fn range(&self, op: &RangeOp, current: i64) -> Result<RangeReply, Refusal> {
        let at = read_at(op, current, self.compacted)?;
        Ok(answer(self.live(&op.range, at), op, Revision::new(current)))
    }
}
