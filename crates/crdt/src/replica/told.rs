//! Which losses were told: each is told once at each replica, however often merges of the same window meet it again.
//!
//! A loss is a part of one version. Only versions in a window are merged, so what was told of others is forgotten.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::command::notice::{GivenUp, Part};
use crate::merge::book::RuleBook;
use crate::merge::window::Window;
use crate::merge::windows::Windows;
use crate::words::id::Dot;
use crate::words::key::{Key, Keyspace, Place};
use crate::words::vector::VersionVector;

/// So many more than twice what was needed when it was looked last are remembered before it is looked again: a look takes
/// all of them.
const SLACK: usize = 1024;

/// The losses that were told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Told {
    /// Of each key: the versions, with a hash of the part.
    losses: HashMap<Place, BTreeSet<(Dot, u64)>>,
    count: usize,
    /// How many were needed when it was looked last.
    enough: usize,
    /// What was applied before a restart: a loss between two of these was told then.
    before: VersionVector,
}

impl Told {
    /// That of a replica which applied these entries before a restart.
    pub(crate) fn before(applied: VersionVector) -> Self {
        Self { before: applied, ..Self::default() }
    }

    /// Those of a key's losses that were not told before. From now on they were.
    pub(crate) fn news(
        &mut self,
        keyspace: Keyspace,
        key: &Key,
        given_up: &[GivenUp],
        windows: &Windows,
        book: &RuleBook,
    ) -> Vec<GivenUp> {
        let before = &self.before;
        let of_key = match self.losses.entry((keyspace, key.clone())) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let known = losses_before(before, keyspace, key, windows, book);
                self.count += known.len();
                vacant.insert(known)
            }
        };
        let mut news = vec![];
        for given in given_up {
            let was_before = |dot: Dot| before.contains(dot);
            if was_before(given.dot) && given.stands.as_ref().is_none_or(|stands| was_before(stands.dot)) {
                continue;
            }
            if of_key.insert((given.dot, hash(&given.part))) {
                self.count += 1;
                news.push(given.clone());
            }
        }
        if self.count + self.losses.len() > 2 * self.enough + SLACK {
            self.forget(windows);
        }
        news
    }

    /// Forgets what no merge can meet again.
    fn forget(&mut self, windows: &Windows) {
        self.losses.retain(|(keyspace, key), of_key| {
            of_key.retain(|(dot, _)| windows.holds(*keyspace, key, *dot));
            windows.get(*keyspace, key).is_some()
        });
        self.count = self.losses.values().map(BTreeSet::len).sum();
        self.enough = self.count + self.losses.len();
    }

    /// How many are remembered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

/// The losses that the key's window had before the restart: they were told then, whatever stands there since. `applied` is
/// what was here before it.
fn losses_before(
    applied: &VersionVector,
    keyspace: Keyspace,
    key: &[u8],
    windows: &Windows,
    book: &RuleBook,
) -> BTreeSet<(Dot, u64)> {
    let Some(open) = windows.get(keyspace, key) else { return BTreeSet::new() };
    let versions = || open.window.versions().iter().filter(|version| applied.contains(version.dot));
    if versions().nth(1).is_none() {
        return BTreeSet::new();
    }
    let mut window = Window::new(open.window.base().cloned());
    versions().for_each(|version| window.add(version.clone()));
    let given_up = window.outcome(book, keyspace, key).given_up;
    given_up.iter().map(|given| (given.dot, hash(&given.part))).collect()
}

fn hash(part: &Part) -> u64 {
    let mut hasher = DefaultHasher::new();
    part.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::notice::Said;
    use crate::words::clock::Stamp;
    use crate::words::id::{Birth, Origin, ReplicaId};

    fn loss(seq: u64, field: &str) -> GivenUp {
        let origin = Origin { replica: ReplicaId::new(1), birth: Birth::new(1) };
        let part = Part::Field(field.to_owned());
        GivenUp { dot: Dot { origin, seq }, part, stamp: Stamp::default(), said: Said::Nothing, stands: None }
    }

    #[test]
    fn a_loss_is_news_once_and_what_is_settled_is_forgotten() {
        let (mut told, windows) = (Told::default(), Windows::default());
        let mut news = |seq, field: &str| {
            let key = Key::copy_from_slice(b"k");
            (told.news(Keyspace::Client, &key, &[loss(seq, field)], &windows, &RuleBook::default()).len(), told.len())
        };
        assert_eq!([news(1, ".a"), news(1, ".a"), news(1, ".b"), news(2, ".a")], [(1, 1), (0, 1), (1, 2), (1, 3)]);
        let most = (3..10_000).map(|seq| news(seq, ".a").1).max();
        assert!(most <= Some(SLACK), "no window holds any of these versions");
    }
}
