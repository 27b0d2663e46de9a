//! Runs schedules seed by seed, and tells of a failure how to see it again.

use super::checks::Coverage;
use super::nemesis::{Act, Plan};
use super::world::World;
use crate::support::seeds::{caught, env, lines, shrink};

/// How often two lives of a member counted in one space, by the chance that their births leave.
pub const SHARED_SPACES: &str = "spaces of two lives";

fn run_plan(plan: &Plan) -> Result<Coverage, String> {
    let mut world = World::new(plan)?;
    world.run()?;
    world.heal()?;
    world.finish()?;
    for _ in 0..world.ledger.shared_spaces {
        world.coverage.count(SHARED_SPACES);
    }
    Ok(world.coverage)
}

/// Runs a schedule; a panic is a failure too.
pub fn run(plan: &Plan) -> Result<Coverage, String> {
    caught(|| run_plan(plan))
}

/// Runs that many schedules from a seed on; panics at the first that fails.
pub fn sweep(first: u64, count: u64, plan: impl Fn(u64) -> Plan) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in first..first + count {
        let plan = plan(seed);
        match run(&plan) {
            Ok(seen) => coverage.add(&seen),
            Err(error) => {
                let with = |acts: &[(u64, Act)]| Plan { acts: acts.to_vec(), ..plan.clone() };
                let mut acts = plan.acts.clone();
                if env("EDDY_SIM_SHRINK", 1) > 0 {
                    acts = shrink(acts, |acts| run(&with(acts)).is_err());
                }
                let after = run(&with(&acts)).err().unwrap_or_default();
                panic!(
                    "seed {seed}: {error}\n\n{} founders, links {:?}, mangles {}, delay {} ms; shortened to{}\n  {after}\n\n\
                     EDDY_SIM_SEED={seed} EDDY_SIM_SCHEDULES=1 EDDY_SIM_HOT=1 EDDY_SIM_ABSENCES=1 EDDY_SIM_LOSSY=1 \
                     EDDY_SIM_RULES=1 EDDY_SIM_UNSWEPT=1 EDDY_SIM_COPIES=1 EDDY_SIM_MEMBERS=1 cargo test -p eddy-crdt --test suite simulation::",
                    plan.founders,
                    plan.links,
                    plan.mangles,
                    plan.delay_ms,
                    lines(&acts)
                );
            }
        }
    }
    coverage
}
