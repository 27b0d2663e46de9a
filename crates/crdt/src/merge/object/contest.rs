//! Leaves that several edited at the same time, in Automerge.
//!
//! What one alone edited needs no engine: it is what that one wrote. Most merges are of edits of different fields, and ask
//! Automerge nothing.

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
    /// Of which class each leaf is.
    leaves: BTreeMap<String, usize>,
    classes: Vec<Class>,
    document: Document,
    /// Where nothing was edited yet.
    base: Point,
    /// Where each version is.
    points: Vec<Point>,
}

/// Leaves that the same versions write: whose write of one stands, that one's writes of all stand.
struct Class {
    /// The one of them that the document holds: the shortest, as it is read for each of the others.
    leaf: String,
    /// How long its texts are together, bytes.
    length: usize,
    /// Everybody who edits them writes them. What was there before is not in the document then: it stands where nobody has
    /// written.
    is_written: bool,
}

/// The class of each contested leaf, and the classes.
fn classes(past: &Past<'_>, edits: &[&BTreeMap<String, Edit>]) -> (BTreeMap<String, usize>, Vec<Class>) {
    let mut together: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
    let mut classes: Vec<Class> = vec![];
    let mut leaves: BTreeMap<String, usize> = BTreeMap::new();
    let contested: BTreeSet<&String> = past.touched().filter(|key| past.is_contested(key)).collect();
    for leaf in contested {
        let edits: Vec<(usize, &Edit)> =
            edits.iter().enumerate().filter_map(|(at, edits)| Some((at, edits.get(leaf)?))).collect();
        let is_written = edits.iter().all(|(_, edit)| matches!(edit, Edit::Put(_)));
        let length = edits.iter().map(|(_, edit)| edit.text_len()).sum();
        let alone = classes.len();
        let class = match is_written {
            true => *together.entry(edits.iter().map(|(at, _)| *at).collect()).or_insert(alone),
            false => alone,
        };
        match classes.get_mut(class) {
            Some(class) if class.length <= length => {}
            Some(class) => (class.leaf, class.length) = (leaf.clone(), length),
            None => classes.push(Class { leaf: leaf.clone(), length, is_written }),
        }
        leaves.insert(leaf.clone(), class);
    }
    (leaves, classes)
}

impl Contest {
    /// Replays the edits of contested leaves. None: there are no such leaves, or too many versions.
    ///
    /// # Errors
    /// When Automerge refuses.
    pub fn of(
        past: &Past<'_>,
        versions: &[&(&Version, &Object)],
        edits: &[&BTreeMap<String, Edit>],
    ) -> Result<Option<Self>, DocumentError> {
        if versions.len() > DOCUMENT_MAX {
            return Ok(None);
        }
        let (leaves, classes) = classes(past, edits);
        if classes.is_empty() {
            return Ok(None);
        }
        let apart = classes.iter().filter(|class| !class.is_written);
        let before = apart.filter_map(|class| Some((class.leaf.clone(), past.base().get(&class.leaf)?.clone())));
        let (document, base) = Document::new(before)?;
        let mut contest = Self { leaves, classes, document, base, points: vec![] };
        let plain: Vec<&Version> = versions.iter().map(|(version, _)| *version).collect();
        let graph = Graph::of(&plain);
        for (at, edits) in edits.iter().enumerate() {
            let parents = graph.parents(at);
            if cfg!(debug_assertions) && parents.len() > 1 {
                contest.leaves.keys().try_for_each(|key| contest.values(key, parents, past).map(drop))?;
            }
            let point = contest.point(parents);
            let Self { classes, document, .. } = &mut contest;
            let edits: Vec<(&str, &Edit)> =
                classes.iter().filter_map(|class| Some((class.leaf.as_str(), edits.get(&class.leaf)?))).collect();
            let point = match edits.is_empty() {
                true => point,
                false => document.commit(at, plain[at].dot, &point, edits.into_iter())?,
            };
            contest.points.push(point);
        }
        Ok(Some(contest))
    }

    /// Whether that leaf is one of them.
    pub fn is_about(&self, key: &str) -> bool {
        self.leaves.contains_key(key)
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
        let Some(class) = self.leaves.get(key) else { return Ok(vec![]) };
        let class = &self.classes[*class];
        let mut values = self.document.values(&class.leaf, &self.point(heads))?;
        if class.leaf != key {
            for (writer, value) in &mut values {
                if let Some(written) = writer.and_then(|at| past.written(key, at)) {
                    *value = written.clone();
                }
            }
        }
        if values.is_empty() && class.is_written {
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
