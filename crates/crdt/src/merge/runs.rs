//! Which versions of a key no merge needs, now or later: the fields of its objects in [`silent`], and everything else.
//!
//! A **run** is a chain of versions of which nothing else stands on the inner ones. Of what is no object, and of deletes, the
//! last one in a run stands for those before it.

use std::sync::Arc;

use crate::entry::ChangeKind;
use crate::merge::graph::Graph;
use crate::merge::object::Object;
use crate::merge::object::lately::reader;
use crate::merge::object::silent::{self, By};
use crate::merge::version::Version;
use crate::words::value::Live;

/// Which versions of a key can go, on top of `base`, `among` these. `may_go` tells of one whether what follows it in its
/// run stands for it; `stands_for` of one and another above it whether nobody can have the one and not the other.
pub(crate) fn silent_of_key(
    graph: &Graph,
    versions: &[&Version],
    base: Option<&Live>,
    by: By<'_>,
    among: &[bool],
    may_go: impl Fn(usize) -> bool,
    stands_for: impl Fn(usize, usize) -> bool,
) -> Vec<bool> {
    // One that began an incarnation on top of another one may have seen that this was done, which no other version says.
    let begins_on_top = |at: usize| {
        let begins = versions[at].incarnation.dot == versions[at].dot;
        let is_other = |below: &&Version| below.incarnation != versions[at].incarnation;
        begins
            && versions[..at].iter().filter(|below| is_other(below)).any(|below| versions[at].descends_from(below.dot))
    };
    let among: Vec<bool> = (0..versions.len()).map(|at| among[at] && !begins_on_top(at)).collect();
    let may_go = |at: usize| among[at] && may_go(at);
    let read = reader(versions.len());
    let objects: Vec<Option<Arc<Object>>> = versions.iter().map(|version| read(version.value()?)).collect();
    let base = base.and_then(|base| Some((base.incarnation, read(&base.value)?)));
    let mut goes: Vec<bool> = (0..versions.len()).map(|at| objects[at].is_none() && may_go(at)).collect();
    let mut done = vec![false; versions.len()];
    for first in 0..versions.len() {
        let Some(like) = objects[first].as_deref().filter(|_| !done[first]) else { continue };
        let incarnation = versions[first].incarnation;
        let of_kind = |at: &usize| {
            let object = objects[*at].as_deref().filter(|object| object.is_like(like));
            versions[*at].incarnation == incarnation && object.is_some()
        };
        let places: Vec<usize> = (first..versions.len()).filter(of_kind).collect();
        let all: Vec<(&Version, &Object)> =
            places.iter().filter_map(|at| Some((versions[*at], objects[*at].as_deref()?))).collect();
        // On what a delete follows, nothing can stand any more. A put of another incarnation kills nothing: a concurrent
        // version may carry this one on.
        let ends = |at: usize| graph.continuation(at).is_some_and(|next| versions[next].kind == ChangeKind::Delete);
        let ended: Vec<bool> = places.iter().map(|at| ends(*at) && may_go(*at)).collect();
        let base = base.as_ref().filter(|(of, object)| *of == incarnation && object.is_like(like));
        let (base, is_whole) = (base.map(|(_, object)| &**object), places.len() == versions.len());
        // Without one where several come together, what is no object may be all that the others stand on. They cannot be merged on that.
        let may_leave = |at: usize| among[at] && (is_whole || graph.continuation(at).is_some());
        let among: Vec<bool> = places.iter().map(|at| may_leave(*at)).collect();
        let of_object = silent::Versions { base, all: &all, among: &among, ended: &ended, is_whole, by };
        let silent = silent::silent(&of_object, |at, later| stands_for(places[at], places[later]));
        // What cannot be replayed is kept.
        let silent = silent.unwrap_or_else(|_| vec![false; places.len()]);
        for (at, silent) in places.into_iter().zip(silent) {
            (done[at], goes[at]) = (true, silent);
        }
    }
    goes
}
