//! Recovers writes that a member has settled and that the giver of its snapshot does not know.
//!
//! What is settled is in no log, because all members have it. All but this one can lose it only with their disks:
//! - One that was the only member in its own view settled what it wrote at once. There may be others all the same, when
//!   its disk was set back to before they were added, or is another one. What it wrote then is in its keys, revision by
//!   revision as far as it is not compacted. Only the stamps are lost; the incarnations of keys give a lower bound of
//!   them.
//! - Other members that had it went on from a disk without it. Then a key here may have an incarnation that an entry
//!   began which the giver does not know. What else such entries did cannot be told from later writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::boot::snapshot::rebase::Lost;
use crate::entry::{Change, ChangeKind, Entry, EntryHead, Past};
use crate::merge::rules::FIRST;
use crate::replica::Replica;
use crate::replica::log::Log;
use crate::store::index::KeyVersion;
use crate::store::system::SystemKey;
use crate::words::chain::Chain;
use crate::words::clock::Stamp;
use crate::words::id::{Dot, Origin};
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::value::Incarnation;
use crate::words::vector::VersionVector;

/// What is settled at `old` and not in `known`. That is what `old` wrote while it was alone, as far as that can be
/// told, and incarnations of keys. System keys come first, the rest in the order in which it was written at `old`.
pub(super) fn settled(old: &Replica, known: &VersionVector) -> Vec<Lost> {
    let own = old.identity.origin();
    let (mut stamp, begins) = alone_since(old, known);
    let logged: BTreeSet<u64> = old.log().into_iter().flat_map(Log::iter).map(|logged| logged.number).collect();
    let is_own = |number: u64| begins.is_some_and(|begins| number > begins) && !logged.contains(&number);
    let is_unheard = |began: Dot| old.log_base().contains(began) && !known.contains(began);

    let mut groups: Vec<Vec<Change>> = vec![];
    for (key, value) in old.state.system.iter().filter(|(_, value)| is_own(value.number)) {
        let live = value.recorded().live;
        groups.push(vec![Change::new(Keyspace::System, key.clone(), live.put(), live.incarnation)]);
    }
    // A write to a known incarnation is this member's own. Its entry is not known, but it comes after the known ones.
    let origin_of = |began: Incarnation| if known.contains(began.dot) { own } else { began.dot.origin };
    // A replica that begins anew shows all keys of the snapshot at one revision. So one revision can hold writes of several
    // origins, and each origin's are one entry. Several keys can have the same place in it then.
    let mut entries: BTreeMap<(Revision, Origin, u32, &Key), Change> = BTreeMap::new();
    for (key, versions) in old.state.index.iter().filter(|(key, _)| !old.state.local.contains(key)) {
        let newest = versions.len().saturating_sub(1);
        let wanted = versions.iter().enumerate().filter(|(place, version)| {
            let is_unheard = || *place == newest && version.is_live() && is_unheard(version.incarnation.dot);
            is_own(version.number) || is_unheard()
        });
        entries.extend(wanted.map(|(_, version)| {
            ((version.revision, origin_of(version.incarnation), version.sub, key), change_of(key, version))
        }));
    }
    let mut newest = None;
    for ((revision, origin, ..), change) in entries {
        match groups.last_mut().filter(|_| newest == Some((revision, origin))) {
            Some(group) => group.push(change),
            None => groups.push(vec![change]),
        }
        newest = Some((revision, origin));
    }

    let mut deps = old.vector().clone();
    deps.remove(own);
    let deps = Arc::new(deps);
    let lost = groups.into_iter().map(|changes| {
        let unknown = || changes.iter().map(|change| change.incarnation).filter(|began| !known.contains(began.dot));
        stamp = unknown().map(|began| began.stamp).fold(stamp, Stamp::max);
        let origin = changes.first().map_or(own, |change| origin_of(change.incarnation));
        let dot = Dot { origin, seq: known.get(origin).saturating_add(1) };
        Lost { entry: Arc::new(entry(dot, stamp, changes)), deps: Arc::clone(&deps) }
    });
    lost.collect()
}

/// The entries of `old` that are of forgotten births, where it does not have just what all had of those. What it has settled
/// of them is in its keys: those that are not here in that incarnation. All may have deleted them since, or none of the
/// others ever had them.
pub(super) fn forgotten(replica: &Replica, old: &Replica) -> Vec<Arc<Entry>> {
    let known = &replica.origins.vector;
    let unlike: Vec<_> = known.fences().filter(|fence| !old.origins.vector.covers_fence(*fence)).collect();
    if unlike.is_empty() {
        return vec![];
    }
    let is_unlike = |dot: Dot| unlike.iter().any(|f| f.replica == dot.origin.replica && dot.origin.birth < f.before);
    let logged = old.log().into_iter().flat_map(Log::iter).filter(|logged| is_unlike(logged.entry.head.dot));
    let mut begun: BTreeMap<Dot, (Stamp, Vec<Change>)> = BTreeMap::new();
    for (key, versions) in old.state.index.iter().filter(|(key, _)| !old.state.local.contains(key)) {
        let Some(newest) = versions.last().filter(|newest| newest.is_live()) else { continue };
        let began = newest.incarnation;
        let here = replica.state.index.newest(key).map(|(_, here)| here).filter(|here| here.is_live());
        if is_unlike(began.dot)
            && old.log_base().contains(began.dot)
            && here.is_none_or(|here| here.incarnation != began)
        {
            let (_, changes) = begun.entry(began.dot).or_insert((began.stamp, vec![]));
            changes.push(change_of(key, newest));
        }
    }
    let settled = begun.into_iter().map(|(dot, (stamp, changes))| Arc::new(entry(dot, stamp, changes)));
    logged.map(|logged| Arc::clone(&logged.entry)).chain(settled).collect()
}

/// The record behind which begins what `old` wrote under its present birth, and a stamp that is before all of it. There
/// is no such record unless `old` was alone then and nothing of that birth is known.
fn alone_since(old: &Replica, known: &VersionVector) -> (Stamp, Option<u64>) {
    let own = old.identity.origin();
    if known.get(own) > 0 || old.log_base().get(own) == 0 {
        return (Stamp::default(), None);
    }
    match old.membership.past {
        Past::Known => (Stamp::default(), None),
        Past::Founded => (Stamp::default(), Some(0)),
        Past::Doubtful => {
            let announced = old.state.system.get(&SystemKey::Birth(own.replica).encode());
            announced.map_or((Stamp::default(), None), |value| (value.incarnation.stamp, Some(value.number)))
        }
    }
}

fn entry(dot: Dot, stamp: Stamp, changes: Vec<Change>) -> Entry {
    let head = EntryHead {
        dot,
        first_seq: dot.seq,
        stamp,
        rules: FIRST,
        depends: VersionVector::default(),
        previous: Chain::default(),
        resulting: None,
    };
    Entry { head, changes }
}

fn change_of(key: &Key, version: &KeyVersion) -> Change {
    let kind = version.recorded().map_or(ChangeKind::Delete, |recorded| recorded.live.put());
    Change::new(Keyspace::Client, key.clone(), kind, version.incarnation)
}
