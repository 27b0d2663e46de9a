//! A database of bbolt's format: all that is in it is shown in order, and no more than the file has.
//!
//! The first pages have checksums, which no fuzzer can guess. So they get them here.

use std::io::Cursor;

use eddy_server::backup::page::{HEADER, fnv1a};
use eddy_server::backup::read::{BadDatabase, Database};

/// Bytes of a first page that its checksum covers, and where the page size stands in it.
const SUMMED: usize = 56;
const PAGE_SIZE_AT: usize = HEADER + 8;

pub fn run(data: &[u8]) {
    let mut bytes = data.to_vec();
    let size = data.get(PAGE_SIZE_AT..PAGE_SIZE_AT + 4).and_then(|size| size.try_into().ok()).map(u32::from_le_bytes);
    for first in [0].into_iter().chain(size.map(|size| size as usize)) {
        seal(&mut bytes, first);
    }
    let Ok(mut database) = Database::open(Cursor::new(&bytes), bytes.len() as u64) else { return };
    let Ok(buckets) = database.buckets() else { return };
    let mut shown = 0;
    for (_, bucket) in buckets {
        let mut last: Option<Vec<u8>> = None;
        let read = database.each(&bucket, |key, value| {
            assert!(last.as_deref().is_none_or(|last| last < key), "keys are not in order");
            last = Some(key.to_vec());
            shown += key.len() + value.len();
            Ok::<(), BadDatabase>(())
        });
        if read.is_err() {
            return;
        }
    }
    assert!(shown <= bytes.len(), "{shown} bytes of {} were shown", bytes.len());
}

/// Puts the checksum of a first page in.
pub fn seal(bytes: &mut [u8], at: usize) {
    let Some(page) = bytes.get_mut(at..).and_then(|page| page.get_mut(HEADER..HEADER + SUMMED + 8)) else { return };
    let sum = fnv1a(&page[..SUMMED]);
    page[SUMMED..].copy_from_slice(&sum.to_le_bytes());
}
