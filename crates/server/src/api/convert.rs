//! Translates protobuf messages to the replica's types and back. Requests must have passed [`super::check`]. Keys and
//! values are moved, not copied.

use eddy_crdt::{
    Compare, CompareResult, CompareTarget, DeleteOp, DeleteReply, KeyRange, KeyValue, LeaseId, Op, OpReply, PutLease,
    PutOp, PutReply, PutValue, RangeOp, RangeReply, ReadAt, Revision, RevisionBounds, SortOrder, SortTarget, Txn,
    TxnReply,
};
use eddy_proto::etcdserverpb::compare::TargetUnion;
use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::etcdserverpb::response_op::Response;
use eddy_proto::{etcdserverpb as pb, mvccpb};

/// Decodes a range, but for `serializable`.
pub fn range(request: pb::RangeRequest) -> RangeOp {
    use pb::range_request::{SortOrder as Order, SortTarget as Target};
    let target = match request.sort_target() {
        Target::Key => SortTarget::Key,
        Target::Version => SortTarget::Version,
        Target::Create => SortTarget::Create,
        Target::Mod => SortTarget::Mod,
        Target::Value => SortTarget::Value,
    };
    let order = match request.sort_order() {
        Order::None => SortOrder::Unspecified,
        Order::Ascend => SortOrder::Ascend,
        Order::Descend => SortOrder::Descend,
    };
    RangeOp {
        range: KeyRange::from_wire(request.key, request.range_end),
        at: match request.revision {
            0 => ReadAt::Latest,
            at @ ..0 => ReadAt::Negative(at),
            at => ReadAt::Revision(Revision::new(at)),
        },
        // A negative limit is none.
        limit: usize::try_from(request.limit).ok().filter(|limit| *limit > 0),
        sort: (target, order),
        count_only: request.count_only,
        keys_only: request.keys_only,
        bounds: RevisionBounds {
            min_mod: bound(request.min_mod_revision),
            max_mod: bound(request.max_mod_revision),
            min_create: bound(request.min_create_revision),
            max_create: bound(request.max_create_revision),
        },
        total_count: true,
    }
}

/// A bound on revisions: zero is none on the wire.
fn bound(revision: i64) -> Option<Revision> {
    (revision != 0).then(|| Revision::new(revision))
}

/// Decodes a put.
pub fn put(request: pb::PutRequest) -> PutOp {
    PutOp {
        key: request.key,
        value: if request.ignore_value { PutValue::Keep } else { PutValue::Set(request.value) },
        lease: if request.ignore_lease { PutLease::Keep } else { PutLease::Set(LeaseId::from_wire(request.lease)) },
        prev_kv: request.prev_kv,
    }
}

/// Decodes a delete.
pub fn delete(request: pb::DeleteRangeRequest) -> DeleteOp {
    DeleteOp { range: KeyRange::from_wire(request.key, request.range_end), prev_kv: request.prev_kv }
}

/// Decodes a transaction.
pub fn txn(request: pb::TxnRequest) -> Txn {
    Txn {
        compares: request.compare.into_iter().map(compare).collect(),
        success: request.success.into_iter().filter_map(op).collect(),
        failure: request.failure.into_iter().filter_map(op).collect(),
    }
}

/// `None` for an empty step, which no checked transaction has.
fn op(op: pb::RequestOp) -> Option<Op> {
    Some(match op.request? {
        Request::RequestRange(request) => Op::Range(range(request)),
        Request::RequestPut(request) => Op::Put(put(request)),
        Request::RequestDeleteRange(request) => Op::Delete(delete(request)),
        Request::RequestTxn(request) => Op::Txn(txn(request)),
    })
}

/// Decodes a compare. As in etcd, an operand that is missing or of another target counts as empty or zero.
fn compare(compare: pb::Compare) -> Compare {
    use pb::compare::{CompareResult as Relation, CompareTarget as Target};
    let (operand, number) = (compare.target_union, |given: Option<i64>| given.unwrap_or_default());
    let target = match Target::try_from(compare.target) {
        Ok(Target::Value) => CompareTarget::Value(match operand {
            Some(TargetUnion::Value(value)) => value,
            _ => Default::default(),
        }),
        Ok(Target::Create) => CompareTarget::Create(number(match operand {
            Some(TargetUnion::CreateRevision(revision)) => Some(revision),
            _ => None,
        })),
        Ok(Target::Mod) => CompareTarget::Mod(number(match operand {
            Some(TargetUnion::ModRevision(revision)) => Some(revision),
            _ => None,
        })),
        Ok(Target::Version) => CompareTarget::Version(number(match operand {
            Some(TargetUnion::Version(version)) => Some(version),
            _ => None,
        })),
        Ok(Target::Lease) => CompareTarget::Lease(number(match operand {
            Some(TargetUnion::Lease(lease)) => Some(lease),
            _ => None,
        })),
        Err(_) => CompareTarget::Unknown,
    };
    let result = match Relation::try_from(compare.result) {
        Ok(Relation::Equal) => CompareResult::Equal,
        Ok(Relation::Greater) => CompareResult::Greater,
        Ok(Relation::Less) => CompareResult::Less,
        Ok(Relation::NotEqual) => CompareResult::NotEqual,
        Err(_) => CompareResult::Unknown,
    };
    Compare { range: KeyRange::from_wire(compare.key, compare.range_end), target, result }
}

/// Encodes a key with its value.
pub fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key,
        create_revision: kv.create_revision.get(),
        mod_revision: kv.mod_revision.get(),
        version: kv.version,
        value: kv.value,
        lease: kv.lease.map_or(0, LeaseId::get),
    }
}

/// Encodes the answer to a range.
pub fn range_response(reply: RangeReply, header: pb::ResponseHeader) -> pb::RangeResponse {
    pb::RangeResponse { header: Some(header), kvs: key_values(reply.kvs), more: reply.more, count: reply.count }
}

/// Encodes the answer to a put.
pub fn put_response(reply: PutReply, header: pb::ResponseHeader) -> pb::PutResponse {
    pb::PutResponse { header: Some(header), prev_kv: reply.prev.map(key_value) }
}

/// Encodes the answer to a delete.
pub fn delete_response(reply: DeleteReply, header: pb::ResponseHeader) -> pb::DeleteRangeResponse {
    pb::DeleteRangeResponse { header: Some(header), deleted: reply.deleted, prev_kvs: key_values(reply.prev) }
}

/// Encodes the answer to a transaction. As in etcd, only the outermost answer has a whole header. The answers of its steps
/// have a revision alone, and those of nested transactions have an empty header.
pub fn txn_response(reply: TxnReply, header: pb::ResponseHeader) -> pb::TxnResponse {
    let responses = reply.replies.into_iter().map(|reply| pb::ResponseOp { response: Some(step(reply)) }).collect();
    pb::TxnResponse { header: Some(header), succeeded: reply.succeeded, responses }
}

fn step(reply: OpReply) -> Response {
    let at = |revision: Revision| pb::ResponseHeader { revision: revision.get(), ..Default::default() };
    match reply {
        OpReply::Range(reply) => {
            let header = at(reply.revision);
            Response::ResponseRange(range_response(reply, header))
        }
        OpReply::Put(reply) => {
            let header = at(reply.revision);
            Response::ResponsePut(put_response(reply, header))
        }
        OpReply::Delete(reply) => {
            let header = at(reply.revision);
            Response::ResponseDeleteRange(delete_response(reply, header))
        }
        OpReply::Txn(reply) => Response::ResponseTxn(txn_response(reply, pb::ResponseHeader::default())),
    }
}

fn key_values(kvs: Vec<KeyValue>) -> Vec<mvccpb::KeyValue> {
    kvs.into_iter().map(key_value).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn key(key: &'static str) -> Bytes {
        Bytes::from_static(key.as_bytes())
    }

    #[test]
    fn ranges_keep_every_option() {
        let request = pb::RangeRequest {
            key: key("a"),
            range_end: key("b"),
            limit: 3,
            revision: -4,
            sort_order: 2,
            sort_target: 3,
            serializable: true,
            keys_only: true,
            count_only: true,
            min_mod_revision: 1,
            max_mod_revision: 2,
            min_create_revision: 3,
            max_create_revision: 4,
        };
        let expected = RangeOp {
            range: KeyRange::Span(key("a"), key("b")),
            at: ReadAt::Negative(-4),
            limit: Some(3),
            sort: (SortTarget::Mod, SortOrder::Descend),
            count_only: true,
            keys_only: true,
            bounds: RevisionBounds { min_mod: bound(1), max_mod: bound(2), min_create: bound(3), max_create: bound(4) },
            total_count: true,
        };
        assert_eq!(range(request), expected);
        let plain = pb::RangeRequest { key: key("a"), limit: -1, ..Default::default() };
        assert_eq!(range(plain), RangeOp::all(KeyRange::Key(key("a"))));
    }

    #[test]
    fn puts_tell_empty_from_ignored() {
        let request = pb::PutRequest { key: key("a"), lease: 7, prev_kv: true, ..Default::default() };
        let lease = PutLease::Set(LeaseId::from_wire(7));
        let expected = PutOp { key: key("a"), value: PutValue::Set(Bytes::new()), lease, prev_kv: true };
        assert_eq!(put(request), expected);
        let request = pb::PutRequest { key: key("a"), ignore_value: true, ignore_lease: true, ..Default::default() };
        let expected = PutOp { key: key("a"), value: PutValue::Keep, lease: PutLease::Keep, prev_kv: false };
        assert_eq!(put(request), expected);
    }

    #[test]
    fn compares_fall_back_to_zero_as_in_etcd() {
        let with = |target, result, target_union| {
            let decoded = compare(pb::Compare { result, target, key: key("a"), range_end: Bytes::new(), target_union });
            (decoded.target, decoded.result)
        };
        for (given, expected) in [
            (with(0, 0, Some(TargetUnion::Version(3))), (CompareTarget::Version(3), CompareResult::Equal)),
            (with(1, 1, Some(TargetUnion::CreateRevision(3))), (CompareTarget::Create(3), CompareResult::Greater)),
            (with(2, 2, Some(TargetUnion::ModRevision(3))), (CompareTarget::Mod(3), CompareResult::Less)),
            (with(3, 3, Some(TargetUnion::Value(key("v")))), (CompareTarget::Value(key("v")), CompareResult::NotEqual)),
            (with(4, 0, Some(TargetUnion::Lease(3))), (CompareTarget::Lease(3), CompareResult::Equal)),
            (with(0, 0, None), (CompareTarget::Version(0), CompareResult::Equal)),
            (with(3, 0, Some(TargetUnion::Version(3))), (CompareTarget::Value(Bytes::new()), CompareResult::Equal)),
            (with(4, 0, Some(TargetUnion::Version(3))), (CompareTarget::Lease(0), CompareResult::Equal)),
            (with(9, -1, Some(TargetUnion::Version(3))), (CompareTarget::Unknown, CompareResult::Unknown)),
        ] {
            assert_eq!(given, expected);
        }
    }

    #[test]
    fn transactions_are_decoded_with_what_is_nested_in_them() {
        let of = |request| pb::RequestOp { request: Some(request) };
        let get = || of(Request::RequestRange(pb::RangeRequest { key: key("a"), ..Default::default() }));
        let remove = || of(Request::RequestDeleteRange(pb::DeleteRangeRequest { key: key("b"), ..Default::default() }));
        let inner = pb::TxnRequest { compare: vec![], success: vec![remove()], failure: vec![get()] };
        let outer = pb::TxnRequest {
            compare: vec![pb::Compare { key: key("c"), ..Default::default() }],
            success: vec![get(), of(Request::RequestTxn(inner))],
            failure: vec![],
        };
        let get = || Op::Range(RangeOp::all(KeyRange::Key(key("a"))));
        let remove = Op::Delete(DeleteOp { range: KeyRange::Key(key("b")), prev_kv: false });
        let inner = Txn { compares: vec![], success: vec![remove], failure: vec![get()] };
        let on =
            Compare { range: KeyRange::Key(key("c")), target: CompareTarget::Version(0), result: CompareResult::Equal };
        assert_eq!(txn(outer), Txn { compares: vec![on], success: vec![get(), Op::Txn(inner)], failure: vec![] });
    }

    #[test]
    fn answers_within_a_transaction_say_only_the_revision() {
        let at = Revision::new(5);
        let kv = KeyValue {
            key: key("a"),
            value: Bytes::new(),
            create_revision: Revision::new(2),
            mod_revision: at,
            version: 4,
            lease: None,
        };
        let inner = TxnReply {
            revision: at,
            succeeded: false,
            replies: vec![OpReply::Put(PutReply { revision: at, prev: Some(kv) })],
        };
        let deleted = DeleteReply { revision: at, deleted: 1, prev: vec![] };
        let outer =
            TxnReply { revision: at, succeeded: true, replies: vec![OpReply::Txn(inner), OpReply::Delete(deleted)] };
        let header = pb::ResponseHeader { cluster_id: 1, member_id: 2, revision: 5, raft_term: 2 };
        let response = txn_response(outer, header);
        assert_eq!((response.header, response.succeeded), (Some(header), true));
        let only_revision = Some(pb::ResponseHeader { revision: 5, ..Default::default() });
        let responses: Vec<_> = response.responses.into_iter().map(|op| op.response).collect();
        let [Some(Response::ResponseTxn(inner)), Some(Response::ResponseDeleteRange(deleted))] = &responses[..] else {
            panic!("{responses:?}")
        };
        assert_eq!((deleted.header, deleted.deleted), (only_revision, 1));
        assert_eq!(inner.header, Some(pb::ResponseHeader::default()));
        let [pb::ResponseOp { response: Some(Response::ResponsePut(put)) }] = &inner.responses[..] else {
            panic!("{inner:?}")
        };
        assert_eq!(put.header, only_revision);
        let expected =
            mvccpb::KeyValue { key: key("a"), create_revision: 2, mod_revision: 5, version: 4, ..Default::default() };
        assert_eq!(put.prev_kv, Some(expected));
    }
}
