//! The rules by which a cluster merged and merges, by their numbers.
//!
//! A version says by which rules its writer merged: the highest number in its past. A segment of a window is merged by the
//! lowest number among its versions. That is a function of the set of versions, so all replicas agree on it, whatever came
//! when. One whose versions are all of the newest number is merged by the newest rules. Rules that no version can need any more
//! leave the book; the first ones stay, because they name what the founders chose.

use crate::merge::rules::{FIRST, Rules};

/// The rules of a cluster: those with which it began, and those that followed and may still be needed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleBook {
    first: Rules,
    /// Those with later numbers, without holes.
    later: Vec<Rules>,
    /// How many of the later ones are in use. The one behind them is declared, and some member may not know it yet.
    in_use: usize,
}

impl From<Rules> for RuleBook {
    fn from(first: Rules) -> Self {
        Self { first, later: vec![], in_use: 0 }
    }
}

impl RuleBook {
    /// The book of these rules, in the order of their numbers. Those up to number `current` are in use.
    pub fn new(first: Rules, later: Vec<Rules>, current: u32) -> Self {
        let in_use = later.iter().filter(|rules| rules.number <= current).count();
        Self { first, later, in_use }
    }

    /// The rules with which the cluster began.
    pub fn first(&self) -> &Rules {
        &self.first
    }

    /// The newest rules in use.
    pub fn current(&self) -> &Rules {
        self.in_use.checked_sub(1).map_or(&self.first, |last| &self.later[last])
    }

    /// The rules that are declared and not in use yet.
    pub fn declared(&self) -> Option<&Rules> {
        self.later.get(self.in_use)
    }

    /// The newest rules, in use or declared.
    pub fn newest(&self) -> &Rules {
        self.declared().unwrap_or(self.current())
    }

    /// The rules of that number. No version has one that is not in the book.
    pub fn of(&self, number: u32) -> &Rules {
        let Some(begin) = self.later.first().map(|rules| rules.number).filter(|_| number > FIRST) else {
            return &self.first;
        };
        let at = (number.saturating_sub(begin) as usize).min(self.later.len() - 1);
        &self.later[at]
    }

    /// Whether this book has newer rules than `other`, in use or declared.
    pub fn foresees(&self, other: &Self) -> bool {
        self.newest().number > other.newest().number || self.current().number > other.current().number
    }

    /// Whether that number is in the book.
    pub fn knows(&self, number: u32) -> bool {
        number == FIRST || self.later.iter().any(|rules| rules.number == number)
    }

    /// The lowest number behind the first.
    pub fn oldest_later(&self) -> Option<u32> {
        self.later.first().map(|rules| rules.number)
    }

    /// All numbers in the book, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(&self.first).chain(&self.later).map(|rules| rules.number)
    }
}
