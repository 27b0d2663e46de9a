//! Dials every member with a larger id, for as long as it is a member at these URLs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eddy_crdt::{Member, ReplicaId};
use eddy_proto::peer::Frame;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::dial::{self, Backoff};
use super::end::End;
use super::link::{FRAMES_WAITING, Link};
use super::peers::{Halt, Peers};
use super::session;

/// After a session that lasted this long, the next attempt comes soon.
const LASTED: Duration = Duration::from_secs(5);

/// The dialling of one member.
struct Line {
    peer_urls: Vec<String>,
    /// Lets the present attempt be the last.
    last: CancellationToken,
    /// Ends the present attempt too.
    stop: CancellationToken,
}

/// The result of an attempt.
enum Called {
    /// No stream came up, for this reason.
    NotReached(String),
    /// A session ran, and ended for this reason.
    Talked(End),
}

impl Peers {
    /// Dials members as the list of members changes, until the process stops.
    pub(crate) async fn run(self: Arc<Self>) {
        self.tasks.spawn(Arc::clone(&self).heed());
        self.tasks.spawn(Arc::clone(&self).acknowledge_own());
        self.tasks.spawn(Arc::clone(&self).probe());
        let mut durable = self.node.durable();
        let mut lines = HashMap::new();
        let mut seen: Option<Arc<Vec<Member>>> = None;
        loop {
            let members = Arc::clone(&durable.borrow_and_update().members);
            if seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &members)) {
                self.follow(&members, &mut lines);
                seen = Some(members);
            }
            tokio::select! {
                changed = durable.changed() => if changed.is_err() { return },
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Starts and stops dialling according to the list of members.
    fn follow(self: &Arc<Self>, members: &[Member], lines: &mut HashMap<ReplicaId, Line>) {
        let own = self.node.identity().replica;
        if members.iter().any(|member| member.id == own && member.removed) {
            self.halts(Halt::Removed);
        }
        for member in members {
            let line = lines.get(&member.id);
            if member.removed {
                // Its session ends by itself, once it has told the member why.
                self.board.forget(member.id);
                if let Some(line) = lines.remove(&member.id) {
                    line.last.cancel();
                }
            } else if own < member.id && line.is_none_or(|line| line.peer_urls != member.peer_urls) {
                let stop = self.stop.child_token();
                let new = Line { peer_urls: member.peer_urls.clone(), last: stop.child_token(), stop };
                self.tasks.spawn(Arc::clone(self).keep_up(member.clone(), new.last.clone(), new.stop.clone()));
                if let Some(moved) = lines.insert(member.id, new) {
                    moved.stop.cancel();
                }
            }
        }
    }

    /// Keeps a session with a member up.
    async fn keep_up(self: Arc<Self>, member: Member, last: CancellationToken, stop: CancellationToken) {
        let mut backoff = Backoff::new();
        while !last.is_cancelled() {
            let began = Instant::now();
            let end = tokio::select! {
                end = self.call(&member, stop.child_token()) => end,
                () = stop.cancelled() => return,
            };
            if last.is_cancelled() {
                return;
            }
            if began.elapsed() >= LASTED {
                backoff.reset();
            }
            match &end {
                Called::Talked(end) => self.ended(member.id, end),
                Called::NotReached(reason) => self.trouble(member.id, reason),
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.pause()) => {}
                () = last.cancelled() => return,
            }
        }
    }

    /// One attempt: dials and talks until the stream ends.
    async fn call(self: &Arc<Self>, member: &Member, stop: CancellationToken) -> Called {
        let mut client = match self.dialer.dial(&member.peer_urls).await {
            Ok(client) => client,
            Err(error) => return Called::NotReached(error.to_string()),
        };
        let (sender, receiver) = mpsc::channel(FRAMES_WAITING);
        let outbound = ReceiverStream::new(receiver).map(|message| Frame { message });
        let inbound = match tokio::time::timeout(dial::CONNECT_TIMEOUT, client.sync(outbound)).await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return Called::NotReached(status.message().to_owned()),
            Err(_) => return Called::NotReached("timed out".to_owned()),
        };
        Called::Talked(session::talk(self, Link { inbound, outbound: sender }, Some(member.id), stop).await.1)
    }
}
