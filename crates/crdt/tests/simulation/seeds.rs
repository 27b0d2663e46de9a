//! Runs schedules seed by seed, and tells of a failure how to see it again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::checks::Coverage;
use crate::nemesis::{Plan, plan};
use crate::world::World;

pub fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

fn run_plan(plan: &Plan) -> Result<Coverage, String> {
    let mut world = World::new(plan)?;
    world.run()?;
    world.heal()?;
    world.finish()?;
    Ok(world.coverage)
}

/// Runs a schedule; a panic is a failure too.
pub fn run(plan: &Plan) -> Result<Coverage, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| run_plan(plan)));
    outcome.unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

/// The fewest acts that still fail: leaves out ever smaller pieces.
fn shrink(mut plan: Plan) -> Plan {
    let mut size = plan.acts.len();
    while size > 0 {
        let mut from = 0;
        while from < plan.acts.len() {
            let mut fewer = plan.clone();
            fewer.acts.drain(from..(from + size).min(plan.acts.len()));
            if run(&fewer).is_err() {
                plan = fewer;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    plan
}

/// Runs that many schedules from a seed on; panics at the first that fails.
pub fn sweep(first: u64, count: u64) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in first..first + count {
        let plan = plan(seed);
        match run(&plan) {
            Ok(seen) => coverage.add(&seen),
            Err(error) => {
                let short = if env("EDDY_SIM_SHRINK", 1) > 0 { shrink(plan.clone()) } else { plan.clone() };
                let after = run(&short).err().unwrap_or_default();
                let acts: Vec<_> = short.acts.iter().map(|act| format!("\n    {act:?}")).collect();
                panic!(
                    "seed {seed}: {error}\n\n{} founders, links {:?}, mangles {}, delay {} ms; shortened to{}\n  {after}\n\n\
                     EDDY_SIM_SEED={seed} EDDY_SIM_SCHEDULES=1 cargo test -p eddy-crdt --test simulation",
                    plan.founders,
                    plan.links,
                    plan.mangles,
                    plan.delay_ms,
                    acts.concat()
                );
            }
        }
    }
    coverage
}
