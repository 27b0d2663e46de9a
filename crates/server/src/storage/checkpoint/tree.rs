//! What a checkpoint is kept in: a sorted map that is filled once, in ascending order, and then only read.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::super::error::StorageError;
use super::super::page::PageKey;

/// Where trees are made and opened.
pub trait Trees: Send + Sync + fmt::Debug {
    /// Begins a tree in a folder that is not there yet.
    fn create(&self, path: &Path) -> Result<Box<dyn Draft>, StorageError>;
    /// Opens a tree that was finished.
    fn open(&self, path: &Path) -> Result<Arc<dyn Tree>, StorageError>;
}

/// A tree that is being filled.
pub trait Draft: Send {
    /// Adds values, in ascending order. `stopped` is asked between parts: it may rest, and says whether to give up.
    fn insert(&mut self, values: Vec<(PageKey, Vec<u8>)>, stopped: &dyn Fn() -> bool) -> Result<(), StorageError>;
    /// Makes it whole and durable, its names included. `stopped` is asked in between, as above.
    fn finish(self: Box<Self>, stopped: &dyn Fn() -> bool) -> Result<(), StorageError>;
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
