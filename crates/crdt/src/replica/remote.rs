//! Entries of other replicas: which ones are taken.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::notice::Notice;
use crate::entry::{Change, ChangeKind, Entry};
use crate::merge::rules::{FIRST, Rules, UnknownRules};
use crate::replica::Replica;
use crate::replica::origins::OriginState;
use crate::replica::prepared::Prepared;
use crate::replica::turn::Turn;
use crate::store::system::SystemKey;
use crate::words::clock::{CLOCK_DRAG_MAX_MS, Stamp};
use crate::words::fence::Fence;
use crate::words::id::{Birth, Dot, Origin, ReplicaId};
use crate::words::key::Keyspace;
use crate::words::vector::VersionVector;

/// What the entries of a step so far make known, while it is looked whether they may be applied.
#[derive(Default)]
struct Ahead {
    /// What was applied, and all entries of the step.
    reached: VersionVector,
    /// How far each origin is, with its state there, where the step holds entries of it.
    origins: BTreeMap<Origin, (u64, OriginState)>,
    /// Members that the step adds.
    members: BTreeSet<ReplicaId>,
    /// The numbers of the rules that the step declares.
    rules: BTreeSet<u32>,
}

impl Replica {
    /// Takes a batch of entries from a peer, in its order; `together` as one step.
    pub(crate) fn receive(
        &mut self,
        turn: &mut Turn,
        from: ReplicaId,
        births: &[Birth],
        mut entries: Vec<Entry>,
        together: Option<Prepared>,
    ) {
        if self.membership.members.is_removed(from) {
            turn.effects.notices.push(Notice::NotAMember { member: from, from });
            return;
        }
        if self.is_outlived(from, births) {
            return;
        }
        let is_system = |entry: &Entry| entry.changes.iter().any(|change| change.keyspace == Keyspace::System);
        let mut system = false;
        if let Some(prepared) = together {
            entries.retain(|entry| !self.origins.vector.contains(entry.head.dot));
            match self.admit_together(from, &entries, &prepared) {
                _ if entries.is_empty() => {}
                Ok(()) if self.make_room(turn, revisions_of(&entries)).is_err() => {}
                Ok(()) => {
                    system = entries.iter().any(is_system);
                    self.apply_together(turn, entries, prepared);
                    self.write_revived(turn);
                }
                Err(notice) => turn.effects.notices.push(notice),
            }
        } else {
            for entry in entries {
                if self.origins.vector.contains(entry.head.dot) {
                    continue;
                }
                match self.admit(from, &entry) {
                    Ok(()) => {
                        if self.leave_full_space(turn).is_err() {
                            break;
                        }
                        system |= is_system(&entry);
                        self.apply(turn, entry);
                        self.write_revived(turn);
                    }
                    Err(notice) => turn.effects.notices.push(notice),
                }
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
        self.admit_among(from, entry, &self.origins.vector, &[])
    }

    /// The same where all up to `reached` is applied together with it, and these of its changes (by their places) are settled.
    pub(crate) fn admit_among(
        &self,
        from: ReplicaId,
        entry: &Entry,
        reached: &VersionVector,
        settled: &[u32],
    ) -> Result<(), Notice> {
        let origin = entry.head.dot.origin;
        let state = self.origins.others.get(&origin).cloned().unwrap_or_default();
        self.admit_after(from, entry, reached, self.origins.vector.get(origin), &state, false)?;
        self.admit_rules(from, entry, &BTreeSet::new(), settled)
    }

    /// Whether unknown entries may be applied as one step. What they depend on may be among them, in any order.
    pub(crate) fn admit_together(&self, from: ReplicaId, entries: &[Entry], prepared: &Prepared) -> Result<(), Notice> {
        let mut ahead = Ahead { reached: self.origins.vector.clone(), ..Ahead::default() };
        for entry in entries {
            ahead.reached.advance(entry.head.dot);
            ahead.members.extend(entry.changes.iter().filter_map(added_member));
            ahead.rules.extend(entry.changes.iter().filter_map(declared_rules));
        }
        for entry in entries {
            let origin = entry.head.dot.origin;
            let (known, state) = ahead.origins.entry(origin).or_insert_with(|| {
                let state = self.origins.others.get(&origin).cloned().unwrap_or_default();
                (self.origins.vector.get(origin), state)
            });
            self.admit_after(from, entry, &ahead.reached, *known, state, ahead.members.contains(&origin.replica))?;
            self.admit_rules(from, entry, &ahead.rules, &[])?;
            *known = entry.head.dot.seq;
            state.depend(&entry.head.depends);
            state.chain = prepared.chain(state.chain, entry);
        }
        Ok(())
    }

    /// Whether the rules are known by which an entry's origin merged, here or from the step that it is part of. Rules that were
    /// forgotten need not be where nothing is merged by them: of clients the entry has only changes that are `settled`.
    fn admit_rules(
        &self,
        from: ReplicaId,
        entry: &Entry,
        declared: &BTreeSet<u32>,
        settled: &[u32],
    ) -> Result<(), Notice> {
        let (dot, number) = (entry.head.dot, entry.head.rules);
        let is_open =
            |(change, place): (&Change, u32)| change.keyspace == Keyspace::Client && !settled.contains(&place);
        let is_forgotten = || {
            let is_below = self.rules.oldest_later().is_some_and(|oldest| number < oldest);
            is_below && !entry.changes.iter().zip(0..).any(is_open)
        };
        let is_known = self.rules.knows(number) || declared.contains(&number) || is_forgotten();
        if is_known { Ok(()) } else { Err(Notice::UnknownRules { dot, from, number: Some(number) }) }
    }

    /// Whether an entry may be applied where all up to `reached` is applied. Its origin's entries up to `known` are, which
    /// left `state`.
    fn admit_after(
        &self,
        from: ReplicaId,
        entry: &Entry,
        reached: &VersionVector,
        known: u64,
        state: &OriginState,
        is_added: bool,
    ) -> Result<(), Notice> {
        let head = &entry.head;
        let (dot, origin) = (head.dot, head.dot.origin);
        if head.first_seq == 0 || head.first_seq > dot.seq || entry.changes.is_empty() {
            return Err(Notice::Malformed { dot, from });
        }
        // Only one that stands for others says itself what the chain is after it.
        if (head.first_seq < dot.seq) != head.resulting.is_some() {
            return Err(Notice::Malformed { dot, from });
        }
        if entry.changes.iter().any(|change| change.key.is_empty() || change.local) || origin == Origin::GENESIS {
            return Err(Notice::Malformed { dot, from });
        }
        if let Some(error) = entry.changes.iter().find_map(|change| unknown_rules(change, self.engine)) {
            return Err(Notice::UnknownRules { dot, from, number: error.number() });
        }
        if origin == self.identity.origin() {
            return Err(Notice::OwnTailLost { dot, from });
        }
        if dot.seq <= known {
            // Twice in one step.
            return Err(Notice::Malformed { dot, from });
        }
        if head.first_seq > known + 1 || !reached.covers(&head.depends) {
            return Err(Notice::TooEarly { dot, from });
        }
        let before = match head.first_seq == known + 1 {
            true => Some(state.chain),
            false => self.chain_at(Dot { origin, seq: head.first_seq - 1 }),
        };
        if before.is_some_and(|chain| chain != head.previous) {
            return Err(Notice::Forked { dot, from });
        }
        if self.membership.members.get(origin.replica).is_none() && !is_added {
            return Err(Notice::NotAMember { member: origin.replica, from });
        }
        let depends_on = |vector: &VersionVector| {
            let on_ended = |fence: Fence| {
                state.deps.covers_fence(fence) || head.depends.covers_fence(fence) || {
                    let mut deps = VersionVector::clone(&state.deps);
                    deps.merge(&head.depends);
                    deps.advance(Dot { origin, seq: known });
                    deps.covers_fence(fence)
                }
            };
            vector.fences().all(on_ended)
                && vector.iter().all(|on| {
                    if on.origin == origin {
                        return on.seq < head.first_seq.max(known + 1);
                    }
                    head.depends.contains(on) || state.deps.contains(on)
                })
        };
        // A replica that is alone has settled nothing that another may lack.
        if !self.replication.as_ref().is_none_or(|replication| depends_on(&replication.floor)) {
            return Err(Notice::BelowFloor { dot, from });
        }
        Ok(())
    }

    /// Lets a stamp drag the clock along, within bounds.
    pub(crate) fn witness(&mut self, turn: &mut Turn, origin: Origin, stamp: Stamp) {
        let limit_ms = turn.now.wall_ms.saturating_add(CLOCK_DRAG_MAX_MS);
        if stamp.wall_ms() > limit_ms {
            let ahead_ms = stamp.wall_ms().saturating_sub(turn.now.wall_ms);
            turn.effects.notices.push(Notice::ClockAhead { origin, ahead_ms });
        }
        self.clock.witness_until(stamp, limit_ms);
    }
}

/// How many revisions entries take at most as one step: each key one of its own, or two where another incarnation follows.
fn revisions_of(entries: &[Entry]) -> u64 {
    2 * entries.iter().map(|entry| entry.changes.len() as u64).sum::<u64>()
}

/// Why a build with that engine cannot merge by the rules that a change declares.
pub(crate) fn unknown_rules(change: &Change, engine: u32) -> Option<UnknownRules> {
    if change.keyspace != Keyspace::System {
        return None;
    }
    match (SystemKey::decode(&change.key)?, &change.kind) {
        (SystemKey::Rules(number), ChangeKind::Put { value, .. }) => match Rules::decode(value, engine) {
            Ok(rules) => (rules.number != number).then_some(UnknownRules::Unreadable),
            Err(error) => Some(error),
        },
        (SystemKey::Rules(_) | SystemKey::RulesUp(_), ChangeKind::Expire)
        | (SystemKey::Rules(FIRST), ChangeKind::Delete) => Some(UnknownRules::Unreadable),
        _ => None,
    }
}

/// The number of the rules that a change declares, if it is such a change.
fn declared_rules(change: &Change) -> Option<u32> {
    match SystemKey::decode(&change.key) {
        Some(SystemKey::Rules(number)) if change.keyspace == Keyspace::System => Some(number),
        _ => None,
    }
}

/// The member that a change makes known, if it is such a change.
fn added_member(change: &Change) -> Option<ReplicaId> {
    match SystemKey::decode(&change.key) {
        Some(SystemKey::Member(id)) if change.keyspace == Keyspace::System => Some(id),
        _ => None,
    }
}
