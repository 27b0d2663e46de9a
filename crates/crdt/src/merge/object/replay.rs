//! Versions of one object replayed into a document, and the merged object read from it.
//!
//! Each version becomes one change on top of its parents that makes the leaves at that point exactly its value. For
//! that, nothing needs to be known of how a merge of several parents looked to the version's writer. Where the leaves
//! show something else, the change says what the writer saw. Of leaves that several edited at the same time Automerge
//! is asked ([`Contest`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use crate::command::notice::GivenUp;
use crate::merge::graph::Graph;
use crate::merge::rules::Rules;
use crate::merge::version::Version;

use super::Object;
use super::contest::Contest;
use super::document::{DocumentError, Edit, Scalar};
use super::json::{Fields, Json};
use super::leaves;
use super::meaning::counts::Counting;
use super::meaning::done::is_done;
use super::meaning::watched::watched;
use super::past::{Past, Scalars};
use super::path::Path;
use super::resolve::{Written, resolve};
use super::schema::{Resolution, Schema};
use super::shared::{self, Divided};
use super::versions::means_the_same_in;

/// Where a pod says what only its node can know: the status, and what a binding copies from the node since Kubernetes 1.35.
const OF_NODE: [&[&str]; 3] = [
    &["status"],
    &["metadata", "labels", "topology.kubernetes.io/region"],
    &["metadata", "labels", "topology.kubernetes.io/zone"],
];

/// Numbers beyond this are no counters: sums of them must not overflow.
pub const COUNTER_MAX: i64 = 1 << 47;

/// Concurrent objects merged.
pub struct Merged {
    /// The object, written canonically; `None` when nothing is left to do but to delete it.
    pub value: Option<Bytes>,
    /// The fields whose concurrent value is not in it.
    pub given_up: Vec<GivenUp>,
    /// Whether it is a pod that the heads have bound to different nodes.
    pub replaced: bool,
}

/// A version taken apart.
pub(super) struct Replayed {
    pub(super) scalars: Scalars,
    pub(super) edits: BTreeMap<String, Edit>,
    /// Edits that only make the leaves say what the writer saw, and when what it saw was written. They are not the
    /// writer's own: a concurrent edit of such a leaf wins against them.
    pub(super) seen: BTreeMap<String, Written>,
}

/// Merges versions of one object onto the value that all of them descend from (`None`: there was none that they are
/// versions of). They are in causal order; their heads are merged.
///
/// # Errors
/// When Automerge refuses; on every replica then.
pub fn merge(
    base: Option<&Object>,
    versions: &[(&Version, &Object)],
    rules: &Rules,
) -> Result<Option<Merged>, DocumentError> {
    let plain: Vec<&Version> = versions.iter().map(|(version, _)| *version).collect();
    let graph = Graph::of(&plain);
    // An order that is the same everywhere, whatever order the versions arrived in.
    let mut order: Vec<usize> = (0..versions.len()).collect();
    order.sort_by_key(|&at| (graph.depth(at), plain[at].dot));
    let versions: Vec<&(&Version, &Object)> = order.iter().map(|&at| &versions[at]).collect();
    let heads: Vec<usize> = (0..versions.len()).filter(|&at| is_head(at, &versions)).collect();
    // Written as the last of them was, and in its apiVersion.
    let last = heads.iter().map(|&at| versions[at]).max_by_key(|(version, _)| version.order());
    let Some((_, last)) = last else { return Ok(None) };
    if !heads.iter().all(|&at| means_the_same_in(versions[at].1, last, rules)) {
        return Ok(None);
    }
    let schema = last.schema(rules);
    let all: Vec<&Json> = versions.iter().map(|(_, object)| &object.json).chain(base.map(|base| &base.json)).collect();
    let Divided { shared, rests } = Divided::of(&all, &schema);
    let (rests, base) = rests.split_at(versions.len());

    let mut replay = Replay::new(base.first(), &schema);
    replay.shared = shared;
    replay.run(&versions, rests)?;
    let edits: Vec<&BTreeMap<String, Edit>> = replay.replayed.iter().map(|replayed| &replayed.edits).collect();
    replay.contest = Contest::of(&replay.past, &versions, &edits)?;
    let mut merged = replay.state(&heads, &versions)?;
    let stay = if schema.is_pod() { replay.follow_node(&mut merged, &heads, &versions)? } else { None };
    let replaced = stay.is_some();
    replay.clamp(&mut merged);
    let mut merged = replay.assemble(&merged);
    let mended = replay.mend(&mut merged, &heads, &versions)?;
    if let Json::Map(map) = &mut merged
        && let Some(api_version) = map.get_mut("apiVersion")
    {
        *api_version = Json::String(last.api_version().into());
    }
    let given_up = replay.given_up(&merged, &versions, &heads, stay.as_deref(), &mended)?;
    let object = shared::join(replay.shared, merged);
    if is_done(&object) {
        return Ok(Some(Merged { value: None, given_up, replaced }));
    }
    let value = last.write(&object);
    Ok(value.map(|value| Merged { value: Some(value), given_up, replaced }))
}

fn is_head(at: usize, versions: &[&(&Version, &Object)]) -> bool {
    !versions[at + 1..].iter().any(|(later, _)| later.descends_from(versions[at].0.dot))
}

pub(super) struct Replay<'a> {
    pub(super) schema: &'a Schema<'a>,
    /// The leaves that several edited at the same time.
    contest: Option<Contest>,
    pub(super) past: Past<'a>,
    pub(super) replayed: Vec<Replayed>,
    /// Where every leaf lies, and how it is resolved.
    pub(super) leaves: HashMap<String, (Path, Resolution)>,
    /// What all versions share.
    pub(super) shared: Json,
    /// Where leaves can contradict what they mean together.
    pub(super) watched: Vec<Path>,
    /// Whether any version has edited such a leaf.
    pub(super) is_delicate: bool,
    /// What a Job counts.
    pub(super) counting: Option<Counting>,
}

impl<'a> Replay<'a> {
    /// Nothing replayed yet.
    pub(super) fn new(base: Option<&Json>, schema: &'a Schema<'a>) -> Self {
        let mut leaves = HashMap::new();
        let base = base.map(|base| scalars(base, schema, &mut leaves)).unwrap_or_default();
        let (shared, watched) = (Json::Map(Fields::new()), watched(schema));
        let (counting, past) = (Counting::of(schema, &base), Past::new(base));
        Self { schema, contest: None, past, replayed: vec![], leaves, shared, watched, is_delicate: false, counting }
    }

    /// Nothing replayed yet, on the same base.
    pub(super) fn anew(&self) -> Self {
        let (past, leaves) = (Past::new(self.past.base().clone()), self.leaves.clone());
        let (shared, watched) = (self.shared.clone(), self.watched.clone());
        let schema = self.schema;
        let counting = Counting::of(schema, past.base());
        Self { schema, contest: None, past, replayed: vec![], leaves, shared, watched, is_delicate: false, counting }
    }

    /// Replays the versions. `objects` tells what is not the same in all of them.
    pub(super) fn run(
        &mut self,
        versions: &[&'a (&'a Version, &Object)],
        objects: &[Json],
    ) -> Result<(), DocumentError> {
        let all = objects.iter().map(|object| scalars(object, self.schema, &mut self.leaves)).collect();
        self.run_leaves(versions, all)
    }

    /// The same, taken apart already.
    pub(super) fn run_leaves(
        &mut self,
        versions: &[&'a (&'a Version, &Object)],
        all: Vec<Scalars>,
    ) -> Result<(), DocumentError> {
        let plain: Vec<&Version> = versions.iter().map(|(version, _)| *version).collect();
        let graph = Graph::of(&plain);
        for (at, ((version, _), after)) in versions.iter().zip(all).enumerate() {
            let parents = graph.parents(at);
            let before = match parents {
                [] => Cow::Borrowed(self.past.base()),
                [parent] => Cow::Borrowed(&self.replayed[*parent].scalars),
                _ => Cow::Owned(self.state(parents, versions)?),
            };
            let mut edits = edits(&before, &after);
            let mut mended = BTreeMap::new();
            if parents.len() > 1 {
                let mut shown = self.assemble(&before);
                let says = scalars(&shown, self.schema, &mut self.leaves);
                Self::as_shown(&mut edits, &before, &says, &after);
                let mends = self.mend(&mut shown, parents, versions)?;
                if !mends.is_empty() {
                    let shown = scalars(&shown, self.schema, &mut self.leaves);
                    mended = self.as_mended(&mut edits, [&before, &says, &shown, &after], &mends, parents, versions)?;
                }
            }
            let mut seen = match parents {
                [] | [_] => BTreeMap::new(),
                _ => self.seen(before.into_owned(), &after, &edits, parents, versions)?,
            };
            seen.extend(mended);
            self.is_delicate = self.is_delicate || edits.keys().any(|key| self.is_watched(key));
            self.past.push(version, edits.iter());
            if let Some(counting) = &mut self.counting {
                self.is_delicate |= counting.push(&after, &self.past);
            }
            self.replayed.push(Replayed { scalars: after, edits, seen });
        }
        Ok(())
    }

    /// The leaves where these versions come together.
    fn state(&self, heads: &[usize], versions: &[&(&Version, &Object)]) -> Result<Scalars, DocumentError> {
        if let [head] = heads {
            return Ok(self.replayed[*head].scalars.clone());
        }
        let mut state = self.past.base().clone();
        for key in self.past.touched() {
            match self.leaf(key, heads, versions)? {
                Some((_, scalar)) => state.insert(key.clone(), scalar),
                None => state.remove(key),
            };
        }
        Ok(state)
    }

    /// A leaf where these versions come together, and when it was written.
    pub(super) fn leaf(
        &self,
        key: &str,
        heads: &[usize],
        versions: &[&(&Version, &Object)],
    ) -> Result<Option<(Written, Scalar)>, DocumentError> {
        let resolution = self.leaves.get(key).map_or(Resolution::LastWriter, |(_, resolution)| *resolution);
        let order = |writer: Option<usize>| self.written_at(writer?, key, versions);
        let values = match self.contest.as_ref().filter(|contest| contest.is_about(key)) {
            Some(contest) => contest.values(key, heads, &self.past)?,
            None => self.past.values(key, heads),
        };
        Ok(resolve(values.into_iter().map(|(writer, scalar)| (order(writer), scalar)).collect(), resolution))
    }

    /// When a leaf was written that stands where these versions come together.
    pub(super) fn written(
        &self,
        key: &str,
        heads: &[usize],
        versions: &[&(&Version, &Object)],
    ) -> Result<Written, DocumentError> {
        Ok(self.leaf(key, heads, versions)?.and_then(|(written, _)| written))
    }

    /// When what a version says of a leaf was written: that of what its writer only saw is another's.
    pub(super) fn written_at(&self, at: usize, key: &str, versions: &[&(&Version, &Object)]) -> Written {
        self.replayed[at].seen.get(key).copied().unwrap_or_else(|| Some(versions[at].0.order()))
    }

    /// Whether that version writes a leaf or takes it away.
    pub(super) fn writes(&self, at: usize, key: &str) -> bool {
        matches!(self.replayed[at].edits.get(key), Some(Edit::Put(_) | Edit::Delete))
    }

    /// The edits of a version that say only what its writer saw where these parents come together. They are edits of
    /// the status of a pod that the parents have bound to different nodes.
    fn seen(
        &self,
        mut before: Scalars,
        after: &Scalars,
        edits: &BTreeMap<String, Edit>,
        parents: &[usize],
        versions: &[&(&Version, &Object)],
    ) -> Result<BTreeMap<String, Written>, DocumentError> {
        let mut seen = BTreeMap::new();
        if !self.schema.is_pod() {
            return Ok(seen);
        }
        let Some(stay) = self.follow_node(&mut before, parents, versions)? else { return Ok(seen) };
        for key in edits.keys().filter(|key| before.get(*key) == after.get(*key)) {
            seen.insert(key.clone(), self.written(key, &stay, versions)?);
        }
        Ok(seen)
    }

    /// When the heads have bound a pod to different nodes, gives it what comes from the node that it stays on. Tells
    /// which heads bind it there.
    fn follow_node(
        &self,
        merged: &mut Scalars,
        heads: &[usize],
        versions: &[&(&Version, &Object)],
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
        let of_node =
            |key: &str| self.leaves.get(key).is_some_and(|(path, _)| OF_NODE.iter().any(|of| path.begins_with(of)));
        merged.retain(|key, _| !of_node(key));
        merged.extend(self.state(&stay, versions)?.into_iter().filter(|(key, _)| of_node(key)));
        Ok(Some(stay))
    }

    /// Raises counters to their minimum. Where the edits add up to nothing, the base stays, also one below the minimum: what was added
    /// and taken away again may have left, and then nothing tells that there were edits.
    fn clamp(&self, merged: &mut Scalars) {
        let base = self.past.base();
        for (key, scalar) in merged.iter_mut().filter(|(key, scalar)| base.get(*key) != Some(scalar)) {
            if let (Scalar::Counter(sum), Some((_, Resolution::Counter { minimum: Some(minimum) }))) =
                (scalar, self.leaves.get(key))
            {
                *sum = (*sum).max(*minimum);
            }
        }
    }

    pub(super) fn assemble(&self, merged: &Scalars) -> Json {
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
