//! What may leave: versions that nobody can tell any more from those that stand for them.
//!
//! A version `v` may go, and a later one `s` of its run stands for it, when no version can have `v` in its past but not
//! `s`. That holds for versions that are known here and for those still to come. It is known when each member that may
//! lack `s` surely lacks `v`, too, and no member with `s` has sent `v` to it. A member with `s` sends `v` only together
//! with `s` (see [`super::marks`]). The log drops the entry of a version that left. The next entry of the same origin
//! then stands for both entries. See DESIGN 2, "What may leave".

use std::collections::BTreeSet;

use crate::entry::Change;
use crate::merge::version::Version;
use crate::merge::windows::Around;
use crate::replica::Replica;
use crate::replica::marks::{Mark, Statement};
use crate::store::system::SystemKey;
use crate::words::clock::Now;
use crate::words::id::{Dot, Origin, ReplicaId};
use crate::words::key::{Key, Keyspace};
use crate::words::vector::VersionVector;

/// From this many unsettled versions of a key on, the replica looks for versions that nobody needs.
const LOOK_FROM: usize = 4;

/// From this many on it does so even if entries are streamed to all. Where members write a key all the time, and each hears
/// of the others a little late, no version is below all that are not settled. So nothing settles. But what all members have
/// may leave.
pub(super) const BRAID: usize = 16;

/// How often it looks at keys that have fewer, or too few new ones, milliseconds.
const LOOK_EVERY_MS: u64 = 100;

/// About how many versions it looks at then.
const LOOK_PACE: usize = 1024;

/// About how many it looks at before entries are streamed to a member that none were streamed to. What leaves before that
/// is not sent.
const LAST_LOOK_PACE: usize = 4 * LOOK_PACE;

/// What a version of a Kubernetes object counts for: it is parsed.
const PARSED: usize = 8;

/// What leaves.
#[derive(Default)]
struct LeftOut {
    dots: BTreeSet<Dot>,
    /// What becomes of the bases of keys around versions of them.
    bases: Vec<(Keyspace, Key, Dot, Around)>,
}

/// What is known of a member.
struct Knows<'a> {
    id: ReplicaId,
    /// The origin of its entries; `None` where its birth is not known.
    origin: Option<Origin>,
    /// What it has on disk; of this replica, what it has applied.
    has: Option<&'a VersionVector>,
    /// What it says of its marks; `None` for this replica.
    said: Option<&'a Statement>,
}

impl Replica {
    /// Whether entries are kept for a member that none are streamed to: only then something may leave.
    fn keeps_for_someone(&self, counting: &[ReplicaId]) -> bool {
        counting.iter().any(|member| *member != self.identity.replica && self.marks.is_cut_off(*member))
    }

    /// Lets go what may leave of a key, if it has so many versions that it is worth a look.
    pub(crate) fn leave(&mut self, keyspace: Keyspace, key: &Key) {
        let Some(replication) = &self.replication else { return };
        let Some(open) = replication.windows.get(keyspace, key) else { return };
        let len = open.window.versions().len();
        if replication.hold_until_ms.is_some() {
            return;
        }
        // Looking at all versions at every write would cost more than it saves.
        if len >= LOOK_FROM.max(2 * open.stayed) {
            let counting = self.membership.counting();
            let keeps = len >= BRAID || self.keeps_for_someone(&counting);
            self.look(&counting, keeps, keyspace, key);
        } else if len > open.stayed + open.stayed / 8 && len > 1 && self.marks.is_anyone_cut_off() {
            let Some(replication) = &mut self.replication else { return };
            replication.grown.insert((keyspace, key.clone()));
        }
    }

    /// When it is to look again at keys that have grown little, milliseconds of the monotonic clock.
    pub(crate) fn next_look_ms(&self) -> Option<u64> {
        let replication = self.replication.as_ref()?;
        let waits = replication.hold_until_ms.is_none() && !replication.grown.is_empty();
        waits.then(|| replication.looked_ms.saturating_add(LOOK_EVERY_MS))
    }

    /// Looks at keys that have grown little, if it is time to.
    pub(crate) fn leave_in_time(&mut self, now: Now) {
        if self.next_look_ms().is_some_and(|at_ms| at_ms <= now.mono_ms) {
            self.leave_some(LOOK_PACE);
            if let Some(replication) = &mut self.replication {
                replication.looked_ms = now.mono_ms;
            }
        }
    }

    /// Looks at some of them a last time: entries are about to be streamed to a member.
    pub(crate) fn leave_before_stream(&mut self, member: ReplicaId) {
        let may_leave = self.replication.as_ref().is_some_and(|replication| replication.hold_until_ms.is_none());
        if may_leave && self.marks.is_cut_off(member) {
            self.leave_some(LAST_LOOK_PACE);
        }
    }

    /// Looks at keys that have grown little, about so many versions.
    fn leave_some(&mut self, pace: usize) {
        let counting = self.membership.counting();
        let keeps = self.keeps_for_someone(&counting);
        let mut left = pace;
        while left > 0
            && let Some(replication) = &mut self.replication
            && let Some((keyspace, key)) = replication.grown.pop_first()
        {
            let Some(open) = replication.windows.get(keyspace, &key) else { continue };
            let len = open.window.versions().len();
            let each = if self.rules.current().is_kubernetes(keyspace, &key) { PARSED } else { 1 };
            let beside = self.look(&counting, keeps || len >= BRAID, keyspace, &key);
            left = left.saturating_sub(each * (len + beside));
        }
    }

    /// Lets go what may leave of a key, and notes how much stays. Tells how many versions of other keys it looked at for that.
    fn look(&mut self, counting: &[ReplicaId], keeps: bool, keyspace: Keyspace, key: &Key) -> usize {
        let (left, looked_at) = if keeps { self.leave_now(counting, keyspace, key) } else { Default::default() };
        let Some(replication) = &mut self.replication else { return looked_at };
        replication.grown.remove(&(keyspace, key.clone()));
        replication.windows.note_stayed(keyspace, key);
        for dot in left.dots {
            if let Some(gone) = replication.log.leave_out(dot) {
                self.journal.leave(gone.number, dot);
            }
        }
        for (keyspace, key, dot, around) in left.bases {
            if let Some(number) = replication.log.note_bases(dot, keyspace, &key, around) {
                self.journal.say_bases(number);
            }
        }
        looked_at
    }

    /// Looks again at the keys of what all members are known to have that entries are streamed to: what these entries
    /// were written over may leave now.
    pub(crate) fn leave_what_was_heard(&mut self) {
        let counting = self.membership.counting();
        if !self.keeps_for_someone(&counting) {
            return;
        }
        let mut heard = self.origins.vector.clone();
        for member in counting.iter().filter(|member| **member != self.identity.replica) {
            if !self.marks.is_cut_off(*member) {
                let acks = &self.membership.acks;
                heard = acks.of(*member, self.birth_of(*member)).map(|ack| heard.meet(ack)).unwrap_or_default();
            }
        }
        let Some(replication) = &mut self.replication else { return };
        let mut keys = BTreeSet::new();
        for Dot { origin, seq } in heard.iter() {
            let from = replication.looked_upto.get(origin);
            let news = replication
                .log
                .of(origin, from.saturating_add(1))
                .take_while(|logged| logged.entry.head.dot.seq <= seq);
            keys.extend(
                news.flat_map(|logged| &logged.entry.changes).map(|change| (change.keyspace, change.key.clone())),
            );
        }
        replication.looked_upto.merge(&heard);
        for (keyspace, key) in keys {
            self.leave(keyspace, &key);
        }
    }

    /// Takes what may leave out of the key's window. An entry that did several things leaves only as a whole: when its
    /// versions of the other keys may leave as well. These are taken out, too. Tells what left, and how many versions of other
    /// keys it looked at.
    fn leave_now(&mut self, counting: &[ReplicaId], keyspace: Keyspace, key: &Key) -> (LeftOut, usize) {
        let here = (keyspace, key.clone());
        let alone = self.needless(counting, &here, &|dot| self.changes_beside(dot, &here).next().is_none());
        let mut left = LeftOut { dots: alone.iter().copied().collect(), bases: vec![] };
        self.take_out(&here, &alone, &mut left);
        let (whole, looked_at) = self.needless_together(counting, &here);
        left.dots.extend(&whole);
        for key in self.keys_of(&whole) {
            self.take_out(&key, &whole, &mut left);
        }
        (left, looked_at)
    }

    /// The entries that did several things, one of them to that key, and all of whose versions may leave. What is needless is so
    /// together with all else that goes. So each key is asked again until all say of the same entries that they may leave.
    /// Tells how many versions it looked at.
    fn needless_together(&mut self, counting: &[ReplicaId], here: &(Keyspace, Key)) -> (BTreeSet<Dot>, usize) {
        let Some(replication) = &self.replication else { return (BTreeSet::new(), 0) };
        let window = replication.windows.get(here.0, &here.1).map(|open| &open.window);
        let dots = window.into_iter().flat_map(|window| window.versions()).map(|version| version.dot);
        // What settled of it is in the base of a key, and the log has to say so.
        let several: Vec<Dot> = dots
            .filter(|dot| !replication.floor.contains(*dot) && self.changes_beside(*dot, here).next().is_some())
            .collect();
        // One that something stands of needs no look at all the others.
        let over: BTreeSet<Dot> = several.into_iter().filter(|dot| self.is_all_written_over(*dot)).collect();
        if over.is_empty() {
            return (BTreeSet::new(), 0);
        }
        let mut whole: BTreeSet<Dot> = self.needless(counting, here, &|dot| over.contains(&dot)).into_iter().collect();
        let mut looked_at = 0;
        loop {
            let before = whole.len();
            for key in self.keys_of(&whole) {
                let needless = self.needless(counting, &key, &|dot| whole.contains(&dot));
                let window = self.window(key.0, &key.1);
                let versions = window.map(|open| open.window.versions()).unwrap_or_default();
                looked_at += versions.len();
                for version in versions.iter().filter(|version| !needless.contains(&version.dot)) {
                    whole.remove(&version.dot);
                }
            }
            if whole.len() == before {
                return (whole, looked_at);
            }
        }
    }

    /// What an entry changed besides one key. Asked of each version at each look, so nothing is copied.
    fn changes_beside<'a>(&'a self, dot: Dot, here: &'a (Keyspace, Key)) -> impl Iterator<Item = &'a Change> {
        let logged = self.replication.as_ref().and_then(|replication| replication.log.get(dot));
        let changes = logged.map(|logged| &logged.entry.changes[..]).unwrap_or_default();
        changes.iter().filter(move |change| (change.keyspace, &change.key) != (here.0, &here.1))
    }

    /// The keys that entries changed.
    fn keys_of(&self, dots: &BTreeSet<Dot>) -> BTreeSet<(Keyspace, Key)> {
        let log = self.replication.as_ref().map(|replication| &replication.log);
        let entries = dots.iter().filter_map(|dot| log?.get(*dot));
        entries.flat_map(|logged| &logged.entry.changes).map(|change| (change.keyspace, change.key.clone())).collect()
    }

    /// Takes versions out of a key's window, and notes what becomes of bases.
    fn take_out<'a>(
        &mut self,
        (keyspace, key): &(Keyspace, Key),
        dots: impl IntoIterator<Item = &'a Dot>,
        left: &mut LeftOut,
    ) {
        if let Some(replication) = &mut self.replication {
            let dots: Vec<Dot> = dots.into_iter().copied().collect();
            let bases = replication.windows.take_out(*keyspace, key, &dots);
            left.bases.extend(bases.into_iter().map(|(dot, around)| (*keyspace, key.clone(), dot, around)));
            // What had to wait for one of them may settle now.
            let next = replication.windows.get(*keyspace, key).and_then(|open| open.window.versions().first());
            if next.is_some_and(|next| replication.floor.contains(next.dot)) {
                replication.to_settle.insert((*keyspace, key.clone()));
            }
        }
    }

    /// Whether all that an entry changed was written over. It may have changed very many keys, and is asked about at each look
    /// at each of them: so it is noted how far that is known.
    fn is_all_written_over(&mut self, dot: Dot) -> bool {
        let Some(logged) = self.replication.as_ref().and_then(|replication| replication.log.get(dot)) else {
            return false;
        };
        let (number, known, all) = (logged.number, logged.written_over, logged.entry.changes.len());
        let rest = logged.entry.changes.iter().skip(known);
        let more = rest.take_while(|change| self.is_written_over(change.keyspace, &change.key, dot)).count();
        if let Some(replication) = self.replication.as_mut().filter(|_| more > 0) {
            replication.log.note_written_over(number, known + more);
        }
        known + more == all
    }

    /// Whether there is a version of the key that descends from that one.
    fn is_written_over(&self, keyspace: Keyspace, key: &Key, dot: Dot) -> bool {
        let window = self.window(keyspace, key).map(|open| &open.window);
        window.is_some_and(|window| window.versions().iter().rev().any(|later| later.descends_from(dot)))
    }

    /// The versions of a key that may leave together, of those that `may_go`.
    fn needless(
        &self,
        counting: &[ReplicaId],
        (keyspace, key): &(Keyspace, Key),
        may_go: &dyn Fn(Dot) -> bool,
    ) -> Vec<Dot> {
        let Self { identity, membership, marks, origins, replication, rules, .. } = self;
        let Some(replication) = replication else { return vec![] };
        let Some(open) = replication.windows.get(*keyspace, key) else { return vec![] };
        let (acks, members) = (&membership.acks, &membership.members);
        let nothing = Statement::default();
        let known: Vec<Knows<'_>> = counting
            .iter()
            .map(|id| {
                if *id == identity.replica {
                    return Knows { id: *id, origin: Some(identity.origin()), has: Some(&origins.vector), said: None };
                }
                let origin = acks.origin_of(*id, members.birth_of(*id));
                let said = origin.and_then(|origin| acks.said(origin)).unwrap_or(&nothing);
                Knows { id: *id, origin, has: origin.and_then(|origin| acks.counted().get(&origin)), said: Some(said) }
            })
            .collect();
        let (ends, log) = (self.unsettled_ends(), &replication.log);
        let may_leave = |version: &Version, successor: &Version| {
            may_go(version.dot)
                && log.may_leave_out(version.dot)
                && is_needless(&known, marks, &ends, version, successor)
        };
        open.window.needless(rules, self.lowest_to_come(), *keyspace, key, may_leave)
    }

    /// The ends of births, and removals of members, that are not settled. What an ended birth told a member alone is not
    /// known before that member has heard of the end.
    fn unsettled_ends(&self) -> Vec<Dot> {
        let Some(replication) = &self.replication else { return vec![] };
        let system = replication
            .windows
            .system()
            .filter(|(key, _)| matches!(SystemKey::decode(key), Some(SystemKey::Birth(_) | SystemKey::Removed(_))));
        system.flat_map(|(_, open)| open.window.versions()).map(|version| version.dot).collect()
    }
}

/// Whether no version can have `version` in its past and not `successor`.
fn is_needless(
    known: &[Knows<'_>],
    marks: &super::marks::Marks,
    ends: &[Dot],
    version: &Version,
    successor: &Version,
) -> bool {
    let has = |member: &Knows<'_>, dot: Dot| member.has.is_some_and(|has| has.contains(dot));
    let heard_of_ends = |member: &Knows<'_>| ends.iter().all(|end| version.descends_from(*end) || has(member, *end));
    if !known.iter().all(heard_of_ends) {
        return false;
    }
    let (have, lack): (Vec<_>, Vec<_>) = known.iter().partition(|member| has(member, successor.dot));
    if lack.is_empty() {
        return true;
    }
    let is_kept_from = |from: &Knows<'_>, to: &Knows<'_>| match from.said {
        None => matches!(marks.of(to.id), Mark::Upto(upto) if !upto.contains(version.dot)),
        Some(said) => {
            let upto = said.upto.as_ref().and_then(|upto| upto.get(&to.id));
            upto.is_some_and(|upto| !upto.contains(version.dot))
        }
    };
    have.iter().any(|member| member.origin == Some(version.dot.origin))
        && lack.iter().all(|to| !has(to, version.dot) && have.iter().all(|from| is_kept_from(from, to)))
}
