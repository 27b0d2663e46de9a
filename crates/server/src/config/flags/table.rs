//! The table of etcd 3.7.3's flags: one row each.

use super::flag::{Flag, REMOVED, REPLICATION, boolean, duration, text};
use super::setters::{
    cors, counters, drop_bool, drop_duration, drop_int, drop_text, drop_uint, kubernetes_prefix, merge_policy, one_of,
    streams, to_bool, to_duration, to_i64, to_path, to_text, to_u64, urls, v2_deprecation,
};
use crate::config::gates;
use crate::config::value::{parse_list, parse_set};

const MEMBER: &str = "Member";
const CLUSTERING: &str = "Clustering";
const SECURITY: &str = "Security";
const MONITORING: &str = "Profiling and monitoring";
const LOGGING: &str = "Logging";
const FEATURES: &str = "Features";
const UNSAFE: &str = "Unsafe";
const NO_EFFECT: &str = "Taken without effect (a line at start says why)";
const REFUSED: &str = "Refused";

// Why flags do nothing.
const NO_RAFT: &str = "eddy has no raft: no replica waits for another";
const OWN_FILES: &str = "eddy keeps one checkpoint and the log behind it, by their size, and removes older ones itself";
const KEPT_FOR_MEMBERS: &str = "eddy keeps what each member lacks, however far behind it is";
const ONE_STORE: &str =
    "the log and the checkpoint are one store in --data-dir: of two disks one could be put back alone";
const NO_BBOLT: &str = "eddy does not keep its data in bbolt";
const NO_ROTATION: &str = "eddy does not rotate log files: let logrotate do it, with copytruncate";
const NO_TRACING: &str = "eddy sends no traces";
const NO_DISCOVERY: &str = "eddy has no discovery service";
const ALWAYS_COMPARED: &str = "eddy's replicas compare their states all the time";
const NOT_A_CLIENT: &str = "eddy is no client of its own client URLs";
const OLD: &str = "etcd ignores this flag of an old release too";
// What to do instead.
const NAME_THE_MEMBERS: &str = "name the members with --initial-cluster, since eddy has no discovery service";
const REMOVE_THE_MEMBERS: &str = "a member serves without the others: start it without this flag, then remove each lost \
     member with `etcdctl member remove`";

/// All of them, in the order of the help text.
pub static FLAGS: &[Flag] = &[
    text(
        "",
        "config-file",
        "",
        "YAML file with these settings; other flags and variables are then ignored.",
        drop_text,
    )
    .flag_only(),
    text(MEMBER, "name", "default", "Human-readable name of this member.", |c, v| to_text(&mut c.name, v)),
    text(MEMBER, "data-dir", "${name}.etcd, default.eddy", "Where everything is kept.", |c, v| {
        to_path(&mut c.data_dir, v)
    }),
    text(MEMBER, "listen-client-urls", "http://localhost:2379", "URLs to serve clients on.", |c, v| {
        urls(&mut c.listen_client_urls, v)
    }),
    text(
        MEMBER,
        "listen-client-http-urls",
        "",
        "URLs to serve HTTP only on; takes HTTP away from --listen-client-urls.",
        |c, v| urls(&mut c.listen_client_http_urls, v),
    ),
    text(MEMBER, "listen-peer-urls", "http://localhost:2380", "URLs to serve peers on.", |c, v| {
        urls(&mut c.listen_peer_urls, v)
    }),
    text(
        MEMBER,
        "quota-backend-bytes",
        "0",
        "Size of the data above which writes are refused; 0 is 2 GiB, negative is no limit.",
        |c, v| to_i64(&mut c.quota_backend_bytes, v),
    ),
    text(MEMBER, "max-txn-ops", "128", "Most operations in one transaction.", |c, v| to_u64(&mut c.max_txn_ops, v)),
    text(MEMBER, "max-request-bytes", "1572864", "Largest request, bytes.", |c, v| to_u64(&mut c.max_request_bytes, v)),
    text(
        MEMBER,
        "max-concurrent-streams",
        "4294967295",
        "Most streams that a client can have open on one connection.",
        streams,
    ),
    duration(
        MEMBER,
        "grpc-keepalive-min-time",
        "5s",
        "Shortest interval at which clients may ping (0 is 5m).",
        |c, v| to_duration(&mut c.grpc_keepalive_min_time, v),
    ),
    duration(MEMBER, "grpc-keepalive-interval", "2h", "Interval at which clients are pinged (0 is never).", |c, v| {
        to_duration(&mut c.grpc_keepalive_interval, v)
    }),
    duration(
        MEMBER,
        "grpc-keepalive-timeout",
        "20s",
        "How long a ping may stay unanswered before the connection is closed (0 is for ever).",
        |c, v| to_duration(&mut c.grpc_keepalive_timeout, v),
    ),
    boolean(MEMBER, "enable-grpc-gateway", "true", "Serve the API in JSON below /v3/ too.", |c, v| {
        to_bool(&mut c.enable_grpc_gateway, v)
    }),
    boolean(MEMBER, "socket-reuse-port", "false", "Set SO_REUSEPORT on listeners.", |c, v| {
        to_bool(&mut c.socket_reuse_port, v)
    })
    .flag_only(),
    text(
        CLUSTERING,
        "initial-advertise-peer-urls",
        "http://localhost:2380",
        "This member's peer URLs, as the others see them.",
        |c, v| urls(&mut c.initial_advertise_peer_urls, v),
    ),
    text(
        CLUSTERING,
        "initial-cluster",
        "default=http://localhost:2380",
        "Members at bootstrap as name=url,...",
        |c, v| to_text(&mut c.initial_cluster, v),
    ),
    text(CLUSTERING, "initial-cluster-state", "new", "'new' or 'existing'.", |c, v| {
        one_of(&mut c.initial_cluster_state, v, &["existing", "new"])
    }),
    text(CLUSTERING, "initial-cluster-token", "etcd-cluster", "Tells clusters with equal members apart.", |c, v| {
        to_text(&mut c.initial_cluster_token, v)
    }),
    text(
        CLUSTERING,
        "advertise-client-urls",
        "http://localhost:2379",
        "This member's client URLs, as clients see them.",
        |c, v| urls(&mut c.advertise_client_urls, v),
    ),
    text(
        CLUSTERING,
        "auto-compaction-retention",
        "0",
        "How much history to keep: a duration, hours, or revisions; 0 keeps all.",
        |c, v| to_text(&mut c.auto_compaction_retention, v),
    ),
    text(CLUSTERING, "auto-compaction-mode", "periodic", "'periodic' or 'revision'.", |c, v| {
        to_text(&mut c.auto_compaction_mode, v)
    }),
    duration(
        REPLICATION,
        "sync-interval",
        "5ms",
        "The longest that an entry waits to be batched with others before it is sent to peers.",
        |c, v| to_duration(&mut c.sync_interval, v),
    ),
    duration(
        REPLICATION,
        "join-timeout",
        "30s",
        "How long a new member of several waits for one of the others before it serves alone.",
        |c, v| to_duration(&mut c.join_timeout, v),
    ),
    text(
        REPLICATION,
        "kubernetes-prefix",
        "/registry/",
        "Where Kubernetes keeps its objects; counts when the cluster is founded, the same at all founders.",
        kubernetes_prefix,
    ),
    text(
        REPLICATION,
        "counters",
        "",
        "Integers of objects that add up, as apiVersion/Kind:.path[:min=number],...; counts as the one above.",
        counters,
    ),
    text(
        REPLICATION,
        "merge-policy",
        "",
        "A file that names counters and fields that merge as one value, instead of --counters; counts as the one above.",
        merge_policy,
    ),
    text(SECURITY, "cert-file", "", "Certificate shown to clients.", |c, v| to_path(&mut c.client_tls.cert_file, v))
        .flag_only(),
    text(SECURITY, "key-file", "", "Key of --cert-file.", |c, v| to_path(&mut c.client_tls.key_file, v)).flag_only(),
    text(
        SECURITY,
        "auth-token",
        "simple",
        "Tokens of users: simple, or jwt with its options (jwt,pub-key=...,priv-key=...,sign-method=...,ttl=...).",
        |c, v| to_text(&mut c.auth_token, v),
    ),
    text(SECURITY, "auth-token-ttl", "300", "Seconds that a simple token lasts when it is not used.", |c, v| {
        to_u64(&mut c.auth_token_ttl_s, v)
    }),
    text(SECURITY, "bcrypt-cost", "10", "How slow the hashes of passwords are made, between 4 and 31.", |c, v| {
        to_u64(&mut c.bcrypt_cost, v)
    }),
    boolean(SECURITY, "client-cert-auth", "false", "Clients must show a certificate.", |c, v| {
        to_bool(&mut c.client_tls.client_cert_auth, v)
    })
    .flag_only(),
    text(SECURITY, "client-crl-file", "", "Revoked client certificates.", |c, v| {
        to_path(&mut c.client_tls.crl_file, v)
    })
    .flag_only(),
    text(
        SECURITY,
        "client-cert-allowed-hostname",
        "",
        "Host names, one of which a client certificate needs.",
        |c, v| {
            c.client_tls.allowed_hostnames = parse_list(v);
            Ok(())
        },
    )
    .flag_only(),
    text(SECURITY, "trusted-ca-file", "", "CAs that client certificates must come from.", |c, v| {
        to_path(&mut c.client_tls.trusted_ca_file, v)
    })
    .flag_only(),
    boolean(SECURITY, "auto-tls", "false", "Generate a certificate for clients.", |c, v| {
        to_bool(&mut c.client_tls.auto_tls, v)
    })
    .flag_only(),
    text(SECURITY, "peer-cert-file", "", "Certificate shown to peers.", |c, v| to_path(&mut c.peer_tls.cert_file, v))
        .flag_only(),
    text(SECURITY, "peer-key-file", "", "Key of --peer-cert-file.", |c, v| to_path(&mut c.peer_tls.key_file, v))
        .flag_only(),
    boolean(SECURITY, "peer-client-cert-auth", "false", "Peers must show a certificate.", |c, v| {
        to_bool(&mut c.peer_tls.client_cert_auth, v)
    })
    .flag_only(),
    text(SECURITY, "peer-client-cert-file", "", "Certificate shown when dialling a peer.", |c, v| {
        to_path(&mut c.peer_tls.client_cert_file, v)
    })
    .flag_only(),
    text(SECURITY, "peer-client-key-file", "", "Key of --peer-client-cert-file.", |c, v| {
        to_path(&mut c.peer_tls.client_key_file, v)
    })
    .flag_only(),
    text(SECURITY, "peer-trusted-ca-file", "", "CAs that peer certificates must come from.", |c, v| {
        to_path(&mut c.peer_tls.trusted_ca_file, v)
    })
    .flag_only(),
    text(SECURITY, "peer-cert-allowed-cn", "", "Common names, one of which a peer certificate needs.", |c, v| {
        c.peer_tls.allowed_cns = parse_list(v);
        Ok(())
    })
    .flag_only(),
    text(SECURITY, "peer-cert-allowed-hostname", "", "Host names, one of which a peer certificate needs.", |c, v| {
        c.peer_tls.allowed_hostnames = parse_list(v);
        Ok(())
    })
    .flag_only(),
    boolean(SECURITY, "peer-auto-tls", "false", "Generate a certificate for peers.", |c, v| {
        to_bool(&mut c.peer_tls.auto_tls, v)
    })
    .flag_only(),
    text(SECURITY, "peer-crl-file", "", "Revoked peer certificates.", |c, v| to_path(&mut c.peer_tls.crl_file, v))
        .flag_only(),
    boolean(
        SECURITY,
        "peer-skip-client-san-verification",
        "false",
        "Do not compare a peer certificate's names with its address.",
        |c, v| to_bool(&mut c.peer_tls.skip_client_san_verify, v),
    )
    .flag_only(),
    text(SECURITY, "self-signed-cert-validity", "1", "Validity of generated certificates, years.", |c, v| {
        to_u64(&mut c.self_signed_cert_validity, v)
    }),
    text(SECURITY, "cipher-suites", "", "TLS 1.2 cipher suites by their Go names.", |c, v| {
        c.cipher_suites = parse_list(v);
        Ok(())
    }),
    text(SECURITY, "tls-min-version", "TLS1.2", "TLS1.2 or TLS1.3.", |c, v| to_text(&mut c.tls_min_version, v)),
    text(SECURITY, "tls-max-version", "", "TLS1.2 or TLS1.3; empty is the newest.", |c, v| {
        to_text(&mut c.tls_max_version, v)
    }),
    text(SECURITY, "cors", "*", "Origins that browsers may come from.", cors),
    text(SECURITY, "host-whitelist", "*", "Host names that plain HTTP requests may be addressed to.", |c, v| {
        c.host_whitelist = parse_set(v);
        Ok(())
    }),
    text(MONITORING, "metrics", "basic", "'extensive' adds latency histograms per RPC.", |c, v| {
        to_text(&mut c.metrics, v)
    }),
    text(MONITORING, "listen-metrics-urls", "", "URLs to serve /metrics and health on, beside the others.", |c, v| {
        urls(&mut c.listen_metrics_urls, v)
    }),
    text(LOGGING, "logger", "zap", "Only 'zap', the shape of the log lines.", |c, v| to_text(&mut c.log.logger, v)),
    text(LOGGING, "log-outputs", "default", "'default', 'stdout', 'stderr' or files.", |c, v| {
        c.log.outputs = parse_set(v);
        Ok(())
    }),
    text(LOGGING, "log-level", "info", "debug, info, warn, error, dpanic, panic or fatal.", |c, v| {
        to_text(&mut c.log.level, v)
    }),
    text(LOGGING, "log-format", "json", "json or console.", |c, v| to_text(&mut c.log.format, v)),
    duration(
        LOGGING,
        "warning-unary-request-duration",
        "300ms",
        "A unary request taking longer than this logs a warning (0 is 300ms).",
        |c, v| to_duration(&mut c.warning_unary_request_duration, v),
    ),
    duration(
        FEATURES,
        "warning-apply-duration",
        "100ms",
        "Applying a request for longer than this logs a warning.",
        |c, v| to_duration(&mut c.warning_apply_duration, v),
    ),
    duration(
        FEATURES,
        "watch-progress-notify-interval",
        "10m",
        "Interval of progress notifications on idle watches.",
        |c, v| to_duration(&mut c.watch_progress_notify_interval, v),
    ),
    text(
        FEATURES,
        "compaction-batch-limit",
        "1000",
        "Revisions that a compaction drops at a time (0 is 1000).",
        |c, v| to_i64(&mut c.compaction_batch_limit, v),
    ),
    duration(FEATURES, "compaction-sleep-interval", "10ms", "Pause after each such batch (0 is 10ms).", |c, v| {
        to_duration(&mut c.compaction_sleep_interval, v)
    }),
    text(FEATURES, "max-learners", "1", "Most members that do not vote.", |c, v| to_i64(&mut c.max_learners, v)),
    boolean(UNSAFE, "unsafe-no-fsync", "false", "Acknowledge writes before they are on disk.", |c, v| {
        to_bool(&mut c.unsafe_no_fsync, v)
    }),
    // Values are parsed all the same, so that a typo is found.
    boolean(NO_EFFECT, "socket-reuse-address", "false", "", drop_bool)
        .flag_only()
        .warns("eddy always sets SO_REUSEADDR, as Go does"),
    text(NO_EFFECT, "feature-gates", "", "", |c, v| gates::apply(&mut c.feature_gates, v))
        .warns("no feature gate of etcd changes what eddy does; /metrics shows them"),
    boolean(NO_EFFECT, "strict-reconfig-check", "true", "", drop_bool)
        .warns("eddy has no quorum that a change of members could lose"),
    text(NO_EFFECT, "client-cert-file", "", "", drop_text).flag_only().warns(NOT_A_CLIENT),
    text(NO_EFFECT, "client-key-file", "", "", drop_text).flag_only().warns(NOT_A_CLIENT),
    boolean(NO_EFFECT, "enable-pprof", "false", "", drop_bool).warns("eddy has no Go runtime to profile"),
    text(NO_EFFECT, "wal-dir", "", "", drop_text).warns(ONE_STORE),
    text(NO_EFFECT, "snapshot-count", "10000", "", drop_uint).warns(OWN_FILES),
    text(NO_EFFECT, "snapshot-catchup-entries", "5000", "", drop_uint).warns(KEPT_FOR_MEMBERS),
    text(NO_EFFECT, "max-snapshots", "5", "", drop_uint).warns(OWN_FILES),
    text(NO_EFFECT, "max-wals", "5", "", drop_uint).warns(OWN_FILES),
    text(NO_EFFECT, "heartbeat-interval", "100", "", |c, v| to_u64(&mut c.raft.heartbeat_interval_ms, v))
        .warns(NO_RAFT),
    text(NO_EFFECT, "election-timeout", "1000", "", |c, v| to_u64(&mut c.raft.election_timeout_ms, v)).warns(NO_RAFT),
    boolean(NO_EFFECT, "initial-election-tick-advance", "true", "", drop_bool).warns(NO_RAFT),
    boolean(NO_EFFECT, "pre-vote", "true", "", drop_bool).warns(NO_RAFT),
    duration(NO_EFFECT, "raft-read-timeout", "5s", "", drop_duration).flag_only().warns(NO_RAFT),
    duration(NO_EFFECT, "raft-write-timeout", "5s", "", drop_duration).flag_only().warns(NO_RAFT),
    text(NO_EFFECT, "backend-bbolt-freelist-type", "map", "", drop_text).warns(NO_BBOLT),
    duration(NO_EFFECT, "backend-batch-interval", "", "", drop_duration).warns(NO_BBOLT),
    text(NO_EFFECT, "backend-batch-limit", "0", "", drop_int).warns(NO_BBOLT),
    boolean(NO_EFFECT, "memory-mlock", "false", "", drop_bool).warns("eddy does not lock its memory"),
    text(NO_EFFECT, "bootstrap-defrag-threshold-megabytes", "0", "", drop_uint)
        .warns("eddy does not defragment at its start: use `etcdctl defrag`"),
    duration(NO_EFFECT, "corrupt-check-time", "0s", "", drop_duration).warns(ALWAYS_COMPARED),
    duration(NO_EFFECT, "compact-hash-check-time", "1m", "", |c, v| {
        to_duration(&mut c.raft.compact_hash_check_time, v)
    })
    .warns(ALWAYS_COMPARED),
    duration(NO_EFFECT, "downgrade-check-time", "5s", "", drop_duration)
        .warns("there is no version below this one to go back to"),
    boolean(NO_EFFECT, "enable-log-rotation", "false", "", drop_bool).warns(NO_ROTATION),
    text(NO_EFFECT, "log-rotation-config-json", "", "", drop_text).warns(NO_ROTATION),
    boolean(NO_EFFECT, "enable-distributed-tracing", "false", "", drop_bool).warns(NO_TRACING),
    text(NO_EFFECT, "distributed-tracing-address", "localhost:4317", "", drop_text).warns(NO_TRACING),
    text(NO_EFFECT, "distributed-tracing-service-name", "etcd", "", drop_text).warns(NO_TRACING),
    text(NO_EFFECT, "distributed-tracing-instance-id", "", "", drop_text).warns(NO_TRACING),
    text(NO_EFFECT, "distributed-tracing-sampling-rate", "0", "", drop_int).warns(NO_TRACING),
    text(NO_EFFECT, "v2-deprecation", "write-only", "", v2_deprecation).warns("eddy has no v2 store"),
    text(NO_EFFECT, "discovery-srv-name", "", "", drop_text).warns(NO_DISCOVERY),
    text(NO_EFFECT, "discovery-fallback", "exit", "", |c, v| {
        one_of(&mut c.raft.discovery_fallback, v, &["exit", "proxy"])
    })
    .flag_only()
    .warns(NO_DISCOVERY),
    duration(NO_EFFECT, "discovery-dial-timeout", "2s", "", drop_duration).flag_only().warns(NO_DISCOVERY),
    duration(NO_EFFECT, "discovery-request-timeout", "5s", "", drop_duration).flag_only().warns(NO_DISCOVERY),
    duration(NO_EFFECT, "discovery-keepalive-time", "2s", "", drop_duration).flag_only().warns(NO_DISCOVERY),
    duration(NO_EFFECT, "discovery-keepalive-timeout", "6s", "", drop_duration).flag_only().warns(NO_DISCOVERY),
    boolean(NO_EFFECT, "discovery-insecure-transport", "true", "", drop_bool).flag_only().warns(NO_DISCOVERY),
    boolean(NO_EFFECT, "discovery-insecure-skip-tls-verify", "false", "", drop_bool).flag_only().warns(NO_DISCOVERY),
    text(NO_EFFECT, "discovery-cert", "", "", drop_text).flag_only().warns(NO_DISCOVERY),
    text(NO_EFFECT, "discovery-key", "", "", drop_text).flag_only().warns(NO_DISCOVERY),
    text(NO_EFFECT, "discovery-cacert", "", "", drop_text).flag_only().warns(NO_DISCOVERY),
    text(NO_EFFECT, "discovery-user", "", "", drop_text).flag_only().warns(NO_DISCOVERY),
    text(NO_EFFECT, "discovery-password", "", "", drop_text).flag_only().warns(NO_DISCOVERY),
    boolean(REFUSED, "force-new-cluster", "false", "", drop_bool).refused(REMOVE_THE_MEMBERS),
    // Not ignored: a member that starts alone instead of joining loses data.
    text(REFUSED, "discovery-endpoints", "", "", drop_text).flag_only().refused(NAME_THE_MEMBERS),
    text(REFUSED, "discovery-token", "", "", drop_text).flag_only().refused(NAME_THE_MEMBERS),
    text(REFUSED, "discovery-srv", "", "", drop_text).refused(NAME_THE_MEMBERS),
    removed("cluster-active-size"),
    removed("cluster-remove-delay"),
    removed("cluster-sync-interval"),
    removed("config"),
    removed("force"),
    removed("max-result-buffer"),
    removed("max-retry-attempts"),
    removed("peer-heartbeat-interval"),
    removed("peer-election-timeout"),
    removed("retry-interval"),
    removed("snapshot"),
    removed("v"),
    removed("vv"),
];

const fn removed(name: &'static str) -> Flag {
    // Bools, as Go's IgnoredFlag is: `--v` alone must not swallow the next argument.
    boolean(REMOVED, name, "", "", drop_text).flag_only().warns(OLD)
}
