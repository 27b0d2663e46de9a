//! The giver of a snapshot: its state, chunk by chunk.

use crate::boot::snapshot::chunk::{SettledKey, SnapshotChunk};
use crate::entry::{Entry, Past};
use crate::replica::Replica;
use crate::words::key::{Key, Keyspace, Place};
use crate::words::value::Live;
use crate::words::vector::VersionVector;

/// First byte of the places that stand for entries, which lie behind all keys: no system key begins with it.
const LOG: u8 = 0xff;

/// The place of an entry, by its journal number at the giver.
fn place_of(number: u64) -> Place {
    let mut key = vec![LOG];
    key.extend_from_slice(&number.to_be_bytes());
    (Keyspace::System, key.into())
}

fn number_at(place: &Place) -> Option<u64> {
    match (place.0, place.1.split_first()) {
        (Keyspace::System, Some((&LOG, number))) => Some(u64::from_be_bytes(number.try_into().ok()?)),
        _ => None,
    }
}

impl Replica {
    /// The part of a snapshot behind `after`, about `max_bytes` long, with entries as far as they are durable. The giver
    /// is to be told [`crate::Input::Hold`] with every chunk.
    pub fn snapshot_chunk(&self, after: Option<&Place>, durable: &VersionVector, max_bytes: usize) -> SnapshotChunk {
        let mut chunk = SnapshotChunk {
            base: self.origin_heads(),
            giver: self.identity.origin(),
            doubtful: self.membership.past == Past::Doubtful,
            lineage: self.membership.lineage,
            floor: self.floor().clone(),
            revision: self.state.revision,
            keys: vec![],
            entries: vec![],
            settled: vec![],
            next: None,
        };
        let mut bytes = 0;
        let logged = after.and_then(number_at);
        if logged.is_none() {
            for keyspace in [Keyspace::Client, Keyspace::System] {
                let after = match after {
                    Some((at, _)) if *at > keyspace => continue,
                    Some((at, key)) if *at == keyspace => Some(key),
                    _ => None,
                };
                for key in self.known_keys(keyspace, after) {
                    if bytes >= max_bytes {
                        chunk.next = chunk.keys.last().map(|last| (last.keyspace, last.key.clone()));
                        return chunk;
                    }
                    let Some(live) = self.settled(keyspace, key) else { continue };
                    bytes += 64 + key.len() + live.value.len();
                    chunk.keys.push(SettledKey { keyspace, key: key.clone(), live });
                }
            }
        }
        for logged in self.log().into_iter().flat_map(|log| log.behind(logged.unwrap_or(0))) {
            // What is not durable is no loss: the receiver gets it as everyone does.
            if !durable.contains(logged.entry.head.dot) {
                break;
            }
            if bytes >= max_bytes {
                chunk.next = Some(place_of(logged.number - 1));
                return chunk;
            }
            bytes += logged.entry.weight();
            chunk.settled.extend(self.settled_changes(&logged.entry).map(|place| (logged.entry.head.dot, place)));
            chunk.entries.push((*logged.entry).clone());
        }
        chunk
    }

    /// The keys behind one that have or had a value, in order.
    fn known_keys<'a>(&'a self, keyspace: Keyspace, after: Option<&'a Key>) -> impl Iterator<Item = &'a Key> {
        let present: Box<dyn Iterator<Item = &Key>> = match keyspace {
            Keyspace::Client => {
                Box::new(self.state.index.keys_behind(after).filter(|key| !self.state.local.contains(key)))
            }
            Keyspace::System => {
                let behind = after.map_or(std::ops::Bound::Unbounded, |key| std::ops::Bound::Excluded(key.clone()));
                Box::new(self.state.system.range((behind, std::ops::Bound::Unbounded)).map(|(key, _)| key))
            }
        };
        let mut present = present.peekable();
        let windowed = self.windows().into_iter().flat_map(move |windows| windows.keys_behind(keyspace, after));
        let mut windowed = windowed.peekable();
        std::iter::from_fn(move || match (present.peek(), windowed.peek()) {
            (Some(a), Some(b)) if a == b => {
                windowed.next();
                present.next()
            }
            (Some(a), Some(b)) if a > b => windowed.next(),
            (None, _) => windowed.next(),
            _ => present.next(),
        })
    }

    /// The changes of an entry of the log that are in no window any more.
    fn settled_changes<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = u32> + 'a {
        let dot = entry.head.dot;
        let changes = entry.changes.iter().enumerate().filter(move |_| self.floor().contains(dot));
        let settled = changes.filter(move |(_, change)| {
            !self.windows().is_some_and(|windows| windows.holds(change.keyspace, &change.key, dot))
        });
        settled.map(|(place, _)| place as u32)
    }

    /// What a key is below its window.
    fn settled(&self, keyspace: Keyspace, key: &Key) -> Option<Live> {
        match self.window(keyspace, key) {
            Some(open) => open.window.base().cloned(),
            None => self.state.recorded(keyspace, key).map(|recorded| recorded.live),
        }
    }
}
