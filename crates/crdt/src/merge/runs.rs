//! What a run of versions says about each leaf of an object: its last edit, and nothing else.
//!
//! A **run** is a chain of versions of which nothing else stands on the inner ones. The last edit of a leaf in the run
//! counts, with the stamp of the version that made it. That holds also when it set the leaf back to what it was. A
//! version is **silent** when its run says the same about every leaf without it. The last edit of each leaf is then in
//! the same version as before. So silent versions can be passed over, or left out for good, in any order. The outcome
//! of a merge stays.

use std::collections::BTreeMap;

use crate::merge::graph::Graph;
use crate::merge::object::Object;
use crate::merge::object::json::Json;
use crate::merge::object::leaves;
use crate::merge::object::schema::Schema;
use crate::merge::object::shared::Divided;
use crate::merge::rules::Rules;
use crate::merge::version::Version;
use crate::words::value::Live;

type Leaves = BTreeMap<String, String>;

/// What was there before a run began.
enum Start<'a> {
    /// These leaves.
    Leaves(&'a Leaves),
    /// What several versions gave together, which is not worked out here.
    Merged,
}

/// Which versions are silent in their runs. `objects` holds the versions' objects, `None` where a version is none of this
/// kind and incarnation; `base` what all of them descend from. Only versions that `may_go` are told.
pub(crate) fn silent(
    graph: &Graph,
    objects: &[Option<&Object>],
    base: Option<&Object>,
    schema: &Schema<'_>,
    may_go: impl Fn(usize) -> bool,
) -> Vec<bool> {
    let mut silent = vec![false; objects.len()];
    let inner = |at: usize| objects[at].is_some() && graph.continuation(at).is_some();
    if !(0..objects.len()).any(|at| inner(at) && may_go(at)) {
        return silent;
    }
    let (leaves, base) = flattened(objects, base, schema);
    for first in (0..objects.len()).filter(|at| !graph.continues(*at)) {
        let run: Vec<usize> = std::iter::successors(Some(first), |at| graph.continuation(*at)).collect();
        let start = match graph.parents(first) {
            [] => Start::Leaves(&base),
            [parent] => leaves[*parent].as_ref().map_or(Start::Merged, Start::Leaves),
            _ => Start::Merged,
        };
        pass_over(&run, &leaves, &start, &may_go, &mut silent);
    }
    silent
}

/// The same for all versions of a key, of whatever incarnations and kinds, on top of `base`. One that is no object says nothing
/// about leaves.
pub(crate) fn silent_of_key(
    graph: &Graph,
    versions: &[&Version],
    base: Option<&Live>,
    rules: &Rules,
    may_go: impl Fn(usize) -> bool,
) -> Vec<bool> {
    let objects: Vec<Option<Object>> = versions.iter().map(|version| Object::parse(version.value()?)).collect();
    let base = base.and_then(|base| Some((base.incarnation, Object::parse(&base.value)?)));
    let mut silent: Vec<bool> = (0..versions.len()).map(|at| objects[at].is_none() && may_go(at)).collect();
    let mut done = vec![false; versions.len()];
    for at in 0..versions.len() {
        let Some(first) = objects[at].as_ref().filter(|_| !done[at]) else { continue };
        let incarnation = versions[at].incarnation;
        let of_kind = |other: usize| {
            objects[other].as_ref().filter(|object| versions[other].incarnation == incarnation && object.is_like(first))
        };
        let kind: Vec<Option<&Object>> = (0..versions.len()).map(of_kind).collect();
        let base = base.as_ref().filter(|(of, object)| *of == incarnation && object.is_like(first));
        let of_these = self::silent(graph, &kind, base.map(|(_, object)| object), &first.schema(rules), &may_go);
        for other in (0..versions.len()).filter(|other| kind[*other].is_some()) {
            (done[other], silent[other]) = (true, of_these[other]);
        }
    }
    silent
}

/// The leaves of each object that are not the same in all of them.
fn flattened(objects: &[Option<&Object>], base: Option<&Object>, schema: &Schema<'_>) -> (Vec<Option<Leaves>>, Leaves) {
    let all: Vec<&Json> = objects.iter().flatten().chain(&base).map(|object| &object.json).collect();
    let mut rests = Divided::of(&all, schema).rests.into_iter().map(|rest| {
        let mut found = Leaves::new();
        leaves::flatten(&rest, schema, &mut |key, _, text| drop(found.insert(key.to_owned(), text)));
        found
    });
    let leaves = objects.iter().map(|object| object.and_then(|_| rests.next())).collect();
    (leaves, base.and_then(|_| rests.next()).unwrap_or_default())
}

/// The leaves in which two values differ.
fn changed<'a>(before: &'a Leaves, after: &'a Leaves) -> impl Iterator<Item = &'a str> {
    let set = after.iter().filter(|(key, text)| before.get(*key) != Some(text)).map(|(key, _)| key.as_str());
    set.chain(before.keys().filter(|key| !after.contains_key(*key)).map(String::as_str))
}

/// Marks the silent versions of one run.
fn pass_over(
    run: &[usize],
    leaves: &[Option<Leaves>],
    start: &Start<'_>,
    may_go: &impl Fn(usize) -> bool,
    silent: &mut [bool],
) {
    let known: Vec<(usize, &Leaves)> = run.iter().filter_map(|at| Some((*at, leaves[*at].as_ref()?))).collect();
    let Some(last_of_run) = run.last() else { return };
    let mut before = match start {
        Start::Leaves(leaves) => Some(*leaves),
        Start::Merged => None,
    };
    let mut last_edit: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, (_, after)) in known.iter().enumerate() {
        let previous = place.checked_sub(1).map(|previous| known[previous].1).or(before);
        let Some(previous) = previous else { continue };
        last_edit.extend(changed(previous, after).map(|key| (key, place)));
    }
    for (place, (at, after)) in known.iter().enumerate() {
        let goes = match (before, known.get(place + 1)) {
            _ if at == last_of_run || !may_go(*at) => false,
            // What follows is another incarnation: nothing can stand on this one any more.
            (_, None) => true,
            (None, _) => false,
            (Some(before), Some((_, next))) => {
                !last_edit.values().any(|last| *last == place)
                    && last_edit.iter().all(|(key, last)| *last != place + 1 || next.get(*key) != before.get(*key))
            }
        };
        if goes {
            silent[*at] = true;
        } else {
            before = Some(after);
        }
    }
}
