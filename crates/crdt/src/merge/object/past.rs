//! Who edited which leaf, and what a leaf is where some versions come together, read from their vectors.
//!
//! An origin's versions are ordered. So of each origin only its last write of a leaf can stand at a point, and what
//! was added to a counter is a part of the origin's sums. The answer costs as much as there are origins, however many
//! versions there are. It is what Automerge says of the same history; [`super::contest`] compares both.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use super::document::{Edit, Scalar};
use crate::merge::graph::Positions;
use crate::merge::version::Version;
use crate::words::id::Origin;

/// Leaves as scalars, by their written paths.
pub type Scalars = BTreeMap<String, Scalar>;

/// What versions did to the leaves, in an order in which ancestors come first.
pub struct Past<'a> {
    base: Scalars,
    versions: Vec<&'a Version>,
    leaves: HashMap<String, Editors>,
}

/// Who edited a leaf, by origin and in order.
#[derive(Default)]
struct Editors {
    /// The versions that wrote it or took it away (`None`).
    writes: BTreeMap<Origin, Vec<(usize, Option<Scalar>)>>,
    /// The versions that added to it, with the sum of what the origin has added then.
    adds: BTreeMap<Origin, Vec<(usize, i64)>>,
}

impl<'a> Past<'a> {
    /// Nothing was done to these leaves.
    pub fn new(base: Scalars) -> Self {
        Self { base, versions: vec![], leaves: HashMap::new() }
    }

    /// How many versions were added.
    pub fn count(&self) -> usize {
        self.versions.len()
    }

    /// What was there before all versions.
    pub fn base(&self) -> &Scalars {
        &self.base
    }

    /// All leaves that any version has edited.
    pub fn touched(&self) -> impl Iterator<Item = &String> {
        self.leaves.keys()
    }

    /// Whether versions edited that leaf of which neither saw the other.
    pub fn is_contested(&self, key: &str) -> bool {
        let Some(editors) = self.leaves.get(key) else { return false };
        let writes = editors.writes.values().flatten().map(|(at, _)| *at);
        let mut all: SmallVec<[usize; 4]> = writes.chain(editors.adds.values().flatten().map(|(at, _)| *at)).collect();
        all.sort_unstable();
        all.windows(2).any(|pair| !self.descends(pair[1], pair[0]))
    }

    /// The name of that leaf if any version has edited it.
    pub fn edited(&self, key: &str) -> Option<&String> {
        self.leaves.get_key_value(key).map(|(key, _)| key)
    }

    /// Adds a version, and what it edits.
    pub fn push<'e>(&mut self, version: &'a Version, edits: impl Iterator<Item = (&'e String, &'e Edit)>) {
        let (at, origin) = (self.versions.len(), version.dot.origin);
        self.versions.push(version);
        for (key, edit) in edits {
            if !self.leaves.contains_key(key) {
                self.leaves.insert(key.clone(), Editors::default());
            }
            let Some(editors) = self.leaves.get_mut(key) else { continue };
            match edit {
                Edit::Put(scalar) => editors.writes.entry(origin).or_default().push((at, Some(scalar.clone()))),
                Edit::Delete => editors.writes.entry(origin).or_default().push((at, None)),
                Edit::Add(by) => {
                    let sums = editors.adds.entry(origin).or_default();
                    let sum = sums.last().map_or(0, |(_, sum)| *sum).saturating_add(*by);
                    sums.push((at, sum));
                }
            }
        }
    }

    fn descends(&self, at: usize, below: usize) -> bool {
        self.versions[at].descends_from(self.versions[below].dot)
    }

    /// Whether that version is one of these heads, or below one of them.
    pub fn is_under(&self, at: usize, heads: &[usize]) -> bool {
        heads.iter().any(|head| *head == at || self.descends(*head, at))
    }

    /// The versions whose writes of a leaf stand where these come together: those that no other of them saw. None: what
    /// was there before stands.
    pub fn standing(&self, key: &str, heads: &[usize]) -> Positions {
        self.leaves
            .get(key)
            .map(|editors| self.last_writes(editors, heads))
            .unwrap_or_default()
            .into_iter()
            .map(|(at, _)| at)
            .collect()
    }

    fn last_writes<'e>(&self, editors: &'e Editors, heads: &[usize]) -> SmallVec<[(usize, Option<&'e Scalar>); 2]> {
        let mut last: SmallVec<[(usize, Option<&Scalar>); 2]> = SmallVec::new();
        for writes in editors.writes.values() {
            let count = writes.partition_point(|(at, _)| self.is_under(*at, heads));
            last.extend(count.checked_sub(1).map(|newest| (writes[newest].0, writes[newest].1.as_ref())));
        }
        let all = last.clone();
        last.retain(|(at, _)| !all.iter().any(|(other, _)| self.descends(*other, *at)));
        last
    }

    /// What that version writes there.
    pub fn written(&self, key: &str, at: usize) -> Option<&Scalar> {
        let writes = self.leaves.get(key)?.writes.get(&self.versions[at].dot.origin)?;
        let place = writes.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        writes[place].1.as_ref()
    }

    /// All values of a leaf where these versions come together, each with its writer (`None`: it was there before).
    pub fn values(&self, key: &str, heads: &[usize]) -> Vec<(Option<usize>, Scalar)> {
        let before = || self.base.get(key).map(|scalar| (None, scalar.clone()));
        let Some(editors) = self.leaves.get(key) else { return before().into_iter().collect() };
        let last = self.last_writes(editors, heads);
        let standing: Vec<(Option<usize>, Scalar)> = match last.is_empty() {
            true => before().into_iter().collect(),
            false => last.into_iter().filter_map(|(at, scalar)| Some((Some(at), scalar?.clone()))).collect(),
        };
        let added = |writer: Option<usize>, number: i64| {
            let sums = editors.adds.values().map(|sums| {
                let upto = |count: usize| count.checked_sub(1).map_or(0, |last| sums[last].1);
                let seen = sums.partition_point(|(at, _)| self.is_under(*at, heads));
                let others = writer.map_or(0, |writer| sums.partition_point(|(at, _)| !self.descends(*at, writer)));
                if others < seen { upto(seen) - upto(others) } else { 0 }
            });
            sums.fold(number, i64::saturating_add)
        };
        let with_sum = |(writer, scalar)| match scalar {
            Scalar::Counter(number) => (writer, Scalar::Counter(added(writer, number))),
            text @ Scalar::Text(_) => (writer, text),
        };
        standing.into_iter().map(with_sum).collect()
    }

    /// The versions that have written a counter or taken it away, and those that have added to it.
    pub fn counted(&self, key: &str) -> (Vec<usize>, Vec<usize>) {
        let Some(editors) = self.leaves.get(key) else { return (vec![], vec![]) };
        let writes = editors.writes.values().flatten().map(|(at, _)| *at).collect();
        (writes, editors.adds.values().flatten().map(|(at, _)| *at).collect())
    }

    /// Whether any version has added to a counter.
    pub fn adds(&self) -> bool {
        self.leaves.values().any(|editors| !editors.adds.is_empty())
    }

    /// The first version of each origin that writes a leaf and saw that version.
    pub fn next_writes(&self, key: &str, at: usize) -> Positions {
        let Some(editors) = self.leaves.get(key) else { return Positions::new() };
        let next = editors.writes.values().filter_map(|writes| {
            writes.get(writes.partition_point(|(other, _)| !self.descends(*other, at))).map(|(other, _)| *other)
        });
        next.collect()
    }

    /// Whether one of the writes of a leaf that stand where these versions come together says that.
    pub fn says(&self, key: &str, heads: &[usize], value: Option<&Scalar>) -> bool {
        let last = self.leaves.get(key).map(|editors| self.last_writes(editors, heads)).unwrap_or_default();
        if last.is_empty() { self.base.get(key) == value } else { last.iter().any(|(_, written)| *written == value) }
    }
}
