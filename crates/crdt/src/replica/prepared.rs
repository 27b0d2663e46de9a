//! What keys will be once a unit is applied, worked out before.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::entry::Entry;
use crate::merge::book::RuleBook;
use crate::merge::outcome::MergeOutcome;
use crate::merge::window::Window;
use crate::words::chain::Chain;
use crate::words::id::Dot;
use crate::words::key::{Key, Keyspace};
use crate::words::value::Live;

/// A merge that was made ahead: of these versions, on top of that base.
#[derive(Debug)]
struct Foreseen {
    base: Option<Live>,
    dots: Vec<Dot>,
    outcome: MergeOutcome,
}

/// What client keys will be once a unit is applied, where that takes a merge. A window that has become another one since is
/// merged again.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    rules: Arc<RuleBook>,
    keys: Arc<BTreeMap<Key, Foreseen>>,
    chains: Arc<Chains>,
}

/// What an origin's chain hash is before each of its entries, and with it.
type Chains = HashMap<Dot, (Chain, Chain)>;

/// The same in the making.
#[derive(Debug)]
pub(crate) struct Preparing {
    rules: Arc<RuleBook>,
    keys: BTreeMap<Key, Foreseen>,
    chains: Chains,
}

impl Prepared {
    /// What the key is, if just that window was foreseen.
    pub(crate) fn outcome(&self, rules: &Arc<RuleBook>, key: &Key, window: &Window) -> Option<&MergeOutcome> {
        let foreseen = self.keys.get(key)?;
        let is_so = Arc::ptr_eq(&self.rules, rules)
            && window.base() == foreseen.base.as_ref()
            && window.versions().iter().map(|version| version.dot).eq(foreseen.dots.iter().copied());
        is_so.then_some(&foreseen.outcome)
    }

    /// The chain hash with an entry of the unit, where it is `before` without it.
    pub(crate) fn chain(&self, before: Chain, entry: &Entry) -> Chain {
        match self.chains.get(&entry.head.dot) {
            Some((foreseen, after)) if *foreseen == before => *after,
            _ => before.extend(&entry.head, &entry.changes),
        }
    }

    /// How many merges were made.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether none were.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl Preparing {
    /// Nothing yet.
    pub(crate) fn by(rules: &Arc<RuleBook>) -> Self {
        Self { rules: Arc::clone(rules), keys: BTreeMap::new(), chains: HashMap::new() }
    }

    /// Merges a window as it will be, where that takes a merge. Tells whether it did.
    pub(crate) fn foresee(&mut self, key: Key, window: &Window) -> bool {
        if window.is_chain() {
            return false;
        }
        let outcome = window.outcome(&self.rules, Keyspace::Client, &key);
        let dots = window.versions().iter().map(|version| version.dot).collect();
        self.keys.insert(key, Foreseen { base: window.base().cloned(), dots, outcome });
        true
    }

    /// Works out the chain hash with an entry, which takes reading all of it.
    pub(crate) fn chain(&mut self, before: Chain, entry: &Entry) -> Chain {
        let after = before.extend(&entry.head, &entry.changes);
        self.chains.insert(entry.head.dot, (before, after));
        after
    }

    /// All of it.
    pub(crate) fn done(self) -> Prepared {
        Prepared { rules: self.rules, keys: Arc::new(self.keys), chains: Arc::new(self.chains) }
    }
}
