//! Remembers the answers of HashKV. As in etcd, the answer at a revision stays the same when history is compacted at
//! exactly that revision. The hashed history is gone then all the same.

use std::collections::VecDeque;

use eddy_crdt::Revision;

use super::state::HashKv;

/// Most answers that are remembered, as in etcd.
const REMEMBERED_MAX: usize = 10;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Hashes {
    /// Answers since the last compaction, newest last.
    asked: VecDeque<HashKv>,
    /// Answers at revisions at which history was compacted later.
    compacted: VecDeque<HashKv>,
}

impl Hashes {
    /// The remembered answer at a revision at which history was compacted.
    pub(super) fn get(&self, at: Revision) -> Option<HashKv> {
        self.compacted.iter().find(|hash| hash.revision == at).copied()
    }

    /// Remembers an answer.
    pub(super) fn note(&mut self, hash: HashKv) {
        if !self.asked.contains(&hash) {
            push(&mut self.asked, hash);
        }
    }

    /// Notes that history was compacted at `at`; the compaction before was at `before`.
    pub(super) fn compact(&mut self, before: Option<Revision>, at: Option<Revision>) {
        if let Some(hash) = self.asked.iter().find(|hash| Some(hash.revision) == at && hash.compacted == before) {
            push(&mut self.compacted, *hash);
        }
        self.asked.clear();
    }
}

fn push(hashes: &mut VecDeque<HashKv>, hash: HashKv) {
    if hashes.len() == REMEMBERED_MAX {
        hashes.pop_front();
    }
    hashes.push_back(hash);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_at_the_compacted_revision_since_the_compaction_before_survive() {
        let rev = Revision::new;
        let hash = |at, compacted| HashKv { hash: at as u32, revision: rev(at), compacted };
        let mut hashes = Hashes::default();
        hashes.note(hash(5, None));
        hashes.note(hash(7, None));
        assert_eq!(hashes.get(rev(5)), None);
        hashes.compact(None, Some(rev(5)));
        assert_eq!((hashes.get(rev(5)), hashes.get(rev(7))), (Some(hash(5, None)), None));
        // Taken while the history below 5 was still there.
        hashes.note(hash(9, None));
        hashes.compact(Some(rev(5)), Some(rev(9)));
        assert_eq!((hashes.get(rev(5)), hashes.get(rev(9))), (Some(hash(5, None)), None));
        for at in 10..30 {
            hashes.note(hash(at, Some(rev(at - 1))));
            hashes.compact(Some(rev(at - 1)), Some(rev(at)));
        }
        assert_eq!((hashes.get(rev(19)), hashes.get(rev(20))), (None, Some(hash(20, Some(rev(19))))));
    }
}
