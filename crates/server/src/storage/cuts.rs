//! The store under random power cuts, full and broken disks, and bit rot, on a disk in memory.
//!
//! `EDDY_CUTS` is how many power cuts there are (default 100,000), `EDDY_CUTS_SEED` the first seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::checkpoint::job::Pace;
use super::error::StorageError;
use super::simulated::trees::SimulatedTrees;
use super::simulated::{Fault, SimulatedDisk};
use super::store::{Setup, Store};
use super::wal;

const ROOT: &str = "/store";

/// Cuts of one disk after another, until it begins anew.
const LIVES: usize = 40;

/// How many outcomes of each cut are looked at.
const OUTCOMES: u64 = 8;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Model {
    records: BTreeMap<u64, Bytes>,
    head: Option<Bytes>,
    next: u64,
}

/// What a run came across.
#[derive(Debug, Default)]
struct Seen {
    cuts: u64,
    checkpoints: u64,
    with_more: u64,
}

const LOG: wal::Options = wal::Options { segment_bytes: 2500, grow_bytes: 512, sync: true };

fn open(disk: &SimulatedDisk, log: wal::Options, seed: u64) -> Result<Store, StorageError> {
    let setup = Setup {
        disk: Arc::new(disk.clone()),
        trees: Arc::new(SimulatedTrees(disk.clone())),
        root: PathBuf::from(ROOT),
        log,
        log_bytes: 4000,
        pace: Pace::Steps(300),
        retry: Duration::ZERO,
    };
    Store::open(setup, Box::new(numbers(seed)))
}

fn numbers(seed: u64) -> impl FnMut() -> std::io::Result<u64> + Send {
    let mut rng = SmallRng::seed_from_u64(seed);
    move || Ok(rng.random())
}

pub(super) fn created(seed: u64) -> SimulatedDisk {
    let disk = SimulatedDisk::new(seed);
    Store::create(&disk, Path::new(ROOT), LOG, &mut numbers(seed)).expect("nothing fails");
    disk
}

/// What a store holds.
pub(super) fn load(disk: &SimulatedDisk, seed: u64) -> Result<(Store, Model), StorageError> {
    let mut store = open(disk, LOG, seed)?;
    let mut records = BTreeMap::new();
    store.load(&mut |number, record| {
        records.insert(number, record);
        Ok(())
    })?;
    let (head, next) = (store.last_head(), store.meta().next.unwrap_or_default());
    Ok((store, Model { records, head, next }))
}

/// A store in use, and what it must hold.
struct Life {
    store: Store,
    /// What is acknowledged.
    durable: Model,
    /// What the store may have made so by itself since.
    midway: Vec<Model>,
    /// What the next write makes so.
    ahead: Model,
    rng: SmallRng,
}

impl Life {
    fn new(store: Store, found: Model, seed: u64) -> Self {
        Self { store, durable: found.clone(), midway: vec![], ahead: found, rng: SmallRng::seed_from_u64(seed) }
    }

    fn bytes(&mut self) -> Bytes {
        let length = match self.rng.random_range(0..20) {
            0 => 1500,
            1..4 => 300,
            _ => self.rng.random_range(0..60),
        };
        (0..length).map(|_| self.rng.random::<u8>()).collect()
    }

    /// Does something. An error: what it would have made so may be so or not.
    fn act(&mut self) -> Result<(), StorageError> {
        let done = match self.rng.random_range(0..20) {
            0..9 => self.append(),
            9..12 => return self.trim(),
            12 => self.store.sync(),
            13 if self.rng.random_ratio(1, 8) => self.store.defragment(),
            _ => {
                // The beginning of a checkpoint writes what waits for the next group.
                self.midway.push(self.ahead.clone());
                return self.store.work();
            }
        };
        if done.is_ok() {
            self.acknowledged();
        }
        done
    }

    fn acknowledged(&mut self) {
        self.durable = self.ahead.clone();
        self.midway.clear();
    }

    /// What may be there after a crash.
    fn allowed(self) -> Vec<Model> {
        [vec![self.durable, self.ahead], self.midway].concat()
    }

    fn append(&mut self) -> Result<(), StorageError> {
        let count = [0, 1, 1, 1, 2, 5][self.rng.random_range(0..6)];
        let records: Vec<_> = (0..count).map(|_| self.bytes()).collect();
        let mut head = self.ahead.head.clone().unwrap_or_default().to_vec();
        head.resize([90, 90, 90, 91, 400][self.rng.random_range(0..5)], 7);
        head[..8].copy_from_slice(&self.rng.random::<u64>().to_le_bytes());
        let first = self.ahead.next.max(1);
        let before = self.ahead.clone();
        self.ahead.records.extend((first..).zip(records.iter().cloned()));
        self.ahead.next = if count > 0 { first + count } else { self.ahead.next };
        self.ahead.head = Some(head.clone().into());
        let appended = self.store.append(first, &records, head.into());
        if matches!(appended, Err(StorageError::NoSpace { .. })) {
            self.ahead = before;
        }
        appended.map(drop)
    }

    fn trim(&mut self) -> Result<(), StorageError> {
        let modulus = self.rng.random_range(1..5);
        let from = self.rng.random_range(0..=self.ahead.next);
        let mut dead: BTreeSet<u64> = (from..self.ahead.next).filter(|n| n % modulus == 0).take(12).collect();
        let (all, replace) = (dead.clone(), self.rng.random_ratio(1, 3));
        let max = self.rng.random_range(1..3000);
        let trimmed = self.store.trim(&mut dead, max, &mut |_, old| replace.then(|| old.slice(old.len() / 2..)));
        for number in all.difference(&dead) {
            if let Some(old) = self.ahead.records.remove(number)
                && replace
            {
                self.ahead.records.insert(*number, old.slice(old.len() / 2..));
            }
        }
        trimmed
    }
}

/// Lives with a power cut at the end of each. The error says what was not as it should be.
fn lives(seed: u64, left_out: Option<&'static str>, seen: &mut Seen) -> Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut disk = created(seed);
    if let Some(what) = left_out {
        disk.leave_out(what);
    }
    let mut allowed = vec![Model::default()];
    for life in 0..LIVES {
        let at = |what: &str| format!("seed {seed}, life {life}: {what}");
        disk.fail_at(rng.random_range(1..60), Fault::Cut);
        match load(&disk, rng.random()) {
            Err(e) if !e.to_string().contains("no power") => return Err(at(&e.to_string())),
            Err(_) => {}
            Ok((store, found)) => {
                if !allowed.contains(&found) {
                    return Err(at("the outcome was none of those that were looked at"));
                }
                let mut life = Life::new(store, found, rng.random());
                let error = loop {
                    if let Err(e) = life.act() {
                        break e;
                    }
                };
                if !error.to_string().contains("no power") {
                    return Err(at(&error.to_string()));
                }
                seen.checkpoints += u64::from(disk.names().iter().any(|name| name.ends_with("tree")));
                allowed = life.allowed();
            }
        }
        let first = rng.random();
        for outcome in 0..OUTCOMES {
            seen.cuts += 1;
            let after = disk.after_cut(first ^ outcome);
            let (_, found) = load(&after, 0).map_err(|e| at(&e.to_string()))?;
            if !allowed.contains(&found) {
                let count = found.records.len();
                return Err(at(&format!("{count} records, next {}; {} before", found.next, allowed[0].records.len())));
            }
            seen.with_more += u64::from(found != allowed[0]);
        }
        disk = disk.after_cut(first);
    }
    Ok(())
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let (cuts, first) = (number("EDDY_CUTS", 100_000), number("EDDY_CUTS_SEED", 1));
    let mut seen = Seen::default();
    for seed in first.. {
        lives(seed, None, &mut seen).expect("whole");
        if seen.cuts >= cuts {
            break;
        }
    }
    println!("{seen:?}");
    assert!(seen.checkpoints > cuts / OUTCOMES / 10, "cuts hardly ever meet a checkpoint: {seen:?}");
    assert!(seen.with_more > cuts / 100, "what was not acknowledged is hardly ever there: {seen:?}");
}

/// The test can see: without any one of the syncs something is lost soon.
#[test]
fn a_sync_that_is_left_out_is_noticed() {
    let kinds = [
        "log",
        "length",
        "segment",
        "folder of the log",
        "tree",
        "folder of a checkpoint",
        "current",
        "folder of the store",
    ];
    for what in kinds {
        let mut seen = Seen::default();
        let found = (1..200).find_map(|seed| lives(seed, Some(what), &mut seen).err());
        println!("without the sync of the {what}, after {} cuts: {found:?}", seen.cuts);
        assert!(found.is_some(), "nothing is lost without the sync of the {what}");
    }
}

/// A disk that is full, or broken, at the n-th call for every n.
#[test]
fn a_full_or_broken_disk_at_any_call_loses_nothing() {
    for (fault, calls) in [(Fault::Full, 400), (Fault::Broken, 400)] {
        let (mut refused, mut poisoned) = (0, 0);
        for nth in 1..calls {
            let disk = created(nth);
            let (store, found) = load(&disk, nth).expect("an empty store");
            let mut life = Life::new(store, found, nth % 7);
            disk.fail_at(nth, fault);
            let mut error = None;
            while disk.calls() < nth + 60 && error.is_none() {
                error = life.act().err();
            }
            match &error {
                // Checkpoints are tried again by themselves.
                None => {}
                Some(StorageError::NoSpace { .. }) => refused += 1,
                // A checkpoint that somebody waited for leaves the store as it was.
                Some(StorageError::Io { .. }) => poisoned += u64::from(life.store.ready().is_err()),
                Some(e) => panic!("{fault:?} at call {nth}: {e}"),
            }
            if life.store.ready().is_ok() {
                for _ in 0..30 {
                    life.act().unwrap_or_else(|e| panic!("{fault:?} at call {nth}, and then: {e}"));
                }
                life.store.sync().expect("there is space again");
                life.acknowledged();
            } else {
                assert!(matches!(life.store.sync(), Err(StorageError::Poisoned)), "{fault:?} at call {nth}");
            }
            let allowed = life.allowed();
            for after in [disk.after_kill(), disk.after_cut(nth)] {
                let (_, found) = load(&after, nth).unwrap_or_else(|e| panic!("{fault:?} at call {nth}: {e}"));
                assert!(allowed.contains(&found), "{fault:?} at call {nth}, {error:?}");
            }
        }
        println!("{fault:?}: {refused} refused, {poisoned} poisoned");
        assert!(if fault == Fault::Full { refused > calls / 4 } else { poisoned > calls / 2 });
    }
}

/// A store that was closed in order, with a checkpoint and a log behind it.
fn closed(seed: u64) -> (SimulatedDisk, Model) {
    let disk = created(seed);
    let (store, found) = load(&disk, seed).expect("an empty store");
    let mut life = Life::new(store, found, seed);
    while disk.calls() < 150 {
        life.act().expect("nothing fails");
    }
    life.store.defragment().expect("nothing fails");
    for _ in 0..20 {
        life.append().expect("nothing fails");
    }
    life.store.close().expect("nothing fails");
    (disk, life.ahead)
}

#[test]
fn bit_rot_in_any_file_is_noticed_with_file_and_place() {
    let (disk, model) = closed(3);
    let mut rng = SmallRng::seed_from_u64(4);
    let names = disk.names();
    assert!(names.iter().any(|name| name.ends_with("tree")) && names.len() >= 4, "{names:?}");
    for name in names {
        let (mut noticed, mut harmless) = (0, 0);
        for round in 0..600 {
            let copy = disk.after_kill();
            copy.rot(&name, |content| {
                let used = content.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
                let at = rng.random_range(0..used);
                match round % 3 {
                    0 => content[at] ^= 1 << rng.random_range(0..8),
                    1 => content.truncate(at),
                    _ => content[at / 512 * 512..(at / 512 * 512 + 512).min(used)].fill(0),
                }
            });
            match load(&copy, 1) {
                Err(StorageError::Damaged { path, what }) => {
                    noticed += 1;
                    let place = ["byte", "page", "record", "it does not check out", "missing", "count", "write"];
                    assert!(path.starts_with(ROOT) && place.iter().any(|word| what.contains(word)), "{what}");
                    assert!(
                        name.starts_with(&path) || path.parent() == name.parent(),
                        "{} for {}",
                        path.display(),
                        name.display()
                    );
                }
                Err(e) => panic!("{}: {e}", name.display()),
                Ok((_, found)) => {
                    harmless += 1;
                    assert!(found == model, "{}: silent loss", name.display());
                }
            }
        }
        println!("{}: {noticed} noticed, {harmless} harmless", name.display());
        assert!(noticed > harmless, "{}", name.display());
        let copy = disk.after_kill();
        copy.lose(&name);
        assert!(matches!(load(&copy, 1), Err(StorageError::Damaged { .. })), "without {}", name.display());
    }
}

/// Of a crash nothing is known but the log: a frame that does not check out is damage if anything follows it.
#[test]
fn after_a_crash_only_the_last_write_can_pass_for_one_that_was_torn() {
    for seed in 0..60 {
        let disk = created(seed);
        let (store, found) = load(&disk, seed).expect("an empty store");
        let mut life = Life::new(store, found, seed);
        let mut before = life.durable.clone();
        for _ in 0..60 {
            let durable = life.durable.clone();
            life.append().expect("nothing fails");
            life.acknowledged();
            before = durable;
        }
        let mut rng = SmallRng::seed_from_u64(seed);
        let logs: Vec<_> =
            disk.names().into_iter().filter(|name| name.extension().is_some_and(|e| e == "log")).collect();
        for name in logs {
            for _ in 0..20 {
                let copy = disk.after_kill();
                copy.rot(&name, |content| {
                    let used = content.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
                    content[rng.random_range(0..used)] ^= 1 << rng.random_range(0..8);
                });
                match load(&copy, 1) {
                    Err(StorageError::Damaged { path, .. }) => assert_eq!(path, name),
                    Err(e) => panic!("{e}"),
                    Ok((_, found)) => {
                        assert!(found == life.durable || found == before, "seed {seed}, {}", name.display())
                    }
                }
            }
        }
    }
}

/// Without waiting for the disk, a crash loses the end, never the middle, and it is said.
#[test]
fn without_fsync_a_power_cut_loses_the_end_alone_and_says_so() {
    let mut doubted = 0;
    for seed in 0..300 {
        let disk = created(seed);
        let mut store = open(&disk, wal::Options { sync: false, ..LOG }, seed).expect("an empty store");
        store.load(&mut |_, _| Ok(())).expect("an empty store");
        for first in 1..=40 {
            store.append(first, &[Bytes::from(vec![first as u8; 50])], Bytes::from_static(b"head")).expect("append");
        }
        let after = disk.after_cut(seed);
        let (store, found) = load(&after, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(found.records.len() as u64 + 1, found.next.max(1));
        doubted += u64::from(store.is_unsynced());
        assert!(store.is_unsynced() || found.next == 41 || found.next == 0, "seed {seed}: {} records", found.next);
    }
    assert!(doubted > 200, "{doubted}");
}

/// A segment that others follow was waited for, also without fsync: damage in it is damage, and nothing behind it goes.
#[test]
fn damage_in_a_segment_from_before_without_fsync_is_named() {
    let disk = created(1);
    for (sync, from) in [(false, 1), (true, 11)] {
        let mut store = open(&disk, wal::Options { sync, ..LOG }, from).expect("whole");
        store.load(&mut |_, _| Ok(())).expect("whole");
        for first in from..from + 10 {
            store.append(first, &[Bytes::from(vec![first as u8; 50])], Bytes::from_static(b"head")).expect("append");
        }
    }
    let names = disk.names();
    // The second one was written without fsync, the third with.
    let name = names.iter().rfind(|name| name.ends_with("0000000000000002.log")).expect("a segment");
    disk.rot(name, |content| content[300] ^= 1);
    let refused = load(&disk, 1).err().expect("damaged");
    assert!(matches!(&refused, StorageError::Damaged { path, .. } if path == name), "{refused}");
    assert_eq!(disk.names(), names);
}
