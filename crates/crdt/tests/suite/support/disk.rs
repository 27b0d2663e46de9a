//! A simulated disk: writes wait until they are flushed, and a crash loses what waits.

use std::collections::BTreeMap;

use bytes::Bytes;
use eddy_crdt::merge::ENGINE;
use eddy_crdt::{Damage, Identity, Loader, Now, Replica};

/// What a journal holds.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Image {
    pub records: BTreeMap<u64, Bytes>,
    pub head: Option<Bytes>,
}

/// Starts a replica from records with their numbers and a head; from none under that identity.
pub fn load<'a>(
    records: impl IntoIterator<Item = (&'a u64, &'a Bytes)> + Clone,
    head: Option<&Bytes>,
    now: Now,
    identity: Identity,
) -> Result<Replica, Damage> {
    let again = |number| records.clone().into_iter().find(|(there, _)| **there == number).map(|(_, record)| record);
    load_by(Loader::new(head)?, records.clone(), again, now, identity)
}

fn load_by<'a>(
    mut loader: Loader,
    records: impl IntoIterator<Item = (&'a u64, &'a Bytes)>,
    again: impl Fn(u64) -> Option<&'a Bytes>,
    now: Now,
    identity: Identity,
) -> Result<Replica, Damage> {
    for (number, record) in records {
        loader.record(*number, record.clone())?;
    }
    loader.finish(now, identity, &mut |number| again(number).cloned())
}

impl Image {
    /// Starts a replica from it.
    pub fn load(&self, now: Now, identity: Identity) -> Result<Replica, Damage> {
        self.load_by(ENGINE, now, identity)
    }

    /// The same by a build whose newest merge engine is that one.
    pub fn load_by(&self, engine: u32, now: Now, identity: Identity) -> Result<Replica, Damage> {
        self.load_with(Loader::of_engine(engine, self.head.as_ref())?, now, identity)
    }

    /// Reads a replica of which all is wanted that only it has.
    pub fn load_old(&self, engine: u32, now: Now, identity: Identity) -> Result<Replica, Damage> {
        self.load_with(Loader::of_engine(engine, self.head.as_ref())?.keep_past(), now, identity)
    }

    fn load_with(&self, loader: Loader, now: Now, identity: Identity) -> Result<Replica, Damage> {
        load_by(loader, &self.records, |number| self.records.get(&number), now, identity)
    }

    fn apply(&mut self, write: Write) {
        match write {
            Write::Append { first, records, head } => {
                self.records.extend((first..).zip(records));
                self.head = Some(head);
            }
            Write::Trim(trimmed) => {
                for (number, record) in trimmed {
                    match record {
                        Some(record) => self.records.insert(number, record),
                        None => self.records.remove(&number),
                    };
                }
            }
        }
    }
}

/// One write, there whole or not at all.
#[derive(Clone, Debug)]
pub enum Write {
    Append { first: u64, records: Vec<Bytes>, head: Bytes },
    Trim(Vec<(u64, Option<Bytes>)>),
}

#[derive(Clone, Default, Debug)]
pub struct Disk {
    pub durable: Image,
    waiting: Vec<Write>,
}

impl Disk {
    pub fn new(durable: Image) -> Self {
        Self { durable, waiting: vec![] }
    }

    pub fn write(&mut self, write: Write) {
        self.waiting.push(write);
    }

    /// Keeps what a replica wants kept after a turn; tells whether that was anything.
    pub fn keep(&mut self, replica: &mut Replica, records: &[Bytes], head_changed: bool) -> bool {
        let is_something = !records.is_empty() || head_changed;
        if is_something {
            let first = replica.next_number() - records.len() as u64;
            let (noted, head) = replica.close_group();
            let records = records.iter().cloned().chain(noted).collect();
            self.write(Write::Append { first, records, head: head.encode() });
        }
        is_something
    }

    /// How many writes wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Makes the oldest writes durable.
    pub fn flush(&mut self, count: usize) {
        for write in self.waiting.drain(..count) {
            self.durable.apply(write);
        }
    }

    /// Loses what waits.
    pub fn crash(&mut self) {
        self.waiting.clear();
    }

    /// Loses this number of the newest writes that wait.
    pub fn lose(&mut self, count: usize) {
        self.waiting.truncate(self.waiting.len().saturating_sub(count));
    }

    /// Everything on it is something else now.
    pub fn replace(&mut self, image: Image) {
        self.waiting.clear();
        self.durable = image;
    }

    /// What it holds once nothing waits any more.
    pub fn written(&self) -> Image {
        let mut image = self.durable.clone();
        self.waiting.iter().for_each(|write| image.apply(write.clone()));
        image
    }

    /// A record as it was written last.
    pub fn record(&self, number: u64) -> Option<&Bytes> {
        let written = self.waiting.iter().rev().find_map(|write| match write {
            Write::Append { first, records, .. } => records.get(number.checked_sub(*first)? as usize).map(Some),
            Write::Trim(trimmed) => trimmed.iter().find(|(n, _)| *n == number).map(|(_, record)| record.as_ref()),
        });
        written.unwrap_or_else(|| self.durable.records.get(&number))
    }
}
