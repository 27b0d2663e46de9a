//! What replication costs the machine, without disk and network: `cargo bench -p eddy-bench --bench replication`.
//!
//! Two replicas, 2 KB pods. Every number is per entry. What the server adds around it (sockets, groups, flushes, matching of
//! watches) is measured by `lab`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use eddy_crdt::merge::{Encoding, Object, RuleBook, Version, Window};
use eddy_crdt::sync::Delta;
use eddy_crdt::{
    Ack, Birth, ChangeKind, ClusterId, Command, Dot, Entry, EventsAsked, Founder, Genesis, Identity, Incarnation,
    Input, Keyspace, Live, Now, Origin, PastValues, PutLease, PutOp, PutValue, Replica, ReplicaId, Revision, Stamp,
    Statement, VersionVector,
};

/// The binary's allocator: a third of a merge is taking and giving back memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOW: Now = Now { wall_ms: 1_700_000_000_000, mono_ms: 0 };
/// Entries between two acknowledgements, about what a busy replica has.
const GROUP: u64 = 500;
/// Objects that are written.
const OBJECTS: u64 = 1_000;

fn key(n: u64) -> Bytes {
    format!("/registry/pods/default/pod-{n:06}").into()
}

/// A Pod of about 2 KB with two fields that change.
fn pod(n: u64, label: u64, message: u64) -> Bytes {
    let variables: String =
        (0..24).map(|i| format!(r#"{{"name":"VARIABLE_{i}","value":"a value of some length, {i}"}},"#)).collect();
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"pod-{n:06}","namespace":"default","uid":"8c1f2b1e-0000-4000-8000-{n:012}","generation":1,"labels":{{"app":"web","change":"{label}"}}}},"spec":{{"containers":[{{"name":"web","image":"registry.example/web:1","env":[{variables}{{"name":"LAST","value":"1"}}]}}]}},"status":{{"phase":"Running","message":"change {message}"}}}}"#
    )
    .into()
}

/// Two replicas that know each other.
struct Pair {
    replicas: [Replica; 2],
    ids: [ReplicaId; 2],
}

impl Pair {
    fn new() -> Self {
        let founder = |n: u64| Founder {
            id: ReplicaId::new(n),
            name: format!("n{n}"),
            peer_urls: vec![format!("http://10.0.0.{n}:2380")],
        };
        let genesis = Genesis { founders: vec![founder(1), founder(2)], ..Genesis::default() };
        let found = |n: u64| {
            let (replica, birth) = (ReplicaId::new(n), Birth::new(n));
            Replica::found(Identity { cluster: ClusterId::new(1), replica, birth, ordinal: 0 }, &genesis).0
        };
        let mut pair = Self { replicas: [found(1), found(2)], ids: [ReplicaId::new(1), ReplicaId::new(2)] };
        for n in 0..OBJECTS {
            pair.put(0, n, pod(n, 0, 0));
        }
        let entries = pair.news(0);
        pair.apply(1, entries);
        pair.settle();
        pair
    }

    fn put(&mut self, at: usize, n: u64, value: Bytes) {
        let put = PutOp { key: key(n), value: PutValue::Set(value), lease: PutLease::Set(None), prev_kv: false };
        let effects = self.replicas[at].handle(NOW, Input::Client(Command::Put(put)));
        assert!(matches!(effects.reply, Some(Ok(_))), "a put is refused");
    }

    /// What the other lacks of this one's.
    fn news(&mut self, of: usize) -> Vec<Entry> {
        let member = self.replicas[1 - of].identity().replica;
        self.replicas[of].handle(NOW, Input::Stream { member, session: 1 });
        let (mine, theirs) = (self.replicas[of].vector(), self.replicas[1 - of].vector());
        let entries = self.replicas[of].entries_for(theirs, mine, usize::MAX).expect("the log has it");
        entries.iter().map(|entry| (**entry).clone()).collect()
    }

    /// Applies entries of the other, and says how long that took.
    fn apply(&mut self, at: usize, entries: Vec<Entry>) -> Duration {
        let (from, count) = (self.ids[1 - at], entries.len());
        let since = Instant::now();
        let births = [self.replicas[1 - at].identity().birth].into();
        let effects = self.replicas[at].handle(NOW, Input::Entries { from, births, entries, together: None });
        let took = since.elapsed();
        assert_eq!(effects.commits.len(), count, "an entry was not applied");
        took
    }

    /// Both hear that both have everything; says how long that took them together.
    fn settle(&mut self) -> Duration {
        let mut took = Duration::ZERO;
        for _ in 0..2 {
            for to in 0..2 {
                let from = &self.replicas[1 - to];
                let ack = |(member, vector): (&Origin, &VersionVector)| Ack {
                    member: *member,
                    vector: vector.clone(),
                    said: Statement::default(),
                };
                let mut acks: Vec<Ack> = from.acks().iter().map(ack).collect();
                let (member, vector) = (from.identity().origin(), from.vector().clone());
                acks.push(Ack { member, vector, said: from.said() });
                let own = self.replicas[to].vector().clone();
                let since = Instant::now();
                self.replicas[to].handle(NOW, Input::Acks { own, acks });
                took += since.elapsed();
            }
        }
        assert!(self.replicas.iter().all(|replica| replica.windows_len() == 0), "something did not settle");
        took
    }
}

/// Runs `group` with numbers of objects, about [`GROUP`] at a time, until there were `count`.
fn in_groups(count: u64, mut group: impl FnMut(std::ops::Range<u64>) -> Duration) -> Duration {
    (0..count).step_by(GROUP as usize).map(|first| group(first..count.min(first + GROUP))).sum()
}

fn entries(c: &mut Criterion) {
    let mut pair = Pair::new();
    c.bench_function("fast-forward, one remote entry", |b| {
        b.iter_custom(|count| {
            in_groups(count, |group| {
                group.for_each(|n| pair.put(0, n % OBJECTS, pod(n % OBJECTS, n, n)));
                let entries = pair.news(0);
                let took = pair.apply(1, entries);
                pair.settle();
                took
            })
        });
    });
    let mut pair = Pair::new();
    c.bench_function("settle, one entry at both replicas", |b| {
        b.iter_custom(|count| {
            in_groups(count, |group| {
                group.for_each(|n| pair.put(0, n % OBJECTS, pod(n % OBJECTS, n, n)));
                let entries = pair.news(0);
                pair.apply(1, entries);
                pair.settle()
            })
        });
    });
    let mut group = c.benchmark_group("merge");
    group.sample_size(10);
    for (name, encoding) in [("JSON", Encoding::Json), ("protobuf", Encoding::Protobuf)] {
        for (what, is_contested) in [("one field against another", false), ("two fields against the same two", true)] {
            // What both fields of each object say.
            let (mut pair, mut change, mut said) = (Pair::new(), 0, vec![0; OBJECTS as usize]);
            group.bench_function(format!("{what} of a 2 KB pod in {name}"), |b| {
                b.iter_custom(|count| {
                    in_groups(count, |group| {
                        for n in group.clone() {
                            change += 1;
                            let before = std::mem::replace(&mut said[(n % OBJECTS) as usize], change);
                            let other = if is_contested { 0 } else { before };
                            pair.put(0, n % OBJECTS, written(&pod(n % OBJECTS, change, other), encoding));
                            pair.put(1, n % OBJECTS, written(&pod(n % OBJECTS, other, change), encoding));
                        }
                        let (left, right) = (pair.news(0), pair.news(1));
                        let took = pair.apply(0, right);
                        pair.apply(1, left);
                        pair.settle();
                        took
                    })
                });
            });
        }
    }
    let window = crowd(80, 16);
    let rules = RuleBook::default();
    group.bench_function("80 versions of a 2 KB pod by 8 writers, each 16 behind", |b| {
        b.iter(|| window.outcome(black_box(&rules), Keyspace::Client, &key(0)));
    });
    group.finish();
}

/// A window with this many versions by eight writers in turn. Each version's writer had seen all but the newest
/// `behind` ones.
fn crowd(versions: u64, behind: u64) -> Window {
    const WRITERS: u64 = 8;
    let origin = |at: u64| Origin { replica: ReplicaId::new(at % WRITERS + 1), birth: Birth::new(1) };
    let dot = |at: u64| Dot { origin: origin(at), seq: at / WRITERS + 1 };
    let incarnation = Incarnation { stamp: Stamp::default(), dot: dot(0) };
    let live = |value| Live { value, lease: None, version: 1, incarnation };
    let mut window = Window::new(Some(live(pod(0, 0, 0))));
    for at in 0..versions {
        let mut deps: VersionVector = (0..at.saturating_sub(behind)).map(dot).collect();
        deps.remove(origin(at));
        // Half of them write one field, half the other, on what they saw there.
        let newest = |odd: u64| (0..at.saturating_sub(behind)).rfind(|seen| seen % 2 == odd).unwrap_or(0);
        let (label, message) = if at % 2 == 0 { (at, newest(1)) } else { (newest(0), at) };
        window.add(Version {
            dot: dot(at),
            stamp: Stamp::new(at),
            rules: 1,
            deps: Arc::new(deps),
            kind: ChangeKind::Put { value: pod(0, label, message), lease: None, version: 2 },
            incarnation,
        });
    }
    assert_eq!(window.heads().count() as u64, WRITERS, "not all are concurrent");
    window
}

/// An object in that encoding.
fn written(json: &[u8], encoding: Encoding) -> Bytes {
    let object = Object::parse(json).expect("an object");
    Object { encoding, ..object.clone() }.write(&object.json).expect("there is a place for all of it")
}

fn values(c: &mut Criterion) {
    for (name, encoding) in [("JSON", Encoding::Json), ("protobuf", Encoding::Protobuf)] {
        let value = written(&pod(1, 1, 1), encoding);
        let object = Object::parse(&value).expect("an object");
        c.bench_function(&format!("a 2 KB pod in {name}, read"), |b| b.iter(|| Object::parse(black_box(&value))));
        c.bench_function(&format!("a 2 KB pod in {name}, written"), |b| {
            b.iter(|| object.write(black_box(&object.json)))
        });
    }
    let (base, value) = (pod(1, 1, 1), pod(1, 2, 2));
    c.bench_function("delta, two fields of a 2 KB pod", |b| {
        b.iter(|| Delta::between(black_box(&base), black_box(&value)))
    });
    let delta = Delta::between(&base, &value).expect("it saves bytes");
    c.bench_function("delta, applied", |b| b.iter(|| delta.apply(black_box(&base)).expect("it is whole")));
}

fn watches(c: &mut Criterion) {
    let mut pair = Pair::new();
    for n in 0..10_000 {
        pair.put(0, n % OBJECTS, pod(n % OBJECTS, n, n));
    }
    let replica = &pair.replicas[0];
    let to = replica.revision();
    let from = Revision::new(to.get() - 999);
    c.bench_function("events of 1,000 revisions, as a watcher that catches up reads them", |b| {
        let asked = EventsAsked { from, to, limit: usize::MAX, concerns: &|_| true };
        b.iter(|| replica.events(&asked, &PastValues::default()).0.len());
    });
}

criterion_group!(replication, entries, values, watches);
criterion_main!(replication);
