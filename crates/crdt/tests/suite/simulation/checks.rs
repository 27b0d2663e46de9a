//! What must hold at every step, whatever happens: of one replica, and between all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use eddy_crdt::merge::{Version, Window, Windows};
use eddy_crdt::{Birth, Chain, Commit, Dot, Key, Keyspace, Live, Origin, Replica, ReplicaId, Revision, VersionVector};

use super::host::Checkpoint;
use crate::support::checks::{ensure, everything, same};
use crate::support::disk::Disk;
use crate::support::past;
use crate::support::shadow::Shadow;

/// How often what happened; so that a simulation cannot silently test nothing.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Coverage(pub BTreeMap<&'static str, u64>);

impl Coverage {
    pub fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

/// What is known of all entries that ever were durable anywhere.
#[derive(Default)]
pub struct Ledger {
    /// What each entry depends on.
    deps: HashMap<Dot, VersionVector>,
    /// Its origin's chain hash up to it.
    chains: HashMap<Dot, Chain>,
    /// The state hash at each vector.
    hashes: HashMap<VersionVector, u128>,
    /// Under which birth a member counted in a space.
    spaces: HashMap<(ReplicaId, u64), Birth>,
    /// How often a member counted in a space in which it had counted under another birth.
    pub shared_spaces: u64,
    /// From where on the names of an origin mean two things, because its disk was exchanged for an older copy.
    forked: BTreeMap<Origin, u64>,
}

impl Ledger {
    /// An entry was made; it is not durable.
    pub fn made(&mut self, dot: Dot, mut deps: VersionVector) {
        deps.remove(dot.origin);
        self.deps.insert(dot, deps);
    }

    /// From there on an origin's names may mean two things.
    pub fn forks(&mut self, origin: Origin, from: u64) {
        let before = self.forked.entry(origin).or_insert(from);
        *before = (*before).min(from);
    }

    fn is_forked(&self, dot: Dot) -> bool {
        self.forked.get(&dot.origin).is_some_and(|from| dot.seq >= *from)
    }

    /// A replica applied entries: whatever they depend on, it must have applied too.
    pub fn applied(&self, before: &VersionVector, after: &VersionVector) -> Result<(), String> {
        for newest in after.iter() {
            for seq in before.get(newest.origin) + 1..=newest.seq {
                let dot = Dot { seq, ..newest };
                let Some(deps) = self.deps.get(&dot).filter(|_| !self.is_forked(dot)) else { continue };
                ensure!(after.covers(deps), "{dot:?} was applied before what it depends on: {deps:?}, has {after:?}");
            }
        }
        Ok(())
    }

    /// Something became durable at a replica: names are unique, and equal vectors are equal states.
    pub fn durable(&mut self, replica: &Replica, state: &Checkpoint) -> Result<(), String> {
        for dot in state.vector.iter() {
            let Some(chain) = replica.chain_at(dot) else { continue };
            if *self.chains.entry(dot).or_insert(chain) == chain || self.is_forked(dot) {
                continue;
            }
            return Err(format!("two entries are called {dot:?}"));
        }
        if let Some(Origin { replica: member, birth }) = state.origin {
            let space = state.shadow.revision.space();
            let counted = *self.spaces.entry((member, space)).or_insert(birth);
            // One that founds a cluster alone begins with 1, as etcd does, and does not know that it had a disk before.
            if counted != birth && space > 0 {
                self.shared_spaces += 1;
                self.spaces.insert((member, space), birth);
            }
        }
        if state.vector.iter().any(|dot| self.is_forked(dot)) {
            return Ok(());
        }
        let hash = *self.hashes.entry(state.vector.clone()).or_insert(state.hash);
        ensure!(hash == state.hash, "equal vectors, different states: {:?}", state.vector);
        Ok(())
    }
}

/// The replica shows what its commits gave.
pub fn shows(replica: &Replica, shadow: &Shadow) -> Result<(), String> {
    same(&everything(replica), &shadow.kvs.values().cloned().collect(), "keys and what the commits made of them")?;
    same(&replica.revision(), &shadow.revision, "revision and that of the last commit")
}

/// A client that watches from the oldest revision that is not compacted hears what one heard that watched all the time.
pub fn history(replica: &Replica, disk: &Disk, told: &BTreeMap<Revision, Commit>) -> Result<(), String> {
    let Some((newest, _)) = told.last_key_value() else { return Ok(()) };
    let from = replica.compacted().map_or(Revision::FIRST, Revision::next);
    let plain = |commit: &Commit| {
        let mut commit = commit.clone();
        // What was there before may be compacted.
        for event in &mut commit.events {
            event.prev.take_if(|prev| Some(prev.mod_revision) <= replica.compacted());
        }
        commit
    };
    let now: Vec<Commit> = past::events(disk, replica, from, *newest, 64).iter().map(plain).collect();
    let then: Vec<Commit> = told.range(from..).map(|(_, commit)| plain(commit)).collect();
    // Before the first that was told, this process may not have been there.
    let first = then.first().map_or(*newest, |commit| commit.revision);
    let now: Vec<Commit> = now.into_iter().filter(|commit| commit.revision >= first).collect();
    same(&now, &then, "watch events")
}

/// Keys that are written once and never deleted.
pub fn marks(shadow: &Shadow) -> BTreeSet<Bytes> {
    shadow.kvs.keys().filter(|key| key.starts_with(MARK)).cloned().collect()
}

/// What those keys begin with.
pub const MARK: &[u8] = b"~mark/";

/// What a window's first versions make of its base, where the others are those of a later window. What that replica has left out of
/// its log counts for nothing.
fn below(
    window: &Window,
    later: &Window,
    replica: &Replica,
    (keyspace, key): &(Keyspace, Key),
) -> Option<Option<Live>> {
    let left = |dot| replica.log().and_then(|log| log.get(dot)).is_some_and(|logged| logged.entry.head.dot != dot);
    let kept: Vec<&Version> = window.versions().iter().filter(|version| !left(version.dot)).collect();
    let (settled, others) = kept.split_at_checked(kept.len().checked_sub(later.versions().len())?)?;
    let mut first = Window::new(window.base().cloned());
    settled.iter().for_each(|version| first.add((*version).clone()));
    let is_later = others.iter().copied().eq(later.versions());
    is_later.then(|| first.outcome(replica.rules(), *keyspace, key).live)
}

/// All windows.
pub fn windows(replica: &Replica) -> BTreeMap<(Keyspace, Key), Window> {
    let windows = replica.windows().into_iter().flat_map(Windows::iter);
    windows.map(|(keyspace, key, open)| ((keyspace, key.clone()), open.window.clone())).collect()
}

/// A start finds the base again on which the same versions stood before, or what those made of it that stand there no more.
pub fn bases(replica: &Replica, found: &Checkpoint, expected: &Checkpoint) -> Result<(), String> {
    for (key, window) in &found.windows {
        let base = window.base();
        // What is kept alive is there although what settled says that it expired: a lease, or a key under one.
        let is_lease = key.0 == Keyspace::System && key.1.starts_with(b"l");
        let is_kept_alive = is_lease || base.is_some_and(|base| base.lease.is_some());
        let Some(before) = expected.windows.get(key).filter(|_| !is_kept_alive) else { continue };
        // What lies below a version that all others stand on counts for nothing.
        let hides = window.versions().split_first();
        if hides.is_some_and(|(first, others)| others.iter().all(|other| other.descends_from(first.dot))) {
            continue;
        }
        let Some(below) = below(before, window, replica, key) else { continue };
        let dots: Vec<Dot> = window.versions().iter().map(|version| version.dot).collect();
        same(&base.cloned(), &below, format_args!("base of {key:?} below {dots:?} after a restart"))?;
    }
    Ok(())
}

/// The keys whose windows have several heads somewhere, with how many versions each has.
pub fn branched(replica: &Replica) -> Vec<(Keyspace, Key, usize)> {
    let windows = replica.windows().into_iter().flat_map(Windows::iter).filter(|(_, _, open)| !open.window.is_chain());
    windows.map(|(keyspace, key, open)| (keyspace, key.clone(), open.window.versions().len())).collect()
}

/// What became of those.
pub fn settled(replica: &Replica, before: &[(Keyspace, Key, usize)]) -> Vec<&'static str> {
    let what = |(keyspace, key, len): &(_, Key, usize)| match replica
        .windows()
        .and_then(|windows| windows.get(*keyspace, key))
    {
        None => Some("multi-head settles"),
        Some(open) if open.window.versions().len() < *len => Some("multi-head settles with versions on top"),
        Some(_) => None,
    };
    before.iter().filter_map(what).collect()
}
