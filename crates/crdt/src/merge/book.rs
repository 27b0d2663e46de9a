//! The rules by which a cluster merged and merges, by their numbers.
//!
//! A version says by which rules its writer merged: the highest number in its past. A segment of a window is merged by the
//! lowest number among its versions. That is a function of the set of versions, so all replicas agree on it, whatever came
//! when. One whose versions are all of the newest number is merged by the newest rules.

use crate::merge::rules::{FIRST, Rules};

/// The rules of a cluster: those with which it began, and all that followed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleBook {
    first: Rules,
    /// Number 2 and on, without holes.
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
        let in_use = (current.saturating_sub(FIRST) as usize).min(later.len());
        Self { first, later, in_use }
    }

    /// The rules with which the cluster began.
    pub fn first(&self) -> &Rules {
        &self.first
    }

    /// The newest rules in use.
    pub fn current(&self) -> &Rules {
        self.of(FIRST + self.in_use as u32)
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
        let later = (number as usize).checked_sub(FIRST as usize + 1);
        later.and_then(|at| self.later.get(at).or(self.later.last())).unwrap_or(&self.first)
    }

    /// Whether this book has all that `other` has, and more.
    pub fn foresees(&self, other: &Self) -> bool {
        self.later.len() > other.later.len() || self.in_use > other.in_use
    }

    /// Whether that number is in the book.
    pub fn knows(&self, number: u32) -> bool {
        (FIRST..=FIRST + self.later.len() as u32).contains(&number)
    }
}
