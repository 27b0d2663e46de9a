//! How replaced values are read back. They are in the journal only, which one thread owns. A read of the past looks at the
//! replica, is told which places it lacks, has that thread read them between its groups, and puts them in (a range) or looks
//! again. Nobody holds the replica meanwhile.

use eddy_crdt::{PastPlace, PastValues};
use tokio::sync::oneshot;

use super::engine::Engine;
use super::error::NodeError;
use super::handle::{Handle, REQUEST_TIMEOUT};
use super::past::{Reading, Recalled};
use super::pipe::Work;

/// How many values are asked for at once. A disk that gives none of them in time does not answer.
const AT_ONCE: usize = 4096;

impl Handle {
    /// Has those places read. Blocks; the caller must not hold the replica.
    ///
    /// # Errors
    /// As [`Engine::recall`].
    pub(crate) fn recall_blocking(&self, places: Vec<PastPlace>) -> Recalled {
        self.engine.recall_blocking(places)
    }
}

impl Engine {
    /// Has those places read.
    ///
    /// # Errors
    /// [`Refusal::Compacted`] when a compaction has dropped one meanwhile, or when the journal cannot be read.
    pub(super) async fn recall(&self, places: Vec<PastPlace>) -> Recalled {
        let mut all = PastValues::default();
        for some in places.chunks(AT_ONCE) {
            let recalled = tokio::time::timeout(REQUEST_TIMEOUT, self.ask_past(some.to_vec())?).await;
            all.add(recalled.map_err(|_| NodeError::TimedOut)?.unwrap_or(Err(NodeError::Stopped))?);
        }
        Ok(all)
    }

    /// The same for a thread of its own. The caller must not hold the replica.
    pub(super) fn recall_blocking(&self, places: Vec<PastPlace>) -> Recalled {
        self.ask_past(places)?.blocking_recv().unwrap_or(Err(NodeError::Stopped))
    }

    fn ask_past(&self, places: Vec<PastPlace>) -> Result<oneshot::Receiver<Recalled>, NodeError> {
        self.metrics.recalled(places.len());
        let (reading, recalled) = Reading::new(places);
        if self.pipe.send(Work::Read(reading)) { Ok(recalled) } else { Err(NodeError::Stopped) }
    }
}
