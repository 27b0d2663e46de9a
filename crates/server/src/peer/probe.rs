//! Asks members whether this replica is still one of them.
//!
//! No member dials a replica that was removed while it was away. It would wait for ever, and take writes that reach no
//! other replica. So it asks the members that should dial it and do not.

use std::sync::Arc;
use std::time::Duration;

use eddy_crdt::Member;
use eddy_proto::peer::MeetRequest;
use futures::future::join_all;
use tokio::time::{sleep, timeout};

use super::peers::{Halt, Peers};

/// How often members that do not dial are asked: about as often as they would dial.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// How long to rest while all members dial, so that an idle replica hardly wakes.
const REST: Duration = Duration::from_secs(15);

/// How long an answer may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

impl Peers {
    /// Asks, until the process stops or this replica turns out to have been removed.
    pub(super) async fn probe(self: Arc<Self>) {
        let own = self.node.identity().replica;
        let mut pause = PROBE_EVERY;
        loop {
            tokio::select! {
                () = sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
            let members = self.node.members();
            let silent = |member: &&Member| !member.removed && member.id < own && !self.board.is_connected(member.id);
            let silent: Vec<&Member> = members.iter().filter(silent).collect();
            pause = if silent.is_empty() { REST } else { PROBE_EVERY };
            let asked = join_all(silent.into_iter().map(|member| self.is_removed_at(member)));
            let removed = tokio::select! {
                answers = asked => answers.contains(&true),
                () = self.stop.cancelled() => return,
            };
            if removed {
                self.halts(Halt::Removed);
                return;
            }
        }
    }

    /// Whether that member says that this replica was removed. False when it cannot be reached.
    async fn is_removed_at(&self, member: &Member) -> bool {
        let identity = self.node.identity();
        let request = MeetRequest {
            cluster_id: identity.cluster.get(),
            member_id: identity.replica.get(),
            ..MeetRequest::default()
        };
        let meet = async { self.dialer.dial(&member.peer_urls).await.ok()?.meet(request).await.ok() };
        let answer = timeout(PROBE_TIMEOUT, meet).await.ok().flatten().map(tonic::Response::into_inner);
        answer.is_some_and(|answer| {
            answer.cluster_id == identity.cluster.get() && answer.member_id == member.id.get() && answer.removed_asker
        })
    }
}
