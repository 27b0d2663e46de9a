//! What a backup of the running node needs: one moment that is durable, and no sweep while its versions are read.

use std::sync::Arc;

use eddy_crdt::{Alarm, BackupPoint, LeaseId, Member, Users};
use tokio::sync::OwnedSemaphorePermit;

use super::error::NodeError;
use super::handle::Handle;
use super::hold::Hold;

/// Most backups that are made at once: each takes a thread, and some memory.
pub(super) const BACKUPS_MAX: usize = 8;

/// The moment of a backup, with all that is small. While it lives, no version of it leaves memory.
pub struct Captured {
    /// The moment.
    pub point: BackupPoint,
    /// Leases with the time to live that they were granted, seconds.
    pub leases: Vec<(LeaseId, i64)>,
    /// Alarms that are raised.
    pub alarms: Vec<Alarm>,
    /// All members, also those that were removed.
    pub members: Vec<Member>,
    /// The users and roles.
    pub users: Arc<Users>,
    /// What stands for raft's index.
    pub index: u64,
    /// What stands for raft's term.
    pub term: u64,
    _held: Option<(Hold, OwnedSemaphorePermit)>,
}

impl Captured {
    /// What a replica is now. Nothing keeps it from being swept.
    pub fn of(replica: &eddy_crdt::Replica, term: u64) -> Self {
        Self {
            point: replica.backup_point(),
            leases: replica.backup_leases().collect(),
            alarms: replica.alarms().collect(),
            members: replica.members().cloned().collect(),
            users: Arc::clone(replica.users()),
            index: replica.next_number().saturating_sub(1),
            term,
            _held: None,
        }
    }
}

impl Handle {
    /// Captures the present moment, and waits until it is durable.
    ///
    /// # Errors
    /// When too many backups are being made, or writes have stopped, so that it will never be durable.
    pub async fn capture(&self, term: u64) -> Result<Captured, NodeError> {
        let permit = Arc::clone(&self.engine.backups).try_acquire_owned().map_err(|_| NodeError::TooManyRequests)?;
        let (captured, number, hold) = self.look(|replica| {
            let hold = Hold::new(&self.engine, replica.compacted());
            (Captured::of(replica, term), replica.next_number(), hold)
        });
        self.durable_up_to(number).await?;
        Ok(Captured { _held: Some((hold, permit)), ..captured })
    }
}
