//! The machine against a naive model: random commands, sweeps, crashes at any place of the journal.
//!
//! `EDDY_MODEL_CASES` (default 4000) is the number of random sequences; `EDDY_MODEL_SEED` the first one's seed. A
//! failure is shrunk and printed with its seed.

mod naive;
mod steps;
mod world;

use eddy_crdt::Replica;
use steps::Step;
use world::World;

use crate::support::disk::Image;
use crate::support::seeds::{caught, env, lines, shrink};

fn run(steps: &[Step]) -> Result<(), String> {
    caught(|| {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        world.look()?;
        world.no_garbage_stays()
    })
}

#[test]
fn the_machine_does_what_the_naive_model_does_crashes_included() {
    let first = env("EDDY_MODEL_SEED", 1);
    for seed in first..first + env("EDDY_MODEL_CASES", 4000) {
        let steps = steps::random(seed, 20 + seed as usize % 60);
        if run(&steps).is_err() {
            let steps = shrink(steps, |steps| run(steps).is_err());
            let error = run(&steps).expect_err("shrinking keeps the failure");
            panic!("seed {seed}: {error}\nafter{}", lines(&steps));
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
            (world.node.disk.written(), world.node.replica.head().encode())
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn a_store_that_was_never_written_to_gives_a_new_replica() {
    let restored = Image::default().load(Default::default(), world::IDENTITY).expect("nothing is damaged");
    assert_eq!(restored.head(), Replica::new(world::IDENTITY).head());
}
