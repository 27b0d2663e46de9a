//! What giving a flag does: it works, or it warns, or it is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use eddy_server::cli::{self, Action, Notice};
use eddy_server::config::Config;
use eddy_server::config::flags::{self, Effect, FLAGS, Flag, Kind};

/// All that etcd 3.7.3 lists, in the order of its sources.
const ETCD: &str = "data-dir wal-dir listen-peer-urls listen-client-urls listen-client-http-urls listen-metrics-urls \
    max-snapshots max-wals name snapshot-count heartbeat-interval election-timeout initial-election-tick-advance \
    quota-backend-bytes backend-bbolt-freelist-type backend-batch-interval backend-batch-limit max-txn-ops \
    max-request-bytes grpc-keepalive-min-time grpc-keepalive-interval grpc-keepalive-timeout socket-reuse-port \
    socket-reuse-address max-concurrent-streams raft-read-timeout raft-write-timeout initial-advertise-peer-urls \
    advertise-client-urls discovery-endpoints discovery-token discovery-dial-timeout discovery-request-timeout \
    discovery-keepalive-time discovery-keepalive-timeout discovery-insecure-transport \
    discovery-insecure-skip-tls-verify discovery-cert discovery-key discovery-cacert discovery-user \
    discovery-password discovery-srv discovery-srv-name initial-cluster initial-cluster-token strict-reconfig-check \
    pre-vote cert-file key-file client-cert-file client-key-file client-cert-auth client-crl-file \
    client-cert-allowed-hostname trusted-ca-file auto-tls peer-cert-file peer-key-file peer-client-cert-file \
    peer-client-key-file peer-client-cert-auth peer-trusted-ca-file peer-auto-tls self-signed-cert-validity \
    peer-crl-file peer-cert-allowed-cn peer-cert-allowed-hostname cipher-suites peer-skip-client-san-verification \
    tls-min-version tls-max-version cors host-whitelist logger log-outputs log-level log-format \
    enable-log-rotation log-rotation-config-json auto-compaction-retention auto-compaction-mode enable-pprof metrics \
    enable-distributed-tracing distributed-tracing-address distributed-tracing-service-name \
    distributed-tracing-instance-id distributed-tracing-sampling-rate auth-token bcrypt-cost auth-token-ttl \
    enable-grpc-gateway corrupt-check-time compact-hash-check-time compaction-batch-limit compaction-sleep-interval \
    watch-progress-notify-interval downgrade-check-time warning-apply-duration warning-unary-request-duration \
    memory-mlock bootstrap-defrag-threshold-megabytes max-learners snapshot-catchup-entries unsafe-no-fsync \
    force-new-cluster feature-gates config-file discovery-fallback initial-cluster-state v2-deprecation";

/// What etcd does not have.
const OWN: [&str; 5] = ["sync-interval", "join-timeout", "kubernetes-prefix", "counters", "merge-policy"];

fn names(of: impl Fn(&Flag) -> bool) -> BTreeSet<&'static str> {
    FLAGS.iter().filter(|flag| of(flag)).map(|flag| flag.name).collect()
}

/// A value that is not the default.
fn sample(flag: &Flag) -> String {
    let text = match (flag.kind, flag.name) {
        (Kind::Bool, _) => return (flag.default != "true").to_string(),
        (Kind::Duration, _) => "7s",
        (_, "initial-cluster-state") => "existing",
        (_, "initial-cluster") => "a=http://127.0.0.1:7",
        (_, name) if name.ends_with("-urls") || name == "cors" => "http://127.0.0.1:7",
        (_, "v2-deprecation") => "gone",
        (_, "kubernetes-prefix") => "/k8s/",
        (_, "counters") => "apps/v1/Deployment:.spec.replicas",
        (_, "merge-policy") => concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/merge-policy.yaml"),
        (_, "discovery-fallback") => "exit",
        (_, "feature-gates") => "LeaseCheckpoint=true",
        (_, "heartbeat-interval") => "7",
        _ if flag.default.parse::<u64>().is_ok() => "2000",
        _ => "x",
    };
    text.to_owned()
}

#[test]
fn every_flag_of_etcd_is_in_the_table_once() {
    assert_eq!(names(|_| true).len(), FLAGS.len(), "a name is there twice");
    let etcd: BTreeSet<&str> = ETCD.split_whitespace().chain(OWN).collect();
    assert_eq!(names(Flag::is_listed), etcd);
    let removed = names(|flag| !flag.is_listed());
    assert!(removed.iter().all(|name| flags::by_name(name).is_some_and(|f| matches!(f.effect, Effect::Warns(_)))));
    let count = |of: fn(&Flag) -> bool| names(of).len();
    let works = count(|flag| flag.effect == Effect::Works);
    let warns = count(|flag| matches!(flag.effect, Effect::Warns(_)));
    let refused = count(|flag| matches!(flag.effect, Effect::Refused(_)));
    println!("{works} work, {warns} warn ({} of them removed from etcd), {refused} are refused", removed.len());
}

/// The lines of each field in the debug output of a struct whose fields are indented by `indent`.
fn fields(text: &str, indent: usize) -> BTreeMap<String, String> {
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        let at = line.len() - line.trim_start().len();
        if at == indent
            && let Some((field, _)) = line.trim_start().split_once(": ")
        {
            field.clone_into(&mut name);
        }
        fields.entry(name.clone()).or_default().push_str(line);
        fields.entry(name.clone()).or_default().push('\n');
    }
    fields
}

/// The field of [`Config`] that the flag sets.
fn field_of(flag: &Flag) -> String {
    let mut config = Config::default();
    flag.set(&mut config, &sample(flag)).unwrap_or_else(|err| panic!("--{}: {err}", flag.name));
    config.explicit.clear();
    let changed = |before: &str, after: &str, indent| {
        let (before, after) = (fields(before, indent), fields(after, indent));
        let changed = after.iter().find(|(name, text)| before.get(*name) != Some(text));
        changed.map(|(name, text)| (name.clone(), before.get(name).cloned().unwrap_or_default(), text.clone()))
    };
    let (before, after) = (format!("{:#?}", Config::default()), format!("{config:#?}"));
    let (name, before, after) = changed(&before, &after, 4).unwrap_or_else(|| panic!("--{} sets nothing", flag.name));
    match name.as_str() {
        "client_tls" | "peer_tls" | "log" => changed(&before, &after, 8).map_or(name, |(inner, _, _)| inner),
        _ => name,
    }
}

fn sources(dir: &Path, text: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // These only set.
        if path.ends_with("config/flags") || path.ends_with("config/file.rs") {
            continue;
        }
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn what_a_flag_that_works_sets_is_read() {
    let mut text = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
    let is_read = |field: &str| {
        let read = format!(".{field}");
        text.match_indices(&read).any(|(place, _)| {
            text[place + read.len()..].chars().next().is_some_and(|next| !next.is_alphanumeric() && next != '_')
        })
    };
    assert!(!is_read("no_such_field") && is_read("data_dir"));
    for flag in FLAGS.iter().filter(|flag| flag.effect == Effect::Works && flag.name != "config-file") {
        let field = field_of(flag);
        assert!(is_read(&field), "nobody reads {field}, which --{} sets", flag.name);
    }
}

fn notices(args: &[String]) -> Result<Vec<Notice>, String> {
    match cli::parse(args.iter().cloned(), []) {
        Ok(Action::Serve(invocation)) => Ok(invocation.notices),
        other => Err(other.map_or_else(|err| err.to_string(), |_| String::new())),
    }
}

#[test]
fn what_does_nothing_says_so_once_and_why() {
    for flag in FLAGS {
        let Effect::Warns(reason) = flag.effect else { continue };
        assert!(!reason.is_empty());
        let told = notices(&[format!("--{}={}", flag.name, sample(flag))]).unwrap();
        let told = told.iter().filter(|notice| matches!(notice, Notice::NoEffect(..))).collect::<Vec<_>>();
        assert_eq!(told, [&Notice::NoEffect(flag.name, reason)]);
    }
    assert_eq!(notices(&[]), Ok(vec![]));
}

#[test]
fn what_is_refused_says_what_to_do_instead() {
    for flag in FLAGS {
        let Effect::Refused(instead) = flag.effect else { continue };
        let given = |value: &str| notices(&[format!("--{}={value}", flag.name)]);
        assert_eq!(given(flag.default), Ok(vec![]), "--{}", flag.name);
        let refused = given(&sample(flag)).unwrap_err();
        assert_eq!(refused, format!("eddy does not take --{}: {instead}", flag.name));
    }
}

#[test]
fn the_page_for_operators_lists_what_warns_and_what_is_refused() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, tables) = page.split_once("## Flags without effect, and refused flags").unwrap();
    for flag in FLAGS.iter().filter(|flag| flag.is_listed()) {
        let row = tables.lines().find(|line| line.starts_with('|') && line.contains(&format!("`--{}`", flag.name)));
        match flag.effect {
            Effect::Works => assert_eq!(row, None),
            Effect::Warns(text) | Effect::Refused(text) => {
                assert!(row.is_some_and(|row| row.ends_with(&format!("| {text} |"))), "--{}: {row:?}", flag.name);
            }
        }
    }
}
