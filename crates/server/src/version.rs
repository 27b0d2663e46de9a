//! Which etcd this build stands for.

/// The etcd release whose API, flags and data model eddy implements; clients switch features by it.
pub const ETCD_VERSION: &str = "3.7.3";

/// The cluster version that goes with [`ETCD_VERSION`].
pub const ETCD_CLUSTER_VERSION: &str = "3.7.0";
