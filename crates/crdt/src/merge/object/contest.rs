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

/// Between the texts of leaves that are one value. No JSON text has it.
const BETWEEN: char = '\0';

/// Contested leaves, and the history of their edits.
pub struct Contest {
    /// Of which class each leaf is, and its place there.
    leaves: BTreeMap<String, (usize, usize)>,
    classes: Vec<Class>,
    document: Document,
    /// Where nothing was edited yet.
    base: Point,
    /// Where each version is.
    points: Vec<Point>,
}

/// Leaves that are one value in the document, because the same versions write them: what stands of one stands of all.
struct Class {
    leaves: Vec<String>,
    /// Everybody who edits them writes them. What was there before is not in the document then: it stands where nobody has
    /// written.
    is_written: bool,
}

impl Class {
    /// What its leaves are called in the document.
    fn key(&self) -> &str {
        self.leaves.first().map_or("", String::as_str)
    }

    /// What a version does to them.
    fn edit<'e>(&self, edits: &'e BTreeMap<String, Edit>) -> Option<Cow<'e, Edit>> {
        if let [leaf] = &self.leaves[..] {
            return edits.get(leaf).map(Cow::Borrowed);
        }
        let texts: Option<Vec<&str>> = self.leaves.iter().map(|leaf| written(edits, leaf)).collect();
        Some(Cow::Owned(Edit::Put(Scalar::Text(texts?.join(&String::from(BETWEEN))))))
    }
}

/// The text that a version writes there.
fn written<'e>(edits: &'e BTreeMap<String, Edit>, leaf: &str) -> Option<&'e str> {
    match edits.get(leaf)? {
        Edit::Put(Scalar::Text(text)) => Some(text),
        _ => None,
    }
}

/// The contested leaves, those together that the same versions write.
fn classes(past: &Past<'_>, edits: &[&BTreeMap<String, Edit>]) -> Vec<Class> {
    let mut together: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
    let mut classes: Vec<Class> = vec![];
    let leaves: BTreeSet<&String> = past.touched().filter(|key| past.is_contested(key)).collect();
    for leaf in leaves {
        let writers: Vec<usize> = (0..edits.len()).filter(|at| edits[*at].contains_key(leaf)).collect();
        let are_texts = writers.iter().all(|at| written(edits[*at], leaf).is_some());
        let is_written = writers.iter().all(|at| matches!(edits[*at].get(leaf), Some(Edit::Put(_))));
        match together.get(&writers).filter(|_| are_texts) {
            Some(class) => classes[*class].leaves.push(leaf.clone()),
            None => {
                if are_texts {
                    together.insert(writers, classes.len());
                }
                classes.push(Class { leaves: vec![leaf.clone()], is_written });
            }
        }
    }
    classes
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
        let classes = classes(past, edits);
        if classes.is_empty() {
            return Ok(None);
        }
        let places = classes.iter().enumerate().flat_map(|(class, of)| {
            of.leaves.iter().enumerate().map(move |(place, leaf)| (leaf.clone(), (class, place)))
        });
        let leaves = places.collect();
        let apart = classes.iter().filter(|class| !class.is_written).map(Class::key);
        let before = apart.filter_map(|leaf| Some((leaf.to_owned(), past.base().get(leaf)?.clone())));
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
            let edits: Vec<(&str, Cow<'_, Edit>)> =
                classes.iter().filter_map(|class| Some((class.key(), class.edit(edits)?))).collect();
            let point = match edits.is_empty() {
                true => point,
                false => document.commit(at, plain[at].dot, &point, edits.iter().map(|(key, edit)| (*key, &**edit)))?,
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
        let Some((class, place)) = self.leaves.get(key) else { return Ok(vec![]) };
        let class = &self.classes[*class];
        let mut values = self.document.values(class.key(), &self.point(heads))?;
        if class.leaves.len() > 1 {
            for (_, value) in &mut values {
                if let Scalar::Text(texts) = value {
                    *value = Scalar::Text(texts.split(BETWEEN).nth(*place).unwrap_or_default().to_owned());
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
