//! A range as of one revision, looked at slice by slice.
//!
//! Versions are only ever added behind that revision. Who walks keeps sweeps of later compactions from dropping any meanwhile,
//! so each slice may be looked at under a lock of its own.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::command::op::{KeyValue, RangeOp, RevisionBounds, SortOrder, SortTarget};
use crate::command::reply::RangeReply;
use crate::store::index::{Index, KeyVersion};
use crate::store::past::{Held, PastPlace, PastValues};
use crate::words::key::Key;
use crate::words::revision::Revision;

/// A range in the making.
#[derive(Debug)]
pub struct RangeWalk {
    op: RangeOp,
    /// The revision that is read.
    at: Revision,
    /// The revision that counts as the newest.
    current: Revision,
    /// When all keys were stamped anew.
    restamped: Option<Revision>,
    /// After how many keys nothing more is wanted but their number.
    most: usize,
    /// The last key that was looked at.
    behind: Option<Key>,
    kvs: Vec<KeyValue>,
    /// Values that are only in the journal, by their places in `kvs`.
    lacking: Vec<(usize, PastPlace)>,
    /// Keys that were only counted.
    counted: usize,
}

impl RangeWalk {
    /// One that has looked at nothing yet, and reads at `at`.
    pub(crate) fn new(op: &RangeOp, at: Revision, current: Revision, restamped: Option<Revision>) -> Self {
        // A limit cuts before sorting only where the order is the store's own; one more tells that there is more.
        let by_key_order = op.sort.1 == SortOrder::Unspecified || op.sort == (SortTarget::Key, SortOrder::Ascend);
        let cut = op.limit.filter(|_| by_key_order && op.bounds.is_empty());
        let most = match op.count_only {
            true => 0,
            false => cut.map_or(usize::MAX, |limit| limit.saturating_add(1)),
        };
        let (behind, kvs, lacking) = (None, vec![], vec![]);
        Self { op: op.clone(), at, current, restamped, most, behind, kvs, lacking, counted: 0 }
    }

    /// The revision that is read. Nothing that is visible at it must be swept meanwhile.
    pub fn at(&self) -> Revision {
        self.at
    }

    pub(crate) fn restamped(&self) -> Option<Revision> {
        self.restamped
    }

    /// Looks at the next keys, at most `max` of them. Tells whether these were the last.
    pub(crate) fn go_on(&mut self, index: &Index, max: usize) -> bool {
        let mut last: Option<&Key> = None;
        for (looked, (key, version)) in index.look(&self.op.range, self.behind.as_ref(), self.at).enumerate() {
            if looked == max {
                self.behind = last.cloned();
                return false;
            }
            last = Some(key);
            if let Some(version) = version
                && !self.add(key, version, index)
            {
                break;
            }
        }
        true
    }

    /// Takes a key that is there. Tells whether more are wanted.
    fn add(&mut self, key: &Key, version: &KeyVersion, index: &Index) -> bool {
        let counts = self.op.total_count || self.op.count_only;
        if self.kvs.len() >= self.most {
            self.counted += 1;
            return counts;
        }
        let Some(content) = &version.content else { return true };
        // Of keys alone no value is asked for.
        let without_value = self.op.keys_only && self.op.sort.0 != SortTarget::Value;
        let value = match content.value {
            _ if without_value => Bytes::new(),
            Held::Here(ref value) => value.clone(),
            Held::Stored { len, crc } => {
                let place = version.place(len, crc);
                index.replaced_lately(place).cloned().unwrap_or_else(|| {
                    self.lacking.push((self.kvs.len(), place));
                    Bytes::new()
                })
            }
        };
        self.kvs.push(KeyValue {
            key: key.clone(),
            value,
            create_revision: content.create_revision,
            mod_revision: version.revision,
            version: content.version,
            lease: content.lease.filter(|_| !without_value),
        });
        counts || self.kvs.len() < self.most
    }

    /// Whether values are missing that are only in the journal.
    pub fn is_lacking(&self) -> bool {
        !self.lacking.is_empty()
    }

    /// The places of replaced values that were met, in the journal's order.
    pub fn lacking(&self) -> Vec<PastPlace> {
        let mut places: Vec<PastPlace> = self.lacking.iter().map(|(_, place)| *place).collect();
        places.sort_unstable();
        places
    }

    /// Puts values in that were read from the journal. What `past` lacks is noted there.
    pub fn fill(&mut self, past: &PastValues) {
        self.lacking.retain(|(at, place)| match past.want(*place) {
            Some(value) => {
                self.kvs[*at].value = value.clone();
                false
            }
            None => true,
        });
    }

    /// What was found, once all was looked at.
    pub fn finish(self) -> RangeReply {
        let Self { op, mut kvs, current, counted, .. } = self;
        let count = (kvs.len() + counted) as i64;
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
        RangeReply { revision: current, kvs, more, count }
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
