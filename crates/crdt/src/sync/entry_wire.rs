//! Entries as they travel: what every replica must know of them, with values as deltas where that is shorter.
//!
//! An entry is encoded once for all peers. A delta's base is the value that the writer had before. Every replica that
//! may be sent the entry has had that value, too.

use bytes::Bytes;
use prost::Message;

use crate::entry::change::is_version_number;
use crate::entry::{Change, ChangeKind, Entry, EntryHead};
use crate::sync::delta::{Delta, DeltaError};
use crate::sync::message::ENTRY_MAX;
use crate::sync::wire::{self, DecodeError, WireChange, WireOrigin};
use crate::words::chain::Chain;
use crate::words::clock::Stamp;
use crate::words::id::{Birth, Dot, LeaseId, Origin, ReplicaId};
use crate::words::key::{Key, Keyspace};
use crate::words::value::Incarnation;

const SYSTEM: u32 = 1;
const DELTA: u32 = 2;
const KIND_SHIFT: u32 = 2;

/// An entry as it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// The bytes.
    pub bytes: Bytes,
    /// How many of its values are deltas.
    pub deltas: u32,
    /// How many bytes the deltas saved.
    pub saved: usize,
}

impl Encoded {
    /// About how much memory it takes where it is kept by its name, bytes.
    pub fn weight(&self) -> usize {
        const OVERHEAD: usize = 160;
        self.bytes.len() + OVERHEAD
    }
}

/// Encodes what travels of an entry. `base_of` gives the value that a change's writer had before, if it is still here.
/// When `base_of` always gives `None`, every value is sent whole.
pub fn encode(entry: &Entry, mut base_of: impl FnMut(&Change) -> Option<Bytes>) -> Encoded {
    let (head, mut deltas, mut saved) = (&entry.head, 0, 0);
    let mut changes = Vec::with_capacity(entry.changes.len());
    for change in entry.changes.iter().filter(|change| !change.local) {
        let mut wire = change_to_wire(change, head);
        if let ChangeKind::Put { value, .. } = &change.kind
            && let Some(delta) = base_of(change).and_then(|base| Delta::between(&base, value))
        {
            deltas += 1;
            saved += value.len() - delta.patch.len();
            wire.flags |= DELTA;
            wire.base = Bytes::copy_from_slice(&delta.base.to_le_bytes());
            (wire.len, wire.check, wire.value) = (delta.len as u64, delta.check, delta.patch);
        }
        changes.push(wire);
    }
    let wire = wire::WireEntry {
        replica: head.dot.origin.replica.get(),
        birth: head.dot.origin.birth.get(),
        seq: head.dot.seq,
        first_seq: (head.first_seq != head.dot.seq).then_some(head.first_seq),
        stamp: head.stamp.get(),
        depends: wire::vector_to_wire(&head.depends),
        previous: Bytes::copy_from_slice(head.previous.as_bytes()),
        changes,
        resulting: head.resulting.map(|chain| Bytes::copy_from_slice(chain.as_bytes())),
        rules: head.rules,
    };
    Encoded { bytes: wire.encode_to_vec().into(), deltas, saved }
}

fn change_to_wire(change: &Change, head: &EntryHead) -> WireChange {
    let (kind, value, lease, version) = match &change.kind {
        ChangeKind::Put { value, lease, version } => (1, value.clone(), *lease, *version),
        ChangeKind::Delete => (2, Bytes::new(), None, 0),
        ChangeKind::Expire => (3, Bytes::new(), None, 0),
    };
    let Incarnation { stamp, dot } = change.incarnation;
    let began_here = stamp == head.stamp && dot == head.dot;
    let own = dot.origin == head.dot.origin;
    let incarnation =
        wire::WireIncarnation { stamp: stamp.get(), seq: dot.seq, origin: (!own).then(|| WireOrigin::new(dot.origin)) };
    WireChange {
        flags: kind << KIND_SHIFT | if change.keyspace == Keyspace::System { SYSTEM } else { 0 },
        key: change.key.clone(),
        value,
        lease: lease.map(LeaseId::get),
        version,
        incarnation: (!began_here).then_some(incarnation),
        ..WireChange::default()
    }
}

/// A received entry whose deltas are not resolved yet.
#[derive(Clone, PartialEq, Debug)]
pub struct Received {
    /// Its name and place.
    pub head: EntryHead,
    changes: Vec<(Change, Option<Delta>)>,
}

/// Why the values of an entry cannot be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unresolved {
    /// The base of one is not here: it must be asked for whole.
    NoBase,
    /// A delta is damaged.
    Damaged(DeltaError),
}

/// Reads an entry. Its keys and values have memory of their own. Otherwise one of them that stays would hold on to all that
/// it came with, which can be a thousand times as much.
///
/// # Errors
/// When the bytes are no entry.
pub fn decode(bytes: Bytes) -> Result<Received, DecodeError> {
    let wire = wire::WireEntry::decode(bytes)?;
    let origin = Origin { replica: ReplicaId::new(wire.replica), birth: Birth::new(wire.birth) };
    let head = EntryHead {
        dot: Dot { origin, seq: wire.seq },
        first_seq: wire.first_seq.unwrap_or(wire.seq),
        stamp: Stamp::new(wire.stamp),
        rules: wire.rules,
        depends: wire::vector_from_wire(&wire.depends),
        previous: Chain::from_wire(&wire.previous).ok_or(DecodeError::Field("chain hash"))?,
        resulting: match &wire.resulting {
            None => None,
            Some(chain) => Some(Chain::from_wire(chain).ok_or(DecodeError::Field("chain hash"))?),
        },
    };
    if head.first_seq == 0 || head.first_seq > head.dot.seq || wire.changes.is_empty() {
        return Err(DecodeError::Field("number of an entry"));
    }
    let changes = wire.changes.into_iter().map(|change| change_from_wire(change, &head));
    let received = Received { changes: changes.collect::<Result<_, _>>()?, head };
    // One that gives more could not have travelled whole either. A few bytes must not make a receiver allocate gigabytes.
    let expanded = received.expanded_len();
    if expanded > ENTRY_MAX { Err(DecodeError::TooLong(expanded)) } else { Ok(received) }
}

fn change_from_wire(wire: WireChange, head: &EntryHead) -> Result<(Change, Option<Delta>), DecodeError> {
    let put = wire.flags >> KIND_SHIFT == 1;
    let delta = if wire.flags & DELTA != 0 {
        let base = wire.base[..].try_into().map_err(|_| DecodeError::Field("base of a delta"))?;
        let len = usize::try_from(wire.len).map_err(|_| DecodeError::Field("length of a delta"))?;
        Some(Delta { base: u128::from_le_bytes(base), len, check: wire.check, patch: wire.value.clone() })
    } else {
        None
    };
    let kind = match wire.flags >> KIND_SHIFT {
        1 => {
            // A patch is replaced by the value that it makes.
            let value = if delta.is_some() { wire.value } else { Bytes::copy_from_slice(&wire.value) };
            ChangeKind::Put { value, lease: wire.lease.map(LeaseId::new), version: wire.version }
        }
        2 => ChangeKind::Delete,
        3 => ChangeKind::Expire,
        _ => return Err(DecodeError::Field("kind of change")),
    };
    if delta.is_some() && !put {
        return Err(DecodeError::Field("delta that is no put"));
    }
    if wire.key.is_empty() {
        return Err(DecodeError::Field("key"));
    }
    if !is_version_number(wire.version) {
        return Err(DecodeError::Field("version number"));
    }
    let incarnation = match wire.incarnation {
        None => Incarnation { stamp: head.stamp, dot: head.dot },
        Some(wire) => {
            let origin = wire.origin.map_or(head.dot.origin, |origin| origin.get());
            Incarnation { stamp: Stamp::new(wire.stamp), dot: Dot { origin, seq: wire.seq } }
        }
    };
    let keyspace = wire::keyspace_from_wire(wire.flags);
    Ok((Change::new(keyspace, Bytes::copy_from_slice(&wire.key), kind, incarnation), delta))
}

impl Received {
    /// Bytes that resolving it will take, as it says.
    pub fn expanded_len(&self) -> usize {
        self.changes.iter().filter_map(|(_, delta)| delta.as_ref()).fold(0, |sum, d| sum.saturating_add(d.len))
    }

    /// The entry with all its values. `find` gives the bytes of that hash, if they are here, for that key.
    ///
    /// # Errors
    /// When a base is not here, or a delta is damaged.
    pub fn resolve(self, mut find: impl FnMut(Keyspace, &Key, u128) -> Option<Bytes>) -> Result<Entry, Unresolved> {
        let resolved = self.changes.into_iter().map(|(mut change, delta)| {
            if let (ChangeKind::Put { value, .. }, Some(delta)) = (&mut change.kind, delta) {
                let base = find(change.keyspace, &change.key, delta.base).ok_or(Unresolved::NoBase)?;
                *value = delta.apply(&base).map_err(Unresolved::Damaged)?;
            }
            Ok(change)
        });
        Ok(Entry { changes: resolved.collect::<Result<_, _>>()?, head: self.head })
    }
}
