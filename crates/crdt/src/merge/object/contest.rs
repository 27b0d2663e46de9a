//! Leaves that several edited at the same time, in Automerge.
//!
//! What one alone edited needs no engine: it is what that one wrote. Most merges are of edits of different fields, and ask
//! Automerge nothing.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::Object;
use super::document::{Document, DocumentError, Edit, Point, Scalar};
use super::past::Past;
use crate::merge::graph::Graph;
use crate::merge::version::Version;

/// Up to so many versions are replayed into a document. In one of more each version costs as much as all before it. Then
/// what it would say is read from the vectors.
const DOCUMENT_MAX: usize = 32;

/// Contested leaves, and the history of their edits.
pub struct Contest {
    leaves: BTreeSet<String>,
    /// Those of them that everybody writes. What was there before is not in the document: it stands where nobody has written.
    written: BTreeSet<String>,
    document: Document,
    /// Where nothing was edited yet.
    base: Point,
    /// Where each version is.
    points: Vec<Point>,
}

impl Contest {
    /// Replays the edits of contested leaves. None: there are no such leaves, or too many versions.
    ///
    /// # Errors
    /// When Automerge refuses.
    pub fn of(
        past: &Past<'_>,
        versions: &[&(&Version, Cow<'_, Object>)],
        edits: &[&BTreeMap<String, Edit>],
    ) -> Result<Option<Self>, DocumentError> {
        if versions.len() > DOCUMENT_MAX {
            return Ok(None);
        }
        let leaves: BTreeSet<String> = past.touched().filter(|key| past.is_contested(key)).cloned().collect();
        if leaves.is_empty() {
            return Ok(None);
        }
        let is_put = |key: &str| edits.iter().all(|edits| matches!(edits.get(key), None | Some(Edit::Put(_))));
        let written: BTreeSet<String> = leaves.iter().filter(|key| is_put(key)).cloned().collect();
        let before = past.base().iter().filter(|(key, _)| leaves.contains(*key) && !written.contains(*key));
        let (document, base) = Document::new(before.map(|(key, scalar)| (key.clone(), scalar.clone())))?;
        let mut contest = Self { leaves, written, document, base, points: vec![] };
        let plain: Vec<&Version> = versions.iter().map(|(version, _)| *version).collect();
        let graph = Graph::of(&plain);
        for (at, edits) in edits.iter().enumerate() {
            let parents = graph.parents(at);
            if cfg!(debug_assertions) && parents.len() > 1 {
                contest.leaves.iter().try_for_each(|key| contest.values(key, parents, past).map(drop))?;
            }
            let point = contest.point(parents);
            let edits: Vec<(&str, &Edit)> = edits
                .iter()
                .filter(|(key, _)| contest.leaves.contains(*key))
                .map(|(key, edit)| (key.as_str(), edit))
                .collect();
            let point = match edits.is_empty() {
                true => point,
                false => contest.document.commit(at, plain[at].dot, &point, edits.into_iter())?,
            };
            contest.points.push(point);
        }
        Ok(Some(contest))
    }

    /// Whether that leaf is one of them.
    pub fn is_about(&self, key: &str) -> bool {
        self.leaves.contains(key)
    }

    /// All values of such a leaf where these versions come together, each with its writer (`None`: it was there before). `past`
    /// must say the same.
    ///
    /// # Errors
    /// When Automerge does not know the point.
    pub fn values(
        &self,
        key: &str,
        heads: &[usize],
        past: &Past<'_>,
    ) -> Result<Vec<(Option<usize>, Scalar)>, DocumentError> {
        let mut values = self.document.values(key, &self.point(heads))?;
        if values.is_empty() && self.written.contains(key) {
            values.extend(past.base().get(key).map(|scalar| (None, scalar.clone())));
        }
        debug_assert!(
            is_same(&values, &past.values(key, heads)),
            "{key} at {heads:?} is {:?}, Automerge says {values:?}",
            past.values(key, heads),
        );
        Ok(values)
    }

    /// Where these versions come together in the document.
    fn point(&self, heads: &[usize]) -> Point {
        match heads {
            [] => self.base.clone(),
            _ => Point::join(heads.iter().map(|&at| &self.points[at])),
        }
    }
}

/// Whether both tell the same values of the same writers.
fn is_same(ours: &[(Option<usize>, Scalar)], others: &[(Option<usize>, Scalar)]) -> bool {
    ours.len() == others.len() && ours.iter().all(|value| others.contains(value))
}
