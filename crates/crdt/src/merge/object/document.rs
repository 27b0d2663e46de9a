//! The one place that knows Automerge: leaves as a flat document, versions as changes.
//!
//! Everything that Automerge could decide by itself is decided by us. Actors are derived from origins. Changes are made
//! at given points of the history and dated zero. Which of several concurrent values of a leaf stays is not taken from
//! Automerge either, because its order of operations knows no stamps. [`Document::values`] tells all of them with their
//! writers.

use std::collections::HashMap;

use automerge::transaction::{CommitOptions, Transactable};
use automerge::{ActorId, Automerge, AutomergeError, ChangeHash, PatchLog, ROOT, ReadDoc, ScalarValue, Value, hydrate};

use super::json::Json;
use crate::words::id::Dot;

/// A leaf's value in a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scalar {
    /// A text, overwritten as a whole.
    Text(String),
    /// A number to which concurrent increments are added.
    Counter(i64),
}

impl Scalar {
    /// The JSON that a text holds.
    pub fn json(&self) -> Option<Json> {
        match self {
            Self::Text(text) => Json::parse(text.as_bytes()),
            Self::Counter(_) => None,
        }
    }
}

/// What a version does to a leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Writes it.
    Put(Scalar),
    /// Adds to the counter that is there.
    Add(i64),
    /// Takes it away.
    Delete,
}

impl Edit {
    /// How long the text is that it writes, bytes.
    pub fn text_len(&self) -> usize {
        match self {
            Self::Put(Scalar::Text(text)) => text.len(),
            _ => 0,
        }
    }
}

/// A point of a document's history: the versions that come together in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Point(Vec<ChangeHash>);

impl Point {
    /// The point where all of these have come together.
    pub fn join<'a>(points: impl Iterator<Item = &'a Self>) -> Self {
        let mut hashes: Vec<ChangeHash> = points.flat_map(|point| &point.0).copied().collect();
        hashes.sort_unstable();
        hashes.dedup();
        Self(hashes)
    }
}

/// Automerge refused; the same on every replica.
#[derive(Debug, thiserror::Error)]
#[error("the document cannot be merged: {0}")]
pub struct DocumentError(String);

impl From<AutomergeError> for DocumentError {
    fn from(error: AutomergeError) -> Self {
        Self(error.to_string())
    }
}

/// A flat document in which every version is one change.
pub struct Document {
    doc: Automerge,
    /// The writer of each change, as the caller numbers writers. The base has none.
    writers: HashMap<ChangeHash, usize>,
}

impl Document {
    /// A document that begins with these leaves, written in one change by the lowest actor, and the point where it is. Without
    /// leaves there is no such change.
    ///
    /// # Errors
    /// When Automerge refuses a leaf.
    pub fn new(base: impl Iterator<Item = (String, Scalar)>) -> Result<(Self, Point), DocumentError> {
        // Actors of versions are longer, and so above it.
        let mut doc = Automerge::new().with_actor(ActorId::from(vec![0]));
        let base: HashMap<String, hydrate::Value> =
            base.map(|(key, scalar)| (key, hydrate::Value::Scalar(scalar.into()))).collect();
        if !base.is_empty() {
            // Sorts them by itself.
            doc.init_from_hydrate(&hydrate::Map::from(base))?;
        }
        let point = Point(doc.get_heads());
        Ok((Self { doc, writers: HashMap::new() }, point))
    }

    /// One version as one change on top of that point; the point where it is. An origin's versions must be made in their
    /// order. One that edits nothing adds nothing: it is where its parents come together.
    ///
    /// # Errors
    /// When Automerge refuses an edit.
    pub fn commit<'a>(
        &mut self,
        writer: usize,
        dot: Dot,
        at: &Point,
        edits: impl Iterator<Item = (&'a str, &'a Edit)>,
    ) -> Result<Point, DocumentError> {
        let mut actor = dot.origin.replica.get().to_be_bytes().to_vec();
        actor.extend(dot.origin.birth.get().to_be_bytes());
        self.doc.set_actor(ActorId::from(actor));
        let mut change =
            self.doc.transaction_at(PatchLog::inactive(), &at.0).map_err(|error| DocumentError(error.to_string()))?;
        for (key, edit) in edits {
            match edit {
                Edit::Put(scalar) => {
                    let written = ScalarValue::from(scalar.clone());
                    // Automerge writes nothing where one of the values is there already. The others would stay beside it,
                    // and the one would stay another's.
                    let is_written = |(value, _): &(Value<'_>, _)| matches!(value, Value::Scalar(is) if **is == written || matches!(**is, ScalarValue::Counter(_)));
                    // Where nothing was written yet there is nothing to look for.
                    if !at.0.is_empty() && change.get_all(ROOT, key)?.iter().any(is_written) {
                        change.delete(ROOT, key)?;
                    }
                    change.put(ROOT, key, written)?;
                }
                Edit::Add(by) => change.increment(ROOT, key, *by)?,
                Edit::Delete => change.delete(ROOT, key)?,
            }
        }
        let (hash, _) = change.commit_with(CommitOptions::default().with_time(0));
        Ok(match hash {
            Some(hash) => {
                self.writers.insert(hash, writer);
                Point(vec![hash])
            }
            None => at.clone(),
        })
    }

    /// All values that a leaf has at that point, each with its writer (`None`: the base). Several only where they were
    /// written concurrently.
    ///
    /// # Errors
    /// When Automerge does not know the point.
    pub fn values(&self, key: &str, at: &Point) -> Result<Vec<(Option<usize>, Scalar)>, DocumentError> {
        let mut values = vec![];
        for (value, id) in self.doc.get_all_at(ROOT, key, &at.0)? {
            let writer = self.doc.hash_for_opid(&id).and_then(|hash| self.writers.get(&hash)).copied();
            let scalar = match value {
                Value::Scalar(scalar) => match &*scalar {
                    ScalarValue::Str(text) => Scalar::Text(text.to_string()),
                    ScalarValue::Counter(counter) => Scalar::Counter(i64::from(counter)),
                    other => return Err(DocumentError(format!("{key} is {other:?}"))),
                },
                Value::Object(kind) => return Err(DocumentError(format!("{key} is a {kind:?}"))),
            };
            values.push((writer, scalar));
        }
        Ok(values)
    }
}

impl From<Scalar> for ScalarValue {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Text(text) => Self::Str(text.into()),
            Scalar::Counter(number) => Self::counter(number),
        }
    }
}
