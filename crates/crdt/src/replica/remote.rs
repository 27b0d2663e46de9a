//! Entries of other replicas: which ones are taken, and what they make of the keys here.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::command::event::{Commit, Event};
use crate::command::notice::{MergeReport, Notice};
use crate::entry::{Applied, Change, ChangeKind, Entry, EntryHead, Record};
use crate::merge::outcome::{self, MergeOutcome};
use crate::merge::rules::{Rules, UnknownRules};
use crate::merge::version::Version;
use crate::replica::Replica;
use crate::replica::log::Logged;
use crate::replica::turn::Turn;
use crate::store::history::ChangedKeys;
use crate::store::state::Position;
use crate::store::system::SystemKey;
use crate::words::clock::{CLOCK_DRAG_MAX_MS, Stamp};
use crate::words::id::{Birth, Dot, Origin, ReplicaId};
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::value::Live;
use crate::words::vector::VersionVector;

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

/// A net change, with what the key becomes.
struct Planned {
    place: usize,
    outcome: MergeOutcome,
    step: KeyStep,
    /// The record that says what the key was; `None` when the key was not there.
    number_before: Option<u64>,
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

/// What one revision of an entry did.
struct Shown {
    revision: Revision,
    /// Journal number of the entry's record.
    number: u64,
    keys: ChangedKeys,
    events: SmallVec<[Event; 1]>,
}

impl Shown {
    fn new(revision: Revision, number: u64) -> Self {
        Self { revision, number, keys: ChangedKeys::new(), events: SmallVec::new() }
    }

    /// The position of the next change.
    fn position(&self) -> Position {
        Position { revision: self.revision, sub: self.keys.len() as u32, number: self.number }
    }

    fn push(&mut self, key: Key, event: Event) {
        self.keys.push((self.keys.len() as u32, key));
        self.events.push(event);
    }
}

impl Replica {
    /// Takes a batch of entries from a peer, in its order.
    pub(crate) fn receive(&mut self, turn: &mut Turn, from: ReplicaId, births: &[Birth], entries: Vec<Entry>) {
        if self.membership.members.is_removed(from) {
            turn.effects.notices.push(Notice::NotAMember { member: from, from });
            return;
        }
        if self.is_outlived(from, births) {
            return;
        }
        let mut system = false;
        for entry in entries {
            if self.origins.vector.contains(entry.head.dot) {
                continue;
            }
            match self.admit(from, &entry) {
                Ok(()) => {
                    if self.leave_full_space(turn).is_err() {
                        break;
                    }
                    system |= entry.changes.iter().any(|change| change.keyspace == Keyspace::System);
                    self.apply(turn, entry);
                    self.write_revived(turn);
                }
                Err(notice) => turn.effects.notices.push(notice),
            }
        }
        // Entries alone do not move the floor. Acknowledgements that came before them may, and a change of the members.
        if self.membership.acks.ripen(&self.origins.vector) || system {
            self.advance(turn);
        }
    }

    /// Whether entries of that member under another birth than these are known. Then the member runs under that birth
    /// now, and what still comes under one of these is from before. This replica has told others that it knows of the
    /// new birth, so it must take nothing of the old one any more.
    pub(crate) fn is_outlived(&self, member: ReplicaId, births: &[Birth]) -> bool {
        self.births_of(member).any(|birth| !births.contains(&birth))
    }

    /// The births under which entries of a member are known.
    pub fn births_of(&self, member: ReplicaId) -> impl Iterator<Item = Birth> + '_ {
        let origins = self.origins.vector.iter().map(|dot| dot.origin);
        origins.filter(move |origin| origin.replica == member).map(|origin| origin.birth)
    }

    /// Whether an unknown entry may be applied now.
    pub(crate) fn admit(&self, from: ReplicaId, entry: &Entry) -> Result<(), Notice> {
        let head = &entry.head;
        let (dot, origin) = (head.dot, head.dot.origin);
        if head.first_seq == 0 || head.first_seq > dot.seq || entry.changes.is_empty() {
            return Err(Notice::Malformed { dot, from });
        }
        if entry.changes.iter().any(|change| change.key.is_empty() || change.local) || origin == Origin::GENESIS {
            return Err(Notice::Malformed { dot, from });
        }
        if let Some(error) = entry.changes.iter().find_map(unknown_rules) {
            return Err(Notice::UnknownRules { dot, from, number: error.number() });
        }
        let known = self.origins.vector.get(origin);
        if origin == self.identity.origin() {
            return Err(Notice::OwnTailLost { dot, from });
        }
        if head.first_seq > known + 1 || !self.origins.vector.covers(&head.depends) {
            return Err(Notice::TooEarly { dot, from });
        }
        let state = self.origins.others.get(&origin);
        if head.first_seq == known + 1 && state.map(|state| state.chain).unwrap_or_default() != head.previous {
            return Err(Notice::Forked { dot, from });
        }
        if self.membership.members.get(origin.replica).is_none() {
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
        // A replica that is alone has settled nothing that another may lack.
        if !self.replication.as_ref().is_none_or(|replication| depends_on(&replication.floor)) {
            return Err(Notice::BelowFloor { dot, from });
        }
        Ok(())
    }

    /// Applies an entry whole. There must be room for two revisions and more ([`Self::leave_full_space`]).
    pub(crate) fn apply(&mut self, turn: &mut Turn, entry: Entry) {
        self.apply_unsettled(turn, entry, &[]);
    }

    /// Applies an entry but for those of its changes (by their places) that are settled: what the keys are here contains
    /// them.
    pub(crate) fn apply_unsettled(&mut self, turn: &mut Turn, entry: Entry, settled: &[u32]) {
        self.open_up();
        let head = entry.head.clone();
        let origin = head.dot.origin;
        let state = self.origins.others.entry(origin).or_default();
        state.depend(&head.depends);
        state.chain = state.chain.extend(&head, &entry.changes);
        let (deps, chain) = (Arc::clone(&state.deps), state.chain);

        let number = self.journal.number();
        let mut changes: Vec<Change> = entry.changes.iter().map(Change::travelling).collect();
        let planned = self.plan(turn, &changes, settled, &head, &deps);
        let (revision, outcomes) = self.carry_out(turn, &planned, &mut changes, number);
        if let Some(replication) = &mut self.replication {
            for plan in &planned {
                let change = &changes[plan.place];
                replication.windows.note(change.keyspace, &change.key, plan.rests_on(number));
            }
        }
        if changes.iter().any(|change| change.applied.is_none()) || !outcomes.is_empty() {
            // Once it is settled, changes that are not shown here are of no use.
            self.state.dead.change(number);
        }
        let record = Record {
            number,
            revision,
            head: Some(head),
            changes,
            outcomes,
            trimmed: false,
            settled: false,
            left_out: false,
        };
        turn.effects.records.push(record.encode());
        let EntryHead { dot, stamp, .. } = entry.head;
        debug_assert!(entry.changes.iter().all(|change| *change == change.travelling()), "what is this replica's own");
        self.open_up().log.push(Logged { number, entry: Arc::new(entry), deps, chain });
        self.origins.vector.advance(dot);
        self.origins.fresh.advance(dot);
        self.witness(turn, dot.origin, stamp);
        self.follow_system(turn, record.changes.iter().filter(|c| c.keyspace == Keyspace::System));
    }

    /// Adds the entry's versions to their windows and looks what comes of it.
    fn plan(
        &mut self,
        turn: &mut Turn,
        changes: &[Change],
        settled: &[u32],
        head: &EntryHead,
        deps: &Arc<VersionVector>,
    ) -> Vec<Planned> {
        let mut last = last_places(changes);
        last.retain(|place| !settled.iter().any(|settled| *settled as usize == *place));
        let mut planned = Vec::with_capacity(last.len());
        for place in last {
            let change = &changes[place];
            let before = self.state.recorded(change.keyspace, &change.key);
            let version = Version {
                dot: head.dot,
                stamp: head.stamp,
                deps: Arc::clone(deps),
                kind: change.kind.clone(),
                incarnation: change.incarnation,
            };
            let rules = Arc::clone(&self.rules);
            let windows = &mut self.open_up().windows;
            windows.open(change.keyspace, &change.key, before.as_ref());
            let Some(window) = windows.add(change.keyspace, &change.key, version) else { continue };
            let outcome = window.outcome(&rules, change.keyspace, &change.key);
            let (before, number_before) = before.map(|before| (before.live, before.number)).unzip();
            let step = match self.revives(turn, change, before.as_ref(), &outcome) {
                true => KeyStep::Nothing,
                false => KeyStep::between(&rules, change, before.as_ref(), &outcome),
            };
            self.report_merge(turn, head.dot, change, step, &outcome);
            planned.push(Planned { place, outcome, step, number_before });
        }
        planned
    }

    /// Tells of a merge, where the outcome is one.
    fn report_merge(&mut self, turn: &mut Turn, dot: Dot, change: &Change, step: KeyStep, outcome: &MergeOutcome) {
        let Some(rule) = outcome.rule else { return };
        let report = MergeReport {
            keyspace: change.keyspace,
            key: change.key.clone(),
            dot,
            revision: match step {
                _ if change.keyspace == Keyspace::System => None,
                KeyStep::Nothing => None,
                KeyStep::Put | KeyStep::Delete => Some(self.state.revision.next()),
                // Behind the delete of what was there.
                KeyStep::Replace => Some(self.state.revision.next().next()),
            },
            rule,
            given_up: outcome.given_up.clone(),
        };
        self.merges.push_back(report.clone());
        if self.merges.len() > RECENT_MERGES {
            self.merges.pop_front();
        }
        turn.effects.notices.push(Notice::Merged(report));
    }

    /// Does what is planned, marks what the changes gave, and tells the revision and what the changes do not say.
    fn carry_out(
        &mut self,
        turn: &mut Turn,
        planned: &[Planned],
        changes: &mut [Change],
        number: u64,
    ) -> (Option<Revision>, Vec<Change>) {
        let first = self.state.revision.next();
        let (mut at, mut later) = (Shown::new(first, number), Shown::new(first.next(), number));
        let mut outcomes = vec![];
        for plan in planned {
            let change = &mut changes[plan.place];
            let live = plan.outcome.live.as_ref();
            if change.keyspace == Keyspace::System {
                if plan.step != KeyStep::Nothing {
                    self.state.set_system(&change.key, live, number);
                    let applied = Applied { sub: 0, create_revision: None, later: false };
                    record(change, live, applied, &mut outcomes);
                }
                continue;
            }
            let position = at.position();
            match (plan.step, live) {
                (KeyStep::Nothing, _) => {}
                (KeyStep::Put, Some(live)) => {
                    let applied = self.show(turn, &mut at, &change.key, live, false);
                    record(change, Some(live), applied, &mut outcomes);
                }
                (KeyStep::Delete | KeyStep::Replace | KeyStep::Put, _) => {
                    if let Some(buried) = self.state.bury(turn.now, &change.key, position) {
                        at.push(buried.key, buried.event);
                        let applied = Applied { sub: position.sub, create_revision: None, later: false };
                        let (kind, incarnation) = (ChangeKind::Delete, buried.before.live.incarnation);
                        match live {
                            Some(_) => {
                                outcomes.push(Change { kind, incarnation, applied: Some(applied), ..change.clone() });
                            }
                            None => record(change, None, applied, &mut outcomes),
                        }
                    }
                    if let Some(live) = live {
                        let applied = self.show(turn, &mut later, &change.key, live, true);
                        record(change, Some(live), applied, &mut outcomes);
                    }
                }
            }
        }
        let mut touched = None;
        for shown in [at, later] {
            if !shown.keys.is_empty() {
                self.state.push(shown.keys);
                touched.get_or_insert(self.state.revision);
                turn.effects.commits.push(Commit { revision: self.state.revision, events: shown.events });
            }
        }
        (touched, outcomes)
    }

    /// Makes a client key what it is to be, at one of the revisions of an entry.
    fn show(&mut self, turn: &Turn, shown: &mut Shown, key: &Key, live: &Live, later: bool) -> Applied {
        let position = shown.position();
        let (key, event, created) = self.state.set(turn.now, key, live, position);
        shown.push(key, event);
        Applied { sub: position.sub, create_revision: Some(created), later }
    }

    /// Lets a stamp drag the clock along, within bounds.
    fn witness(&mut self, turn: &mut Turn, origin: Origin, stamp: Stamp) {
        let limit_ms = turn.now.wall_ms.saturating_add(CLOCK_DRAG_MAX_MS);
        if stamp.wall_ms() > limit_ms {
            let ahead_ms = stamp.wall_ms().saturating_sub(turn.now.wall_ms);
            turn.effects.notices.push(Notice::ClockAhead { origin, ahead_ms });
        }
        self.clock.witness_until(stamp, limit_ms);
    }
}

/// Why this build cannot merge by the rules that a change sets.
pub(crate) fn unknown_rules(change: &Change) -> Option<UnknownRules> {
    match &change.kind {
        _ if change.keyspace != Keyspace::System || SystemKey::decode(&change.key) != Some(SystemKey::Rules) => None,
        ChangeKind::Put { value, .. } => Rules::decode(value).err(),
        ChangeKind::Delete | ChangeKind::Expire => Some(UnknownRules::Unreadable),
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
fn record(change: &mut Change, live: Option<&Live>, applied: Applied, outcomes: &mut Vec<Change>) {
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
    outcomes.push(Change { kind, incarnation, applied: Some(applied), ..change.clone() });
}
