//! What tests break on purpose. This is not in release builds.

use std::sync::OnceLock;

/// By how many milliseconds the wall clock is off: `EDDY_FAULT_CLOCK_MS`.
pub(super) fn clock_off_ms() -> i64 {
    static OFF_MS: OnceLock<i64> = OnceLock::new();
    *OFF_MS.get_or_init(|| std::env::var("EDDY_FAULT_CLOCK_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(0))
}
