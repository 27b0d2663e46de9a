//! Events of sessions and notices of the replica, as operators are told of them.

use std::sync::Arc;

use eddy_crdt::sync::SessionEvent;
use eddy_crdt::{Alarm, AlarmKind, Keyspace, MergeReport, Notice, ReplicaId};

use super::losses;
use super::peers::{Halt, Peers};

impl Peers {
    /// Logs and counts an event of a session.
    pub(super) fn event(self: &Arc<Self>, event: SessionEvent) {
        match event {
            SessionEvent::Met { member, birth, empty, .. } => {
                self.board.met(member, birth);
                tracing::info!(peer = %member, birth = %birth, empty, "connected to the peer");
            }
            SessionEvent::LostTail { member, agreed, theirs } => {
                tracing::warn!(
                    peer = %member,
                    "agreed-on" = agreed.map_or(0, |dot| dot.seq),
                    "peer-has" = theirs,
                    "peers know entries of this replica that it has lost: it takes a new birth"
                );
                let why = format!("{member} knows entries of this replica that it has lost");
                self.halts(Halt::StartAnew { giver: member, why });
            }
            SessionEvent::PeerLostTail(member) => {
                tracing::warn!(peer = %member, "the peer lost entries that it had told; it will come back under a new birth");
            }
            SessionEvent::SnapshotNeeded { member } => {
                let why = format!("{member} has what was lost here, or what is not sent any more because all had it");
                self.halts(Halt::StartAnew { giver: member, why });
            }
            SessionEvent::PeerNeedsSnapshot(member) => {
                tracing::warn!(peer = %member, "the peer is so far behind that it needs a snapshot");
            }
            // Only a replica that starts receives chunks, and it has no session here. The session answers requests for them.
            SessionEvent::SnapshotChunk(_) | SessionEvent::SnapshotWanted { .. } => {}
            SessionEvent::HashDiffers(member) => self.corrupt(member, None),
            SessionEvent::KeyDiffers { member, place: (keyspace, key) } => {
                tracing::error!(
                    peer = %member,
                    keyspace = ?keyspace,
                    key = %String::from_utf8_lossy(&key),
                    "the first key that differs from the peer's"
                );
                self.corrupt(member, Some(key));
            }
            SessionEvent::ClockOff { member, ahead_ms } => {
                if self.troubles.lock().is_news(format!("clock {member}")) {
                    tracing::warn!(peer = %member, "ahead-ms" = ahead_ms, "the peer's clock is off");
                }
            }
            SessionEvent::ClockRight(member) => {
                self.troubles.lock().is_over(&format!("clock {member}"));
                tracing::info!(peer = %member, "the peer's clock is right again");
            }
        }
    }

    /// Notes that a peer has the same entries and another state, and raises the alarm.
    fn corrupt(self: &Arc<Self>, member: ReplicaId, key: Option<bytes::Bytes>) {
        self.metrics.peer_states_differ.with_label_values(&[&member.to_string()]).set(1);
        if let Some(key) = key {
            self.board.differs(member, key);
        }
        if !self.troubles.lock().is_news(format!("corrupt {member}")) {
            return;
        }
        tracing::error!(peer = %member, "the peer has the same entries and another state: raising the CORRUPT alarm");
        let node = self.node.clone();
        self.tasks.spawn(async move {
            let alarm = Alarm { member, kind: AlarmKind::Corrupt };
            if let Err(error) = node.set_alarm(alarm, true).await {
                tracing::error!(%error, "could not raise the CORRUPT alarm");
            }
        });
    }

    /// Takes the replica's notices until the process stops.
    pub(super) async fn heed(self: Arc<Self>) {
        let Some(mut notices) = self.node.notices() else { return };
        loop {
            let notice = tokio::select! {
                notice = notices.recv() => notice,
                () = self.stop.cancelled() => return,
            };
            match notice {
                Some(notice) => self.notice(notice),
                None => return,
            }
        }
    }

    fn notice(&self, notice: Notice) {
        match notice {
            Notice::Merged(merge) => {
                self.metrics.merges.with_label_values(&[losses::rule_name(&merge.rule)]).inc();
                tracing::debug!(key = %String::from_utf8_lossy(&merge.key), rule = ?merge.rule, "merged concurrent versions");
                self.lost(&merge);
            }
            Notice::Rebased(merge) => {
                tracing::warn!(key = %String::from_utf8_lossy(&merge.key), "a write from before the loss gave something up");
                self.lost(&merge);
            }
            Notice::Removed => self.halts(Halt::Removed),
            Notice::OrdinalChanged { ordinal } => tracing::warn!(
                ordinal,
                "another member has the revisions of this replica: it moved to others, and its clients list again"
            ),
            Notice::SpacesExhausted => {
                if self.troubles.lock().is_news("spaces".to_owned()) {
                    tracing::error!(
                        "no revision space is left: this replica takes no writes, and no entries of peers, any more"
                    );
                }
            }
            Notice::ClockAhead { origin, ahead_ms } => {
                self.board.dated_ahead(origin.replica, ahead_ms);
                if self.troubles.lock().is_news(format!("ahead {}", origin.replica)) {
                    tracing::warn!(peer = %origin.replica, "ahead-ms" = ahead_ms, "a member's clock is ahead");
                }
            }
            Notice::BelowFloor { dot, from } => {
                self.board.below_floor(from);
                self.refused("it does not depend on what all members have", dot, from, true)
            }
            Notice::Forked { dot, from } => self.refused("another one of that name is here", dot, from, true),
            Notice::Malformed { dot, from } => self.refused("it cannot be one", dot, from, true),
            Notice::UnknownRules { dot, from, number } => {
                self.refused("it sets rules of merging that this build does not know", dot, from, true);
                tracing::debug!(rules = ?number, "the refused rules");
            }
            Notice::TooEarly { dot, from } => self.refused("it came before something it depends on", dot, from, false),
            Notice::OwnTailLost { dot, from } => {
                self.refused("it is this replica's own, and not here", dot, from, false);
                let why = format!("{from} has an entry of this replica that it has lost");
                self.halts(Halt::StartAnew { giver: from, why });
            }
            Notice::NotAMember { member, from } => {
                if self.troubles.lock().is_news(format!("no member {member} {from}")) {
                    tracing::warn!(peer = %from, member = %member, "refused entries of one that is no member");
                }
            }
        }
    }

    /// Counts and logs what a merge gave up.
    fn lost(&self, merge: &MergeReport) {
        // What a merge of system keys gives up is nobody's data.
        if merge.keyspace == Keyspace::System || merge.given_up.is_empty() {
            return;
        }
        let losses = merge.given_up.told.len() + merge.given_up.more;
        self.metrics.merge_losses.with_label_values(&[losses::rule_name(&merge.rule)]).inc_by(losses as u64);
        self.losses.lock().log(merge, || self.names());
    }

    fn refused(&self, why: &'static str, dot: eddy_crdt::Dot, from: ReplicaId, alarming: bool) {
        self.metrics.peer_received_failures.with_label_values(&[&from.to_string()]).inc();
        if !self.troubles.lock().is_news(format!("{why} {from}")) {
            return;
        }
        if alarming {
            tracing::error!(peer = %from, entry = ?dot, why, "refused an entry");
        } else {
            tracing::info!(peer = %from, entry = ?dot, why, "refused an entry for now");
        }
    }
}
