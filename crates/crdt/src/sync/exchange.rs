//! What the sessions of one replica share: entries encoded once for all peers, and the members that are connected.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::entry::Entry;
use crate::replica::Replica;
use crate::sync::entry_wire::{self, Encoded};
use crate::words::clock::Now;
use crate::words::id::{Dot, ReplicaId};

/// Bounds and intervals of all sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// About how much one message of entries carries, bytes before deltas.
    pub batch_bytes: usize,
    /// How much may be on its way to a peer that it has not acknowledged, bytes before deltas.
    pub in_flight_bytes: usize,
    /// How often what this replica has is acknowledged while a peer sends so much that it may be waiting, milliseconds.
    pub ack_interval_ms: u64,
    /// How often it is otherwise, milliseconds; the rarer, the more members there are from ten on.
    pub lazy_ack_interval_ms: u64,
    /// How often what others have is passed on, milliseconds.
    pub forward_acks_interval_ms: u64,
    /// How long this replica waits before it forwards entries whose origin the peer is connected with itself, while
    /// none of them arrive there. Each further member waits once more that long. Milliseconds.
    pub forward_delay_ms: u64,
    /// How long entries wait for what they depend on before everything is asked for again, milliseconds.
    pub patience_ms: u64,
    /// After how long without an acknowledgement entries are sent again, milliseconds.
    pub resend_ms: u64,
    /// How often a peer is pinged, milliseconds.
    pub ping_interval_ms: u64,
    /// How often state hashes are compared at most, milliseconds.
    pub hash_interval_ms: u64,
    /// How far a peer's wall clock may be off before that is told, milliseconds.
    pub clock_tolerance_ms: u64,
    /// How many bytes of encoded entries are kept for peers that are a little behind.
    pub cache_bytes: usize,
    /// How many keys of a unit are prepared in one look at the replica. One that takes a merge counts for several.
    pub prepared_keys: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            batch_bytes: 1 << 20,
            in_flight_bytes: 4 << 20,
            ack_interval_ms: 50,
            lazy_ack_interval_ms: 100,
            forward_acks_interval_ms: 500,
            // Longer than a round trip and an interval of acknowledgements over most links.
            forward_delay_ms: 1_000,
            // Longer than it takes until what is missing is forwarded: asking again brings twice what came already.
            patience_ms: 5_000,
            resend_ms: 10_000,
            ping_interval_ms: 5_000,
            hash_interval_ms: 1_000,
            clock_tolerance_ms: 10_000,
            cache_bytes: 8 << 20,
            prepared_keys: 256,
        }
    }
}

/// Where so many bases in a row saved nothing, deltas are looked for only in one entry of [`PASSED_OVER_MAX`]. Objects of
/// Kubernetes nearly always are like what they were; values that are encrypted or drawn at random never.
const VAIN_MAX: u32 = 64;

/// See [`VAIN_MAX`].
const PASSED_OVER_MAX: u32 = 16;

/// How much was encoded; see [`Exchange::tally`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EncodeTally {
    /// Entries.
    pub entries: u64,
    /// Their bytes as sent.
    pub bytes: u64,
    /// Values sent as deltas.
    pub deltas: u64,
    /// Bytes that the deltas saved.
    pub saved_bytes: u64,
    /// How often an entry had been encoded for another peer already.
    pub reused: u64,
}

/// What the sessions of one replica share. Locked for moments only.
#[derive(Debug, Default)]
pub struct Exchange {
    tuning: Tuning,
    shared: Mutex<ExchangeState>,
}

#[derive(Debug, Default)]
struct ExchangeState {
    /// By name and by what they stand for.
    encoded: HashMap<(Dot, u64), Arc<Encoded>>,
    order: VecDeque<(Dot, u64)>,
    bytes: usize,
    tally: EncodeTally,
    /// How many bases saved nothing since one did.
    in_vain: u32,
    /// How many entries were encoded without a look for deltas since the last with one.
    passed_over: u32,
    links: BTreeMap<ReplicaId, usize>,
    /// Which peer is being asked for all that this replica lacks, and when something came of it, milliseconds of the monotonic
    /// clock.
    catching_up: Option<(ReplicaId, u64)>,
    sessions: u64,
}

impl Exchange {
    /// One for all sessions of a replica.
    pub fn new(tuning: Tuning) -> Arc<Self> {
        Arc::new(Self { tuning, shared: Mutex::default() })
    }

    /// Bounds and intervals.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// How much was encoded so far.
    pub fn tally(&self) -> EncodeTally {
        self.lock().tally
    }

    /// Members that entries are exchanged with now, in order.
    pub fn links(&self) -> Vec<ReplicaId> {
        self.lock().links.keys().copied().collect()
    }

    /// How many these are.
    pub(super) fn link_count(&self) -> u64 {
        self.lock().links.len() as u64
    }

    /// The number of a new session, higher than those of all before it.
    pub(super) fn next_session(&self) -> u64 {
        let mut shared = self.lock();
        shared.sessions += 1;
        shared.sessions
    }

    /// The entry as it is sent, encoded now or before.
    pub(super) fn encode(&self, replica: &Replica, entry: &Entry) -> Arc<Encoded> {
        let (dot, name) = (entry.head.dot, (entry.head.dot, entry.head.first_seq));
        let tries = {
            let mut shared = self.lock();
            if let Some(encoded) = shared.encoded.get(&name).cloned() {
                shared.tally.reused += 1;
                return encoded;
            }
            shared.tries_deltas()
        };
        let mut bases = 0;
        let base_of = |change: &_| {
            let base = tries.then(|| replica.value_before(dot, change)).flatten();
            bases += u32::from(base.is_some());
            base
        };
        let encoded = Arc::new(entry_wire::encode(entry, base_of));
        let mut shared = self.lock();
        shared.count(&encoded);
        shared.learn(bases, encoded.deltas);
        // Another session may have done the same meanwhile.
        if shared.encoded.insert(name, Arc::clone(&encoded)).is_none() {
            shared.order.push_back(name);
            shared.bytes += encoded.weight();
        }
        while shared.bytes > self.tuning.cache_bytes {
            let Some(oldest) = shared.order.pop_front() else { break };
            if let Some(gone) = shared.encoded.remove(&oldest) {
                shared.bytes -= gone.weight();
            }
        }
        encoded
    }

    /// The entry without deltas, for a peer that lacks a base.
    pub(super) fn encode_whole(&self, entry: &Entry) -> Arc<Encoded> {
        let encoded = Arc::new(entry_wire::encode(entry, |_| None));
        self.lock().count(&encoded);
        encoded
    }

    fn lock(&self) -> MutexGuard<'_, ExchangeState> {
        // A panic leaves nothing half done in there.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExchangeState {
    /// Whether it is worth looking for deltas in the next entry.
    fn tries_deltas(&mut self) -> bool {
        if self.in_vain < VAIN_MAX {
            self.passed_over = 0;
            return true;
        }
        self.passed_over = (self.passed_over + 1) % PASSED_OVER_MAX;
        self.passed_over == 0
    }

    /// Notes what came of the bases of an entry.
    fn learn(&mut self, bases: u32, deltas: u32) {
        if deltas > 0 {
            self.in_vain = 0;
        } else {
            self.in_vain = self.in_vain.saturating_add(bases);
        }
    }

    fn count(&mut self, encoded: &Encoded) {
        self.tally.entries += 1;
        self.tally.bytes += encoded.bytes.len() as u64;
        self.tally.deltas += u64::from(encoded.deltas);
        self.tally.saved_bytes += encoded.saved as u64;
    }
}

/// Says, until it is dropped, that a peer is being asked for all that this replica lacks. One is asked after the other:
/// what one has sent need not be sent by all.
#[derive(Debug)]
pub(super) struct CatchUp {
    exchange: Arc<Exchange>,
    peer: ReplicaId,
}

impl CatchUp {
    /// `None` while another peer is being asked, and something comes of it.
    pub fn begin(exchange: &Arc<Exchange>, peer: ReplicaId, now: Now) -> Option<Self> {
        let mut shared = exchange.lock();
        let patience_ms = exchange.tuning.patience_ms;
        if shared.catching_up.is_some_and(|(_, since_ms)| now.mono_ms < since_ms.saturating_add(patience_ms)) {
            return None;
        }
        shared.catching_up = Some((peer, now.mono_ms));
        Some(Self { exchange: Arc::clone(exchange), peer })
    }

    /// Something came from the peer.
    pub fn touch(&self, now: Now) {
        let mut shared = self.exchange.lock();
        if let Some((_, since_ms)) = shared.catching_up.as_mut().filter(|(peer, _)| *peer == self.peer) {
            *since_ms = now.mono_ms;
        }
    }
}

impl Drop for CatchUp {
    fn drop(&mut self) {
        let mut shared = self.exchange.lock();
        shared.catching_up.take_if(|(peer, _)| *peer == self.peer);
    }
}

/// Says, until it is dropped, that entries are exchanged with a peer.
#[derive(Debug)]
pub(super) struct Link {
    exchange: Arc<Exchange>,
    peer: ReplicaId,
}

impl Link {
    pub fn new(exchange: &Arc<Exchange>, peer: ReplicaId) -> Self {
        *exchange.lock().links.entry(peer).or_default() += 1;
        Self { exchange: Arc::clone(exchange), peer }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut shared = self.exchange.lock();
        if let Some(sessions) = shared.links.get_mut(&self.peer) {
            *sessions -= 1;
            if *sessions == 0 {
                shared.links.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_that_save_nothing_are_hardly_looked_for_until_one_saves_something() {
        let mut state = ExchangeState::default();
        let mut tries_of = |entries: u32, deltas: u32| {
            (0..entries)
                .filter(|_| {
                    let tries = state.tries_deltas();
                    state.learn(u32::from(tries), if tries { deltas } else { 0 });
                    tries
                })
                .count() as u32
        };
        assert_eq!(tries_of(VAIN_MAX, 0), VAIN_MAX, "at first all are tried");
        assert_eq!(tries_of(10 * PASSED_OVER_MAX, 0), 10, "then few");
        assert_eq!(tries_of(PASSED_OVER_MAX, 1), 1, "one of these saves something");
        assert_eq!(tries_of(100, 1), 100, "all are tried again");
        assert_eq!(tries_of(VAIN_MAX, 0), VAIN_MAX, "and it takes as long as at first until they are not");
        assert_eq!(tries_of(PASSED_OVER_MAX, 0), 1);
    }
}
