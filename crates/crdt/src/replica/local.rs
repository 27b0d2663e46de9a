//! The replica's own entries: how a transaction becomes one, and how it is kept for those who lack it.

use std::sync::Arc;

use crate::command::event::Commit;
use crate::entry::{self, ChangeKind, EntryHead, Record};
use crate::merge::window::Version;
use crate::replica::log::Logged;
use crate::replica::{Effects, Replica};
use crate::store::txn::Draft;
use crate::words::clock::{Now, Stamp};
use crate::words::id::Dot;
use crate::words::key::{Key, Keyspace};
use crate::words::vector::VersionVector;

/// From so many unsettled versions of a key on, those that nobody needs are looked for.
const THIN_OUT_FROM: usize = 16;

impl Replica {
    /// Runs one transaction and, if it changed anything, commits it as one entry and one record.
    pub(crate) fn draft<T>(&mut self, now: Now, effects: &mut Effects, run: impl FnOnce(&mut Draft<'_>) -> T) -> T {
        self.leave_full_space(now, effects);
        let stamp = self.clock.tick(now);
        self.draft_at(stamp, effects, run)
    }

    /// The same with a given stamp.
    pub(crate) fn draft_at<T>(
        &mut self,
        stamp: Stamp,
        effects: &mut Effects,
        run: impl FnOnce(&mut Draft<'_>) -> T,
    ) -> T {
        let origin = self.identity.origin();
        let mut dot = Dot { origin, seq: self.vector.get(origin) + 1 };
        let revision = self.revision.next();
        let number = self.next_number;
        let mut draft = Draft::new(&mut self.state, revision, number, stamp, dot);
        let outcome = run(&mut draft);
        let (changes, events, keys) = (draft.changes, draft.events, draft.keys);
        effects.tally.add_group(draft.checks);
        effects.tally.add_group(draft.tally);
        if changes.is_empty() {
            return outcome;
        }
        if changes.iter().all(|change| change.local) {
            // Never sent, so it must leave no hole in the numbers of what is.
            dot.seq = 0;
        }
        let previous = self.own.chain;
        let mut head =
            EntryHead { dot, first_seq: dot.seq, stamp, depends: VersionVector::default(), previous, resulting: None };
        if dot.seq > 0 {
            if !self.fresh.is_empty() {
                head.depends = std::mem::take(&mut self.fresh);
                let mut deps = VersionVector::clone(&self.own.deps);
                deps.merge(&head.depends);
                self.own.deps = Arc::new(deps);
            }
            self.own.chain = previous.extend(&head, &changes);
            self.vector.advance(dot);
        }
        let touched_clients = !keys.is_empty();
        let record = Record {
            number,
            revision: touched_clients.then_some(revision),
            head,
            changes,
            outcomes: vec![],
            trimmed: false,
            settled: !self.state.windowed,
            left_out: false,
        };
        effects.records.push(record.encode());
        self.next_number += 1;
        if touched_clients {
            self.revision = revision;
            self.history.push(keys);
            effects.commits.push(Commit { revision, events });
        }
        if self.state.windowed && dot.seq > 0 {
            self.keep(&record);
        }
        outcome
    }

    /// Keeps an entry of its own for those who lack it.
    fn keep(&mut self, record: &Record) {
        let entry = record.entry();
        let (dot, stamp, deps) = (entry.head.dot, entry.head.stamp, Arc::clone(&self.own.deps));
        for change in entry::net(&entry.changes) {
            let version = Version {
                dot,
                stamp,
                deps: Arc::clone(&deps),
                kind: change.kind.clone(),
                version: change.version,
                incarnation: change.incarnation,
            };
            self.state.windows.add(change.keyspace, &change.key, version);
            let number = if matches!(change.kind, ChangeKind::Put { .. }) { record.number } else { 0 };
            self.state.windows.note(change.keyspace, &change.key, number);
        }
        let (number, chain) = (record.number, self.own.chain);
        let keys: Vec<(Keyspace, Key)> =
            entry::net(&entry.changes).into_iter().map(|change| (change.keyspace, change.key.clone())).collect();
        self.log.push(Logged { number, entry: Arc::new(entry), deps, chain });
        for (keyspace, key) in keys {
            self.thin_out(keyspace, &key);
        }
    }

    /// Leaves out what this replica alone wrote over before any peer was offered it: a long time alone then costs neither
    /// memory nor traffic, however often a key is written.
    fn thin_out(&mut self, keyspace: Keyspace, key: &Key) {
        let len = self.state.windows.get(keyspace, key).map_or(0, |open| open.window.versions().len());
        // Looking at all versions at every write would cost more than it saves.
        if len < THIN_OUT_FROM || !len.is_power_of_two() {
            return;
        }
        let (origin, offered) = (self.identity.origin(), self.offered);
        let Self { log, state, .. } = self;
        let rules = Arc::clone(&state.rules);
        let droppable = |dot: Dot| {
            dot.origin == origin
                && dot.seq > offered
                && log.get(dot).is_some_and(|logged| {
                    let entry = &logged.entry;
                    entry.head.dot == dot && entry.changes.len() == 1 && entry.head.depends.is_empty()
                })
        };
        for dot in state.windows.drop_middles(keyspace, key, &rules, droppable) {
            if let Some(gone) = self.log.leave_out(dot) {
                self.held.remove(&gone.number);
                self.state.dead.change(gone.number);
            }
        }
    }
}
