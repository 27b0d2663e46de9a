//! A replica from a snapshot: as the records of a new journal.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::boot::snapshot::chunk::{SettledKey, SnapshotChunk, change_of};
use crate::boot::snapshot::rebase::Lost;
use crate::boot::snapshot::recovery;
use crate::command::notice::{MergeReport, Notice};
use crate::entry::{Applied, Bases, Change, CodecError, Entry, Notes, OriginHead, Past, Record};
use crate::merge::rules::{ENGINE, UnknownRules};
use crate::replica::Replica;
use crate::replica::log::Log;
use crate::replica::marks::Marks;
use crate::replica::origins::OriginState;
use crate::replica::prepared::Prepared;
use crate::replica::remote::unknown_rules;
use crate::replica::spaces::Stride;
use crate::replica::turn::Turn;
use crate::store::history::{ChangedKeys, History};
use crate::store::state::Position;
use crate::store::system::AnnouncedBirth;
use crate::words::chain::Chain;
use crate::words::clock::Now;
use crate::words::id::{Dot, Identity, Origin};
use crate::words::key::{Keyspace, Place};
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// Keys in a record of settled keys, and about how many bytes of them.
const KEYS_PER_RECORD: usize = 256;
const BYTES_PER_RECORD: usize = 256 << 10;

/// Why a snapshot gives no replica.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A chunk is none.
    #[error("a damaged chunk: {0}")]
    Codec(#[from] CodecError),
    /// The giver has settled something between two chunks: fetch all of them again.
    #[error("the giver's state moved on between two chunks; begin again")]
    Moved,
    /// Chunks are missing.
    #[error("the snapshot is not complete")]
    Incomplete,
    /// The members in the snapshot do not include this one: it was not added there yet, or was removed.
    #[error("the snapshot does not know this member")]
    NotAMember,
    /// The cluster merges by rules that this build does not know.
    #[error(transparent)]
    Rules(#[from] UnknownRules),
    /// There is no revision space left that this member could go on in.
    #[error("no revision space is left for this member")]
    SpacesExhausted,
    /// An entry in it does not fit the rest.
    #[error("the snapshot contradicts itself: {0:?}")]
    Contradiction(Notice),
}

/// A replica with the journal it begins with.
pub struct Installed {
    /// The replica.
    pub replica: Replica,
    /// Its records, numbered from 1.
    pub records: Vec<Bytes>,
    /// Its head.
    pub head: Bytes,
    /// The parts of its old writes, made before its disk was lost, that the merge gave up.
    pub given_up: Vec<MergeReport>,
    /// Entries that it had and cannot take along. Those of removed members: the others went on without them, and nothing
    /// more is taken from a removed member. Those of members of whom it alone knows that birth: they make them known
    /// again, if they have them still. Those of births that are forgotten, when this disk does not have what all
    /// others had of them: most likely they have these too, but nobody can tell any more.
    pub forsaken: Vec<Arc<Entry>>,
}

/// Takes chunks one by one, in order.
pub struct Installer {
    base: Option<Vec<OriginHead>>,
    floor: VersionVector,
    revision: Option<Revision>,
    giver: Option<Origin>,
    doubtful: bool,
    lineage: Option<Origin>,
    keys: Vec<SettledKey>,
    pub(super) entries: Vec<Entry>,
    settled: BTreeMap<Dot, Vec<u32>>,
    done: bool,
    engine: u32,
}

impl Default for Installer {
    fn default() -> Self {
        Self::new()
    }
}

impl Installer {
    /// An installer that has seen nothing.
    pub fn new() -> Self {
        Self::of_engine(ENGINE)
    }

    /// The same for a build whose newest merge engine is that one.
    pub fn of_engine(engine: u32) -> Self {
        Self {
            base: None,
            floor: VersionVector::default(),
            revision: None,
            giver: None,
            doubtful: false,
            lineage: None,
            keys: vec![],
            entries: vec![],
            settled: BTreeMap::new(),
            done: false,
            engine,
        }
    }

    /// Takes a chunk; tells where the next one is to go on, or that this was the last.
    ///
    /// # Errors
    /// When it does not fit the ones before: then all is to be fetched again, with a new installer.
    pub fn chunk(&mut self, chunk: SnapshotChunk) -> Result<Option<Place>, InstallError> {
        if self.base.get_or_insert_with(|| chunk.base.clone()).iter().ne(&chunk.base) && !self.grew(&chunk.base) {
            return Err(InstallError::Moved);
        }
        self.floor = chunk.floor;
        (self.giver, self.doubtful, self.lineage) = (Some(chunk.giver), chunk.doubtful, chunk.lineage);
        self.revision = self.revision.max(Some(chunk.revision));
        self.keys.extend(chunk.keys);
        self.entries.extend(chunk.entries);
        for (dot, place) in chunk.settled {
            self.settled.entry(dot).or_default().push(place);
        }
        self.done = chunk.next.is_none();
        Ok(chunk.next)
    }

    /// Whether all that is new in a chunk's base are origins of which nothing is settled.
    fn grew(&self, base: &[OriginHead]) -> bool {
        let settled = |heads: &[OriginHead]| -> VersionVector { heads.iter().filter_map(OriginHead::last).collect() };
        self.base.as_deref().is_some_and(|first| settled(first) == settled(base))
    }

    /// The replica. `identity` must have a birth that was never used; its ordinal does not matter. `old` is what this
    /// member had before, if anything, as it was just loaded: no value has left memory. What it wrote and the giver does not
    /// have is written again.
    ///
    /// # Errors
    /// When the chunks do not give a state that this member can begin with.
    pub fn finish(mut self, now: Now, identity: Identity, old: Option<&Replica>) -> Result<Installed, InstallError> {
        let base = self.base.take().filter(|_| self.done).ok_or(InstallError::Incomplete)?;
        // Of an own birth that is forgotten, nobody knows where what only this disk has begins.
        let told_apart = old.filter(|old| !self.floor.has_forgotten(old.identity.origin()));
        let mut tail = told_apart.map(|old| self.tail_of(&base, old)).unwrap_or_default();
        let mut turn = Turn::new(now);
        let mut replica = self.settled_part(&mut turn, identity, base)?;
        self.take_log(&mut turn, &mut replica)?;
        replica.identity.birth = match replica.membership.members.birth_of(identity.replica) {
            Some(AnnouncedBirth::One(birth)) if birth.is_drawn_as(identity.birth) => birth,
            // Another one was announced meanwhile.
            _ => replica.next_birth(identity.replica, identity.birth),
        };
        replica.membership.lineage = self.lineage;
        let (mut refused_of_others, mut unknown) = (vec![], vec![]);
        if let Some(old) = old {
            unknown = recovery::forgotten(&replica, old);
            let refused = replica.keep_others(&mut turn, old);
            // What stands on what was written in doubt is refused with it, and its maker may have lost it.
            let is_doubted = replica.may_have_left(old)
                || refused.iter().any(|lost| replica.is_of_doubt(lost.entry.head.dot.origin, old));
            let (lost, others): (Vec<Lost>, Vec<Lost>) = refused.into_iter().partition(|lost| {
                let maker = lost.entry.head.dot.origin;
                let is_present = replica.membership.members.is_present(maker.replica);
                is_doubted && is_present || replica.writes_again(maker, self.giver, old)
            });
            let settled = recovery::settled(old, &replica.origins.vector);
            tail.splice(0..0, settled.into_iter().chain(lost));
            refused_of_others = others;
            replica.state.revision = replica.state.revision.max(old.state.revision);
        }
        let member = replica.membership.members.get(identity.replica).filter(|member| !member.removed);
        let ordinal = member.ok_or(InstallError::NotAMember)?.ordinal;
        replica.membership.joining = false;
        if self.doubtful {
            replica.membership.past = Past::Doubtful;
        }
        replica.identity.ordinal = ordinal.unwrap_or(identity.ordinal);
        replica.state.revision =
            self.revision.map_or(replica.state.revision, |theirs| replica.state.revision.max(theirs));
        // The keys are shown as written at its first revision, and nothing before that can be asked for.
        let stride = Stride::Joining(replica.identity.birth);
        replica.leap(&mut turn, stride).map_err(|_| InstallError::SpacesExhausted)?;
        replica.state.restamp();
        replica.read_members(&mut turn);
        let given_up = replica.write_again(&mut turn, tail);
        let own = replica.log().into_iter().flat_map(|log| log.of(replica.identity.origin(), 1));
        let system = own.flat_map(|logged| &logged.entry.changes).filter(|change| change.keyspace == Keyspace::System);
        let system: Vec<Change> = system.cloned().collect();
        replica.follow_system(&mut turn, system.iter());
        // A present member has its own entries and makes them known again. It may be present because of what was just
        // written again. Of one that is known under another birth only, or under none, nobody knows whether it has them.
        let is_kept = |lost: &Lost| {
            let maker = lost.entry.head.dot.origin;
            let is_known = replica.origins.vector.get(maker) > 0;
            is_known && replica.membership.members.is_present(maker.replica)
        };
        let refused = refused_of_others.into_iter().filter(|lost| !is_kept(lost)).map(|lost| lost.entry);
        let forsaken = refused.chain(unknown).collect();
        replica.settle_all();
        // What the replica told whom under an older birth is not known here.
        replica.marks = Marks::after(0, &replica.origins.vector);
        let (noted, head) = replica.close_group();
        let records = turn.effects.records.into_iter().chain(noted).collect();
        Ok(Installed { records, head: head.encode(), given_up, forsaken, replica })
    }

    /// A replica that holds what is settled, and no entry.
    fn settled_part(
        &self,
        turn: &mut Turn,
        identity: Identity,
        base: Vec<OriginHead>,
    ) -> Result<Replica, InstallError> {
        let mut replica = Replica::of_engine(identity, self.engine);
        replica.membership.joining = true;
        // Revisions below the space that it will leap to; nobody ever sees them.
        replica.state.revision = Revision::FIRST;
        replica.state.history = History::starting_at(Revision::FIRST.next());
        replica.install_keys(turn, &self.keys);
        for fence in self.floor.fences() {
            replica.origins.vector.raise(fence);
            replica.origins.fresh.raise(fence);
        }
        for head in base {
            if let Some(last) = head.last() {
                replica.origins.vector.advance(last);
                replica.origins.fresh.advance(last);
            }
            let state = OriginState { chain: head.chain, deps: Arc::new(head.deps) };
            *replica.origins.get_mut(identity.origin(), head.origin) = state;
        }
        // Entries under the floor that are not settled were applied before it rose, so it comes behind the log.
        replica.open_up().floor = VersionVector::default();
        let system: Vec<Change> =
            self.keys.iter().filter(|key| key.keyspace == Keyspace::System).map(change_of).collect();
        if let Some(error) = system.iter().find_map(|change| unknown_rules(change, self.engine)) {
            return Err(error.into());
        }
        replica.follow_system(turn, system.iter());
        Ok(replica)
    }

    /// Applies the entries of the giver's log, and takes its floor.
    fn take_log(&mut self, turn: &mut Turn, replica: &mut Replica) -> Result<(), InstallError> {
        let entries = std::mem::take(&mut self.entries);
        let mut reached = replica.origins.vector.clone();
        entries.iter().for_each(|entry| reached.advance(entry.head.dot));
        let are_settled = |dot: Dot, place: u32| self.settled.get(&dot).is_some_and(|places| places.contains(&place));
        replica.foresee_rules(&entries, are_settled)?;
        for entry in entries {
            if replica.origins.vector.contains(entry.head.dot) {
                continue;
            }
            let settled = self.settled.remove(&entry.head.dot).unwrap_or_default();
            let own = replica.identity.replica;
            replica.admit_among(own, &entry, &reached, &settled).map_err(InstallError::Contradiction)?;
            replica.apply_unsettled(turn, entry, &settled);
        }
        let floor = self.floor.meet(&replica.origins.vector);
        replica.open_up().floor = floor;
        Ok(())
    }
}

impl Replica {
    /// Whether refused entries of that origin are written again under this replica's name. The replica's own entries
    /// are. So are those of a member that has lost its disk since: it may have lost them, too. That a member has shows by
    /// the birth that was announced, by a newer one under which it wrote, or by that under which it gives this snapshot.
    /// Where the giver itself has begun anew since the old state, others may have lost their disks with it, and nobody
    /// there knows yet.
    fn writes_again(&self, origin: Origin, giver: Option<Origin>, old: &Replica) -> bool {
        let (members, member) = (&self.membership.members, origin.replica);
        let is_announced = || members.birth_of(member).is_some_and(|now| now != AnnouncedBirth::One(origin.birth));
        let gives = || giver.is_some_and(|giver| giver.replica == member && giver != origin);
        let goes_on_under_another = || is_announced() || gives() || self.newest_birth_of(member) > Some(origin.birth);
        let began_anew = |giver: Origin| old.newest_birth_of(giver.replica).is_some_and(|birth| birth < giver.birth);
        let may_have_lost_it = || goes_on_under_another() || giver.is_some_and(began_anew);
        member == self.identity.replica || (members.is_present(member) && may_have_lost_it())
    }

    /// Whether a birth that the giver has not heard of may have begun in doubt. What is written in doubt is told only to others in
    /// doubt. It was written without what is known here, and may stand on what has left here.
    fn is_of_doubt(&self, origin: Origin, old: &Replica) -> bool {
        let newest = self.newest_birth_of(origin.replica);
        old.membership.past == Past::Doubtful && newest.is_some_and(|newest| newest < origin.birth)
    }

    /// Whether what an older copy of a disk has, and the giver lacks, may have left elsewhere. The member acknowledged later entries,
    /// which are not on the copy. A third member that knew them let go of what only those two had and these stand for. Neither the
    /// copy nor the giver need know of that one. The giver must not get that under its name.
    fn may_have_left(&self, old: &Replica) -> bool {
        old.membership.past == Past::Doubtful && old.membership.lineage != self.membership.lineage
    }

    /// Takes over entries that the giver lacks: those of others, and those under older births of its own. Perhaps no
    /// other replica has them. Returns the entries that do not fit, because the others went on without them.
    fn keep_others(&mut self, turn: &mut Turn, old: &Replica) -> Vec<Lost> {
        let (replica, origin) = (self.identity.replica, old.identity.origin());
        // The old state may be a copy from before a birth that others know of. What that birth acknowledged lets them
        // settle what the copy lacks.
        let births: Vec<_> = old.births_of(replica).chain([old.identity.birth]).collect();
        let is_outlived = self.is_outlived(replica, &births);
        // The others did not wait for the acknowledgements of a member that was unknown to them. So entries that only
        // this member got, from removed members, may lie below what others have settled.
        let was_heard_of = self.births_of(replica).next().is_some();
        let lacking = old.log().into_iter().flat_map(Log::iter).filter(|logged| {
            let dot = logged.entry.head.dot;
            dot.origin != origin && !self.origins.vector.contains(dot)
        });
        let lacking: Vec<Entry> = lacking.map(|logged| Entry::clone(&logged.entry)).collect();
        let may_have_left = self.may_have_left(old);
        let is_sure = !may_have_left && !lacking.iter().any(|entry| self.is_of_doubt(entry.head.dot.origin, old));
        if was_heard_of
            && !is_outlived
            && is_sure
            && self.admit_together(replica, &lacking, &Prepared::default()).is_ok()
        {
            if self.foresee_rules(&lacking, |_, _| false).is_err() {
                return vec![];
            }
            // One that stands for others may depend on what comes behind it.
            lacking.into_iter().for_each(|entry| self.apply(turn, entry));
            return vec![];
        }
        let mut refused = vec![];
        for logged in old.log().into_iter().flat_map(Log::iter).filter(|logged| logged.entry.head.dot.origin != origin)
        {
            let dot = logged.entry.head.dot;
            if self.origins.vector.contains(dot) {
                continue;
            }
            let counts = was_heard_of || self.membership.members.is_present(dot.origin.replica);
            if counts
                && !is_outlived
                && !may_have_left
                && !self.is_of_doubt(dot.origin, old)
                && self.admit(replica, &logged.entry).is_ok()
            {
                self.apply(turn, Entry::clone(&logged.entry));
            } else {
                refused.push(Lost { entry: Arc::clone(&logged.entry), deps: Arc::clone(&logged.deps) });
            }
        }
        refused
    }

    /// Writes settled keys down, some of them per record.
    fn install_keys(&mut self, turn: &mut Turn, keys: &[SettledKey]) {
        let mut rest = keys;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fit = rest.iter().take(KEYS_PER_RECORD).take_while(|key| {
                let fits = bytes < BYTES_PER_RECORD;
                bytes += key.key.len() + key.live.value.len();
                fits
            });
            let (now, later) = rest.split_at(fit.count().max(1));
            rest = later;
            let (number, revision) = (self.journal.number(), self.state.revision.next());
            let mut changed = ChangedKeys::new();
            let mut changes = vec![];
            for key in now {
                let sub = changed.len() as u32;
                let mut applied = Applied { sub, create_revision: None, after: 0 };
                match key.keyspace {
                    Keyspace::Client => {
                        let at = Position { revision, sub, number };
                        let (stored, _, created) = self.state.set(turn.now, &key.key, &key.live, at);
                        applied.create_revision = Some(created);
                        changed.push((sub, stored));
                    }
                    Keyspace::System => {
                        let stored = Bytes::copy_from_slice(&key.key);
                        self.state.set_system(&stored, Some(&key.live), number);
                    }
                }
                changes.push(Change { applied: Some(applied), ..change_of(key) });
            }
            let touched = !changed.is_empty();
            if touched {
                self.state.push(changed);
            }
            let record = Record {
                number,
                revision: touched.then_some(revision),
                head: None,
                changes,
                outcomes: vec![],
                trimmed: true,
                settled: true,
                until: None,
                bases: Bases::default(),
                notes: Notes::default(),
            };
            turn.effects.records.push(record.encode());
        }
    }
}

impl Installer {
    /// What a member wrote that the giver does not have: its own entries behind the last one that both have.
    fn tail_of(&self, base: &[OriginHead], old: &Replica) -> Vec<Lost> {
        let origin = old.identity.origin();
        let mut known: Vec<(u64, Chain)> =
            base.iter().filter(|head| head.origin == origin).map(|head| (head.before, head.chain)).collect();
        for entry in self.entries.iter().filter(|entry| entry.head.dot.origin == origin) {
            known.push((entry.head.first_seq - 1, entry.head.previous));
            known.push((entry.head.dot.seq, entry.head.previous.extend(&entry.head, &entry.changes)));
        }
        let is_agreed =
            |(seq, chain): &&(u64, Chain)| *seq == 0 || old.chain_at(Dot { origin, seq: *seq }) == Some(*chain);
        let agreed = known.iter().filter(is_agreed).map(|(seq, _)| *seq).max().unwrap_or(0);
        let tail = old.log().into_iter().flat_map(|log| log.of(origin, agreed + 1));
        tail.map(|logged| Lost { entry: Arc::clone(&logged.entry), deps: Arc::clone(&logged.deps) }).collect()
    }
}
