//! In the place of sled: a tree is one file with all values in ascending order, on the simulated disk.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::super::checkpoint::tree::{Draft, Pacing, Tree, Trees};
use super::super::dir::{damaged, io};
use super::super::disk::{Disk, DiskFile};
use super::super::error::StorageError;
use super::super::page::{KEY_LEN, PageKey};
use super::SimulatedDisk;

/// See the module.
#[derive(Debug)]
pub struct SimulatedTrees(pub SimulatedDisk);

struct SimulatedDraft {
    disk: SimulatedDisk,
    file: Box<dyn DiskFile>,
    path: PathBuf,
    end: u64,
}

impl Trees for SimulatedTrees {
    fn create(&self, path: &Path) -> Result<Box<dyn Draft>, StorageError> {
        let file = self.0.create(&path.join("tree")).map_err(io("create", path))?;
        Ok(Box::new(SimulatedDraft { disk: self.0.clone(), file, path: path.to_owned(), end: 0 }))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Tree>, StorageError> {
        let file = path.join("tree");
        let bytes = match self.0.read(&file) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(damaged(&file, "the file is missing".to_owned())),
            bytes => bytes.map_err(io("read", &file))?,
        };
        let mut values = BTreeMap::new();
        let mut rest = &bytes[..];
        // As in sled, the values' own checksums decide; what is no value is dropped.
        while let Some((key, after)) = rest.split_first_chunk::<KEY_LEN>()
            && let Some((length, after)) = after.split_first_chunk::<4>()
            && let Some((value, after)) = after.split_at_checked(u32::from_le_bytes(*length) as usize)
        {
            values.insert(*key, Bytes::copy_from_slice(value));
            rest = after;
        }
        Ok(Arc::new(SimulatedTree { path: path.to_owned(), values }))
    }
}

impl Draft for SimulatedDraft {
    fn insert(&mut self, values: Vec<(PageKey, Vec<u8>)>, _: &dyn Pacing) -> Result<(), StorageError> {
        let mut bytes = Vec::new();
        for (key, value) in values {
            bytes.extend_from_slice(&key);
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&value);
        }
        self.file.write_at(&bytes, self.end).map_err(io("write", &self.path))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn finish(self: Box<Self>, pacing: &dyn Pacing) -> Result<(), StorageError> {
        if pacing.stopped() {
            return Err(StorageError::Abandoned);
        }
        self.file.sync_all().map_err(io("sync", &self.path))?;
        self.disk.sync_dir(&self.path).map_err(io("sync", &self.path))
    }
}

#[derive(Debug)]
struct SimulatedTree {
    path: PathBuf,
    values: BTreeMap<PageKey, Bytes>,
}

impl Tree for SimulatedTree {
    fn at_or_above(&self, key: &PageKey) -> Result<Option<(PageKey, Bytes)>, StorageError> {
        Ok(self.values.range(*key..).next().map(|(key, value)| (*key, value.clone())))
    }

    fn at_or_below(&self, key: &PageKey) -> Result<Option<(PageKey, Bytes)>, StorageError> {
        Ok(self.values.range(..=*key).next_back().map(|(key, value)| (*key, value.clone())))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
