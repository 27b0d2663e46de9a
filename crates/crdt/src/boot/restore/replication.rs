//! What is kept for the sake of other members: the log and the windows, rebuilt from the records behind its beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::boot::restore::again::Again;
use crate::boot::restore::damage::Damage;
use crate::entry::{Bases, Below, Entry, Head, Notes, OriginHead};
use crate::merge::version::Version;
use crate::replica::Replica;
use crate::replica::acks::Acks;
use crate::replica::log::Logged;
use crate::replica::marks::Marks;
use crate::replica::origins::OriginState;
use crate::replica::replication::Replication;
use crate::replica::told::Told;
use crate::words::id::{Dot, Origin};
use crate::words::key::{Key, Keyspace};
use crate::words::vector::VersionVector;

/// What a key was around one of its versions, as far as the log may need it.
pub(super) struct Transition {
    pub(super) keyspace: Keyspace,
    pub(super) key: Key,
    /// The record that holds what it was, if it was there.
    pub(super) before: Option<u64>,
    /// What it was afterwards; `None` where a later entry of the same step says that.
    pub(super) after: Option<After>,
}

impl Transition {
    fn of(&self) -> (Keyspace, Key) {
        (self.keyspace, self.key.clone())
    }
}

/// The record that holds what a key was after one of its versions, if it was there.
#[derive(Clone, Copy)]
pub(super) struct After(pub(super) Option<u64>);

/// An entry that may belong into the log; the head says whether it does.
pub(super) struct Candidate {
    pub(super) number: u64,
    /// The entry's name.
    pub(super) dot: Dot,
    /// See [`EntryHead::first_seq`](crate::entry::EntryHead::first_seq).
    pub(super) first_seq: u64,
    /// The entry, unless it lies before the log.
    pub(super) entry: Option<Entry>,
    /// What its net changes did, in their order.
    pub(super) steps: Vec<Transition>,
    /// Whether it is there only as history: it was in the log no more. It then says what its keys were before it.
    pub(super) is_gone: bool,
    /// Whether it is to leave the log again: no record says yet what stands for it.
    pub(super) has_left: bool,
    /// Whether it was applied together with others.
    pub(super) together: bool,
    /// What its record says of bases.
    pub(super) bases: Bases,
}

/// What a key was before one of its versions that the log may need, or before one that is in it no more.
struct Station {
    /// The one that is in the log no more: it was left out, or has settled.
    gone: Option<Dot>,
    /// The record that holds what the key was, if it was there.
    before: Option<u64>,
    /// What lies below it, where that was noted: something left before it.
    below: Option<Below>,
}

/// What lies below a version.
struct Found {
    /// As it was noted when something left.
    noted: Option<Below>,
    /// The record that holds what the key was shown as before.
    shown: Option<u64>,
}

/// Whether all members have that, and all that is kept stands on it.
fn is_below(dot: Dot, kept: &[Version], common: &VersionVector) -> bool {
    common.contains(dot) && kept.iter().all(|version| version.descends_from(dot))
}

/// The versions behind which something is gone that lies below all that is kept. Where it was not noted that it left, it has settled,
/// and all before it with it.
fn settled_ends(stations: &[Station], versions: &[Version], common: &VersionVector) -> BTreeSet<Dot> {
    let (mut ends, mut rest, mut last, mut has_settled) = (BTreeSet::new(), versions, None, false);
    for Station { gone, below, .. } in stations {
        if let Some(gone) = gone {
            has_settled |= is_below(*gone, rest, common);
            continue;
        }
        if has_settled && *below != Some(Below::NoBase) {
            ends.extend(last);
        }
        has_settled = false;
        last = rest.split_off_first().map(|version| version.dot);
    }
    if has_settled {
        ends.extend(last);
    }
    ends
}

/// The record of what a key was before the first station that followed `count` versions: below those that are kept. That is not
/// what the key was after the last of these versions. Other versions, which settled and left the log earlier, may have come between.
///
/// What is gone lies below a window where all members have it, and all that is kept descends from it. It may have settled. Or it was
/// left out: then the first version behind it is alone in its segment, and hides what lies below it, or it says what that is.
fn base_after(stations: Vec<Station>, count: usize, kept: &[Version], common: &VersionVector) -> Found {
    let (mut versions, mut known) = (0, None);
    for Station { gone, before, below } in stations {
        if versions < count {
            versions += usize::from(gone.is_none());
            continue;
        }
        if !gone.is_some_and(|gone| is_below(gone, kept, common)) {
            known = known.or(Some(before));
        }
        if gone.is_none() {
            return Found { noted: below, shown: known.flatten() };
        }
    }
    Found { noted: None, shown: known.flatten() }
}

/// What lies before the log that a head tells of.
pub(super) fn before_the_log(head: &Head) -> VersionVector {
    let mut before = VersionVector::default();
    head.vector.fences().for_each(|fence| before.raise(fence));
    head.origins.iter().filter_map(OriginHead::last).for_each(|dot| before.advance(dot));
    before
}

/// The log and the windows in the making.
struct Rebuilt {
    kept: Replication,
    /// How far each origin's entries are told by the head or were met.
    reached: VersionVector,
    /// Of the keys that may have a window. A store may hold a million others.
    stations: BTreeMap<(Keyspace, Key), Vec<Station>>,
    /// The versions after which a key is no base.
    no_bases: BTreeMap<(Keyspace, Key), BTreeSet<Dot>>,
}

impl Rebuilt {
    /// What lies before the log.
    fn begin(replica: &mut Replica, base: VersionVector, origins: Vec<OriginHead>) -> Self {
        let own = replica.identity.origin();
        let mut kept = Replication { base, ..Replication::default() };
        for origin in origins {
            let state = OriginState { chain: origin.chain, deps: Arc::new(origin.deps) };
            *replica.origins.get_mut(own, origin.origin) = state.clone();
            kept.begins.insert(origin.origin, state);
        }
        let reached = kept.base.clone();
        Self { kept, reached, stations: BTreeMap::new(), no_bases: BTreeMap::new() }
    }

    /// Learns of which keys the log may hold versions.
    fn expect(&mut self, candidates: &[Candidate]) {
        let logged = candidates.iter().filter(|candidate| !candidate.is_gone && candidate.entry.is_some());
        self.stations = logged.flat_map(|candidate| &candidate.steps).map(|step| (step.of(), vec![])).collect();
    }

    /// Takes the next entry that may belong into the log.
    fn take(&mut self, replica: &mut Replica, candidate: Candidate) -> Result<(), Damage> {
        let Candidate { number, dot, entry, steps, is_gone, has_left, together, bases, .. } = candidate;
        let own = replica.identity.origin();
        let origin = dot.origin;
        let known = self.reached.get(origin);
        let Some(entry) = entry.filter(|_| !is_gone && dot.seq > known) else {
            for step in steps {
                let Some(stations) = self.stations.get_mut(&step.of()) else { continue };
                let Transition { keyspace, key, before, after } = step;
                // If it settled, versions of its step before it may have to wait in the log for others of their origin. They
                // settled with it, so the step ends with them.
                let ended = after.filter(|_| dot.seq <= known);
                let windows = &mut self.kept.windows;
                if let Some(After(number)) = ended {
                    windows.note_unless_noted(keyspace, &key, number);
                }
                stations.push(Station { gone: Some(dot), before, below: None });
            }
            return Ok(());
        };
        let state = replica.origins.get_mut(own, origin);
        let chain = entry.head.previous.extend(&entry.head, &entry.changes);
        if entry.head.first_seq == known + 1 {
            if entry.head.previous != state.chain {
                return Err(Damage::Chain { number, dot });
            }
        } else if entry.head.first_seq > known + 1 {
            return Err(Damage::Chain { number, dot });
        }
        state.depend(&entry.head.depends);
        state.chain = chain;
        let deps = Arc::clone(&state.deps);
        self.reached.advance(dot);
        for (place, (step, change)) in (0..).zip(steps.into_iter().zip(entry.net())) {
            let Transition { keyspace, key, before, after } = step;
            if has_left {
                self.stations.entry((keyspace, key)).or_default().push(Station {
                    gone: Some(dot),
                    before,
                    below: None,
                });
                continue;
            }
            let version = Version::new(&entry.head, Arc::clone(&deps), change);
            let windows = &mut self.kept.windows;
            // On what is found when all stations are known.
            windows.add_or_open(keyspace, &key, version, || None);
            if let Some(After(number)) = after {
                windows.note(keyspace, &key, number);
            }
            if bases.none.contains(&place) {
                self.no_bases.entry((keyspace, key.clone())).or_default().insert(dot);
            }
            let station = Station { gone: None, before, below: bases.below.get(&place).copied() };
            self.stations.entry((keyspace, key)).or_default().push(station);
        }
        let bases = (bases != Bases::default()).then(|| Arc::new(bases));
        self.kept.log.push(Logged { number, entry: Arc::new(entry), deps, chain, together, written_over: 0, bases });
        Ok(())
    }
}

/// Finds the entries that left the log for later ones whose records say that they stand for them, and marks them as gone. Tells which
/// records these are. What did not leave stays: a peer may have sent it alone first, and then with what stands for it.
fn stood_for(candidates: &mut [Candidate], left: &BTreeSet<u64>) -> Vec<u64> {
    let mut covered: BTreeMap<Origin, u64> = BTreeMap::new();
    let mut found = vec![];
    for candidate in candidates.iter_mut().rev().filter(|candidate| !candidate.is_gone) {
        let covered = covered.entry(candidate.dot.origin).or_insert(u64::MAX);
        if candidate.first_seq >= *covered && left.contains(&candidate.number) {
            candidate.is_gone = true;
            found.push(candidate.number);
        } else {
            // Not the lower one of both: what left before this one is read as well, unless this one's record stands for it.
            *covered = candidate.first_seq;
        }
    }
    found
}

/// Rebuilds the log and the windows. Nothing is merged; what a window stands on is read again.
pub(super) fn restore(
    replica: &mut Replica,
    head: Head,
    mut candidates: Vec<Candidate>,
    notes: &[(u64, Notes)],
    mut again: Again<'_>,
) -> Result<(), Damage> {
    let own = replica.identity.origin();
    let mut rebuilt = Rebuilt::begin(replica, before_the_log(&head), head.origins);
    let has_left: BTreeSet<u64> = notes.iter().flat_map(|(_, notes)| &notes.left).copied().collect();
    for number in stood_for(&mut candidates, &has_left) {
        replica.state.dead.change(number);
        replica.journal.let_go.insert(number);
    }
    // Of two notes about one record the later one counts.
    let noted: BTreeMap<u64, &Arc<Bases>> =
        notes.iter().flat_map(|(_, notes)| notes.bases.iter().map(|(number, bases)| (*number, bases))).collect();
    let mut left = vec![];
    for candidate in candidates.iter_mut().filter(|candidate| !candidate.is_gone && candidate.entry.is_some()) {
        candidate.has_left = has_left.contains(&candidate.number);
        left.extend(candidate.has_left.then_some((candidate.number, candidate.dot)));
        if let Some(bases) = noted.get(&candidate.number) {
            candidate.bases = Bases::clone(bases);
            replica.journal.say_bases(candidate.number);
        }
    }
    rebuilt.expect(&candidates);
    for candidate in candidates {
        rebuilt.take(replica, candidate)?;
    }
    let Rebuilt { mut kept, reached, stations, mut no_bases } = rebuilt;
    for (number, dot) in left {
        kept.log.leave_out(dot);
        replica.journal.leave(number, dot);
    }
    replica.journal.restore_notes(notes);
    if reached != head.vector {
        return Err(Damage::State { what: "entries that members may lack" });
    }
    if replica.origins.own.chain != head.chain {
        return Err(Damage::State { what: "chain hash of its own entries" });
    }
    let mut common = head.floor.clone();
    let begins = kept.begins.values().map(|state| &*state.deps);
    begins.chain(kept.deps_of(&head.floor)).for_each(|deps| common.merge(deps));
    // Older builds kept a floor without all that what lies under it depends on.
    let mut floor = head.floor;
    common.iter().for_each(|dot| floor.advance(dot));
    for ((keyspace, key), stations) in stations {
        if let Some(mut unfit) = no_bases.remove(&(keyspace, key.clone())) {
            let versions = kept.windows.get(keyspace, &key).map(|open| open.window.versions()).unwrap_or_default();
            let ends = settled_ends(&stations, versions, &common);
            unfit.retain(|dot| !ends.contains(dot));
            kept.windows.forget_notes(keyspace, &key, &unfit);
        }
        let base = |count, kept: &[Version]| {
            let Found { noted, shown } = base_after(stations, count, kept, &common);
            match noted {
                Some(Below::Base(None)) => None,
                Some(Below::Base(Some(number))) if let Some(found) = again.found(number, keyspace, &key) => Some(found),
                _ => again.recorded(shown?, keyspace, &key),
            }
        };
        let held = kept.floor_of_rules(keyspace, &key, &floor);
        kept.windows.settle_known(keyspace, &key, held.as_ref().unwrap_or(&floor), base);
        if held.is_some() {
            kept.held.insert((keyspace, key));
        }
    }
    again.finish()?;
    replica.origins.fresh = head.vector.above(&replica.origins.own.deps);
    replica.origins.fresh.remove(own);
    replica.marks = Marks::restored(head.marks, head.sent_to_others, head.sent, &head.vector);
    replica.told = Told::before(head.vector.clone());
    replica.origins.vector = head.vector;
    replica.membership.acks = Acks::restored(head.acks);
    (kept.floor, kept.settled_upto) = (floor.clone(), floor);
    // The process may have stopped before all that was settled was taken out of it.
    kept.may_shorten = true;
    let alone = replica.membership.members.is_empty() || replica.membership.counting() == [own.replica];
    replica.replication = (!alone || !kept.log.is_empty()).then_some(kept);
    replica.reread_rules();
    Ok(())
}
