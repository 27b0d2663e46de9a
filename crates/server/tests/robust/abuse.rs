//! Malformed messages: each is refused with a status or ends its own connection; others are served as before.

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest};
use prost::Message;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::client::serve;
use crate::raw::{call, message};
use crate::scale;

const OK: i32 = 0;
const INVALID_ARGUMENT: i32 = 3;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNIMPLEMENTED: i32 = 12;
const INTERNAL: i32 = 13;

fn nested(depth: usize) -> Vec<u8> {
    let put = PutRequest { key: "deep".into(), value: "x".into(), ..Default::default() };
    let mut op = RequestOp { request: Some(Request::RequestPut(put)) };
    for _ in 0..depth {
        op = RequestOp { request: Some(Request::RequestTxn(TxnRequest { success: vec![op], ..Default::default() })) };
    }
    TxnRequest { success: vec![op], ..Default::default() }.encode_to_vec()
}

fn overlong_varint(field: u8) -> Vec<u8> {
    [&[field << 3][..], &[0xff; 10], &[0x7f]].concat()
}

#[tokio::test]
async fn malformed_messages_are_refused_and_others_served() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    client.put("a", b"1").await?;
    let before = server.resident()?;
    let max_fields = |fields: &[u8]| {
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        fields.iter().flat_map(|field| [&[field << 3][..], &max].concat()).collect::<Vec<_>>()
    };
    let put = "/etcdserverpb.KV/Put";
    let range = "/etcdserverpb.KV/Range";
    let txn = "/etcdserverpb.KV/Txn";
    let cases: Vec<(&str, &str, Vec<u8>, &[i32])> = vec![
        ("no message at all", put, vec![], &[INTERNAL, UNIMPLEMENTED, 2]),
        ("less than its length says", put, vec![0, 0, 0, 0, 100, 1, 2], &[INTERNAL, 2]),
        ("4 GB announced", put, vec![0, 0xff, 0xff, 0xff, 0xff, 1], &[RESOURCE_EXHAUSTED]),
        ("an unknown compression", put, vec![7, 0, 0, 0, 1, 1], &[INTERNAL, UNIMPLEMENTED]),
        ("compressed without saying how", put, vec![1, 0, 0, 0, 1, 1], &[INTERNAL, UNIMPLEMENTED]),
        (
            "a second message behind it",
            put,
            [message(&[10, 1, b'k']), message(&[10, 1, b'k'])].concat(),
            &[OK, INTERNAL],
        ),
        ("random bytes", put, message(&[0xde, 0xad, 0xbe, 0xef, 0xff, 0xff]), &[INTERNAL]),
        ("a varint of 11 bytes", put, message(&overlong_varint(3)), &[INTERNAL]),
        ("a field longer than the message", put, message(&[10, 0xff, 0xff, 0xff, 0xff, 0x0f]), &[INTERNAL]),
        ("a group that never ends", put, message(&[0x0b; 5000]), &[INTERNAL]),
        ("no key", put, message(&[]), &[INVALID_ARGUMENT]),
        ("a key that is no UTF-8", put, message(&[10, 3, 0xff, 0xfe, 0x80]), &[OK]),
        (
            "all numbers -1",
            range,
            message(&[&[10, 1, b'a'][..], &max_fields(&[3, 4, 5, 6, 10, 11, 12, 13])].concat()),
            &[OK, INVALID_ARGUMENT],
        ),
        ("20 nested transactions", txn, message(&nested(20)), &[OK, INTERNAL]),
        ("100 nested transactions", txn, message(&nested(100)), &[INTERNAL]),
        ("10,000 nested transactions", txn, message(&nested(10_000)), &[INTERNAL]),
        ("a text that is no UTF-8", "/etcdserverpb.Cluster/MemberAdd", message(&[10, 2, 0xff, 0xfe]), &[INTERNAL]),
        ("2 MiB", put, message(&vec![0; 2 << 20]), &[RESOURCE_EXHAUSTED, INTERNAL, INVALID_ARGUMENT]),
        ("64 MiB", put, message(&vec![0; 64 << 20]), &[RESOURCE_EXHAUSTED]),
        ("no such method", "/etcdserverpb.KV/Nothing", message(&[]), &[UNIMPLEMENTED]),
    ];
    for (what, path, body, codes) in cases {
        match call(server.address(), path, body).await {
            Ok((code, text)) => ensure!(codes.contains(&code), "{what}: code {code}, {text:?}"),
            // The answer came while the body was still being sent, and the connection went with it.
            Err(_) if what == "64 MiB" => {}
            Err(error) => return Err(error).context(what),
        }
        ensure!(client.get("a").await?.as_deref() == Some(b"1"), "after {what}");
    }
    let grown = server.resident()?.saturating_sub(before);
    ensure!(grown < 48 << 20, "grew by {grown} bytes");
    Ok(())
}

/// Requests of every kind, with bytes flipped, cut and added.
#[tokio::test]
async fn thousands_of_random_messages_end_nothing_but_themselves() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut server, client) = serve(dir.path()).await?;
    client.put("a", b"1").await?;
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let paths = [
        "KV/Put",
        "KV/Range",
        "KV/Txn",
        "KV/DeleteRange",
        "KV/RangeStream",
        "Watch/Watch",
        "Lease/LeaseTimeToLive",
        "Lease/LeaseGrant",
        "Lease/LeaseKeepAlive",
        "Maintenance/Status",
        "Maintenance/HashKV",
        "Cluster/MemberList",
    ];
    for n in 0..300 * scale() {
        let path = format!("/etcdserverpb.{}", paths[rng.random_range(0..paths.len())]);
        let mut bytes = nested(rng.random_range(0..4));
        for _ in 0..rng.random_range(1..8) {
            let at = rng.random_range(0..bytes.len());
            match rng.random_range(0..3) {
                0 => bytes[at] = rng.random(),
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, rng.random()),
            }
        }
        // A watch that happens to be well formed stays open: its stream has no end to wait for.
        let called = call(server.address(), &path, message(&bytes));
        let _any_status = tokio::time::timeout(std::time::Duration::from_millis(500), called).await;
        ensure!(client.get("alive").await.is_ok(), "message {n} of seed {seed}: {}", server.log_tail());
    }
    ensure!(!server.log_tail().contains("panicked"), "{}", server.log_tail());
    server.signal("TERM")?;
    ensure!(server.ended(std::time::Duration::from_secs(20)).await?.success());
    Ok(())
}
