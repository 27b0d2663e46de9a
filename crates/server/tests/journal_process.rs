//! The journal in processes that are killed, or whose disk is full. Apart from the other tests: a process that is being
//! started shares its parent's file locks for a moment.

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use eddy_server::storage::{Group, Journal, StorageError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

mod journal_support;
use journal_support::*;

/// Set for the child that the next test starts: where it should write.
const CHILD_DIR: &str = "EDDY_TEST_JOURNAL_DIR";

/// The child: appends groups for ever and reports each acknowledged one on stdout.
#[test]
fn child_appends_until_killed() {
    use std::io::Write;
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let (mut journal, records, _) = reopen(Path::new(&dir));
    let mut next = records.last_key_value().map_or(1, |(n, _)| n + 1);
    let mut out = std::io::stdout().lock();
    loop {
        let count = 1 + next % 5 * (next % 3) * 10;
        let group = (next..next + count).map(|n| record(n, 100 + (n % 700) as usize)).collect();
        next += count;
        let head = Bytes::from((next - 1).to_string());
        journal.append(&Group { first: next - count, records: group, head }).expect("append");
        if writeln!(out, "acknowledged {}", next - 1).and_then(|()| out.flush()).is_err() {
            return;
        }
        if next % 11 == 0 {
            let mut dead: BTreeSet<u64> = records_to_drop(next).collect();
            journal.trim(&mut dead, usize::MAX, &mut |_, _| None).expect("trim");
        }
        journal.work().expect("work");
    }
}

/// Every third record below 3/4 of the journal is dropped at some time.
fn records_to_drop(next: u64) -> impl Iterator<Item = u64> {
    ((next / 2)..(next * 3 / 4)).filter(|n| n % 3 == 0)
}

#[test]
fn a_killed_process_loses_nothing_that_it_acknowledged() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let dir = tempfile::tempdir().expect("dir");
    let mut acknowledged = 0;
    let mut rng = SmallRng::seed_from_u64(9);
    for round in 0..25 {
        let mut child = Command::new(std::env::current_exe().expect("exe"))
            .args(["--exact", "child_appends_until_killed", "--nocapture", "--test-threads=1"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn");
        let patience = rng.random_range(1..60);
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut seen = 0;
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some(number) = line.strip_prefix("acknowledged ") {
                acknowledged = number.parse().expect("number");
                seen += 1;
                if seen == patience {
                    child.kill().expect("kill");
                }
            }
        }
        child.wait().expect("wait");
        assert!(seen >= patience, "round {round}: the child ended by itself");
        let (journal, records, head) = reopen(dir.path());
        let last = *records.last_key_value().expect("some").0;
        assert!(last >= acknowledged, "round {round}: {acknowledged} was acknowledged, {last} is the last");
        assert_eq!(head, Some(Bytes::from(last.to_string())));
        for number in 1..=last {
            let Some(content) = records.get(&number) else {
                assert!(number % 3 == 0 && number < last * 3 / 4 + 1, "round {round}: {number} is missing");
                continue;
            };
            assert!(*content == record(number, 100 + (number % 700) as usize), "round {round}: {number}");
        }
        drop(journal);
    }
    assert!(acknowledged > 500);
}

#[test]
fn a_full_disk_refuses_the_write_and_loses_nothing() {
    use std::process::Command;
    let dir = tempfile::tempdir().expect("dir");
    let mount = dir.path().join("disk");
    std::fs::create_dir(&mount).expect("create");
    // A file size limit is a disk that is full for this file, and needs no privileges. The shell's child ignores the
    // signal that the limit sends.
    let status = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 12000; exec \"$0\" --exact child_fills_its_disk --nocapture"])
        .arg(std::env::current_exe().expect("exe"))
        .env(CHILD_DIR, &mount)
        .status()
        .expect("sh");
    assert!(status.success());
    let acknowledged: u64 =
        std::fs::read_to_string(mount.join("acknowledged")).expect("written by the child").parse().expect("number");
    assert!(acknowledged > 5);
    let (mut journal, records, _) = reopen(&mount);
    assert_eq!(records.keys().copied().collect::<Vec<_>>(), (1..=acknowledged).collect::<Vec<_>>());
    assert!(records.iter().all(|(n, r)| *r == record(*n, 50_000)));
    let group = Group { first: acknowledged + 1, records: vec![record(1, 50_000)], head: Bytes::new() };
    journal.append(&group).expect("with space again, the journal goes on");
}

/// The child: fills a limited file, and is refused without losing the ability to read, drop and go on.
#[test]
fn child_fills_its_disk() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let dir = Path::new(&dir);
    let (mut journal, _, _) = reopen(dir);
    let mut next = 1;
    let refused = loop {
        assert!(next < 2000, "the limit has no effect");
        let group = Group { first: next, records: vec![record(next, 50_000)], head: Bytes::new() };
        match journal.append(&group) {
            Ok(_) => next += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(&refused, StorageError::NoSpace { path } if path.starts_with(dir.join("eddy/wal"))), "{refused}");
    for _ in 0..3 {
        let group = Group { first: next, records: vec![record(next, 50_000)], head: Bytes::new() };
        assert!(matches!(journal.append(&group), Err(StorageError::NoSpace { .. })));
    }
    journal.sync().expect("a full disk does not poison");
    std::fs::write(dir.join("acknowledged"), (next - 1).to_string()).expect("write");
}
