//! All live records in ascending order: those of a checkpoint, with what the log has on top of them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::super::dir::damaged;
use super::super::error::StorageError;
use super::super::overlay::{Overlay, Place};
use super::super::page::{self, Content, KEY_LEN, META_KEY, Meta, PageKey};
use super::super::wal::{self, Logs, Window};
use super::tree::Tree;

/// Where the records are.
#[derive(Debug, Clone)]
pub struct Source {
    pub tree: Option<Arc<dyn Tree>>,
    pub overlay: Arc<Overlay>,
    pub logs: Logs,
}

/// Records that lie together, with the key from which on to read next.
pub type Page = (Vec<(u64, Bytes)>, Option<PageKey>);

/// Reads a [`Source`] from some number on.
pub struct Reader<'a> {
    source: &'a Source,
    /// The key of the tree from which on pages were not read yet; `None`: there are no more.
    key: Option<PageKey>,
    /// Records of the tree that were read and not handed out yet.
    below: VecDeque<(u64, Bytes)>,
    /// From which number on the overlay was not looked at.
    above: Bound<u64>,
    /// Parts of the segments: records lie in ascending order in each of them, but for those that were replaced.
    windows: BTreeMap<u64, Window>,
}

/// The key behind all parts of a record.
pub fn after(number: u64) -> Option<PageKey> {
    number.checked_add(1).map(|next| page::key(next, 0)).filter(|key| *key != META_KEY)
}

fn bad(tree: &dyn Tree, key: &PageKey) -> StorageError {
    damaged(tree.path(), format!("the page at key {key:02x?} does not check out"))
}

/// The records of one page, or the one record that begins at this key; with the key from which on to read next.
pub fn records_at(tree: &dyn Tree, key: &PageKey, value: &Bytes) -> Result<Page, StorageError> {
    match page::decode(key, value).ok_or_else(|| bad(tree, key))?.content {
        Content::Meta => Ok((Vec::new(), None)),
        Content::Page(records) => {
            let next = records.last().and_then(|(last, _)| after(*last));
            Ok((records.into_iter().map(|(number, record)| (number, value.slice_ref(record))).collect(), next))
        }
        Content::Part { number, total, .. } => {
            let not_whole = || damaged(tree.path(), format!("record {number} is not whole"));
            let mut record = Vec::new();
            for part in 0.. {
                let key = page::key(number, part);
                let (found, value) = tree.at_or_above(&key)?.ok_or_else(not_whole)?;
                match page::decode(&found, &value).ok_or_else(|| bad(tree, &found))?.content {
                    Content::Part { part: p, total: t, bytes, .. } if found == key && (p, t) == (part, total) => {
                        record.extend_from_slice(bytes)
                    }
                    _ => return Err(not_whole()),
                }
                if record.len() as u64 >= total {
                    break;
                }
            }
            if record.len() as u64 != total {
                return Err(not_whole());
            }
            Ok((vec![(number, record.into())], after(number)))
        }
    }
}

/// The records of the page in which one of that number would be, with the key from which on to read next.
pub fn around(tree: &dyn Tree, number: u64) -> Result<Page, StorageError> {
    let Some((key, value)) = tree.at_or_below(&page::key(number, u32::MAX))? else {
        return Ok((Vec::new(), Some([0; KEY_LEN])));
    };
    match page::parse_key(&key) {
        // The last part of a long record; it begins with its first.
        Some((first, part)) if part > 0 => {
            let (key, value) = tree.at_or_above(&page::key(first, 0))?.ok_or_else(|| bad(tree, &key))?;
            records_at(tree, &key, &value)
        }
        _ => records_at(tree, &key, &value),
    }
}

/// The state that a tree was made with.
pub fn meta_of(tree: &dyn Tree) -> Result<Meta, StorageError> {
    let value = tree.at_or_above(&META_KEY)?;
    let meta = value.as_ref().and_then(|(key, value)| page::decode(key, value)?.meta);
    meta.ok_or_else(|| damaged(tree.path(), "the count of its records is missing, or does not check out".to_owned()))
}

impl Source {
    /// Reads from after a number on, or all.
    pub fn read_after(&self, number: Option<u64>) -> Result<Reader<'_>, StorageError> {
        let mut key = self.tree.is_some().then_some([0; KEY_LEN]);
        let mut below = VecDeque::new();
        if let (Some(number), Some(tree)) = (number, &self.tree) {
            let (records, next) = around(&**tree, number)?;
            below.extend(records.into_iter().filter(|(there, _)| *there > number));
            key = next;
        }
        let above = number.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(Reader { source: self, key, below, above, windows: BTreeMap::new() })
    }
}

impl Reader<'_> {
    /// The next record.
    pub fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError> {
        loop {
            self.fill()?;
            let below = self.below.front().map(|(number, _)| *number);
            let above = self.source.overlay.from(self.above).next().map(|(number, place)| (*number, *place));
            match (below, above) {
                (None, None) => return Ok(None),
                (Some(number), above) if above.is_none_or(|(above, _)| number < above) => {
                    return Ok(self.below.pop_front());
                }
                (below, Some((number, place))) => {
                    self.above = Bound::Excluded(number);
                    if below == Some(number) {
                        self.below.pop_front();
                    }
                    if let Some(place) = place {
                        return Ok(Some((number, self.log_record(number, place)?)));
                    }
                }
                (Some(_), None) => return Ok(self.below.pop_front()),
            }
        }
    }

    fn fill(&mut self) -> Result<(), StorageError> {
        while self.below.is_empty()
            && let (Some(tree), Some(key)) = (&self.source.tree, self.key)
        {
            self.key = None;
            if let Some((key, value)) = tree.at_or_above(&key)? {
                let (records, next) = records_at(&**tree, &key, &value)?;
                let last = records.last().map(|(number, _)| *number);
                if records.first().is_some_and(|(first, _)| page::key(*first, 0) != key)
                    || last.is_none() && next.is_some()
                {
                    return Err(bad(&**tree, &key));
                }
                self.below.extend(records);
                self.key = next;
            }
        }
        Ok(())
    }

    fn log_record(&mut self, number: u64, place: Place) -> Result<Bytes, StorageError> {
        let log = self.source.logs.get(place.segment).ok_or(StorageError::Poisoned)?;
        let window = match self.windows.entry(place.segment) {
            Entry::Occupied(window) => window.into_mut(),
            Entry::Vacant(none) => none.insert(Window::new(Arc::clone(&log.file), &log.path)?),
        };
        let record = window.get(place.at, place.len as usize)?.unwrap_or_default();
        wal::check(number, place, record, &log.path)?;
        Ok(Bytes::copy_from_slice(record))
    }
}
