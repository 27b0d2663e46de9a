//! `eddy rescue`: exports writes of a stopped replica that no other member is known to have, as JSON lines in the order of
//! the writes. For the disk of a member that was removed, or that will never come back.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use bytes::Bytes;
use eddy_crdt::{Change, ChangeKind, EntryHead, Head, Keyspace, Record, ReplicaId, VersionVector};
use serde_json::{Map, Value, json};

use crate::storage::{DiskJournal, Journal, Options};

#[derive(clap::Args, Debug)]
pub(super) struct RescueArgs {
    /// The data dir of the stopped replica.
    #[arg(long)]
    data_dir: PathBuf,
}

/// Reads the journal and prints. What was printed before an error is right, and may not be all.
pub(super) fn run(args: &RescueArgs) -> anyhow::Result<ExitCode> {
    if !args.data_dir.join("eddy").exists() {
        bail!("{} is no data dir of eddy", args.data_dir.display());
    }
    let mut journal = DiskJournal::open(&args.data_dir, Options::default())?;
    let head =
        Head::decode(&journal.last_head().context("the journal is empty")?).context("the head of the journal")?;
    let own = head.identity.replica;
    let mut known_elsewhere = VersionVector::default();
    for (_, vector) in head.acks.iter().filter(|(origin, _)| origin.replica != own) {
        known_elsewhere.merge(vector);
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let (mut writes, mut failed) = (0_u64, None);
    journal.load(&mut |_, record| {
        if failed.is_none() {
            match print(record, own, &known_elsewhere, &mut out) {
                Ok(printed) => writes += printed,
                Err(error) => failed = Some(error),
            }
        }
        Ok(())
    })?;
    failed.map_or(Ok(()), Err)?;
    out.flush()?;
    eprintln!("{writes} writes of member {own} that no other member is known to have");
    Ok(ExitCode::SUCCESS)
}

/// Prints what no other member is known to have of a record. Tells how many writes these are.
fn print(record: Bytes, own: ReplicaId, known_elsewhere: &VersionVector, out: &mut impl Write) -> anyhow::Result<u64> {
    let record = Record::decode(record).context("a record of the journal")?;
    // A record without an entry holds only what belongs to this replica alone.
    let Some(EntryHead { dot, stamp, .. }) = record.head else { return Ok(0) };
    if dot.origin.replica != own || known_elsewhere.contains(dot) {
        return Ok(0);
    }
    let mut writes = 0;
    for change in record.changes.iter().filter(|change| change.keyspace == Keyspace::Client) {
        let mut line = line(change);
        line.insert("birth".to_owned(), json!(dot.origin.birth.to_string()));
        line.insert("seq".to_owned(), json!(dot.seq));
        line.insert("time_ms".to_owned(), json!(stamp.wall_ms()));
        serde_json::to_writer(&mut *out, &Value::Object(line))?;
        out.write_all(b"\n")?;
        writes += 1;
    }
    Ok(writes)
}

fn line(change: &Change) -> Map<String, Value> {
    let mut line = Map::new();
    put(&mut line, "key", &change.key);
    let op = match &change.kind {
        ChangeKind::Put { value, lease, .. } => {
            put(&mut line, "value", value);
            if let Some(lease) = lease {
                line.insert("lease".to_owned(), json!(lease.to_string()));
            }
            "put"
        }
        ChangeKind::Delete => "delete",
        ChangeKind::Expire => "expire",
    };
    line.insert("op".to_owned(), json!(op));
    line
}

/// Adds text as it is, and other bytes in Base64 under another name.
fn put(line: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => line.insert(name.to_owned(), json!(text)),
        Err(_) => line.insert(format!("{name}_base64"), json!(base64(bytes))),
    };
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_in_the_rfc() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn bytes_that_are_no_text_keep_their_value() {
        let mut line = Map::new();
        put(&mut line, "key", b"a");
        put(&mut line, "value", &[0xff, 0]);
        assert_eq!(Value::Object(line), json!({ "key": "a", "value_base64": "/wA=" }));
    }
}
