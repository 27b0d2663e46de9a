//! Messages and gRPC services, generated from the `.proto` files in `/proto`; nothing else.
//!
//! All `bytes` fields are [`Bytes`](prost::bytes::Bytes). The generated code is committed, so that a build needs neither
//! protoc nor a build script; `tests/generated.rs` keeps it true and rewrites it with `EDDY_REGENERATE=1`.

pub mod codec;

/// The etcd v3 API: KV, Watch, Lease, Cluster, Maintenance, Auth.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod etcdserverpb {
    include!("gen/etcdserverpb.rs");
}

/// Keys and their changes, as the etcd API shows them.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod mvccpb {
    include!("gen/mvccpb.rs");
}

/// Users, roles and permissions of the etcd API.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod authpb {
    include!("gen/authpb.rs");
}

/// Locks, as etcd's server takes them for its clients.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod v3lockpb {
    include!("gen/v3lockpb.rs");
}

/// Elections, as etcd's server holds them for its clients.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod v3electionpb {
    include!("gen/v3electionpb.rs");
}

/// The descriptors of etcd's messages, encoded: a set of files without comments. With them JSON becomes protobuf and back.
pub const DESCRIPTORS: &[u8] = include_bytes!("gen/etcd.bin");

/// The gRPC health checking protocol (`grpc.health.v1`), which etcd serves for the service name "" alone.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod health {
    include!("gen/grpc.health.v1.rs");
}

/// How eddies talk to each other.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod peer {
    include!("gen/eddy.peer.v1.rs");
}

/// What operators ask of an eddy.
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod admin {
    include!("gen/eddy.admin.v1.rs");
}
