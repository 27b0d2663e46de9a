//! Random sequences from a seed: few keys, small numbers, every option, so that requests meet each other.

use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

use crate::op::*;

/// What a sequence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Store,
    /// Many watchers; slower, since watchers are waited for.
    Watch,
    /// Values of up to the largest request, read by streams and watched in fragments.
    Large,
    /// Leases that run out with many keys under watch; takes seconds.
    Expiry,
    /// The servers are stopped and started again in the middle.
    Restarts,
}

impl Shape {
    /// What the sequence of a seed is about in the bulk of a run.
    pub fn of(seed: u64) -> Shape {
        match seed % 200 {
            50 => Shape::Expiry,
            n if n % 50 == 1 => Shape::Large,
            n if n % 4 == 0 => Shape::Watch,
            _ => Shape::Store,
        }
    }
}

/// Limits of etcd's defaults that sequences step over now and then.
const MAX_TXN_OPS: usize = 128;
const MAX_REQUEST_BYTES: usize = 1_572_864;
/// Numbers that overflow when something is added to them or taken from them.
const HUGE: [i64; 4] = [i64::MAX, i64::MIN, i64::MAX - 1, 1 << 40];
const MAX_TTL: i64 = 9_000_000_000;

/// The sequence that `seed` stands for.
pub fn sequence(seed: u64, shape: Shape) -> Vec<Op> {
    let mut g =
        Generator { rng: SmallRng::seed_from_u64(seed), granted: 0, alarm: false, next: None, server_ids: false };
    g.server_ids = g.one_in(2);
    if shape == Shape::Expiry {
        return g.expiry();
    }
    let len = g.rng.random_range(20..80);
    let mut ops: Vec<Op> = (0..len).map(|_| g.op(shape)).collect();
    if shape != Shape::Store {
        ops.push(Op::Settle);
    }
    ops
}

struct Generator {
    rng: SmallRng,
    /// Leases granted with a server-chosen id so far.
    granted: usize,
    alarm: bool,
    /// What has to come next.
    next: Option<Op>,
    /// Whether the servers choose ids of leases; then their hashes differ.
    server_ids: bool,
}

impl Generator {
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_ratio(1, n)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from.choose(&mut self.rng).cloned().unwrap_or_else(|| from[0].clone())
    }

    fn key(&mut self) -> B {
        if self.one_in(60) {
            return B::default();
        }
        let odd: [&[u8]; 8] = [b"\xff\xfe", b"\0", b"\0\0", b"\xff", b"\xff\xff", b"a\xff", b"a\0\0", b"\0\xff"];
        let keys: [&[u8]; 8] = [b"a", b"b", b"c", b"d", b"ab", b"a\0", b"b/1", b"b/2"];
        if self.one_in(6) { B::from(self.pick(&odd)) } else { B::from(self.pick(&keys)) }
    }

    fn range_end(&mut self) -> B {
        match self.rng.random_range(0..10) {
            0..4 => B::default(),
            4 => B::from(b"\0"),
            5 => B::from(b"b0"),
            6 => B::from(b"zz"),
            7 => B::from(b"a"), // often inverted or empty
            _ => self.key(),
        }
    }

    fn value(&mut self) -> B {
        match self.rng.random_range(0..40) {
            0..8 => B::default(),
            8..30 => B(vec![self.rng.random_range(b'u'..=b'z')]),
            30..38 => B((0..self.rng.random_range(1..12)).map(|_| self.rng.random()).collect()),
            38 => B(vec![b'x'; self.rng.random_range(100..5000)]),
            // An id in the request makes it longer on one server than on the other.
            _ if self.server_ids => B::from(b"plain"),
            _ => match self.rng.random_range(0..30) {
                0 => B(vec![b'L'; 1 << 20]),
                1 => B(vec![b'M'; MAX_REQUEST_BYTES - 200]),
                2 => B(vec![b'N'; MAX_REQUEST_BYTES]),
                3 => B(vec![b'O'; MAX_REQUEST_BYTES + (1 << 20)]),
                _ => B::from(b"plain"),
            },
        }
    }

    fn rev(&mut self) -> Rev {
        match self.rng.random_range(0..12) {
            0 if self.one_in(4) => Rev::Abs(self.pick(&HUGE)),
            0 => Rev::Abs(self.rng.random_range(-1..4)),
            1 => Rev::Now(self.rng.random_range(1..4)),
            2 => Rev::Compacted(self.rng.random_range(-1..3)),
            3 => Rev::Now(0),
            _ => Rev::Now(-self.rng.random_range(0..15)),
        }
    }

    fn rev_or_none(&mut self) -> Rev {
        if self.one_in(3) { self.rev() } else { Rev::default() }
    }

    fn lease(&mut self) -> Lease {
        match self.rng.random_range(0..10) {
            0 => Lease::Id(0),
            1 => Lease::Id(404),
            2 if self.one_in(4) => Lease::Id(self.pick(&HUGE)),
            2 => Lease::Id(-7),
            3..6 => Lease::Id(self.rng.random_range(11..14)),
            _ if self.granted > 0 => Lease::Nth(self.rng.random_range(0..self.granted)),
            _ => Lease::Id(11),
        }
    }

    fn sort(&mut self, valid: i32) -> i32 {
        match self.rng.random_range(0..40) {
            0 => valid,
            1 => -1,
            _ => self.rng.random_range(0..valid),
        }
    }

    fn range(&mut self) -> Range {
        let mut r = Range { key: self.key(), range_end: self.range_end(), ..Range::default() };
        if self.one_in(3) {
            r.limit = if self.one_in(10) { self.pick(&HUGE) } else { self.rng.random_range(-1..5) };
        }
        r.revision = self.rev_or_none();
        if self.one_in(2) {
            (r.sort_order, r.sort_target) = (self.sort(3), self.sort(5));
        }
        r.serializable = self.one_in(3);
        r.keys_only = self.one_in(5);
        r.count_only = self.one_in(6);
        if self.one_in(4) {
            (r.min_mod, r.max_mod) = (self.rev_or_none(), self.rev_or_none());
            (r.min_create, r.max_create) = (self.rev_or_none(), self.rev_or_none());
        }
        r
    }

    fn put(&mut self) -> Put {
        let mut p = Put { key: self.key(), value: self.value(), prev_kv: self.one_in(3), ..Put::default() };
        if self.one_in(4) {
            p.lease = self.lease();
        }
        if self.one_in(8) {
            p.ignore_value = true;
            if !self.one_in(4) {
                p.value = B::default();
            }
        }
        if self.one_in(8) {
            p.ignore_lease = true;
            if !self.one_in(4) {
                p.lease = Lease::default();
            }
        }
        p
    }

    fn delete(&mut self) -> Delete {
        let range_end = if self.one_in(3) { self.range_end() } else { B::default() };
        Delete { key: self.key(), range_end, prev_kv: self.one_in(2) }
    }

    fn compare(&mut self) -> Compare {
        let mut target = self.rng.random_range(0..5);
        let mut result = self.rng.random_range(0..4);
        let shape = if self.one_in(25) { 9 } else { target };
        let with = match shape {
            0 if self.one_in(30) => With::Version(self.pick(&HUGE)),
            0 => With::Version(self.rng.random_range(-1..4)),
            1 => With::Create(self.rev()),
            2 => With::Mod(self.rev()),
            3 => With::Value(self.value()),
            4 => With::Lease(self.lease()),
            _ => self.pick(&[With::Nothing, With::Version(1), With::Value(B::from(b"v"))]),
        };
        if matches!(with, With::Lease(Lease::Nth(_))) {
            result = self.pick(&[0, 3]); // ids that each server chose are equal or not, but in no common order
        }
        if self.one_in(60) {
            target = self.pick(&[5, -1]);
        }
        if self.one_in(60) {
            result = self.pick(&[4, -1]);
        }
        let range_end = if self.one_in(3) { self.range_end() } else { B::default() };
        Compare { result, target, key: self.key(), range_end, with }
    }

    fn inner(&mut self, depth: u32) -> Inner {
        match self.rng.random_range(0..20) {
            0..9 => Inner::Put(self.put()),
            9..13 => Inner::Range(self.range()),
            13..17 => Inner::Delete(self.delete()),
            17 if self.one_in(4) => Inner::Nothing,
            _ if depth > 0 => Inner::Txn(self.txn(depth - 1)),
            _ => Inner::Put(self.put()),
        }
    }

    fn txn(&mut self, depth: u32) -> Txn {
        let mut list = |max| {
            let n = self.rng.random_range(0..max);
            (0..n).map(|_| self.inner(depth)).collect::<Vec<_>>()
        };
        let (success, failure) = (list(4), list(4));
        let compares = self.rng.random_range(0..3);
        Txn { compare: (0..compares).map(|_| self.compare()).collect(), success, failure }
    }

    /// A transaction of as many operations as are allowed, or one too many.
    fn wide_txn(&mut self) -> Txn {
        let n = MAX_TXN_OPS + usize::from(self.one_in(2));
        let put = |i: usize| Inner::Put(Put { key: B::from(format!("w{i}")), ..Put::default() });
        Txn { success: (0..n).map(put).collect(), ..Txn::default() }
    }

    fn compact(&mut self) -> Op {
        let revision = match self.rng.random_range(0..6) {
            0 => self.rev(),
            1 => Rev::Compacted(0),
            2 => Rev::Abs(self.rng.random_range(-1..1)),
            _ => Rev::Now(-self.rng.random_range(0..6)),
        };
        Op::Compact(Compact { revision, physical: self.one_in(4) })
    }

    fn grant(&mut self) -> Op {
        let id = match self.rng.random_range(0..10) {
            0..4 if self.server_ids => 0,
            4 if self.one_in(4) => self.pick(&HUGE),
            4 => -7,
            _ => self.rng.random_range(11..14),
        };
        let ttl = match self.rng.random_range(0..12) {
            0 => 0,
            1 => -5,
            2 => MAX_TTL,
            3 if self.one_in(3) => self.pick(&HUGE),
            3 => MAX_TTL + 1,
            _ => self.rng.random_range(60..1000),
        };
        if id == 0 && ttl <= MAX_TTL {
            self.granted += 1;
        }
        if ttl <= 0 {
            // It gets the least time there is: not to run out on one server before it does on the other.
            let lease = if id == 0 { Lease::Nth(self.granted - 1) } else { Lease::Id(id) };
            self.next = Some(Op::Revoke(lease));
        }
        Op::Grant(Grant { id, ttl })
    }

    fn lease_op(&mut self) -> Op {
        match self.rng.random_range(0..10) {
            0..4 => self.grant(),
            4..6 => Op::Revoke(self.lease()),
            6 => Op::KeepAlive(self.lease()),
            7..9 => Op::TimeToLive(TimeToLive { lease: self.lease(), keys: self.one_in(2) }),
            _ => Op::Leases,
        }
    }

    fn alarm_op(&mut self) -> Op {
        // A raised alarm refuses what follows, so it is lowered again soon.
        if self.alarm || self.one_in(2) {
            self.alarm = false;
            return Op::Alarm(Alarm { action: self.pick(&[2, 2, 0]), alarm: self.pick(&[0, 1, 1, 2]) });
        }
        // An action that does not exist crashes etcd 3.7.3.
        let action = self.pick(&[0, 1, 1]);
        self.alarm = action == 1;
        Op::Alarm(Alarm { action, alarm: self.pick(&[0, 1, 1, 2, 3]) })
    }

    fn server_op(&mut self) -> Op {
        match self.rng.random_range(0..12) {
            0 | 1 => Op::Status,
            2 => Op::MemberList { linearizable: self.one_in(2) },
            3 => Op::Hash,
            4 | 5 => Op::HashKv(self.rev()),
            6 | 7 => self.alarm_op(),
            8 => Op::AuthStatus,
            9 => Op::Unknown(self.pick(&["/etcdserverpb.KV/Frobnicate", "/etcdserverpb.Nothing/At", "/x"]).into()),
            10 if self.one_in(8) => Op::Defragment,
            _ => Op::HashKv(Rev::default()),
        }
    }

    fn watch(&mut self) -> Op {
        let mut w = Watch { stream: self.rng.random_range(0..2), key: self.key(), ..Watch::default() };
        w.range_end = if self.one_in(3) { B::default() } else { self.range_end() };
        w.start = match self.rng.random_range(0..10) {
            0..4 => Rev::default(),
            4 => Rev::Now(1),
            5 => Rev::Now(self.rng.random_range(1..6)),
            _ => self.rev(),
        };
        if self.one_in(4) {
            w.filters = (0..self.rng.random_range(1..3)).map(|_| self.rng.random_range(0..3)).collect();
        }
        w.prev_kv = self.one_in(2);
        w.fragment = self.one_in(3);
        w.progress_notify = self.one_in(5);
        w.watch_id = match self.rng.random_range(0..8) {
            0 => 3,
            1 => self.rng.random_range(1..5),
            2 => -1,
            3 => self.pick(&[-9, -9, i64::MAX, i64::MIN]),
            _ => 0,
        };
        Op::Watch(w)
    }

    fn watch_op(&mut self) -> Op {
        let stream = self.rng.random_range(0..2);
        match self.rng.random_range(0..20) {
            0..12 => self.watch(),
            12..15 => Op::Cancel(Cancel { stream, watch_id: self.rng.random_range(-1..6) }),
            15..17 => Op::Progress { stream },
            17 => Op::EmptyWatch { stream },
            18 => Op::Settle,
            _ => Op::CloseStream { stream },
        }
    }

    fn large_value(&mut self) -> B {
        let len = match self.rng.random_range(0..8) {
            0 => MAX_REQUEST_BYTES - self.rng.random_range(0..100),
            1..4 => self.rng.random_range(500_000..1_200_000),
            _ => self.rng.random_range(20_000..300_000),
        };
        B(vec![self.rng.random_range(b'A'..=b'Z'); len])
    }

    fn large_op(&mut self) -> Op {
        let large = |g: &mut Generator, value| Put { value, ..g.put() };
        match self.rng.random_range(0..12) {
            0..4 => {
                let value = self.large_value();
                Op::Put(Put { ignore_value: false, ..large(self, value) })
            }
            4 => {
                // Several events of one revision that together fill a message.
                let n = self.rng.random_range(2..8);
                let value = |g: &mut Generator| B(vec![g.rng.random_range(b'A'..=b'Z'); 1_400_000 / n]);
                let put = |g: &mut Generator, i| {
                    let value = value(g);
                    Inner::Put(Put { key: B::from(format!("b/{i}")), value, ..Put::default() })
                };
                Op::Txn(Txn { success: (0..n).map(|i| put(self, i)).collect(), ..Txn::default() })
            }
            5 | 6 => Op::RangeStream(Range { range_end: B::from(b"\0"), ..self.range() }),
            7 => Op::Range(Range { range_end: B::from(b"\0"), ..self.range() }),
            8 | 9 => match self.watch() {
                Op::Watch(w) => Op::Watch(Watch {
                    range_end: B::from(b"\0"),
                    start: Rev::Now(-self.rng.random_range(-1..12)),
                    fragment: self.one_in(2),
                    ..w
                }),
                other => other,
            },
            10 => Op::Settle,
            _ => self.op(Shape::Watch),
        }
    }

    /// Leases with many keys, watchers of parts of them, and what else happens to the keys before their time is up.
    fn expiry(&mut self) -> Vec<Op> {
        // Leases that run out together are revoked by etcd in any order.
        let leases = [21, 22].map(|id| (id, if id == 21 { 2 } else { 4 }));
        let leases = &leases[..self.rng.random_range(1..3)];
        let mut ops: Vec<Op> = leases.iter().map(|(id, ttl)| Op::Grant(Grant { id: *id, ttl: *ttl })).collect();
        for _ in 0..self.rng.random_range(1..6) {
            ops.push(self.watch());
        }
        for i in 0..self.rng.random_range(1..60) {
            let key = if self.one_in(3) { self.key() } else { B::from(format!("b/{i}")) };
            let lease = Lease::Id(self.pick(leases).0);
            ops.push(Op::Put(Put { key, lease, ..Put::default() }));
        }
        for _ in 0..self.rng.random_range(0..10) {
            ops.push(match self.rng.random_range(0..4) {
                0 => Op::Delete(self.delete()),
                1 => Op::Put(self.put()),
                2 => Op::Txn(self.txn(2)),
                _ => self.watch(),
            });
        }
        ops.extend(leases.iter().map(|(id, _)| Op::AwaitExpiry(Lease::Id(*id))));
        ops.push(Op::Settle);
        ops.push(Op::Range(Range { key: B::from(b"\0"), range_end: B::from(b"\0"), ..Range::default() }));
        ops.extend([Op::Leases, Op::HashKv(Rev::default())]);
        ops
    }

    fn op(&mut self, shape: Shape) -> Op {
        if let Some(op) = self.next.take() {
            return op;
        }
        match shape {
            Shape::Restarts if self.one_in(15) => return Op::Restart { kill: self.one_in(2) },
            Shape::Restarts if self.one_in(6) => return self.watch_op(),
            Shape::Watch if self.one_in(3) => return self.watch_op(),
            Shape::Large => return self.large_op(),
            _ => {}
        }
        match self.rng.random_range(0..100) {
            0..25 => Op::Put(self.put()),
            25..45 => Op::Range(self.range()),
            45..50 => Op::RangeStream(self.range()),
            50..60 => Op::Delete(self.delete()),
            60 => Op::Txn(self.txn(8)),
            61..80 => Op::Txn(self.txn(2)),
            80 if self.one_in(4) => Op::Txn(self.wide_txn()),
            80..85 => self.compact(),
            85..95 => self.lease_op(),
            _ => self.server_op(),
        }
    }
}
