//! The causal graph of a few versions, read from their vectors.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::entry::ChangeKind;
use crate::merge::version::Version;
use crate::words::id::Origin;

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

    /// How many versions it has.
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// The maximal versions that this one descends from.
    pub fn parents(&self, at: usize) -> &[usize] {
        &self.parents[at]
    }

    /// How many ancestors it has: grows from parent to child, and is the same whatever order the list is in.
    pub fn depth(&self, at: usize) -> u64 {
        self.depths[at]
    }

    /// The version that continues the run this one is in: its only child, if that has no other parent.
    pub fn continuation(&self, at: usize) -> Option<usize> {
        let (1, child) = self.children[at] else { return None };
        (self.parents[child].len() == 1).then_some(child)
    }
}

/// For each of these versions, where its run deletes next: whatever it killed is killed by that, too.
pub fn next_deletes(graph: &Graph, versions: &[&Version]) -> Vec<Option<usize>> {
    let mut later = vec![None; versions.len()];
    for at in (0..versions.len()).rev() {
        if let Some(next) = graph.continuation(at) {
            later[at] = if versions[next].kind == ChangeKind::Delete { Some(next) } else { later[next] };
        }
    }
    later
}

/// Which versions must stay because a version beside them, neither above nor below, is of another incarnation. Were all of
/// an incarnation's versions beside another's to go, one of the others would look like a common point, and what lies below
/// a common point is not asked which incarnations a delete saw. A later version of the same incarnation that `stands_for`
/// one, and saw no more of other incarnations, is beside the same ones. It must not have seen more of what ended its own one
/// either: that would be a common point of both, with nothing below it.
pub fn beside_another_incarnation(versions: &[&Version], stands_for: impl Fn(usize, usize) -> bool) -> Vec<bool> {
    let first = versions.first().map(|first| first.incarnation);
    if versions.iter().all(|version| Some(version.incarnation) == first) {
        return vec![false; versions.len()];
    }
    // Of one origin's versions, which are a chain, those below a version come first, then those beside it.
    let mut chains: BTreeMap<Origin, Vec<&Version>> = BTreeMap::new();
    versions.iter().for_each(|version| chains.entry(version.dot.origin).or_default().push(version));
    let is_below = |other: &Version, version: &Version| other.dot == version.dot || version.descends_from(other.dot);
    let below = |chain: &[&Version], version: &Version| chain.partition_point(|other| is_below(other, version));
    let is_beside_another = |version: &Version| {
        chains.values().any(|chain| {
            let beside = chain[below(chain, version)..].iter().take_while(|other| !other.descends_from(version.dot));
            beside.into_iter().any(|other| other.incarnation != version.incarnation)
        })
    };
    let saw_no_more = |version: &Version, later: &Version| {
        chains.values().all(|chain| {
            let (begin, end) = (below(chain, version), below(chain, later));
            let is_of_it = |other: &&Version| other.incarnation == version.incarnation && other.value().is_some();
            chain[begin..end.max(begin)].iter().all(is_of_it)
        })
    };
    let is_held = |(at, version): (usize, &&Version)| {
        let mut later = later_of_incarnation(versions, at).take(NEAREST);
        is_beside_another(version) && !later.any(|place| stands_for(at, place) && saw_no_more(version, versions[place]))
    };
    versions.iter().enumerate().map(is_held).collect()
}

/// The versions of the same incarnation that descend from that one, the nearest first.
pub fn later_of_incarnation(versions: &[&Version], at: usize) -> impl Iterator<Item = usize> {
    let version = versions[at];
    let is_later = |later: &Version| later.incarnation == version.incarnation && later.descends_from(version.dot);
    (at + 1..versions.len()).filter(move |place| is_later(versions[*place]))
}

/// How many later versions are looked at to find one that stands for a version: the nearest ones ask the least of members,
/// and of a key with thousands of versions not all pairs are looked at.
pub const NEAREST: usize = 4;
