//! Reads of the store at a revision: ranges and compares, with etcd's order of limit, filters and sorting.

use std::cmp::Ordering;

use crate::command::op::{
    Compare, CompareResult, CompareTarget, KeyValue, RangeOp, RangeReply, ReadAt, Refusal, RevisionBounds, SortOrder,
    SortTarget,
};
use crate::store::index::{Index, KeyVersion};
use crate::store::past::PastValues;
use crate::words::key::KeyRange;
use crate::words::revision::Revision;

/// The store as of one revision.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// All keys.
    pub index: &'a Index,
    /// The revision that counts as the newest.
    pub current: Revision,
    /// The revision of the last compaction.
    pub compacted: Option<Revision>,
    /// Whether other replicas have revisions too, in spaces of their own.
    pub shared: bool,
    /// What was read back of replaced values.
    pub past: &'a PastValues,
}

impl View<'_> {
    /// Whether that revision may be another replica's.
    pub fn is_foreign(&self, at: Revision) -> bool {
        is_foreign(self.shared, at, self.current)
    }

    /// Whether a transaction may read at that revision.
    ///
    /// # Errors
    /// When the revision is yet to come, or compacted. Unlike in a plain range a negative one can be compacted.
    pub fn check(&self, at: ReadAt) -> Result<(), Refusal> {
        match at {
            ReadAt::Latest => Ok(()),
            ReadAt::Revision(at) if self.is_foreign(at) => Err(Refusal::Compacted),
            ReadAt::Revision(at) if at > self.current => Err(Refusal::FutureRevision),
            ReadAt::Revision(at) if Some(at) < self.compacted => Err(Refusal::Compacted),
            // etcd counts its last compaction from -1.
            ReadAt::Negative(at) if self.compacted.is_some() || at < -1 => Err(Refusal::Compacted),
            ReadAt::Revision(_) | ReadAt::Negative(_) => Ok(()),
        }
    }

    /// Reads a range.
    ///
    /// # Errors
    /// When the revision is yet to come, or compacted.
    pub fn range(&self, op: &RangeOp) -> Result<RangeReply, Refusal> {
        let at = match op.at {
            ReadAt::Revision(at) if self.is_foreign(at) => return Err(Refusal::Compacted),
            ReadAt::Revision(at) if at > self.current => return Err(Refusal::FutureRevision),
            ReadAt::Revision(at) => at,
            ReadAt::Latest | ReadAt::Negative(_) => self.current,
        };
        if Some(at) < self.compacted {
            return Err(Refusal::Compacted);
        }
        let mut found = self.index.range(&op.range, at);
        if op.count_only {
            let count = found.count() as i64;
            return Ok(RangeReply { revision: self.current, kvs: vec![], more: false, count });
        }

        // A limit cuts before sorting only where the order is the store's own; one more tells that there is more.
        let by_key_order = op.sort.1 == SortOrder::Unspecified || op.sort == (SortTarget::Key, SortOrder::Ascend);
        let cut = op.limit.filter(|_| by_key_order && op.bounds.is_empty());
        let without_lease = op.keys_only && op.sort.0 != SortTarget::Value;
        // Of keys alone no value is asked for.
        let unasked = PastValues::default();
        let past = if op.keys_only && op.sort.0 != SortTarget::Value { &unasked } else { self.past };
        let mut kvs: Vec<KeyValue> = Vec::new();
        for (key, version) in found.by_ref().take(cut.map_or(usize::MAX, |limit| limit.saturating_add(1))) {
            let Some(mut kv) = version.to_key_value(key, past) else { continue };
            if without_lease {
                kv.lease = None;
            }
            kvs.push(kv);
        }
        let rest = if op.total_count { found.count() } else { 0 };
        let count = (kvs.len() + rest) as i64;

        if !op.bounds.is_empty() {
            kvs.retain(|kv| within(&op.bounds, kv));
        }
        sort(&mut kvs, op.sort);
        let more = op.limit.is_some_and(|limit| kvs.len() > limit);
        kvs.truncate(op.limit.unwrap_or(usize::MAX));
        if op.keys_only {
            for kv in &mut kvs {
                kv.value.clear();
            }
        }
        Ok(RangeReply { revision: self.current, kvs, more, count })
    }

    /// Whether all keys of the compare's range fulfil it.
    pub fn holds(&self, compare: &Compare) -> bool {
        let mut found = self.index.range(&compare.range, self.current).peekable();
        if found.peek().is_none() {
            // An absent key has no value, which nothing equals; its numbers are zero.
            let absent = match compare.target {
                CompareTarget::Value(_) => return false,
                CompareTarget::Unknown => Ordering::Equal,
                CompareTarget::Create(n)
                | CompareTarget::Mod(n)
                | CompareTarget::Version(n)
                | CompareTarget::Lease(n) => 0.cmp(&n),
            };
            return relates(absent, compare.result);
        }
        found.all(|(_, version)| {
            let KeyVersion { revision, content, .. } = version;
            let Some(content) = content else { return false };
            let ordering = match &compare.target {
                CompareTarget::Value(value) => version.value(content, self.past).cmp(&Some(value)),
                CompareTarget::Create(n) => content.create_revision.get().cmp(n),
                CompareTarget::Mod(n) => revision.get().cmp(n),
                CompareTarget::Version(n) => content.version.cmp(n),
                CompareTarget::Lease(n) => content.lease.map_or(0, |lease| lease.get()).cmp(n),
                CompareTarget::Unknown => Ordering::Equal,
            };
            relates(ordering, compare.result)
        })
    }

    /// All present values of the range, in order.
    pub fn all(&self, range: &KeyRange) -> Vec<KeyValue> {
        self.index
            .range(range, self.current)
            .filter_map(|(key, version)| version.to_key_value(key, self.past))
            .collect()
    }
}

/// Whether a revision may be another replica's, where there are or were others.
pub fn is_foreign(shared: bool, at: Revision, current: Revision) -> bool {
    shared && at.get() > 0 && at.space() != current.space()
}

fn relates(ordering: Ordering, result: CompareResult) -> bool {
    match result {
        CompareResult::Equal => ordering.is_eq(),
        CompareResult::NotEqual => ordering.is_ne(),
        CompareResult::Greater => ordering.is_gt(),
        CompareResult::Less => ordering.is_lt(),
        CompareResult::Unknown => true,
    }
}

fn within(bounds: &RevisionBounds, kv: &KeyValue) -> bool {
    let inside = |revision: Revision, min: Option<Revision>, max: Option<Revision>| {
        min.is_none_or(|min| revision >= min) && max.is_none_or(|max| revision <= max)
    };
    inside(kv.mod_revision, bounds.min_mod, bounds.max_mod)
        && inside(kv.create_revision, bounds.min_create, bounds.max_create)
}

fn sort(kvs: &mut [KeyValue], (target, order): (SortTarget, SortOrder)) {
    let by: fn(&KeyValue, &KeyValue) -> Ordering = match target {
        SortTarget::Key if order != SortOrder::Descend => return,
        SortTarget::Key => |a, b| a.key.cmp(&b.key),
        SortTarget::Version => |a, b| a.version.cmp(&b.version),
        SortTarget::Create => |a, b| a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => |a, b| a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => |a, b| a.value.cmp(&b.value),
    };
    match order {
        SortOrder::Unspecified | SortOrder::Ascend => kvs.sort_by(by),
        SortOrder::Descend => kvs.sort_by(|a, b| by(b, a)),
    }
}
