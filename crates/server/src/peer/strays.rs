//! How many objects lie in namespaces that do not exist, for who asks for the status.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::node::Handle;

/// Keys that are looked at under one lock: less than a millisecond.
const LOOK_KEYS: usize = 1_000;

/// A count stands for so many times as long as it took. So counting costs at most 2 % of a core, however often one asks.
const REST: u32 = 50;

/// The last count.
#[derive(Debug, Default)]
pub(super) struct Counted(Mutex<Option<Count>>);

#[derive(Debug)]
struct Count {
    at: Instant,
    took: Duration,
    strays: u64,
}

impl Counted {
    /// Counts, a few keys in each look, unless the last count still stands.
    pub(super) fn strays(&self, node: &Handle) -> u64 {
        let mut last = self.0.lock();
        if let Some(count) = last.as_ref().filter(|count| count.at.elapsed() < count.took * REST) {
            return count.strays;
        }
        let start = Instant::now();
        let (mut strays, mut after) = (0, None);
        loop {
            let found = node.look(|replica| replica.strays(after.as_ref(), LOOK_KEYS));
            strays += found.count;
            after = found.next;
            if after.is_none() {
                break;
            }
        }
        *last = Some(Count { at: Instant::now(), took: start.elapsed(), strays });
        strays
    }
}
