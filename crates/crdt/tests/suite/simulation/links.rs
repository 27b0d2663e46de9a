//! How hosts talk: connections come about, carry messages, break; sessions do what they have to.

use eddy_crdt::merge::ENGINE;
use eddy_crdt::sync::{Message, Reason, Session, SessionEffects, SessionEvent, SyncError};
use eddy_crdt::{Installer, Notice};
use rand::Rng;
use std::collections::VecDeque;

use super::host::{Host, Life};
use super::network::{Connection, End};
use super::world::{Event, Outcome, World};

/// For how long nothing may get through before a side gives up, milliseconds.
const STALL_MS: u64 = 2_500;

/// About how many bytes of entries one look takes.
const POLL_BYTES: usize = 64 << 10;

impl World {
    /// Tries to reach the other; tries again until it does. One connection at a time, but the two need not notice at
    /// the same time that one is gone.
    pub fn dial(&mut self, a: usize, b: usize) -> Outcome {
        let gone = |host: &Host| matches!(host.life, Life::Gone);
        if gone(&self.hosts[a]) || gone(&self.hosts[b]) || !self.is_linked(a, b) {
            return Ok(());
        }
        let talk = |c: &Connection| {
            c.ends.iter().all(|e| e.session.is_some()) && c.ends.iter().all(|e| e.host == a || e.host == b)
        };
        let is_up = |host: &Host| host.up().is_some();
        if self.connections.values().any(talk) {
            return Ok(());
        }
        if is_up(&self.hosts[a]) && is_up(&self.hosts[b]) && self.blocked.is_open(a, b) {
            return self.connect(a, b);
        }
        let later = self.ms + self.rng.random_range(100..1500);
        self.at(later, Event::Dial(a, b));
        Ok(())
    }

    /// Opens a connection between two that run (one of them may fetch).
    pub fn connect(&mut self, a: usize, b: usize) -> Outcome {
        if a == b || a >= self.hosts.len() || b >= self.hosts.len() || !self.blocked.is_open(a, b) {
            return Ok(());
        }
        if self.hosts[a].seat().is_none() || self.hosts[b].seat().is_none() {
            return Ok(());
        }
        let wants_both_up = [a, b].iter().all(|host| self.hosts[*host].up().is_none());
        if wants_both_up {
            return Ok(());
        }
        self.coverage.count("connections");
        let at = self.next_connection;
        self.next_connection += 1;
        let mut greetings = vec![];
        let mut end = |host: usize, wanted: usize| {
            let place = &self.hosts[host];
            let (replica, durable, exchange) = place.seat().expect("checked");
            let (session, hello) = Session::start(exchange, replica, durable, Some(self.hosts[wanted].id));
            greetings.push(hello);
            End { host, session: Some(session), inbox: VecDeque::new(), poll_ms: None, stalled_ms: None }
        };
        let ends = [end(a, b), end(b, a)];
        self.connections.insert(at, Connection { ends });
        for (side, hello) in greetings.into_iter().enumerate() {
            self.send(at, 1 - side, &hello);
        }
        Ok(())
    }

    pub fn send(&mut self, at: usize, to: usize, message: &Message) {
        let (ms, delay_ms, mangles) = (self.ms, self.plan.delay_ms, self.plan.mangles && !self.healing);
        let Some(connection) = self.connections.get_mut(&at) else { return };
        let bytes = message.encode();
        self.traffic.messages += 1;
        self.traffic.bytes += bytes.len() as u64;
        for arrives in connection.send(to, ms, delay_ms, mangles, &mut self.rng, bytes) {
            self.at(arrives, Event::Arrive(at, to));
        }
    }

    pub fn arrive(&mut self, at: usize, side: usize) -> Outcome {
        let Some(connection) = self.connections.get_mut(&at) else { return Ok(()) };
        let from = connection.ends[1 - side].host;
        let end = &mut connection.ends[side];
        let host = end.host;
        if end.session.is_none() {
            return Ok(());
        }
        if self.blocked.is_blocked(from, host) {
            let since = *end.stalled_ms.get_or_insert(self.ms);
            if self.ms > since + STALL_MS {
                self.break_off(at);
            } else {
                self.at(self.ms + 150, Event::Arrive(at, side));
            }
            return Ok(());
        }
        end.stalled_ms = None;
        let Some((_, bytes)) = end.inbox.pop_front() else { return Ok(()) };
        let Some((replica, durable, _)) = self.hosts[host].seat() else { return Ok(()) };
        let now = self.hosts[host].now(self.ms);
        let Some(session) = &mut end.session else { return Ok(()) };
        let turn = Message::decode(bytes).map_err(SyncError::from).and_then(|message| {
            if self.trace {
                println!("{:>8} {from} -> {host} ({at}): {}", self.ms, brief(&message));
            }
            session.receive(replica, durable, now, message)
        });
        self.take(at, side, turn)?;
        self.wake_end(at, side);
        Ok(())
    }

    pub fn poll(&mut self, at: usize, side: usize) -> Outcome {
        let Some(connection) = self.connections.get_mut(&at) else { return Ok(()) };
        let end = &mut connection.ends[side];
        // Only the newest wish counts.
        if end.poll_ms != Some(self.ms) {
            return Ok(());
        }
        end.poll_ms = None;
        let Some((replica, durable, _)) = self.hosts[end.host].seat() else { return Ok(()) };
        let now = self.hosts[end.host].now(self.ms);
        let marks = self.hosts[end.host].up().map_or(0, |up| up.durable.marks);
        let Some(session) = &mut end.session else { return Ok(()) };
        session.set_marks_on_disk(marks);
        let turn = session.poll(replica, durable, now, POLL_BYTES);
        let next_ms = session.next_ms().map(|ms| self.hosts[end.host].when(ms).max(self.ms + 1));
        self.take(at, side, turn)?;
        if let Some(next_ms) = next_ms {
            self.poll_at(at, side, next_ms);
        }
        Ok(())
    }

    fn poll_at(&mut self, at: usize, side: usize, ms: u64) {
        let Some(connection) = self.connections.get_mut(&at) else { return };
        let end = &mut connection.ends[side];
        if end.session.is_some() && end.poll_ms.is_none_or(|before| before > ms) {
            end.poll_ms = Some(ms);
            self.at(ms, Event::Poll(at, side));
        }
    }

    fn wake_end(&mut self, at: usize, side: usize) {
        let soon = self.ms + self.rng.random_range(1..10);
        self.poll_at(at, side, soon);
    }

    /// Something is new at a host: its sessions look what there is to do.
    pub fn wake(&mut self, host: usize) {
        let mine = |(at, c): (&usize, &Connection)| {
            (0..2).filter(|side| c.ends[*side].host == host).map(|side| (*at, side)).collect::<Vec<_>>()
        };
        let ends: Vec<_> = self.connections.iter().flat_map(mine).collect();
        for (at, side) in ends {
            self.wake_end(at, side);
        }
    }

    /// Does what a session wants done.
    fn take(&mut self, at: usize, side: usize, turn: Result<SessionEffects, SyncError>) -> Outcome {
        let host = self.connections[&at].ends[side].host;
        let turn = match turn {
            Ok(turn) => turn,
            Err(error) => return self.fail(at, side, host, &error),
        };
        let boot = self.hosts[host].boot;
        if !turn.inputs.is_empty() && self.hosts[host].up().is_some() {
            let handled = self.handle(host, turn.inputs)?;
            if handled.notices.iter().any(Notice::is_refusal)
                && let Some(connection) = self.connections.get_mut(&at)
                && let Some(session) = &mut connection.ends[side].session
                && let Some(up) = self.hosts[host].up()
            {
                self.coverage.count("refused entries");
                if let Some(again) = session.refused(&up.replica, self.hosts[host].now(self.ms)) {
                    self.send(at, 1 - side, &again);
                }
            }
        }
        for message in &turn.messages {
            self.send(at, 1 - side, message);
        }
        for event in turn.events {
            if self.hosts[host].boot == boot {
                self.follow(at, side, host, event)?;
            }
        }
        Ok(())
    }

    /// A session cannot go on.
    fn fail(&mut self, at: usize, side: usize, host: usize, error: &SyncError) -> Outcome {
        self.say(|| format!("{host} ends session {at}: {error}"));
        if let Some(refusal) = error.refusal() {
            self.send(at, 1 - side, &refusal);
        }
        self.close(at, side);
        match error {
            SyncError::Refused { reason: Reason::RemovedMember, .. } => self.gone(host),
            SyncError::RemovedMember(_) | SyncError::UnknownMember(_) if self.removals => {}
            SyncError::UnknownMember(_) => self.coverage.count("strangers"),
            SyncError::Refused { reason: Reason::UnknownMember, .. } => {}
            SyncError::Rules(_) if self.hosts[host].engine == ENGINE => {
                self.coverage.count("members that an older build does not join");
            }
            SyncError::Refused { reason: Reason::Version, .. } if self.plan.rules => {}
            // It can be seen after a start without any loss: entries of a birth that is told of for the first time.
            SyncError::Outlived(_) | SyncError::Refused { reason: Reason::Identity, .. } if self.disk_faults => {}
            SyncError::Fork(_) | SyncError::Refused { reason: Reason::Fork, .. } if self.disk_faults => {
                self.coverage.count("forks seen by others");
            }
            error => return Err(format!("a session ended: {error}")),
        }
        Ok(())
    }

    fn follow(&mut self, at: usize, side: usize, host: usize, event: SessionEvent) -> Outcome {
        match event {
            SessionEvent::Met { .. } if self.hosts[host].up().is_none() => {
                if !self.is_reading(host)
                    && let Life::Fetching(fetch) = &mut self.hosts[host].life
                {
                    (fetch.installer, fetch.over) = (Installer::of_engine(fetch.empty.engine()), Some(at));
                    self.ask_chunk(at, side, None);
                }
            }
            SessionEvent::SnapshotChunk(chunk) => self.take_chunk(at, side, host, &chunk)?,
            SessionEvent::SnapshotWanted { after } => {
                if let Some(up) = self.hosts[host].up() {
                    let bytes = self.plan.chunk_bytes;
                    let chunk = up.replica.snapshot_chunk(after.as_ref(), &up.durable.vector, bytes).encode();
                    self.send(at, 1 - side, &Message::SnapshotChunk(chunk));
                }
            }
            SessionEvent::LostTail { member, .. } => {
                self.coverage.count("lost tails");
                if !self.disk_faults {
                    return Err(format!("host {host} lost a tail without a fault: {event:?}"));
                }
                self.anew(host, member);
            }
            SessionEvent::SnapshotNeeded { member } => {
                self.coverage.count("snapshots needed");
                self.anew(host, member);
            }
            SessionEvent::PeerLostTail(_) => self.coverage.count("peers with lost tails"),
            SessionEvent::PeerNeedsSnapshot(_) => self.coverage.count("peers that need snapshots"),
            SessionEvent::HashDiffers(_) | SessionEvent::KeyDiffers { .. } => {
                return Err(format!("host {host}: states differ: {event:?}"));
            }
            SessionEvent::Met { .. } | SessionEvent::ClockOff { .. } | SessionEvent::ClockRight(_) => {}
        }
        Ok(())
    }

    pub fn ask_chunk(&mut self, at: usize, side: usize, after: Option<eddy_crdt::Place>) {
        let Some(connection) = self.connections.get_mut(&at) else { return };
        let Some(session) = &mut connection.ends[side].session else { return };
        let wish = session.request_snapshot(after);
        self.send(at, 1 - side, &wish);
    }

    /// A connection breaks; the two sides notice it at different times.
    pub fn break_off(&mut self, at: usize) {
        for side in 0..2 {
            let ms = self.ms + self.rng.random_range(0..300);
            self.at(ms, Event::Close(at, side));
        }
    }

    /// Only these pairs can talk from now on.
    pub fn link_only(&mut self, open: &[(usize, usize)], sever: bool) {
        let count = self.hosts.len();
        self.blocked.only(open, count);
        if sever {
            for (a, b) in (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))) {
                if !open.contains(&(a, b)) {
                    self.reset(a, b);
                }
            }
        }
    }

    pub fn reset(&mut self, a: usize, b: usize) {
        let between = |c: &Connection| c.ends.iter().all(|e| e.host == a || e.host == b);
        let at: Vec<usize> = self.connections.iter().filter(|(_, c)| between(c)).map(|(at, _)| *at).collect();
        for at in at {
            self.break_off(at);
        }
    }

    pub fn close(&mut self, at: usize, side: usize) {
        let Some(connection) = self.connections.get_mut(&at) else { return };
        let Some(session) = connection.ends[side].session.take() else { return };
        let (host, stop) = (connection.ends[side].host, session.end());
        let (a, b) = (connection.ends[0].host, connection.ends[1].host);
        if connection.is_closed() {
            self.connections.remove(&at);
        } else {
            // The other side notices, sooner or later; what is on its way to it may still arrive.
            let ms = self.ms + self.rng.random_range(0..1000);
            self.at(ms, Event::Close(at, 1 - side));
        }
        let later = self.ms + self.rng.random_range(1..1500);
        self.at(later, Event::Dial(a.min(b), a.max(b)));
        if let Some(stop) = stop {
            self.handle(host, vec![stop]).expect("nothing can be wrong with the end of a session");
        }
    }
}

fn brief(message: &Message) -> String {
    let text = format!("{message:?}");
    let text = text
        .replace("VersionVector { highest: ", "")
        .replace("Origin { replica: ReplicaId", "")
        .replace("birth: Birth", "");
    match text.char_indices().nth(400) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
