//! The naive store: a list of every version ever written, everything else recomputed from it by looking at all of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use eddy_crdt::{
    Alarm, Command, Commit, Compare, CompareResult, CompareTarget, DeleteOp, DeleteReply, Event, EventKind, KeyRange,
    KeyValue, LeaseId, LeaseStatus, Now, Op, OpReply, PutLease, PutOp, PutReply, PutValue, RangeOp, RangeReply, ReadAt,
    Refusal, Reply, Revision, SortOrder, SortTarget, Txn, TxnReply,
};

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
        let next = self.revision + 1;
        match command {
            Command::Put(op) => {
                self.check_put(op)?;
                Ok(Reply::Put(self.put(op, next)))
            }
            Command::Delete(op) => Ok(Reply::Delete(self.delete(op, next))),
            Command::Txn(txn) => {
                let before = self.clone();
                before.check(txn)?;
                Ok(Reply::Txn(self.run(&before, txn, next)))
            }
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

    fn check_put(&self, op: &PutOp) -> Result<(), Refusal> {
        if let PutLease::Set(Some(lease)) = op.lease {
            self.leases.get(&lease).ok_or(Refusal::LeaseNotFound)?;
        }
        if op.value == PutValue::Keep || op.lease == PutLease::Keep {
            self.at(&op.key, self.revision).ok_or(Refusal::KeyNotFound)?;
        }
        Ok(())
    }

    fn put(&mut self, op: &PutOp, next: i64) -> PutReply {
        let prev = self.at(&op.key, next);
        let before = prev.as_ref();
        let kv = KeyValue {
            key: op.key.clone(),
            value: match &op.value {
                PutValue::Set(value) => value.clone(),
                PutValue::Keep => before.map(|kv| kv.value.clone()).unwrap_or_default(),
            },
            create_revision: before.map_or(Revision::new(next), |kv| kv.create_revision),
            mod_revision: Revision::new(next),
            version: before.map_or(0, |kv| kv.version) + 1,
            lease: match op.lease {
                PutLease::Set(lease) => lease,
                PutLease::Keep => before.and_then(|kv| kv.lease),
            },
        };
        self.versions.push(Version { revision: next, kv: Some(kv), key: op.key.clone() });
        self.revision = next;
        PutReply { revision: Revision::new(next), prev: prev.filter(|_| op.prev_kv) }
    }

    fn delete(&mut self, op: &DeleteOp, next: i64) -> DeleteReply {
        let found = self.live(&op.range, next);
        for kv in &found {
            self.versions.push(Version { revision: next, kv: None, key: kv.key.clone() });
            self.revision = next;
        }
        DeleteReply {
            revision: Revision::new(self.revision),
            deleted: found.len() as i64,
            prev: if op.prev_kv { found } else { vec![] },
        }
    }

    fn check(&self, txn: &Txn) -> Result<(), Refusal> {
        for op in self.chosen(txn) {
            match op {
                Op::Range(op) => match number(op.at) {
                    Some(at) if at > self.revision => return Err(Refusal::FutureRevision),
                    Some(at) if at < self.compacted => return Err(Refusal::Compacted),
                    _ => {}
                },
                Op::Delete(_) => {}
                Op::Put(op) => self.check_put(op)?,
                Op::Txn(txn) => self.check(txn)?,
            }
        }
        Ok(())
    }

    fn chosen<'t>(&self, txn: &'t Txn) -> &'t [Op] {
        if txn.compares.iter().all(|compare| self.holds(compare)) { &txn.success } else { &txn.failure }
    }

    fn run(&mut self, before: &Naive, txn: &Txn, next: i64) -> TxnReply {
        let succeeded = txn.compares.iter().all(|compare| before.holds(compare));
        let mut replies = vec![];
        for op in before.chosen(txn) {
            replies.push(match op {
                Op::Range(op) => OpReply::Range(self.range(op, self.revision).expect("checked")),
                Op::Put(op) => OpReply::Put(self.put(op, next)),
                Op::Delete(op) => OpReply::Delete(self.delete(op, next)),
                Op::Txn(txn) => OpReply::Txn(self.run(before, txn, next)),
            });
        }
        TxnReply { revision: Revision::new(self.revision), succeeded, replies }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let mut found: Vec<Option<KeyValue>> = self.live(&compare.range, self.revision).into_iter().map(Some).collect();
        if found.is_empty() {
            found.push(None);
        }
        found.iter().all(|kv| {
            let number = |of: fn(&KeyValue) -> i64| kv.as_ref().map_or(0, of);
            let order = match &compare.target {
                CompareTarget::Value(value) => match kv {
                    Some(kv) => kv.value.cmp(value),
                    None => return false,
                },
                CompareTarget::Create(n) => number(|kv| kv.create_revision.get()).cmp(n),
                CompareTarget::Mod(n) => number(|kv| kv.mod_revision.get()).cmp(n),
                CompareTarget::Version(n) => number(|kv| kv.version).cmp(n),
                CompareTarget::Lease(n) => number(|kv| kv.lease.map_or(0, LeaseId::get)).cmp(n),
                CompareTarget::Unknown => std::cmp::Ordering::Equal,
            };
            match compare.result {
                CompareResult::Equal => order.is_eq(),
                CompareResult::NotEqual => order.is_ne(),
                CompareResult::Greater => order.is_gt(),
                CompareResult::Less => order.is_lt(),
                CompareResult::Unknown => true,
            }
        })
    }

    /// A range as etcd answers it when `current` is the newest revision.
    pub fn range(&self, op: &RangeOp, current: i64) -> Result<RangeReply, Refusal> {
        let at = match number(op.at) {
            Some(at) if at > current => return Err(Refusal::FutureRevision),
            Some(at) if at > 0 => at,
            _ => current,
        };
        if at < self.compacted {
            return Err(Refusal::Compacted);
        }
        let mut kvs = self.live(&op.range, at);
        let revision = Revision::new(current);
        let mut count = kvs.len() as i64;
        if op.count_only {
            return Ok(RangeReply { revision, kvs: vec![], more: false, count });
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
        Ok(RangeReply { revision, kvs, more, count })
    }
}

/// The number that a client gave for the revision.
fn number(at: ReadAt) -> Option<i64> {
    match at {
        ReadAt::Latest => None,
        ReadAt::Revision(at) => Some(at.get()),
        ReadAt::Negative(at) => Some(at),
    }
}

fn revision_bytes(revision: Revision) -> Bytes {
    Bytes::copy_from_slice(&revision.get().to_be_bytes())
}

/// Puts the members of each run of equals back in the order of their keys.
fn stable_runs(kvs: &mut [KeyValue], by: impl Fn(&KeyValue) -> Bytes) {
    kvs.chunk_by_mut(|a, b| by(a) == by(b)).for_each(|run| run.sort_by_key(|kv| kv.key.clone()));
}
