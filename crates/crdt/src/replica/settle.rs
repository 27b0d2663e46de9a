//! Settling: when all members are known to have something, what was kept for its sake is let go.

use std::collections::BTreeSet;

use crate::replica::{Effects, Replica};
use crate::words::clock::Now;
use crate::words::id::{Dot, Origin};
use crate::words::key::{Key, Keyspace};
use crate::words::vector::VersionVector;

impl Replica {
    /// Takes note of what members have on disk.
    pub(crate) fn acknowledge(
        &mut self,
        now: Now,
        own: VersionVector,
        acks: Vec<(Origin, VersionVector)>,
        effects: &mut Effects,
    ) {
        if !self.state.windowed {
            return;
        }
        let own = own.meet(&self.vector);
        let mut news = self.acks.note(self.identity.origin(), own, &self.vector);
        for (member, vector) in acks {
            if member.replica == self.identity.replica {
                // Others count on what it had before it lost its disk. They wait for its word that it is another now.
                if member.birth != self.identity.birth && !self.joining {
                    self.announce(now, member.replica, self.identity.birth, effects);
                }
                continue;
            }
            // A member that is not known yet has acknowledged its own addition, which will come: its word must wait, not get
            // lost. Whoever has acknowledged nothing new and is not known is nobody.
            let is_nobody = self.members.get(member.replica).is_none() && self.vector.covers(&vector);
            if !is_nobody {
                news |= self.acks.note(member, vector, &self.vector);
            }
        }
        effects.head_changed |= news;
        self.advance(now, effects);
    }

    /// Moves the floor as far as acknowledgements allow, and settles what lies under it.
    pub(crate) fn advance(&mut self, now: Now, effects: &mut Effects) {
        if !self.state.windowed || now.mono_ms < self.hold_until_ms {
            return;
        }
        let reached = self.members.floor(&self.acks);
        let grown: Vec<(Origin, u64, u64)> = reached
            .iter()
            .map(|dot| (dot.origin, self.floor.get(dot.origin), dot.seq))
            .filter(|(_, before, after)| before < after)
            .collect();
        if !grown.is_empty() {
            self.floor.merge(&reached);
            effects.head_changed = true;
            self.settle(&grown);
        }
        if self.log.is_empty() && self.members.counting(&self.acks) == [self.identity.replica] {
            self.become_alone();
        }
    }

    /// Settles what lies under that floor, whatever was settled before.
    pub(crate) fn settle_all(&mut self, floor: &VersionVector) {
        let grown: Vec<_> = floor.iter().map(|dot| (dot.origin, 0, dot.seq)).collect();
        self.settle(&grown);
    }

    fn settle(&mut self, grown: &[(Origin, u64, u64)]) {
        let mut touched: BTreeSet<(Keyspace, Key)> = std::mem::take(&mut self.lingering);
        for (origin, before, after) in grown {
            let covered = self.log.of(*origin, before + 1).take_while(|logged| logged.entry.head.dot.seq <= *after);
            for change in covered.flat_map(|logged| &logged.entry.changes) {
                touched.insert((change.keyspace, change.key.clone()));
            }
        }
        for (keyspace, key) in touched {
            let rules = std::sync::Arc::clone(&self.state.rules);
            let (released, lingers) = self.state.windows.settle(keyspace, &key, &self.floor, &rules);
            if let Some(number) = released {
                self.release(number);
            }
            if lingers {
                self.lingering.insert((keyspace, key));
            }
        }
        let origins: Vec<Origin> = self.floor.iter().map(|dot| dot.origin).collect();
        for origin in origins {
            self.shorten_log(origin);
        }
    }

    /// Takes an origin's oldest entries out of the log, as far as all that they did is settled.
    fn shorten_log(&mut self, origin: Origin) {
        let upto = self.floor.get(origin);
        while let Some(oldest) = self.log.oldest(origin) {
            let dot = oldest.entry.head.dot;
            let unsettled = |lingering: &BTreeSet<(Keyspace, Key)>| {
                oldest.entry.changes.iter().any(|change| {
                    lingering.contains(&(change.keyspace, change.key.clone()))
                        && self.state.windows.holds(change.keyspace, &change.key, dot)
                })
            };
            if dot.seq > upto || (!self.lingering.is_empty() && unsettled(&self.lingering)) {
                return;
            }
            let Some(logged) = self.log.pop(origin) else { return };
            let state = self.origin_mut(origin);
            (state.base_chain, state.base_deps) = (logged.chain, logged.deps);
            self.base.advance(dot);
            self.release(logged.number);
        }
    }

    /// A record is no longer kept for the sake of peers: what is dead of it may go.
    fn release(&mut self, number: u64) {
        if !self.is_retained(number) && self.held.remove(&number) {
            self.state.dead.change(number);
        }
    }

    /// Whether a record must stay whole, or the change in it that is the base of a window must.
    pub(crate) fn is_retained(&self, number: u64) -> bool {
        self.log.by_number(number).is_some() || self.state.windows.rests_on(number)
    }

    /// There are no other members any more: everything is settled, and nothing is kept for anyone.
    fn become_alone(&mut self) {
        self.state.windowed = false;
        self.lingering.clear();
    }

    /// There are other members from now on: what is here so far is settled, all that follows is kept until they have it.
    pub(crate) fn open_up(&mut self) {
        if self.state.windowed {
            return;
        }
        self.state.windowed = true;
        self.floor = self.vector.clone();
        self.base = self.vector.clone();
        self.own.rebase();
        self.others.values_mut().for_each(crate::replica::origins::OriginState::rebase);
    }

    /// Where the log begins: nothing up to there is in it.
    pub(crate) fn log_base(&self) -> &VersionVector {
        if self.state.windowed { &self.base } else { &self.vector }
    }

    pub(crate) fn origin_mut(&mut self, origin: Origin) -> &mut crate::replica::origins::OriginState {
        if origin == self.identity.origin() { &mut self.own } else { self.others.entry(origin).or_default() }
    }

    /// Where the log of each origin begins, for the head.
    pub(crate) fn origin_heads(&self) -> Vec<crate::entry::OriginHead> {
        let heads = self.vector.iter().map(|newest| {
            let origin = newest.origin;
            let own = OriginStateRef(if origin == self.identity.origin() {
                Some(&self.own)
            } else {
                self.others.get(&origin)
            });
            let (chain, deps) = own.base(self.state.windowed);
            let seq = self.log_base().get(origin);
            crate::entry::OriginHead { dot: Dot { origin, seq }, chain, deps }
        });
        heads.collect()
    }
}

struct OriginStateRef<'a>(Option<&'a crate::replica::origins::OriginState>);

impl OriginStateRef<'_> {
    fn base(&self, windowed: bool) -> (crate::entry::Chain, VersionVector) {
        match self.0 {
            Some(state) if windowed => (state.base_chain, VersionVector::clone(&state.base_deps)),
            Some(state) => (state.chain, VersionVector::clone(&state.deps)),
            None => Default::default(),
        }
    }
}
