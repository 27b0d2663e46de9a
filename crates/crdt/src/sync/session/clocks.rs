//! Round trips, and how far the peer's wall clock is off.

use crate::sync::message::Message;
use crate::sync::session::effects::SessionEvent;
use crate::words::clock::Now;
use crate::words::id::ReplicaId;

#[derive(Debug, Default)]
pub(super) struct Clocks {
    number: u32,
    /// When the last ping was sent, milliseconds of the monotonic clock.
    pinged_ms: Option<u64>,
    /// Whether its answer is still to come.
    waiting: bool,
    round_trip_ms: Option<u64>,
    ahead_ms: Option<i64>,
    off: bool,
}

impl Clocks {
    /// A ping, when it is time for one.
    pub fn ping(&mut self, interval_ms: u64, now: Now) -> Option<Message> {
        if self.pinged_ms.is_some_and(|at| now.mono_ms < at.saturating_add(interval_ms)) {
            return None;
        }
        self.number = self.number.wrapping_add(1);
        (self.pinged_ms, self.waiting) = (Some(now.mono_ms), true);
        Some(Message::Ping { number: self.number, wall_ms: now.wall_ms })
    }

    /// Takes the answer; tells when the clock turned out to be off, or right again.
    pub fn pong(
        &mut self,
        member: ReplicaId,
        tolerance_ms: u64,
        now: Now,
        number: u32,
        wall_ms: u64,
    ) -> Option<SessionEvent> {
        // An older one measures nothing: its ping's time is not known any more.
        if number != self.number || !std::mem::take(&mut self.waiting) {
            return None;
        }
        let round_trip_ms = now.mono_ms.saturating_sub(self.pinged_ms?);
        // The peer looked at its clock somewhere between the two, most likely in the middle.
        let here_ms = now.wall_ms.saturating_sub(round_trip_ms / 2);
        let ahead_ms = i64::try_from(i128::from(wall_ms) - i128::from(here_ms)).unwrap_or(i64::MAX);
        (self.round_trip_ms, self.ahead_ms) = (Some(round_trip_ms), Some(ahead_ms));
        let off = ahead_ms.unsigned_abs() > tolerance_ms.saturating_add(round_trip_ms / 2);
        match (std::mem::replace(&mut self.off, off), off) {
            (false, true) => Some(SessionEvent::ClockOff { member, ahead_ms }),
            (true, false) => Some(SessionEvent::ClockRight(member)),
            _ => None,
        }
    }

    /// When the next ping is to be sent, milliseconds of the monotonic clock.
    pub fn next_ms(&self, interval_ms: u64) -> u64 {
        self.pinged_ms.map_or(0, |at| at.saturating_add(interval_ms))
    }

    pub fn round_trip_ms(&self) -> Option<u64> {
        self.round_trip_ms
    }

    pub fn ahead_ms(&self) -> Option<i64> {
        self.ahead_ms
    }
}
