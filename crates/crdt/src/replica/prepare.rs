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

/// What an entry counts for, and a key of which only one version comes, that follows what is here. A key with several, and
/// one of which these have to be merged, count for more.
const ENTRY: usize = 1;
const KEY: usize = 4;
const MERGE: usize = 64;

/// A unit that is being prepared.
#[derive(Debug)]
pub(crate) struct Unit {
    entries: Vec<Entry>,
    /// How many of them were looked at.
    looked_at: usize,
    /// How far these bring their origins, and what is known of the origins there. `None` where entries before these have not
    /// been applied yet: what their versions descend from cannot be told, and they are merged when they are applied.
    origins: BTreeMap<Origin, Option<(u64, OriginState)>>,
    /// The versions that these bring, in the unit's order, by the keys that were not looked at.
    waiting: BTreeMap<Key, Vec<Version>>,
    preparing: Preparing,
}

impl Unit {
    /// Entries that are to be applied as one step by that replica.
    pub(crate) fn new(replica: &Replica, entries: Vec<Entry>) -> Self {
        let preparing = Preparing::by(&replica.rules);
        Self { entries, looked_at: 0, origins: BTreeMap::new(), waiting: BTreeMap::new(), preparing }
    }

    /// Goes on, about as far as that many keys with several versions, or more entries. Tells whether all is prepared.
    pub(crate) fn go_on(&mut self, replica: &Replica, keys: usize) -> bool {
        let pace = keys.saturating_mul(KEY);
        let mut left = pace.saturating_sub(ENTRY * self.look_at_entries(replica, pace / ENTRY));
        while left > 0
            && let Some((key, versions)) = self.waiting.pop_first()
        {
            let open = replica.window(Keyspace::Client, &key);
            if versions.len() == 1 && open.is_none() {
                // It follows what is here.
                left = left.saturating_sub(ENTRY);
                continue;
            }
            let mut window = match open {
                Some(open) => open.window.clone(),
                None => Window::new(replica.state.recorded(Keyspace::Client, &key).map(|recorded| recorded.live)),
            };
            let here: BTreeSet<Dot> = window.versions().iter().map(|version| version.dot).collect();
            let is_news =
                |version: &Version| !replica.origins.vector.contains(version.dot) && !here.contains(&version.dot);
            versions.into_iter().filter(is_news).for_each(|version| window.add(version));
            let merged = self.preparing.foresee(key, &window);
            left = left.saturating_sub(if merged { MERGE } else { KEY });
        }
        self.looked_at == self.entries.len() && self.waiting.is_empty()
    }

    /// Notes the versions and the chains of the next entries, at most so many. Tells how many these were.
    fn look_at_entries(&mut self, replica: &Replica, count: usize) -> usize {
        let own = replica.identity().origin();
        let next = self.entries.iter().skip(self.looked_at).take(count);
        let mut looked_at = 0;
        for entry in next {
            looked_at += 1;
            let Dot { origin, seq } = entry.head.dot;
            let here = || {
                let state = replica.origins.get(own, origin).cloned().unwrap_or_default();
                Some((replica.origins.vector.get(origin), state))
            };
            let known = self.origins.entry(origin).or_insert_with(here);
            if known.as_ref().is_some_and(|(upto, _)| entry.head.first_seq > upto + 1) {
                *known = None;
            }
            let Some((upto, state)) = known.as_mut().filter(|(upto, _)| *upto < seq) else { continue };
            *upto = seq;
            state.depend(&entry.head.depends);
            state.chain = self.preparing.chain(state.chain, entry);
            for change in entry.net().into_iter().filter(|change| change.keyspace == Keyspace::Client) {
                let version = Version::new(&entry.head, Arc::clone(&state.deps), change);
                self.waiting.entry(change.key.clone()).or_default().push(version);
            }
        }
        self.looked_at += looked_at;
        looked_at
    }

    /// The entries, and what was prepared.
    pub(crate) fn done(self) -> (Vec<Entry>, Prepared) {
        (self.entries, self.preparing.done())
    }
}
