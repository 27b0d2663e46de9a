//! Which entries were applied here, by their origins.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::words::chain::Chain;
use crate::words::id::Origin;
use crate::words::vector::VersionVector;

/// What is known of an origin up to one of its entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OriginState {
    /// The chain hash up to that entry.
    pub chain: Chain,
    /// All that the origin had applied then besides its own entries.
    pub deps: Arc<VersionVector>,
}

/// Which entries were applied here.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    /// Their names.
    pub(crate) vector: VersionVector,
    /// This replica as an origin, under its present birth, up to its newest entry.
    pub(crate) own: OriginState,
    /// All other origins, up to their newest entries here.
    pub(crate) others: BTreeMap<Origin, OriginState>,
    /// What was applied from others since the last own entry.
    pub(crate) fresh: VersionVector,
}

impl OriginState {
    /// Adds to what the origin had applied.
    pub(crate) fn depend(&mut self, on: &VersionVector) {
        if !on.is_empty() {
            let mut deps = VersionVector::clone(&self.deps);
            deps.merge(on);
            self.deps = Arc::new(deps);
        }
    }
}

impl Origins {
    /// What is known of an origin, where `own` is this replica under its present birth.
    pub(crate) fn get(&self, own: Origin, origin: Origin) -> Option<&OriginState> {
        if origin == own { Some(&self.own) } else { self.others.get(&origin) }
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, own: Origin, origin: Origin) -> &mut OriginState {
        if origin == own { &mut self.own } else { self.others.entry(origin).or_default() }
    }
}
