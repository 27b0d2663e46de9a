//! What the machine alone costs, without disk and network: `cargo bench -p eddy-bench --bench core`.
//!
//! Every number is per operation or per whole job as named; 256-byte values among 100,000 keys.

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use eddy_crdt::{
    Birth, ClusterId, Command, Compare, CompareResult, CompareTarget, Identity, Input, KeyRange, Loader, Now, Op,
    PastValues, PutLease, PutOp, PutValue, RangeOp, Replica, ReplicaId, Txn,
};

const IDENTITY: Identity =
    Identity { cluster: ClusterId::new(1), replica: ReplicaId::new(2), birth: Birth::new(3), ordinal: 0 };
const KEYS: u64 = 100_000;
const NOW: Now = Now { wall_ms: 1_700_000_000_000, mono_ms: 0 };

/// Keys as Kubernetes names them, in an order that jumps about.
fn key(n: u64) -> Bytes {
    format!("/registry/pods/default/pod-{:06}", n.wrapping_mul(7919) % 1_000_000).into()
}

fn put(n: u64, value: &Bytes) -> Command {
    Command::Put(put_op(n, value))
}

fn put_op(n: u64, value: &Bytes) -> PutOp {
    PutOp { key: key(n), value: PutValue::Set(value.clone()), lease: PutLease::Set(None), prev_kv: false }
}

fn value() -> Bytes {
    vec![b'v'; 256].into()
}

/// A replica of 100,000 keys with its records.
fn filled() -> (Replica, Vec<Bytes>) {
    let (mut replica, mut records) = (Replica::new(IDENTITY), vec![]);
    for n in 0..KEYS {
        records.extend(replica.handle(NOW, Input::Client(put(n, &value()))).records);
    }
    (replica, records)
}

fn writes(c: &mut Criterion) {
    let (mut replica, _) = filled();
    let value = value();
    let mut n = 0;
    c.bench_function("put, overwrite", |b| {
        b.iter_batched(
            || {
                n += 1;
                put(n % KEYS, &value)
            },
            |command| replica.handle(NOW, Input::Client(command)),
            BatchSize::SmallInput,
        );
    });
    // Overwriting made long histories; start afresh.
    let (mut replica, _) = filled();
    let mut n = KEYS;
    c.bench_function("put, new key", |b| {
        b.iter_batched(
            || {
                n += 1;
                put(n, &value)
            },
            |command| replica.handle(NOW, Input::Client(command)),
            BatchSize::SmallInput,
        );
    });
    let (mut replica, _) = filled();
    let mut n = KEYS;
    c.bench_function("txn, create if absent", |b| {
        b.iter_batched(
            || {
                n += 1;
                let compare = Compare {
                    range: KeyRange::Key(key(n)),
                    target: CompareTarget::Mod(0),
                    result: CompareResult::Equal,
                };
                let read = RangeOp::all(KeyRange::Key(key(n)));
                Command::Txn(Txn {
                    compares: vec![compare],
                    success: vec![Op::Put(put_op(n, &value))],
                    failure: vec![Op::Range(read)],
                })
            },
            |command| replica.handle(NOW, Input::Client(command)),
            BatchSize::SmallInput,
        );
    });
}

fn reads(c: &mut Criterion) {
    let (replica, _) = filled();
    let from = Bytes::from_static(b"/registry/pods/default/pod-3");
    let page = RangeOp { limit: Some(500), total_count: false, ..RangeOp::all(KeyRange::From(from)) };
    c.bench_function("range, 500 of 100,000", |b| {
        b.iter(|| replica.range(&page, replica.revision(), &PastValues::default()))
    });
    let all = KeyRange::From(Bytes::from_static(b"\0"));
    let count = RangeOp { count_only: true, ..RangeOp::all(all) };
    c.bench_function("count of 100,000", |b| {
        b.iter(|| replica.range(&count, replica.revision(), &PastValues::default()))
    });
    c.bench_function("hash_kv of 100,000", |b| b.iter(|| replica.hash_kv(None)));
}

fn housekeeping(c: &mut Criterion) {
    let mut group = c.benchmark_group("housekeeping");
    group.sample_size(10);
    let value = value();
    group.bench_function("compact and sweep 100,000 revisions", |b| {
        b.iter_batched(
            || {
                let (mut replica, _) = filled();
                for n in 0..KEYS {
                    replica.handle(NOW, Input::Client(put(n, &value)));
                }
                replica
            },
            |mut replica| {
                replica.handle(NOW, Input::Client(Command::Compact(replica.revision().get())));
                while !replica.sweep(1_000, true).done {}
                replica
            },
            BatchSize::PerIteration,
        );
    });
    let (replica, records) = filled();
    let head = replica.head().encode();
    group.bench_function("restore 100,000 records", |b| {
        b.iter_with_large_drop(|| {
            let mut loader = Loader::new(Some(&head)).expect("whole");
            for (number, record) in (1..).zip(&records) {
                loader.record(number, record.clone()).expect("whole");
            }
            let again = |number: u64| records.get(number as usize - 1).cloned();
            loader.finish(NOW, IDENTITY, &mut { again }).expect("whole")
        });
    });
    group.finish();
    let mut n = 0;
    c.bench_function("trim, one record", |b| {
        b.iter(|| {
            n += 1;
            replica.trim(&records[n % records.len()])
        });
    });
}

criterion_group!(core, writes, reads, housekeeping);
criterion_main!(core);
