//! Settling: when all members are known to have something, what was kept for its sake is let go.
//!
//! The floor moves at once, however far. What lies under it is settled in slices, one in each turn, so that clients do not
//! wait when a member comes back, or one that was away for days is removed. Until its turn comes, a version under the floor
//! is like one that something concurrent still holds in its window.

use std::collections::HashSet;
use std::sync::Arc;

use crate::entry::{Change, OriginHead};
use crate::merge::book::RuleBook;
use crate::merge::windows::KeyWindow;
use crate::replica::Replica;
use crate::replica::leave::BRAID;
use crate::replica::marks::{Ack, Statement};
use crate::replica::origins::OriginState;
use crate::replica::replication::Replication;
use crate::replica::turn::Turn;
use crate::words::id::Dot;
use crate::words::key::{Key, Keyspace};
use crate::words::vector::VersionVector;

/// What a key costs of a turn's pace when versions of it stay unsettled: its base may take a merge. Other keys cost 1.
const KEPT_WINDOW: usize = 16;

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
        self.end_doubt(turn);
        self.advance_floor(turn);
        self.drop_forgotten_rules();
        self.move_rules(turn);
    }

    fn advance_floor(&mut self, turn: &mut Turn) {
        let Some(replication) = &mut self.replication else { return self.forget_births_alone(turn) };
        if replication.hold_until_ms.is_some_and(|until_ms| turn.now.mono_ms < until_ms) {
            return;
        }
        let reached = self.membership.floor();
        if reached.iter().any(|dot| !replication.floor.contains(dot)) {
            let risen = replication.with_its_past(reached.clone());
            replication.rise(&risen);
            turn.effects.head_changed = true;
        }
        // The head says where the log begins, and is on disk before the records of what left it are shortened.
        turn.effects.head_changed |= self.settle(self.settle_pace);
        self.forget_births(turn, &reached);
        let is_logged = self.replication.as_ref().is_some_and(|replication| !replication.log.is_empty());
        if !is_logged && self.membership.counting() == [self.identity.replica] {
            // There are no other members any more: everything is settled, and nothing is kept for anyone.
            self.replication = None;
        }
    }

    /// How much is settled in one turn from now on. Only tests need another number than the usual one.
    pub fn settle_by(&mut self, pace: usize) {
        self.settle_pace = pace.max(1);
    }

    /// Settles all that lies under the floor, whatever was settled before.
    pub(crate) fn settle_all(&mut self) {
        if let Some(replication) = &mut self.replication {
            replication.settled_upto = VersionVector::default();
            let floor = replication.floor.clone();
            replication.rise(&floor);
            self.settle(usize::MAX);
        }
    }

    /// Settles about that much. Tells whether the log begins elsewhere now.
    fn settle(&mut self, pace: usize) -> bool {
        let Some(replication) = &mut self.replication else { return false };
        replication.free_rules();
        if replication.is_settled() {
            return false;
        }
        let mut released = replication.settle_windows(pace, &self.rules);
        let left_log = replication.shorten_log(pace);
        // What was merged by them may just have left the log.
        replication.free_rules();
        let is_shorter = !left_log.is_empty();
        released.extend(left_log);
        // The record is no longer kept for peers: its dead changes may go.
        for number in released {
            if !replication.retains(number) && self.journal.held.remove(&number) {
                self.state.dead.change(number);
            }
        }
        is_shorter
    }

    /// The keys that wait although the floor lets them settle: none, as long as no wake-up is missing. Only tests ask.
    pub fn overlooked(&self) -> Vec<(Keyspace, Key)> {
        let Some(replication) = self.replication.as_ref().filter(|replication| replication.is_settled()) else {
            return vec![];
        };
        let may_settle = |(keyspace, key, open): &(Keyspace, &Key, &KeyWindow)| {
            let held = replication.floor_of_rules(*keyspace, key, &replication.floor);
            open.may_settle(held.as_ref().unwrap_or(&replication.floor))
        };
        let overlooked = replication.windows.iter().filter(may_settle);
        overlooked.map(|(keyspace, key, _)| (keyspace, key.clone())).collect()
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
    /// The floor is at least that from now on.
    fn rise(&mut self, floor: &VersionVector) {
        self.floor.merge(floor);
        self.to_settle.append(&mut self.held);
        self.may_shorten = true;
    }

    /// Looks again at rules that were forgotten and waited for the log.
    fn free_rules(&mut self) {
        let held: Vec<(Keyspace, Key)> = self.held.iter().cloned().collect();
        for (keyspace, key) in held {
            let open = self.windows.get(keyspace, &key);
            if open.is_some_and(|open| open.may_settle(&self.floor))
                && self.floor_of_rules(keyspace, &key, &self.floor).is_none()
            {
                self.held.remove(&(keyspace, key.clone()));
                self.to_settle.insert((keyspace, key));
            }
        }
    }

    /// Whether all is settled that the floor lets settle.
    pub(crate) fn is_settled(&self) -> bool {
        !self.may_shorten && self.to_settle.is_empty() && self.floor.iter().all(|dot| self.settled_upto.contains(dot))
    }

    /// Settles the windows of keys that entries under the floor have changed, about as many as `pace`. Tells the records
    /// that no window rests on any more.
    ///
    /// A version under the floor that cannot settle without one above it waits for that one: its entry leads here once it is
    /// under the floor, and when it leaves, [`Replica::leave`] does.
    fn settle_windows(&mut self, pace: usize, book: &RuleBook) -> Vec<u64> {
        let (mut left, mut released) = (pace, vec![]);
        while left > 0
            && let Some((keyspace, key)) = self.to_settle.pop_first()
        {
            left = left.saturating_sub(self.settle_window(keyspace, &key, book, &mut released));
        }
        let mut seen: HashSet<(Keyspace, Key)> = HashSet::new();
        for top in self.floor.clone().iter() {
            while left > 0 && !self.settled_upto.contains(top) {
                let from = self.settled_upto.get(top.origin).saturating_add(1);
                let next = self.log.of(top.origin, from).next().filter(|logged| logged.entry.head.dot.seq <= top.seq);
                let Some(entry) = next.map(|logged| Arc::clone(&logged.entry)) else {
                    self.settled_upto.advance(top);
                    break;
                };
                for change in &entry.changes {
                    let is_new = seen.insert((change.keyspace, change.key.clone()));
                    let cost = match is_new {
                        true => self.settle_window(change.keyspace, &change.key, book, &mut released),
                        false => 1,
                    };
                    left = left.saturating_sub(cost);
                }
                self.settled_upto.advance(entry.head.dot);
            }
        }
        released
    }

    /// Settles one window. Tells what that counts for.
    fn settle_window(&mut self, keyspace: Keyspace, key: &Key, book: &RuleBook, released: &mut Vec<u64>) -> usize {
        let held = self.floor_of_rules(keyspace, key, &self.floor);
        let floor = held.as_ref().unwrap_or(&self.floor);
        let (record, lingers) = self.windows.settle(keyspace, key, floor, book);
        released.extend(record);
        if held.is_some() {
            self.held.insert((keyspace, key.clone()));
        }
        let Some(open) = self.windows.get(keyspace, key) else { return 1 };
        if lingers && open.window.versions().len() >= BRAID.max(2 * open.stayed) {
            self.grown.insert((keyspace, key.clone()));
        }
        KEPT_WINDOW
    }

    /// Takes the oldest entries of each origin out of the log, as far as all that they did is settled; at most so many. Tells
    /// their records.
    fn shorten_log(&mut self, pace: usize) -> Vec<u64> {
        let mut released = vec![];
        for Dot { origin, seq: upto } in self.settled_upto.iter() {
            while released.len() < pace
                && let Some(oldest) = self.log.oldest(origin)
            {
                let dot = oldest.entry.head.dot;
                let waits = |change: &Change| self.windows.holds(change.keyspace, &change.key, dot);
                if dot.seq > upto || (!self.windows.is_empty() && oldest.entry.changes.iter().any(waits)) {
                    break;
                }
                let Some(logged) = self.log.pop(origin) else { break };
                self.begins.insert(origin, OriginState { chain: logged.chain, deps: logged.deps });
                self.base.advance(dot);
                released.push(logged.number);
            }
        }
        self.may_shorten = released.len() >= pace;
        released
    }
}
