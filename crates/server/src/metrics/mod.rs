//! Counters and gauges under etcd's metric names, so that etcd's dashboards and alerts work unchanged. [`Metrics`] has a
//! typed field for each metric. The parts set the fields; `/metrics` prints them.

pub mod process;
mod register;
pub mod rpc;

use prometheus::{
    Encoder, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
};

pub use self::register::MetricsError;
use self::register::Register;
use crate::config::Config;
use crate::config::gates::GATES;
use crate::version::{ETCD_CLUSTER_VERSION, ETCD_VERSION};

/// The kinds of `eddy_peer_alarm`.
pub(crate) const PEER_ALARM_KINDS: [&str; 3] = ["clock", "below-floor", "away"];

impl Metrics {
    /// Removes the gauges of a peer that is no member any more. Counters stay, since they tell of the past.
    pub(crate) fn forget_peer(&self, peer: &str) {
        for gauges in
            [&self.peer_connected, &self.peer_entries_behind, &self.peer_bytes_behind, &self.peer_states_differ]
        {
            let _never_set = gauges.remove_label_values(&[peer]);
        }
        for kind in PEER_ALARM_KINDS {
            let _never_set = self.peer_alarm.remove_label_values(&[peer, kind]);
        }
    }
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $method:ident($name:literal, $help:literal $(, $arg:expr)*);)*) => {
        /// Everything that `/metrics` shows.
        pub struct Metrics {
            registry: Registry,
            process: process::Process,
            /// Counters per RPC.
            pub rpc: rpc::RpcMetrics,
            $($(#[$doc])* #[doc = concat!("`", $name, "`: ", $help)] pub $field: $type,)*
        }

        impl Metrics {
            /// All metrics at zero; `extensive` adds latency histograms per RPC.
            ///
            /// # Errors
            /// Never with the names in this module.
            pub fn new(extensive: bool) -> Result<Metrics, MetricsError> {
                let registry = Registry::new();
                let register = Register::new(&registry);
                $(let $field = register.$method($name, $help $(, $arg)*)?;)*
                let process = process::Process::register(&register)?;
                let rpc = rpc::RpcMetrics::register(&register, extensive)?;
                Ok(Metrics { process, rpc, $($field,)* registry })
            }
        }
    };
}

metrics! {
    has_leader: IntGauge = gauge("etcd_server_has_leader", "1 if a leader exists: every replica is its own.");
    is_leader: IntGauge = gauge("etcd_server_is_leader", "1 if this member is a leader: every replica is.");
    is_learner: IntGauge = gauge("etcd_server_is_learner", "1 if this member is a learner.");
    leader_changes_seen: IntCounter = counter("etcd_server_leader_changes_seen_total", "Changes of leader seen.");
    heartbeat_send_failures: IntCounter =
        counter("etcd_server_heartbeat_send_failures_total", "Heartbeats that failed; eddy sends none.");
    past_values_read: IntCounter =
        counter("eddy_past_values_read_total", "Replaced values that were read from disk for clients.");
    slow_apply: IntCounter = counter("etcd_server_slow_apply_total", "Requests that took long to apply.");
    slow_read_indexes: IntCounter =
        counter("etcd_server_slow_read_indexes_total", "Linearizable reads that waited long for a flush.");
    read_indexes_failed: IntCounter =
        counter("etcd_server_read_indexes_failed_total", "Linearizable reads that failed.");
    proposals_committed: IntGauge =
        gauge("etcd_server_proposals_committed_total", "Entries committed to this replica's journal.");
    proposals_applied: IntGauge = gauge("etcd_server_proposals_applied_total", "Entries applied by this replica.");
    proposals_pending: IntGauge = gauge("etcd_server_proposals_pending", "Writes waiting in the queue or for their flush.");
    proposals_failed: IntCounter = counter("etcd_server_proposals_failed_total", "Writes refused by queue or disk.");
    snapshot_apply_in_progress: IntGauge =
        gauge("etcd_server_snapshot_apply_in_progress_total", "1 while a snapshot of state is installed.");
    learner_promote_successes: IntCounter =
        counter("etcd_server_learner_promote_successes", "Learners promoted.");
    quota_backend_bytes: IntGauge = gauge("etcd_server_quota_backend_bytes", "Quota of the data, bytes.");
    server_id: IntGaugeVec = gauges("etcd_server_id", "1 for this member's id in hexadecimal.", &["server_id"]);
    server_version: IntGaugeVec =
        gauges("etcd_server_version", "1 for the etcd version that is implemented.", &["server_version"]);
    cluster_version: IntGaugeVec = gauges("etcd_cluster_version", "1 for the cluster version.", &["cluster_version"]);
    feature_enabled: IntGaugeVec =
        gauges("etcd_server_feature_enabled", "1 for a feature gate that is on.", &["name", "stage"]);
    health_success: IntCounter = counter("etcd_server_health_success", "Health checks that succeeded.");
    health_failures: IntCounter = counter("etcd_server_health_failures", "Health checks that failed.");
    healthcheck: IntGaugeVec = gauges("etcd_server_healthcheck", "Result of each check, 1 is good.", &["type", "name"]);
    healthchecks: IntCounterVec =
        counters("etcd_server_healthchecks_total", "Results of each check.", &["type", "name", "status"]);
    /// Refused, then answered ones.
    range_duration: [Histogram; 2] = succeeded("etcd_server_range_duration_seconds", "Time of a range.", 0.0001, 19);
    client_grpc_sent_bytes: IntCounter =
        counter("etcd_network_client_grpc_sent_bytes_total", "Bytes sent to gRPC clients.");
    client_grpc_received_bytes: IntCounter =
        counter("etcd_network_client_grpc_received_bytes_total", "Bytes received from gRPC clients.");
    active_peers: IntGaugeVec =
        gauges("etcd_network_active_peers", "1 while a peer is connected.", &["Local", "Remote"]);
    disconnected_peers: IntCounterVec =
        counters("etcd_network_disconnected_peers_total", "Connections to peers that ended.", &["Local", "Remote"]);
    peer_sent_bytes: IntCounterVec = counters("etcd_network_peer_sent_bytes_total", "Bytes sent to peers.", &["To"]);
    peer_received_bytes: IntCounterVec =
        counters("etcd_network_peer_received_bytes_total", "Bytes received from peers.", &["From"]);
    peer_sent_failures: IntCounterVec =
        counters("etcd_network_peer_sent_failures_total", "Attempts to reach a peer that failed.", &["To"]);
    peer_received_failures: IntCounterVec =
        counters("etcd_network_peer_received_failures_total", "Messages of a peer that were refused.", &["From"]);
    peer_round_trip: HistogramVec = seconds_each(
        "etcd_network_peer_round_trip_time_seconds", "Round trip to a peer.", 0.0001, 16, &["To"]
    );
    wal_fsync: Histogram = seconds("etcd_disk_wal_fsync_duration_seconds", "Time of a journal flush.", 0.001, 14);
    wal_write_bytes: IntGauge = gauge("etcd_disk_wal_write_bytes_total", "Bytes written to the journal.");
    wal_write: Histogram = seconds("etcd_disk_wal_write_duration_seconds", "Time to write a group.", 0.001, 14);
    backend_commit: Histogram =
        seconds("etcd_disk_backend_commit_duration_seconds", "Time from a group's start to its flush.", 0.001, 14);
    backend_defrag: Histogram = seconds("etcd_disk_backend_defrag_duration_seconds", "Time of a defragmentation.", 0.1, 13);
    backend_snapshot: Histogram = seconds("etcd_disk_backend_snapshot_duration_seconds", "Time of a snapshot.", 0.01, 17);
    defrag_inflight: IntGauge = gauge("etcd_disk_defrag_inflight", "1 while defragmenting.");
    db_total_size: IntGauge = gauge("etcd_mvcc_db_total_size_in_bytes", "What the data dir takes on disk, bytes.");
    db_total_size_in_use: IntGauge =
        gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Size of the live data, bytes.");
    db_open_read_transactions: IntGauge = gauge("etcd_mvcc_db_open_read_transactions", "Reads in flight.");
    put: IntCounter = counter("etcd_mvcc_put_total", "Puts seen by this member.");
    range: IntCounter = counter("etcd_mvcc_range_total", "Ranges seen by this member.");
    delete: IntCounter = counter("etcd_mvcc_delete_total", "Deletes seen by this member.");
    txn: IntCounter = counter("etcd_mvcc_txn_total", "Transactions seen by this member.");
    hash: Histogram = seconds("etcd_mvcc_hash_duration_seconds", "Time of a hash.", 0.01, 15);
    hash_rev: Histogram = seconds("etcd_mvcc_hash_rev_duration_seconds", "Time of a hash at a revision.", 0.01, 15);
    keys: IntGauge = gauge("etcd_debugging_mvcc_keys_total", "Keys that exist.");
    watch_streams: IntGauge = gauge("etcd_debugging_mvcc_watch_stream_total", "Open watch streams.");
    watchers: IntGauge = gauge("etcd_debugging_mvcc_watcher_total", "Watchers.");
    slow_watchers: IntGauge = gauge("etcd_debugging_mvcc_slow_watcher_total", "Watchers that lag and are caught up.");
    events: IntCounter = counter("etcd_debugging_mvcc_events_total", "Events sent.");
    pending_events: IntGauge = gauge("etcd_debugging_mvcc_pending_events_total", "Events waiting to be sent.");
    compact_revision: IntGauge = gauge("etcd_debugging_mvcc_compact_revision", "Revision of the last compaction.");
    current_revision: IntGauge = gauge("etcd_debugging_mvcc_current_revision", "The revision.");
    put_size: IntGauge = gauge("etcd_debugging_mvcc_total_put_size_in_bytes", "Bytes put by this member.");
    compaction_keys: IntCounter = counter("etcd_debugging_mvcc_db_compaction_keys_total", "Keys compacted.");
    compaction_last: IntGauge =
        gauge("etcd_debugging_mvcc_db_compaction_last", "Unix time of the last compaction, 0 since start.");
    lease_granted: IntCounter = counter("etcd_debugging_lease_granted_total", "Leases granted.");
    lease_revoked: IntCounter = counter("etcd_debugging_lease_revoked_total", "Leases revoked.");
    lease_renewed: IntCounter = counter("etcd_debugging_lease_renewed_total", "Leases kept alive.");
    lease_ttl: Histogram = seconds("etcd_debugging_lease_ttl_total", "TTLs of leases, seconds.", 1.0, 24);
    lease_expired: IntCounter = counter("etcd_debugging_server_lease_expired_total", "Leases expired.");
    auth_revision: IntGauge = gauge("etcd_debugging_auth_revision", "Revision of users and roles.");
    scrapes_in_flight: IntGauge = gauge("promhttp_metric_handler_requests_in_flight", "Scrapes being served.");
    scrapes: IntCounterVec = counters("promhttp_metric_handler_requests_total", "Scrapes by HTTP status.", &["code"]);
    peer_connected: IntGaugeVec = gauges("eddy_peer_connected", "1 while a session with the peer runs.", &["peer"]);
    peer_entries_behind: IntGaugeVec =
        gauges("eddy_peer_entries_behind", "Entries that the peer is not known to have.", &["peer"]);
    peer_bytes_behind: IntGaugeVec =
        gauges("eddy_peer_bytes_behind", "About how many bytes those take on the wire.", &["peer"]);
    peer_states_differ: IntGaugeVec =
        gauges("eddy_peer_states_differ", "1 when the peer has the same entries and another state.", &["peer"]);
    peer_alarm: IntGaugeVec =
        gauges("eddy_peer_alarm", "1 while something is wrong with the peer: its clock, its entries, or that it is away.", &["peer", "kind"]);
    peer_messages: IntCounterVec =
        counters("eddy_peer_messages_total", "Messages of the peer protocol.", &["peer", "direction"]);
    peer_received_entries: IntCounterVec =
        counters("eddy_peer_received_entries_total", "Entries a peer sent, by what they were: new, or here already.", &["peer", "kind"]);
    peer_requests_again: IntCounterVec =
        counters("eddy_peer_requests_again_total", "How often a peer was asked for everything again.", &["peer"]);
    peer_strangers: IntCounter =
        counter("eddy_peer_strangers_total", "Connections to the peer port of those who are no peers.");
    peer_entries_applied: IntCounter =
        counter("eddy_peer_entries_applied_total", "Entries of other replicas that were applied.");
    unsettled_keys: IntGauge =
        gauge("eddy_unsettled_keys", "Keys of which not every member is known to have all versions.");
    merges: IntCounterVec = counters("eddy_merges_total", "Merges of concurrent versions.", &["rule"]);
    merge_losses: IntCounterVec = counters("eddy_merge_losses_total", "What merges gave up: parts of versions.", &["rule"]);
    disk_bytes: IntGauge = gauge("eddy_disk_bytes", "Bytes the journal takes on disk, counted every 10 seconds at most.");
    disk_free_bytes: IntGaugeVec =
        gauges("eddy_disk_free_bytes", "Bytes free on the disk of the data dir, counted with eddy_disk_bytes.", &[]);
    quota_used_bytes: IntGauge = gauge("eddy_quota_used_bytes", "Bytes that count against the quota.");
    alarm: IntGaugeVec =
        gauges("eddy_alarm", "1 while an alarm stops writes of this member: nospace, corrupt or spaces.", &["kind"]);
    connections: IntGauge = gauge("eddy_connections", "Open connections.");
    connections_accepted: IntCounter = counter("eddy_connections_accepted_total", "Connections accepted.");
    accept_failures: IntCounter = counter("eddy_accept_failures_total", "Accepts that failed (out of descriptors).");
    tls_handshake_failures: IntCounter = counter("eddy_tls_handshake_failures_total", "TLS handshakes that failed.");
    writable: IntGauge = gauge("eddy_writable", "0 after a failed flush, until a restart, and while the disk is full or does not answer.");
}

impl Metrics {
    /// The metrics of a server with this configuration, constants filled in.
    ///
    /// # Errors
    /// As [`Metrics::new`].
    pub fn for_config(config: &Config) -> Result<Metrics, MetricsError> {
        let metrics = Metrics::new(config.extensive_metrics())?;
        metrics.has_leader.set(1);
        metrics.is_leader.set(1);
        metrics.leader_changes_seen.inc();
        metrics.writable.set(1);
        metrics.compact_revision.set(-1);
        metrics.current_revision.set(1);
        metrics.auth_revision.set(1);
        metrics.quota_backend_bytes.set(config.quota_bytes().and_then(|b| i64::try_from(b).ok()).unwrap_or(i64::MAX));
        metrics.server_version.with_label_values(&[ETCD_VERSION]).set(1);
        let cluster = ETCD_CLUSTER_VERSION.rsplit_once('.').map_or(ETCD_CLUSTER_VERSION, |(minor, _)| minor);
        metrics.cluster_version.with_label_values(&[cluster]).set(1);
        for (name, stage, _) in GATES {
            metrics.feature_enabled.with_label_values(&[name, stage]).set(i64::from(config.gate(name)));
        }
        for code in ["200", "500", "503"] {
            metrics.scrapes.with_label_values(&[code]).reset();
        }
        Ok(metrics)
    }

    /// The text that Prometheus scrapes.
    ///
    /// # Errors
    /// As [`Metrics::new`].
    pub fn text(&self) -> Result<Vec<u8>, MetricsError> {
        self.process.refresh();
        let mut text = Vec::with_capacity(128 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
