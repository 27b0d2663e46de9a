//! The machine against a naive model: random commands, sweeps, crashes at any place of the journal.
//!
//! `EDDY_MODEL_CASES` (default 4000) is the number of random sequences; `EDDY_MODEL_SEED` the first one's seed. A
//! failure is shrunk and printed with its seed.

mod naive;
mod steps;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use eddy_crdt::Replica;
use steps::Step;
use world::World;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

fn run(steps: &[Step]) -> Result<(), String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        world.look()?;
        world.no_garbage_stays()
    }));
    outcome.unwrap_or_else(|_| Err("panicked".to_owned()))
}

/// The fewest steps that still fail: leaves out ever smaller pieces.
fn shrink(mut steps: Vec<Step>) -> Vec<Step> {
    let mut size = steps.len();
    while size > 0 {
        let mut from = 0;
        while from < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + size).min(steps.len()));
            if run(&fewer).is_err() {
                steps = fewer;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    steps
}

#[test]
fn the_machine_does_what_the_naive_model_does_crashes_included() {
    let first = env("EDDY_MODEL_SEED", 1);
    for seed in first..first + env("EDDY_MODEL_CASES", 4000) {
        let steps = steps::random(seed, 20 + seed as usize % 60);
        if run(&steps).is_err() {
            let steps = shrink(steps);
            let error = run(&steps).expect_err("shrinking keeps the failure");
            let steps: Vec<_> = steps.iter().map(|step| format!("\n    {step:?}")).collect();
            panic!("seed {seed}: {error}\nafter{}", steps.concat());
        }
    }
}

#[test]
fn equal_inputs_give_equal_bytes() {
    for seed in 1..50 {
        let steps = steps::random(seed, 100);
        let run = || {
            let mut world = World::new();
            steps.iter().for_each(|step| world.step(step).expect("as the model"));
            (world.disk, world.replica.head().encode())
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn a_store_that_was_never_written_to_gives_a_new_replica() {
    let restored = world::Disk::default().load(Default::default()).expect("nothing is damaged");
    assert_eq!(restored.head(), Replica::new(world::IDENTITY).head());
}
