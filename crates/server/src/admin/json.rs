//! The admin API's answers as JSON: ids in hexadecimal as etcd writes them, keys as text.

use eddy_proto::admin::{Dot, Equality, Merge, MergesResponse, PeerStatus, Side, StatusResponse};
use serde_json::{Value, json};

/// The status of a replica and its peers.
pub fn status(status: &StatusResponse) -> Value {
    json!({
        "cluster_id": id(status.cluster_id),
        "member_id": id(status.member_id),
        "birth": id(status.birth),
        "name": status.name,
        "version": status.version,
        "revision": status.revision,
        "vector": vector(&status.vector),
        "floor": vector(&status.floor),
        "unsettled_keys": status.windows,
        "rules": status.rules,
        "merge_engine": status.engine,
        "newest_merge_engine": status.newest_engine,
        "declared_rules": status.declared_rules,
        "declared_rules_wait_for": status.declared_lack,
        "kubernetes_prefix": status.kubernetes_prefix,
        "counters": status.counters,
        "custom_kinds": status.custom_kinds,
        "waiting_kinds": status.waiting_kinds.iter().map(|kind| json!({ "name": kind.name, "why": kind.why })).collect::<Vec<_>>(),
        "atomic": status.atomic,
        "objects_without_namespace": status.strays,
        "state_hash": status.state_hash,
        "alarms": status.alarms,
        "writes_refused": text_or_null(&status.writes_refused),
        "peers": status.peers.iter().map(peer).collect::<Vec<_>>(),
    })
}

/// Recent merges.
pub fn merges(merges: &MergesResponse) -> Value {
    json!({ "merges": merges.merges.iter().map(merge).collect::<Vec<_>>() })
}

fn peer(peer: &PeerStatus) -> Value {
    json!({
        "member_id": id(peer.member_id),
        "name": peer.name,
        "peer_urls": peer.peer_urls,
        "connected": peer.connected,
        "vector": vector(&peer.vector),
        "entries_behind": peer.entries_behind,
        "bytes_behind": peer.bytes_behind,
        "last_contact_ms": peer.last_contact_ms,
        "round_trip_us": peer.round_trip_us,
        "clock_ahead_ms": peer.clock_ahead_ms,
        "newest_merge_engine": peer.newest_engine,
        "state": match peer.equality() {
            Equality::Unknown => "unknown",
            Equality::Equal => "equal",
            Equality::Different => "different",
        },
        "holds_settling_back": peer.holds_back,
        "error": text_or_null(&peer.error),
        "first_difference": text_or_null(&String::from_utf8_lossy(&peer.first_difference)),
    })
}

fn merge(merge: &Merge) -> Value {
    let given_up: Vec<Value> = merge
        .given_up
        .iter()
        .map(|given| {
            json!({
                "what": given.what,
                "lost": given.lost.as_ref().map(side),
                "stands": given.stands.as_ref().map(side),
            })
        })
        .collect();
    json!({
        "key": String::from_utf8_lossy(&merge.key),
        "rule": merge.rule,
        "revision": merge.revision,
        "given_up": given_up,
        "more": merge.more,
    })
}

fn side(side: &Side) -> Value {
    json!({
        "version": side.version.as_ref().map(dot),
        "member": side.member,
        "written_ms": side.written_ms,
        "value": side.value,
    })
}

fn id(id: u64) -> String {
    format!("{id:x}")
}

fn vector(dots: &[Dot]) -> Vec<Value> {
    dots.iter().map(dot).collect()
}

fn dot(dot: &Dot) -> Value {
    json!({ "member_id": id(dot.member_id), "birth": id(dot.birth), "seq": dot.seq })
}

fn text_or_null(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { Value::from(text) }
}
