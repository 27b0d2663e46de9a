//! A replica with a journal that can be cut anywhere, beside the naive store; every step compares the two.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use eddy_crdt::{
    Command, Digest, Effects, HashWalk, Identity, Input, KeyRange, Keyspace, LeaseId, Now, PastValues, RangeOp,
    RangeReply, RangeWalk, Record, Refusal, Reply, Revision, SystemKey, Tally,
};

use super::naive::{Lease, Naive};
use super::steps::{LEASES, Step, read_at};
use crate::support::build::identity;
use crate::support::checks;
use crate::support::node::{Node, check_head};
use crate::support::past;

pub const IDENTITY: Identity = identity(1, 3);

pub struct World {
    /// Its disk never flushes: each crash can lose any number of the last writes.
    pub node: Node,
    pub model: Naive,
    now: Now,
    /// After how many writes to the journal the model was what.
    snapshots: Vec<(usize, Naive)>,
    walks: Vec<Walk>,
    hashes: Vec<Hashing>,
}

/// A range in the making, with what the model said of it when it began.
struct Walk {
    op: RangeOp,
    walk: RangeWalk,
    expected: Result<RangeReply, Refusal>,
}

/// A hash in the making, with what it was in one piece when it began.
struct Hashing {
    walk: HashWalk,
    expected: u32,
}

type Outcome = Result<(), String>;

macro_rules! same {
    ($ours:expr, $model:expr, $($what:tt)+) => {
        checks::same(&$ours, &$model, format_args!($($what)+))?
    };
}

impl World {
    pub fn new() -> Self {
        let node = Node { flushes: false, ..Node::empty(IDENTITY) };
        let now = node.now(0);
        Self { node, model: Naive::new(), now, snapshots: vec![(0, Naive::new())], walks: vec![], hashes: vec![] }
    }

    pub fn step(&mut self, step: &Step) -> Outcome {
        self.do_step(step)?;
        self.walk_on()
    }

    fn do_step(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Command(command) => {
                let before = self.node.replica.revision().get();
                if let Command::Txn(txn) = command
                    && txn.is_read_only()
                {
                    let read = past::whole(&self.node.disk, |past| {
                        let replica = &self.node.replica;
                        replica.read_txn(txn, replica.revision(), &mut Tally::default(), past).map(Reply::Txn)
                    });
                    same!(read, self.model.clone().command(self.now, command), "read-only {txn:?}");
                }
                let written = self.node.disk.waiting();
                let effects = self.node.handle(self.now, Input::Client(command.clone()));
                let reply = self.model.command(self.now, command);
                same!(effects.reply, Some(reply), "reply to {command:?}");
                self.took_effect(before, written, &effects)?;
            }
            Step::Tick => {
                let before = self.node.replica.revision().get();
                let written = self.node.disk.waiting();
                let effects = self.node.handle(self.now, Input::Tick);
                self.model.tick(self.now);
                same!(effects.reply, None, "reply to a tick");
                self.took_effect(before, written, &effects)?;
            }
            Step::Range(op) => {
                let lowest = self.model.compacted.max(self.model.revision - 3);
                for as_of in lowest..=self.model.revision {
                    let read = |past: &PastValues| self.node.replica.range(op, Revision::new(as_of), past);
                    let ours = past::whole(&self.node.disk, read);
                    same!(ours, self.model.range(op, as_of), "{op:?} as of {as_of}");
                    self.begin_walk(op, as_of);
                }
                self.begin_hash()?;
            }
            Step::Pass(ms) => self.now.mono_ms = self.now.mono_ms.saturating_add(*ms),
            Step::Wall(ms) => self.now.wall_ms = *ms,
            Step::Sweep(changes) if self.may_sweep() => drop(self.node.sweep(*changes)),
            Step::Sweep(_) => {}
            Step::Trim(records) => self.node.trim(*records),
            Step::Look => self.look()?,
            Step::Release(changes) => drop(self.node.replica.release(self.node.replica.revision(), *changes)),
            Step::Crash(lost) => self.crash(*lost)?,
        }
        Ok(())
    }

    fn begin_walk(&mut self, op: &RangeOp, as_of: i64) {
        if let Ok(walk) = self.node.replica.begin_range(op, Revision::new(as_of)) {
            self.walks.push(Walk { op: op.clone(), walk, expected: self.model.range(op, as_of) });
        }
    }

    fn begin_hash(&mut self) -> Outcome {
        let refused = |refusal: Refusal| format!("a hash of now: {refusal:?}");
        let walk = self.node.replica.begin_hash(None).map_err(refused)?;
        let (expected, _) = self.node.replica.hash_kv(None).map_err(refused)?;
        self.hashes.push(Hashing { walk, expected });
        Ok(())
    }

    /// Whether what was compacted last is needed by nobody who walks.
    fn may_sweep(&self) -> bool {
        let compacted = self.node.replica.compacted();
        self.walks.iter().all(|w| compacted <= Some(w.walk.at()))
            && self.hashes.iter().all(|h| compacted <= h.walk.compacted())
    }

    /// Looks at one more key for each range, and at one more version for each hash.
    fn walk_on(&mut self) -> Outcome {
        for Walk { op, mut walk, expected } in std::mem::take(&mut self.walks) {
            if !self.node.replica.range_on(&mut walk, 1).map_err(|refusal| format!("{op:?}: {refusal:?}"))? {
                self.walks.push(Walk { op, walk, expected });
                continue;
            }
            walk.fill(&past::recall(&self.node.disk, walk.lacking()));
            same!(Ok(walk.finish()), expected, "{op:?} in slices");
        }
        for Hashing { mut walk, expected } in std::mem::take(&mut self.hashes) {
            if !self.node.replica.hash_on(&mut walk, 1).map_err(|refusal| format!("a hash: {refusal:?}"))? {
                self.hashes.push(Hashing { walk, expected });
                continue;
            }
            same!(walk.finish(), expected, "a hash in slices");
        }
        Ok(())
    }

    fn took_effect(&mut self, before: i64, written: usize, effects: &Effects) -> Outcome {
        same!(effects.commits.to_vec(), self.model.commits(before + 1, i64::MAX), "commits");
        same!(self.node.replica.revision().get(), self.model.revision, "revision");
        if self.node.disk.waiting() > written {
            self.snapshots.push((self.node.disk.waiting(), self.model.clone()));
        }
        Ok(())
    }

    /// Loses the last writes, starts again from what is left (twice), and goes on from there.
    fn crash(&mut self, lost: usize) -> Outcome {
        (self.walks, self.hashes) = (vec![], vec![]);
        self.node.disk.lose(lost);
        let image = self.node.disk.written();
        while self.snapshots.last().is_some_and(|(at, _)| *at > self.node.disk.waiting()) {
            self.snapshots.pop();
        }
        let Some((_, model)) = self.snapshots.last() else { unreachable!("the first one is of an empty log") };
        self.now.mono_ms = 77;
        let mut model = model.clone();
        model.restart(self.now);

        let load = || image.load(self.now, IDENTITY).map_err(|damage| format!("restore: {damage}"));
        let (restored, again) = (load()?, load()?);
        same!(restored.head(), again.head(), "heads of two restores");
        check_head(&restored, &image)?;
        if lost == 0 {
            for at in model.compacted.max(1)..=model.revision {
                let named = Some(Revision::new(at));
                same!(restored.hash_kv(named), self.node.replica.hash_kv(named), "hash_kv at {at} after restore");
            }
        }
        (self.node.replica, self.model) = (restored, model);
        self.node.dead.clear();
        self.look()
    }

    /// Compares everything that can be seen.
    pub fn look(&self) -> Outcome {
        let (replica, model, now) = (&self.node.replica, &self.model, self.now);
        same!(replica.revision().get(), model.revision, "revision");
        same!(replica.compacted().map_or(-1, Revision::get), model.compacted, "compacted");
        same!(replica.alarms().collect::<BTreeSet<_>>(), model.alarms, "alarms");
        for id in LEASES.map(LeaseId::new) {
            same!(replica.lease(now, id), model.lease_status(now, id), "lease {id}");
        }
        let left = |(id, lease): (&LeaseId, &Lease)| (*id, lease.deadline_ms.saturating_sub(now.mono_ms));
        same!(replica.leases(now).collect::<Vec<_>>(), model.leases.iter().map(left).collect::<Vec<_>>(), "leases");
        let next = model.leases.values().map(|lease| lease.deadline_ms).min();
        same!(replica.next_lease_deadline_ms(), next, "next deadline");

        let read = |op: &RangeOp| past::whole(&self.node.disk, |past| replica.range(op, replica.revision(), past));
        let oldest = model.compacted.max(1);
        for at in oldest..=model.revision {
            let all = RangeOp { at: read_at(at), ..RangeOp::all(KeyRange::From(Bytes::new())) };
            same!(read(&all), model.range(&all, model.revision), "everything at {at}");
            for key in model.keys() {
                let one = RangeOp { range: KeyRange::Key(key), ..all.clone() };
                same!(read(&one), model.range(&one, model.revision), "{one:?}");
            }
            self.events(at)?;
        }
        for at in [i64::MIN, -1, oldest - 1, model.revision + 1, i64::MAX] {
            let one = RangeOp { at: read_at(at), ..RangeOp::all(KeyRange::Key(Bytes::from_static(b"a"))) };
            same!(read(&one), model.range(&one, model.revision), "{one:?}");
        }
        self.hashes()
    }

    /// The history from one revision on, in one piece and in pieces of one commit.
    fn events(&self, from: i64) -> Outcome {
        let (from, to) = (Revision::new(from), self.node.replica.revision());
        let mut model = self.model.commits(from.get(), to.get());
        let mut ours = past::events(&self.node.disk, &self.node.replica, from, to, usize::MAX);
        let step_by_step = past::events(&self.node.disk, &self.node.replica, from, to, 1);
        same!(step_by_step, ours, "events from {from}, one commit at a time");
        // At the compacted revision etcd no longer tells what an event replaced. There a sweep drops what the same
        // transaction wrote over (no client can send such a transaction).
        if self.model.compacted == from.get()
            && let (Some(ours), Some(model)) = (ours.first_mut(), model.first_mut())
            && ours.revision == from
        {
            for commit in [ours, model] {
                let last: BTreeMap<_, _> =
                    commit.events.iter().map(|event| (event.key().clone(), event.clone())).collect();
                commit.events = last
                    .into_values()
                    .map(|mut event| {
                        event.prev = None;
                        event
                    })
                    .collect();
            }
        }
        same!(ours, model, "events from {from}");
        Ok(())
    }

    fn hashes(&self) -> Outcome {
        let (mut replicated, mut local) = (Digest::default(), Digest::default());
        let model = &self.model;
        for kv in model.keys().iter().filter_map(|key| model.at(key, model.revision)) {
            let digest = if eddy_crdt::LocalKeys::default().contains(&kv.key) { &mut local } else { &mut replicated };
            digest.add(Keyspace::Client, &kv.key, &kv.value, kv.version, kv.lease);
        }
        for (id, lease) in &model.leases {
            let key = SystemKey::Lease(*id).encode();
            replicated.add(Keyspace::System, &key, &eddy_crdt::lease_value(lease.ttl, IDENTITY.replica), 1, None);
        }
        for alarm in &model.alarms {
            replicated.add(Keyspace::System, &SystemKey::Alarm(*alarm).encode(), b"", 1, None);
        }
        let head = self.node.replica.head();
        same!(head.state_hash, replicated.get(), "state hash");
        same!(head.local_hash, local.get(), "hash of the replica's own keys");
        Ok(())
    }

    /// Compacts at the newest revision and trims: what stays is what is needed, a change each.
    pub fn no_garbage_stays(&mut self) -> Outcome {
        self.step(&Step::Command(Command::Compact(self.model.revision)))?;
        (self.walks, self.hashes) = (vec![], vec![]);
        while !self.node.sweep(3) {}
        while !self.node.dead.is_empty() {
            self.node.trim(2);
        }
        self.look()?;
        self.crash(0)?;
        while !self.node.sweep(usize::MAX) {}
        while !self.node.dead.is_empty() {
            self.node.trim(usize::MAX);
        }
        let changes: usize = self
            .node
            .disk
            .written()
            .records
            .values()
            .map(|r| Record::decode(r.clone()).expect("our own").changes.len())
            .sum();
        let needed = self.model.needed_versions() + self.model.leases.len() + self.model.alarms.len();
        same!(changes, needed, "changes in the journal after a compaction of everything");
        self.crash(0)
    }
}
