//! The services over a real socket, on a node whose disk is memory.

use std::net::SocketAddr;
use std::path::PathBuf;

use bytes::Bytes;
use eddy_crdt::{Birth, ClusterId, Command, Founder, Genesis, Identity, ReplicaId};
use eddy_proto::etcdserverpb::auth_client::AuthClient;
use eddy_proto::etcdserverpb::cluster_client::ClusterClient;
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use eddy_proto::etcdserverpb::request_op::Request as Step;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion as WatchUnion;
use eddy_proto::etcdserverpb::{self as pb, AlarmType};
use eddy_proto::health::HealthCheckRequest;
use eddy_proto::health::health_client::HealthClient;
use futures::{StreamExt, TryStreamExt, stream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::CompressionEncoding;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};

use super::cluster::MemberInfo;
use super::limits::Limits;
use crate::node::{self, Handle, Options};
use crate::storage::faulty::{Disk, Fault};

const CLUSTER: u64 = 0xc1;
const MEMBER: u64 = 0x8e9e_05c5_2164_694d;
const MAX_REQUEST_BYTES: usize = 64 << 10;
const MAX_MESSAGE_BYTES: usize = MAX_REQUEST_BYTES + (512 << 10);

struct Served {
    node: Handle,
    disk: Disk,
    channel: Channel,
}

impl Served {
    async fn start() -> Self {
        let disk = Disk::new();
        let identity = Identity {
            cluster: ClusterId::new(CLUSTER),
            replica: ReplicaId::new(MEMBER),
            birth: Birth::new(1),
            ordinal: 0,
        };
        let peer_urls = vec!["http://b:2380".to_owned(), "http://a:2380".to_owned()];
        let founder = Founder { id: identity.replica, name: "m".to_owned(), peer_urls: peer_urls.clone() };
        let genesis = Genesis { founders: vec![founder], ..Genesis::default() };
        let options = Options { genesis: Some(genesis), ..Options::new(identity, PathBuf::from("memory")) };
        let node = node::start(Box::new(disk.open()), options).unwrap();
        let limits = Limits { max_request_bytes: MAX_REQUEST_BYTES, max_txn_ops: 8 };
        let member = MemberInfo {
            name: "m".to_owned(),
            peer_urls,
            client_urls: vec!["http://a:2379".to_owned()],
            max_learners: 1,
        };
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = super::routes(&node, limits, member);
        tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self { node, disk, channel }
    }

    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone())
    }

    fn leases(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone())
    }

    async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<pb::PutResponse, Status> {
        let request = pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() };
        self.kv().put(request).await.map(tonic::Response::into_inner)
    }

    async fn get(&self, key: &'static str) -> pb::RangeResponse {
        let request = pb::RangeRequest { key: key.into(), ..Default::default() };
        self.kv().range(request).await.unwrap().into_inner()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.node.shutdown();
    }
}

fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { cluster_id: CLUSTER, member_id: MEMBER, revision, raft_term: 2 })
}

fn error<T: std::fmt::Debug>(result: Result<T, Status>) -> (Code, String) {
    let status = result.unwrap_err();
    (status.code(), status.message().to_owned())
}

fn of(request: Step) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn put(key: &'static str, value: &'static str) -> pb::RequestOp {
    of(Step::RequestPut(pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() }))
}

fn get(key: &'static str) -> pb::RequestOp {
    of(Step::RequestRange(pb::RangeRequest { key: key.into(), ..Default::default() }))
}

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
    let op = super::convert::range(range);
    let mut parts = std::pin::pin!(super::range_stream::parts(served.node.clone(), op, false, 1 << 20));
    assert_eq!(parts.next().await.unwrap().unwrap().range_response.unwrap().kvs.len(), 10);
    served.put("k15", "later").await.unwrap();
    served.put("k15x", "later").await.unwrap();
    let last = parts.next().await.unwrap().unwrap().range_response.unwrap();
    assert_eq!((last.header, last.count, last.kvs.len()), (header(31), 30, 20));
    assert!(last.kvs.iter().all(|kv| kv.value.is_empty()));
    assert!(parts.next().await.is_none());
}

#[tokio::test]
async fn leases_live_and_end() {
    let served = Served::start().await;
    let mut leases = served.leases();
    let grant = |id, ttl| pb::LeaseGrantRequest { id, ttl };
    let granted = leases.lease_grant(grant(7, 60)).await.unwrap().into_inner();
    assert_eq!((granted.header, granted.id, granted.ttl), (header(1), 7, 60));
    let exists = (Code::FailedPrecondition, "etcdserver: lease already exists".to_owned());
    assert_eq!(error(leases.lease_grant(grant(7, 60)).await), exists);
    let too_long = (Code::OutOfRange, "etcdserver: too large lease TTL".to_owned());
    assert_eq!(error(leases.lease_grant(grant(8, 9_000_000_001)).await), too_long);
    let drawn = leases.lease_grant(grant(0, 600)).await.unwrap().into_inner().id;
    assert!(drawn > 0);

    let leased = pb::PutRequest { key: "k".into(), lease: 7, ..Default::default() };
    served.kv().put(leased).await.unwrap();
    let ask = |id, keys| pb::LeaseTimeToLiveRequest { id, keys };
    let left = leases.lease_time_to_live(ask(7, true)).await.unwrap().into_inner();
    assert_eq!((left.header, left.granted_ttl, &left.keys[..]), (header(2), 60, &[Bytes::from("k")][..]));
    assert!((57..=59).contains(&left.ttl), "{left:?}");
    assert!(leases.lease_time_to_live(ask(7, false)).await.unwrap().into_inner().keys.is_empty());
    for unknown in [0, 99] {
        let left = leases.lease_time_to_live(ask(unknown, true)).await.unwrap().into_inner();
        let expected = pb::LeaseTimeToLiveResponse { header: header(2), id: unknown, ttl: -1, ..Default::default() };
        assert_eq!(left, expected);
    }
    let all = leases.lease_leases(pb::LeaseLeasesRequest {}).await.unwrap().into_inner();
    assert_eq!(all.leases, [7, drawn].map(|id| pb::LeaseStatus { id }), "the one with less time left first");

    let ids = [7, 99, 0, drawn].map(|id| pb::LeaseKeepAliveRequest { id });
    let renewed = leases.lease_keep_alive(stream::iter(ids)).await.unwrap().into_inner();
    let renewed: Vec<_> = renewed.try_collect().await.unwrap();
    let expected = [(7, 60), (99, 0), (0, 0), (drawn, 600)].map(|(id, ttl)| pb::LeaseKeepAliveResponse {
        header: header(2),
        id,
        ttl,
    });
    assert_eq!(renewed, expected);

    let revoked = leases.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await.unwrap().into_inner();
    assert_eq!(revoked.header, header(3));
    assert_eq!(served.get("k").await.count, 0);
    for unknown in [7, 0] {
        let missing = (Code::NotFound, "etcdserver: requested lease not found".to_owned());
        assert_eq!(error(leases.lease_revoke(pb::LeaseRevokeRequest { id: unknown }).await), missing);
    }
}

/// The requests of etcd's TestSessionTTLOptions, often enough that some answer comes within the millisecond of its grant.
#[tokio::test]
async fn less_than_its_time_to_live_is_left_of_a_lease_at_once() {
    let served = Served::start().await;
    let mut leases = served.leases();
    for id in 1..=50 {
        leases.lease_grant(pb::LeaseGrantRequest { id, ttl: 90 }).await.unwrap();
        let left =
            leases.lease_time_to_live(pb::LeaseTimeToLiveRequest { id, keys: false }).await.unwrap().into_inner();
        assert_eq!(left.granted_ttl, 90);
        assert!((70..90).contains(&left.ttl), "{left:?}");
    }
}

/// The requests of etcd's TestV3WatchProgressWaitsForSync.
#[tokio::test]
async fn what_a_watch_catches_up_with_comes_with_the_revision_of_the_store() {
    const COUNT: i64 = 1001;
    let served = Served::start().await;
    for n in 0..COUNT {
        served.put("foo", n.to_string()).await.unwrap();
    }
    let create = pb::WatchCreateRequest { key: "foo".into(), start_revision: 1, ..Default::default() };
    let progress = pb::WatchProgressRequest {};
    let request = |union| pb::WatchRequest { request_union: Some(union) };
    let (requests, outgoing) = tokio::sync::mpsc::channel(4);
    requests.send(request(WatchUnion::CreateRequest(create))).await.unwrap();
    requests.send(request(WatchUnion::ProgressRequest(progress))).await.unwrap();
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let mut answers = WatchClient::new(served.channel.clone()).watch(outgoing).await.unwrap().into_inner();
    let mut next = async || answers.message().await.unwrap().unwrap();
    assert!(next().await.created);
    let (mut events, mut responses) = (0, 0);
    while events < COUNT {
        let response = next().await;
        assert_eq!(response.header, header(COUNT + 1), "after {events} events");
        assert!(!response.events.is_empty(), "progress before the watch has caught up");
        events += response.events.len() as i64;
        responses += 1;
    }
    assert!(responses > 1, "one response tells nothing of those that have more to follow");
    requests.send(request(WatchUnion::ProgressRequest(progress))).await.unwrap();
    let told = next().await;
    assert_eq!((told.header, told.events.len()), (header(COUNT + 1), 0));
}

#[tokio::test]
async fn the_member_and_its_status_are_told() {
    let served = Served::start().await;
    served.put("a", "1").await.unwrap();
    let mut cluster = ClusterClient::new(served.channel.clone());
    let publish = Command::MemberPublish { name: "m".to_owned(), client_urls: vec!["http://a:2379".to_owned()] };
    served.node.submit(publish).await.unwrap();
    let list = cluster.member_list(pb::MemberListRequest { linearizable: true }).await.unwrap().into_inner();
    let member = pb::Member {
        id: MEMBER,
        name: "m".to_owned(),
        peer_ur_ls: vec!["http://a:2380".to_owned(), "http://b:2380".to_owned()],
        client_ur_ls: vec!["http://a:2379".to_owned()],
        is_learner: false,
    };
    assert_eq!((list.header, list.members), (header(0), vec![member.clone()]));
    let unknown = (Code::NotFound, "etcdserver: member not found".to_owned());
    assert_eq!(error(cluster.member_remove(pb::MemberRemoveRequest { id: 1 }).await), unknown);
    let add = |url: &str| pb::MemberAddRequest { peer_ur_ls: vec![url.to_owned()], is_learner: false };
    let bad = (Code::InvalidArgument, "etcdserver: given member URLs are invalid".to_owned());
    assert_eq!(error(cluster.member_add(add("not a url")).await), bad);
    assert_eq!(error(cluster.member_add(add("http://b:2380")).await).0, Code::FailedPrecondition);
    let last = "etcdserver: re-configuration failed due to not enough started members".to_owned();
    let remove = |id| pb::MemberRemoveRequest { id };
    assert_eq!(error(cluster.member_remove(remove(MEMBER)).await), (Code::FailedPrecondition, last));

    let added = cluster.member_add(add("http://c:2380")).await.unwrap().into_inner();
    let new = added.member.unwrap();
    assert_eq!((new.name.as_str(), &new.peer_ur_ls[..]), ("", &["http://c:2380".to_owned()][..]));
    assert_eq!(added.members.len(), 2);
    let not_learner = "etcdserver: can only promote a learner member".to_owned();
    let promoted = cluster.member_promote(pb::MemberPromoteRequest { id: new.id }).await;
    assert_eq!(error(promoted), (Code::FailedPrecondition, not_learner));
    let update = |url: &str| pb::MemberUpdateRequest { id: new.id, peer_ur_ls: vec![url.to_owned()] };
    let taken = "etcdserver: Peer URLs already exists".to_owned();
    assert_eq!(error(cluster.member_update(update("http://a:2380")).await), (Code::FailedPrecondition, taken));
    let updated = cluster.member_update(update("http://d:2380")).await.unwrap().into_inner();
    assert!(updated.members.iter().any(|m| m.id == new.id && m.peer_ur_ls == ["http://d:2380"]), "{updated:?}");
    let left = cluster.member_remove(remove(new.id)).await.unwrap().into_inner().members;
    assert_eq!(left, [member]);
    assert_eq!(error(cluster.member_remove(remove(new.id)).await), unknown);
    // At the same URLs it is another member now; as a learner there is room for one.
    let learner = |url: &str| pb::MemberAddRequest { peer_ur_ls: vec![url.to_owned()], is_learner: true };
    let again = cluster.member_add(learner("http://c:2380")).await.unwrap().into_inner().member.unwrap();
    assert!(again.id != new.id && again.is_learner, "{again:?}");
    let too_many = "etcdserver: too many learner members in cluster".to_owned();
    assert_eq!(error(cluster.member_add(learner("http://e:2380")).await), (Code::FailedPrecondition, too_many));
    let promoted = cluster.member_promote(pb::MemberPromoteRequest { id: again.id }).await.unwrap().into_inner();
    assert!(promoted.members.iter().all(|member| !member.is_learner), "{promoted:?}");

    let mut maintenance = served.maintenance();
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.header, status.leader, status.raft_term), (header(2), MEMBER, 2));
    assert_eq!((&status.version[..], &status.storage_version[..]), ("3.7.3", "3.7.0"));
    assert_eq!((status.db_size_quota, status.errors.len(), status.is_learner), (2 << 30, 0, false));
    assert!(status.raft_index >= status.raft_applied_index && status.raft_applied_index > 0);
    assert!(status.db_size >= status.db_size_in_use && status.db_size_in_use > 0, "{status:?}");
    let own = pb::MoveLeaderRequest { target_id: MEMBER };
    assert!(maintenance.move_leader(own).await.is_ok());
    let other = pb::MoveLeaderRequest { target_id: 5 };
    let bad = (Code::FailedPrecondition, "etcdserver: bad leader transferee".to_owned());
    assert_eq!(error(maintenance.move_leader(other).await), bad);
    assert_eq!(error(maintenance.snapshot(pb::SnapshotRequest {}).await).0, Code::Unimplemented);

    let mut auth = AuthClient::new(served.channel.clone());
    let disabled = auth.auth_status(pb::AuthStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(disabled, pb::AuthStatusResponse { header: header(2), enabled: false, auth_revision: 1 });
    let off = (Code::FailedPrecondition, "etcdserver: authentication is not enabled".to_owned());
    assert_eq!(error(auth.authenticate(pb::AuthenticateRequest::default()).await), off);
    let missing = (Code::Unimplemented, "eddy: not built yet: users and roles (Auth)".to_owned());
    assert_eq!(error(auth.user_add(pb::AuthUserAddRequest::default()).await), missing);
}

#[tokio::test]
async fn alarms_stop_writes_until_they_are_lowered() {
    let served = Served::start().await;
    let mut maintenance = served.maintenance();
    let alarm = |action, kind: AlarmType| pb::AlarmRequest { action, member_id: MEMBER, alarm: kind.into() };
    let member = || pb::AlarmMember { member_id: MEMBER, alarm: AlarmType::Nospace.into() };
    for _ in 0..2 {
        let raised = maintenance.alarm(alarm(1, AlarmType::Nospace)).await.unwrap().into_inner();
        assert_eq!((raised.header, raised.alarms), (header(1), vec![member()]));
    }
    for (kind, expected) in [(AlarmType::None, 1), (AlarmType::Nospace, 1), (AlarmType::Corrupt, 0)] {
        assert_eq!(maintenance.alarm(alarm(0, kind)).await.unwrap().into_inner().alarms.len(), expected);
    }
    let full = (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded".to_owned());
    assert_eq!(error(served.put("a", "1").await), full);
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.errors, [format!("memberID:{MEMBER} alarm:NOSPACE")]);
    assert!(maintenance.alarm(alarm(1, AlarmType::None)).await.unwrap().into_inner().alarms.is_empty());
    for expected in [vec![member()], vec![]] {
        assert_eq!(maintenance.alarm(alarm(2, AlarmType::Nospace)).await.unwrap().into_inner().alarms, expected);
    }
    assert_eq!(served.put("a", "1").await.unwrap().header, header(2));
}

#[tokio::test]
async fn equal_histories_have_equal_hashes() {
    let (one, two) = (Served::start().await, Served::start().await);
    let mut hashes = vec![];
    for served in [&one, &two] {
        served.put("a", "1").await.unwrap();
        served.put("b", "2").await.unwrap();
        let now = served.maintenance().hash_kv(pb::HashKvRequest { revision: 0 }).await.unwrap().into_inner();
        assert_eq!((now.header, now.compact_revision, now.hash_revision), (header(3), -1, 3));
        let before = served.maintenance().hash_kv(pb::HashKvRequest { revision: 2 }).await.unwrap().into_inner();
        assert_eq!((before.header, before.hash_revision), (header(3), 2));
        assert_ne!(before.hash, now.hash);
        hashes.push((before.hash, now.hash));
    }
    assert_eq!(hashes[0], hashes[1]);
    let future = error(one.maintenance().hash_kv(pb::HashKvRequest { revision: 4 }).await);
    assert_eq!(future, (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision".to_owned()));
}

#[tokio::test]
async fn health_is_that_of_the_server_and_a_failed_flush_ends_it() {
    let served = Served::start().await;
    let mut health = HealthClient::new(served.channel.clone());
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    assert_eq!(health.check(ask("")).await.unwrap().into_inner().status, 1);
    assert_eq!(error(health.check(ask("x")).await), (Code::NotFound, "unknown service".to_owned()));
    let mut unknown = health.watch(ask("x")).await.unwrap().into_inner();
    assert_eq!(unknown.message().await.unwrap().unwrap().status, 3);

    served.put("a", "1").await.unwrap();
    served.disk.fail_at(1, Fault::Flush);
    assert_eq!(error(served.put("a", "2").await).0, Code::Unavailable);
    assert_eq!(error(served.put("a", "3").await).0, Code::Unavailable);
    assert_eq!(&served.get("a").await.kvs[0].value[..], b"1", "reads go on at the last durable revision");
    assert_eq!(health.check(ask("")).await.unwrap().into_inner().status, 2);
    let status = served.maintenance().status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.header, status.errors.len()), (header(2), 1));
}
