//! Entries of other replicas: which are taken, and what they make of the keys here.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::boot::genesis;
use crate::command::event::{Commit, Event};
use crate::command::notice::{MergeReport, Notice};
use crate::entry::{Applied, Change, ChangeKind, Entry, Record};
use crate::merge::outcome::{self, Outcome};
use crate::merge::window::{Live, Version};
use crate::replica::log::Logged;
use crate::replica::origins::OriginState;
use crate::replica::{Effects, Replica};
use crate::store::history::ChangedKeys;
use crate::words::clock::Now;
use crate::words::id::{Birth, ReplicaId};
use crate::words::key::Keyspace;
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// How far an entry may be dated ahead of this replica's clock and still drag its logical clock along, milliseconds.
pub const CLOCK_DRAG_MAX_MS: u64 = 60_000;

/// How many merges are remembered.
const RECENT_MERGES: usize = 256;

/// What a net change leads to on a client key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The key stays as it is.
    Nothing,
    /// It is written.
    Put,
    /// It is deleted.
    Delete,
    /// One life of it ends and another begins.
    Replace,
}

/// A net change, with what the key becomes.
struct Planned {
    place: usize,
    outcome: Outcome,
    step: Step,
    /// In which record stands what the key was; zero when it was not there.
    number_before: u64,
}

impl Planned {
    /// In which record stands what the key is, once this is done with that record; zero when it is not there.
    fn rests_on(&self, number: u64) -> u64 {
        match (self.step, &self.outcome.live) {
            (Step::Nothing, _) => self.number_before,
            (_, Some(_)) => number,
            (_, None) => 0,
        }
    }
}

/// What one revision did.
#[derive(Default)]
struct Draft {
    keys: ChangedKeys,
    events: SmallVec<[Event; 1]>,
}

impl Draft {
    fn sub(&self) -> u32 {
        self.keys.len() as u32
    }
}

impl Replica {
    /// Takes a batch of entries from a peer, in its order.
    pub(crate) fn receive(
        &mut self,
        now: Now,
        from: ReplicaId,
        births: &[Birth],
        entries: Vec<Entry>,
        effects: &mut Effects,
    ) {
        if self.members.is_removed(from) {
            effects.notices.push(Notice::NotAMember { member: from, from });
            return;
        }
        if self.is_outlived(from, births) {
            return;
        }
        let mut system = false;
        for entry in entries {
            if self.vector.contains(entry.head.dot) {
                continue;
            }
            match self.admit(from, &entry) {
                Ok(()) => {
                    system |= entry.changes.iter().any(|change| change.keyspace == Keyspace::System);
                    self.apply(now, entry, effects);
                }
                Err(notice) => effects.notices.push(notice),
            }
        }
        // Entries alone do not move the floor; what was acknowledged before they came may, and who the members are.
        if self.acks.ripen(&self.vector) || system {
            self.advance(now, effects);
        }
    }

    /// Whether entries of another birth of that member than these have come another way: that one runs now, and what still
    /// comes from one of these is from before. Nobody may learn it who has told others that it knows of the new birth.
    pub(crate) fn is_outlived(&self, member: ReplicaId, births: &[Birth]) -> bool {
        self.births_of(member).any(|birth| !births.contains(&birth))
    }

    /// The births under which entries of a member are known.
    pub fn births_of(&self, member: ReplicaId) -> impl Iterator<Item = Birth> + '_ {
        let origins = self.vector.iter().map(|dot| dot.origin);
        origins.filter(move |origin| origin.replica == member).map(|origin| origin.birth)
    }

    /// Whether an unknown entry may be applied now.
    pub(crate) fn admit(&self, from: ReplicaId, entry: &Entry) -> Result<(), Notice> {
        let head = &entry.head;
        let (dot, origin) = (head.dot, head.dot.origin);
        if head.first_seq == 0 || head.first_seq > dot.seq || entry.changes.is_empty() {
            return Err(Notice::Malformed { dot, from });
        }
        if entry.changes.iter().any(|change| change.key.is_empty() || change.local) || origin == genesis::ORIGIN {
            return Err(Notice::Malformed { dot, from });
        }
        let known = self.vector.get(origin);
        if origin == self.identity.origin() {
            return Err(Notice::OwnTailLost { dot, from });
        }
        if head.first_seq > known + 1 || !self.vector.covers(&head.depends) {
            return Err(Notice::TooEarly { dot, from });
        }
        let state = self.others.get(&origin);
        if head.first_seq == known + 1 && state.map(|state| state.chain).unwrap_or_default() != head.previous {
            return Err(Notice::Forked { dot, from });
        }
        if self.members.get(origin.replica).is_none() {
            return Err(Notice::NotAMember { member: origin.replica, from });
        }
        let depends_on = |vector: &VersionVector| {
            let before = state.map(|state| &state.deps);
            vector.iter().all(|on| {
                if on.origin == origin {
                    return on.seq < head.first_seq.max(known + 1);
                }
                head.depends.contains(on) || before.is_some_and(|before| before.contains(on))
            })
        };
        if !depends_on(&self.floor) {
            return Err(Notice::BelowFloor { dot, from });
        }
        Ok(())
    }

    /// Applies an entry whole.
    pub(crate) fn apply(&mut self, now: Now, entry: Entry, effects: &mut Effects) {
        self.apply_unsettled(now, entry, &[], effects);
    }

    /// Applies an entry but for those of its changes (by their places) that are settled: what the keys are here contains
    /// them.
    pub(crate) fn apply_unsettled(&mut self, now: Now, entry: Entry, settled: &[u32], effects: &mut Effects) {
        self.state.now = now;
        self.leave_full_space(now, effects);
        let head = entry.head.clone();
        let origin = head.dot.origin;
        let state = self.others.entry(origin).or_default();
        if !head.depends.is_empty() {
            let mut deps = VersionVector::clone(&state.deps);
            deps.merge(&head.depends);
            state.deps = Arc::new(deps);
        }
        state.chain = state.chain.extend(&head, &entry.changes);
        let (deps, chain) = (Arc::clone(&state.deps), state.chain);

        let number = self.next_number;
        self.next_number += 1;
        let mut changes: Vec<Change> =
            entry.changes.iter().map(|change| Change { applied: Applied::Not, ..change.travelling() }).collect();
        let planned = self.plan(&changes, settled, &head, &deps, effects);
        let (revision, outcomes) = self.carry_out(&planned, &mut changes, number, effects);
        for plan in &planned {
            let change = &changes[plan.place];
            self.state.windows.note(change.keyspace, &change.key, plan.rests_on(number));
        }
        if changes.iter().any(|change| change.applied == Applied::Not) || !outcomes.is_empty() {
            // Once settled, what it says beside what is here is of no use.
            self.state.dead.change(number);
        }
        let record =
            Record { number, revision, head, changes, outcomes, trimmed: false, settled: false, left_out: false };
        effects.records.push(record.encode());
        let (dot, stamp) = (record.head.dot, record.head.stamp);
        debug_assert!(entry.changes.iter().all(|change| *change == change.travelling()), "what is this replica's own");
        self.log.push(Logged { number, entry: Arc::new(entry), deps, chain });
        self.vector.advance(dot);
        self.fresh.advance(dot);
        self.witness(now, dot.origin, stamp, effects);
        self.follow_system(now, record.changes.iter().filter(|c| c.keyspace == Keyspace::System), effects);
    }

    /// Adds the entry's versions to their windows and looks what comes of it.
    fn plan(
        &mut self,
        changes: &[Change],
        settled: &[u32],
        head: &crate::entry::EntryHead,
        deps: &Arc<VersionVector>,
        effects: &mut Effects,
    ) -> Vec<Planned> {
        let mut last = last_places(changes);
        last.retain(|place| !settled.iter().any(|settled| *settled as usize == *place));
        let mut planned = Vec::with_capacity(last.len());
        for place in last {
            let change = &changes[place];
            let (before, number_before) = self.state.live(change.keyspace, &change.key);
            self.state.windows.open(change.keyspace, &change.key, || (before.clone(), number_before));
            let version = Version {
                dot: head.dot,
                stamp: head.stamp,
                deps: Arc::clone(deps),
                kind: change.kind.clone(),
                version: change.version,
                incarnation: change.incarnation,
            };
            let rules = Arc::clone(&self.state.rules);
            let Some(window) = self.state.windows.add(change.keyspace, &change.key, version) else { continue };
            let outcome = window.outcome(&rules, change.keyspace, &change.key);
            let step = match (&before, &outcome.live) {
                (None, None) => Step::Nothing,
                (before, after) if before == after => Step::Nothing,
                (_, None) => Step::Delete,
                (Some(before), Some(after)) => {
                    // Without a merge it is what the writer's own clients saw, and no client moves a pod.
                    let replaces = match outcome.rule {
                        Some(_) => outcome::replaces(&rules, change.keyspace, &change.key, before, after),
                        None => before.incarnation != after.incarnation,
                    };
                    if replaces { Step::Replace } else { Step::Put }
                }
                (None, Some(_)) => Step::Put,
            };
            if let Some(rule) = outcome.rule {
                let report = MergeReport {
                    keyspace: change.keyspace,
                    key: change.key.clone(),
                    dot: head.dot,
                    revision: match step {
                        _ if change.keyspace == Keyspace::System => None,
                        Step::Nothing => None,
                        Step::Put | Step::Delete => Some(self.revision.next()),
                        // Behind the delete of what was there.
                        Step::Replace => Some(self.revision.next().next()),
                    },
                    rule,
                    given_up: outcome.given_up.clone(),
                };
                self.merges.push_back(report.clone());
                if self.merges.len() > RECENT_MERGES {
                    self.merges.pop_front();
                }
                effects.notices.push(Notice::Merged(report));
            }
            planned.push(Planned { place, outcome, step, number_before });
        }
        planned
    }

    /// Does what is planned, marks what the changes gave, and tells the revision and what the changes do not say.
    fn carry_out(
        &mut self,
        planned: &[Planned],
        changes: &mut [Change],
        number: u64,
        effects: &mut Effects,
    ) -> (Option<Revision>, Vec<Change>) {
        let first = self.revision.next();
        let (mut now, mut later) = (Draft::default(), Draft::default());
        let mut outcomes = vec![];
        for plan in planned {
            let change = &mut changes[plan.place];
            if change.keyspace == Keyspace::System {
                if plan.step == Step::Nothing {
                    continue;
                }
                self.state.set_system(&change.key, plan.outcome.live.as_ref(), number);
                record(change, plan.outcome.live.as_ref(), 0, Revision::default(), Applied::AsIs, &mut outcomes);
                continue;
            }
            match (plan.step, &plan.outcome.live) {
                (Step::Nothing, _) => {}
                (Step::Delete, _) | (Step::Replace, None) | (Step::Put, None) => {
                    let sub = now.sub();
                    let (key, event, _) = self.state.bury(&change.key, first, sub, number);
                    now.events.push(event);
                    now.keys.push((sub, key));
                    record(change, None, sub, Revision::default(), Applied::AsIs, &mut outcomes);
                }
                (Step::Put, Some(live)) => {
                    let sub = now.sub();
                    let (key, event, created) = self.state.set(&change.key, live, first, sub, number);
                    now.events.push(event);
                    now.keys.push((sub, key));
                    record(change, Some(live), sub, created, Applied::AsIs, &mut outcomes);
                }
                (Step::Replace, Some(live)) => {
                    let sub = now.sub();
                    let (key, event, incarnation) = self.state.bury(&change.key, first, sub, number);
                    now.events.push(event);
                    now.keys.push((sub, key));
                    outcomes.push(Change {
                        sub,
                        kind: ChangeKind::Delete,
                        create_revision: Revision::default(),
                        version: 0,
                        incarnation,
                        applied: Applied::AsIs,
                        ..change.clone()
                    });
                    let sub = later.sub();
                    let (key, event, created) = self.state.set(&change.key, live, first.next(), sub, number);
                    later.events.push(event);
                    later.keys.push((sub, key));
                    record(change, Some(live), sub, created, Applied::Later, &mut outcomes);
                }
            }
        }
        let mut touched = None;
        for draft in [now, later] {
            if !draft.keys.is_empty() {
                self.revision = self.revision.next();
                touched.get_or_insert(self.revision);
                self.history.push(draft.keys);
                effects.commits.push(Commit { revision: self.revision, events: draft.events });
            }
        }
        (touched, outcomes)
    }

    /// Lets a stamp drag the clock along, within bounds.
    fn witness(
        &mut self,
        now: Now,
        origin: crate::words::id::Origin,
        stamp: crate::words::clock::Stamp,
        effects: &mut Effects,
    ) {
        let limit_ms = now.wall_ms.saturating_add(CLOCK_DRAG_MAX_MS);
        if stamp.wall_ms() > limit_ms {
            let ahead_ms = stamp.wall_ms().saturating_sub(now.wall_ms);
            effects.notices.push(Notice::ClockAhead { origin, ahead_ms });
        }
        self.clock.witness_until(stamp, limit_ms);
    }
}

impl OriginState {
    /// The state of an origin of which nothing is known but where its log begins.
    pub(crate) fn at(base: crate::entry::OriginHead) -> Self {
        let deps = Arc::new(base.deps);
        Self { chain: base.chain, deps: Arc::clone(&deps), base_chain: base.chain, base_deps: deps }
    }
}

/// The places of the last change of each key.
fn last_places(changes: &[Change]) -> Vec<usize> {
    if changes.len() == 1 {
        return vec![0];
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut places: Vec<usize> = (0..changes.len())
        .rev()
        .filter(|place| seen.insert((changes[*place].keyspace, &changes[*place].key)))
        .collect();
    places.reverse();
    places
}

/// Marks what a change gave: itself, or an outcome of its own.
fn record(
    change: &mut Change,
    live: Option<&Live>,
    sub: u32,
    create_revision: Revision,
    applied: Applied,
    outcomes: &mut Vec<Change>,
) {
    let itself = match (&change.kind, live) {
        (ChangeKind::Put { value, lease }, Some(live)) => {
            *value == live.value
                && *lease == live.lease
                && change.version == live.version
                && change.incarnation == live.incarnation
        }
        (ChangeKind::Delete | ChangeKind::Expire, None) => true,
        _ => false,
    };
    if itself {
        (change.sub, change.create_revision, change.applied) = (sub, create_revision, applied);
        return;
    }
    let (kind, version, incarnation) = match live {
        Some(live) => {
            (ChangeKind::Put { value: live.value.clone(), lease: live.lease }, live.version, live.incarnation)
        }
        None => (ChangeKind::Delete, 0, change.incarnation),
    };
    outcomes.push(Change { sub, kind, create_revision, version, incarnation, applied, ..change.clone() });
}
