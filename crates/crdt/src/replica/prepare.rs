//! A unit is prepared aside: the merges that it brings are made before it is applied, a few at a time. Clients write
//! meanwhile; where they write to a key of the unit, that key is merged again. So the turn that applies a unit merges next
//! to nothing, however many keys were written at both sides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::entry::Entry;
use crate::merge::version::Version;
use crate::merge::window::Window;
use crate::replica::Replica;
use crate::replica::origins::OriginState;
use crate::replica::prepared::{Prepared, Preparing};
use crate::words::id::{Dot, Origin};
use crate::words::key::{Key, Keyspace};

/// As so many keys counts one whose versions have to be merged.
const MERGE: usize = 16;

/// A unit that is being prepared.
#[derive(Debug)]
pub(crate) struct Unit {
    entries: Vec<Entry>,
    /// The versions that it brings of keys that may have to be merged, in its order, as far as these were not looked at.
    waiting: BTreeMap<Key, Vec<Version>>,
    preparing: Preparing,
}

impl Unit {
    /// Entries that are to be applied as one step by that replica.
    pub(crate) fn new(replica: &Replica, entries: Vec<Entry>) -> Self {
        let own = replica.identity().origin();
        let mut origins: BTreeMap<Origin, OriginState> = BTreeMap::new();
        let mut waiting: BTreeMap<Key, Vec<Version>> = BTreeMap::new();
        for entry in &entries {
            let origin = entry.head.dot.origin;
            let state = || replica.origins.get(own, origin).cloned().unwrap_or_default();
            let state = origins.entry(origin).or_insert_with(state);
            state.depend(&entry.head.depends);
            for change in entry.net().into_iter().filter(|change| change.keyspace == Keyspace::Client) {
                let version = Version::new(&entry.head, Arc::clone(&state.deps), change);
                waiting.entry(change.key.clone()).or_default().push(version);
            }
        }
        // All others follow what is here.
        waiting.retain(|key, versions| versions.len() > 1 || replica.window(Keyspace::Client, key).is_some());
        Self { entries, waiting, preparing: Preparing::by(&replica.rules) }
    }

    /// Goes on with the merges, about as far as that many keys. Tells whether all are made.
    pub(crate) fn go_on(&mut self, replica: &Replica, keys: usize) -> bool {
        let mut left = keys;
        while left > 0
            && let Some((key, versions)) = self.waiting.pop_first()
        {
            let mut window = match replica.window(Keyspace::Client, &key) {
                Some(open) => open.window.clone(),
                None => Window::new(replica.state.recorded(Keyspace::Client, &key).map(|recorded| recorded.live)),
            };
            let here: BTreeSet<Dot> = window.versions().iter().map(|version| version.dot).collect();
            let is_news =
                |version: &Version| !replica.origins.vector.contains(version.dot) && !here.contains(&version.dot);
            versions.into_iter().filter(is_news).for_each(|version| window.add(version));
            let merged = self.preparing.foresee(key, &window);
            left = left.saturating_sub(if merged { MERGE } else { 1 });
        }
        self.waiting.is_empty()
    }

    /// The entries, and what was prepared.
    pub(crate) fn done(self) -> (Vec<Entry>, Prepared) {
        (self.entries, self.preparing.done())
    }
}
