//! Records that are read a second time: a start keeps no value that something replaced, and some windows stand on one.

use bytes::Bytes;

use crate::boot::restore::damage::Damage;
use crate::entry::{ChangeKind, Record};
use crate::store::state::Recorded;
use crate::words::key::Keyspace;
use crate::words::value::Live;

/// Reads records again, and keeps the last one.
pub(super) struct Again<'a> {
    read: &'a mut dyn FnMut(u64) -> Option<Bytes>,
    last: Option<Record>,
    /// The first that could not be read.
    missing: Option<u64>,
}

impl<'a> Again<'a> {
    pub(super) fn new(read: &'a mut dyn FnMut(u64) -> Option<Bytes>) -> Self {
        Self { read, last: None, missing: None }
    }

    /// What a key was after a record that put it. Where that cannot be told, [`Self::finish`] says so.
    pub(super) fn recorded(&mut self, number: u64, keyspace: Keyspace, key: &[u8]) -> Option<Recorded> {
        let found = self.found(number, keyspace, key);
        if found.is_none() {
            self.missing.get_or_insert(number);
        }
        found
    }

    /// The same where it may be told otherwise.
    pub(super) fn found(&mut self, number: u64, keyspace: Keyspace, key: &[u8]) -> Option<Recorded> {
        self.live(number, keyspace, key).map(|live| Recorded { live, number })
    }

    fn live(&mut self, number: u64, keyspace: Keyspace, key: &[u8]) -> Option<Live> {
        if self.last.as_ref().is_none_or(|last| last.number != number) {
            self.last = Some(Record::decode((self.read)(number)?).ok()?);
        }
        let changes = self.last.as_ref()?.effective().map(|(_, change)| change);
        let put = changes.filter(|change| change.keyspace == keyspace && change.key == key).last()?;
        match &put.kind {
            // Copied: it shares the memory of a whole page.
            ChangeKind::Put { value, lease, version } => Some(Live {
                value: Bytes::copy_from_slice(value),
                lease: *lease,
                version: *version,
                incarnation: put.incarnation,
            }),
            ChangeKind::Delete | ChangeKind::Expire => None,
        }
    }

    /// # Errors
    /// When a record could not be read, or did not hold what it held before.
    pub(super) fn finish(self) -> Result<(), Damage> {
        self.missing.map_or(Ok(()), |number| Err(Damage::Again { number }))
    }
}
