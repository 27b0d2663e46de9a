//! The paths of the gateway, and the RPCs behind them. The names are etcd 3.7.3's.

use prost_reflect::MessageDescriptor;

use super::json;

/// Path and RPC.
const ROUTES: &[(&str, &str)] = &[
    ("/v3/kv/range", "/etcdserverpb.KV/Range"),
    ("/v3/kv/put", "/etcdserverpb.KV/Put"),
    ("/v3/kv/deleterange", "/etcdserverpb.KV/DeleteRange"),
    ("/v3/kv/txn", "/etcdserverpb.KV/Txn"),
    ("/v3/kv/compaction", "/etcdserverpb.KV/Compact"),
    ("/v3/watch", "/etcdserverpb.Watch/Watch"),
    ("/v3/lease/grant", "/etcdserverpb.Lease/LeaseGrant"),
    ("/v3/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("/v3/kv/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("/v3/lease/keepalive", "/etcdserverpb.Lease/LeaseKeepAlive"),
    ("/v3/lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("/v3/kv/lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("/v3/lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("/v3/kv/lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("/v3/cluster/member/add", "/etcdserverpb.Cluster/MemberAdd"),
    ("/v3/cluster/member/remove", "/etcdserverpb.Cluster/MemberRemove"),
    ("/v3/cluster/member/update", "/etcdserverpb.Cluster/MemberUpdate"),
    ("/v3/cluster/member/list", "/etcdserverpb.Cluster/MemberList"),
    ("/v3/cluster/member/promote", "/etcdserverpb.Cluster/MemberPromote"),
    ("/v3/maintenance/alarm", "/etcdserverpb.Maintenance/Alarm"),
    ("/v3/maintenance/status", "/etcdserverpb.Maintenance/Status"),
    ("/v3/maintenance/defragment", "/etcdserverpb.Maintenance/Defragment"),
    ("/v3/maintenance/hash", "/etcdserverpb.Maintenance/Hash"),
    ("/v3/maintenance/hashkv", "/etcdserverpb.Maintenance/HashKV"),
    ("/v3/maintenance/snapshot", "/etcdserverpb.Maintenance/Snapshot"),
    ("/v3/maintenance/transfer-leadership", "/etcdserverpb.Maintenance/MoveLeader"),
    ("/v3/maintenance/downgrade", "/etcdserverpb.Maintenance/Downgrade"),
    ("/v3/auth/enable", "/etcdserverpb.Auth/AuthEnable"),
    ("/v3/auth/disable", "/etcdserverpb.Auth/AuthDisable"),
    ("/v3/auth/status", "/etcdserverpb.Auth/AuthStatus"),
    ("/v3/auth/authenticate", "/etcdserverpb.Auth/Authenticate"),
    ("/v3/auth/user/add", "/etcdserverpb.Auth/UserAdd"),
    ("/v3/auth/user/get", "/etcdserverpb.Auth/UserGet"),
    ("/v3/auth/user/list", "/etcdserverpb.Auth/UserList"),
    ("/v3/auth/user/delete", "/etcdserverpb.Auth/UserDelete"),
    ("/v3/auth/user/changepw", "/etcdserverpb.Auth/UserChangePassword"),
    ("/v3/auth/user/grant", "/etcdserverpb.Auth/UserGrantRole"),
    ("/v3/auth/user/revoke", "/etcdserverpb.Auth/UserRevokeRole"),
    ("/v3/auth/role/add", "/etcdserverpb.Auth/RoleAdd"),
    ("/v3/auth/role/get", "/etcdserverpb.Auth/RoleGet"),
    ("/v3/auth/role/list", "/etcdserverpb.Auth/RoleList"),
    ("/v3/auth/role/delete", "/etcdserverpb.Auth/RoleDelete"),
    ("/v3/auth/role/grant", "/etcdserverpb.Auth/RoleGrantPermission"),
    ("/v3/auth/role/revoke", "/etcdserverpb.Auth/RoleRevokePermission"),
    ("/v3/lock/lock", "/v3lockpb.Lock/Lock"),
    ("/v3/lock/unlock", "/v3lockpb.Lock/Unlock"),
    ("/v3/election/campaign", "/v3electionpb.Election/Campaign"),
    ("/v3/election/proclaim", "/v3electionpb.Election/Proclaim"),
    ("/v3/election/leader", "/v3electionpb.Election/Leader"),
    ("/v3/election/observe", "/v3electionpb.Election/Observe"),
    ("/v3/election/resign", "/v3electionpb.Election/Resign"),
];

/// An RPC, as the gateway needs to know it.
#[derive(Clone, Debug)]
pub struct Rpc {
    /// Its path in gRPC.
    pub path: &'static str,
    pub(super) input: MessageDescriptor,
    pub(super) output: MessageDescriptor,
    /// Whether the client sends many messages.
    pub(super) many_in: bool,
    /// Whether the server answers with many.
    pub(super) many_out: bool,
}

/// The RPC behind a path; `None` where etcd has none.
pub(super) fn find(path: &str) -> Option<Rpc> {
    // What etcd called them before 3.4 is still answered.
    let tail = path.strip_prefix("/v3beta/").or_else(|| path.strip_prefix("/v3/"))?;
    let (_, rpc) = ROUTES.iter().find(|(route, _)| route.strip_prefix("/v3/") == Some(tail))?;
    let (service, method) = rpc.strip_prefix('/')?.split_once('/')?;
    let service = json::pool()?.get_service_by_name(service)?;
    let method = service.methods().find(|known| known.name() == method)?;
    Some(Rpc {
        path: rpc,
        input: method.input(),
        output: method.output(),
        many_in: method.is_client_streaming(),
        many_out: method.is_server_streaming(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_rpc() {
        for (path, rpc) in ROUTES {
            assert_eq!(find(path).map(|found| found.path), Some(*rpc), "{path}");
            assert!(find(&format!("{path}/")).is_none());
        }
        assert_eq!(find("/v3beta/kv/put").map(|found| found.path), Some("/etcdserverpb.KV/Put"));
        assert!(find("/v3/").is_none() && find("/v3/nothing").is_none() && find("/health").is_none());
        let streams = |path| find(path).map(|rpc| (rpc.many_in, rpc.many_out));
        assert_eq!(streams("/v3/watch"), Some((true, true)));
        assert_eq!(streams("/v3/lease/keepalive"), Some((true, true)));
        assert_eq!(streams("/v3/maintenance/snapshot"), Some((false, true)));
        assert_eq!(streams("/v3/election/observe"), Some((false, true)));
        assert_eq!(streams("/v3/kv/txn"), Some((false, false)));
    }
}
