//! The search for the last entry of this replica that its peer knows as it does.

use crate::replica::Replica;
use crate::words::chain::Chain;
use crate::words::id::Dot;

/// How many chain hashes are asked for at once while searching.
const SEARCH_WIDTH: u64 = 64;

/// Looking for the last entry of our own that the peer knows as we do.
#[derive(Debug)]
pub(super) struct Search {
    /// The highest that is known to be the same.
    pub(super) agreed: u64,
    /// The lowest that is known to be different, or missing on one side.
    pub(super) differs: u64,
    /// The highest that the peer has.
    pub(super) theirs: u64,
}

impl Search {
    /// Learns from the peer's hashes; whether anything was news.
    pub(super) fn learn(&mut self, replica: &Replica, chains: &[(Dot, Chain)]) -> bool {
        let (before, own) = ((self.agreed, self.differs), replica.identity().origin());
        for (dot, chain) in chains.iter().filter(|(dot, _)| dot.origin == own) {
            match replica.chain_at(*dot) {
                Some(ours) if ours == *chain => self.agreed = self.agreed.max(dot.seq),
                Some(_) => self.differs = self.differs.min(dot.seq),
                None => {}
            }
        }
        before != (self.agreed, self.differs)
    }

    /// What to ask for next; nothing when it is found.
    pub(super) fn next(&self) -> Option<Vec<u64>> {
        let between = self.differs.checked_sub(self.agreed)?.checked_sub(1).filter(|n| *n > 0)?;
        let step = between.div_ceil(SEARCH_WIDTH);
        Some(
            (1..=SEARCH_WIDTH)
                .map(|n| self.differs.saturating_sub(n * step))
                .filter(|seq| *seq > self.agreed)
                .collect(),
        )
    }
}
