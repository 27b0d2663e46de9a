//! Copying the live records into a fresh database and swapping it in.

use std::path::Path;

use bytes::Bytes;
use sled::Db;

use super::super::StorageError;
use super::super::contain::contain;
use super::super::dir::{self, io};
use super::super::page::{self, META_KEY, Meta, Packer};
use super::SledJournal;
use super::database::{SEGMENT, damaged, open_log, open_sled, sled_error};
use super::tally::Tally;

/// While copying, how much may wait in sled's buffers.
const COPY_FLUSH: usize = 4 << 20;

impl SledJournal {
    pub(super) fn rewrite(&mut self, reset_high_water: bool) -> Result<(), StorageError> {
        self.ready()?;
        if self.meta.generation == 0 {
            return Ok(());
        }
        self.risky(|this| this.settle(false))?;
        let fresh = self.dir.fresh();
        dir::remove_tree(&fresh)?;
        let copy = self.copy_to(&fresh, reset_high_water);
        let (db, meta) = match copy {
            Ok(copy) => copy,
            Err(e) => {
                dir::remove_tree(&fresh)?;
                return Err(e);
            }
        };
        self.risky(|this| this.swap(db, meta))
    }

    /// Copies all live records to a new database, durably.
    fn copy_to(&self, fresh: &Path, reset_high_water: bool) -> Result<(Db, Meta), StorageError> {
        let need = self.meta.live_bytes * 2 + 8 * SEGMENT as u64;
        if fs4::available_space(self.dir.root()).map_err(io("look at", self.dir.root()))? < need {
            return Err(StorageError::NoSpace { path: fresh.to_owned() });
        }
        let new = open_sled(fresh)?;
        let insert = |values: Vec<(page::PageKey, Vec<u8>)>| {
            let write = || {
                values.into_iter().try_for_each(|(key, value)| new.insert(key, value).map(drop))?;
                new.flush()
            };
            contain(write).map_err(|what| damaged(fresh, what))?.map_err(|e| sled_error(fresh, e))
        };
        let mut packer = Packer::new();
        let mut found = Tally::default();
        let mut db = self.with_db(|db| Ok(db.iter()))?;
        while let Some((key, value)) = self.with_db(|_| db.next().transpose())? {
            let mut push = |number, record: Bytes| {
                packer.push(number, &record);
                Ok(())
            };
            found.value(&key, &value, &mut push).map_err(|e| e.at(&self.log_path))?;
            if packer.bytes() > COPY_FLUSH {
                insert(std::mem::replace(&mut packer, Packer::new()).finish(None))?;
            }
        }
        found.finish(&self.marked).map_err(|what| damaged(&self.log_path, what))?;
        let mut meta = self.meta.clone();
        meta.generation += 1;
        if reset_high_water {
            meta.high_water = meta.live_bytes;
        }
        let mut values = packer.finish(None);
        values.push((META_KEY, page::encode_meta(&meta)));
        insert(values)?;
        dir::sync_tree(fresh)?;
        Ok((new, meta))
    }

    /// Gives the copy the journal's name.
    fn swap(&mut self, new: Db, meta: Meta) -> Result<(), StorageError> {
        let (journal, retired) = (self.dir.journal(), self.dir.retired());
        // The position in the old log means nothing in the new one.
        self.marked.log_end = -1;
        self.mark.write(self.marked)?;
        self.mark.sync()?;
        dir::remove_tree(&retired)?;
        std::fs::rename(&journal, &retired).map_err(io("rename", &journal))?;
        dir::sync_dir(self.dir.root())?;
        self.dir.name_fresh()?;
        let old = self.db.replace(new);
        contain(|| drop(old)).map_err(|what| damaged(&retired, what))?;
        self.log = open_log(&self.log_path)?;
        self.meta = meta;
        self.reserved = (-1, 0);
        self.settle(false)?;
        dir::remove_tree(&retired)
    }
}
