//! Counters per RPC, as etcd's dashboards know them. All exist from the start. They are found by path without formatting
//! or allocating, since that runs for every request.

use std::collections::HashMap;

use parking_lot::RwLock;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec};
use tonic::Code;

use super::register::{MetricsError, Register};

/// Shape of an RPC, with the label value that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One request, one response.
    Unary,
    /// One request, many responses.
    ServerStream,
    /// Many of both.
    BidiStream,
}

impl Shape {
    fn label(self) -> &'static str {
        match self {
            Unary => "unary",
            ServerStream => "server_stream",
            BidiStream => "bidi_stream",
        }
    }
}

use Shape::{BidiStream, ServerStream, Unary};

/// All RPCs of etcd 3.7.3's server, and our own.
const METHODS: &[(&str, &[(&str, Shape)])] = &[
    (
        "etcdserverpb.KV",
        &[
            ("Range", Unary),
            ("RangeStream", ServerStream),
            ("Put", Unary),
            ("DeleteRange", Unary),
            ("Txn", Unary),
            ("Compact", Unary),
        ],
    ),
    ("etcdserverpb.Watch", &[("Watch", BidiStream)]),
    (
        "etcdserverpb.Lease",
        &[
            ("LeaseGrant", Unary),
            ("LeaseRevoke", Unary),
            ("LeaseKeepAlive", BidiStream),
            ("LeaseTimeToLive", Unary),
            ("LeaseLeases", Unary),
        ],
    ),
    (
        "etcdserverpb.Cluster",
        &[
            ("MemberAdd", Unary),
            ("MemberRemove", Unary),
            ("MemberUpdate", Unary),
            ("MemberList", Unary),
            ("MemberPromote", Unary),
        ],
    ),
    (
        "etcdserverpb.Maintenance",
        &[
            ("Alarm", Unary),
            ("Status", Unary),
            ("Defragment", Unary),
            ("Hash", Unary),
            ("HashKV", Unary),
            ("Snapshot", ServerStream),
            ("MoveLeader", Unary),
            ("Downgrade", Unary),
        ],
    ),
    (
        "etcdserverpb.Auth",
        &[
            ("AuthEnable", Unary),
            ("AuthDisable", Unary),
            ("AuthStatus", Unary),
            ("Authenticate", Unary),
            ("UserAdd", Unary),
            ("UserGet", Unary),
            ("UserList", Unary),
            ("UserDelete", Unary),
            ("UserChangePassword", Unary),
            ("UserGrantRole", Unary),
            ("UserRevokeRole", Unary),
            ("RoleAdd", Unary),
            ("RoleGet", Unary),
            ("RoleList", Unary),
            ("RoleDelete", Unary),
            ("RoleGrantPermission", Unary),
            ("RoleRevokePermission", Unary),
        ],
    ),
    ("grpc.health.v1.Health", &[("Check", Unary), ("List", Unary), ("Watch", ServerStream)]),
    (
        "v3electionpb.Election",
        &[("Campaign", Unary), ("Proclaim", Unary), ("Leader", Unary), ("Observe", ServerStream), ("Resign", Unary)],
    ),
    ("v3lockpb.Lock", &[("Lock", Unary), ("Unlock", Unary)]),
    (
        "eddy.admin.v1.Admin",
        &[("Status", Unary), ("Merges", Unary), ("Leap", Unary), ("Declare", Unary), ("Explain", Unary)],
    ),
];

/// gRPC codes in the order of their numbers, by the names that Go gives them.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// More client versions than this share the label value `other`: clients choose the text.
const CLIENT_VERSIONS_MAX: usize = 32;

/// Names an RPC in the [`RpcMetrics`] that found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodId(usize);

/// The counters of one RPC.
pub struct Method {
    /// Its shape.
    pub shape: Shape,
    /// Its path: `/service/method`.
    pub path: String,
    /// Calls begun.
    pub started: IntCounter,
    /// Messages received.
    pub received: IntCounter,
    /// Messages sent.
    pub sent: IntCounter,
    /// Time from start to end, seconds, with `--metrics=extensive`.
    pub handling: Option<Histogram>,
    handled: [IntCounter; 17],
}

impl Method {
    /// Counts a call's end.
    pub fn handled(&self, code: Code) {
        let index = usize::try_from(i32::from(code)).unwrap_or(2);
        self.handled.get(index).unwrap_or(&self.handled[2]).inc();
    }
}

/// A client's version, and its unary and streaming calls.
type ClientVersion = (Box<[u8]>, [IntCounter; 2]);

/// The counters of all RPCs.
pub struct RpcMetrics {
    methods: Vec<Method>,
    by_path: HashMap<String, usize>,
    client_requests: IntCounterVec,
    /// `etcd_server_client_requests_total` by client version, found without formatting.
    client_versions: RwLock<Vec<ClientVersion>>,
}

impl RpcMetrics {
    pub(super) fn register(register: &Register<'_>, extensive: bool) -> Result<RpcMetrics, MetricsError> {
        const LABELS: [&str; 3] = ["grpc_type", "grpc_service", "grpc_method"];
        let started = register.counters("grpc_server_started_total", "RPCs begun.", &LABELS)?;
        let received = register.counters("grpc_server_msg_received_total", "RPC messages received.", &LABELS)?;
        let sent = register.counters("grpc_server_msg_sent_total", "RPC messages sent.", &LABELS)?;
        let handled = register.counters(
            "grpc_server_handled_total",
            "RPCs ended, with or without success.",
            &[LABELS[0], LABELS[1], LABELS[2], "grpc_code"],
        )?;
        let handling = match extensive {
            true => {
                let opts = HistogramOpts::new("grpc_server_handling_seconds", "Time of an RPC from start to end.");
                Some(register.add(HistogramVec::new(opts, &LABELS))?)
            }
            false => None,
        };
        let (mut methods, mut by_path) = (Vec::new(), HashMap::new());
        for (service, rpcs) in METHODS {
            for (name, shape) in *rpcs {
                let labels = [shape.label(), *service, *name];
                let path = format!("/{service}/{name}");
                let method = Method {
                    shape: *shape,
                    path: path.clone(),
                    started: started.with_label_values(&labels),
                    received: received.with_label_values(&labels),
                    sent: sent.with_label_values(&labels),
                    handling: handling.as_ref().map(|vec| vec.with_label_values(&labels)),
                    handled: CODES.map(|code| handled.with_label_values(&[labels[0], labels[1], labels[2], code])),
                };
                by_path.insert(path, methods.len());
                methods.push(method);
            }
        }
        let client_requests = register.counters(
            "etcd_server_client_requests_total",
            "RPCs by kind and client version.",
            &["type", "client_api_version"],
        )?;
        Ok(RpcMetrics { methods, by_path, client_requests, client_versions: RwLock::new(Vec::new()) })
    }

    /// The number of the RPC with this path (`/service/method`); `None` if etcd has none such.
    pub fn find(&self, path: &str) -> Option<MethodId> {
        self.by_path.get(path).map(|index| MethodId(*index))
    }

    /// The counters of an RPC.
    pub fn method(&self, id: MethodId) -> &Method {
        &self.methods[id.0]
    }

    /// Whether etcd has a service of this name.
    pub fn has_service(&self, service: &str) -> bool {
        METHODS.iter().any(|(name, _)| *name == service)
    }

    /// Counts a call under the version that its client names in the metadata `client-api-version`.
    pub fn count_client(&self, shape: Shape, version: &[u8]) {
        let column = usize::from(shape != Unary);
        if let Some((_, counters)) = self.client_versions.read().iter().find(|(known, _)| **known == *version) {
            counters[column].inc();
            return;
        }
        let mut known = self.client_versions.write();
        let label = match known.len() < CLIENT_VERSIONS_MAX {
            true => String::from_utf8_lossy(version).into_owned(),
            false => "other".to_owned(),
        };
        let counter = |kind: &str| self.client_requests.with_label_values(&[kind, label.as_str()]);
        let counters = [counter("unary"), counter("stream")];
        counters[column].inc();
        if known.len() < CLIENT_VERSIONS_MAX {
            known.push((version.into(), counters));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::METHODS;

    #[test]
    fn every_rpc_of_the_admin_service_is_known() {
        let declared = include_str!("../../../../proto/eddy/admin.proto").lines().filter_map(|line| {
            let (name, _) = line.trim().strip_prefix("rpc ")?.split_once('(')?;
            Some(name)
        });
        let of_admin = METHODS.iter().filter(|(service, _)| *service == "eddy.admin.v1.Admin");
        let known: Vec<&str> = of_admin.flat_map(|(_, rpcs)| rpcs.iter().map(|(name, _)| *name)).collect();
        assert_eq!(known, declared.collect::<Vec<_>>());
    }
}
