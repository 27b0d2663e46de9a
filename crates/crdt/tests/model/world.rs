//! A replica with a journal that can be cut anywhere, beside the naive store; every step compares the two.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use eddy_crdt::{
    Birth, ClusterId, Command, Damage, Digest, Effects, Head, Identity, Input, KeyRange, Keyspace, LeaseId, Loader,
    Now, RangeOp, Record, Replica, ReplicaId, Reply, Revision, SystemKey, Tally,
};

use crate::naive::Naive;
use crate::steps::{LEASES, Step, read_at};

pub const IDENTITY: Identity =
    Identity { cluster: ClusterId::new(1), replica: ReplicaId::new(2), birth: Birth::new(3), ordinal: 0 };

/// One write to the journal, atomic.
#[derive(Clone, Debug)]
enum Write {
    Append { first: u64, records: Vec<Bytes>, head: Bytes },
    Trim(Vec<(u64, Option<Bytes>)>),
}

/// What a journal holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub records: BTreeMap<u64, Bytes>,
    pub head: Option<Bytes>,
}

impl Disk {
    pub fn load(&self, now: Now) -> Result<Replica, Damage> {
        let mut loader = Loader::new();
        for (number, record) in &self.records {
            loader.record(*number, record.clone())?;
        }
        loader.finish(now, self.head.as_ref(), IDENTITY)
    }

    fn apply(&mut self, write: &Write) {
        match write {
            Write::Append { first, records, head } => {
                self.records.extend((*first..).zip(records.iter().cloned()));
                self.head = Some(head.clone());
            }
            Write::Trim(trimmed) => {
                for (number, record) in trimmed {
                    match record {
                        Some(record) => self.records.insert(*number, record.clone()),
                        None => self.records.remove(number),
                    };
                }
            }
        }
    }
}

pub struct World {
    pub replica: Replica,
    pub model: Naive,
    now: Now,
    log: Vec<Write>,
    pub disk: Disk,
    /// After how many writes to the journal the model was what.
    snapshots: Vec<(usize, Naive)>,
    dead: BTreeSet<u64>,
}

type Outcome = Result<(), String>;

macro_rules! same {
    ($ours:expr, $model:expr, $($what:tt)+) => {{
        let (ours, model) = (&$ours, &$model);
        if ours != model {
            return Err(format!("{}:\n    ours {ours:?}\n   model {model:?}", format!($($what)+)));
        }
    }};
}

impl World {
    pub fn new() -> Self {
        Self {
            replica: Replica::new(IDENTITY),
            model: Naive::new(),
            now: Now { wall_ms: 1_700_000_000_000, mono_ms: 0 },
            log: vec![],
            disk: Disk::default(),
            snapshots: vec![(0, Naive::new())],
            dead: BTreeSet::new(),
        }
    }

    pub fn step(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Command(command) => {
                let before = self.replica.revision().get();
                if let Command::Txn(txn) = command
                    && txn.is_read_only()
                {
                    let read =
                        self.replica.read_txn(txn, self.replica.revision(), &mut Tally::default()).map(Reply::Txn);
                    same!(read, self.model.clone().command(self.now, command), "read-only {txn:?}");
                }
                let effects = self.replica.handle(self.now, Input::Client(command.clone()));
                let reply = self.model.command(self.now, command);
                same!(effects.reply, Some(reply), "reply to {command:?}");
                self.took_effect(before, effects)?;
            }
            Step::Tick => {
                let before = self.replica.revision().get();
                let effects = self.replica.handle(self.now, Input::Tick);
                self.model.tick(self.now);
                same!(effects.reply, None, "reply to a tick");
                self.took_effect(before, effects)?;
            }
            Step::Range(op) => {
                let lowest = self.model.compacted.max(self.model.revision - 3);
                for as_of in lowest..=self.model.revision {
                    let ours = self.replica.range(op, Revision::new(as_of));
                    same!(ours, self.model.range(op, as_of), "{op:?} as of {as_of}");
                }
            }
            Step::Pass(ms) => self.now.mono_ms = self.now.mono_ms.saturating_add(*ms),
            Step::Wall(ms) => self.now.wall_ms = *ms,
            Step::Sweep(changes) => {
                self.sweep(*changes);
            }
            Step::Trim(records) => self.trim(*records),
            Step::Look => self.look()?,
            Step::Crash(lost) => self.crash(*lost)?,
        }
        Ok(())
    }

    fn took_effect(&mut self, before: i64, effects: Effects) -> Outcome {
        same!(effects.commits.to_vec(), self.model.commits(before + 1, i64::MAX), "commits");
        same!(self.replica.revision().get(), self.model.revision, "revision");
        let records = effects.records.to_vec();
        if !records.is_empty() || effects.head_changed {
            let first = self.replica.next_number() - records.len() as u64;
            let write = Write::Append { first, records, head: self.replica.head().encode() };
            self.write(write);
            self.snapshots.push((self.log.len(), self.model.clone()));
        }
        Ok(())
    }

    fn write(&mut self, write: Write) {
        self.disk.apply(&write);
        self.log.push(write);
    }

    fn sweep(&mut self, changes: usize) -> bool {
        let sweep = self.replica.sweep(changes);
        self.dead.extend(sweep.dead);
        sweep.done
    }

    fn trim(&mut self, records: usize) {
        let mut trimmed = vec![];
        for _ in 0..records {
            let Some(number) = self.dead.pop_first() else { break };
            if let Some(record) = self.disk.records.get(&number) {
                trimmed.push((number, self.replica.trim(record)));
            }
        }
        self.write(Write::Trim(trimmed));
    }

    /// Loses the last writes, starts again from what is left (twice), and goes on from there.
    fn crash(&mut self, lost: usize) -> Outcome {
        self.log.truncate(self.log.len().saturating_sub(lost));
        let mut disk = Disk::default();
        self.log.iter().for_each(|write| disk.apply(write));
        while self.snapshots.last().is_some_and(|(at, _)| *at > self.log.len()) {
            self.snapshots.pop();
        }
        let Some((_, model)) = self.snapshots.last() else { unreachable!("the first one is of an empty log") };
        self.now.mono_ms = 77;
        let mut model = model.clone();
        model.restart(self.now);

        let load = || disk.load(self.now).map_err(|damage| format!("restore: {damage}"));
        let (restored, again) = (load()?, load()?);
        same!(restored.head(), again.head(), "heads of two restores");
        if let Some(head) = &disk.head {
            // While a compaction is swept the head does not say how many versions there are.
            let stored = Head::decode(head).map_err(|error| error.to_string())?;
            let ours = Head { versions: stored.versions, ..restored.head() };
            same!(ours, stored, "head after restore");
        }
        if lost == 0 {
            for at in model.compacted.max(1)..=model.revision {
                let named = Some(Revision::new(at));
                same!(restored.hash_kv(named), self.replica.hash_kv(named), "hash_kv at {at} after restore");
            }
        }
        (self.replica, self.model, self.disk) = (restored, model, disk);
        self.dead.clear();
        self.look()
    }

    /// Compares everything that can be seen.
    pub fn look(&self) -> Outcome {
        let (replica, model, now) = (&self.replica, &self.model, self.now);
        same!(replica.revision().get(), model.revision, "revision");
        same!(replica.compacted().map_or(-1, Revision::get), model.compacted, "compacted");
        same!(replica.alarms().collect::<BTreeSet<_>>(), model.alarms, "alarms");
        for id in LEASES.map(LeaseId::new) {
            same!(replica.lease(now, id), model.lease_status(now, id), "lease {id}");
        }
        let left = |(id, lease): (&LeaseId, &crate::naive::Lease)| (*id, lease.deadline_ms.saturating_sub(now.mono_ms));
        same!(replica.leases(now).collect::<Vec<_>>(), model.leases.iter().map(left).collect::<Vec<_>>(), "leases");
        let next = model.leases.values().map(|lease| lease.deadline_ms).min();
        same!(replica.next_lease_deadline_ms(), next, "next deadline");

        let oldest = model.compacted.max(1);
        for at in oldest..=model.revision {
            let all = RangeOp { at: read_at(at), ..RangeOp::all(KeyRange::From(Bytes::new())) };
            same!(replica.range(&all, replica.revision()), model.range(&all, model.revision), "everything at {at}");
            for key in model.keys() {
                let one = RangeOp { range: KeyRange::Key(key), ..all.clone() };
                same!(replica.range(&one, replica.revision()), model.range(&one, model.revision), "{one:?}");
            }
            self.events(at)?;
        }
        for at in [i64::MIN, -1, oldest - 1, model.revision + 1, i64::MAX] {
            let one = RangeOp { at: read_at(at), ..RangeOp::all(KeyRange::Key(Bytes::from_static(b"a"))) };
            same!(replica.range(&one, replica.revision()), model.range(&one, model.revision), "{one:?}");
        }
        self.hashes()
    }

    /// The history from one revision on, in one piece and in pieces of one commit.
    fn events(&self, from: i64) -> Outcome {
        let (from, to) = (Revision::new(from), self.replica.revision());
        let mut model = self.model.commits(from.get(), to.get());
        let mut ours = self.replica.events(from, to, usize::MAX);
        let mut step_by_step = vec![];
        let mut next = from;
        while let [commit] = &self.replica.events(next, to, 1)[..] {
            next = commit.revision.next();
            step_by_step.push(commit.clone());
        }
        same!(step_by_step, ours, "events from {from}, one commit at a time");
        // At the compacted revision etcd no longer tells what an event replaced, and a sweep drops what the same
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
            let digest = if eddy_crdt::is_replica_local(&kv.key) { &mut local } else { &mut replicated };
            digest.add(Keyspace::Client, &kv.key, &kv.value, kv.version, kv.lease);
        }
        for (id, lease) in &model.leases {
            let key = SystemKey::Lease(*id).encode();
            replicated.add(Keyspace::System, &key, &eddy_crdt::lease_value(lease.ttl, IDENTITY.replica), 1, None);
        }
        for alarm in &model.alarms {
            replicated.add(Keyspace::System, &SystemKey::Alarm(*alarm).encode(), b"", 1, None);
        }
        let head = self.replica.head();
        same!(head.state_hash, replicated.get(), "state hash");
        same!(head.local_hash, local.get(), "hash of the replica's own keys");
        Ok(())
    }

    /// Compacts at the newest revision and trims: what stays is what is needed, a change each.
    pub fn no_garbage_stays(&mut self) -> Outcome {
        self.step(&Step::Command(Command::Compact(self.model.revision)))?;
        while !self.sweep(3) {}
        while !self.dead.is_empty() {
            self.trim(2);
        }
        self.look()?;
        self.crash(0)?;
        while !self.sweep(usize::MAX) {}
        while !self.dead.is_empty() {
            self.trim(usize::MAX);
        }
        let records = self.disk.records.values();
        let changes: usize = records.map(|r| Record::decode(r.clone()).expect("our own").changes.len()).sum();
        let needed = self.model.needed_versions() + self.model.leases.len() + self.model.alarms.len();
        same!(changes, needed, "changes in the journal after a compaction of everything");
        self.crash(0)
    }
}
