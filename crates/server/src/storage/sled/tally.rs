//! Checks that what is read is all that was acknowledged.

use std::path::Path;

use bytes::Bytes;

use super::super::StorageError;
use super::super::mark::State;
use super::super::page::{self, Content, Meta, RECORD_OVERHEAD};
use super::damaged;

/// Counts what is read, to compare it with the meta.
#[derive(Default)]
pub(super) struct Tally {
    best: Option<Meta>,
    pub seen: Meta,
    last: Option<u64>,
    long: Option<(u64, u32, u64, Vec<u8>)>,
}

/// Why a value cannot be taken in.
pub(super) enum Bad {
    Value(String),
    Visitor(StorageError),
}

impl Bad {
    pub fn at(self, path: &Path) -> StorageError {
        match self {
            Self::Value(what) => damaged(path, what),
            Self::Visitor(e) => e,
        }
    }
}

impl Tally {
    pub fn value(
        &mut self,
        key: &[u8],
        value: &[u8],
        visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>,
    ) -> Result<(), Bad> {
        let bad = || Bad::Value(format!("the page at key {key:02x?} does not check out"));
        let value = page::decode(key, value).ok_or_else(bad)?;
        if value.meta.as_ref().is_some_and(|m| self.best.as_ref().is_none_or(|b| b.generation < m.generation)) {
            self.best = value.meta;
        }
        if let Some((number, ..)) = &self.long
            && !matches!(value.content, Content::Part { .. })
        {
            return Err(Bad::Value(format!("record {number} is not whole")));
        }
        match value.content {
            Content::Meta => {}
            Content::Page(records) => {
                for (number, record) in records {
                    self.record(number, Bytes::copy_from_slice(record), visit)?;
                }
            }
            Content::Part { number, part, total, bytes } => {
                let (mut so_far, parts) = match self.long.take() {
                    None => (Vec::new(), 0),
                    Some((n, parts, t, so_far)) if n == number && t == total => (so_far, parts),
                    Some((n, ..)) => return Err(Bad::Value(format!("record {n} is not whole"))),
                };
                if part != parts {
                    return Err(Bad::Value(format!("record {number} is not whole")));
                }
                so_far.extend_from_slice(bytes);
                if (so_far.len() as u64) < total {
                    self.long = Some((number, parts + 1, total, so_far));
                } else {
                    self.record(number, so_far.into(), visit)?;
                }
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        number: u64,
        record: Bytes,
        visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>,
    ) -> Result<(), Bad> {
        if self.last.is_some_and(|last| last >= number) {
            return Err(Bad::Value(format!("record {number} comes twice")));
        }
        self.last = Some(number);
        self.seen.add(number, &record);
        visit(number, record).map_err(Bad::Visitor)
    }

    /// The newest meta, if all that it promises was read.
    pub fn finish(self, marked: &State) -> Result<Meta, String> {
        let Some(meta) = self.best else {
            return match (marked.generation, self.seen.live) {
                (0, 0) => Ok(Meta::default()),
                _ => Err(format!("acknowledged records before number {} are missing", marked.next)),
            };
        };
        if meta.generation < marked.generation {
            return Err(format!(
                "it ends before record {} and write {}; everything before record {} and up to write {} was acknowledged",
                meta.next, meta.generation, marked.next, marked.generation
            ));
        }
        let whole = (meta.live, meta.live_bytes, meta.sum) == (self.seen.live, self.seen.live_bytes, self.seen.sum)
            && self.last.is_none_or(|last| last < meta.next)
            && self.long.is_none();
        if !whole {
            return Err(format!(
                "{} records of {} bytes should be there, {} of {} bytes were found, or some were altered",
                meta.live,
                meta.live_bytes - meta.live * RECORD_OVERHEAD,
                self.seen.live,
                self.seen.live_bytes - self.seen.live * RECORD_OVERHEAD,
            ));
        }
        Ok(meta)
    }
}
