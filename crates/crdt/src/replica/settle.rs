//! Settling: when all members are known to have something, what was kept for its sake is let go.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::entry::OriginHead;
use crate::merge::book::RuleBook;
use crate::replica::Replica;
use crate::replica::marks::{Ack, Statement};
use crate::replica::origins::OriginState;
use crate::replica::replication::Replication;
use crate::replica::turn::Turn;
use crate::words::id::{Dot, Origin};
use crate::words::key::{Key, Keyspace};
use crate::words::vector::VersionVector;

/// That the floor has grown at an origin: from a `seq`, to another.
type Growth = (Origin, u64, u64);

impl Replica {
    /// Takes note of what members have on disk.
    pub(crate) fn acknowledge(&mut self, turn: &mut Turn, own: VersionVector, acks: Vec<Ack>) {
        if self.replication.is_none() {
            return;
        }
        let own = own.meet(&self.origins.vector);
        let mut news =
            self.membership.acks.note(self.identity.origin(), own, &Statement::default(), &self.origins.vector);
        for Ack { member, vector, said } in acks {
            if member.replica == self.identity.replica {
                // Others count on what this replica had before it lost its disk. They wait until it announces its new
                // birth.
                if member.birth != self.identity.birth && !self.membership.joining {
                    self.announce(turn, member.replica, self.identity.birth);
                }
                continue;
            }
            // A member that is not known yet has acknowledged its own addition, which will come: its acknowledgement
            // must wait. One that acknowledges nothing new and is not known is no member.
            let is_nobody =
                self.membership.members.get(member.replica).is_none() && self.origins.vector.covers(&vector);
            if !is_nobody {
                if self.membership.members.get(member.replica).is_some() {
                    self.membership.heard.note(turn.now, member, &vector);
                }
                news |= self.membership.acks.note(member, vector, &said, &self.origins.vector);
            }
        }
        turn.effects.head_changed |= news;
        self.advance(turn);
        self.leave_what_was_heard();
    }

    /// Moves the floor as far as acknowledgements allow, settles what lies under it, and does what waited for that.
    pub(crate) fn advance(&mut self, turn: &mut Turn) {
        self.advance_floor(turn);
        self.move_rules(turn);
    }

    fn advance_floor(&mut self, turn: &mut Turn) {
        let Some(replication) = &mut self.replication else { return self.forget_births_alone(turn) };
        if replication.hold_until_ms.is_some_and(|until_ms| turn.now.mono_ms < until_ms) {
            return;
        }
        let reached = self.membership.floor();
        let grown: Vec<Growth> = reached
            .iter()
            .map(|dot| (dot.origin, replication.floor.get(dot.origin), dot.seq))
            .filter(|(_, before, after)| before < after)
            .collect();
        if !grown.is_empty() {
            replication.floor.merge(&reached);
            turn.effects.head_changed = true;
            self.settle(&grown);
        }
        self.forget_births(turn, &reached);
        let is_logged = self.replication.as_ref().is_some_and(|replication| !replication.log.is_empty());
        if !is_logged && self.membership.counting() == [self.identity.replica] {
            // There are no other members any more: everything is settled, and nothing is kept for anyone.
            self.replication = None;
        }
    }

    /// Settles all that lies under the floor, whatever was settled before.
    pub(crate) fn settle_all(&mut self) {
        let floor = self.replication.as_ref().map(|replication| replication.floor.clone()).unwrap_or_default();
        let grown: Vec<Growth> = floor.iter().map(|dot| (dot.origin, 0, dot.seq)).collect();
        self.settle(&grown);
    }

    fn settle(&mut self, grown: &[Growth]) {
        let Some(replication) = &mut self.replication else { return };
        let mut released = replication.settle_windows(grown, &self.rules);
        released.extend(replication.shorten_log());
        // The record is no longer kept for peers: its dead changes may go.
        for number in released {
            if !replication.retains(number) && self.journal.held.remove(&number) {
                self.state.dead.change(number);
            }
        }
    }

    /// Whether a record must stay whole, or the change in it that is the base of a window must.
    pub(crate) fn is_retained(&self, number: u64) -> bool {
        self.replication.as_ref().is_some_and(|replication| replication.retains(number))
    }

    /// There are other members from now on: what is here so far is settled, all that follows is kept until they have it.
    pub(crate) fn open_up(&mut self) -> &mut Replication {
        let (identity, origins) = (self.identity, &self.origins);
        self.replication.get_or_insert_with(|| Replication::after(identity.origin(), origins))
    }

    /// Where the log begins: nothing up to there is in it.
    pub fn log_base(&self) -> &VersionVector {
        self.replication.as_ref().map_or(&self.origins.vector, |replication| &replication.base)
    }

    /// Where the log of each origin begins, for the head.
    pub(crate) fn origin_heads(&self) -> Vec<OriginHead> {
        let heads = self.origins.vector.iter().map(|newest| {
            let origin = newest.origin;
            let state = match &self.replication {
                Some(replication) => replication.begins.get(&origin),
                None => self.origins.get(self.identity.origin(), origin),
            };
            let OriginState { chain, deps } = state.cloned().unwrap_or_default();
            let before = self.log_base().get(origin);
            OriginHead { origin, before, chain, deps: Arc::unwrap_or_clone(deps) }
        });
        heads.collect()
    }
}

impl Replication {
    /// Settles the windows of keys that entries under the floor have changed. Tells the records that no window rests on any
    /// more.
    fn settle_windows(&mut self, grown: &[Growth], book: &RuleBook) -> Vec<u64> {
        let mut touched: BTreeSet<(Keyspace, Key)> = std::mem::take(&mut self.lingering);
        for (origin, before, after) in grown {
            let covered = self.log.of(*origin, before + 1).take_while(|logged| logged.entry.head.dot.seq <= *after);
            for change in covered.flat_map(|logged| &logged.entry.changes) {
                touched.insert((change.keyspace, change.key.clone()));
            }
        }
        let mut released = vec![];
        for (keyspace, key) in touched {
            let (record, lingers) = self.windows.settle(keyspace, &key, &self.floor, book);
            released.extend(record);
            if lingers {
                self.lingering.insert((keyspace, key));
            }
        }
        released
    }

    /// Takes the oldest entries of each origin out of the log, as far as all that they did is settled. Tells their records.
    fn shorten_log(&mut self) -> Vec<u64> {
        let mut released = vec![];
        for Dot { origin, seq: upto } in self.floor.iter() {
            while let Some(oldest) = self.log.oldest(origin) {
                let dot = oldest.entry.head.dot;
                let is_unsettled = || {
                    oldest.entry.changes.iter().any(|change| {
                        self.lingering.contains(&(change.keyspace, change.key.clone()))
                            && self.windows.holds(change.keyspace, &change.key, dot)
                    })
                };
                if dot.seq > upto || (!self.lingering.is_empty() && is_unsettled()) {
                    break;
                }
                let Some(logged) = self.log.pop(origin) else { break };
                self.begins.insert(origin, OriginState { chain: logged.chain, deps: logged.deps });
                self.base.advance(dot);
                released.push(logged.number);
            }
        }
        released
    }
}
