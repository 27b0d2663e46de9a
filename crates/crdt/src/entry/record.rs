//! Entries and the records that journal them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::entry::change::{Applied, Change, ChangeKind, net};
use crate::words::chain::Chain;
use crate::words::clock::Stamp;
use crate::words::id::Dot;
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// What names an entry and places it among all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryHead {
    /// Its name.
    pub dot: Dot,
    /// The first `seq` that it stands for. It is its own, unless entries before it were left out. Such entries were
    /// left out because later ones wrote over all that they did, and no peer was ever offered them.
    pub first_seq: u64,
    /// Its hybrid logical time, above those of everything it depends on.
    pub stamp: Stamp,
    /// The number of the rules by which its origin merged when it made it.
    pub rules: u32,
    /// What its origin had applied besides its own entries, as the change since its origin's previous entry.
    pub depends: VersionVector,
    /// The chain hash of its origin's previous entry (the one before `first_seq`).
    pub previous: Chain,
    /// The chain hash up to it, where it cannot be computed because it stands for entries that are left out.
    pub resulting: Option<Chain>,
}

/// One committed transaction as its origin made it: what travels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name and place.
    pub head: EntryHead,
    /// What it did. None of it is local.
    pub changes: Vec<Change>,
}

impl Entry {
    /// About how many bytes it takes to send, without compression.
    pub fn weight(&self) -> usize {
        let change = |change: &Change| {
            let value = if let ChangeKind::Put { value, .. } = &change.kind { value.len() } else { 0 };
            32 + change.key.len() + value
        };
        64 + self.changes.iter().map(change).sum::<usize>()
    }

    /// The last change of each key: what one transaction did to a key in the end is all that counts elsewhere.
    pub fn net(&self) -> Vec<&Change> {
        net(&self.changes)
    }
}

/// What a replica journals per applied entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// This replica's own number of it.
    pub number: u64,
    /// The revision it took here, if it touched client keys. Where changes or outcomes are applied [after](Applied::after) it,
    /// it took later ones too. Records of one step name the same, the first of the step.
    pub revision: Option<Revision>,
    /// The entry's name and place. `None` where the record holds no entry: all its changes stay on this replica, or it
    /// came with a snapshot.
    pub head: Option<EntryHead>,
    /// Its changes; only those that are still needed once `trimmed`.
    pub changes: Vec<Change>,
    /// What the keys became that are not simply as the entry's changes say.
    pub outcomes: Vec<Change>,
    /// Whether it is no entry to send any more: its entry left the log, and changes may have been dropped. What is left of it
    /// is history.
    pub trimmed: bool,
    /// Whether there were no other members when it was written: nobody ever needs it as an entry.
    pub settled: bool,
    /// Of an entry that was applied together with others, as one step, the number of the last one's record. What a key
    /// became stands in the record of the last change of it. `None` where the entry was a step of its own.
    pub until: Option<u64>,
    /// Which bases its versions stand on and leave, where the journal does not tell.
    pub bases: Bases,
    /// What it says of other records. One that says anything holds nothing else.
    pub notes: Notes,
}

/// What is known of records that are on disk already and do not say it: they are written anew some time later, many together. Of two
/// notes about one record the later one counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Notes {
    /// The entries in these have left the log.
    pub left: BTreeSet<u64>,
    /// What these are to say of bases.
    pub bases: BTreeMap<u64, Arc<Bases>>,
}

impl Notes {
    /// Whether they say nothing.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty() && self.bases.is_empty()
    }
}

/// Where something has left a key's window, what the key was shown as holds it, and a merge of what is there now does not. So a
/// start cannot tell from that alone what the window's base is. Changes are named by their places in [`Entry::net`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bases {
    /// After these the key was shown as it is in no base.
    pub none: BTreeSet<u32>,
    /// What lies below these.
    pub below: BTreeMap<u32, Below>,
}

/// What lies below a version before which something left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Below {
    /// What is in that record; `None` where the key is not there.
    Base(Option<u64>),
    /// Nothing that a window can stand on.
    NoBase,
}

impl Record {
    /// One that holds notes and nothing else.
    pub fn of_notes(number: u64, notes: Notes) -> Self {
        Self {
            number,
            revision: None,
            head: None,
            changes: vec![],
            outcomes: vec![],
            trimmed: false,
            settled: false,
            until: None,
            bases: Bases::default(),
            notes,
        }
    }

    /// What happened to keys here, in order.
    pub fn effective(&self) -> impl Iterator<Item = (Applied, &Change)> {
        let all = self.changes.iter().chain(&self.outcomes);
        let mut applied: SmallVec<[_; 2]> = all.filter_map(|change| Some((change.applied?, change))).collect();
        // What merges gave stands behind the changes in the record, but not in the revision.
        applied.sort_by_key(|(applied, _)| (applied.after, applied.sub));
        applied.into_iter()
    }

    /// The entry in it, as it travels.
    pub fn entry(&self) -> Option<Entry> {
        let changes = self.changes.iter().filter(|change| !change.local).map(Change::travelling).collect();
        Some(Entry { head: self.head.clone()?, changes })
    }
}
