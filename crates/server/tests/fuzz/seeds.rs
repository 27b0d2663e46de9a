//! What a fuzzer begins with: real messages, records, objects, requests, paths and files.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use eddy_crdt::merge::{Encoding, Json, Object};
use eddy_crdt::sync::{Delta, ENTRY_MAX, decode_entry, encode_entry};
use eddy_crdt::{CHAIN_LEN, Command, DeleteOp, Input, Key, KeyRange, LeaseId, Notes, Record, SnapshotChunk};
use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use eddy_proto::etcdserverpb::request_op::Request;
use eddy_server::backup::page::{BRANCH, FREELIST, LEAF, Meta, header};
use prost::Message;

use crate::targets::entry::BASES;
use crate::targets::gateway_json::PATHS;
use crate::targets::pair::Pair;
use crate::targets::peer_message::{SITUATIONS, put, situation};
use crate::targets::snapshot_chunk::Open;

/// Length of the checksum that messages and records end in, bytes.
const CHECKSUM_LEN: usize = 9;

const OBJECTS: &[&str] = &[
    include_str!("../../../crdt/tests/suite/merge/objects/pod.json"),
    include_str!("../../../crdt/tests/suite/merge/objects/deployment.json"),
    include_str!("../../../crdt/tests/suite/merge/objects/node.json"),
    include_str!("../../../crdt/tests/suite/merge/objects/lease.json"),
    include_str!("../../../crdt/tests/suite/merge/objects/service.json"),
];

/// A target, and what its fuzzer begins with.
type Seeds = (&'static str, Vec<Vec<u8>>);

/// The seeds of each target.
pub fn all() -> Result<Vec<Seeds>> {
    Ok(vec![
        ("config_file", config_file()),
        ("database", database()),
        ("delta", delta()?),
        ("entry", entry()?),
        ("etcd_request", etcd_request()),
        ("gateway_json", gateway_json()),
        ("http_path", http_path()),
        ("object", object()),
        ("peer_message", peer_message()),
        ("record", record()),
        ("session", session()),
        ("snapshot_chunk", snapshot_chunk()?),
    ])
}

/// Messages with every kind of field, and a few that are none.
fn gateway_json() -> Vec<Vec<u8>> {
    let bodies = [
        r#"{"key":"Zm9v","range_end":"AA==","limit":"7","sortOrder":"DESCEND","serializable":true,"new":[{}]}"#,
        r#"{"compare":[{"key":"Zm9v","target":"VALUE","value":"YmFy"}],"success":[{"request_txn":{"failure":[
            {"requestDeleteRange":{"key":"eg==","prev_kv":null}}]}},{"request_put":{"key":"YQ==","lease":-1}}]}"#,
        r#"{"action":1,"version":"3.6"}"#,
        r#"{"name":"\u00e9\"","password":"p","options":{"no_password":false},"hashedPassword":"x"}"#,
        r#"{"leader":{"name":"ZQ==","key":"ZS80ZA==","rev":1e3,"lease":"77"},"value":"_-8"} {}"#,
        r#"{"action":"ACTIVATE","memberID":"18446744073709551615","alarm":"NOSPACE"}"#,
    ];
    assert_eq!(bodies.len(), PATHS.len());
    let seeds = bodies.iter().enumerate().map(|(path, body)| prefixed(&[path as u8], body.as_bytes()));
    seeds.chain([b"\0".to_vec(), b"\0[{]}".to_vec(), b"\x01{\"key\":\"".to_vec()]).collect()
}

fn prefixed(prefix: &[u8], rest: &[u8]) -> Vec<u8> {
    [prefix, rest].concat()
}

/// A length in two bytes, and what it is the length of.
fn measured(bytes: &[u8]) -> Vec<u8> {
    prefixed(&(bytes.len() as u16).to_le_bytes(), bytes)
}

fn body(sealed: &[u8]) -> &[u8] {
    &sealed[..sealed.len().saturating_sub(CHECKSUM_LEN)]
}

fn config_file() -> Vec<Vec<u8>> {
    let files = [
        "name: n1\ndata-dir: /tmp/a\nlisten-client-urls: http://127.0.0.1:1,unix://a:1\nadvertise-client-urls: http://a:1\n",
        "initial-cluster: n1=http://a:1,n2=http://b:1\ninitial-cluster-state: existing\nquota-backend-bytes: 1\n\
         auto-compaction-mode: revision\nauto-compaction-retention: \"5\"\ncors: [a, b]\n",
        "client-transport-security:\n  cert-file: a\n  key-file: b\n  client-cert-auth: true\npeer-transport-security: {auto-tls: true}\n\
         socket-options: {reuse-port: true}\nlistening: &a [1, *a]\n",
        "grpc-keepalive-interval: 600000000000\nfeature-gates: A=true\nlog-outputs: [stderr]\nmax-txn-ops: 1e3\n",
    ];
    let flags = [
        "--name=n\n-data-dir\n/tmp/a\n--listen-client-urls=http://[::1]:2379\n--advertise-client-urls=https://a:1",
        "$ETCD_NAME=a\n$ETCD_QUOTA_BACKEND_BYTES=-1\n--auto-compaction-retention=1h30m\n--cipher-suites=TLS_AES_128_GCM_SHA256",
        "--help",
        "--client-cert-auth\n--auto-tls=false\n--heartbeat-interval=100\n--election-timeout=500\n--unsafe-no-fsync",
    ];
    let values = ["1h2m3.5s", "-1us", "http://a:1,https://[::1]:2,unix:a,unixs:///b/c"];
    let with =
        |kind: u8, texts: &[&str]| texts.iter().map(|text| prefixed(&[kind], text.as_bytes())).collect::<Vec<_>>();
    [with(0, &files), with(1, &flags), with(2, &values)].concat()
}

/// Bytes of a page: as few as there can be.
const PAGE: usize = 512;

/// A page with these elements: the first number of each, its key and its value.
fn page(id: u64, kind: u16, elements: &[(u64, &[u8], &[u8])]) -> Vec<u8> {
    let data: usize = elements.iter().map(|(_, key, value)| key.len() + value.len()).sum();
    let pages = (16 * (1 + elements.len()) + data).div_ceil(PAGE);
    let mut page = header(id, kind, elements.len() as u16, pages as u32 - 1).to_vec();
    let mut place = 16 * elements.len();
    for (first, key, value) in elements {
        let numbers = [place, key.len(), value.len()].map(|number| (number as u32).to_le_bytes());
        match kind {
            BRANCH => page.extend([&numbers[0][..], &numbers[1], &first.to_le_bytes()].concat()),
            _ => page.extend([&(*first as u32).to_le_bytes()[..], &numbers.concat()].concat()),
        }
        place = place + key.len() + value.len() - 16;
    }
    elements.iter().for_each(|(_, key, value)| page.extend([*key, *value].concat()));
    page.resize(pages * PAGE, 0);
    page
}

/// Databases whose checksums the target puts in: plain, with branches, with a long value, with a bucket in the root itself.
fn database() -> Vec<Vec<u8>> {
    let with = |pages: &[Vec<u8>]| {
        let count = 2 + pages.iter().map(|page| page.len() / PAGE).sum::<usize>() as u64;
        let meta = |transaction| Meta { page_size: PAGE as u32, root: 3, freelist: 2, pages: count, transaction };
        [meta(0).encode(0), meta(1).encode(1), pages.concat()].concat()
    };
    let bucket = |root: u64| [root.to_le_bytes(), [0; 8]].concat();
    let free = page(2, FREELIST, &[]);
    let leaf =
        |id: u64, keys: &[&[u8]]| page(id, LEAF, &keys.iter().map(|key| (0, *key, &b"value"[..])).collect::<Vec<_>>());
    let root = |to: u64| page(3, LEAF, &[(1, b"key", &bucket(to))]);
    let small = [&bucket(0)[..], &leaf(0, &[b"a"])[..64]].concat();
    let one_free = [&header(2, FREELIST, 1, 0)[..], &6_u64.to_le_bytes(), &[0; PAGE - 24]].concat();
    vec![
        with(&[free.clone(), root(4), leaf(4, &[b"a", b"b", b"c"])]),
        with(&[
            free.clone(),
            root(6),
            leaf(4, &[b"a", b"b"]),
            leaf(5, &[b"c"]),
            page(6, BRANCH, &[(4, b"a", b""), (5, b"c", b"")]),
        ]),
        with(&[free.clone(), root(4), page(4, LEAF, &[(0, b"a", &[7; 1200]), (0, b"b", b"")])]),
        with(&[free, page(3, LEAF, &[(1, b"key", &bucket(4)), (1, b"meta", &small)]), leaf(4, &[])]),
        with(&[one_free, root(5), leaf(4, &[b"a"]), page(5, BRANCH, &[(4, b"a", b"")]), leaf(6, &[])]),
    ]
}

fn delta() -> Result<Vec<Vec<u8>>> {
    let base = BASES[1];
    let value = String::from_utf8_lossy(base).replace("\"a\"", "\"changed\"").repeat(2);
    let delta = Delta::between(base, value.as_bytes()).context("a delta")?;
    let frame = |how: u8, base: &[u8], len: usize, rest: &[u8]| {
        [&[how][..], &(base.len() as u16).to_le_bytes(), &(len as u16).to_le_bytes(), base, rest].concat()
    };
    let zeros = Delta::between(b"b", &[0; 4096]).context("a delta")?;
    Ok(vec![
        frame(0, base, delta.len, &delta.patch),
        frame(0, b"b", 4096, &zeros.patch),
        frame(0x90, b"b", 0xffff, &zeros.patch),
        frame(1, base, 7, value.as_bytes()),
        frame(3, base, 0, &base.repeat(3)),
        // What zstd would take for a dictionary of its own.
        frame(1, &prefixed(&[0x37, 0xa4, 0x30, 0xec], base), 1, value.as_bytes()),
    ])
}

/// Two members with keys of each kind.
fn written() -> Pair {
    let mut pair = Pair::new(3);
    let commands = [
        put("a", "1"),
        put("/registry/pods/d/a", OBJECTS[4]),
        Input::Client(Command::LeaseGrant { id: LeaseId::new(7), ttl: 60 }),
        put("a", vec![b'a'; 200]),
        put("a", [vec![b'a'; 200], vec![b'b']].concat()),
        Input::Client(Command::Delete(DeleteOp { range: KeyRange::Key(Key::from_static(b"a")), prev_kv: false })),
        put("b", "2"),
    ];
    for command in commands {
        pair.handle(0, command);
    }
    pair.handle(1, put("a", "other"));
    for ms in [10, 10, 10, 200, 1_000] {
        pair.step(ms);
    }
    pair
}

fn entry() -> Result<Vec<Vec<u8>>> {
    let mut seeds = vec![];
    for record in written().sides[0].records.values() {
        let Some(entry) = Record::decode(record.clone())?.entry() else { continue };
        seeds.push(encode_entry(&entry, |_| None).bytes.to_vec());
    }
    let mut pair = Pair::new(2);
    pair.handle(0, put("a", [BASES[1], b"more"].concat()));
    let last = pair.sides[0].records.values().next_back().context("a record")?;
    let entry = Record::decode(last.clone())?.entry().context("an entry")?;
    seeds.push(encode_entry(&entry, |_| Some(Bytes::from_static(BASES[1]))).bytes.to_vec());
    let longest = longest_entry();
    ensure!(decode_entry(Bytes::from(longest.clone())).is_ok_and(|entry| entry.expanded_len() == ENTRY_MAX));
    seeds.push(longest);
    Ok(seeds)
}

/// A delta that says it gives as much as an entry may: what says more is one step away.
fn longest_entry() -> Vec<u8> {
    // Flags of a put and a delta, a key, a base, and the length.
    let change = [&[8, 6, 18, 1, b'k', 58, 16][..], &[0; 16], &[64], &varint(ENTRY_MAX as u64)].concat();
    // Number, the chain hash before it, and the change.
    [&[24, 1, 58, CHAIN_LEN as u8][..], &[0; CHAIN_LEN], &[66, change.len() as u8], &change].concat()
}

fn varint(number: u64) -> Vec<u8> {
    let mut bytes = vec![];
    prost::encoding::encode_varint(number, &mut bytes);
    bytes
}

fn record() -> Vec<Vec<u8>> {
    let pair = written();
    let side = &pair.sides[0];
    let heads = [side.replica.head().encode(), Pair::new(2).sides[0].replica.head().encode()];
    let notes = Notes { left: [3, 4, 900].into(), bases: [(5, Arc::default()), (6, Arc::default())].into() };
    let noted = Record::of_notes(901, notes).encode();
    side.records.values().chain(&heads).chain([&noted]).map(|sealed| body(sealed).to_vec()).collect()
}

fn etcd_request() -> Vec<Vec<u8>> {
    let op = |request| pb::RequestOp { request: Some(request) };
    let range =
        pb::RangeRequest { key: "a".into(), range_end: "c".into(), limit: 1, sort_order: 2, ..Default::default() };
    let put = pb::PutRequest { key: "a".into(), value: "v".into(), prev_kv: true, ..Default::default() };
    let held = pb::PutRequest { lease: 8, key: "l".into(), ..put.clone() };
    let delete = pb::DeleteRangeRequest { key: "b".into(), range_end: "\0".into(), prev_kv: true };
    let compare = pb::Compare {
        result: CompareResult::Greater as i32,
        target: CompareTarget::Version as i32,
        key: "a".into(),
        target_union: Some(TargetUnion::Version(1)),
        ..Default::default()
    };
    let nested = pb::TxnRequest {
        compare: vec![compare.clone()],
        success: vec![],
        failure: vec![op(Request::RequestRange(range.clone()))],
    };
    let txn = pb::TxnRequest {
        compare: vec![compare],
        success: vec![op(Request::RequestPut(put.clone())), op(Request::RequestTxn(nested.clone()))],
        failure: vec![op(Request::RequestDeleteRange(delete.clone()))],
    };
    let grant = pb::LeaseGrantRequest { id: 8, ttl: 1 };
    let revoke = pb::LeaseRevokeRequest { id: 8 };
    let compaction = pb::CompactionRequest { revision: 4, physical: false };
    let request = |kind: u8, message: Vec<u8>| prefixed(&[kind], &measured(&message));
    let all = [
        request(0, range.encode_to_vec()),
        request(1, put.encode_to_vec()),
        request(2, delete.encode_to_vec()),
        request(3, txn.encode_to_vec()),
        request(3, nested.encode_to_vec()),
        [request(5, compaction.encode_to_vec()), request(0, range.encode_to_vec())].concat(),
        [request(6, grant.encode_to_vec()), request(1, held.encode_to_vec()), request(7, revoke.encode_to_vec())]
            .concat(),
    ];
    all.into()
}

fn http_path() -> Vec<Vec<u8>> {
    let requests: [(&[u8], &str); 9] = [
        (&[0, 0, 0], "/version\na.b:1\nhttp://a.b"),
        (&[0, 0, 1], "/health?exclude=NOSPACE&serializable=true"),
        (&[1, 0, 8], "/readyz?verbose&exclude=writable"),
        (&[0, 0, 16], "/livez/serializable_read"),
        (&[1, 0, 0], "/metrics"),
        (&[0, 0, 0], "/debug/vars"),
        (&[0, 2, 32], "/v3/kv/range\n[::1]:1\nhttp://a.b"),
        (&[2, 0, 0], "/members"),
        (&[0, 3, 96], "http://a.b/eddy/v1/status?\nx\n*"),
    ];
    requests.iter().map(|(how, text)| prefixed(how, text.as_bytes())).collect()
}

fn object() -> Vec<Vec<u8>> {
    let edits: [u8; 27] = [0, 6, 1, 9, 0, 4, 3, 2, 5, 0, 9, 13, 12, 1, 0, 4, 2, 8, 2, 0, 12, 20, 2, 1, 0, 12, 7];
    let small = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u","finalizers":["x","y"]},"status":{"conditions":[{"type":"A"}]}}"#;
    let protobuf = |text: &str| {
        let json = Object::parse(text.as_bytes())?.json;
        Object { json: Json::Null, encoding: Encoding::Protobuf }.write(&json)
    };
    let all = OBJECTS.iter().copied().chain([small]);
    let protobuf = all.clone().filter_map(protobuf).map(|raw| prefixed(&edits, &raw));
    all.map(|text| prefixed(&edits, text.as_bytes())).chain(protobuf).collect()
}

/// What is on its way to side 0 in each situation and soon after it.
fn peer_message() -> Vec<Vec<u8>> {
    let mut seeds = BTreeSet::new();
    for number in 0..SITUATIONS {
        let mut pair = situation(number);
        for ms in [0, 10, 10, 10, 100, 500, 1_000, 6_000] {
            seeds.extend(pair.sides[0].inbox.iter().map(|message| prefixed(&[number], body(message))));
            pair.step(ms);
        }
    }
    seeds.into_iter().collect()
}

fn session() -> Vec<Vec<u8>> {
    let stories: [&[u8]; 7] = [
        // Both write, and hear of each other.
        &[0, 3, 3, 0, 0, 1, 128, 0, 2, 3, 3, 6, 10],
        // One key at both sides at once: objects, and deletes.
        &[0, 3, 3, 0, 0x23, 0, 128, 0x23, 1, 3, 3, 0, 0x25, 0, 128, 0x23, 2, 3, 3, 6, 60],
        // Deltas, a message lost, a message doubled, others in another order.
        &[0, 3, 3, 0, 2, 1, 3, 0, 2, 2, 3, 7, 0, 2, 3, 3, 8, 3, 0, 2, 4, 128, 2, 5, 9, 3, 3, 6, 60],
        // A stream breaks; a side begins anew from a snapshot.
        &[1, 3, 3, 0, 0x23, 0, 128, 2, 9, 3, 3, 10, 3, 3, 3, 11, 3, 3, 3, 3, 3, 3, 10, 3, 3],
        // Leases and alarms.
        &[0, 3, 3, 0, 6, 5, 0, 7, 5, 3, 128, 6, 5, 128, 8, 5, 3, 3, 0, 9, 0, 3, 6, 255],
        // An altered message, and one that is made up.
        &[0, 3, 0, 2, 1, 3, 128, 2, 3, 128, 3, 13, 0, 30, 0, 7, 3, 3, 12, 4, 0x62, 2, 8, 1, 3, 3],
        &[1, 3, 3, 139, 3, 3, 15, 3, 9, 0, 6, 1, 2, 3, 4, 5, 6, 3, 3, 10, 3, 3],
    ];
    stories.iter().map(|story| story.to_vec()).collect()
}

fn snapshot_chunk() -> Result<Vec<Vec<u8>>> {
    let pair = written();
    let giver = &pair.sides[1].replica;
    let mut seeds = vec![];
    for chunk_bytes in [100, 400, 1 << 20] {
        let (mut seed, mut after) = (vec![], None);
        for _ in 0..4 {
            let chunk = giver.snapshot_chunk(after.as_ref(), giver.vector(), chunk_bytes);
            seed.extend(measured(&opened(&chunk)?));
            after = chunk.next;
            if after.is_none() {
                break;
            }
        }
        seeds.push(seed);
    }
    seeds.push(giver.snapshot_chunk(None, giver.vector(), 1 << 20).encode().to_vec());
    Ok(seeds)
}

/// A chunk without the checksums in it.
fn opened(chunk: &SnapshotChunk) -> Result<Vec<u8>> {
    let mut open = Open::decode(chunk.encode())?;
    open.keys = open.keys.slice(..body(&open.keys).len());
    open.entries.iter_mut().for_each(|entry| *entry = entry.slice(..body(entry).len()));
    Ok(open.encode_to_vec())
}
