//! How far a copy is behind its source.

use std::time::{Duration, Instant};

/// A copy is near when it has what the source had this long before.
const NEAR: Duration = Duration::from_secs(1);

/// How often the operator is told how it goes.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Lag {
    /// What the source had, and when that was seen, until the copy has it.
    ahead: Option<(i64, Instant)>,
    is_near: bool,
    /// The longest since it was told.
    longest: Duration,
    told: Instant,
}

impl Lag {
    pub(super) fn new() -> Self {
        Self { ahead: None, is_near: false, longest: Duration::ZERO, told: Instant::now() }
    }

    /// The source was seen at a revision.
    pub(super) fn seen(&mut self, source: i64) {
        self.ahead.get_or_insert_with(|| (source, Instant::now()));
    }

    /// The copy has come to a revision.
    pub(super) fn reached(&mut self, copy: i64) {
        if let Some((_, since)) = self.ahead.take_if(|(source, _)| copy >= *source) {
            self.longest = self.longest.max(since.elapsed());
            self.is_near = since.elapsed() < NEAR;
        }
    }

    /// Whether the copy is as good as at its source.
    pub(super) fn is_near(&self) -> bool {
        self.is_near
    }

    /// What was seen before counts no more: something else took its time.
    pub(super) fn begin(&mut self) {
        *self = Self { is_near: self.is_near, ..Self::new() };
    }

    /// The longest since this was asked, when it is time to tell it.
    pub(super) fn due_to_tell(&mut self) -> Option<Duration> {
        (self.told.elapsed() >= TELL_EVERY).then(|| {
            self.told = Instant::now();
            std::mem::take(&mut self.longest)
        })
    }
}
