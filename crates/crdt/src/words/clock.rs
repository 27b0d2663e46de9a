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

/// How far a replica's logical clock may run ahead of its wall clock, milliseconds, whatever it saw and whatever its wall
/// clock showed before.
pub const CLOCK_DRAG_MAX_MS: u64 = 60_000;

/// Hybrid logical time (Kulkarni et al., "Logical Physical Clocks", 2014): 48 bits of milliseconds and 16 bits that
/// count within one. It is above the stamps of everything an entry depends on, unless one of these is dated further ahead
/// than [`CLOCK_DRAG_MAX_MS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp(u64);

impl Stamp {
    const LOGICAL_BITS: u32 = 16;

    /// The first stamp of a millisecond.
    const fn at(wall_ms: u64) -> Self {
        let wall_ms = if wall_ms < 1 << 48 { wall_ms } else { (1 << 48) - 1 };
        Self(wall_ms << Self::LOGICAL_BITS)
    }

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

    /// The stamp of a new entry: above every stamp given or seen before, and not below the wall clock. A wall clock
    /// that was far ahead once and was set right does not count. Its stamps would win every merge until that time has
    /// come.
    pub fn tick(&mut self, now: Now) -> Stamp {
        let (wall, limit) = (Stamp::at(now.wall_ms), Stamp::at(now.wall_ms.saturating_add(CLOCK_DRAG_MAX_MS)));
        self.last = if wall > self.last { wall } else { Stamp(self.last.0.saturating_add(1)) };
        if self.last.wall_ms() > limit.wall_ms() {
            self.last = limit;
        }
        self.last
    }

    /// Takes note of a stamp that was read from the journal.
    pub fn witness(&mut self, seen: Stamp) {
        self.last = self.last.max(seen);
    }

    /// The same for a stamp of another replica, but no further than to that time of the wall clock. Otherwise one
    /// member whose clock is decades ahead would carry all others there.
    pub fn witness_until(&mut self, seen: Stamp, limit_ms: u64) {
        let limit = Stamp::at(limit_ms).0 | ((1 << Stamp::LOGICAL_BITS) - 1);
        self.witness(seen.min(Stamp(limit)));
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

    #[test]
    fn one_wrong_reading_of_the_wall_clock_does_not_stay() {
        let mut clock = Clock::default();
        let year = 365 * 24 * 3_600_000;
        let wrong = clock.tick(Now { wall_ms: 100 * year, mono_ms: 0 });
        assert_eq!(wrong.wall_ms(), 100 * year);
        let set_right = clock.tick(Now { wall_ms: year, mono_ms: 0 });
        assert_eq!(set_right.wall_ms(), year + CLOCK_DRAG_MAX_MS);
        let later = clock.tick(Now { wall_ms: year, mono_ms: 0 });
        assert!(set_right < later && later.wall_ms() == year + CLOCK_DRAG_MAX_MS);
        let caught_up = clock.tick(Now { wall_ms: year + CLOCK_DRAG_MAX_MS + 1, mono_ms: 0 });
        assert_eq!(caught_up, Stamp::at(year + CLOCK_DRAG_MAX_MS + 1));
    }
}
