//! Users and roles of both servers: random changes of them, and calls of all kinds by several users.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use eddy_proto::authpb::{Permission, UserAddOptions};
use eddy_proto::etcdserverpb::auth_client::AuthClient;
use eddy_proto::etcdserverpb::cluster_client::ClusterClient;
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use eddy_proto::etcdserverpb::request_op::Request as Step;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::*;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::pair::Binaries;
use crate::support::Server;

/// Sequences, each on servers of their own, and calls in each.
const SEQUENCES: u64 = 6;
const CALLS: usize = 250;
/// etcd's answers on keys that hang on no lease have no order, and each range begins with another key: etcd mixes up
/// permissions whose ranges begin alike.
const RANGES: [(&str, &str); 4] = [("a", ""), ("b", "d"), ("c", "\0"), ("\0", "\0")];

/// A call.
#[derive(Clone, Debug)]
enum Call {
    Enable,
    Disable,
    Status,
    LogIn(&'static str, &'static str),
    UserAdd(&'static str, &'static str, bool),
    UserGet(&'static str),
    UserList,
    UserDelete(&'static str),
    Password(&'static str, &'static str),
    Grant(&'static str, &'static str),
    Revoke(&'static str, &'static str),
    RoleAdd(&'static str),
    RoleGet(&'static str),
    RoleList,
    RoleDelete(&'static str),
    Permit(&'static str, (&'static str, &'static str), i32),
    NoPermission(&'static str),
    Forbid(&'static str, (&'static str, &'static str)),
    Range(&'static str, &'static str),
    Put(&'static str, i64, bool),
    Delete(&'static str, &'static str, bool),
    Txn(&'static str, &'static str, &'static str),
    Compact,
    LeaseGrant(i64),
    LeaseRevoke(i64),
    LeaseLeft(i64, bool),
    LeaseRenew(i64),
    Leases,
    Watch(&'static str, &'static str),
    Members,
    MemberAdd,
    Alarm(i32),
    HashKv,
    Defragment,
}

fn draw(rng: &mut SmallRng) -> Call {
    let user = *["root", "root", "u", "v", "w", ""].choose(rng).unwrap_or(&"u");
    let role = *["root", "r", "s", "r", "s", ""].choose(rng).unwrap_or(&"r");
    let word = *["p", "p", "q", ""].choose(rng).unwrap_or(&"p");
    let range = RANGES[rng.random_range(0..RANGES.len())];
    let key = *["a", "b", "bb", "c", "d"].choose(rng).unwrap_or(&"a");
    let end = *["", "", "b", "c", "\0", "a"].choose(rng).unwrap_or(&"");
    let (lease, flag) = (rng.random_range(1..4), rng.random_bool(0.3));
    match rng.random_range(0..66) {
        0..3 => Call::Enable,
        3 => Call::Disable,
        4 => Call::Status,
        5..13 => Call::LogIn(user, word),
        13..16 => Call::UserAdd(user, word, rng.random_bool(0.15)),
        16 => Call::UserGet(user),
        17 => Call::UserList,
        18 => Call::UserDelete(user),
        19 => Call::Password(user, word),
        20..25 => Call::Grant(user, role),
        25 => Call::Revoke(user, role),
        26..28 => Call::RoleAdd(role),
        28 => Call::RoleGet(role),
        29 => Call::RoleList,
        30 => Call::RoleDelete(role),
        31..36 => Call::Permit(role, if flag { ("b", "a") } else { range }, rng.random_range(0..3)),
        36 => Call::NoPermission(role),
        37 => Call::Forbid(role, range),
        38..42 => Call::Range(key, end),
        42..47 => Call::Put(key, if flag { lease } else { 0 }, rng.random_bool(0.3)),
        47..49 => Call::Delete(key, end, flag),
        49..53 => Call::Txn(key, ["a", "b", "c"].choose(rng).unwrap_or(&"a"), "d"),
        53 => Call::Compact,
        54..56 => Call::LeaseGrant(lease),
        56 => Call::LeaseRevoke(lease),
        57 => Call::LeaseLeft(lease, flag),
        58 => Call::LeaseRenew(lease),
        59 => Call::Leases,
        60..62 => Call::Watch(key, end),
        62 => Call::Members,
        63 => Call::MemberAdd,
        64 => Call::Alarm(rng.random_range(0..2)),
        _ if flag => Call::Defragment,
        _ => Call::HashKv,
    }
}

/// One server, and the tokens that it gave.
struct Side {
    _server: Server,
    _dir: tempfile::TempDir,
    channel: Channel,
    tokens: BTreeMap<&'static str, String>,
}

impl Side {
    async fn start(binary: &std::path::Path, binaries: &Binaries) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("eddy-users-").tempdir_in(&binaries.scratch)?;
        let flags = [&binaries.flags[..], &["--bcrypt-cost=4"]].concat();
        let server = Server::start(binary, &dir.path().join("data"), &flags).await?;
        let channel = server.connect().await?;
        Ok(Self { _server: server, _dir: dir, channel, tokens: BTreeMap::new() })
    }

    fn with<T>(&self, by: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let token = match by {
            "nonsense" => Some("nonsense.1"),
            by => self.tokens.get(by).map(String::as_str),
        };
        if let Some(token) = token.and_then(|token| token.parse().ok()) {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    /// What a call of that user is answered.
    async fn ask(&mut self, by: &str, call: &Call) -> String {
        match self.answer(by, call).await {
            Ok(answer) => answer,
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        }
    }

    async fn answer(&mut self, by: &str, call: &Call) -> Result<String, Status> {
        let mut auth = AuthClient::new(self.channel.clone());
        let mut kv = KvClient::new(self.channel.clone());
        let mut lease = LeaseClient::new(self.channel.clone());
        let mut maintenance = MaintenanceClient::new(self.channel.clone());
        let mut cluster = ClusterClient::new(self.channel.clone());
        let name = |name: &str| name.to_owned();
        fn told<T: std::fmt::Debug>(answer: Response<T>) -> String {
            format!("{:?}", answer.into_inner())
        }
        macro_rules! ask {
            ($client:ident.$call:ident($message:expr)) => {
                told($client.$call(self.with(by, $message)).await?)
            };
        }
        Ok(match call.clone() {
            Call::Enable => ask!(auth.auth_enable(AuthEnableRequest {})),
            Call::Disable => ask!(auth.auth_disable(AuthDisableRequest {})),
            Call::Status => ask!(auth.auth_status(AuthStatusRequest {})),
            Call::LogIn(user, word) => {
                let request = AuthenticateRequest { name: name(user), password: name(word) };
                let answer = auth.authenticate(self.with(by, request)).await?.into_inner();
                self.tokens.insert(user, answer.token);
                format!("{:?}", answer.header)
            }
            Call::UserAdd(user, word, no_password) => {
                let options = Some(UserAddOptions { no_password });
                let request =
                    AuthUserAddRequest { name: name(user), password: name(word), options, ..Default::default() };
                ask!(auth.user_add(request))
            }
            Call::UserGet(user) => ask!(auth.user_get(AuthUserGetRequest { name: name(user) })),
            Call::UserList => ask!(auth.user_list(AuthUserListRequest {})),
            Call::UserDelete(user) => ask!(auth.user_delete(AuthUserDeleteRequest { name: name(user) })),
            Call::Password(user, word) => {
                let request =
                    AuthUserChangePasswordRequest { name: name(user), password: name(word), ..Default::default() };
                ask!(auth.user_change_password(request))
            }
            Call::Grant(user, role) => {
                ask!(auth.user_grant_role(AuthUserGrantRoleRequest { user: name(user), role: name(role) }))
            }
            Call::Revoke(user, role) => {
                ask!(auth.user_revoke_role(AuthUserRevokeRoleRequest { name: name(user), role: name(role) }))
            }
            Call::RoleAdd(role) => ask!(auth.role_add(AuthRoleAddRequest { name: name(role) })),
            Call::RoleGet(role) => ask!(auth.role_get(AuthRoleGetRequest { role: name(role) })),
            Call::RoleList => ask!(auth.role_list(AuthRoleListRequest {})),
            Call::RoleDelete(role) => ask!(auth.role_delete(AuthRoleDeleteRequest { role: name(role) })),
            Call::Permit(role, (key, end), kind) => {
                let perm = Some(Permission { perm_type: kind, key: key.into(), range_end: end.into() });
                ask!(auth.role_grant_permission(AuthRoleGrantPermissionRequest { name: name(role), perm }))
            }
            Call::NoPermission(role) => {
                ask!(auth.role_grant_permission(AuthRoleGrantPermissionRequest { name: name(role), perm: None }))
            }
            Call::Forbid(role, (key, end)) => {
                let (key, range_end) = (key.into(), end.into());
                ask!(auth.role_revoke_permission(AuthRoleRevokePermissionRequest { role: name(role), key, range_end }))
            }
            Call::Range(key, end) => {
                ask!(kv.range(RangeRequest { key: key.into(), range_end: end.into(), ..Default::default() }))
            }
            Call::Put(key, lease, prev_kv) => {
                ask!(kv.put(PutRequest { key: key.into(), lease, prev_kv, ..Default::default() }))
            }
            Call::Delete(key, end, prev_kv) => {
                ask!(kv.delete_range(DeleteRangeRequest { key: key.into(), range_end: end.into(), prev_kv }))
            }
            Call::Txn(compared, put, read) => {
                let compare = vec![Compare { key: compared.into(), ..Default::default() }];
                let put = PutRequest { key: put.into(), ..Default::default() };
                let range = RangeRequest { key: read.into(), ..Default::default() };
                let step = |step| RequestOp { request: Some(step) };
                let (success, failure) = (vec![step(Step::RequestPut(put))], vec![step(Step::RequestRange(range))]);
                ask!(kv.txn(TxnRequest { compare, success, failure }))
            }
            Call::Compact => ask!(kv.compact(CompactionRequest { revision: 1, physical: true })),
            Call::LeaseGrant(id) => ask!(lease.lease_grant(LeaseGrantRequest { ttl: 1000, id })),
            Call::LeaseRevoke(id) => ask!(lease.lease_revoke(LeaseRevokeRequest { id })),
            Call::LeaseLeft(id, keys) => {
                let request = self.with(by, LeaseTimeToLiveRequest { id, keys });
                let mut answer = lease.lease_time_to_live(request).await?.into_inner();
                answer.keys.sort();
                format!("{:?} {} {:?}", answer.header, answer.granted_ttl, answer.keys)
            }
            Call::LeaseRenew(id) => {
                let request = self.with(by, tokio_stream::once(LeaseKeepAliveRequest { id }));
                let mut answers = lease.lease_keep_alive(request).await?.into_inner();
                format!("{:?}", answers.message().await?)
            }
            Call::Leases => {
                let mut answer = lease.lease_leases(self.with(by, LeaseLeasesRequest {})).await?.into_inner();
                answer.leases.sort_by_key(|lease| lease.id);
                format!("{answer:?}")
            }
            Call::Watch(key, end) => {
                let create = WatchCreateRequest { key: key.into(), range_end: end.into(), ..Default::default() };
                let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
                let mut watch = WatchClient::new(self.channel.clone());
                // The half that asks stays open: etcd answers nothing to one that has ended.
                let requests = tokio_stream::StreamExt::chain(tokio_stream::once(request), tokio_stream::pending());
                let mut answers = watch.watch(self.with(by, requests)).await?.into_inner();
                format!("{:?}", answers.message().await?)
            }
            Call::Members => ask!(cluster.member_list(MemberListRequest { linearizable: true })),
            Call::MemberAdd => {
                // Nobody is added: only whether the caller might.
                let answer = cluster.member_promote(self.with(by, MemberPromoteRequest { id: 5 })).await;
                format!("{:?}", answer.map_err(|status| (status.code(), status.message().to_owned())).err())
            }
            Call::Alarm(action) => ask!(maintenance.alarm(AlarmRequest { action, ..Default::default() })),
            Call::HashKv => {
                let answer = maintenance.hash_kv(self.with(by, HashKvRequest { revision: 0 })).await?;
                format!("{:?}", answer.into_inner().header)
            }
            Call::Defragment => ask!(maintenance.defragment(DefragmentRequest {})),
        })
    }
}

/// Compares both servers. Tells how many calls were made alike.
///
/// # Errors
/// At the first difference, with all calls up to it.
pub async fn compare(binaries: &Binaries, seed: u64) -> Result<usize> {
    let mut alike = 0;
    let mut answers: BTreeMap<String, usize> = BTreeMap::new();
    for sequence in 0..SEQUENCES {
        let rng = &mut SmallRng::seed_from_u64(seed * 1000 + sequence);
        let (reference, subject) =
            tokio::join!(Side::start(&binaries.reference, binaries), Side::start(&binaries.subject, binaries));
        let (mut reference, mut subject) = (reference?, subject?);
        let mut log = vec![];
        for n in 0..CALLS {
            // Without root little else happens.
            let call = match n {
                0 => Call::UserAdd("root", "p", false),
                1 => Call::Grant("root", "root"),
                2 => Call::UserAdd("u", "p", false),
                3 => Call::RoleAdd("r"),
                4 => Call::Grant("u", "r"),
                n if n % 25 == 24 => Call::LogIn("root", "p"),
                _ => draw(rng),
            };
            let by = *["root", "root", "root", "u", "u", "v", "nobody", "nonsense"].choose(rng).unwrap_or(&"root");
            let (expected, found) = tokio::join!(reference.ask(by, &call), subject.ask(by, &call));
            log.push(format!("{by}: {call:?} -> {expected}"));
            if expected != found {
                bail!("users, seed {seed}, sequence {sequence}:\n{}\nbut eddy: {found}", log.join("\n"));
            }
            let kind = expected.split_once(": etcdserver: ").map_or("done", |(_, text)| text);
            *answers.entry(kind.to_owned()).or_default() += 1;
            alike += 1;
        }
    }
    println!("answers to users: {answers:?}");
    Ok(alike)
}
