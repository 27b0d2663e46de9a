//! Random steps over a small key space, so that they collide.

use bytes::Bytes;
use eddy_crdt::{
    Alarm, AlarmKind, Command, Compare, CompareResult, CompareTarget, DeleteOp, KeyRange, LeaseId, Op, PutLease, PutOp,
    PutValue, RangeOp, ReadAt, ReplicaId, Revision, RevisionBounds, SortOrder, SortTarget, Txn,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// What can happen to a replica and its journal.
#[derive(Clone, Debug)]
pub enum Step {
    Command(Command),
    Range(RangeOp),
    Tick,
    /// Milliseconds by which the monotonic clock moves on.
    Pass(u64),
    /// What the wall clock jumps to.
    Wall(u64),
    /// Sweeps so many changes.
    Sweep(usize),
    /// Trims so many records.
    Trim(usize),
    /// Lets so many replaced values go.
    Release(usize),
    /// Looks at everything.
    Look,
    /// Loses this number of the last writes to the journal, and crashes.
    Crash(usize),
}

const KEYS: [&[u8]; 7] = [b"a", b"b", b"c", b"c\0", b"compact_rev_key", b"/registry/masterleases/1", b"\xff\xff"];
pub const LEASES: [i64; 4] = [1, 2, -3, i64::MIN];

pub fn random(seed: u64, len: usize) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..len).map(|_| step(&mut rng)).collect()
}

fn step(rng: &mut SmallRng) -> Step {
    match rng.random_range(0..100) {
        0..28 => Step::Command(Command::Put(put(rng))),
        28..38 => Step::Command(Command::Delete(delete(rng))),
        38..52 => Step::Command(Command::Txn(txn(rng, 0))),
        52..57 => Step::Command(Command::Compact(revision(rng))),
        57..63 => Step::Command(Command::LeaseGrant { id: lease(rng), ttl: ttl(rng) }),
        63..65 => Step::Command(Command::LeaseRevoke(lease(rng))),
        65..67 => Step::Command(Command::LeaseRenew(lease(rng))),
        67..70 => Step::Command(Command::SetAlarm { alarm: alarm(rng), raised: rng.random() }),
        70..78 => Step::Range(range(rng)),
        78..80 => Step::Tick,
        82..85 => Step::Pass(*[0, 1, 999, 1000, 2000, 60_000, u64::MAX / 2].choose(rng).expect("some")),
        85..86 => Step::Wall(*[0, 1, 1 << 40, u64::MAX].choose(rng).expect("some")),
        80..82 => Step::Release(*[1, 2, usize::MAX].choose(rng).expect("some")),
        86..91 => Step::Sweep(*[0, 1, 1, 2, 5, usize::MAX].choose(rng).expect("some")),
        91..95 => Step::Trim(*[1, 1, 2, usize::MAX].choose(rng).expect("some")),
        95..97 => Step::Look,
        _ => Step::Crash(*[0, 0, 1, 2, 5, 20].choose(rng).expect("some")),
    }
}

fn key(rng: &mut SmallRng) -> Bytes {
    Bytes::from_static(KEYS.choose(rng).expect("some"))
}

fn lease(rng: &mut SmallRng) -> LeaseId {
    LeaseId::new(*LEASES.choose(rng).expect("some"))
}

fn ttl(rng: &mut SmallRng) -> i64 {
    *[i64::MIN, -1, 0, 1, 2, 3, 60, 9_000_000_000, 9_000_000_001, i64::MAX].choose(rng).expect("some")
}

fn revision(rng: &mut SmallRng) -> i64 {
    match rng.random_range(0..12) {
        0 => *[-1, -2, 0, i64::MIN, i64::MAX, i64::MAX - 1, 1 << 40].choose(rng).expect("some"),
        _ => rng.random_range(0..30),
    }
}

fn alarm(rng: &mut SmallRng) -> Alarm {
    let kind = if rng.random() { AlarmKind::NoSpace } else { AlarmKind::Corrupt };
    Alarm { member: ReplicaId::new(rng.random_range(0..2)), kind }
}

fn value(rng: &mut SmallRng) -> Bytes {
    Bytes::from_static([&b""[..], b"1", b"2", b"three"].choose(rng).expect("some"))
}

fn key_range(rng: &mut SmallRng) -> KeyRange {
    match rng.random_range(0..6) {
        0..3 => KeyRange::Key(key(rng)),
        3..5 => KeyRange::Span(key(rng), key(rng)),
        _ => KeyRange::From(if rng.random() { key(rng) } else { Bytes::from_static(b"\0") }),
    }
}

fn put(rng: &mut SmallRng) -> PutOp {
    PutOp {
        key: key(rng),
        value: if rng.random_bool(0.1) { PutValue::Keep } else { PutValue::Set(value(rng)) },
        lease: match rng.random_range(0..10) {
            0 => PutLease::Keep,
            1..4 => PutLease::Set(Some(lease(rng))),
            _ => PutLease::Set(None),
        },
        prev_kv: rng.random(),
    }
}

fn delete(rng: &mut SmallRng) -> DeleteOp {
    DeleteOp { range: key_range(rng), prev_kv: rng.random() }
}

fn range(rng: &mut SmallRng) -> RangeOp {
    let targets = [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];
    let orders = [SortOrder::Unspecified, SortOrder::Ascend, SortOrder::Descend];
    let mut bound = || rng.random_bool(0.1).then(|| Revision::new(revision(rng)));
    let bounds = RevisionBounds { min_mod: bound(), max_mod: bound(), min_create: bound(), max_create: bound() };
    RangeOp {
        range: key_range(rng),
        at: if rng.random() { ReadAt::Latest } else { read_at(revision(rng)) },
        limit: *[None, None, Some(1), Some(2), Some(3), Some(usize::MAX)].choose(rng).expect("some"),
        sort: (*targets.choose(rng).expect("some"), *orders.choose(rng).expect("some")),
        count_only: rng.random_bool(0.1),
        keys_only: rng.random_bool(0.2),
        bounds,
        total_count: rng.random_bool(0.8),
    }
}

/// A revision as a client names it.
pub fn read_at(revision: i64) -> ReadAt {
    match revision {
        0 => ReadAt::Latest,
        at @ ..0 => ReadAt::Negative(at),
        at => ReadAt::Revision(Revision::new(at)),
    }
}

fn compare(rng: &mut SmallRng) -> Compare {
    let number = if rng.random() { rng.random_range(0..3) } else { revision(rng) };
    let target = match rng.random_range(0..11) {
        0..2 => CompareTarget::Value(value(rng)),
        2..4 => CompareTarget::Create(number),
        4..6 => CompareTarget::Mod(number),
        6..8 => CompareTarget::Version(number),
        8..10 => CompareTarget::Lease(*LEASES.choose(rng).expect("some")),
        _ => CompareTarget::Unknown,
    };
    let results = [
        CompareResult::Equal,
        CompareResult::NotEqual,
        CompareResult::Greater,
        CompareResult::Less,
        CompareResult::Unknown,
    ];
    Compare { range: key_range(rng), target, result: *results.choose(rng).expect("some") }
}

fn txn(rng: &mut SmallRng, depth: usize) -> Txn {
    // Some keys twice: the server refuses that, the machine must bear it.
    let ops = |rng: &mut SmallRng| {
        (0..rng.random_range(0..4))
            .map(|_| match rng.random_range(0..8) {
                0..4 => Op::Put(put(rng)),
                4 => Op::Delete(delete(rng)),
                5..7 => Op::Range(range(rng)),
                _ if depth < 3 => Op::Txn(txn(rng, depth + 1)),
                _ => Op::Put(put(rng)),
            })
            .collect()
    };
    Txn { compares: (0..rng.random_range(0..3)).map(|_| compare(rng)).collect(), success: ops(rng), failure: ops(rng) }
}
