//! A step: entries of other replicas that are applied together, and what they make of the keys here.
//!
//! Most steps are one entry. Clients see all of it at one revision, or at two where one incarnation takes the place of
//! another. What a peer sends to one that lagged behind is one step, however many entries it has: all versions of a key
//! are added before the key is merged, once. Clients see at one revision what one entry wrote last, and so each
//! Kubernetes object at a revision of its own: a Kubernetes client whose watch breaks off goes on behind the revision of the
//! last object that it saw, and would miss what else changed at that one. Nobody reads a part of a step but who asks for
//! one of these revisions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::command::event::Commit;
use crate::command::notice::{Losses, MergeReport, Notice};
use crate::entry::{Applied, Bases, Change, ChangeKind, Entry, EntryHead, Notes, Record};
use crate::merge::outcome::{self, MergeOutcome};
use crate::merge::rules::Rules;
use crate::merge::version::Version;
use crate::replica::Replica;
use crate::replica::log::Logged;
use crate::replica::prepared::Prepared;
use crate::replica::showing::Showing;
use crate::replica::turn::Turn;
use crate::store::state::Recorded;
use crate::words::id::Dot;
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::value::Live;

/// How many merges are remembered.
const RECENT_MERGES: usize = 256;

/// What a net change leads to on a client key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyStep {
    /// The key stays as it is.
    Nothing,
    /// It is written.
    Put,
    /// It is deleted.
    Delete,
    /// One incarnation of it ends and another begins.
    Replace,
}

impl KeyStep {
    /// What leads from what the key was to what it becomes by a change.
    fn between(rules: &Rules, change: &Change, before: Option<&Live>, outcome: &MergeOutcome) -> Self {
        match (before, &outcome.live) {
            (None, None) => Self::Nothing,
            (before, after) if before == after.as_ref() => Self::Nothing,
            (_, None) => Self::Delete,
            (Some(before), Some(after)) => {
                // Without a merge it is what the writer's own clients saw, and no client moves a pod.
                let replaces = match outcome.rule {
                    Some(_) => outcome::replaces(rules, change.keyspace, &change.key, before, after),
                    None => before.incarnation != after.incarnation,
                };
                if replaces { Self::Replace } else { Self::Put }
            }
            (None, Some(_)) => Self::Put,
        }
    }
}

/// Where the last change of a key stands: in which of the entries taken, and at which place of its changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    entry: usize,
    change: usize,
}

/// A net change, with what the key becomes.
struct Planned {
    place: Place,
    outcome: MergeOutcome,
    step: KeyStep,
    /// The record that says what the key was; `None` when the key was not there.
    number_before: Option<u64>,
    /// What is to be told of the merge, but for its revision.
    report: Option<MergeReport>,
}

impl Planned {
    /// The record that says what the key is, once this is done with record `number`. `None` when the key is not there.
    fn rests_on(&self, number: u64) -> Option<u64> {
        match self.step {
            KeyStep::Nothing => self.number_before,
            _ => self.outcome.live.as_ref().map(|_| number),
        }
    }
}

/// An entry of a step, with what becomes of its record.
struct Taken {
    number: u64,
    head: EntryHead,
    changes: Vec<Change>,
    outcomes: Vec<Change>,
    /// Whether the record shows anything at the step's revisions.
    shows: bool,
}

impl Taken {
    /// Marks what a change gave: itself, or an outcome of its own.
    fn note(&mut self, place: usize, live: Option<&Live>, applied: Applied) {
        let change = &mut self.changes[place];
        let itself = match (&change.kind, live) {
            (ChangeKind::Put { value, lease, version }, Some(live)) => {
                *value == live.value
                    && *lease == live.lease
                    && *version == live.version
                    && change.incarnation == live.incarnation
            }
            (ChangeKind::Delete | ChangeKind::Expire, None) => true,
            _ => false,
        };
        if itself {
            change.applied = Some(applied);
            return;
        }
        let (kind, incarnation) = match live {
            Some(live) => (live.put(), live.incarnation),
            None => (ChangeKind::Delete, change.incarnation),
        };
        self.outcomes.push(Change { kind, incarnation, applied: Some(applied), ..change.clone() });
    }
}

/// Entries that were taken and are not shown yet.
#[derive(Default)]
struct Step {
    taken: SmallVec<[Taken; 1]>,
    /// Where the last change of each client key stands, and what the key was, in the order in which they were touched first.
    keys: SmallVec<[(Place, Option<Recorded>); 1]>,
    /// Where a key stands in `keys`; kept from the second entry on.
    index: Option<HashMap<Key, usize>>,
    /// Merges that were made ahead, of entries that came together.
    prepared: Option<Prepared>,
    /// Which record holds what a system key became.
    system: BTreeMap<Key, Option<u64>>,
}

impl Step {
    /// Notes that a client key is changed there, and looks what it was unless the step changed it already. Tells what it was.
    fn touch(&mut self, place: Place, look: impl FnOnce(&Key) -> Option<Recorded>) -> &Option<Recorded> {
        let key_at = |place: &Place| &self.taken[place.entry].changes[place.change].key;
        if place.entry > 0 {
            let index = self.index.get_or_insert_with(|| {
                self.keys.iter().enumerate().map(|(at, (place, _))| (key_at(place).clone(), at)).collect()
            });
            match index.get(key_at(&place)) {
                Some(at) => {
                    let (last, before) = &mut self.keys[*at];
                    *last = place;
                    return before;
                }
                None => {
                    index.insert(key_at(&place).clone(), self.keys.len());
                }
            }
        }
        let before = look(key_at(&place));
        self.keys.push((place, before));
        &self.keys[self.keys.len() - 1].1
    }

    fn change(&self, place: Place) -> &Change {
        &self.taken[place.entry].changes[place.change]
    }
}

impl Replica {
    /// Applies an entry whole. There must be room for its revisions ([`Self::leave_full_space`]).
    pub(crate) fn apply(&mut self, turn: &mut Turn, entry: Entry) {
        self.apply_unsettled(turn, entry, &[]);
    }

    /// Applies an entry but for those of its changes (by their places) that are settled: what the keys are here contains
    /// them.
    pub(crate) fn apply_unsettled(&mut self, turn: &mut Turn, entry: Entry, settled: &[u32]) {
        let mut step = Step::default();
        self.take(turn, &mut step, entry, settled, false);
        self.show_step(turn, step);
    }

    /// Applies entries as one step.
    pub(crate) fn apply_together(&mut self, turn: &mut Turn, entries: Vec<Entry>, prepared: Prepared) {
        let mut step = Step { prepared: Some(prepared), ..Step::default() };
        let together = entries.len() > 1;
        for entry in entries {
            self.take(turn, &mut step, entry, &[], together);
        }
        self.show_step(turn, step);
    }

    /// Adds an entry to what was applied, and its versions to their windows. What it does to system keys is done; what it
    /// does to client keys waits for the end of the step.
    fn take(&mut self, turn: &mut Turn, step: &mut Step, entry: Entry, settled: &[u32], together: bool) {
        self.open_up();
        let head = entry.head.clone();
        let EntryHead { dot, stamp, .. } = entry.head;
        let state = self.origins.others.entry(dot.origin).or_default();
        state.depend(&head.depends);
        state.chain = match &step.prepared {
            Some(prepared) => prepared.chain(state.chain, &entry),
            None => state.chain.extend(&entry.head, &entry.changes),
        };
        let (deps, chain) = (Arc::clone(&state.deps), state.chain);
        let number = self.journal.number();
        let changes: Vec<Change> = entry.changes.iter().map(Change::travelling).collect();
        let at = step.taken.len();
        step.taken.push(Taken { number, head, changes, outcomes: vec![], shows: false });
        let mut last = last_places(&entry.changes);
        last.retain(|place| !settled.iter().any(|settled| *settled as usize == *place));
        for place in last {
            let change = &entry.changes[place];
            let version = Version::new(&entry.head, Arc::clone(&deps), change);
            let place = Place { entry: at, change: place };
            let Self { replication, state, .. } = self;
            let look = |key: &Key| state.recorded(change.keyspace, key);
            let system;
            let before = match change.keyspace {
                Keyspace::Client => step.touch(place, look),
                Keyspace::System => {
                    system = look(&change.key);
                    &system
                }
            };
            if let Some(replication) = replication {
                replication.windows.add_or_open(change.keyspace, &change.key, version, || before.clone());
            }
            if change.keyspace == Keyspace::System {
                let before = before.clone();
                self.take_system(turn, step, place, before);
            }
        }
        debug_assert!(entry.changes.iter().all(|change| *change == change.travelling()), "what is this replica's own");
        self.open_up().log.push(Logged {
            number,
            entry: Arc::new(entry),
            deps,
            chain,
            together,
            written_over: 0,
            bases: None,
        });
        self.origins.vector.advance(dot);
        self.origins.fresh.advance(dot);
        self.witness(turn, dot.origin, stamp);
    }

    /// What a change makes of a system key.
    fn take_system(&mut self, turn: &mut Turn, step: &mut Step, place: Place, before: Option<Recorded>) {
        let Some(mut plan) = self.plan(turn, step, place, before) else { return };
        if let Some(report) = plan.report.take() {
            self.tell(turn, report);
        }
        let taken = &mut step.taken[place.entry];
        let key = taken.changes[place.change].key.clone();
        let (live, number) = (plan.outcome.live.as_ref(), taken.number);
        if plan.step != KeyStep::Nothing {
            self.state.set_system(&key, live, number);
            taken.note(place.change, live, Applied { sub: 0, create_revision: None, after: 0 });
            self.follow_rules(&key);
        }
        step.system.insert(key, plan.rests_on(number));
    }

    /// Looks what has become of a key whose versions were added.
    fn plan(&mut self, turn: &mut Turn, step: &Step, place: Place, before: Option<Recorded>) -> Option<Planned> {
        let change = step.change(place);
        let rules = Arc::clone(&self.rules);
        let window = &self.window(change.keyspace, &change.key)?.window;
        let foreseen = match (&step.prepared, change.keyspace) {
            (Some(prepared), Keyspace::Client) => prepared.outcome(&rules, &change.key, window).cloned(),
            _ => None,
        };
        let merged = || window.outcome(&rules, change.keyspace, &change.key);
        debug_assert!(
            foreseen.as_ref().is_none_or(|foreseen| *foreseen == merged()),
            "a merge made ahead is another one"
        );
        let outcome = foreseen.unwrap_or_else(merged);
        let (before, number_before) = before.map(|before| (before.live, before.number)).unzip();
        let key_step = match self.revives(turn, change, before.as_ref(), &outcome) {
            true => KeyStep::Nothing,
            false => KeyStep::between(rules.current(), change, before.as_ref(), &outcome),
        };
        let report = self.report_merge(step.taken[place.entry].head.dot, change, &outcome);
        Some(Planned { place, outcome, step: key_step, number_before, report })
    }

    /// What is to be told of a merge, where the outcome is one.
    fn report_merge(&mut self, dot: Dot, change: &Change, outcome: &MergeOutcome) -> Option<MergeReport> {
        let rule = outcome.rule?;
        let given_up = match &self.replication {
            Some(replication) => {
                let windows = &replication.windows;
                self.told.news(change.keyspace, &change.key, &outcome.given_up, windows, &self.rules)
            }
            None => vec![],
        };
        let (keyspace, key, given_up) = (change.keyspace, change.key.clone(), Losses::of(given_up));
        Some(MergeReport { keyspace, key, dot, revision: None, rule, given_up })
    }

    /// Tells of a merge.
    fn tell(&mut self, turn: &mut Turn, report: MergeReport) {
        self.merges.push_back(report.clone());
        if self.merges.len() > RECENT_MERGES {
            self.merges.pop_front();
        }
        turn.effects.notices.push(Notice::Merged(report));
    }

    /// Shows clients what a step did, and journals it.
    fn show_step(&mut self, turn: &mut Turn, mut step: Step) {
        let keys = std::mem::take(&mut step.keys);
        let mut planned: SmallVec<[Planned; 1]> =
            keys.into_iter().filter_map(|(place, before)| self.plan(turn, &step, place, before)).collect();
        if step.taken.len() > 1 {
            // What began first comes first: nobody reads of a pod before its owner.
            planned.sort_by_key(|plan| {
                plan.outcome.live.as_ref().map_or((true, None), |live| (false, Some(live.incarnation)))
            });
            // What one entry wrote stands where the first of it does.
            let mut firsts = vec![usize::MAX; step.taken.len()];
            for (at, plan) in planned.iter().enumerate().rev() {
                firsts[plan.place.entry] = at;
            }
            planned.sort_by_key(|plan| firsts[plan.place.entry]);
        }
        let revision = self.state.revision.next();
        self.carry_out(turn, &mut planned, &mut step, revision);
        if let Some(replication) = &mut self.replication {
            for plan in &planned {
                let (change, number) = (step.change(plan.place), step.taken[plan.place.entry].number);
                replication.windows.note(change.keyspace, &change.key, plan.rests_on(number));
            }
            for (key, number) in &step.system {
                replication.windows.note(Keyspace::System, key, *number);
            }
        }
        let until = step.taken.last().filter(|_| step.taken.len() > 1).map(|last| last.number);
        let mut system = vec![];
        for Taken { number, head, changes, outcomes, shows } in step.taken {
            if changes.iter().any(|change| change.applied.is_none()) || !outcomes.is_empty() {
                // Once it is settled, changes that are not shown here are of no use.
                self.state.dead.change(number);
            }
            system.extend(changes.iter().filter(|change| change.keyspace == Keyspace::System).cloned());
            let record = Record {
                number,
                revision: shows.then_some(revision),
                head: Some(head),
                changes,
                outcomes,
                trimmed: false,
                settled: false,
                until,
                bases: Bases::default(),
                notes: Notes::default(),
            };
            turn.effects.records.push(record.encode());
        }
        self.follow_system(turn, system.iter());
    }

    /// Does what is planned for client keys, and marks what the changes gave.
    fn carry_out(&mut self, turn: &mut Turn, planned: &mut [Planned], step: &mut Step, first: Revision) {
        let mut showing = Showing::starting_at(first);
        for plan in planned {
            showing.turn_to(plan.place.entry);
            let taken = &mut step.taken[plan.place.entry];
            let (key, number) = (taken.changes[plan.place.change].key.clone(), taken.number);
            let live = plan.outcome.live.as_ref();
            taken.shows |= plan.step != KeyStep::Nothing;
            let mut shown_at = None;
            match (plan.step, live) {
                (KeyStep::Nothing, _) => {}
                (KeyStep::Put, Some(live)) => {
                    let applied = self.show(turn, &mut showing, &key, live, number, false);
                    shown_at = Some(applied.after);
                    taken.note(plan.place.change, Some(live), applied);
                }
                (KeyStep::Delete | KeyStep::Replace | KeyStep::Put, _) => {
                    let place @ (after, at) = showing.next(number, false);
                    if let Some(buried) = self.state.bury(turn.now, &key, at) {
                        shown_at = Some(after);
                        showing.push(place, buried.key, buried.event);
                        let applied = Applied { sub: at.sub, create_revision: None, after };
                        let (kind, incarnation) = (ChangeKind::Delete, buried.before.live.incarnation);
                        match live {
                            Some(_) => {
                                let change = taken.changes[plan.place.change].clone();
                                let ended = Change { kind, incarnation, applied: Some(applied), ..change };
                                taken.outcomes.push(ended);
                            }
                            None => taken.note(plan.place.change, None, applied),
                        }
                    }
                    if let Some(live) = live {
                        let applied = self.show(turn, &mut showing, &key, live, number, true);
                        shown_at = Some(applied.after);
                        taken.note(plan.place.change, Some(live), applied);
                    }
                }
            }
            if let Some(report) = plan.report.take() {
                let revision = shown_at.map(|after| first.after(after));
                self.tell(turn, MergeReport { revision, ..report });
            }
        }
        for shown in showing.shown {
            self.schemas.touch(&self.rules.first().prefix, &shown.keys);
            self.state.push(shown.keys);
            turn.effects.commits.push(Commit { revision: self.state.revision, events: shown.events });
        }
    }

    /// Makes a client key what it is to be, at one of the revisions of a step; `behind` its delete at a later one.
    fn show(
        &mut self,
        turn: &Turn,
        showing: &mut Showing,
        key: &Key,
        live: &Live,
        number: u64,
        behind: bool,
    ) -> Applied {
        let place @ (after, at) = showing.next(number, behind);
        let (key, event, created) = self.state.set(turn.now, key, live, at);
        showing.push(place, key, event);
        Applied { sub: at.sub, create_revision: Some(created), after }
    }
}

/// The places of the last change of each key.
fn last_places(changes: &[Change]) -> SmallVec<[usize; 1]> {
    if changes.len() == 1 {
        return smallvec![0];
    }
    let mut seen = BTreeSet::new();
    let mut places: SmallVec<[usize; 1]> = (0..changes.len())
        .rev()
        .filter(|place| seen.insert((changes[*place].keyspace, &changes[*place].key)))
        .collect();
    places.reverse();
    places
}
