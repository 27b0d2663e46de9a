//! A key's window: the versions of it that not every member is known to have, on top of what is settled.
//!
//! **Ancestry** is read from version vectors. A **common point** is a causal prefix of the window that every later
//! version descends from. Common points lie inside each other, so they cut the window into **segments**. A segment is
//! merged onto the outcome of all segments before it, and onto nothing else. That makes the outcome independent of how
//! many of the leading segments were folded into the base already. A segment of one version is a fast-forward; a longer
//! one always has several heads.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::entry::ChangeKind;
use crate::merge::book::RuleBook;
use crate::merge::graph::{self, Graph};
use crate::merge::object::silent::By;
use crate::merge::outcome::{self, MergeOutcome};
use crate::merge::rules::FIRST;
use crate::merge::runs;
use crate::merge::version::{Version, heads};
use crate::words::id::Dot;
use crate::words::key::Keyspace;
use crate::words::value::Live;
use crate::words::vector::VersionVector;

/// The unsettled versions of a key, and what is settled below them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Window {
    base: Option<Live>,
    /// In an order in which ancestors come before their descendants.
    versions: Vec<Version>,
    /// Where each segment begins in `versions`; ascending, the first is 0.
    segments: SmallVec<[usize; 1]>,
}

impl Window {
    /// A window without versions on top of a settled value; `None` when the key is settled as not there.
    pub fn new(base: Option<Live>) -> Self {
        Self { base, versions: vec![], segments: SmallVec::new() }
    }

    /// The settled value below the versions.
    pub fn base(&self) -> Option<&Live> {
        self.base.as_ref()
    }

    /// The versions, ancestors before descendants.
    pub fn versions(&self) -> &[Version] {
        &self.versions
    }

    /// Whether nothing is unsettled: the base is what the key is.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Whether every version descends from the one before it: nothing was concurrent.
    pub fn is_chain(&self) -> bool {
        self.segments.len() == self.versions.len()
    }

    /// Adds a version. Its ancestors that are unsettled must be there already, and it must not be. It must descend from
    /// everything that is settled.
    pub fn add(&mut self, version: Version) {
        debug_assert!(!self.versions.last().is_some_and(|v| v.descends_from(version.dot)), "a descendant came first");
        let mut begin = self.versions.len();
        while let Some(&last) = self.segments.last() {
            if self.versions[last..begin].iter().all(|v| version.descends_from(v.dot)) {
                break;
            }
            begin = last;
            self.segments.pop();
        }
        if self.versions.is_empty() {
            // Most windows have one version.
            self.versions.reserve_exact(1);
        }
        self.segments.push(begin);
        self.versions.push(version);
    }

    /// The versions that no other descends from.
    pub fn heads(&self) -> impl Iterator<Item = &Version> {
        heads(self.last_segment())
    }

    /// What the key is: a function of the versions alone.
    pub fn outcome(&self, book: &RuleBook, keyspace: Keyspace, key: &[u8]) -> MergeOutcome {
        self.outcome_of(self.segments.len(), book, keyspace, key)
    }

    /// Folds a causal prefix into the base: the largest one that lies under the floor, that all other versions descend
    /// from, and that ends at a version that `may_end` it. Changes no outcome.
    pub fn settle(
        &mut self,
        floor: &VersionVector,
        book: &RuleBook,
        keyspace: Keyspace,
        key: &[u8],
        may_end: impl Fn(Dot) -> bool,
    ) -> Settled {
        let count = self.settled_segments(floor, may_end);
        if count == 0 {
            return Settled::default();
        }
        let base = self.outcome_of(count, book, keyspace, key).live;
        self.fold(count, base)
    }

    /// The same without a merge: `base` tells what the key was after that number of versions, on which those that are kept
    /// stand.
    pub fn settle_known(
        &mut self,
        floor: &VersionVector,
        base: impl FnOnce(usize, &[Version]) -> Option<Live>,
        may_end: impl Fn(Dot) -> bool,
    ) -> Settled {
        let count = self.settled_segments(floor, may_end);
        let end = count.checked_sub(1).map_or(0, |last| self.segment(last).end);
        let base = base(end, &self.versions[end..]);
        if count == 0 {
            self.base = base;
            return Settled::default();
        }
        self.fold(count, base)
    }

    /// Whether all members are known to have all of its versions.
    pub(crate) fn is_under(&self, floor: &VersionVector) -> bool {
        self.versions.iter().all(|version| floor.contains(version.dot))
    }

    /// Whether [`Self::settle`] would fold something.
    pub(crate) fn may_settle(&self, floor: &VersionVector, may_end: impl Fn(Dot) -> bool) -> bool {
        self.settled_segments(floor, may_end) > 0
    }

    /// How many segments end at or before the first version above the floor, the last of them with a version that
    /// `may_end` what settles.
    fn settled_segments(&self, floor: &VersionVector, may_end: impl Fn(Dot) -> bool) -> usize {
        let unsettled = self.versions.iter().position(|v| !floor.contains(v.dot)).unwrap_or(self.versions.len());
        let settled = (0..self.segments.len()).take_while(|&i| self.segment(i).end <= unsettled);
        let ends = settled.filter(|&i| may_end(self.versions[self.segment(i).end - 1].dot));
        ends.last().map_or(0, |last| last + 1)
    }

    fn fold(&mut self, count: usize, base: Option<Live>) -> Settled {
        let end = self.segment(count - 1).end;
        self.base = base;
        self.segments.drain(..count);
        self.segments.iter_mut().for_each(|begin| *begin -= end);
        Settled { dots: self.versions.drain(..end).map(|v| v.dot).collect() }
    }

    /// Takes out what [is needless](Self::needless). Returns what that was, in order.
    pub fn drop_middles(
        &mut self,
        book: &RuleBook,
        lowest: u32,
        keyspace: Keyspace,
        key: &[u8],
        droppable: impl Fn(&Version, &Version) -> bool,
    ) -> Vec<Dot> {
        let needless = self.needless(book, lowest, keyspace, key, droppable);
        self.take_out(&needless);
        needless
    }

    /// Takes versions out that are needless together.
    pub fn take_out(&mut self, needless: &[Dot]) {
        if needless.is_empty() {
            return;
        }
        let gone: BTreeSet<Dot> = needless.iter().copied().collect();
        let versions = std::mem::take(&mut self.versions);
        self.segments.clear();
        versions.into_iter().filter(|version| !gone.contains(&version.dot)).for_each(|version| self.add(version));
    }

    /// What was overwritten by versions that stand for it, also where several wrote at the same time. One
    /// stands for another where that is `droppable`: no version anywhere can stand on the one and not on the other, which
    /// `droppable` is told, too. Of an object what holds the last edit of a leaf stays. A run keeps its last delete, which
    /// tells what it killed. Without all of these no outcome changes; without some of them one may. They are told in order.
    ///
    /// Versions that are still to come have rules number `lowest` or a higher one. So what goes must be silent by all rules
    /// by which its segment may be merged yet. What stands for a version has the same number, so that the lowest one of
    /// the segment stays.
    pub fn needless(
        &self,
        book: &RuleBook,
        lowest: u32,
        keyspace: Keyspace,
        key: &[u8],
        droppable: impl Fn(&Version, &Version) -> bool,
    ) -> Vec<Dot> {
        let all: Vec<&Version> = self.versions.iter().collect();
        let graph = Graph::of(&all);
        let droppable = |version: &Version, next: &Version| version.rules == next.rules && droppable(version, next);
        let next_deletes = graph::next_deletes(&graph, &all);
        let is_covered = |at: usize, later: usize| droppable(all[at], all[later]);
        let stands = |at: usize, later: usize| {
            let kills_again = || next_deletes[at].is_some_and(|again| is_covered(at, again));
            is_covered(at, later) && (all[at].kind != ChangeKind::Delete || kills_again())
        };
        let held = graph::beside_another_incarnation(&all, is_covered);
        let goes = |at: usize| !held[at] && graph.continuation(at).is_some_and(|next| stands(at, next));
        let is_kubernetes = book.current().is_kubernetes(keyspace, key);
        // A put that began an incarnation on top of several versions may have seen that these were done together.
        let ends = |version: &&&Version| match version.kind {
            ChangeKind::Put { .. } => is_kubernetes && version.incarnation.dot == version.dot,
            ChangeKind::Delete | ChangeKind::Expire => true,
        };
        let ends: Vec<&Version> = all.iter().filter(ends).copied().collect();
        let stands_for = |at: usize, later: usize| is_covered(at, later) && is_seen_alike(&ends, all[at], all[later]);
        let gone: Vec<bool> = match is_kubernetes {
            true => {
                let numbers = || all.iter().map(|version| version.rules);
                let lowest = numbers().min().map_or(lowest, |number| number.min(lowest));
                let highest = numbers().max().unwrap_or(lowest);
                let is_moving = lowest < highest;
                let mut gone: Vec<bool> = held.iter().map(|held| !held).collect();
                loop {
                    let before = gone.clone();
                    for number in lowest..=highest {
                        let base = self.base.as_ref();
                        let by = By { rules: book.of(number), is_moving };
                        gone = runs::silent_of_key(&graph, &all, base, by, &gone, goes, stands_for);
                    }
                    if !is_moving || gone == before {
                        break gone;
                    }
                }
            }
            false => {
                let middles: Vec<bool> = (0..all.len()).map(goes).collect();
                let stands_for = |at: usize, later: usize| !middles[later] && stands_for(at, later);
                let is_overwritten = |at: usize| !held[at] && is_overwritten(&all, at, stands_for);
                (0..all.len()).map(|at| middles[at] || is_overwritten(at)).collect()
            }
        };
        self.versions.iter().zip(gone).filter_map(|(version, gone)| gone.then_some(version.dot)).collect()
    }

    /// Where that segment lies.
    fn segment(&self, index: usize) -> std::ops::Range<usize> {
        self.segments[index]..self.segments.get(index + 1).copied().unwrap_or(self.versions.len())
    }

    /// The versions that are alone in their segments: all before one of them are in its past, and it is in that of all behind it.
    pub(crate) fn alone(&self) -> impl Iterator<Item = Dot> {
        let alone = (0..self.segments.len()).filter(|index| self.segment(*index).len() == 1);
        alone.map(|index| self.versions[self.segments[index]].dot)
    }

    fn last_segment(&self) -> &[Version] {
        self.segments.last().map_or(&[], |&begin| &self.versions[begin..])
    }

    /// The outcome of the first `count` segments.
    fn outcome_of(&self, count: usize, book: &RuleBook, keyspace: Keyspace, key: &[u8]) -> MergeOutcome {
        // A segment of one version does not look at what is below it: start at the last such one.
        let start = (0..count).rev().find(|&i| self.segment(i).len() == 1);
        let mut outcome = match start {
            Some(i) => MergeOutcome::fast_forward(self.versions[self.segments[i]].live()),
            None => MergeOutcome::fast_forward(self.base.clone()),
        };
        for i in start.map_or(0, |i| i + 1)..count {
            let versions = &self.versions[self.segment(i)];
            let number = versions.iter().map(|version| version.rules).min().unwrap_or(FIRST);
            outcome = outcome::merge(outcome.live.as_ref(), versions, book.of(number), keyspace, key);
        }
        outcome
    }
}

/// Whether an opaque put may go because another one of its incarnation descends from it that `stands_for` it. Of opaque
/// values only the heads count, and which incarnations a delete saw.
fn is_overwritten(versions: &[&Version], at: usize, stands_for: impl Fn(usize, usize) -> bool) -> bool {
    let is_put = |at: usize| matches!(versions[at].kind, ChangeKind::Put { .. });
    let mut later = graph::later_of_incarnation(versions, at).filter(|later| is_put(*later)).take(graph::NEAREST);
    is_put(at) && later.any(|later| stands_for(at, later))
}

/// Whether all versions that ended something and saw a version saw the later one, too.
fn is_seen_alike(ends: &[&Version], version: &Version, later: &Version) -> bool {
    ends.iter().all(|end| !end.descends_from(version.dot) || end.descends_from(later.dot))
}

/// What a settling took out of a window.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settled {
    /// The versions that are in the base now, ancestors before descendants.
    pub dots: Vec<Dot>,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::merge::object::lately::{self, tests::value};
    use crate::words::clock::Stamp;
    use crate::words::id::{Birth, Origin, ReplicaId};
    use crate::words::value::Incarnation;

    /// Three writers in turn, none of whom sees the others. Each version is merged with all that are there.
    #[test]
    fn while_a_window_grows_each_version_is_read_once() {
        const VERSIONS: u64 = 60;
        let dot = |at: u64| {
            let origin = Origin { replica: ReplicaId::new(at % 3 + 1), birth: Birth::new(1) };
            Dot { origin, seq: at / 3 + 1 }
        };
        let incarnation = Incarnation { stamp: Stamp::default(), dot: dot(0) };
        let live = Live { value: value("base"), lease: None, version: 1, incarnation };
        let mut window = Window::new(Some(live));
        for at in 0..VERSIONS {
            window.add(Version {
                dot: dot(at),
                stamp: Stamp::new(at),
                rules: 1,
                deps: Arc::default(),
                kind: ChangeKind::Put { value: value(&at.to_string()), lease: None, version: 2 },
                incarnation,
            });
            let outcome = window.outcome(&RuleBook::default(), Keyspace::Client, b"/registry/configmaps/default/a");
            assert!(outcome.live.is_some());
            // The first two are read with the third: until then nothing is kept.
            assert!(at < 2 || lately::count() == at as usize + 2, "the base and {at} more: {}", lately::count());
        }
        assert_eq!(lately::count(), VERSIONS as usize + 1, "and the base once");
    }
}
