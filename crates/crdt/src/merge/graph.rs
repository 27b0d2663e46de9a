//! The causal graph of a few versions, read from their vectors.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::entry::ChangeKind;
use crate::merge::object::Object;
use crate::merge::version::Version;
use crate::words::id::Origin;
use crate::words::value::Live;

/// Positions in a list of versions.
pub type Positions = SmallVec<[usize; 2]>;

/// The parents and children in a list of versions in which ancestors come before descendants.
pub struct Graph {
    parents: Vec<Positions>,
    /// How many versions have it as a parent, and the last of them.
    children: Vec<(usize, usize)>,
    /// How many ancestors each has.
    depths: Vec<u64>,
}

impl Graph {
    /// Reads the graph from the vectors.
    pub fn of(versions: &[&Version]) -> Self {
        let mut by_origin: BTreeMap<Origin, Vec<usize>> = BTreeMap::new();
        let mut graph = Self {
            parents: Vec::with_capacity(versions.len()),
            children: vec![(0, 0); versions.len()],
            depths: Vec::with_capacity(versions.len()),
        };
        for (at, version) in versions.iter().enumerate() {
            // An origin's versions are ordered: its last one below this one covers all others of it.
            let mut depth = 0;
            let mut below = Positions::new();
            for list in by_origin.values() {
                let count = list.partition_point(|&i| version.descends_from(versions[i].dot));
                depth += count as u64;
                below.extend(count.checked_sub(1).map(|last| list[last]));
            }
            let parents: Positions = below
                .iter()
                .copied()
                .filter(|&a| !below.iter().any(|&b| a != b && versions[b].descends_from(versions[a].dot)))
                .collect();
            for &parent in &parents {
                graph.children[parent] = (graph.children[parent].0 + 1, at);
            }
            graph.parents.push(parents);
            graph.depths.push(depth);
            by_origin.entry(version.dot.origin).or_default().push(at);
        }
        graph
    }

    /// The maximal versions that this one descends from.
    pub fn parents(&self, at: usize) -> &[usize] {
        &self.parents[at]
    }

    /// How many ancestors it has: grows from parent to child, and is the same whatever order the list is in.
    pub fn depth(&self, at: usize) -> u64 {
        self.depths[at]
    }

    /// The version that continues the run this one is in: its only child, if that has the same origin and no other
    /// parent. Nobody else can tell the two apart.
    pub fn continuation(&self, at: usize, versions: &[&Version]) -> Option<usize> {
        let (1, child) = self.children[at] else { return None };
        let same = versions[child].dot.origin == versions[at].dot.origin;
        (same && self.parents[child].len() == 1).then_some(child)
    }
}

/// Which of these versions are middles of runs. The version after a middle is of the same origin, is the only one on
/// top of the middle, and stands on nothing else. To leave any middle out changes no outcome. A version that alters a
/// field which is set once is no middle, so that the first to set it stays known.
pub fn middles(graph: &Graph, versions: &[&Version], base: Option<&Live>, kubernetes: bool) -> Vec<bool> {
    let once = |value: Option<&[u8]>| value.and_then(Object::parse).map(|object| object.set_once()).unwrap_or_default();
    let value = |version: &'_ Version| match &version.kind {
        ChangeKind::Put { value, .. } => Some(value.clone()),
        ChangeKind::Delete | ChangeKind::Expire => None,
    };
    let alters_once = |at: usize| {
        let own = once(value(versions[at]).as_deref());
        let parents = graph.parents(at);
        let same = parents.iter().all(|&parent| once(value(versions[parent]).as_deref()) == own);
        !(same && (!parents.is_empty() || once(base.map(|base| &base.value[..])) == own))
    };
    (0..versions.len())
        .map(|at| graph.continuation(at, versions).is_some() && !(kubernetes && alters_once(at)))
        .collect()
}

/// Of these versions, the deletes after which their run deletes again: whatever they killed is killed without them.
pub fn repeated_deletes(graph: &Graph, versions: &[&Version]) -> Vec<bool> {
    let mut later = vec![false; versions.len()];
    for at in (0..versions.len()).rev() {
        if let Some(next) = graph.continuation(at, versions) {
            later[at] = later[next] || versions[next].kind == ChangeKind::Delete;
        }
    }
    later
}
