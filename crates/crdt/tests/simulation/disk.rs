//! A simulated disk: writes wait until they are flushed, and a crash loses what waits.

use std::collections::BTreeMap;

use bytes::Bytes;
use eddy_crdt::{Identity, Loader, Now, Replica};

/// What a journal holds.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Image {
    pub records: BTreeMap<u64, Bytes>,
    pub head: Option<Bytes>,
}

impl Image {
    /// Starts a replica from it.
    pub fn load(&self, now: Now, identity: Identity) -> Result<Replica, String> {
        let mut loader = Loader::new();
        for (number, record) in &self.records {
            loader.record(*number, record.clone()).map_err(|e| e.to_string())?;
        }
        loader.finish(now, self.head.as_ref(), identity).map_err(|e| e.to_string())
    }
}

/// One write, there whole or not at all.
pub enum Write {
    Append { first: u64, records: Vec<Bytes>, head: Bytes },
    Trim(Vec<(u64, Option<Bytes>)>),
}

#[derive(Default)]
pub struct Disk {
    pub durable: Image,
    waiting: Vec<Write>,
}

impl Disk {
    pub fn write(&mut self, write: Write) {
        self.waiting.push(write);
    }

    /// How many writes wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Makes the oldest writes durable.
    pub fn flush(&mut self, count: usize) {
        for write in self.waiting.drain(..count) {
            match write {
                Write::Append { first, records, head } => {
                    self.durable.records.extend((first..).zip(records));
                    self.durable.head = Some(head);
                }
                Write::Trim(trimmed) => {
                    for (number, record) in trimmed {
                        match record {
                            Some(record) => self.durable.records.insert(number, record),
                            None => self.durable.records.remove(&number),
                        };
                    }
                }
            }
        }
    }

    /// Loses what waits.
    pub fn crash(&mut self) {
        self.waiting.clear();
    }

    /// Everything on it is something else now.
    pub fn replace(&mut self, image: Image) {
        self.waiting.clear();
        self.durable = image;
    }
}
