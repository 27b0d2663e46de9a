//! What the tests of the journal share.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use eddy_server::storage::{DiskJournal, Journal, Options, StorageError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What a journal holds, or should hold.
pub type Records = BTreeMap<u64, Bytes>;

/// Opens with fsync.
pub fn open(dir: &Path) -> Result<DiskJournal, StorageError> {
    DiskJournal::open(dir, Options::default())
}

/// Loads everything.
pub fn load(journal: &mut DiskJournal) -> Result<(Records, Option<Bytes>), StorageError> {
    let mut records = Records::new();
    journal.load(&mut |number, record| {
        assert!(records.insert(number, record).is_none(), "record {number} twice");
        Ok(())
    })?;
    Ok((records, journal.last_head()))
}

/// Opens and loads a store that must be whole.
pub fn reopen(dir: &Path) -> (DiskJournal, Records, Option<Bytes>) {
    let mut journal = open(dir).expect("open");
    let (records, head) = load(&mut journal).expect("load");
    (journal, records, head)
}

/// Content that depends on the number, so that a mix-up shows.
pub fn record(number: u64, len: usize) -> Bytes {
    let mut rng = SmallRng::seed_from_u64(number);
    (0..len).map(|_| rng.random::<u8>()).collect()
}
