//! What a writer saw where versions come together, and what of its version is therefore an edit.

use std::collections::BTreeMap;

use crate::merge::version::Version;

use super::Object;
use super::document::{DocumentError, Edit, Scalar};
use super::meaning::watched::Mended;
use super::past::Scalars;
use super::replay::Replay;
use super::resolve::Written;

impl Replay<'_> {
    /// Where versions come together, leaves can contradict each other, and not all of them show. What a writer wrote and did
    /// not see is an edit, although the leaf is that already. What it saw is none. A common point is shown as a whole, too, so
    /// this makes no difference between one and any other point.
    pub(super) fn as_shown(edits: &mut BTreeMap<String, Edit>, before: &Scalars, shown: &Scalars, after: &Scalars) {
        for (key, scalar) in after {
            if matches!(scalar, Scalar::Counter(_)) || before.get(key) == shown.get(key) {
                continue;
            }
            if shown.get(key) == Some(scalar) {
                edits.remove(key);
            } else {
                edits.insert(key.clone(), Edit::Put(scalar.clone()));
            }
        }
    }

    /// What the writer saw mended is no edit of its own, and what it set back is one.
    pub(super) fn as_mended(
        &self,
        edits: &mut BTreeMap<String, Edit>,
        [before, says, shown, after]: [&Scalars; 4],
        mends: &[Mended],
        parents: &[usize],
        versions: &[&(&Version, &Object)],
    ) -> Result<BTreeMap<String, Written>, DocumentError> {
        let mut seen = BTreeMap::new();
        for key in says.keys().chain(shown.keys()).filter(|key| says.get(*key) != shown.get(*key)) {
            if after.get(key) != shown.get(key) {
                if let (Some(scalar @ Scalar::Text(_)), true) = (after.get(key), before.get(key) == after.get(key)) {
                    edits.insert(key.clone(), Edit::Put(scalar.clone()));
                }
            } else if edits.contains_key(key) {
                seen.insert(key.clone(), self.mended_leaf(key, mends, parents, versions)?);
            }
        }
        Ok(seen)
    }
}
