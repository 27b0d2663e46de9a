//! Schedules in which journals are hardly ever swept, and processes are killed often. What has left, and what is known of bases,
//! no record says itself until a sweep has it written anew: until then notes alone say it. Elsewhere a sweep follows nearly every
//! flush, and few crashes fall between a flush and the next sweep.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::absences;
use super::nemesis::{Act, Plan, hot_plan, rules_plan};

/// How often a start met notes.
pub const LEFT: &str = "notes of what has left";
pub const BASES: &str = "notes of what is known of bases";

/// The schedule that a seed stands for: one of another kind, with these two changes.
pub fn plan(seed: u64) -> Plan {
    let mut plan = match seed % 4 {
        0 => hot_plan(seed),
        1 => absences::plan(seed),
        _ => rules_plan(seed),
    };
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x05ee_9e12);
    plan.flushes_per_sweep = [8, 64, u64::MAX][rng.random_range(0..3)];
    for _ in 0..rng.random_range(2..10) {
        let act = if rng.random_bool(0.1) {
            Act::CrashAll([1, 50][rng.random_range(0..2)])
        } else {
            Act::Crash(rng.random_range(0..plan.founders), [1, 50, 1_000][rng.random_range(0..3)])
        };
        let at = rng.random_range(0..=plan.acts.len());
        plan.acts.insert(at, ([0, 5, 300][rng.random_range(0..3)], act));
    }
    plan
}
