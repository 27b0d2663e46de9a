//! Users and roles: who may call what.

use std::collections::BTreeSet;

use bytes::Bytes;
use eddy_proto::DESCRIPTORS;
use eddy_proto::authpb::permission::Type;
use eddy_proto::authpb::{Permission, UserAddOptions};
use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::auth_client::AuthClient;
use eddy_proto::etcdserverpb::cluster_client::ClusterClient;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use http::uri::PathAndQuery;
use prost_reflect::DescriptorPool;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::{Served, error, get, header, put};

impl Served {
    fn auth(&self) -> AuthClient<Channel> {
        AuthClient::new(self.channel.clone())
    }

    /// A user with the password "p"; its token once authentication is enabled.
    async fn user(&self, root: &str, name: &str) {
        let request = pb::AuthUserAddRequest { name: name.to_owned(), password: "p".to_owned(), ..Default::default() };
        self.auth().user_add(with(root, request)).await.unwrap();
    }

    async fn grant(&self, root: &str, user: &str, role: &str) {
        let request = pb::AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
        self.auth().user_grant_role(with(root, request)).await.unwrap();
    }

    /// A role of that name for the user of the same name, which may do that.
    async fn permit(&self, root: &str, name: &str, kind: Type, key: &'static str, range_end: &'static str) {
        let role = pb::AuthRoleAddRequest { name: name.to_owned() };
        let _may_be_there = self.auth().role_add(with(root, role)).await;
        let perm = Permission { perm_type: kind.into(), key: key.into(), range_end: range_end.into() };
        let request = pb::AuthRoleGrantPermissionRequest { name: name.to_owned(), perm: Some(perm) };
        self.auth().role_grant_permission(with(root, request)).await.unwrap();
        self.grant(root, name, name).await;
    }

    async fn log_in(&self, name: &str, password: &str) -> Result<String, Status> {
        let request = pb::AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        Ok(self.auth().authenticate(request).await?.into_inner().token)
    }

    /// Root, with authentication enabled; its token.
    async fn enabled(&self) -> String {
        self.user("", "root").await;
        self.grant("", "root", "root").await;
        self.auth().auth_enable(pb::AuthEnableRequest {}).await.unwrap();
        self.log_in("root", "p").await.unwrap()
    }
}

/// A request of the user with that token.
fn with<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert("token", token.parse().unwrap());
    }
    request
}

fn nobody() -> (Code, String) {
    (Code::InvalidArgument, "etcdserver: user name is empty".to_owned())
}

fn denied() -> (Code, String) {
    (Code::PermissionDenied, "etcdserver: permission denied".to_owned())
}

/// Calls of which etcd, too, asks nobody who calls. Those of the second list are looked at by other tests: one request says
/// nothing of them.
const OPEN: [&str; 2] = ["/etcdserverpb.Auth/AuthStatus", "/etcdserverpb.Auth/Authenticate"];
const ELSEWHERE: [&str; 6] = [
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Cluster/MemberAdd",
    "/etcdserverpb.Cluster/MemberUpdate",
    "/v3electionpb.Election/Proclaim",
    "/v3electionpb.Election/Resign",
];

/// The answer to a call with one message, whose first field is "a" where it is bytes or text.
async fn call(channel: &Channel, path: &str) -> Result<(), Status> {
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap();
    let method = pool.get_service_by_name(service).unwrap().methods().find(|m| m.name() == method).unwrap();
    let first = method.input().get_field(1).map(|field| field.kind());
    let text = matches!(first, Some(prost_reflect::Kind::Bytes | prost_reflect::Kind::String));
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::try_from(path).unwrap();
    // A message of one field of bytes.
    let message = tokio_stream::once(Bytes::from_static(if text { b"a" } else { b"" }));
    let codec = tonic_prost::ProstCodec::<Bytes, ()>::default();
    let mut answers = client.streaming(Request::new(message), path, codec).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

/// A call that is not looked at here would be one that nobody guards.
#[tokio::test]
async fn nothing_is_done_for_nobody_once_authentication_is_enabled() {
    let served = Served::start().await;
    served.enabled().await;
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let mut looked = BTreeSet::new();
    for service in pool.services() {
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            if OPEN.contains(&path.as_str()) || ELSEWHERE.contains(&path.as_str()) {
                continue;
            }
            let answer = call(&served.channel, &path).await;
            // Who observes an election is not told why that ends.
            if path != "/v3electionpb.Election/Observe" {
                let Err(status) = answer else { panic!("{path} is done for nobody") };
                assert_eq!(status.message(), "etcdserver: user name is empty", "{path}");
            }
            looked.insert(path);
        }
    }
    assert!(looked.len() >= 40, "{looked:?}");
    let mut cluster = ClusterClient::new(served.channel.clone());
    let add = pb::MemberAddRequest { peer_ur_ls: vec!["http://x:1".to_owned()], is_learner: false };
    assert_eq!(error(cluster.member_add(add).await), nobody());
    let update = pb::MemberUpdateRequest { id: 1, peer_ur_ls: vec!["http://x:1".to_owned()] };
    assert_eq!(error(cluster.member_update(update).await), nobody());
    for branch in [true, false] {
        for step in [put("a", ""), get("a")] {
            let (mut success, mut failure) = (vec![step], vec![]);
            if branch {
                std::mem::swap(&mut success, &mut failure);
            }
            let txn = pb::TxnRequest { success, failure, ..Default::default() };
            assert_eq!(error(served.kv().txn(txn).await), nobody());
        }
    }
    assert_eq!(served.node.revision().get(), 1, "nothing was written");
}

#[tokio::test]
async fn a_user_may_do_what_its_roles_allow_with_keys() {
    let served = Served::start().await;
    let root = served.enabled().await;
    served.user(&root, "bob").await;
    served.permit(&root, "bob", Type::Readwrite, "a", "c").await;
    served.permit(&root, "bob", Type::Write, "w", "").await;
    let bob = served.log_in("bob", "p").await.unwrap();
    let put = |key: &'static str, prev_kv| {
        let request = pb::PutRequest { key: key.into(), prev_kv, ..Default::default() };
        with(&bob, request)
    };
    let mut kv = served.kv();
    assert!(kv.put(put("a", true)).await.is_ok());
    assert_eq!(error(kv.put(put("c", false)).await), denied());
    assert!(kv.put(put("w", false)).await.is_ok());
    assert_eq!(error(kv.put(put("w", true)).await), denied(), "the value before is read");
    let range = |key: &'static str, end: &'static str| {
        with(&bob, pb::RangeRequest { key: key.into(), range_end: end.into(), ..Default::default() })
    };
    assert_eq!(kv.range(range("a", "c")).await.unwrap().into_inner().count, 1);
    assert_eq!(error(kv.range(range("a", "d")).await), denied());
    assert_eq!(error(kv.range(range("w", "")).await), denied());
    assert_eq!(error(kv.range_stream(range("a", "\0")).await), denied());
    let delete = |key: &'static str, end: &'static str, prev_kv| {
        with(&bob, pb::DeleteRangeRequest { key: key.into(), range_end: end.into(), prev_kv })
    };
    assert_eq!(error(kv.delete_range(delete("a", "d", false)).await), denied());
    assert_eq!(error(kv.delete_range(delete("w", "", true)).await), denied());
    assert!(kv.delete_range(delete("w", "", false)).await.is_ok());
    let compare = pb::Compare { key: "x".into(), ..Default::default() };
    let txn = |compare, success, failure| with(&bob, pb::TxnRequest { compare, success, failure });
    assert!(kv.txn(txn(vec![], vec![super::put("a", "1"), get("b")], vec![])).await.is_ok());
    assert_eq!(error(kv.txn(txn(vec![compare], vec![], vec![])).await), denied());
    let prev_put = pb::PutRequest { key: "w".into(), prev_kv: true, ..Default::default() };
    let prev_put = super::of(pb::request_op::Request::RequestPut(prev_put));
    assert_eq!(error(kv.txn(txn(vec![], vec![prev_put], vec![])).await), denied());
    let prev_delete = pb::DeleteRangeRequest { key: "w".into(), prev_kv: true, ..Default::default() };
    let prev_delete = super::of(pb::request_op::Request::RequestDeleteRange(prev_delete));
    assert_eq!(error(kv.txn(txn(vec![], vec![prev_delete], vec![])).await), denied());
    // Whichever branch is run, and however deep.
    assert_eq!(error(kv.txn(txn(vec![], vec![], vec![get("x")])).await), denied());
    let inner = pb::TxnRequest { failure: vec![super::put("x", "")], ..Default::default() };
    let nested = super::of(pb::request_op::Request::RequestTxn(inner));
    assert_eq!(error(kv.txn(txn(vec![], vec![nested], vec![])).await), denied());
    let compaction = pb::CompactionRequest { revision: 2, physical: false };
    assert_eq!(error(kv.compact(with(&bob, compaction)).await), denied());
    assert!(kv.compact(with(&root, compaction)).await.is_ok());
    assert!(
        ClusterClient::new(served.channel.clone())
            .member_list(with(&bob, pb::MemberListRequest::default()))
            .await
            .is_ok()
    );
    // A user looks at itself and at its roles only.
    let mut auth = served.auth();
    let user = |name: &str| with(&bob, pb::AuthUserGetRequest { name: name.to_owned() });
    assert_eq!(auth.user_get(user("bob")).await.unwrap().into_inner().roles, ["bob"]);
    assert_eq!(error(auth.user_get(user("root")).await), denied());
    let role = |role: &str| with(&bob, pb::AuthRoleGetRequest { role: role.to_owned() });
    assert_eq!(auth.role_get(role("bob")).await.unwrap().into_inner().perm.len(), 2);
    assert_eq!(error(auth.role_get(role("root")).await), denied());
    assert_eq!(error(auth.auth_disable(with(&bob, pb::AuthDisableRequest {})).await), denied());
    assert_eq!(error(served.maintenance().defragment(with(&bob, pb::DefragmentRequest {})).await), denied());
    assert!(served.maintenance().status(with(&bob, pb::StatusRequest {})).await.is_ok());
}

#[tokio::test]
async fn a_lease_is_its_keys() {
    let served = Served::start().await;
    let root = served.enabled().await;
    served.user(&root, "bob").await;
    served.permit(&root, "bob", Type::Readwrite, "a", "").await;
    let bob = served.log_in("bob", "p").await.unwrap();
    let (mut kv, mut leases) = (served.kv(), served.leases());
    for id in [1, 2] {
        leases.lease_grant(with(&bob, pb::LeaseGrantRequest { ttl: 100, id })).await.unwrap();
    }
    let put = |key: &'static str, lease| pb::PutRequest { key: key.into(), lease, ..Default::default() };
    kv.put(with(&root, put("secret", 1))).await.unwrap();
    kv.put(with(&bob, put("a", 2))).await.unwrap();
    assert_eq!(error(kv.put(with(&bob, put("a", 1))).await), denied(), "it could be revoked then");
    let in_txn = super::of(pb::request_op::Request::RequestPut(put("a", 1)));
    let txn = pb::TxnRequest { success: vec![in_txn], ..Default::default() };
    assert_eq!(error(kv.txn(with(&bob, txn)).await), denied());
    let revoke = |id| with(&bob, pb::LeaseRevokeRequest { id });
    assert_eq!(error(leases.lease_revoke(revoke(1)).await), denied());
    let ttl = |id, keys| with(&bob, pb::LeaseTimeToLiveRequest { id, keys });
    assert_eq!(error(leases.lease_time_to_live(ttl(1, true)).await), denied());
    assert!(leases.lease_time_to_live(ttl(1, false)).await.is_ok());
    assert_eq!(leases.lease_time_to_live(ttl(2, true)).await.unwrap().into_inner().keys, ["a"]);
    assert_eq!(error(leases.lease_leases(with(&bob, pb::LeaseLeasesRequest {})).await), denied());
    assert_eq!(leases.lease_leases(with(&root, pb::LeaseLeasesRequest {})).await.unwrap().into_inner().leases.len(), 2);
    let renew = |id| {
        let mut request = Request::new(tokio_stream::once(pb::LeaseKeepAliveRequest { id }));
        request.metadata_mut().insert("token", bob.parse().unwrap());
        request
    };
    let renewed = leases.lease_keep_alive(renew(2)).await.unwrap().into_inner().message().await;
    assert_eq!(renewed.unwrap().unwrap().ttl, 100);
    let renewed = leases.lease_keep_alive(renew(1)).await.unwrap().into_inner().message().await;
    assert_eq!(error(renewed), denied());
    assert!(leases.lease_revoke(revoke(2)).await.is_ok());
}

#[tokio::test]
async fn a_watch_is_refused_by_a_cancel_in_etcds_words() {
    let served = Served::start().await;
    let root = served.enabled().await;
    served.user(&root, "bob").await;
    served.permit(&root, "bob", Type::Read, "a", "c").await;
    let bob = served.log_in("bob", "p").await.unwrap();
    let watch = |token: &str, key: &'static str, end: &'static str| {
        let create = pb::WatchCreateRequest { key: key.into(), range_end: end.into(), ..Default::default() };
        let request = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let (mut client, token) = (WatchClient::new(served.channel.clone()), token.to_owned());
        async move {
            let mut answers = client.watch(with(&token, tokio_stream::once(request))).await.unwrap().into_inner();
            answers.message().await.unwrap().unwrap()
        }
    };
    assert!(!watch(&bob, "a", "c").await.canceled);
    for (token, key, end, reason) in [
        (&*bob, "a", "d", "rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
        (&*bob, "", "\0", "rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
        ("", "a", "", "rpc error: code = InvalidArgument desc = etcdserver: user name is empty"),
        ("x.1", "a", "", "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"),
    ] {
        let answer = watch(token, key, end).await;
        let told = (answer.created, answer.canceled, answer.watch_id, answer.cancel_reason.as_str());
        assert_eq!(told, (true, true, -1, reason), "{key} {end:?}");
    }
}

#[tokio::test]
async fn tokens_end_with_the_password_and_with_the_user() {
    let served = Served::start().await;
    let mut auth = served.auth();
    let status = auth.auth_status(pb::AuthStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status, pb::AuthStatusResponse { header: header(1), enabled: false, auth_revision: 1 });
    let off = (Code::FailedPrecondition, "etcdserver: authentication is not enabled".to_owned());
    assert_eq!(error(served.log_in("root", "p").await), off);
    let root = served.enabled().await;
    let status = auth.auth_status(pb::AuthStatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.enabled, status.auth_revision), (true, 3));
    let wrong = (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password".to_owned());
    assert_eq!(error(served.log_in("root", "q").await), wrong);
    assert_eq!(error(served.log_in("nobody", "p").await), wrong);
    let options = Some(UserAddOptions { no_password: true });
    let user = pb::AuthUserAddRequest { name: "cn".to_owned(), options, ..Default::default() };
    auth.user_add(with(&root, user)).await.unwrap();
    let text = "auth: authentication failed, password was given for no password user";
    assert_eq!(error(served.log_in("cn", "").await), (Code::Unknown, text.to_owned()));
    served.user(&root, "bob").await;
    let look = |token: &str| {
        let (mut auth, request) = (served.auth(), with(token, pb::AuthUserGetRequest { name: "bob".to_owned() }));
        async move { auth.user_get(request).await.map(|answer| answer.into_inner().roles) }
    };
    let invalid = (Code::Unauthenticated, "etcdserver: invalid auth token".to_owned());
    let first = served.log_in("bob", "p").await.unwrap();
    assert!(look(&first).await.is_ok());
    let change =
        pb::AuthUserChangePasswordRequest { name: "bob".to_owned(), password: "q".to_owned(), ..Default::default() };
    auth.user_change_password(with(&root, change)).await.unwrap();
    assert_eq!(error(look(&first).await), invalid);
    assert_eq!(error(served.log_in("bob", "p").await), wrong);
    let second = served.log_in("bob", "q").await.unwrap();
    assert!(look(&second).await.is_ok());
    auth.user_delete(with(&root, pb::AuthUserDeleteRequest { name: "bob".to_owned() })).await.unwrap();
    assert_eq!(error(look(&second).await), invalid);
    auth.auth_disable(with(&root, pb::AuthDisableRequest {})).await.unwrap();
    assert!(served.put("a", "1").await.is_ok());
    auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    assert_eq!(error(look(&root).await), invalid, "disabling ended it");
}
