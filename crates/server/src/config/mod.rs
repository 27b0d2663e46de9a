//! The validated configuration: etcd 3.7.3's flags, environment variables and configuration file as one [`Config`]. Parsing
//! is in [`flags`] and [`file`], rules across flags in [`validate`], the file of the merge policy in [`policy`].

pub mod file;
pub mod flags;
pub mod gates;
pub mod policy;
pub mod url;
pub mod validate;
pub mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use eddy_crdt::merge::{AtomicRule, CounterRule, ENGINE, Rules};

use self::url::Url;

/// Where `--listen-client-urls` and `--advertise-client-urls` point unless told otherwise.
pub const DEFAULT_CLIENT_URL: &str = "http://localhost:2379";
/// Where `--listen-peer-urls` and `--initial-advertise-peer-urls` point unless told otherwise.
pub const DEFAULT_PEER_URL: &str = "http://localhost:2380";
/// `--warning-unary-request-duration` unless told otherwise.
const SLOW_REQUEST_DEFAULT: Duration = Duration::from_millis(300);
/// `--name` unless told otherwise.
pub const DEFAULT_NAME: &str = "default";

/// The files and rules of one side's TLS (`--cert-file`... or `--peer-cert-file`...). Paths are empty when not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM certificate chain shown to clients.
    pub cert_file: PathBuf,
    /// PEM private key of `cert_file`.
    pub key_file: PathBuf,
    /// Certificate shown when this process is the client; `cert_file` if empty.
    pub client_cert_file: PathBuf,
    /// Key of `client_cert_file`.
    pub client_key_file: PathBuf,
    /// PEM bundle that client certificates must chain to; given, it also makes them required.
    pub trusted_ca_file: PathBuf,
    /// Whether clients must show a certificate.
    pub client_cert_auth: bool,
    /// Revocation list (DER or PEM), read again for every handshake.
    pub crl_file: PathBuf,
    /// Whether to generate a self-signed certificate when none is given.
    pub auto_tls: bool,
    /// Common names of which a client certificate must have one; empty allows all.
    pub allowed_cns: Vec<String>,
    /// Host names of which a client certificate must be valid for one; empty allows all.
    pub allowed_hostnames: Vec<String>,
    /// Peers only: do not compare a certificate's names with the address it comes from.
    pub skip_client_san_verify: bool,
}

impl TlsFiles {
    /// Whether there is no certificate at all.
    pub fn is_empty(&self) -> bool {
        self.cert_file.as_os_str().is_empty() && self.key_file.as_os_str().is_empty()
    }
}

/// The rule of automatic compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Never.
    Off,
    /// Keep what is younger than this.
    Periodic(Duration),
    /// Keep this many revisions.
    Revision(i64),
}

/// Settings of logging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// `debug`, `info`, `warn`, `error`, `dpanic`, `panic` or `fatal`.
    pub level: String,
    /// `json` or `console`.
    pub format: String,
    /// `default`, `stderr`, `stdout`, `systemd/journal` or file paths.
    pub outputs: Vec<String>,
    /// Always `zap`, the shape of the lines.
    pub logger: String,
}

/// The whole configuration, validated. Field names are the flags'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Human-readable name of this member.
    pub name: String,
    /// Folder of all data; `<name>.etcd` for a given name and `default.eddy` for none.
    pub data_dir: PathBuf,
    /// URLs that serve gRPC, and HTTP unless `listen_client_http_urls` is given.
    pub listen_client_urls: Vec<Url>,
    /// URLs that serve HTTP only; given, they take HTTP away from `listen_client_urls`.
    pub listen_client_http_urls: Vec<Url>,
    /// URLs that serve `/metrics` and health only.
    pub listen_metrics_urls: Vec<Url>,
    /// URLs that serve other replicas.
    pub listen_peer_urls: Vec<Url>,
    /// Client URLs of this member in MemberList.
    pub advertise_client_urls: Vec<Url>,
    /// Peer URLs of this member in MemberList.
    pub initial_advertise_peer_urls: Vec<Url>,
    /// `name=url,...` of the members at bootstrap.
    pub initial_cluster: String,
    /// Part of the cluster id at bootstrap.
    pub initial_cluster_token: String,
    /// `new` or `existing`.
    pub initial_cluster_state: String,
    /// TLS towards clients.
    pub client_tls: TlsFiles,
    /// TLS towards peers.
    pub peer_tls: TlsFiles,
    /// `simple`, or `jwt` with its options.
    pub auth_token: String,
    /// How long a simple token lasts that is not used, seconds.
    pub auth_token_ttl_s: u64,
    /// How slow the hashes of passwords are made.
    pub bcrypt_cost: u64,
    /// Go names of allowed TLS 1.2 cipher suites; empty for the default.
    pub cipher_suites: Vec<String>,
    /// `TLS1.2`, `TLS1.3` or empty.
    pub tls_min_version: String,
    /// `TLS1.2`, `TLS1.3` or empty.
    pub tls_max_version: String,
    /// How long a generated certificate is valid, years.
    pub self_signed_cert_validity: u64,
    /// Origins allowed by CORS; `*` for all.
    pub cors: Vec<String>,
    /// Host names that plain HTTP requests may be addressed to; `*` or empty for all.
    pub host_whitelist: Vec<String>,
    /// `periodic` or `revision`; use [`Config::auto_compaction`].
    pub auto_compaction_mode: String,
    /// A duration, hours or revisions; use [`Config::auto_compaction`].
    pub auto_compaction_retention: String,
    /// Size of the data in bytes above which writes are refused; 0 for 2 GiB, negative for no limit.
    pub quota_backend_bytes: i64,
    /// Most operations in one transaction.
    pub max_txn_ops: u64,
    /// Largest request, bytes.
    pub max_request_bytes: u64,
    /// Most concurrent streams per HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Shortest interval at which clients may ping.
    pub grpc_keepalive_min_time: Duration,
    /// Interval at which clients are pinged; zero turns it off.
    pub grpc_keepalive_interval: Duration,
    /// How long a ping may stay unanswered; zero turns pings off.
    pub grpc_keepalive_timeout: Duration,
    /// Whether to set SO_REUSEPORT.
    pub socket_reuse_port: bool,
    /// Log lines.
    pub log: LogConfig,
    /// `basic`, or `extensive` for latency histograms per RPC.
    pub metrics: String,
    /// Acknowledge writes before they are on disk.
    pub unsafe_no_fsync: bool,
    /// Whether the API is served in JSON, too.
    pub enable_grpc_gateway: bool,
    /// Interval of progress notifications on idle watches that asked for them; zero for the default of 10 minutes.
    pub watch_progress_notify_interval: Duration,
    /// Applying a request for longer than this logs a warning.
    pub warning_apply_duration: Duration,
    /// A unary request taking longer than this logs a warning.
    pub warning_unary_request_duration: Duration,
    /// Most revisions removed in one step of a compaction; 0 for the default of 1000.
    pub compaction_batch_limit: i64,
    /// Pause between two steps of a compaction; zero for the default of 10 ms.
    pub compaction_sleep_interval: Duration,
    /// Most members that do not vote.
    pub max_learners: i64,
    /// Feature gates by name.
    pub feature_gates: BTreeMap<String, bool>,
    /// How long an entry waits at most to be batched with others before it is sent to peers.
    pub sync_interval: Duration,
    /// How long a new data dir of a cluster with several members waits for one of them before it serves alone.
    pub join_timeout: Duration,
    /// Where Kubernetes keeps its objects, if this member founds its cluster.
    pub kubernetes_prefix: String,
    /// Integers that add up instead of being overwritten, if this member founds its cluster.
    pub counters: Vec<CounterRule>,
    /// Fields that merge as one value, if this member founds its cluster.
    pub atomic: Vec<AtomicRule>,
    /// The newest merge engine that counts as known: that of this build. No flag sets it; tests stand for other builds.
    pub merge_engine: u32,
    /// Values that only etcd's cross-flag rules read.
    pub raft: RaftFlags,
    /// Names of the flags that were given, by flag, variable or file.
    pub explicit: BTreeSet<String>,
    /// Those of them that keep the process from starting.
    pub refused: BTreeSet<&'static str>,
}

/// Flags that do nothing, kept because etcd's validation reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftFlags {
    /// `--heartbeat-interval`, milliseconds.
    pub heartbeat_interval_ms: u64,
    /// `--election-timeout`, milliseconds.
    pub election_timeout_ms: u64,
    /// `--compact-hash-check-time`.
    pub compact_hash_check_time: Duration,
    /// `--discovery-fallback`.
    pub discovery_fallback: String,
}

impl Default for Config {
    fn default() -> Self {
        let url = |text| Url::parse_list(text).unwrap_or_default();
        Config {
            name: DEFAULT_NAME.to_owned(),
            data_dir: PathBuf::new(),
            listen_client_urls: url(DEFAULT_CLIENT_URL),
            listen_client_http_urls: Vec::new(),
            listen_metrics_urls: Vec::new(),
            listen_peer_urls: url(DEFAULT_PEER_URL),
            advertise_client_urls: url(DEFAULT_CLIENT_URL),
            initial_advertise_peer_urls: url(DEFAULT_PEER_URL),
            initial_cluster: default_initial_cluster(),
            initial_cluster_token: "etcd-cluster".to_owned(),
            initial_cluster_state: "new".to_owned(),
            client_tls: TlsFiles::default(),
            peer_tls: TlsFiles::default(),
            cipher_suites: Vec::new(),
            tls_min_version: "TLS1.2".to_owned(),
            tls_max_version: String::new(),
            self_signed_cert_validity: 1,
            auth_token: "simple".to_owned(),
            auth_token_ttl_s: 300,
            bcrypt_cost: 10,
            cors: vec!["*".to_owned()],
            host_whitelist: vec!["*".to_owned()],
            auto_compaction_mode: "periodic".to_owned(),
            auto_compaction_retention: "0".to_owned(),
            quota_backend_bytes: 0,
            max_txn_ops: 128,
            max_request_bytes: 1_572_864,
            max_concurrent_streams: u32::MAX,
            grpc_keepalive_min_time: Duration::from_secs(5),
            grpc_keepalive_interval: Duration::from_secs(2 * 3600),
            grpc_keepalive_timeout: Duration::from_secs(20),
            socket_reuse_port: false,
            log: LogConfig {
                level: "info".to_owned(),
                format: "json".to_owned(),
                outputs: vec!["default".to_owned()],
                logger: "zap".to_owned(),
            },
            metrics: "basic".to_owned(),
            unsafe_no_fsync: false,
            enable_grpc_gateway: true,
            watch_progress_notify_interval: Duration::ZERO,
            warning_apply_duration: Duration::from_millis(100),
            warning_unary_request_duration: SLOW_REQUEST_DEFAULT,
            compaction_batch_limit: 0,
            compaction_sleep_interval: Duration::ZERO,
            max_learners: 1,
            feature_gates: gates::defaults(),
            sync_interval: Duration::from_millis(5),
            join_timeout: Duration::from_secs(30),
            kubernetes_prefix: "/registry/".to_owned(),
            counters: Vec::new(),
            atomic: Vec::new(),
            merge_engine: ENGINE,
            raft: RaftFlags {
                heartbeat_interval_ms: 100,
                election_timeout_ms: 1000,
                compact_hash_check_time: Duration::from_secs(60),
                discovery_fallback: "exit".to_owned(),
            },
            explicit: BTreeSet::new(),
            refused: BTreeSet::new(),
        }
    }
}

/// `--initial-cluster` when none is given.
pub(crate) fn default_initial_cluster() -> String {
    format!("{DEFAULT_NAME}={DEFAULT_PEER_URL}")
}

impl Config {
    /// The quota in bytes, `None` for no limit.
    pub fn quota_bytes(&self) -> Option<u64> {
        match self.quota_backend_bytes {
            0 => Some(2 * 1024 * 1024 * 1024),
            bytes => u64::try_from(bytes).ok(),
        }
    }

    /// The duration from which on a unary request is logged.
    pub fn slow_request(&self) -> Duration {
        // etcd has no way to say "always".
        if self.warning_unary_request_duration.is_zero() {
            return SLOW_REQUEST_DEFAULT;
        }
        self.warning_unary_request_duration
    }

    /// Whether latency histograms per RPC are wanted.
    pub fn extensive_metrics(&self) -> bool {
        self.metrics == "extensive"
    }

    /// What a cluster that this member founds merges by.
    pub fn rules(&self) -> Rules {
        let prefix = self.kubernetes_prefix.clone().into();
        let (counters, atomic) = (self.counters.clone(), self.atomic.clone());
        Rules { prefix, counters, atomic, engine: self.merge_engine, ..Rules::default() }
    }

    /// What the flags ask of a cluster that merges by these rules, if that is something else. Flags that were not given
    /// ask for nothing.
    pub fn asks_for_other_rules(&self, rules: &Rules) -> Option<Rules> {
        let mut asked = rules.clone();
        if self.was_given("kubernetes-prefix") {
            asked.prefix = self.rules().prefix;
        }
        if self.was_given("counters") || self.was_given("merge-policy") {
            asked.counters = self.rules().counters;
        }
        if self.was_given("merge-policy") {
            asked.atomic = self.rules().atomic;
        }
        (!asked.is_declared_like(rules)).then_some(asked)
    }

    /// Whether a flag was given (rather than left at its default).
    pub fn was_given(&self, flag: &str) -> bool {
        self.explicit.contains(flag)
    }
}
