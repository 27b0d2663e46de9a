//! Runs from seeds: how many, and what to say of one that fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A number from the environment.
pub fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

/// Runs; a panic is a failure too.
pub fn caught<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let outcome = catch_unwind(AssertUnwindSafe(run));
    outcome.unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

/// The fewest steps that still fail: leaves out ever smaller pieces.
pub fn shrink<T: Clone>(mut steps: Vec<T>, fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut size = steps.len();
    while size > 0 {
        let mut from = 0;
        while from < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + size).min(steps.len()));
            if fails(&fewer) {
                steps = fewer;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    steps
}

/// One step a line.
pub fn lines<T: std::fmt::Debug>(steps: &[T]) -> String {
    steps.iter().map(|step| format!("\n    {step:?}")).collect()
}
