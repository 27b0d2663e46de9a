//! Clients that read an object, change a part of it and write it back, as controllers do. Values are few, so that edits are
//! taken back now and then, and what an edit was made on matters for what it means.

use eddy_crdt::merge::{Fields, Json};
use eddy_crdt::{Command, DeleteOp, KeyRange, Op, PutOp, Txn};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::clients::put;
use crate::support::shadow::Shadow;

/// The keys that are edited; the last is opaque.
const KEYS: [&str; 3] = ["/registry/configmaps/h", "/registry/pods/h", "h"];
const LEAVES: [&str; 3] = ["x", "y", "z"];

fn fresh(key: &str) -> Json {
    let kind = if key.contains("/pods/") { "Pod" } else { "ConfigMap" };
    let text = format!(r#"{{"apiVersion":"v1","kind":"{kind}","metadata":{{"labels":{{}},"name":"h","uid":"u"}}}}"#);
    Json::parse(text.as_bytes()).expect("it is JSON")
}

/// The labels of an object.
fn labels(object: &mut Json) -> Option<&mut Fields> {
    let Json::Map(object) = object else { return None };
    let Some(Json::Map(metadata)) = object.get_mut("metadata") else { return None };
    match metadata.get_mut("labels") {
        Some(Json::Map(labels)) => Some(labels),
        _ => None,
    }
}

/// Writes a key again with one or two of its leaves changed.
fn edited(rng: &mut SmallRng, key: &'static str, shadow: &Shadow) -> PutOp {
    if !key.starts_with("/registry/") {
        return put(key.into(), format!("{}", rng.random_range(0..1000)), None);
    }
    let before = shadow.kvs.get(key.as_bytes()).and_then(|kv| Json::parse(&kv.value));
    let mut object = before.unwrap_or_else(|| fresh(key));
    if let Some(labels) = labels(&mut object) {
        for _ in 0..rng.random_range(1..3) {
            let leaf = LEAVES[rng.random_range(0..LEAVES.len())];
            match rng.random_range(0..4) {
                0 => drop(labels.remove(leaf)),
                n => drop(labels.insert(leaf.into(), Json::String(n.to_string().into()))),
            }
        }
    }
    put(key.into(), object.canonical(), None)
}

/// A seed that stands for an edit of the first object alone.
pub fn seed_of_one(rng: &mut SmallRng) -> u64 {
    loop {
        let seed = rng.random();
        let of = &mut SmallRng::seed_from_u64(seed);
        if of.random_range(0..6) < 3 && of.random_range(0..20) > 2 {
            return seed;
        }
    }
}

/// The edit that a seed stands for.
pub fn command(seed: u64, shadow: &Shadow) -> Command {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let key = KEYS[[0, 0, 0, 1, 1, 2][rng.random_range(0..6)]];
    match rng.random_range(0..20) {
        0 => Command::Delete(DeleteOp { range: KeyRange::Key(key.into()), prev_kv: true }),
        1 | 2 => {
            let success = KEYS[..2].iter().map(|key| Op::Put(edited(rng, key, shadow))).collect();
            Command::Txn(Txn { success, ..Txn::default() })
        }
        _ => Command::Put(edited(rng, key, shadow)),
    }
}
