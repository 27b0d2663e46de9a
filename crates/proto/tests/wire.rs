//! Messages as the Go module of etcd 3.7.3 encodes them: decoded to the same values, and encoded to the same bytes.

use eddy_proto::authpb::{Permission, permission};
use eddy_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use eddy_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::etcdserverpb::response_op::Response;
use eddy_proto::etcdserverpb::watch_create_request::FilterType;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::*;
use eddy_proto::mvccpb::{Event, KeyValue, event::EventType};
use prost::Message;
use prost::bytes::Bytes;

/// The bytes that hexadecimal digits stand for.
fn unhex(digits: &str) -> Vec<u8> {
    assert_eq!(digits.len() % 2, 0, "whole bytes");
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits"))
        .collect()
}

/// Asserts that `go`, which etcd's Go module encoded, and `ours` are the same message, byte for byte.
#[track_caller]
fn same<M: Message + Default + PartialEq + std::fmt::Debug>(go: &str, ours: M) {
    let go = unhex(go);
    assert_eq!(M::decode(go.as_slice()).expect("Go's bytes decode"), ours);
    assert_eq!(ours.encode_to_vec(), go);
}

fn header() -> Option<ResponseHeader> {
    Some(ResponseHeader {
        cluster_id: 14841639068965178418,
        member_id: 10276657743932975437,
        revision: 1 << 40,
        raft_term: 2,
    })
}

fn kv() -> KeyValue {
    KeyValue {
        key: "/a".into(),
        create_revision: 2,
        mod_revision: 300,
        version: 5,
        value: Bytes::from_static(b"v\x00\xff"),
        lease: 7587890,
    }
}

fn compare(result: CompareResult, target: CompareTarget, key: &'static str, operand: Option<TargetUnion>) -> Compare {
    Compare {
        result: result.into(),
        target: target.into(),
        key: key.into(),
        range_end: Bytes::new(),
        target_union: operand,
    }
}

#[test]
fn range_messages() {
    let request = RangeRequest {
        key: "/a".into(),
        range_end: "/b".into(),
        limit: 500,
        revision: 12,
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Value.into(),
        serializable: true,
        keys_only: true,
        count_only: true,
        min_mod_revision: 1,
        max_mod_revision: 1 << 62,
        min_create_revision: 3,
        max_create_revision: -1,
    };
    same("0a022f6112022f6218f403200c28023004380140014801500158808080808080808040600368ffffffffffffffffff01", request);
    same("", RangeRequest::default());

    let keys = vec![kv(), KeyValue { key: "k".into(), ..Default::default() }];
    same(
        "0a1f08b298eaf1948386fccd0110cdd2918bd2b881cf8e0118808080808020200212150a022f61100218ac0220052a037600ff30b290cf0312030a016b18012087ad4b",
        RangeResponse { header: header(), kvs: keys, more: true, count: 1234567 },
    );

    let part = RangeResponse { kvs: vec![kv()], ..Default::default() };
    same("0a1712150a022f61100218ac0220052a037600ff30b290cf03", RangeStreamResponse { range_response: Some(part) });
}

#[test]
fn put_request() {
    let request = PutRequest {
        key: "k".into(),
        value: Bytes::new(),
        lease: -5,
        prev_kv: true,
        ignore_value: true,
        ignore_lease: true,
    };
    same("0a016b18fbffffffffffffffff01200128013001", request);
}

#[test]
fn txn_request_with_every_compare_and_a_nested_txn() {
    use CompareResult::{Equal, Greater, Less, NotEqual};
    use CompareTarget::{Create, Lease, Mod, Value, Version};

    let delete = DeleteRangeRequest { key: "x".into(), range_end: Bytes::from_static(b"\0"), prev_kv: true };
    let inner = TxnRequest {
        compare: vec![compare(NotEqual, Lease, "x", Some(TargetUnion::Lease(0)))],
        success: vec![RequestOp { request: Some(Request::RequestDeleteRange(delete)) }],
        failure: vec![],
    };
    let put = PutRequest { key: "a".into(), value: "1".into(), ..Default::default() };
    let range = RangeRequest { key: "a".into(), ..Default::default() };
    let request = TxnRequest {
        compare: vec![
            // An operand of 0 or of no bytes is still there; one that is left out is not.
            compare(Equal, Version, "a", Some(TargetUnion::Version(0))),
            compare(Greater, Create, "a", Some(TargetUnion::CreateRevision(9))),
            compare(Less, Mod, "a", Some(TargetUnion::ModRevision(1 << 42))),
            compare(Equal, Value, "a", Some(TargetUnion::Value(Bytes::new()))),
            compare(Equal, Value, "none", None),
        ],
        success: vec![
            RequestOp { request: Some(Request::RequestPut(put)) },
            RequestOp { request: Some(Request::RequestTxn(inner)) },
        ],
        failure: vec![RequestOp { request: Some(Request::RequestRange(range)) }, RequestOp { request: None }],
    };
    same(
        "0a051a016120000a09080110011a016128090a0f080210021a016130808080808080010a0710031a01613a000a0810031a046e6f6e65120812060a0161120131121922170a09080310041a01784000120a1a080a017812010018011a050a030a01611a00",
        request,
    );
}

/// Go writes a oneof after all other fields, prost in the order of numbers; protobuf allows both.
#[test]
fn compare_of_a_range() {
    let mut ours = compare(CompareResult::NotEqual, CompareTarget::Lease, "x", Some(TargetUnion::Lease(0)));
    ours.range_end = "y".into();
    let go = unhex("080310041a0178820401794000");
    assert_eq!(Compare::decode(go.as_slice()).expect("Go's bytes decode"), ours);
    assert_eq!(ours.encode_to_vec(), unhex("080310041a0178400082040179"));
}

#[test]
fn txn_response_with_a_nested_txn() {
    let deleted = DeleteRangeResponse { header: None, deleted: 2, prev_kvs: vec![kv()] };
    let inner = TxnResponse {
        responses: vec![ResponseOp { response: Some(Response::ResponseDeleteRange(deleted)) }],
        ..Default::default()
    };
    let put = PutResponse { header: None, prev_kv: Some(kv()) };
    let response = TxnResponse {
        header: header(),
        succeeded: true,
        responses: vec![
            ResponseOp { response: Some(Response::ResponsePut(put)) },
            ResponseOp { response: Some(Response::ResponseTxn(inner)) },
        ],
    };
    same(
        "0a1f08b298eaf1948386fccd0110cdd2918bd2b881cf8e0118808080808020200210011a19121712150a022f61100218ac0220052a037600ff30b290cf031a1f221d1a1b1a1910021a150a022f61100218ac0220052a037600ff30b290cf03",
        response,
    );
}

#[test]
fn watch_messages() {
    let create = WatchCreateRequest {
        key: "/r/".into(),
        range_end: "/r0".into(),
        start_revision: 77,
        progress_notify: true,
        filters: vec![FilterType::Nodelete.into(), FilterType::Noput.into()],
        prev_kv: true,
        watch_id: 42,
        fragment: true,
    };
    same(
        "0a180a032f722f12032f7230184d20012a0201003001382a4001",
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) },
    );

    let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
    same("1a00", WatchRequest { request_union: Some(progress) });

    let deleted = KeyValue { key: "/a".into(), mod_revision: 301, ..Default::default() };
    let response = WatchResponse {
        header: header(),
        watch_id: -1,
        created: true,
        canceled: true,
        compact_revision: 99,
        cancel_reason: "why".into(),
        fragment: true,
        events: vec![
            Event { r#type: EventType::Put.into(), kv: Some(kv()), prev_kv: None },
            Event { r#type: EventType::Delete.into(), kv: Some(deleted), prev_kv: Some(kv()) },
        ],
    };
    same(
        "0a1f08b298eaf1948386fccd0110cdd2918bd2b881cf8e0118808080808020200210ffffffffffffffffff01180120012863320377687938015a1712150a022f61100218ac0220052a037600ff30b290cf035a22080112070a022f6118ad021a150a022f61100218ac0220052a037600ff30b290cf03",
        response,
    );
}

#[test]
fn lease_messages() {
    same("083c10a690cf03", LeaseGrantRequest { ttl: 60, id: 7587878 });

    let response = LeaseTimeToLiveResponse {
        header: header(),
        id: 1,
        ttl: -1,
        granted_ttl: 60,
        keys: vec!["a".into(), Bytes::new(), "b".into()],
    };
    same(
        "0a1f08b298eaf1948386fccd0110cdd2918bd2b881cf8e01188080808080202002100118ffffffffffffffffff01203c2a01612a002a0162",
        response,
    );
}

#[test]
fn maintenance_messages() {
    let request = AlarmRequest {
        action: alarm_request::AlarmAction::Deactivate.into(),
        member_id: 10276657743932975437,
        alarm: AlarmType::Corrupt.into(),
    };
    same("080210cdd2918bd2b881cf8e011802", request);

    let response = StatusResponse {
        header: header(),
        version: "3.7.3".into(),
        db_size: 20480,
        leader: 1,
        raft_index: 2,
        raft_term: 3,
        raft_applied_index: 4,
        errors: vec!["memberID:1 alarm:NOSPACE ".into()],
        db_size_in_use: 16384,
        is_learner: true,
        storage_version: "3.7.0".into(),
        db_size_quota: 2147483648,
        downgrade_info: Some(DowngradeInfo { enabled: true, target_version: "3.6.0".into() }),
    };
    same(
        "0a1f08b298eaf1948386fccd0110cdd2918bd2b881cf8e011880808080802020021205332e372e331880a001200128023003380442196d656d62657249443a3120616c61726d3a4e4f5350414345204880800150015a05332e372e306080808080086a0908011205332e362e30",
        response,
    );
}

#[test]
fn messages_that_span_packages() {
    let perm = Permission { perm_type: permission::Type::Readwrite.into(), key: "a".into(), range_end: "b".into() };
    let request = AuthRoleGrantPermissionRequest { name: "r".into(), perm: Some(perm) };
    same("0a0172120808021201611a0162", request);
}
