//! Replicas with journals, and a network that is a bag of nothing: who is to hear of what is decided step by step.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use eddy_crdt::{
    Birth, ClusterId, Command, DeleteOp, Effects, Founder, Genesis, Head, Identity, Input, KeyRange, KeyValue, Loader,
    Notice, Now, Origin, PutLease, PutOp, PutValue, RangeOp, Refusal, Replica, ReplicaId, Reply, VersionVector,
};

/// What a journal holds, and the last state of it that is durable.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    pub records: BTreeMap<u64, Bytes>,
    pub head: Option<Bytes>,
}

pub struct Node {
    pub replica: Replica,
    pub disk: Disk,
    pub identity: Identity,
    pub notices: Vec<Notice>,
    dead: BTreeSet<u64>,
}

pub struct World {
    pub nodes: Vec<Node>,
    pub now: Now,
}

pub fn identity(n: u64) -> Identity {
    Identity { cluster: ClusterId::new(1), replica: ReplicaId::new(n), birth: Birth::new(n * 100), ordinal: 0 }
}

pub fn genesis(count: u64) -> Genesis {
    let founder = |n| Founder {
        id: ReplicaId::new(n),
        name: format!("n{n}"),
        peer_urls: vec![format!("http://10.0.0.{n}:2380")],
    };
    Genesis { founders: (1..=count).map(founder).collect(), ..Genesis::default() }
}

pub fn put(key: &str, value: &str) -> Command {
    put_leased(key, value, None)
}

pub fn put_leased(key: &str, value: &str, lease: Option<i64>) -> Command {
    Command::Put(PutOp {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: PutValue::Set(Bytes::copy_from_slice(value.as_bytes())),
        lease: PutLease::Set(lease.map(eddy_crdt::LeaseId::new)),
        prev_kv: false,
    })
}

pub fn delete(key: &str) -> Command {
    Command::Delete(DeleteOp { range: KeyRange::Key(Bytes::copy_from_slice(key.as_bytes())), prev_kv: false })
}

impl Disk {
    pub fn load(&self, now: Now, identity: Identity) -> Result<Replica, String> {
        let mut loader = Loader::new();
        for (number, record) in &self.records {
            loader.record(*number, record.clone()).map_err(|e| e.to_string())?;
        }
        loader.finish(now, self.head.as_ref(), identity).map_err(|e| e.to_string())
    }
}

impl Node {
    pub fn found(n: u64, genesis: &Genesis) -> Self {
        let (replica, effects) = Replica::found(identity(n), genesis);
        let disk = Disk::default();
        let mut node = Self { identity: replica.identity(), replica, disk, notices: vec![], dead: BTreeSet::new() };
        node.store(&effects);
        node
    }

    pub fn store(&mut self, effects: &Effects) {
        if effects.records.is_empty() && !effects.head_changed {
            return;
        }
        let first = self.replica.next_number() - effects.records.len() as u64;
        self.disk.records.extend((first..).zip(effects.records.iter().cloned()));
        self.disk.head = Some(self.replica.head().encode());
    }

    pub fn handle(&mut self, now: Now, input: Input) -> Effects {
        let effects = self.replica.handle(now, input);
        self.notices.extend(effects.notices.iter().cloned());
        self.store(&effects);
        effects
    }

    pub fn tidy(&mut self, sweep: usize, trim: usize) {
        self.dead.extend(self.replica.sweep(sweep).dead);
        for _ in 0..trim {
            let Some(number) = self.dead.pop_first() else { break };
            if let Some(record) = self.disk.records.remove(&number)
                && let Some(left) = self.replica.trim(&record)
            {
                self.disk.records.insert(number, left);
            }
        }
    }

    /// Starts again from the disk; everything that was there must be there again.
    pub fn restart(&mut self, now: Now) -> Result<(), String> {
        let again = self.disk.load(now, self.identity)?;
        if let Some(head) = &self.disk.head {
            let stored = Head::decode(head).map_err(|e| e.to_string())?;
            let ours = Head { versions: stored.versions, ..again.head() };
            same(&ours, &stored, "head after a restart")?;
        }
        let (no_windows, no_log) = (eddy_crdt::merge::Windows::default(), eddy_crdt::Log::default());
        let windows = |of: &Replica| of.windows().unwrap_or(&no_windows).clone();
        let log = |of: &Replica| of.log().unwrap_or(&no_log).clone();
        same(&windows(&again), &windows(&self.replica), "windows after a restart")?;
        same(&log(&again), &log(&self.replica), "log after a restart")?;
        same(again.floor(), self.replica.floor(), "floor after a restart")?;
        same(&again.state_hash(), &self.replica.state_hash(), "state after a restart")?;
        let members = |replica: &Replica| replica.members().cloned().collect::<Vec<_>>();
        same(&members(&again), &members(&self.replica), "members after a restart")?;
        let (from, to) = (again.compacted().unwrap_or(eddy_crdt::Revision::FIRST), again.revision());
        same(&again.events(from.next(), to, usize::MAX), &self.replica.events(from.next(), to, usize::MAX), "events")?;
        self.replica = again;
        self.dead.clear();
        Ok(())
    }

    pub fn get(&self, key: &str) -> Option<String> {
        self.kv(key).map(|kv| String::from_utf8_lossy(&kv.value).into_owned())
    }

    pub fn kv(&self, key: &str) -> Option<KeyValue> {
        let range = RangeOp::all(KeyRange::Key(Bytes::copy_from_slice(key.as_bytes())));
        self.replica.range(&range, self.replica.revision()).ok()?.kvs.pop()
    }

    pub fn everything(&self) -> Vec<(Bytes, Bytes, i64, Option<eddy_crdt::LeaseId>)> {
        let range = RangeOp::all(KeyRange::From(Bytes::from_static(b"\0")));
        let kvs = self.replica.range(&range, self.replica.revision()).map(|reply| reply.kvs).unwrap_or_default();
        kvs.into_iter()
            .filter(|kv| !eddy_crdt::is_replica_local(&kv.key))
            .map(|kv| (kv.key, kv.value, kv.version, kv.lease))
            .collect()
    }
}

pub fn same<T: PartialEq + std::fmt::Debug>(ours: &T, theirs: &T, what: &str) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{what}:\n   now {ours:?}\n  then {theirs:?}")) }
}

impl World {
    pub fn new(count: u64) -> Self {
        let genesis = genesis(count);
        let nodes = (1..=count).map(|n| Node::found(n, &genesis)).collect();
        Self { nodes, now: Now { wall_ms: 1_700_000_000_000, mono_ms: 0 } }
    }

    pub fn run(&mut self, node: usize, command: Command) -> Result<Reply, Refusal> {
        self.now.wall_ms += 1;
        let effects = self.nodes[node].handle(self.now, Input::Client(command));
        effects.reply.expect("a command is answered")
    }

    /// `to` hears from `from` what it lacks, at most about that many bytes.
    pub fn sync(&mut self, from: usize, to: usize, bytes: usize) -> Result<usize, String> {
        let upto = self.nodes[from].replica.vector().clone();
        self.nodes[from].handle(self.now, Input::Offer { upto });
        let have = self.nodes[to].replica.vector();
        let source = &self.nodes[from].replica;
        let entries = source.entries_for(have, source.vector(), bytes).map_err(|e| e.to_string())?;
        let entries: Vec<_> = entries.iter().map(|entry| (**entry).clone()).collect();
        let (count, Identity { replica: from, birth, .. }) = (entries.len(), self.nodes[from].identity);
        let births = self.nodes[to].replica.births_of(from).chain([birth]).collect();
        self.nodes[to].handle(self.now, Input::Entries { from, births, entries });
        Ok(count)
    }

    /// `to` hears what `from` has on disk, and what that knows of others.
    pub fn acks(&mut self, from: usize, to: usize) {
        let source = &self.nodes[from];
        let mut acks: Vec<(Origin, VersionVector)> =
            source.replica.acks().iter().map(|(id, ack)| (*id, ack.clone())).collect();
        acks.push((source.identity.origin(), source.replica.vector().clone()));
        let own = self.nodes[to].replica.vector().clone();
        self.nodes[to].handle(self.now, Input::Acks { own, acks });
    }

    /// Everyone hears everything.
    pub fn heal(&mut self) -> Result<(), String> {
        for _ in 0..20 {
            let mut moved = 0;
            for from in 0..self.nodes.len() {
                for to in 0..self.nodes.len() {
                    if from != to {
                        moved += self.sync(from, to, usize::MAX)?;
                        self.acks(from, to);
                    }
                }
            }
            if moved == 0 {
                return Ok(());
            }
        }
        Err("the replicas go on telling each other things for ever".to_owned())
    }

    /// What must hold once all have heard everything.
    pub fn check_equal(&self) -> Result<(), String> {
        let first = &self.nodes[0];
        for node in &self.nodes[1..] {
            same(node.replica.vector(), first.replica.vector(), "vectors")?;
            same(&node.everything(), &first.everything(), "keys")?;
            same(&node.replica.state_hash(), &first.replica.state_hash(), "state hashes")?;
        }
        for node in &self.nodes {
            same(node.replica.floor(), node.replica.vector(), "floor and vector after all acknowledged")?;
            same(&node.replica.windows_len(), &0, "windows after all acknowledged")?;
            same(&node.replica.log_len(), &0, "log after all acknowledged")?;
        }
        Ok(())
    }
}
