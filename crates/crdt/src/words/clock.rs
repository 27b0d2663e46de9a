//! Time as the state machine sees it: always an argument, never read.

/// What the clocks say when an input is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Wall clock, milliseconds since the Unix epoch. Only breaks ties; it may jump.
    pub wall_ms: u64,
    /// Monotonic clock, milliseconds since an arbitrary start of this process. Leases are counted by it alone, so a
    /// jump of the wall clock neither expires nor prolongs them.
    pub mono_ms: u64,
}

/// Hybrid logical time (Kulkarni et al., "Logical Physical Clocks", 2014): 48 bits of milliseconds and 16 bits that
/// count within one. Above the stamps of everything an entry depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp(u64);

impl Stamp {
    const LOGICAL_BITS: u32 = 16;

    /// Wraps the raw number.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw number, as it goes over the wire and to disk.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The wall-clock part, milliseconds since the Unix epoch.
    pub const fn wall_ms(self) -> u64 {
        self.0 >> Self::LOGICAL_BITS
    }
}

/// The replica's hybrid logical clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    last: Stamp,
}

impl Clock {
    /// A clock that goes on after `last`.
    pub const fn starting_at(last: Stamp) -> Self {
        Self { last }
    }

    /// The stamp of a new entry: above every stamp given or seen before, and not below the wall clock.
    pub fn tick(&mut self, now: Now) -> Stamp {
        let wall = Stamp(now.wall_ms.min((1 << 48) - 1) << Stamp::LOGICAL_BITS);
        self.last = if wall > self.last { wall } else { Stamp(self.last.0.saturating_add(1)) };
        self.last
    }

    /// Takes note of a stamp that was read from the journal.
    pub fn witness(&mut self, seen: Stamp) {
        self.last = self.last.max(seen);
    }

    /// The same for a stamp of another replica, but no further than to that time of the wall clock. Otherwise one
    /// member whose clock is decades ahead would carry all others there.
    pub fn witness_until(&mut self, seen: Stamp, limit_ms: u64) {
        let limit = Stamp(limit_ms.min((1 << 48) - 1) << Stamp::LOGICAL_BITS | ((1 << Stamp::LOGICAL_BITS) - 1));
        self.witness(seen.min(limit));
    }

    /// The highest stamp given or seen.
    pub const fn last(&self) -> Stamp {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_grow_although_the_wall_clock_goes_back() {
        let mut clock = Clock::default();
        let a = clock.tick(Now { wall_ms: 1000, mono_ms: 0 });
        let b = clock.tick(Now { wall_ms: 1000, mono_ms: 0 });
        let c = clock.tick(Now { wall_ms: 10, mono_ms: 0 });
        assert!(a < b && b < c);
        assert_eq!(c.wall_ms(), 1000);
    }
}
