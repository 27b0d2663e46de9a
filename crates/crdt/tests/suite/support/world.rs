//! A world of replicas in which each step is decided: by hand, who tells whom; or by wires, on which time passes.

use eddy_crdt::sync::{Exchange, Tuning};
use eddy_crdt::{
    Ack, Command, Effects, Identity, Input, Now, Origin, Prepared, Refusal, Replica, Reply, VersionVector,
};

use super::build::{WALL_MS, genesis, id, identity};
use super::checks;
use super::node::Node;
use super::wires::{Mangle, Wire};

pub struct World {
    pub nodes: Vec<Node>,
    /// How long it has lasted, milliseconds.
    pub ms: u64,
    pub wires: Vec<Wire>,
    pub mangle: Option<Mangle>,
}

impl World {
    /// So many founders of one cluster, each under its birth 1, who hear nothing unless they are told.
    pub fn new(count: usize) -> Self {
        let nodes = (0..count).map(|n| Node::found(identity(n, 1), &genesis(count))).collect();
        Self { nodes, ms: 0, wires: vec![], mangle: None }
    }

    /// So many founders that can be connected by wires.
    pub fn wired(count: usize) -> Self {
        Self::new(count)
    }

    /// The same, whose sessions are tuned.
    pub fn tuned(count: usize, tuning: Tuning) -> Self {
        let mut world = Self::wired(count);
        world.nodes.iter_mut().for_each(|node| node.exchange = Exchange::new(tuning));
        world
    }

    /// So many founders, each connected with each.
    pub fn mesh(count: usize) -> Self {
        let mut world = Self::wired(count);
        for a in 0..count {
            for b in a + 1..count {
                world.connect(a, b);
            }
        }
        world
    }

    pub fn now(&self) -> Now {
        Now { wall_ms: WALL_MS + self.ms, mono_ms: self.ms }
    }

    pub fn handle(&mut self, node: usize, input: Input) -> Effects {
        let node = &mut self.nodes[node];
        let now = node.now(self.ms);
        node.handle(now, input)
    }

    /// What a replica answers to a client, a millisecond later.
    pub fn run(&mut self, node: usize, command: Command) -> Result<Reply, Refusal> {
        self.ms += 1;
        self.handle(node, Input::Client(command)).reply.expect("a command is answered")
    }

    pub fn restart(&mut self, node: usize) -> Result<(), String> {
        let now = self.now();
        self.nodes[node].restart(now)
    }

    /// `to` hears from `from` what it lacks, at most about that many bytes.
    pub fn tell(&mut self, from: usize, to: usize, bytes: usize) -> Result<usize, String> {
        // What a stream begins with is one step.
        let together = self.nodes[from].replica.marks().is_cut_off(id(to));
        let bytes = if together { usize::MAX } else { bytes };
        self.handle(from, Input::Stream { member: id(to), session: 1 });
        let have = self.nodes[to].replica.vector();
        let source = &self.nodes[from].replica;
        let entries = source.entries_for(have, source.vector(), bytes).map_err(|e| e.to_string())?;
        let entries: Vec<_> = entries.iter().map(|entry| (**entry).clone()).collect();
        let (count, Identity { replica: from, birth, .. }) = (entries.len(), source.identity());
        let births = self.nodes[to].replica.births_of(from).chain([birth]).collect();
        let together = together.then(Prepared::default);
        self.handle(to, Input::Entries { from, births, entries, together });
        Ok(count)
    }

    /// `to` hears what `from` has on disk, and what that knows of others.
    pub fn tell_acks(&mut self, from: usize, to: usize) {
        let source = &self.nodes[from].replica;
        let ack = |(member, vector): (&Origin, &VersionVector)| Ack {
            member: *member,
            vector: vector.clone(),
            said: source.said_of(*member).cloned().unwrap_or_default(),
        };
        let mut acks: Vec<Ack> = source.acks().iter().map(ack).collect();
        let (member, vector) = (source.identity().origin(), source.vector().clone());
        acks.push(Ack { member, vector, said: source.said() });
        let own = self.nodes[to].replica.vector().clone();
        self.handle(to, Input::Acks { own, acks });
    }

    /// Everyone hears everything.
    pub fn tell_all(&mut self) -> Result<(), String> {
        for _ in 0..20 {
            let mut moved = 0;
            for from in 0..self.nodes.len() {
                for to in 0..self.nodes.len() {
                    if from != to {
                        moved += self.tell(from, to, usize::MAX)?;
                        self.tell_acks(from, to);
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
        let replicas: Vec<&Replica> = self.nodes.iter().map(|node| &node.replica).collect();
        checks::converged(&replicas)
    }
}
