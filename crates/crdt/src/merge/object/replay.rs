//! Versions of one object replayed into a document, and the merged object read from it.
//!
//! Each version becomes one change on top of its parents that makes the document at that point exactly its value. For
//! that, nothing needs to be known of how a merge of several parents looked to the version's writer. Where the document
//! shows something else, the change says what the writer saw.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use crate::command::notice::GivenUp;
use crate::merge::graph::Graph;
use crate::merge::rules::Rules;
use crate::merge::version::Version;
use crate::words::clock::Stamp;
use crate::words::id::Dot;

use super::Object;
use super::document::{Document, DocumentError, Edit, Point, Scalar};
use super::json::Json;
use super::leaves;
use super::path::Path;
use super::schema::{Resolution, Schema};
use super::shared::{self, Divided};

/// Numbers beyond this are no counters: sums of them must not overflow.
pub const COUNTER_MAX: i64 = 1 << 47;

/// Concurrent objects merged.
pub struct Merged {
    /// The object, written canonically.
    pub value: Bytes,
    /// The fields whose concurrent value is not in it.
    pub given_up: Vec<GivenUp>,
    /// Whether it is a pod that the heads have bound to different nodes.
    pub replaced: bool,
}

pub(super) type Scalars = BTreeMap<String, Scalar>;

/// A version in the document.
pub(super) struct Replayed {
    pub(super) scalars: Scalars,
    pub(super) edits: BTreeMap<String, Edit>,
    /// Edits that only make the document say what the writer saw, and when what it saw was written. They are not the
    /// writer's own: a concurrent edit of such a leaf wins against them.
    pub(super) seen: BTreeMap<String, Written>,
    point: Point,
}

/// Merges versions of one object onto the value that all of them descend from (`None`: there was none that they are
/// versions of). They are in causal order; their heads are merged.
///
/// # Errors
/// When Automerge refuses; on every replica then.
pub fn merge(
    base: Option<&Object>,
    versions: &[(&Version, Cow<'_, Object>)],
    rules: &Rules,
) -> Result<Option<Merged>, DocumentError> {
    let plain: Vec<&Version> = versions.iter().map(|(version, _)| *version).collect();
    let graph = Graph::of(&plain);
    // An order that is the same everywhere, whatever order the versions arrived in.
    let mut order: Vec<usize> = (0..versions.len()).collect();
    order.sort_by_key(|&at| (graph.depth(at), plain[at].dot));
    let versions: Vec<&(&Version, Cow<'_, Object>)> = order.iter().map(|&at| &versions[at]).collect();
    let Some((_, first)) = versions.first() else { return Ok(None) };
    let schema = first.schema(rules);
    let all: Vec<&Json> = versions.iter().map(|(_, object)| &object.json).chain(base.map(|base| &base.json)).collect();
    let Divided { shared, rests } = Divided::of(&all, &schema);
    let (rests, base) = rests.split_at(versions.len());

    let mut replay = Replay::new(base.first(), &schema)?;
    replay.run(&versions, rests)?;
    let heads: Vec<usize> = (0..versions.len()).filter(|&at| is_head(at, &versions)).collect();
    let mut merged = replay.state(&heads, &versions)?;
    let stay = if schema.is_pod() { replay.follow_node(&mut merged, &heads, &versions)? } else { None };
    let replaced = stay.is_some();
    replay.clamp(&mut merged);
    let merged = replay.assemble(&merged);
    let given_up = replay.given_up(&merged, &versions, &heads, stay.as_deref())?;
    let object = shared::join(shared, merged);
    // Written as the last of them was.
    let last = heads.iter().map(|&at| versions[at]).max_by_key(|(version, _)| version.order());
    let value = last.and_then(|(_, last)| last.write(&object));
    Ok(value.map(|value| Merged { value, given_up, replaced }))
}

fn is_head(at: usize, versions: &[&(&Version, Cow<'_, Object>)]) -> bool {
    !versions[at + 1..].iter().any(|(later, _)| later.descends_from(versions[at].0.dot))
}

pub(super) struct Replay<'a> {
    pub(super) schema: &'a Schema<'a>,
    document: Document,
    base: Scalars,
    base_point: Point,
    pub(super) replayed: Vec<Replayed>,
    /// All leaves that any version has edited.
    pub(super) touched: BTreeSet<String>,
    /// Where every leaf lies, and how it is resolved.
    pub(super) leaves: HashMap<String, (Path, Resolution)>,
}

impl<'a> Replay<'a> {
    fn new(base: Option<&Json>, schema: &'a Schema<'a>) -> Result<Self, DocumentError> {
        let mut leaves = HashMap::new();
        let base = base.map(|base| scalars(base, schema, &mut leaves)).unwrap_or_default();
        let (document, base_point) = Document::new(base.iter().map(|(key, scalar)| (key.clone(), scalar.clone())))?;
        Ok(Self { schema, document, base, base_point, replayed: vec![], touched: BTreeSet::new(), leaves })
    }

    /// Replays the versions. `objects` tells what is not the same in all of them.
    fn run(&mut self, versions: &[&(&Version, Cow<'_, Object>)], objects: &[Json]) -> Result<(), DocumentError> {
        let plain: Vec<&Version> = versions.iter().map(|(version, _)| *version).collect();
        let graph = Graph::of(&plain);
        let mut all: Vec<Option<Scalars>> = Vec::with_capacity(objects.len());
        for object in objects {
            all.push(Some(scalars(object, self.schema, &mut self.leaves)));
        }
        let mut taken_back: Vec<BTreeSet<String>> = Vec::with_capacity(objects.len());
        for (at, (version, _)) in versions.iter().enumerate() {
            let parents = graph.parents(at);
            let before = match parents {
                [] => Cow::Borrowed(&self.base),
                [parent] => Cow::Borrowed(&self.replayed[*parent].scalars),
                _ => Cow::Owned(self.state(parents, versions)?),
            };
            taken_back.push(match parents {
                [parent] if graph.continues(at) => taken_back[*parent].clone(),
                _ => taken_back_in_run(&graph, at, &before, &all),
            });
            let Some(after) = all[at].take() else { continue };
            let mut edits = edits(&before, &after);
            edits.retain(|key, _| !taken_back[at].contains(key));
            let seen = match parents {
                [] | [_] => BTreeMap::new(),
                _ => self.seen(before.into_owned(), &after, &edits, parents, versions)?,
            };
            let point = self.point(parents);
            let changes = edits.iter().map(|(key, edit)| (key.as_str(), edit));
            let point = self.document.commit(at, version.dot, &point, changes)?;
            self.touched.extend(edits.keys().cloned());
            self.replayed.push(Replayed { scalars: after, edits, seen, point });
        }
        Ok(())
    }

    /// Where these versions come together.
    pub(super) fn point(&self, parents: &[usize]) -> Point {
        if parents.is_empty() {
            return self.base_point.clone();
        }
        Point::join(parents.iter().map(|&at| &self.replayed[at].point))
    }

    /// The leaves where these versions come together.
    fn state(&self, heads: &[usize], versions: &[&(&Version, Cow<'_, Object>)]) -> Result<Scalars, DocumentError> {
        if let [head] = heads {
            return Ok(self.replayed[*head].scalars.clone());
        }
        let point = self.point(heads);
        let mut state = self.base.clone();
        for key in &self.touched {
            match self.leaf(key, &point, versions)? {
                Some((_, scalar)) => state.insert(key.clone(), scalar),
                None => state.remove(key),
            };
        }
        Ok(state)
    }

    /// A leaf at that point, and when it was written.
    pub(super) fn leaf(
        &self,
        key: &str,
        point: &Point,
        versions: &[&(&Version, Cow<'_, Object>)],
    ) -> Result<Option<(Written, Scalar)>, DocumentError> {
        let resolution = self.leaves.get(key).map_or(Resolution::LastWriter, |(_, resolution)| *resolution);
        let order = |writer: Option<usize>| {
            let at = writer?;
            self.replayed[at].seen.get(key).copied().unwrap_or_else(|| Some(versions[at].0.order()))
        };
        let values = self.document.values(key, point)?;
        Ok(resolve(values.into_iter().map(|(writer, scalar)| (order(writer), scalar)).collect(), resolution))
    }

    /// The edits of a version that say only what its writer saw where these parents come together. They are edits of
    /// the status of a pod that the parents have bound to different nodes.
    fn seen(
        &self,
        mut before: Scalars,
        after: &Scalars,
        edits: &BTreeMap<String, Edit>,
        parents: &[usize],
        versions: &[&(&Version, Cow<'_, Object>)],
    ) -> Result<BTreeMap<String, Written>, DocumentError> {
        let mut seen = BTreeMap::new();
        if !self.schema.is_pod() {
            return Ok(seen);
        }
        let Some(stay) = self.follow_node(&mut before, parents, versions)? else { return Ok(seen) };
        let point = self.point(&stay);
        for key in edits.keys().filter(|key| before.get(*key) == after.get(*key)) {
            seen.insert(key.clone(), self.leaf(key, &point, versions)?.and_then(|(written, _)| written));
        }
        Ok(seen)
    }

    /// When the heads have bound a pod to different nodes, gives it the status of the node that it stays on. Tells
    /// which heads bind it there.
    fn follow_node(
        &self,
        merged: &mut Scalars,
        heads: &[usize],
        versions: &[&(&Version, Cow<'_, Object>)],
    ) -> Result<Option<Vec<usize>>, DocumentError> {
        let nodes: BTreeSet<&str> = heads.iter().filter_map(|&at| versions[at].1.node()).collect();
        if nodes.len() < 2 {
            return Ok(None);
        }
        let node = merged.get(".spec.nodeName").cloned();
        let stay: Vec<usize> = heads
            .iter()
            .copied()
            .filter(|&at| self.replayed[at].scalars.get(".spec.nodeName") == node.as_ref())
            .collect();
        let of_status = |key: &str| self.leaves.get(key).is_some_and(|(path, _)| path.begins_with(&["status"]));
        merged.retain(|key, _| !of_status(key));
        merged.extend(self.state(&stay, versions)?.into_iter().filter(|(key, _)| of_status(key)));
        Ok(Some(stay))
    }

    /// Raises counters to their minimum.
    fn clamp(&self, merged: &mut Scalars) {
        for (key, scalar) in merged {
            if let (Scalar::Counter(sum), Some((_, Resolution::Counter { minimum: Some(minimum) }))) =
                (scalar, self.leaves.get(key))
            {
                *sum = (*sum).max(*minimum);
            }
        }
    }

    fn assemble(&self, merged: &Scalars) -> Json {
        leaves::assemble(
            self.schema,
            merged.iter().filter_map(|(key, scalar)| {
                let text = match scalar {
                    Scalar::Text(text) => Cow::Borrowed(text.as_str()),
                    Scalar::Counter(number) => Cow::Owned(number.to_string()),
                };
                Some((&self.leaves.get(key)?.0, text))
            }),
        )
    }
}

/// The leaves that the run which begins there edits, and leaves as they were before it: that is no edit.
fn taken_back_in_run(graph: &Graph, first: usize, before: &Scalars, all: &[Option<Scalars>]) -> BTreeSet<String> {
    let run: Vec<usize> = std::iter::successors(Some(first), |at| graph.continuation(*at)).collect();
    let Some(last) = run.last().filter(|last| **last != first).and_then(|last| all[*last].as_ref()) else {
        return BTreeSet::new();
    };
    let inner = run.iter().filter_map(|at| all[*at].as_ref());
    let mut taken_back: BTreeSet<String> = inner.flat_map(|after| edits(before, after).into_keys()).collect();
    taken_back.retain(|key| before.get(key) == last.get(key));
    taken_back
}

/// An object's leaves as scalars; where they lie is noted beside.
fn scalars(object: &Json, schema: &Schema<'_>, known: &mut HashMap<String, (Path, Resolution)>) -> Scalars {
    let mut scalars = Scalars::new();
    leaves::flatten(object, schema, &mut |key, path, text| {
        let resolution = match known.get(key) {
            Some((_, resolution)) => *resolution,
            None => {
                let resolution = schema.resolution(path);
                known.insert(key.to_owned(), (path.clone(), resolution));
                resolution
            }
        };
        let counter = matches!(resolution, Resolution::Counter { .. }).then(|| count(&text)).flatten();
        scalars.insert(key.to_owned(), counter.map_or(Scalar::Text(text), Scalar::Counter));
    });
    scalars
}

/// The number that a counter can hold, if the text is one that would be written so.
fn count(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    ((-COUNTER_MAX..=COUNTER_MAX).contains(&number) && number.to_string() == text).then_some(number)
}

/// What makes `after` of `before`.
fn edits(before: &Scalars, after: &Scalars) -> BTreeMap<String, Edit> {
    let mut edits = BTreeMap::new();
    for (key, scalar) in after {
        let edit = match (before.get(key), scalar) {
            (Some(old), new) if old == new => continue,
            (Some(Scalar::Counter(old)), Scalar::Counter(new)) => Edit::Add(new - old),
            (_, new) => Edit::Put(new.clone()),
        };
        edits.insert(key.clone(), edit);
    }
    edits.extend(before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Edit::Delete)));
    edits
}

/// When and in which entry a leaf was written; `None`: it is the base's.
pub(super) type Written = Option<(Stamp, Dot)>;

/// One of several concurrent values.
fn resolve(mut values: Vec<(Written, Scalar)>, resolution: Resolution) -> Option<(Written, Scalar)> {
    let counter = |scalar: &Scalar| match scalar {
        Scalar::Counter(number) => Some(*number),
        Scalar::Text(_) => None,
    };
    if values.iter().all(|(_, scalar)| counter(scalar).is_some()) {
        return values.into_iter().max_by_key(|(_, scalar)| counter(scalar));
    }
    values.retain(|(_, scalar)| counter(scalar).is_none());
    match resolution {
        Resolution::LastWriter | Resolution::Counter { .. } => values.into_iter().max_by_key(|(written, _)| *written),
        Resolution::FirstWriter => values.into_iter().min_by_key(|(written, _)| *written),
        Resolution::LeaderElection => {
            values.into_iter().max_by_key(|(written, scalar)| (Claim::read(scalar), *written))
        }
    }
}

/// A claim to be leader, as `spec` of a Lease; the greatest stands.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    /// How often leadership changed hands: the one with more transitions is the later one.
    transitions: i64,
    /// When it was acquired: the earlier claim stands.
    acquired: std::cmp::Reverse<String>,
    /// Only to tell claims apart that are equal otherwise.
    holder: std::cmp::Reverse<String>,
    /// Of one and the same claim the one renewed last.
    renewed: String,
}

impl Claim {
    fn read(scalar: &Scalar) -> Option<Self> {
        let Scalar::Text(text) = scalar else { return None };
        let spec = Json::parse(text.as_bytes())?;
        let text = |field: &str| spec.get(field).and_then(Json::as_str).map(str::to_owned);
        let transitions = match spec.get("leaseTransitions") {
            Some(Json::Number(number)) => number.parse().unwrap_or(0),
            _ => 0,
        };
        Some(Self {
            transitions,
            // A claim that does not say since when is the latest.
            acquired: std::cmp::Reverse(text("acquireTime").unwrap_or_else(|| char::MAX.to_string())),
            holder: std::cmp::Reverse(text("holderIdentity").unwrap_or_default()),
            renewed: text("renewTime").unwrap_or_default(),
        })
    }
}
