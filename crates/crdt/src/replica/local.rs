//! The replica's own entries: how a transaction becomes one, and how it is kept for members that lack it.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::command::event::Commit;
use crate::entry::{self, Bases, Change, ChangeKind, EntryHead, Notes, Record};
use crate::merge::outcome;
use crate::merge::version::Version;
use crate::replica::Replica;
use crate::replica::log::Logged;
use crate::replica::members::Members;
use crate::replica::turn::Turn;
use crate::store::system::{self, SystemKey};
use crate::store::txn::{BeginsAnew, Touched, Transaction, TxnSlot};
use crate::words::clock::Stamp;
use crate::words::id::Dot;
use crate::words::key::{Key, Keyspace};
use crate::words::value::Incarnation;

impl Replica {
    /// Runs one transaction and, if it changed anything, commits it as one entry and one record. Where it may write a
    /// client's key, there must be room for another revision ([`Self::leave_full_space`]).
    pub(crate) fn transact<T>(&mut self, turn: &mut Turn, run: impl FnOnce(&mut Transaction<'_>) -> T) -> T {
        let stamp = self.clock.tick(turn.now);
        let Some(space) = self.unannounced_space() else { return self.transact_at(turn, stamp, run) };
        // A founder tells with its first entry in which space it counts.
        let id = self.identity.replica;
        let outcome = self.transact_at(turn, stamp, |transaction| {
            let outcome = run(transaction);
            if transaction.changes.iter().any(|change| !change.local) {
                transaction.write_system(SystemKey::Space(id), system::space_value(space));
            }
            outcome
        });
        self.set_members(Members::read(&self.state.system));
        outcome
    }

    /// The same with a given stamp.
    pub(crate) fn transact_at<T>(
        &mut self,
        turn: &mut Turn,
        stamp: Stamp,
        run: impl FnOnce(&mut Transaction<'_>) -> T,
    ) -> T {
        let origin = self.identity.origin();
        let dot = Dot { origin, seq: self.origins.vector.get(origin) + 1 };
        let revision = self.state.revision.next();
        let own = Incarnation { stamp, dot };
        let place = TxnSlot { now: turn.now, revision, number: self.journal.next_number, own };
        let rules = self.rules.current();
        let begins_anew =
            |key: &[u8], before: &[u8], after: &[u8]| outcome::begins_anew(rules, Keyspace::Client, key, before, after);
        let begins_anew: Option<BeginsAnew<'_>> = if self.replication.is_some() { Some(&begins_anew) } else { None };
        let mut transaction = Transaction::new(&mut self.state, place, begins_anew);
        let outcome = run(&mut transaction);
        let Transaction { changes, events, keys, touched, tally, checks, .. } = transaction;
        turn.effects.tally.add_group(checks);
        turn.effects.tally.add_group(tally);
        if changes.is_empty() {
            return outcome;
        }
        // What stays here is no entry: it must leave no hole in the numbers of what is sent.
        let travels = !changes.iter().all(|change| change.local);
        let head = travels.then(|| self.name(dot, stamp, &changes));
        let touches_clients = !keys.is_empty();
        let record = Record {
            number: self.journal.number(),
            revision: touches_clients.then_some(revision),
            head,
            changes,
            outcomes: vec![],
            trimmed: false,
            settled: self.replication.is_none(),
            until: None,
            bases: Bases::default(),
            notes: Notes::default(),
        };
        turn.effects.records.push(record.encode());
        if touches_clients {
            self.schemas.touch(&self.rules.first().prefix, &keys);
            self.state.push(keys);
            turn.effects.commits.push(Commit { revision, events });
        }
        self.keep(&record, &touched);
        outcome
    }

    /// Names an entry of its own, and adds it to what was applied.
    fn name(&mut self, dot: Dot, stamp: Stamp, changes: &[Change]) -> EntryHead {
        let origins = &mut self.origins;
        let rules = self.rules.current().number;
        let (previous, depends) = (origins.own.chain, std::mem::take(&mut origins.fresh));
        origins.own.depend(&depends);
        let head = EntryHead { dot, first_seq: dot.seq, stamp, rules, depends, previous, resulting: None };
        origins.own.chain = previous.extend(&head, changes);
        origins.vector.advance(dot);
        head
    }

    /// Keeps an entry of its own for members that lack it.
    fn keep(&mut self, record: &Record, touched: &SmallVec<[Touched; 1]>) {
        let (Some(replication), Some(entry)) = (&mut self.replication, record.entry()) else { return };
        let entry = Arc::new(entry);
        for Touched { keyspace, key, before } in touched {
            replication.windows.open(*keyspace, key, || before.clone());
        }
        let deps = Arc::clone(&self.origins.own.deps);
        let net = entry::net(&entry.changes);
        for change in &net {
            let version = Version::new(&entry.head, Arc::clone(&deps), change);
            let number = matches!(change.kind, ChangeKind::Put { .. }).then_some(record.number);
            replication.windows.add_noted(change.keyspace, &change.key, version, number);
        }
        let logged = Logged {
            number: record.number,
            entry: Arc::clone(&entry),
            deps,
            chain: self.origins.own.chain,
            together: false,
            written_over: 0,
            bases: None,
        };
        replication.log.push(logged);
        let touched: Vec<(Keyspace, Key)> = net.iter().map(|change| (change.keyspace, change.key.clone())).collect();
        for (keyspace, key) in touched {
            self.leave(keyspace, &key);
        }
    }
}
