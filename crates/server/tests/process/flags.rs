//! Flags, variables and the configuration file, against what etcd 3.7.3 makes of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eddy_server::cli::{self, Action, Invocation, Notice};
use eddy_server::config::{AutoCompaction, file, url};
use expect_test::{Expect, expect};

use crate::support::config;

fn parse(args: &[&str], env: &[(&str, &str)]) -> Result<Invocation, String> {
    let args = args.iter().map(|arg| (*arg).to_owned());
    let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    match cli::parse(args, env) {
        Ok(Action::Serve(invocation)) => Ok(*invocation),
        Ok(Action::Print(text)) => Err(text),
        Err(err) => Err(err.to_string()),
    }
}

fn refused(args: &[&str], expect: Expect) {
    let text = parse(args, &[]).map(|invocation| format!("{:?}", invocation.config)).unwrap_err();
    expect.assert_eq(text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n").trim());
}

#[test]
fn every_way_to_write_a_flag_is_understood() {
    for args in [
        &["--max-txn-ops=7"][..],
        &["--max-txn-ops", "7"],
        &["-max-txn-ops", "7"],
        &["-max-txn-ops=7"],
        &["--max-txn-ops=1", "--max-txn-ops", "7"],
    ] {
        assert_eq!(config(args).max_txn_ops, 7, "{args:?}");
    }
    for (args, on) in [
        (&["--unsafe-no-fsync"][..], true),
        (&["--unsafe-no-fsync=true"], true),
        (&["-unsafe-no-fsync"], true),
        (&["--unsafe-no-fsync=false"], false),
        (&["--unsafe-no-fsync", "--unsafe-no-fsync=false"], false),
    ] {
        assert_eq!(config(args).unsafe_no_fsync, on, "{args:?}");
    }
    assert_eq!(config(&["--quota-backend-bytes", "-1"]).quota_bytes(), None);
    assert_eq!(config(&["--quota-backend-bytes", "5120"]).quota_bytes(), Some(5120));
    assert_eq!(config(&["--watch-progress-notify-interval=1h0m0s"]).watch_progress_notify_interval.as_secs(), 3600);
    assert_eq!(
        config(&["--warning-unary-request-duration=1µs"]).warning_unary_request_duration,
        Duration::from_micros(1)
    );
}

#[test]
fn nonsense_is_refused_by_name_with_the_closest_flag() {
    refused(
        &["--data-dirr=x"],
        expect![[r#"
            error: unexpected argument '--data-dirr' found
              tip: a similar argument exists: '--data-dir'
            Usage: eddy --data-dir <data-dir>
            For more information, try '--help'."#]],
    );
    refused(&["start"], expect![[r#""start" is not a valid flag"#]]);
    refused(
        &["--max-txn-ops=many"],
        expect![[r#"invalid value "many" for flag --max-txn-ops: expected a number of 0 or more"#]],
    );
    refused(
        &["--grpc-keepalive-interval=5"],
        expect![[r#"invalid value "5" for flag --grpc-keepalive-interval: time: missing unit in duration "5""#]],
    );
    refused(
        &["--client-cert-auth=maybe"],
        expect![[r#"invalid value "maybe" for flag --client-cert-auth: expected true or false"#]],
    );
    refused(
        &["--listen-client-urls=localhost:2379"],
        expect![[
            r#"invalid value "localhost:2379" for flag --listen-client-urls: URL scheme must be http, https, unix, or unixs: localhost:2379"#
        ]],
    );
    refused(
        &["--initial-cluster-state=old"],
        expect![[r#"invalid value "old" for flag --initial-cluster-state: expected one of existing, new"#]],
    );
    refused(
        &["--feature-gates=Fast=true"],
        expect![[r#"invalid value "Fast=true" for flag --feature-gates: unrecognized feature gate: Fast"#]],
    );
    refused(
        &["--counters=apps/v1/Deployment:spec.replicas"],
        expect![[
            r#"invalid value "apps/v1/Deployment:spec.replicas" for flag --counters: "spec.replicas" is no path of fields, as in .spec.replicas; what is declared does not lie in a list"#
        ]],
    );
    refused(
        &["--kubernetes-prefix=/registry"],
        expect![[
            r#"invalid value "/registry" for flag --kubernetes-prefix: a prefix begins and ends with '/', as in /registry/"#
        ]],
    );
}

#[test]
fn flags_that_contradict_each_other_are_refused_in_etcds_words() {
    refused(
        &["--listen-client-urls=http://127.0.0.1:1"],
        expect!["--advertise-client-urls is required when --listen-client-urls is set explicitly"],
    );
    refused(
        &["--listen-peer-urls=http://example.com:2380"],
        expect!["expected IP in URL for binding (http://example.com:2380)"],
    );
    refused(
        &["--listen-client-urls=https://127.0.0.1:1", "--advertise-client-urls=https://127.0.0.1:1"],
        expect![
            "TLS key/cert (--cert-file, --key-file) must be provided for client url https://127.0.0.1:1 with HTTPS scheme"
        ],
    );
    refused(
        &["--listen-metrics-urls=https://127.0.0.1:1"],
        expect!["client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url"],
    );
    refused(
        &["--listen-peer-urls=https://127.0.0.1:1"],
        expect!["cannot listen on TLS for 127.0.0.1:1: KeyFile and CertFile are not presented"],
    );
    refused(
        &["--tls-min-version=TLS1.1"],
        expect![[r#"unexpected TLS version "TLS1.1" (must be one of: TLS1.2, TLS1.3)"#]],
    );
    refused(
        &["--tls-min-version=TLS1.3", "--tls-max-version=TLS1.2"],
        expect!["min version (TLS1.3) is greater than max version (TLS1.2)"],
    );
    refused(
        &["--tls-min-version=TLS1.3", "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
        expect!["cipher suites cannot be configured when only TLS1.3 is enabled"],
    );
    refused(&["--cipher-suites=TLS_NONE"], expect![[r#"unexpected TLS cipher suite "TLS_NONE""#]]);
    refused(
        &["--cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA"],
        expect![[
            r#"TLS cipher suite "TLS_RSA_WITH_AES_128_CBC_SHA" is not supported by eddy: of TLS 1.2 it has only suites with forward secrecy and authenticated encryption (TLS_ECDHE_* with GCM or CHACHA20_POLY1305)"#
        ]],
    );
    refused(&["--cert-file=a"], expect!["KeyFile and CertFile must both be present[key: , cert: a]"]);
    refused(
        &["--cert-file=a", "--key-file=b", "--client-cert-auth"],
        expect!["client certificates are required, but there is no CA to check them with: give --trusted-ca-file"],
    );
    refused(
        &["--heartbeat-interval=300"],
        expect!["--election-timeout[1000ms] should be at least as 5 times as --heartbeat-interval[300ms]"],
    );
    refused(&["--auto-compaction-mode=sometimes"], expect![[r#"unknown auto-compaction-mode "sometimes""#]]);
    refused(
        &["--auto-compaction-retention=later"],
        expect![[r#"error parsing CompactionRetention: time: invalid duration "later""#]],
    );
    refused(&["--log-outputs=default,stdout"], expect![[r#"multi logoutput for "default" is not supported yet"#]]);
    refused(
        &["--discovery-srv=example.com"],
        expect![
            "eddy does not take --discovery-srv: name the members with --initial-cluster, since eddy has no discovery service"
        ],
    );
    refused(
        &["--feature-gates=LeaseCheckpointPersist=true"],
        expect!["enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint"],
    );
    refused(
        &[
            "--listen-client-urls=http://127.0.0.1:1",
            "--advertise-client-urls=http://127.0.0.1:1",
            "--listen-client-http-urls=http://127.0.0.1:1",
        ],
        expect![
            "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url http://127.0.0.1:1"
        ],
    );
}

#[test]
fn a_new_member_must_be_in_its_cluster_under_its_advertised_urls() {
    let bootstrap = |args: &[&str]| config(args).check_bootstrap().map_err(|err| err.to_string());
    assert_eq!(bootstrap(&[]), Ok(()));
    assert_eq!(bootstrap(&["--name=a"]), Ok(()), "the cluster's default follows the name");
    assert_eq!(
        bootstrap(&["--name=a", "--initial-cluster=b=http://localhost:2380"]).unwrap_err(),
        "couldn't find local name \"a\" in the initial cluster configuration"
    );
    assert_eq!(
        bootstrap(&["--initial-cluster=default=http://localhost:9"]).unwrap_err(),
        "--initial-cluster has default=http://localhost:9 but missing from --initial-advertise-peer-urls=http://localhost:2380"
    );
    assert_eq!(
        bootstrap(&["--initial-cluster=default=http://localhost:2380,x=http://localhost:2380"]).unwrap_err(),
        "initial cluster default=http://localhost:2380,x=http://localhost:2380 has duplicate url"
    );
}

#[test]
fn what_follows_from_other_flags_follows() {
    assert_eq!(config(&[]).data_dir, PathBuf::from("default.eddy"));
    assert_eq!(config(&["--name=a"]).data_dir, PathBuf::from("a.etcd"));
    for (mode, retention, expected) in [
        ("periodic", "0", AutoCompaction::Off),
        ("periodic", "5", AutoCompaction::Periodic(Duration::from_secs(5 * 3600))),
        ("periodic", "90s", AutoCompaction::Periodic(Duration::from_secs(90))),
        ("revision", "1000", AutoCompaction::Revision(1000)),
        ("revision", "0", AutoCompaction::Off),
    ] {
        let args = [format!("--auto-compaction-mode={mode}"), format!("--auto-compaction-retention={retention}")];
        let config = config(&[&args[0], &args[1]]);
        assert_eq!(config.auto_compaction().unwrap(), expected, "{mode} {retention}");
    }
}

const FILES: &str = "eddy keeps one checkpoint and the log behind it, by their size, and removes older ones itself";

#[test]
fn variables_set_flags_and_unknown_ones_are_only_noted() {
    let env = [("ETCD_MAX_TXN_OPS", "9"), ("ETCD_COLOUR", "red"), ("PATH", "/"), ("ETCD_NAME", "")];
    let invocation = parse(&["--snapshot-count=5", "--wal-dir=w", "--max-snapshots=9"], &env).unwrap();
    assert_eq!(invocation.config.max_txn_ops, 9);
    assert_eq!(
        invocation.notices,
        [
            Notice::UnknownVariable("ETCD_COLOUR".into()),
            Notice::UsedVariable("ETCD_MAX_TXN_OPS".into(), "9".into()),
            Notice::UnknownVariable("ETCD_NAME".into()),
            Notice::Deprecated("--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8."),
            Notice::NoEffect(
                "wal-dir",
                "the log and the checkpoint are one store in --data-dir: of two disks one could be put back alone"
            ),
            Notice::NoEffect("snapshot-count", FILES),
            Notice::NoEffect("max-snapshots", FILES),
        ]
    );
    let shadowed = parse(&["--max-txn-ops=1"], &env).unwrap_err();
    assert!(shadowed.contains("\"ETCD_MAX_TXN_OPS\" is shadowed by corresponding command-line flag"), "{shadowed}");
    let invalid = parse(&[], &[("ETCD_MAX_TXN_OPS", "x")]).unwrap_err();
    assert!(invalid.starts_with("invalid value \"x\" for ETCD_MAX_TXN_OPS (flag --max-txn-ops)"), "{invalid}");
}

#[test]
fn version_and_help_print_and_stop() {
    let version = parse(&["--version"], &[]).unwrap_err();
    assert!(version.lines().any(|line| line == "etcd Version: 3.7.3"), "{version}");
    for args in [["--help"], ["-h"]] {
        let help = parse(&args, &[]).unwrap_err();
        assert!(help.contains("--listen-client-urls 'http://localhost:2379'"), "{help}");
        assert!(!help.contains("cluster-active-size"), "flags that etcd only ignores are not listed");
    }
}

const SAMPLE: &str = "
name: 'node'
data-dir:
wal-dir:
snapshot-count: 10000
heartbeat-interval: 100
quota-backend-bytes: 0
listen-client-urls: http://127.0.0.1:2379,http://127.0.0.1:4001
advertise-client-urls: http://127.0.0.1:2379
cors:
discovery:
discovery-fallback: 'proxy'
proxy: 'off'
proxy-read-timeout: 0
initial-cluster: node=http://localhost:2380
strict-reconfig-check: false
enable-pprof: true
client-transport-security:
  cert-file: c.pem
  key-file: k.pem
  client-cert-auth: true
  trusted-ca-file: ca.pem
  unknown-key: 1
peer-transport-security:
  auto-tls: true
  allowed-cn: [a, b]
log-level: debug
log-outputs: [stderr]
auto-compaction-mode: periodic
auto-compaction-retention: \"1\"
cipher-suites: [
  TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
  TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
]
tls-min-version: 'TLS1.2'
tls-max-version: 'TLS1.3'
watch-progress-notify-interval: 600000000000
";

#[test]
fn the_configuration_file_is_etcds() {
    let config = file::parse(SAMPLE, Path::new("sample.yml")).unwrap().finish().unwrap();
    assert_eq!(config.name, "node");
    assert_eq!(config.data_dir, PathBuf::from("node.etcd"), "a null is as if the key were not there");
    assert_eq!(url::join(&config.listen_client_urls), "http://127.0.0.1:2379,http://127.0.0.1:4001");
    assert_eq!(config.client_tls.trusted_ca_file, PathBuf::from("ca.pem"));
    assert!(config.client_tls.client_cert_auth);
    assert_eq!(config.peer_tls.allowed_cns, ["a", "b"]);
    assert_eq!(config.cipher_suites.len(), 2);
    assert_eq!(config.log.level, "debug");
    assert_eq!(config.log.outputs, ["stderr"]);
    let idle: Vec<_> = config.flags_without_effect().map(|(flag, _)| flag).collect();
    assert_eq!(idle, ["strict-reconfig-check", "enable-pprof", "snapshot-count", "heartbeat-interval"]);
    assert_eq!(config.cors, ["*"]);
    assert_eq!(config.watch_progress_notify_interval, Duration::from_secs(600));

    let refused = |text: &str| file::parse(text, Path::new("f.yml")).unwrap_err().to_string();
    assert_eq!(
        refused("watch-progress-notify-interval: 10m"),
        "invalid value \"10m\" for watch-progress-notify-interval in the configuration file: durations are numbers of nanoseconds here (600000000000 for 10m)"
    );
    let parsed = |text: &str| file::parse(text, Path::new("f.yml")).unwrap();
    let list = "kubernetes-prefix: /k8s/\ncounters: ['v1/B:.n:min=-1', a/v1/A:.n]";
    let rules = parsed(list).rules();
    assert_eq!(rules.to_string(), "prefix /k8s/, counters a/v1/A:.n,v1/B:.n:min=-1, atomic none");
    assert_eq!(parsed("counters: v1/B:.n:min=-1,a/v1/A:.n\nkubernetes-prefix: /k8s/").rules(), rules);
    assert_eq!(
        refused("counters: [v1/Pod:.spec.nodeName]"),
        "invalid value \"v1/Pod:.spec.nodeName\" for counters in the configuration file: v1/Pod:.spec.nodeName cannot be \
         a counter: the rules say how that field, or what it lies in, is merged"
    );
    assert_eq!(refused("peer-transport-security: 5"), "invalid peer-transport-security");
    assert_eq!(refused("- a"), "error parsing f.yml: expected a map of settings");
    assert!(refused("a: [").starts_with("error parsing f.yml: "));
}

#[test]
fn a_configuration_file_takes_the_place_of_flags_and_variables() {
    let dir = tempfile::tempdir().unwrap();
    let path = crate::support::write(dir.path(), "eddy.yml", "name: from-file\n");
    for (args, env) in [
        (vec!["--config-file", &path, "--name=flag"], vec![("ETCD_MAX_TXN_OPS", "9")]),
        (vec!["--name=flag"], vec![("ETCD_CONFIG_FILE", path.as_str())]),
    ] {
        let invocation = parse(&args, &env).unwrap();
        assert_eq!(invocation.config.name, "from-file");
        assert_eq!(invocation.config.max_txn_ops, 128);
    }
    let missing = parse(&["--config-file=/nowhere/eddy.yml"], &[]).unwrap_err();
    assert!(missing.starts_with("open /nowhere/eddy.yml: "), "{missing}");
}
