//! Counts what was sent and how it went.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::op::Op;

#[derive(Default)]
struct Counts {
    requests: BTreeMap<String, u64>,
    passed: u64,
    failed: u64,
}

/// Shared counters of a run.
#[derive(Default)]
pub struct Tally(Mutex<Counts>);

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a sequence that was run.
    pub fn sequence(&self, ops: &[Op], passed: bool) {
        let mut counts = self.lock();
        for op in ops {
            let name = format!("{op:?}");
            let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            *counts.requests.entry(name.to_owned()).or_default() += 1;
        }
        *(if passed { &mut counts.passed } else { &mut counts.failed }) += 1;
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.lock().requests.values().sum()
    }

    /// Sequences that failed so far.
    pub fn failed(&self) -> u64 {
        self.lock().failed
    }

    /// Prints the totals; true when something passed and nothing failed.
    pub fn report(&self) -> bool {
        let counts = self.lock();
        for (name, n) in &counts.requests {
            println!("{n:8} {name}");
        }
        let total: u64 = counts.requests.values().sum();
        println!("{total} requests in {} sequences", counts.passed + counts.failed);
        println!("{} passed, {} failed", counts.passed, counts.failed);
        counts.passed > 0 && counts.failed == 0
    }
}
