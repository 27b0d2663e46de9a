//! The journal on disk: what it promises, checked against a model, crashes, damage and a full disk.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use eddy_server::storage::{DiskJournal, Group, Journal, Options, StorageError};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

mod journal_support;
use journal_support::*;

/// A store of `groups` groups, some of them trimmed again, and what it should hold.
fn sample(dir: &Path, groups: u64) -> (Records, Bytes) {
    let (mut journal, mut model, _) = reopen(dir);
    let mut next = 1;
    let mut head = Bytes::new();
    for g in 0..groups {
        let len = [10, 330, 3000, 20_000][(g % 4) as usize];
        let records: Vec<_> = (next..next + 1 + g % 3).map(|n| record(n, len)).collect();
        head = Bytes::from(format!("head {g}"));
        model.extend((next..).zip(records.iter().cloned()));
        journal.append(&Group { first: next, records: records.clone(), head: head.clone() }).expect("append");
        next += records.len() as u64;
        if g % 7 == 6 {
            let mut dead: BTreeSet<u64> = model.keys().copied().filter(|n| n % 3 == 0).take(4).collect();
            for n in &dead {
                model.remove(n);
            }
            journal.trim(&mut dead, usize::MAX, &mut |_, _| None).expect("trim");
            assert!(dead.is_empty());
        }
    }
    journal.close().expect("close");
    (model, head)
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("create");
    for entry in std::fs::read_dir(from).expect("read") {
        let entry = entry.expect("entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("type").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copy");
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("read") {
        let entry = entry.expect("entry");
        if entry.file_type().expect("type").is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// The newest segment of the log.
fn newest_segment(dir: &Path) -> PathBuf {
    let wal = std::fs::read_dir(dir.join("eddy/wal")).expect("a log");
    wal.map(|entry| entry.expect("entry").path()).max().expect("a segment")
}

/// Where the bytes that were written to the newest segment end.
fn written(dir: &Path) -> usize {
    let log = std::fs::read(newest_segment(dir)).expect("read");
    log.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Opens a store that something was done to: all records, or a refusal that names a file in it.
fn whole_or_refused(dir: &Path, model: &Records, head: &Bytes, what: &str) -> bool {
    let result = open(dir).and_then(|mut journal| load(&mut journal));
    match result {
        Ok((records, found)) => {
            assert!(records == *model && found.as_ref() == Some(head), "{what}: silent loss");
            true
        }
        Err(
            StorageError::Damaged { path, .. }
            | StorageError::Format { path, .. }
            | StorageError::Outdated { path, .. },
        ) => {
            assert!(path.starts_with(dir), "{what}: names {}", path.display());
            false
        }
        Err(e) => panic!("{what}: {e}"),
    }
}

#[test]
fn what_was_appended_is_there_after_reopening() {
    let dir = tempfile::tempdir().expect("dir");
    let (model, head) = sample(dir.path(), 60);
    for _ in 0..2 {
        let (journal, records, found) = reopen(dir.path());
        assert!(records == model);
        assert_eq!(found, Some(head.clone()));
        let bytes: u64 = model.values().map(|r| r.len() as u64 + 8).sum();
        assert_eq!(journal.size_in_use(), bytes);
        assert!(journal.size_allocated() >= bytes);
        assert!(journal.size_on_disk() > bytes);
    }
}

#[test]
fn an_empty_store_has_no_head_and_a_head_alone_is_durable() {
    let dir = tempfile::tempdir().expect("dir");
    let (mut journal, records, head) = reopen(dir.path());
    assert!(records.is_empty() && head.is_none());
    journal.head(Bytes::from_static(b"first")).expect("head");
    drop(journal);
    let (mut journal, records, head) = reopen(dir.path());
    assert!(records.is_empty());
    assert_eq!(head, Some(Bytes::from_static(b"first")));
    let long = Bytes::from(vec![1; 5000]);
    journal.append(&Group { first: 9, records: vec![Bytes::new()], head: long.clone() }).expect("append");
    drop(journal);
    let (mut journal, records, head) = reopen(dir.path());
    assert_eq!((records, head), (Records::from([(9, Bytes::new())]), Some(long)));
    // As with thousands of members. No length is too long, and only what changed of it is written.
    let mut longer = record(1, 300_000).to_vec();
    journal.head(longer.clone().into()).expect("head");
    let before = written(dir.path());
    for n in 0..20 {
        longer[n * 1000] ^= 1;
        journal
            .append(&Group { first: 10 + n as u64, records: vec![Bytes::new()], head: longer.clone().into() })
            .expect("append");
    }
    let cost = (written(dir.path()) - before) / 20;
    assert!(cost < 2000, "{cost} bytes for each small change of a long head");
    drop(journal);
    let (mut journal, records, head) = reopen(dir.path());
    assert_eq!((records.len(), head), (21, Some(longer.into())));
    journal.head(Bytes::new()).expect("still usable");
}

#[test]
fn a_record_of_ten_megabytes_can_be_written_replaced_and_dropped() {
    let dir = tempfile::tempdir().expect("dir");
    let (mut journal, _, _) = reopen(dir.path());
    let huge = record(1, 10 << 20);
    let records = vec![record(7, 5), huge.clone(), record(9, 5), huge.clone(), record(11, 12_289)];
    journal.append(&Group { first: 7, records: records.clone(), head: Bytes::new() }).expect("append");
    journal.defragment().expect("defragment");
    // sled never syncs what it puts into files of its own.
    assert!(
        files(&dir.path().join("eddy/checkpoint.1")).iter().all(|f| !f.parent().is_some_and(|p| p.ends_with("blobs")))
    );
    drop(journal);
    let (mut journal, found, _) = reopen(dir.path());
    assert!(found == (7..).zip(records.clone()).collect::<Records>());
    let mut dead = BTreeSet::from([8, 10]);
    let other = record(2, 1 << 20);
    journal
        .trim(&mut dead, usize::MAX, &mut |number, content| {
            assert!(*content == huge);
            (number == 10).then(|| other.clone())
        })
        .expect("trim");
    drop(journal);
    let (_, found, _) = reopen(dir.path());
    let left = [(7, records[0].clone()), (9, records[2].clone()), (10, other), (11, records[4].clone())];
    assert!(found == Records::from(left));
}

#[test]
fn groups_must_follow_each_other() {
    let dir = tempfile::tempdir().expect("dir");
    let mut journal = open(dir.path()).expect("open");
    let group = |first| Group { first, records: vec![Bytes::from_static(b"x")], head: Bytes::new() };
    assert!(matches!(journal.append(&group(1)), Err(StorageError::NotLoaded)));
    load(&mut journal).expect("load");
    journal.append(&group(5)).expect("append");
    for first in [5, 7, 0] {
        assert!(matches!(journal.append(&group(first)), Err(StorageError::OutOfOrder { expected: 6, .. })));
    }
    journal.trim(&mut BTreeSet::from([5]), 1, &mut |_, _| None).expect("trim");
    assert!(matches!(journal.append(&group(5)), Err(StorageError::OutOfOrder { expected: 6, .. })));
    drop(journal);
    let (mut journal, records, _) = reopen(dir.path());
    assert!(records.is_empty());
    assert!(matches!(journal.append(&group(5)), Err(StorageError::OutOfOrder { expected: 6, .. })));
    journal.append(&group(6)).expect("append");
}

/// A file with holes would let a group begin that the disk has no space for.
#[test]
fn space_is_allocated_before_it_is_written_for_small_groups_and_large() {
    let dir = tempfile::tempdir().expect("dir");
    let (mut journal, ..) = reopen(dir.path());
    let mut first = 1;
    for (len, groups) in [(100, 50), (40_000, 50), (3 << 20, 3), (100, 50)] {
        for _ in 0..groups {
            let group = Group { first, records: vec![record(first, len)], head: Bytes::new() };
            journal.append(&group).expect("append");
            first += 1;
            let log = newest_segment(dir.path()).metadata().expect("log");
            assert!(log.blocks() * 512 >= log.len(), "{} bytes, {} allocated", log.len(), log.blocks() * 512);
        }
    }
    drop(journal);
    let (_, records, _) = reopen(dir.path());
    assert!(records.iter().all(|(number, bytes)| *bytes == record(*number, bytes.len())));
    assert_eq!(records.len() as u64, first - 1);
}

#[test]
fn trim_goes_in_ascending_slices_and_a_checkpoint_merges_small_groups() {
    let dir = tempfile::tempdir().expect("dir");
    let (mut journal, _, _) = reopen(dir.path());
    for first in 1..=500 {
        journal.append(&Group { first, records: vec![record(first, 200)], head: Bytes::new() }).expect("append");
    }
    let mut dead: BTreeSet<u64> = (1..=500).step_by(2).collect();
    let mut asked = Vec::new();
    let mut slices = 0;
    while !dead.is_empty() {
        let before = dead.clone();
        journal
            .trim(&mut dead, 10_000, &mut |number, content| {
                assert_eq!(*content, record(number, 200));
                asked.push(number);
                (number % 4 == 1).then(|| record(number + 1000, 50))
            })
            .expect("trim");
        let taken: Vec<_> = before.difference(&dead).copied().collect();
        assert!(taken.last() < dead.first() || dead.is_empty(), "from the front");
        assert!((1..60).contains(&taken.len()), "{} in one slice", taken.len());
        slices += 1;
    }
    assert!(slices > 5);
    assert_eq!(asked, (1..=500).step_by(2).collect::<Vec<_>>());
    journal.sync().expect("sync");
    drop(journal);
    let (mut journal, records, _) = reopen(dir.path());
    journal.defragment().expect("defragment");
    let model: Records = (1..=500)
        .filter(|n| n % 4 != 3)
        .map(|n| (n, if n % 4 == 1 { record(n + 1000, 50) } else { record(n, 200) }))
        .collect();
    assert!(records == model);
    drop(journal);
    let config = sled::Config::new().path(dir.path().join("eddy/checkpoint.1")).segment_size(1 << 20);
    // sled lets go of its lock only when the last of its threads has dropped a reference, some time after a close.
    let sled = loop {
        match config.open() {
            Err(sled::Error::Io(e)) if e.to_string().contains("could not acquire lock") => std::thread::yield_now(),
            opened => break opened.expect("sled"),
        }
    };
    let pages = sled.iter().count();
    assert!(pages < 40, "{pages} pages for 375 small records");
}

#[test]
fn a_second_opener_is_refused_and_foreign_files_stay() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("dir");
    std::fs::write(dir.path().join("localhost:2379"), b"a socket").expect("write");
    let first = open(dir.path()).expect("open");
    let refused = open(dir.path()).expect_err("in use");
    assert!(matches!(&refused, StorageError::InUse { path } if *path == dir.path().join("eddy")));
    assert!(refused.to_string().contains(&dir.path().display().to_string()), "{refused}");
    drop(first);
    drop(open(dir.path()).expect("open"));
    assert!(dir.path().join("localhost:2379").exists());
    let mode = std::fs::metadata(dir.path().join("eddy")).expect("metadata").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn another_format_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let (model, head) = sample(dir.path(), 3);
    let path = dir.path().join("eddy/format");
    let ours = std::fs::read(&path).expect("read");
    for (older, why) in [("eddy journal 1\n", "laid out"), ("eddy journal 2\n", "40 bits")] {
        std::fs::write(&path, older).expect("write");
        let refused = open(dir.path()).expect_err("refused");
        assert!(matches!(&refused, StorageError::Outdated { path: p, .. } if *p == path), "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
    }
    for other in ["eddy journal 4\n", "", "garbage", "eddy journal 3"] {
        std::fs::write(&path, other).expect("write");
        let refused = open(dir.path()).expect_err("refused");
        assert!(matches!(&refused, StorageError::Format { path: p, .. } if *p == path), "{refused}");
    }
    std::fs::write(&path, ours).expect("write");
    assert!(whole_or_refused(dir.path(), &model, &head, "restored"));
}

#[test]
fn a_missing_file_is_noticed() {
    let dir = tempfile::tempdir().expect("dir");
    let (model, head) = sample(dir.path(), 20);
    for file in files(dir.path()) {
        let copy = tempfile::tempdir().expect("dir");
        copy_tree(dir.path(), copy.path());
        let name = file.strip_prefix(dir.path()).expect("inside");
        std::fs::remove_file(copy.path().join(name)).expect("remove");
        let whole = whole_or_refused(copy.path(), &model, &head, &format!("without {}", name.display()));
        // Without `place` the store is taken for what it seems to be.
        let harmless = name.ends_with("lock") || name.ends_with("place") || name.to_string_lossy().contains("snap.");
        assert!(!whole || harmless, "{} is missing, nobody noticed", name.display());
    }
    let copy = tempfile::tempdir().expect("dir");
    copy_tree(dir.path(), copy.path());
    std::fs::remove_dir_all(copy.path().join("eddy/wal")).expect("remove");
    assert!(!whole_or_refused(copy.path(), &model, &head, "without the log"));
}

/// Does `harm` to a fresh copy of a store `times` times for each of its files.
fn harm_every_file(seed: u64, times: usize, harm: impl Fn(&mut SmallRng, &mut Vec<u8>) -> String) {
    let dir = tempfile::tempdir().expect("dir");
    let (model, head) = sample(dir.path(), 60);
    // Older records in a checkpoint, newer ones in the log.
    let (mut journal, _, _) = reopen(dir.path());
    journal.defragment().expect("defragment");
    let next = model.keys().last().expect("some") + 1;
    let group = Group { first: next, records: vec![record(next, 40_000)], head: head.clone() };
    journal.append(&group).expect("append");
    drop(journal);
    let model = reopen(dir.path()).1;
    let mut refused = 0;
    let mut rng = SmallRng::seed_from_u64(seed);
    for file in files(dir.path()) {
        let name = file.strip_prefix(dir.path()).expect("inside");
        let content = std::fs::read(&file).expect("read");
        if content.is_empty() {
            continue;
        }
        for _ in 0..times {
            let copy = tempfile::tempdir().expect("dir");
            copy_tree(dir.path(), copy.path());
            let mut bad = content.clone();
            let what = harm(&mut rng, &mut bad);
            std::fs::write(copy.path().join(name), bad).expect("write");
            let what = format!("{}: {what}", name.display());
            let whole = whole_or_refused(copy.path(), &model, &head, &what);
            if !whole {
                refused += 1;
                // What was refused stays refused: the attempt repaired nothing.
                assert!(!whole_or_refused(copy.path(), &model, &head, &what), "{what}: accepted at the second start");
            }
        }
    }
    assert!(refused > times, "only {refused} were noticed");
}

#[test]
fn a_truncated_file_is_noticed_wherever_it_is_cut() {
    harm_every_file(1, 120, |rng, content| {
        let len = rng.random_range(0..content.len());
        content.truncate(len);
        format!("cut to {len}")
    });
}

#[test]
fn flipped_bits_are_noticed_wherever_they_are() {
    harm_every_file(2, 160, |rng, content| {
        // Most of the log's end is space that was reserved.
        let used = content.iter().rposition(|b| *b != 0).map_or(1, |last| last + 1);
        let at = rng.random_range(0..used);
        let bit = rng.random_range(0..8);
        content[at] ^= 1 << bit;
        format!("bit {bit} of byte {at}")
    });
}

#[test]
fn zeroed_blocks_are_noticed_wherever_they_are() {
    harm_every_file(3, 80, |rng, content| {
        let used = content.iter().rposition(|b| *b != 0).map_or(1, |last| last + 1);
        let at = rng.random_range(0..used) / 512 * 512;
        let end = (at + 4096).min(content.len());
        content[at..end].fill(0);
        format!("zeros from {at}")
    });
}

#[test]
fn damage_is_refused_before_anything_is_repaired() {
    let dir = tempfile::tempdir().expect("dir");
    let (mut journal, _, _) = reopen(dir.path());
    for first in 1..200 {
        journal.append(&Group { first, records: vec![record(first, 700)], head: Bytes::new() }).expect("append");
    }
    // As a crash leaves it: nothing is closed in order.
    let copy = tempfile::tempdir().expect("dir");
    copy_tree(dir.path(), copy.path());
    let log = newest_segment(copy.path());
    let mut content = std::fs::read(&log).expect("read");
    content[60_000] ^= 1;
    std::fs::write(&log, &content).expect("write");
    let refused = open(copy.path()).and_then(|mut j| load(&mut j)).expect_err("damaged");
    assert!(matches!(&refused, StorageError::Damaged { path, .. } if *path == log), "{refused}");
    assert!(refused.to_string().contains("byte"), "{refused}");
    assert!(std::fs::read(&log).expect("read") == content, "the evidence was altered");
}

/// Of a crash nothing is known but the log itself; but a file that was cut, or lacks its end, is noticed all the same.
#[test]
fn a_log_that_was_cut_after_a_crash_is_noticed() {
    let dir = tempfile::tempdir().expect("dir");
    let (mut journal, _, _) = reopen(dir.path());
    for first in 1..=50 {
        journal.append(&Group { first, records: vec![record(first, 700)], head: Bytes::new() }).expect("append");
    }
    let end = written(dir.path());
    for len in [0, 1, 100, end / 2, end - 1, end] {
        let copy = tempfile::tempdir().expect("dir");
        copy_tree(dir.path(), copy.path());
        let log = newest_segment(copy.path());
        std::fs::OpenOptions::new().write(true).open(&log).expect("open").set_len(len as u64).expect("cut");
        let refused = open(copy.path()).and_then(|mut j| load(&mut j)).expect_err("damaged");
        assert!(matches!(&refused, StorageError::Damaged { path, .. } if *path == log), "cut to {len}: {refused}");
    }
}

/// Small segments, so that checkpoints come and go, in the background.
#[test]
fn checkpoints_in_the_background_lose_nothing_and_give_space_back() {
    let dir = tempfile::tempdir().expect("dir");
    let options = Options { segment_bytes: 300_000, log_bytes: 1 << 20, ..Options::default() };
    let mut model = Records::new();
    let mut first = 1;
    for life in 0..4 {
        let mut journal = DiskJournal::open(dir.path(), options).expect("open");
        let (records, _) = load(&mut journal).expect("load");
        assert!(records == model);
        for _ in 0..1500 {
            // A state that is rewritten over and over: only the newest 20 records live.
            model.insert(first, record(first, 3000));
            let group = Group { first, records: vec![record(first, 3000)], head: Bytes::from(first.to_string()) };
            journal.append(&group).expect("append");
            let mut dead: BTreeSet<u64> = model.keys().copied().filter(|n| n + 20 <= first && n % 50 != 0).collect();
            model.retain(|n, _| !dead.contains(n));
            journal.trim(&mut dead, usize::MAX, &mut |_, _| None).expect("trim");
            journal.work().expect("work");
            first += 1;
        }
        if life == 1 {
            // A stop gives up the checkpoint that is on its way.
            continue;
        }
        while journal.is_busy() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            journal.work().expect("work");
        }
        journal.sync().expect("sync");
        let names = files(&dir.path().join("eddy"));
        assert!(names.iter().any(|name| name.to_string_lossy().contains("checkpoint.")), "{names:?}");
        assert!(journal.size_on_disk() < 12 << 20, "{} bytes on disk", journal.size_on_disk());
        // As a kill leaves it, perhaps while a checkpoint is built.
        let copy = tempfile::tempdir().expect("dir");
        copy_tree(dir.path(), copy.path());
        let (_, records, head) = reopen(copy.path());
        assert!(records == model && head == Some(Bytes::from((first - 1).to_string())));
    }
}

#[test]
fn an_unacknowledged_torn_tail_is_cut_silently() {
    let dir = tempfile::tempdir().expect("dir");
    let (mut journal, _, _) = reopen(dir.path());
    let mut model = Records::new();
    let mut head = Bytes::new();
    for first in 1..50 {
        model.insert(first, record(first, 700));
        head = Bytes::from(first.to_string());
        journal.append(&Group { first, records: vec![record(first, 700)], head: head.clone() }).expect("append");
    }
    let before = tempfile::tempdir().expect("dir");
    copy_tree(dir.path(), before.path());
    let group = Group { first: 50, records: (50..90).map(|n| record(n, 700)).collect(), head: Bytes::new() };
    journal.append(&group).expect("append");
    let old = std::fs::read(newest_segment(before.path())).expect("read");
    let new = std::fs::read(newest_segment(dir.path())).expect("read");
    // The space for it was reserved, and synced, before.
    let old = [&old[..], &vec![0; new.len() - old.len()]].concat();
    let changed: Vec<usize> = (0..old.len()).filter(|i| old[*i] != new[*i]).collect();
    let (from, to) = (changed[0], changed[changed.len() - 1]);
    let mut with_all = 0;
    for step in 0..=40 {
        // The write of the last group was interrupted after some of its bytes; it was never acknowledged.
        let cut = from + (to + 1 - from) * step / 40;
        let copy = tempfile::tempdir().expect("dir");
        copy_tree(before.path(), copy.path());
        let mut torn = old.clone();
        torn[..cut].copy_from_slice(&new[..cut]);
        std::fs::write(newest_segment(copy.path()), torn).expect("write");
        let (mut journal, records, found) = reopen(copy.path());
        if records.len() == 89 {
            with_all += 1;
            continue;
        }
        assert!(records == model && found == Some(head.clone()), "cut at {cut}: {} records", records.len());
        journal.append(&group).expect("the journal continues");
        drop(journal);
        assert_eq!(reopen(copy.path()).1.len(), 89);
    }
    assert!(with_all >= 1, "the whole write counts");
}

#[test]
fn an_interrupted_checkpoint_leaves_one_whole_store() {
    let dir = tempfile::tempdir().expect("dir");
    let (model, head) = sample(dir.path(), 30);
    let eddy = |root: &Path| root.join("eddy");
    let after = tempfile::tempdir().expect("dir");
    copy_tree(dir.path(), after.path());
    let (mut journal, _, _) = reopen(after.path());
    journal.defragment().expect("defragment");
    drop(journal);
    assert!(whole_or_refused(after.path(), &model, &head, "after"));
    assert!(!eddy(after.path()).join("wal/0000000000000001.log").exists(), "the old segment is gone");
    let checkpoint = eddy(after.path()).join("checkpoint.1");
    let content = files(&checkpoint);
    // Before the naming: any part of the new checkpoint, and of the file that names it.
    for part in 0..=content.len() {
        let copy = tempfile::tempdir().expect("dir");
        copy_tree(dir.path(), copy.path());
        let draft = eddy(copy.path()).join("checkpoint.1");
        std::fs::create_dir(&draft).expect("create");
        for file in &content[..part] {
            std::fs::write(draft.join(file.file_name().expect("a name")), b"part of it").expect("write");
        }
        std::fs::write(eddy(copy.path()).join("current.new"), &b"checkpoint 1\nsegm"[..part * 3]).expect("write");
        std::fs::write(eddy(copy.path()).join("wal/0000000000000002.new"), b"part").expect("write");
        assert!(whole_or_refused(copy.path(), &model, &head, "before the naming"), "refused");
        assert!(!draft.exists() && !eddy(copy.path()).join("current.new").exists());
        assert!(!eddy(copy.path()).join("wal/0000000000000002.new").exists());
        assert!(whole_or_refused(copy.path(), &model, &head, "before the naming"), "refused at the second start");
    }
    // After it: what was not removed yet.
    copy_tree(&eddy(dir.path()).join("wal"), &eddy(after.path()).join("wal"));
    copy_tree(&checkpoint, &eddy(after.path()).join("checkpoint.0"));
    std::fs::write(eddy(after.path()).join("checkpoint.0/db"), b"part of it").expect("write");
    assert!(whole_or_refused(after.path(), &model, &head, "after the naming"), "refused");
    assert!(!eddy(after.path()).join("checkpoint.0").exists());
    assert!(!eddy(after.path()).join("wal/0000000000000001.log").exists());
}

/// Nothing was acknowledged yet, so nothing is asked of the user.
#[test]
fn a_creation_that_was_cut_short_anywhere_begins_again() {
    let whole = tempfile::tempdir().expect("dir");
    let eddy = |root: &Path| root.join("eddy");
    drop(open(whole.path()).expect("open"));
    let read = |name: &str| std::fs::read(eddy(whole.path()).join(name)).expect("read");
    let header = read("wal/0000000000000001.log")[..200].to_vec();
    let copies = [
        // The log is made first, then the file that names it, then the format.
        ("wal/0000000000000001.new", header, &["wal/0000000000000001.log", "current", "format"][..]),
        ("current.new", read("current"), &["current", "format"]),
        ("format.new", read("format"), &["format"]),
    ];
    for (name, content, lacks) in copies {
        for cut in 0..=content.len() {
            let copy = tempfile::tempdir().expect("dir");
            copy_tree(whole.path(), copy.path());
            for lost in lacks {
                std::fs::remove_file(eddy(copy.path()).join(lost)).expect("remove");
            }
            std::fs::write(eddy(copy.path()).join(name), &content[..cut]).expect("write");
            let (mut journal, records, head) = reopen(copy.path());
            assert!(records.is_empty() && head.is_none(), "{cut} bytes of {name}");
            journal.head(Bytes::from_static(b"h")).expect("usable");
            drop(journal);
            assert_eq!(reopen(copy.path()).2, Some(Bytes::from_static(b"h")));
        }
    }
}

#[test]
fn defragment_gives_space_back_and_the_journal_goes_on() {
    let dir = tempfile::tempdir().expect("dir");
    let (mut journal, _, _) = reopen(dir.path());
    for g in 0..20u64 {
        let records = (0..500).map(|i| record(g * 500 + i, 1500)).collect();
        journal.append(&Group { first: 1 + g * 500, records, head: Bytes::from_static(b"h") }).expect("append");
    }
    let mut dead: BTreeSet<u64> = (1..=9900).collect();
    while !dead.is_empty() {
        journal.trim(&mut dead, 1 << 20, &mut |_, _| None).expect("trim");
    }
    journal.sync().expect("sync");
    let before = journal.size_on_disk();
    assert!(journal.size_allocated() > 15_000_000 && journal.size_in_use() < 200_000);
    journal.defragment().expect("defragment");
    assert_eq!(journal.size_allocated(), journal.size_in_use());
    assert!(journal.size_on_disk() < 4_000_000 && before > 15_000_000, "{before} -> {}", journal.size_on_disk());
    journal
        .append(&Group { first: 10_001, records: vec![record(1, 10)], head: Bytes::from_static(b"i") })
        .expect("append");
    journal.defragment().expect("again");
    drop(journal);
    let (_, records, head) = reopen(dir.path());
    assert_eq!(records.keys().copied().collect::<Vec<_>>(), (9901..=10_001).collect::<Vec<_>>());
    assert_eq!(head, Some(Bytes::from_static(b"i")));
}

#[derive(Debug, Clone)]
enum Op {
    Append(Vec<usize>),
    Head(u8),
    Trim { modulus: u64, replace: bool, max: usize },
    Sync,
    Defragment,
    Reopen,
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![8 => 0usize..400, 3 => 400usize..4000, 1 => 12_000usize..40_000];
    prop_oneof![
        10 => proptest::collection::vec(len, 1..12).prop_map(Op::Append),
        1 => any::<u8>().prop_map(Op::Head),
        5 => (1u64..6, any::<bool>(), 1usize..60_000).prop_map(|(modulus, replace, max)| Op::Trim { modulus, replace, max }),
        1 => Just(Op::Sync),
        1 => Just(Op::Defragment),
        2 => Just(Op::Reopen),
        2 => Just(Op::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any sequence of operations leaves what a map would hold. A crash here is that of the process: what was written
    /// stays, acknowledged or not. So a trim that was not flushed may or may not be there, but never by halves.
    #[test]
    fn the_journal_is_a_map(ops in proptest::collection::vec(op(), 1..40)) {
        let mut dir = tempfile::tempdir().expect("dir");
        let (mut journal, mut model, mut head) = reopen(dir.path());
        let mut next = 1;
        let mut before_trims: Vec<Records> = Vec::new();
        for op in ops {
            match op {
                Op::Append(lens) => {
                    let records: Vec<_> = (next..).zip(lens).map(|(n, len)| record(n, len)).collect();
                    head = Some(Bytes::from(format!("head {next}")));
                    let group = Group { first: next, records: records.clone(), head: head.clone().expect("set") };
                    journal.append(&group).expect("append");
                    model.extend((next..).zip(records.iter().cloned()));
                    next += records.len() as u64;
                    before_trims.clear();
                }
                Op::Head(n) => {
                    head = Some(Bytes::from(vec![n; usize::from(n) * 10]));
                    journal.head(head.clone().expect("set")).expect("head");
                    before_trims.clear();
                }
                Op::Trim { modulus, replace, max } => {
                    before_trims.push(model.clone());
                    let all: BTreeSet<u64> = (1..next).filter(|n| n % modulus == 0).collect();
                    let mut dead = all.clone();
                    journal.trim(&mut dead, max, &mut |n, old| {
                        assert!(Some(old) == model.get(&n), "record {n}");
                        replace.then(|| record(n + 1_000_000, old.len() / 2))
                    }).expect("trim");
                    for n in all.difference(&dead) {
                        if let Some(old) = model.remove(n) && replace {
                            model.insert(*n, record(n + 1_000_000, old.len() / 2));
                        }
                    }
                }
                Op::Sync => { journal.sync().expect("sync"); before_trims.clear(); }
                Op::Defragment => { journal.defragment().expect("defragment"); before_trims.clear(); }
                Op::Reopen => {
                    drop(journal);
                    let found;
                    let found_head;
                    (journal, found, found_head) = reopen(dir.path());
                    prop_assert!(found == model);
                    prop_assert_eq!(&found_head, &head);
                    before_trims.clear();
                }
                Op::Crash => {
                    let copy = tempfile::tempdir().expect("dir");
                    copy_tree(dir.path(), copy.path());
                    drop(journal);
                    dir = copy;
                    let found;
                    let found_head;
                    (journal, found, found_head) = reopen(dir.path());
                    prop_assert!(found == model || before_trims.contains(&found));
                    prop_assert_eq!(&found_head, &head);
                    model = found;
                    before_trims.clear();
                }
            }
            let bytes: u64 = model.values().map(|r| r.len() as u64 + 8).sum();
            prop_assert_eq!(journal.size_in_use(), bytes);
        }
    }
}
