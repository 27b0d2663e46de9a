//! The JSON gateway of both servers: the same request gets the same HTTP status, headers and JSON.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::pair::Binaries;
use crate::support::Server;

/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a watch that is silent is listened to.
const SILENCE: Duration = Duration::from_millis(300);

/// Requests in their order: path, body, and how many lines are read of a stream before it is left.
const REQUESTS: &[(&str, &str, usize)] = &[
    ("/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#, 0),
    ("/v3/kv/put", r#"{"key":"Zm9v","value":"YmF6","prev_kv":true}"#, 0),
    ("/v3/kv/put", r#"{"value":"YmF6"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v"}"#, 0),
    ("/v3beta/kv/range", r#"{"key":"Zm9v"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zg","range_end":"Z3=="}"#, 0),
    ("/v3/kv/range", r#"{"key":"AA==","rangeEnd":"AA==","sortOrder":"DESCEND","sort_target":2,"limit":"1"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","count_only":true,"limit":1.0,"revision":null}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","new":{"a":[1,{"b":null}]}} trailing"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","sort_order":"NOPE"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","sort_order":9}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","revision":"99"}"#, 0),
    ("/v3/kv/range", "", 0),
    ("/v3/kv/range", " \n", 0),
    ("/v3/kv/range", "{}", 0),
    ("/v3/kv/range", "null", 0),
    ("/v3/kv/range", "[1]", 0),
    ("/v3/kv/range", "7", 0),
    ("/v3/kv/range", "garbage", 0),
    ("/v3/kv/range", r#"{"key":"Zm9v""#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v",}"#, 0),
    ("/v3/kv/range", r#"{"key":5}"#, 0),
    ("/v3/kv/range", r#"{"key":"***"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":"x"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":1.5}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":"9223372036854775808"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","serializable":"true"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","key":"Zm9v"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","range_end":"Zw==","rangeEnd":"Zw=="}"#, 0),
    (
        "/v3/kv/txn",
        r#"{"compare":[{"key":"Zm9v","target":"VALUE","result":"EQUAL","value":"YmF6"}],
            "success":[{"request_put":{"key":"YQ==","value":"MQ=="}},{"requestRange":{"key":"Zm9v"}},
                {"request_txn":{"failure":[],"success":[{"request_delete_range":{"key":"eg=="}}]}}]}"#,
        0,
    ),
    ("/v3/kv/txn", r#"{"success":[{"request_put":{"key":"YQ=="},"request_range":{"key":"YQ=="}}]}"#, 0),
    ("/v3/kv/txn", r#"{"success":[{"request_put":{"key":"YQ=="}},{"request_put":{"key":"YQ=="}}]}"#, 0),
    ("/v3/kv/txn", r#"{"success":[null]}"#, 0),
    ("/v3/kv/txn", r#"{"success":[{}]}"#, 0),
    ("/v3/kv/deleterange", r#"{"key":"YQ==","prev_kv":true}"#, 0),
    ("/v3/lease/grant", r#"{"ID":"77","TTL":100}"#, 0),
    ("/v3/lease/grant", r#"{"ID":77,"TTL":"100"}"#, 0),
    ("/v3/lease/keepalive", r#"{"ID":77} {"ID":"78"}"#, 9),
    ("/v3/lease/keepalive", "", 9),
    ("/v3/lease/leases", "{}", 0),
    ("/v3/kv/lease/leases", "{}", 0),
    ("/v3/kv/put", r#"{"key":"bGVhc2Vk","lease":77}"#, 0),
    ("/v3/kv/put", r#"{"key":"bGVhc2Vk","lease":78}"#, 0),
    ("/v3/lease/timetolive", r#"{"ID":"78"}"#, 0),
    ("/v3/watch", r#"{"create_request":{"key":"Zm9v","start_revision":1,"prev_kv":true}}"#, 2),
    ("/v3/watch", r#"{"create_request":{"key":"Zm9v"}}{"create_request":{"key":"YQ==","start_revision":"1"}}"#, 3),
    ("/v3/watch", r#"{"create_request":{"key":"Zm9v"}} {"cancel_request":{"watch_id":0}}"#, 2),
    ("/v3/watch", r#"{"create_request":{"key":"Zm9v","start_revision":-1}}"#, 1),
    ("/v3/lock/lock", r#"{"name":"bG9jaw==","lease":77}"#, 0),
    ("/v3/lock/lock", r#"{"name":"bG9jaw==","lease":"77"}"#, 0),
    ("/v3/lock/lock", r#"{"name":"bG9jaw==","lease":99}"#, 0),
    ("/v3/lock/lock", r#"{"lease":-5}"#, 0),
    ("/v3/lock/unlock", r#"{"key":"bG9jay80ZA=="}"#, 0),
    ("/v3/lock/unlock", "{}", 0),
    ("/v3/election/leader", r#"{"name":"ZQ=="}"#, 0),
    ("/v3/election/campaign", r#"{"name":"ZQ==","lease":77,"value":"YQ=="}"#, 0),
    ("/v3/election/campaign", r#"{"name":"ZQ==","lease":77,"value":"Yg=="}"#, 0),
    ("/v3/election/campaign", r#"{"name":"ZQ==","lease":99}"#, 0),
    ("/v3/election/leader", r#"{"name":"ZQ=="}"#, 0),
    ("/v3/election/observe", r#"{"name":"ZQ=="}"#, 1),
    ("/v3/election/proclaim", r#"{"value":"Yw=="}"#, 0),
    ("/v3/election/proclaim", r#"{"leader":{"name":"ZQ==","key":"ZS80ZA==","rev":3,"lease":77},"value":"Yw=="}"#, 0),
    ("/v3/election/resign", r#"{"leader":{"name":"ZQ==","key":"ZS80ZA==","rev":3,"lease":77}}"#, 0),
    ("/v3/election/resign", r#"{"leader":{"lease":77}}"#, 0),
    ("/v3/election/resign", "{}", 0),
    ("/v3/lease/revoke", r#"{"ID":77}"#, 0),
    ("/v3/kv/lease/revoke", r#"{"ID":77}"#, 0),
    ("/v3/kv/compaction", r#"{"revision":4}"#, 0),
    ("/v3/kv/compaction", r#"{"revision":4}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","revision":2}"#, 0),
    ("/v3/watch", r#"{"create_request":{"key":"Zm9v","start_revision":1}}"#, 2),
    ("/v3/cluster/member/list", "{}", 0),
    ("/v3/cluster/member/remove", r#"{"ID":"5"}"#, 0),
    ("/v3/cluster/member/add", r#"{"peerURLs":["nothing"]}"#, 0),
    ("/v3/maintenance/status", "{}", 0),
    ("/v3/maintenance/hash", "{}", 0),
    ("/v3/maintenance/hashkv", "{}", 0),
    ("/v3/maintenance/alarm", r#"{"action":"GET"}"#, 0),
    ("/v3/maintenance/alarm", r#"{"action":"ACTIVATE"}"#, 0),
    ("/v3/maintenance/defragment", "{}", 0),
    ("/v3/maintenance/transfer-leadership", r#"{"targetID":123}"#, 0),
    ("/v3/maintenance/downgrade", r#"{"action":0,"version":"3.0"}"#, 0),
    ("/v3/maintenance/downgrade", r#"{"action":"ENABLE","version":"3.8"}"#, 0),
    ("/v3/maintenance/downgrade", r#"{"action":"VALIDATE","version":"x"}"#, 0),
    ("/v3/maintenance/downgrade", r#"{"action":"CANCEL"}"#, 0),
    ("/v3/maintenance/downgrade", r#"{"action":7}"#, 0),
    ("/v3/maintenance/snapshot", "{}", 1),
    ("/v3/auth/status", "{}", 0),
    ("/v3/nothing", "{}", 0),
    ("/v3/kv/range/", "{}", 0),
    ("/v3/", "{}", 0),
];

/// What differs by its nature: sizes, numbers of raft, the hash of a file of another layout, and the file itself.
const OWN: [&str; 8] =
    ["dbSize", "dbSizeInUse", "raftIndex", "raftAppliedIndex", "remaining_bytes", "blob", "clientURLs", "peerURLs"];

/// An answer, as far as it can be compared.
#[derive(Debug, PartialEq)]
struct Answer {
    status: String,
    headers: Vec<String>,
    lines: Vec<Value>,
}

/// Sends all requests to both servers and compares the answers. Returns how many were alike.
///
/// # Errors
/// Two answers differ, or a server does not start.
pub async fn compare(binaries: &Binaries) -> Result<usize> {
    let dirs = [tempfile::tempdir_in(&binaries.scratch)?, tempfile::tempdir_in(&binaries.scratch)?];
    let start = |binary, dir: usize| {
        let data = dirs[dir].path().join("data");
        async move { Server::start(binary, &data, &binaries.flags).await }
    };
    let (etcd, eddy) = (start(&binaries.reference, 0).await?, start(&binaries.subject, 1).await?);
    // Cluster versions come a moment after the first answer.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut differences = 0;
    for (path, body, lines) in REQUESTS {
        for method in ["POST", "GET"] {
            // Another method is refused whatever the body.
            if method == "GET" && !matches!(*path, "/v3/kv/range" | "/v3/nothing") {
                continue;
            }
            let theirs = ask(&etcd, method, path, body, *lines).await.context("etcd")?;
            let ours = ask(&eddy, method, path, body, *lines).await.context("eddy")?;
            if theirs != ours {
                differences += 1;
                println!("DIFFERENCE, {method} {path} {body}\netcd: {theirs:#?}\neddy: {ours:#?}");
            }
        }
    }
    ensure!(differences == 0, "the gateways differ in {differences} answers");
    Ok(REQUESTS.len())
}

async fn ask(server: &Server, method: &str, path: &str, body: &str, lines: usize) -> Result<Answer> {
    let mut stream = TcpStream::connect(server.address()).await?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: gateway\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer);
        let read = text.lines().filter(|line| line.starts_with("{\"result\"")).count();
        let limit = if lines > 0 && read >= lines { SILENCE } else { PATIENCE };
        match timeout(limit, stream.read_buf(&mut answer)).await {
            Ok(Ok(0)) => break,
            Ok(read) => drop(read.with_context(|| format!("{method} {path} {body}"))?),
            Err(_) if limit == SILENCE => break,
            Err(_) => anyhow::bail!("no answer to {method} {path} {body}"),
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").context("no head")?;
    let mut head = head.lines();
    let status = head.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default().to_owned();
    let told = ["content-type:", "grpc-metadata-", "access-control-", "www-authenticate:"];
    let mut headers: Vec<String> = head
        .filter(|line| told.iter().any(|name| line.to_ascii_lowercase().starts_with(name)))
        .map(|line| {
            line.split_once(':').map_or(String::new(), |(name, value)| format!("{}:{value}", name.to_lowercase()))
        })
        .collect();
    headers.sort();
    // The lines of a stream stand between the sizes of their chunks. A blob can be longer than what is read.
    let mut lines = vec![];
    for line in body.lines().filter(|line| line.starts_with('{')) {
        let mut line = serde_json::from_str(line).unwrap_or_else(|_| Value::from("a part"));
        normalize(&mut line);
        lines.push(line);
    }
    if path == "/v3/maintenance/snapshot" {
        // How many pieces there are is each server's own; the last one is the hash alone.
        lines.drain(..lines.len().saturating_sub(1));
    }
    Ok(Answer { status, headers, lines })
}

fn normalize(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                match name.as_str() {
                    own if OWN.contains(&own) => *field = Value::Null,
                    // What is wrong with the JSON is said in the reader's own words.
                    "message" if is_about_json(field.as_str().unwrap_or_default()) => *field = Value::from("JSON"),
                    _ => normalize(field),
                }
            }
            // The hash of the file, not that of the keys.
            if !fields.contains_key("hash_revision") {
                fields.remove("hash");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        _ => {}
    }
}

fn is_about_json(text: &str) -> bool {
    ["proto:", "unexpected EOF", "invalid character"].iter().any(|start| text.starts_with(start))
}
