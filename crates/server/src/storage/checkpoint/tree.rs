//! What a checkpoint is kept in: a sorted map that is filled once, in ascending order, and then only read.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::super::error::StorageError;
use super::super::page::PageKey;

/// How fast a tree is filled, and whether to go on. A closure that says whether to give up does not spare anything else.
pub trait Pacing {
    /// Asked often: it may rest here. Whether to give up.
    fn stopped(&self) -> bool;
    /// How many bytes are written and synced at once. A write of the log that comes just then waits for them.
    fn part_bytes(&self) -> usize;
}

impl<F: Fn() -> bool> Pacing for F {
    fn stopped(&self) -> bool {
        self()
    }

    fn part_bytes(&self) -> usize {
        usize::MAX
    }
}

/// Where trees are made and opened.
pub trait Trees: Send + Sync + fmt::Debug {
    /// Begins a tree in a folder that is not there yet.
    fn create(&self, path: &Path) -> Result<Box<dyn Draft>, StorageError>;
    /// Opens a tree that was finished.
    fn open(&self, path: &Path) -> Result<Arc<dyn Tree>, StorageError>;
}

/// A tree that is being filled.
pub trait Draft: Send {
    /// Adds values, in ascending order.
    fn insert(&mut self, values: Vec<(PageKey, Vec<u8>)>, pacing: &dyn Pacing) -> Result<(), StorageError>;
    /// Makes it whole and durable, its names included.
    fn finish(self: Box<Self>, pacing: &dyn Pacing) -> Result<(), StorageError>;
}

/// A tree that is read.
pub trait Tree: Send + Sync + fmt::Debug {
    /// The first value at or above a key.
    fn at_or_above(&self, key: &PageKey) -> Result<Option<(PageKey, Bytes)>, StorageError>;
    /// The last value at or below a key.
    fn at_or_below(&self, key: &PageKey) -> Result<Option<(PageKey, Bytes)>, StorageError>;
    /// Its folder, for messages.
    fn path(&self) -> &Path;
}
