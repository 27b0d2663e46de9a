//! What the protocol asks of a replica's state.

use bytes::Bytes;

use crate::entry::Change;
use crate::replica::Replica;
use crate::store::digest;
use crate::words::id::Dot;
use crate::words::key::{Key, KeyRange, Keyspace, Place};
use crate::words::vector::VersionVector;

/// How many bytes of entries are weighed to tell how far a peer is behind. What goes beyond is taken for as heavy as these: it
/// is told at each look, and writes wait meanwhile.
const WEIGHED_BYTES: usize = 256 << 10;

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

    /// About how many bytes of entries up to `upto` a replica lacks that has `have`, without compression.
    pub fn bytes_for(&self, have: &VersionVector, upto: &VersionVector) -> u64 {
        let weighed = self.log().map(|log| log.missing(have, upto, WEIGHED_BYTES)).unwrap_or_default();
        let bytes: usize = weighed.iter().map(|entry| entry.weight()).sum();
        let (entries, of) = (self.count_for(have, upto), weighed.len().max(1) as u64);
        (bytes as u128 * u128::from(entries.max(of)) / u128::from(of)) as u64
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
