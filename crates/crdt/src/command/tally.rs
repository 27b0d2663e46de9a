//! How much was done, counted as etcd counts it, so that dashboards made for etcd show the same numbers.

use crate::command::op::{PutLease, PutOp, PutValue};

/// Steps that were run. A compare is a range; so is looking up what a put or delete replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Ranges.
    pub ranges: u64,
    /// Puts.
    pub puts: u64,
    /// Deletes, whether they found a key or not.
    pub deletes: u64,
    /// Groups of more than one of these: the checks of a transaction are one group, its writes another.
    pub txns: u64,
    /// Bytes of keys and values that were put.
    pub put_bytes: u64,
}

impl Tally {
    /// One range.
    pub fn range() -> Self {
        Self { ranges: 1, ..Self::default() }
    }

    /// Adds what belongs to one group.
    pub(crate) fn add_group(&mut self, group: Tally) {
        self.add(group);
        self.txns += u64::from(group.ranges + group.puts + group.deletes > 1);
    }

    /// Adds what another tally counted.
    pub fn add(&mut self, other: Tally) {
        self.ranges += other.ranges;
        self.puts += other.puts;
        self.deletes += other.deletes;
        self.txns += other.txns;
        self.put_bytes += other.put_bytes;
    }
}

/// Whether a put must know what is there.
pub(crate) fn asks(op: &PutOp) -> bool {
    op.prev_kv || op.value == PutValue::Keep || op.lease == PutLease::Keep
}
