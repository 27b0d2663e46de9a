//! What clients ask: every kind of command, drawn from a seed and from what the client sees.

use bytes::Bytes;
use eddy_crdt::{
    Alarm, AlarmKind, Command, Compare, CompareResult, CompareTarget, DeleteOp, KeyRange, LeaseId, Op, PutLease, PutOp,
    PutValue, RangeOp, Revision, Txn,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::checks::MARK;
use crate::support::build::id;
use crate::support::shadow::Shadow;

const KEYS: [&str; 9] = [
    "a",
    "b",
    "c",
    "/registry/pods/p",
    "/registry/configmaps/m",
    "/registry/leases/l",
    "/registry/services/s",
    "/registry/opaque",
    "compact_rev_key",
];

fn key(rng: &mut SmallRng) -> Bytes {
    Bytes::from_static(KEYS[rng.random_range(0..KEYS.len())].as_bytes())
}

fn lease(rng: &mut SmallRng) -> LeaseId {
    LeaseId::new(rng.random_range(1..4))
}

pub fn put(key: Bytes, value: impl Into<Bytes>, lease: Option<LeaseId>) -> PutOp {
    PutOp { key, value: PutValue::Set(value.into()), lease: PutLease::Set(lease), prev_kv: true }
}

/// A value as the key's clients write it: objects of Kubernetes under its prefix, most of the time.
fn value(rng: &mut SmallRng, key: &[u8]) -> String {
    let n = rng.random_range(0..1000);
    if rng.random_bool(0.1) || !key.starts_with(b"/registry/") || key.ends_with(b"opaque") {
        return format!("v{n}");
    }
    let (uid, generation) = (rng.random_range(0..2), rng.random_range(1..5));
    let label = match rng.random_range(0..3) {
        0 => String::new(),
        label => format!(r#","labels":{{"l{label}":"{n}"}}"#),
    };
    let meta = format!(r#""metadata":{{"name":"x","uid":"u{uid}","generation":{generation}{label}}}"#);
    if key.ends_with(b"/p") {
        let node = match rng.random_range(0..3) {
            0 => String::new(),
            node => format!(r#","nodeName":"node{node}""#),
        };
        let ready = if rng.random_bool(0.5) { "True" } else { "False" };
        return format!(
            r#"{{"apiVersion":"v1","kind":"Pod",{meta},"spec":{{"containers":[{{"name":"c","image":"i{}"}}]{node}}},"status":{{"conditions":[{{"type":"Ready","status":"{ready}"}}],"phase":"p{n}"}}}}"#,
            rng.random_range(0..3)
        );
    }
    if key.ends_with(b"/l") {
        let holder = rng.random_range(0..3);
        return format!(
            r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",{meta},"spec":{{"holderIdentity":"h{holder}","leaseTransitions":{},"renewTime":"2026-01-01T00:00:{:02}.000000Z"}}}}"#,
            rng.random_range(0..4),
            n % 60
        );
    }
    if key.ends_with(b"/s") {
        return format!(
            r#"{{"apiVersion":"v1","kind":"Service",{meta},"spec":{{"clusterIP":"10.0.0.{}","ports":[{{"port":{},"protocol":"TCP","name":"p"}}]}}}}"#,
            rng.random_range(1..4),
            rng.random_range(80..83)
        );
    }
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap",{meta},"data":{{"f{}":"{n}"}}}}"#, rng.random_range(0..3))
}

fn delete(rng: &mut SmallRng) -> DeleteOp {
    let range = match rng.random_range(0..10) {
        0 => KeyRange::Span(Bytes::from_static(b"a"), Bytes::from_static(b"c")),
        1 => KeyRange::Span(Bytes::from_static(b"/registry/"), Bytes::from_static(b"/registry0")),
        _ => KeyRange::Key(key(rng)),
    };
    DeleteOp { range, prev_kv: true }
}

fn compare(rng: &mut SmallRng, shadow: &Shadow, key: &Bytes) -> Compare {
    let kv = shadow.kvs.get(key);
    let off = i64::from(rng.random_bool(0.2));
    let target = match rng.random_range(0..4) {
        0 => CompareTarget::Create(kv.map_or(0, |kv| kv.create_revision.get()) + off),
        1 => CompareTarget::Version(kv.map_or(0, |kv| kv.version) + off),
        2 => CompareTarget::Value(kv.map_or(Bytes::new(), |kv| kv.value.clone())),
        _ => CompareTarget::Mod(kv.map_or(0, |kv| kv.mod_revision.get()) + off),
    };
    let result = match rng.random_range(0..5) {
        0 => CompareResult::NotEqual,
        1 => CompareResult::Greater,
        _ => CompareResult::Equal,
    };
    Compare { range: KeyRange::Key(key.clone()), target, result }
}

fn txn(rng: &mut SmallRng, shadow: &Shadow) -> Txn {
    let compares = (0..rng.random_range(0..3)).map(|_| {
        let key = key(rng);
        compare(rng, shadow, &key)
    });
    let compares = compares.collect();
    let branch = |rng: &mut SmallRng| {
        let mut left: Vec<&str> = KEYS.to_vec();
        let ops = (0..rng.random_range(1..4)).map(|_| {
            // etcd refuses to write a key twice in one transaction.
            let key = Bytes::from_static(left.swap_remove(rng.random_range(0..left.len())).as_bytes());
            match rng.random_range(0..5) {
                0 => Op::Delete(DeleteOp { range: KeyRange::Key(key), prev_kv: true }),
                1 => Op::Range(RangeOp::all(KeyRange::Key(key))),
                _ => {
                    let value = value(rng, &key);
                    Op::Put(put(key, value, None))
                }
            }
        });
        ops.collect()
    };
    Txn { compares, success: branch(rng), failure: branch(rng) }
}

/// Reads an object, changes a field, and writes it back if nobody else did meanwhile: what a kube-apiserver does.
fn update(rng: &mut SmallRng, shadow: &Shadow) -> Txn {
    let key = key(rng);
    let kv = shadow.kvs.get(&key);
    let new = match kv.and_then(|kv| std::str::from_utf8(&kv.value).ok()) {
        Some(text) if text.contains(r#""phase":"#) && rng.random_bool(0.5) => {
            text.replace(r#""status":"True""#, r#""status":"Unknown""#)
        }
        Some(text) if text.contains(r#""name":"x""#) => {
            let label = rng.random_range(0..3);
            text.replacen(r#""name":"x""#, &format!(r#""annotations":{{"a{label}":"{}"}},"name":"x""#, label + 7), 1)
        }
        _ => value(rng, &key),
    };
    let target = CompareTarget::Mod(kv.map_or(0, |kv| kv.mod_revision.get()));
    let compares = vec![Compare { range: KeyRange::Key(key.clone()), target, result: CompareResult::Equal }];
    let failure = vec![Op::Range(RangeOp::all(KeyRange::Key(key.clone())))];
    Txn { compares, success: vec![Op::Put(put(key, new, None))], failure }
}

/// A write to one of two keys, or to both: what many write at the same time.
pub fn hot_command(seed: u64) -> Command {
    const HOT: [&str; 2] = ["a", "/registry/pods/p"];
    let rng = &mut SmallRng::seed_from_u64(seed);
    let mut put_to = |key: &'static str| put(key.into(), value(rng, key.as_bytes()), None);
    let both = HOT.map(|key| Op::Put(put_to(key)));
    let key = HOT[rng.random_range(0..2)];
    match rng.random_range(0..10) {
        0 => Command::Delete(DeleteOp { range: KeyRange::Key(key.into()), prev_kv: true }),
        1 => Command::Txn(Txn { success: both.into(), ..Txn::default() }),
        _ => Command::Put(put(key.into(), value(rng, key.as_bytes()), None)),
    }
}

/// The command that a seed stands for.
pub fn command(seed: u64, shadow: &Shadow, compacted: Option<Revision>) -> Command {
    let rng = &mut SmallRng::seed_from_u64(seed);
    match rng.random_range(0..100) {
        0..35 => {
            let key = key(rng);
            let value = value(rng, &key);
            let lease = rng.random_bool(0.2).then(|| lease(rng));
            Command::Put(put(key, value, lease))
        }
        35..47 => Command::Txn(update(rng, shadow)),
        47..60 => Command::Delete(delete(rng)),
        60..72 => Command::Txn(txn(rng, shadow)),
        72..80 => {
            let mut key = MARK.to_vec();
            key.extend_from_slice(format!("{seed:x}").as_bytes());
            Command::Put(put(key.into(), "kept", None))
        }
        80..85 => Command::LeaseGrant { id: lease(rng), ttl: rng.random_range(1..20) },
        85..87 => Command::LeaseRevoke(lease(rng)),
        87..91 => Command::LeaseRenew(lease(rng)),
        91..95 => {
            let span = (shadow.revision.get() - compacted.map_or(0, Revision::get)).max(1);
            Command::Compact(shadow.revision.get() - rng.random_range(0..span))
        }
        95..96 => Command::Leap,
        96..97 => Command::SetAlarm {
            alarm: Alarm { member: id(rng.random_range(0..2)), kind: AlarmKind::Corrupt },
            raised: rng.random_bool(0.5),
        },
        _ => Command::MemberPublish {
            name: format!("n{}", rng.random_range(0..3)),
            client_urls: vec!["http://c".to_owned()],
        },
    }
}
