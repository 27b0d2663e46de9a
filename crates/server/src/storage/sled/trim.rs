//! Reading the pages of one `trim`, and merging them into fewer.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;

use super::super::StorageError;
use super::super::page::{self, Content, META_KEY, Meta, PAGE_BYTES, Packer};
use super::{SledJournal, damaged};

/// What one `trim` gathers before it writes anything.
pub(super) struct Slice {
    pub meta: Meta,
    pub packer: Packer,
    pub removed: Vec<page::PageKey>,
    pub read: usize,
}

impl Slice {
    pub fn new(meta: Meta) -> Self {
        Self { meta, packer: Packer::new(), removed: Vec::new(), read: 0 }
    }

    fn record(
        &mut self,
        number: u64,
        record: &[u8],
        dead: &mut BTreeSet<u64>,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) {
        if !dead.remove(&number) {
            self.packer.push(number, record);
            return;
        }
        self.meta.remove(number, record);
        if let Some(content) = keep(number, &Bytes::copy_from_slice(record)) {
            self.meta.add(number, &content);
            self.packer.push(number, &content);
        }
    }
}

impl SledJournal {
    /// Rewrites the page that holds `number`, and those after it while they hold dead records too or fit into the page
    /// that is being written: many small groups become few pages.
    pub(super) fn with_slice(
        &self,
        slice: &mut Slice,
        number: u64,
        dead: &mut BTreeSet<u64>,
        max_bytes: usize,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) -> Result<(), StorageError> {
        let last = page::key(number, u32::MAX);
        let mut at = self.with_db(|db| db.range(..=last).next_back().transpose())?;
        if let Some((key, _)) = &at
            && let Some((first, part)) = page::parse_key(key)
            && part > 0
        {
            // The last part of a long record; begin with its first.
            at = self.with_db(|db| db.get(page::key(first, 0)).map(|v| v.map(|v| (key_of(first, 0), v))))?;
        }
        let mut first_page = true;
        while let Some((key, value)) = at {
            if key.as_ref() == META_KEY {
                break;
            }
            let bad = || damaged(&self.log_path, format!("the page at key {:02x?} does not check out", key.as_ref()));
            let wanted = |first: u64, last: u64| dead.range(first..=last).next().is_some();
            let after = match page::decode(&key, &value).ok_or_else(bad)?.content {
                Content::Page(records) => {
                    let (Some(&(first, _)), Some(&(last, _))) = (records.first(), records.last()) else {
                        return Err(bad());
                    };
                    let fits = slice.packer.open_bytes().is_some_and(|open| open + value.len() <= PAGE_BYTES);
                    let take = if first_page {
                        wanted(first, last)
                    } else {
                        slice.read < max_bytes && (wanted(first, last) || fits)
                    };
                    if !take {
                        break;
                    }
                    slice.read += value.len();
                    for (number, record) in records {
                        slice.record(number, record, dead, keep);
                    }
                    // Those that were dropped from this page before; the page must not be taken for them again.
                    while let Some(&gone) = dead.range(first..=last).next() {
                        dead.remove(&gone);
                    }
                    slice.removed.push(page::key(first, 0));
                    page::key(first, u32::MAX)
                }
                Content::Part { number: first, total, .. } => {
                    if !wanted(first, first) || (!first_page && slice.read >= max_bytes) {
                        break;
                    }
                    let (record, keys) = self.long_record(first, total)?;
                    slice.read += record.len();
                    slice.removed.extend(keys);
                    slice.record(first, &record, dead, keep);
                    page::key(first, u32::MAX)
                }
                Content::Meta => break,
            };
            first_page = false;
            at = self.with_db(|db| db.range((Bound::Excluded(after), Bound::Unbounded)).next().transpose())?;
        }
        Ok(())
    }

    fn long_record(&self, number: u64, total: u64) -> Result<(Vec<u8>, Vec<page::PageKey>), StorageError> {
        let bad = || damaged(&self.log_path, format!("record {number} is not whole"));
        let mut record = Vec::new();
        let mut keys = Vec::new();
        for part in 0.. {
            if record.len() as u64 >= total {
                break;
            }
            let key = page::key(number, part);
            let value = self.with_db(|db| db.get(key))?.ok_or_else(bad)?;
            let Some(Content::Part { bytes, .. }) = page::decode(&key, &value).map(|v| v.content) else {
                return Err(bad());
            };
            record.extend_from_slice(bytes);
            keys.push(key);
        }
        if record.len() as u64 == total { Ok((record, keys)) } else { Err(bad()) }
    }
}

fn key_of(number: u64, part: u32) -> sled::IVec {
    sled::IVec::from(&page::key(number, part))
}
