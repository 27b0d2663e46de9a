//! Reads of the store at a revision: which ones are taken, and compares.

use std::cmp::Ordering;

use crate::command::op::{Compare, CompareResult, CompareTarget, KeyValue, RangeOp, ReadAt};
use crate::command::reply::{RangeReply, Refusal};
use crate::store::index::{Index, KeyVersion};
use crate::store::past::PastValues;
use crate::store::range::RangeWalk;
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
    /// When all keys were stamped anew.
    pub restamped: Option<Revision>,
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
        let mut walk = self.begin(op)?;
        walk.go_on(self.index, usize::MAX);
        walk.fill(self.past);
        Ok(walk.finish())
    }

    /// Begins to read a range.
    ///
    /// # Errors
    /// When the revision is yet to come, or compacted.
    pub fn begin(&self, op: &RangeOp) -> Result<RangeWalk, Refusal> {
        let at = match op.at {
            ReadAt::Revision(at) if self.is_foreign(at) => return Err(Refusal::Compacted),
            ReadAt::Revision(at) if at > self.current => return Err(Refusal::FutureRevision),
            ReadAt::Revision(at) => at,
            ReadAt::Latest | ReadAt::Negative(_) => self.current,
        };
        if Some(at) < self.compacted {
            return Err(Refusal::Compacted);
        }
        Ok(RangeWalk::new(op, at, self.current, self.restamped))
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
                CompareTarget::Value(value) => version.value(content, self.index.past(self.past)).cmp(&Some(value)),
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
            .filter_map(|(key, version)| version.to_key_value(key, self.index.past(self.past)))
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
