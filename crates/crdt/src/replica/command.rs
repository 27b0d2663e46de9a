//! What clients ask for: each command becomes a transaction, or is refused.

use bytes::Bytes;

use crate::command::op::Command;
use crate::command::reply::{Refusal, Reply};
use crate::entry::ChangeKind;
use crate::replica::Replica;
use crate::replica::spaces::Stride;
use crate::replica::turn::Turn;
use crate::store::lease;
use crate::store::system::{self, SystemKey};
use crate::words::id::LeaseId;
use crate::words::revision::Revision;

impl Replica {
    pub(crate) fn command(&mut self, turn: &mut Turn, command: Command) -> Result<Reply, Refusal> {
        if let Command::Put(_) | Command::Delete(_) | Command::Txn(_) | Command::LeaseRevoke(_) = &command {
            self.leave_full_space(turn)?;
        }
        match command {
            Command::Put(op) => self.transact(turn, |transaction| transaction.put(&op)).map(Reply::Put),
            Command::Delete(op) => Ok(Reply::Delete(self.transact(turn, |transaction| transaction.delete(&op)))),
            Command::Txn(txn) => self.transact(turn, |transaction| transaction.txn(&txn)).map(Reply::Txn),
            Command::Compact(at) => self.compact(turn, Revision::new(at)),
            Command::LeaseGrant { id, ttl } => self.grant(turn, id, ttl),
            Command::LeaseRevoke(id) => {
                if !self.state.leases.contains(id) {
                    return Err(Refusal::LeaseNotFound);
                }
                self.transact(turn, |transaction| transaction.end_lease(id, ChangeKind::Delete));
                Ok(Reply::LeaseRevoke { revision: self.state.revision })
            }
            Command::LeaseRenew(id) => {
                let renewal = self.state.leases.renew(turn.now, id).ok_or(Refusal::LeaseNotFound)?;
                if renewal.tell && self.replication.is_some() {
                    let value = system::lease_value(renewal.ttl_s, self.identity.replica);
                    self.transact(turn, |transaction| transaction.write_system(SystemKey::Lease(id), value));
                }
                Ok(Reply::LeaseRenew { ttl: renewal.ttl_s })
            }
            Command::SetAlarm { alarm, raised } => {
                let changed = self.state.alarms.contains(&alarm) != raised;
                if changed {
                    let key = SystemKey::Alarm(alarm);
                    if raised {
                        self.state.alarms.insert(alarm);
                        self.transact(turn, |transaction| transaction.write_system(key, Bytes::new()));
                    } else {
                        self.state.alarms.remove(&alarm);
                        self.transact(turn, |transaction| transaction.remove_system(key, ChangeKind::Delete));
                    }
                }
                Ok(Reply::SetAlarm { changed, revision: self.state.revision })
            }
            Command::MemberAdd { id, peer_urls, learner } => self.member_add(turn, id, peer_urls, learner),
            Command::MemberRemove(id) => self.member_remove(turn, id),
            Command::MemberUpdate { id, peer_urls } => self.member_update(turn, id, peer_urls),
            Command::MemberPromote(id) => self.member_promote(turn, id),
            Command::MemberPublish { name, client_urls } => self.member_publish(turn, name, client_urls),
            Command::Declare { counters, atomic } => self.declare(turn, counters, atomic),
            Command::Auth(command) => self.auth(turn, command),
            Command::Leap => self.leap(turn, Stride::Next),
        }
    }

    fn grant(&mut self, turn: &mut Turn, id: LeaseId, ttl: i64) -> Result<Reply, Refusal> {
        if ttl > lease::MAX_TTL_S {
            return Err(Refusal::LeaseTtlTooLarge);
        }
        if self.state.leases.contains(id) {
            return Err(Refusal::LeaseExists);
        }
        let ttl = ttl.max(lease::MIN_TTL_S);
        self.state.leases.grant(turn.now, id, ttl, true);
        let value = system::lease_value(ttl, self.identity.replica);
        self.transact(turn, |transaction| transaction.write_system(SystemKey::Lease(id), value));
        Ok(Reply::LeaseGrant { id, ttl, revision: self.state.revision })
    }

    fn compact(&mut self, turn: &mut Turn, at: Revision) -> Result<Reply, Refusal> {
        // etcd counts its last compaction from -1.
        if at.get() <= self.state.compacted.map_or(-1, Revision::get) {
            return Err(Refusal::Compacted);
        }
        if self.is_foreign(at, self.state.revision) {
            return Err(Refusal::Compacted);
        }
        if at > self.state.revision {
            return Err(Refusal::FutureRevision);
        }
        self.state.compacted = Some(at);
        turn.effects.head_changed = true;
        Ok(Reply::Compact { revision: self.state.revision })
    }
}
