//! Steps of a sequence as the messages that one server is sent.

use eddy_proto::etcdserverpb::*;

use crate::op::{self, Lease, Rev};

/// What relative numbers mean on one server at this moment.
pub struct Names<'a> {
    /// The revision of the last answer.
    pub now: i64,
    pub compacted: i64,
    /// Leases whose id the server chose.
    pub granted: &'a [i64],
}

impl Names<'_> {
    pub fn revision(&self, rev: Rev) -> i64 {
        match rev {
            Rev::Abs(n) => n,
            Rev::Now(n) => self.now + n,
            Rev::Compacted(n) => self.compacted + n,
        }
    }

    pub fn lease_id(&self, lease: Lease) -> i64 {
        match lease {
            Lease::Id(id) => id,
            // A sequence that lost the grant while it was shrunk names a lease that does not exist.
            Lease::Nth(n) => self.granted.get(n).copied().unwrap_or(404),
        }
    }

    pub fn range(&self, r: &op::Range) -> RangeRequest {
        RangeRequest {
            key: r.key.0.clone().into(),
            range_end: r.range_end.0.clone().into(),
            limit: r.limit,
            revision: self.revision(r.revision),
            sort_order: r.sort_order,
            sort_target: r.sort_target,
            serializable: r.serializable,
            keys_only: r.keys_only,
            count_only: r.count_only,
            min_mod_revision: self.revision(r.min_mod),
            max_mod_revision: self.revision(r.max_mod),
            min_create_revision: self.revision(r.min_create),
            max_create_revision: self.revision(r.max_create),
        }
    }

    pub fn put(&self, p: &op::Put) -> PutRequest {
        PutRequest {
            key: p.key.0.clone().into(),
            value: p.value.0.clone().into(),
            lease: self.lease_id(p.lease),
            prev_kv: p.prev_kv,
            ignore_value: p.ignore_value,
            ignore_lease: p.ignore_lease,
        }
    }

    pub fn delete(&self, d: &op::Delete) -> DeleteRangeRequest {
        DeleteRangeRequest { key: d.key.0.clone().into(), range_end: d.range_end.0.clone().into(), prev_kv: d.prev_kv }
    }

    pub fn txn(&self, t: &op::Txn) -> TxnRequest {
        let inner = |list: &[op::Inner]| list.iter().map(|i| self.inner(i)).collect();
        TxnRequest {
            compare: t.compare.iter().map(|c| self.compare(c)).collect(),
            success: inner(&t.success),
            failure: inner(&t.failure),
        }
    }

    fn inner(&self, inner: &op::Inner) -> RequestOp {
        use request_op::Request;
        let request = match inner {
            op::Inner::Range(r) => Some(Request::RequestRange(self.range(r))),
            op::Inner::Put(p) => Some(Request::RequestPut(self.put(p))),
            op::Inner::Delete(d) => Some(Request::RequestDeleteRange(self.delete(d))),
            op::Inner::Txn(t) => Some(Request::RequestTxn(self.txn(t))),
            op::Inner::Nothing => None,
        };
        RequestOp { request }
    }

    fn compare(&self, c: &op::Compare) -> Compare {
        use compare::TargetUnion;
        let target_union = match &c.with {
            op::With::Nothing => None,
            op::With::Version(n) => Some(TargetUnion::Version(*n)),
            op::With::Create(rev) => Some(TargetUnion::CreateRevision(self.revision(*rev))),
            op::With::Mod(rev) => Some(TargetUnion::ModRevision(self.revision(*rev))),
            op::With::Value(value) => Some(TargetUnion::Value(value.0.clone().into())),
            op::With::Lease(lease) => Some(TargetUnion::Lease(self.lease_id(*lease))),
        };
        Compare {
            result: c.result,
            target: c.target,
            key: c.key.0.clone().into(),
            range_end: c.range_end.0.clone().into(),
            target_union,
        }
    }
}
