//! What the protocol asks of a replica's state.

use bytes::Bytes;

use crate::entry::Change;
use crate::replica::Replica;
use crate::store::digest;
use crate::words::id::Dot;
use crate::words::key::{Key, KeyRange, Keyspace, Place};
use crate::words::vector::VersionVector;

/// How many bytes of entries are weighed to tell how far a peer is behind; what goes beyond is estimated.
const WEIGHED_BYTES: usize = 16 << 20;

impl Replica {
    /// The value that the writer of that entry had before the change, as far as it is here.
    pub(super) fn value_before(&self, dot: Dot, change: &Change) -> Option<Bytes> {
        let window = &self.window(change.keyspace, &change.key)?.window;
        let at = window.versions().iter().rposition(|version| version.dot == dot)?;
        let version = &window.versions()[at];
        let before = window.versions()[..at].iter().rev().find(|before| version.descends_from(before.dot));
        let live = before.map_or_else(|| window.base().cloned(), |before| before.live());
        live.map(|live| live.value)
    }

    /// About how many bytes of entries `have` lacks of `upto`.
    pub(super) fn bytes_for(&self, have: &VersionVector, upto: &VersionVector) -> u64 {
        let missing: u64 = upto.iter().map(|dot| dot.seq.saturating_sub(have.get(dot.origin))).sum();
        let weighed = self.log().map(|log| log.missing(have, upto, WEIGHED_BYTES)).unwrap_or_default();
        let bytes: usize = weighed.iter().map(|entry| entry.weight()).sum();
        let entries: u64 = weighed.iter().map(|entry| 1 + entry.head.dot.seq - entry.head.first_seq).sum();
        (u128::from(missing) * bytes as u128 / u128::from(entries.max(1))) as u64
    }

    /// The replicated keys from that place on, in order, with what each adds to the state hash.
    pub(super) fn elements(&self, from: Place) -> impl Iterator<Item = (Place, u128)> + use<'_> {
        let (keyspace, from) = from;
        let (client, system) = match keyspace {
            Keyspace::Client => (Some(from), Bytes::new()),
            Keyspace::System => (None, from),
        };
        let client =
            client.into_iter().flat_map(|from| self.state.index.range(&KeyRange::From(from), self.state.revision));
        let client = client.filter(|(key, _)| !self.state.local.contains(key)).filter_map(|(key, version)| {
            let content = version.content.as_ref()?;
            let hash = digest::element(Keyspace::Client, key, content.value.here(), content.version, content.lease);
            Some(((Keyspace::Client, key.clone()), hash))
        });
        let system = self.state.system.range::<Key, _>(system..).map(|(key, value)| {
            let hash = digest::element(Keyspace::System, key, &value.value, value.version, None);
            ((Keyspace::System, key.clone()), hash)
        });
        client.chain(system)
    }
}
