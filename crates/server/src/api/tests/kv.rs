//! Keys, transactions, ranges in parts, and the sizes of requests.

use eddy_proto::etcdserverpb as pb;
use futures::{StreamExt, TryStreamExt};
use tonic::Code;
use tonic::codec::CompressionEncoding;

use super::{MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES, Served, error, get, header, put};
use crate::api::{convert, range_stream};

#[tokio::test]
async fn keys_are_written_read_and_deleted_at_etcds_revisions() {
    let served = Served::start().await;
    assert_eq!(served.get("a").await, pb::RangeResponse { header: header(1), ..Default::default() });
    assert_eq!(served.put("a", "1").await.unwrap().header, header(2));
    let request = pb::PutRequest { key: "a".into(), prev_kv: true, ..Default::default() };
    let response = served.kv().put(request).await.unwrap().into_inner();
    assert_eq!((response.header, &response.prev_kv.unwrap().value[..]), (header(3), &b"1"[..]));
    let found = served.get("a").await;
    assert_eq!((found.header, found.count, found.kvs[0].version, found.kvs[0].create_revision), (header(3), 1, 2, 2));
    let request = pb::DeleteRangeRequest { key: "a".into(), range_end: "\0".into(), prev_kv: true };
    let response = served.kv().delete_range(request.clone()).await.unwrap().into_inner();
    assert_eq!((response.header, response.deleted, response.prev_kvs.len()), (header(4), 1, 1));
    let response = served.kv().delete_range(request).await.unwrap().into_inner();
    assert_eq!((response.header, response.deleted), (header(4), 0));
}

#[tokio::test]
async fn transactions_write_at_one_revision_and_reading_ones_at_none() {
    let served = Served::start().await;
    let compare = pb::Compare { key: "a".into(), target: 1, ..Default::default() };
    let txn = pb::TxnRequest {
        compare: vec![compare],
        success: vec![put("a", "1"), put("b", "2"), get("a")],
        failure: vec![get("a")],
    };
    let response = served.kv().txn(txn.clone()).await.unwrap().into_inner();
    assert_eq!((response.header, response.succeeded, response.responses.len()), (header(2), true, 3));
    let response = served.kv().txn(txn).await.unwrap().into_inner();
    assert_eq!((response.header, response.succeeded, response.responses.len()), (header(2), false, 1));
    let reads = pb::TxnRequest { success: vec![get("a"), get("b")], ..Default::default() };
    let before = served.disk.writes();
    let response = served.kv().txn(reads).await.unwrap().into_inner();
    assert_eq!((response.header, response.responses.len()), (header(2), 2));
    assert_eq!(served.disk.writes(), before, "a read went to the disk");
    let nothing = served.kv().txn(pb::TxnRequest::default()).await.unwrap().into_inner();
    assert_eq!((nothing.header, nothing.succeeded), (header(2), true));
}

#[tokio::test]
async fn requests_are_refused_in_etcds_words() {
    let served = Served::start().await;
    let mut kv = served.kv();
    let at = |revision| pb::RangeRequest { key: "a".into(), revision, ..Default::default() };
    assert_eq!(
        error(kv.range(at(2)).await),
        (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision".into())
    );
    for value in ["1", "2"] {
        served.put("a", value).await.unwrap();
    }
    let compact = |revision| pb::CompactionRequest { revision, physical: true };
    let future = (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision".to_owned());
    assert_eq!(error(kv.compact(compact(4)).await), future);
    assert_eq!(kv.compact(compact(3)).await.unwrap().into_inner().header, header(3));
    let compacted = (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted".to_owned());
    assert_eq!(error(kv.compact(compact(3)).await), compacted);
    assert_eq!(error(kv.range(at(2)).await), compacted);
    let empty = (Code::InvalidArgument, "etcdserver: key is not provided".to_owned());
    assert_eq!(error(served.put("", "").await), empty);
    let keep = pb::PutRequest { key: "none".into(), ignore_value: true, ..Default::default() };
    assert_eq!(error(kv.put(keep).await), (Code::InvalidArgument, "etcdserver: key not found".into()));
    let leased = pb::PutRequest { key: "a".into(), lease: 9, ..Default::default() };
    assert_eq!(error(kv.put(leased).await), (Code::NotFound, "etcdserver: requested lease not found".into()));
    let twice = pb::TxnRequest { success: vec![put("a", "1"), put("a", "2")], ..Default::default() };
    let duplicate = (Code::InvalidArgument, "etcdserver: duplicate key given in txn request".to_owned());
    assert_eq!(error(kv.txn(twice).await), duplicate);
    let many = pb::TxnRequest { success: vec![get("a"); 9], ..Default::default() };
    let too_many = (Code::InvalidArgument, "etcdserver: too many operations in txn request".to_owned());
    assert_eq!(error(kv.txn(many).await), too_many);
    assert_eq!(served.get("a").await.header, header(3), "something that was refused took a revision");
}

#[tokio::test]
async fn sizes_are_limited_as_in_etcd() {
    let served = Served::start().await;
    // 22 bytes of log for this member id; a tag and a length of three bytes around the value, the key.
    let largest = MAX_REQUEST_BYTES - (3 + 10) - (1 + 3) - (3 + 1 + 3);
    assert!(served.put("k", vec![7; largest]).await.is_ok());
    let too_large = (Code::InvalidArgument, "etcdserver: request is too large".to_owned());
    assert_eq!(error(served.put("k", vec![7; largest + 1]).await), too_large);
    let value = vec![7; MAX_REQUEST_BYTES];
    let compare = pb::Compare {
        key: "k".into(),
        target: 3,
        target_union: Some(pb::compare::TargetUnion::Value(value.into())),
        ..Default::default()
    };
    let reading = pb::TxnRequest { compare: vec![compare], success: vec![get("k")], ..Default::default() };
    assert!(served.kv().txn(reading.clone()).await.is_ok(), "what only reads is limited as a message only");
    let writing = pb::TxnRequest { failure: vec![put("k", "")], ..reading };
    assert_eq!(error(served.kv().txn(writing).await), too_large);

    let message =
        |value_bytes| pb::PutRequest { key: "k".into(), value: vec![7; value_bytes].into(), ..Default::default() };
    let limit = MAX_MESSAGE_BYTES;
    assert_eq!(error(served.kv().put(message(limit - 7)).await), too_large);
    let text = format!("grpc: received message larger than max ({} vs. {limit})", limit + 1);
    assert_eq!(error(served.kv().put(message(limit - 6)).await), (Code::ResourceExhausted, text));
    let mut zipping = served.kv().send_compressed(CompressionEncoding::Gzip);
    assert!(zipping.put(message(1000)).await.is_ok());
    let text = format!("grpc: received message after decompression larger than max {limit}");
    assert_eq!(error(zipping.put(message(limit)).await), (Code::ResourceExhausted, text));
    assert_eq!(served.get("k").await.kvs[0].value.len(), 1000);
}

#[tokio::test]
async fn a_range_in_parts_is_the_range() {
    let served = Served::start().await;
    for n in 0..200 {
        served.put(format!("k{n:03}"), vec![b'v'; 1000]).await.unwrap();
    }
    let range = pb::RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    for (limit, revision) in
        [(0, 0), (1, 0), (10, 0), (11, 0), (150, 0), (200, 0), (201, 0), (-1, 0), (0, 60), (30, 60)]
    {
        let request = pb::RangeRequest { limit, revision, ..range.clone() };
        let whole = served.kv().range(request.clone()).await.unwrap().into_inner();
        let parts = served.kv().range_stream(request).await.unwrap().into_inner();
        let parts: Vec<_> = parts.map_ok(|part| part.range_response.unwrap()).try_collect().await.unwrap();
        let (last, earlier) = parts.split_last().unwrap();
        assert!(earlier.iter().all(|part| part.header.is_none() && !part.more && part.count == 0), "limit {limit}");
        assert_eq!((last.header, last.more, last.count), (whole.header, whole.more, whole.count), "limit {limit}");
        let sizes: Vec<_> = parts.iter().map(|part| part.kvs.len()).collect();
        let kvs: Vec<_> = parts.into_iter().flat_map(|part| part.kvs).collect();
        assert_eq!(kvs, whole.kvs, "limit {limit}");
        if (limit, revision) == (0, 0) {
            // Twice as many until a part is half as large as the largest request.
            assert_eq!(sizes, [10, 20, 40, 40, 40, 40, 10]);
        }
    }
    let count = pb::RangeRequest { count_only: true, ..range.clone() };
    let parts = served.kv().range_stream(count).await.unwrap().into_inner();
    let parts: Vec<_> = parts.try_collect().await.unwrap();
    let only = pb::RangeResponse { header: header(201), count: 200, ..Default::default() };
    assert_eq!(parts, [pb::RangeStreamResponse { range_response: Some(only) }]);
    let sorted = pb::RangeRequest { sort_order: 2, ..range };
    let refused = (Code::Unimplemented, "RangeStream does not support custom sort orders".to_owned());
    assert_eq!(error(served.kv().range_stream(sorted).await), refused);
}

#[tokio::test]
async fn a_range_in_parts_does_not_see_later_writes() {
    let served = Served::start().await;
    for n in 0..30 {
        served.put(format!("k{n:02}"), "").await.unwrap();
    }
    let range = pb::RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let op = convert::range(range);
    let mut parts = std::pin::pin!(range_stream::parts(served.node.clone(), op, false, 1 << 20));
    assert_eq!(parts.next().await.unwrap().unwrap().range_response.unwrap().kvs.len(), 10);
    served.put("k15", "later").await.unwrap();
    served.put("k15x", "later").await.unwrap();
    let last = parts.next().await.unwrap().unwrap().range_response.unwrap();
    assert_eq!((last.header, last.count, last.kvs.len()), (header(31), 30, 20));
    assert!(last.kvs.iter().all(|kv| kv.value.is_empty()));
    assert!(parts.next().await.is_none());
}
