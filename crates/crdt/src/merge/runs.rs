//! What a run of versions says about each leaf of an object: its last edit, and nothing else.
//!
//! A **run** is a chain of versions of which nothing else stands on the inner ones. The last edit of a leaf in the run
//! counts, with the stamp of the version that made it. That holds also when it set the leaf back to what it was. A
//! version is **silent** when its run says the same about every leaf without it. The last edit of each leaf is then in
//! the same version as before. So silent versions can be passed over, or left out for good, in any order. The outcome
//! of a merge stays.
//!
//! A run can end earlier than it seems: a version may still come that stands on one of its inner ones. So one is left out for
//! good only when the versions that write over its edits stand for it, too: nothing can come that has it and not them.

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
/// kind and incarnation; `base` what all of them descend from. Only versions are told for which all those that make them
/// silent `stand` (the second place for the first).
pub(crate) fn silent(
    graph: &Graph,
    objects: &[Option<&Object>],
    base: Option<&Object>,
    schema: &Schema<'_>,
    stands: impl Fn(usize, usize) -> bool,
) -> Vec<bool> {
    let mut silent = vec![false; objects.len()];
    let may_go = |at: usize| graph.continuation(at).is_some_and(|next| stands(at, next));
    if !(0..objects.len()).any(|at| objects[at].is_some() && may_go(at)) {
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
        pass_over(&run, &leaves, &start, &stands, &mut silent);
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
    stands: impl Fn(usize, usize) -> bool,
) -> Vec<bool> {
    let may_go = |at: usize| graph.continuation(at).is_some_and(|next| stands(at, next));
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
        let of_these = self::silent(graph, &kind, base.map(|(_, object)| object), &first.schema(rules), &stands);
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
    stands: &impl Fn(usize, usize) -> bool,
    silent: &mut [bool],
) {
    let known: Vec<(usize, &Leaves)> = run.iter().filter_map(|at| Some((*at, leaves[*at].as_ref()?))).collect();
    let mut before = match start {
        Start::Leaves(leaves) => Some(*leaves),
        Start::Merged => None,
    };
    // Which leaves each version edits, and where each leaf is edited.
    let mut edited: Vec<Vec<&str>> = vec![];
    let mut edits: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, (_, after)) in known.iter().enumerate() {
        let previous = place.checked_sub(1).map(|previous| known[previous].1).or(before);
        edited.push(previous.map(|previous| changed(previous, after).collect()).unwrap_or_default());
        edited[place].iter().for_each(|key| edits.entry(key).or_default().push(place));
    }
    // Whether a leaf is edited again behind a place, by a version that stands for the one at `at`.
    let is_edited_again = |at: usize, key: &str, place: usize| {
        let again = edits.get(key).and_then(|places| places.get(places.partition_point(|edit| *edit <= place)));
        again.is_some_and(|again| stands(at, known[*again].0))
    };
    for (place, (at, after)) in known.iter().enumerate() {
        let next_of_run = run.get(run.partition_point(|of_run| of_run <= at));
        let goes = match (next_of_run, before, known.get(place + 1)) {
            (None, _, _) => false,
            (Some(next), _, _) if !stands(*at, *next) => false,
            // What follows is another incarnation: nothing can stand on this one any more.
            (_, _, None) => true,
            (_, None, _) => false,
            (_, Some(before), Some((_, next))) => {
                // The edits of the next one that take back those of this one are none without it.
                let taken_back = |key: &&&str| next.get(**key) == before.get(**key);
                edited[place].iter().all(|key| is_edited_again(*at, key, place))
                    && edited[place + 1].iter().filter(taken_back).all(|key| is_edited_again(*at, key, place + 1))
            }
        };
        if goes {
            silent[*at] = true;
        } else {
            before = Some(after);
        }
    }
}
