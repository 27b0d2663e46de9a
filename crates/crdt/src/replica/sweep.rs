//! Dropping what a compaction hid and what nobody needs any more: from memory, and record by record from the journal.
//!
//! A record stays whole while its entry is in the log, and what is dead of it waits (**held**). One whose entry was left out of the
//! log waits for what stands for it. A tombstone must not go from disk before the puts it hides: at the next start these would be
//! there again. So the record of a tombstone that nobody can see any more (a **grave**) goes only when no older record waits.

use bytes::Bytes;

use crate::entry::{Bases, Change, ChangeKind, Record};
use crate::replica::Replica;
use crate::store::sweep::Dead;
use crate::words::key::Keyspace;
use crate::words::revision::Revision;

/// What one slice of sweeping did.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Journal numbers of records that lost a change; [`Replica::trim`] tells what is left of them.
    pub dead: Vec<u64>,
    /// Whether nothing is left to sweep.
    pub done: bool,
}

impl Replica {
    /// Drops a slice of what the last compaction hid, at most about `max_changes` of it. `is_trimmed` tells whether all
    /// that earlier sweeps told is trimmed, in the journal's order. What was left out of the log goes only then.
    pub fn sweep(&mut self, max_changes: usize, is_trimmed: bool) -> Sweep {
        let is_swept = self.state.sweep(max_changes);
        let waits = is_trimmed && self.release_left();
        let Dead { changes, graves } = std::mem::take(&mut self.state.dead);
        let (held, mut dead): (Vec<_>, Vec<_>) = changes
            .into_iter()
            .filter(|number| !self.journal.left.contains_key(number))
            .partition(|number| self.is_retained(*number));
        self.journal.held.extend(held);
        self.journal.graves.extend(graves);
        if is_trimmed {
            // What earlier sweeps told is no longer on disk.
            dead.sort_unstable();
            self.journal.forget_gone(&dead);
        }
        while let Some(&grave) = self.journal.graves.first() {
            if self.is_retained(grave) {
                self.journal.held.insert(grave);
            }
            let journal = &self.journal;
            let oldest = journal.held.first().into_iter().chain(journal.left.keys().next()).min();
            if oldest.is_some_and(|oldest| *oldest <= grave) {
                break;
            }
            self.journal.graves.remove(&grave);
            dead.push(grave);
        }
        if is_trimmed {
            let log = self.replication.as_ref().map(|replication| &replication.log);
            dead.extend(self.journal.next_anew(log));
            dead.extend(self.journal.spent_notes());
        }
        dead.sort_unstable();
        dead.dedup();
        Sweep { dead, done: is_swept && !waits }
    }

    /// Lets those records go that were left out of the log, where the record of what stands for them says so on disk. Has the
    /// others written anew. Tells whether some of these are left.
    fn release_left(&mut self) -> bool {
        let log = self.replication.as_ref().map(|replication| &replication.log);
        let (state, journal) = (&mut self.state, &mut self.journal);
        let mut waits = false;
        journal.left.retain(|gone, left| {
            let stands = log.and_then(|log| log.get(left.dot)).map(|logged| logged.number);
            if stands.is_some() && stands != left.told {
                left.told = stands;
                journal.outdated.extend(stands);
                waits = true;
                return true;
            }
            journal.held.remove(gone);
            state.dead.change(*gone);
            journal.let_go.insert(*gone);
            false
        });
        waits
    }

    /// What is left of a record on disk after a sweep; `None` when nothing of it is needed any more.
    pub fn trim(&self, record: &Bytes) -> Option<Bytes> {
        let Ok(mut decoded) = Record::decode(record.clone()) else {
            // Not ours to judge here: start-up reports damage, with the place.
            return Some(record.clone());
        };
        let number = decoded.number;
        if !decoded.notes.is_empty() {
            return self.journal.has_notes(number).then(|| record.clone());
        }
        if let Some(logged) = self.log().and_then(|log| log.by_number(number)) {
            let head = self.journal.renewed.get(&number).or(decoded.head.as_ref()).cloned();
            let bases = logged.bases.as_deref().cloned().unwrap_or_default();
            if decoded.head == head && decoded.bases == bases {
                return Some(record.clone());
            }
            return Some(Record { head, bases, ..decoded }.encode());
        }
        if self.journal.left.contains_key(&number) {
            // What stands for it may not say so on disk yet.
            return Some(record.clone());
        }
        let revision = decoded.revision;
        let before = decoded.changes.len() + decoded.outcomes.len();
        decoded.changes.retain(|change| self.is_needed(number, revision, change));
        decoded.outcomes.retain(|change| self.is_needed(number, revision, change));
        let after = decoded.changes.len() + decoded.outcomes.len();
        // One that was left out of the log is no entry any more, even if clients can still read all of it.
        let left_out = decoded.head.as_ref().is_some_and(|head| !self.log_base().contains(head.dot));
        if after == before && (decoded.trimmed || !left_out) {
            return Some(record.clone());
        }
        decoded.trimmed = true;
        decoded.bases = Bases::default();
        (after > 0).then(|| decoded.encode())
    }

    fn is_needed(&self, number: u64, revision: Option<Revision>, change: &Change) -> bool {
        let Some(applied) = change.applied else { return false };
        if !matches!(change.kind, ChangeKind::Put { .. }) && self.journal.graves.contains(&number) {
            return true;
        }
        let window = self.window(change.keyspace, &change.key);
        if window.is_some_and(|window| window.base_number == Some(number)) {
            return true;
        }
        match change.keyspace {
            Keyspace::Client => revision.is_some_and(|first| {
                let at = first.after(applied.after);
                self.state.index.holds(&change.key, at, applied.sub, number)
            }),
            Keyspace::System => self.state.system.get(&change.key).is_some_and(|value| value.number == number),
        }
    }
}
