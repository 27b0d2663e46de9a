//! Clusters larger than there are machines at hand for: what a write costs on the wire, and when all have it.

use eddy_crdt::Command;

use super::clients;
use super::host::Host;
use super::nemesis::{Act, Plan};
use super::world::{Outcome, World};
use crate::support::seeds::env;

/// How many replicas a plain `cargo test` has; `EDDY_SIM_REPLICAS=100` is what `docs/scaling.md` tells of.
const REPLICAS: u64 = 24;
/// How many lone writes are measured.
const WRITES: usize = 20;
/// How long they may take to settle, milliseconds.
const PATIENCE_MS: u64 = 60_000;

impl World {
    /// Lets time pass, a millisecond at a time, until that holds everywhere; how many milliseconds that took.
    fn pass_until(&mut self, holds: impl Fn(&Host) -> bool) -> Outcome<u64> {
        let begun = self.ms;
        while !self.hosts.iter().all(&holds) {
            if self.ms > begun + PATIENCE_MS {
                return Err("it takes too long".to_owned());
            }
            self.pass(self.ms + 1)?;
        }
        Ok(self.ms - begun)
    }
}

fn is_settled(host: &Host) -> bool {
    host.up().is_some_and(|up| up.replica.windows_len() == 0)
}

/// Makes one lone write after the other, at different replicas. Prints the messages and bytes that each write costs in
/// the whole cluster. Prints also the milliseconds until all show the write, and those until all have settled it.
fn lone_writes(world: &mut World) -> Outcome {
    let founders = world.hosts.len();
    world.pass(PATIENCE_MS)?;
    world.pass_until(is_settled)?;
    let before = world.traffic;
    world.pass(world.ms + 60_000)?;
    let idle = world.traffic.since(before);
    let (mut shown, mut settled) = (vec![], vec![]);
    let before = world.traffic;
    let begun = world.ms;
    for n in 0..WRITES {
        let key = format!("write {n}");
        let put = clients::put(key.clone().into(), "x".repeat(200), None);
        world.command(n * 7 % founders, Command::Put(put))?;
        let shows = |host: &Host| host.up().is_some_and(|up| up.shadow.kvs.contains_key(key.as_bytes()));
        shown.push(world.pass_until(shows)?);
        settled.push(world.pass_until(is_settled)?);
    }
    let writes = world.traffic.since(before);
    shown.sort_unstable();
    settled.sort_unstable();
    println!(
        "{founders} replicas, {} ms at most between two: at rest {} messages and {} bytes each per minute; a lone write of 200 bytes: \
         {} messages and {} bytes in all, with what {} ms at rest take; shown everywhere after {} ms (median; most {}), settled {} ms \
         later (most {})",
        world.plan.delay_ms,
        idle.messages / founders as u64,
        idle.bytes / founders as u64,
        writes.messages / WRITES as u64,
        writes.bytes / WRITES as u64,
        (world.ms - begun) / WRITES as u64,
        shown[WRITES / 2],
        shown[WRITES - 1],
        settled[WRITES / 2],
        settled[WRITES - 1],
    );
    world.heal()
}

#[test]
fn a_large_cluster_shows_and_settles_what_is_written() {
    let founders = env("EDDY_SIM_REPLICAS", REPLICAS) as usize;
    let plan = Plan { seed: 1, founders, delay_ms: 5, chunk_bytes: 64 << 10, ..Plan::default() };
    let mut world = World::new(&plan).unwrap_or_else(|error| panic!("{error}"));
    world.events_max = u64::MAX;
    lone_writes(&mut world).unwrap_or_else(|error| panic!("{error}"));
}

/// What a stream begins with may be nothing. A peer that has nothing new acknowledges nothing, and was taken for one that is
/// stuck: the stream ended and began again, and all were told each time, for ever (found by seed 4003140, in which 21 members
/// had no time for anything else).
#[test]
fn streams_that_begin_with_nothing_go_on() {
    for seed in 0..24 {
        let delay_ms = [2, 30, 400][seed as usize % 3];
        let acts = (0..4).map(|n| (500, if n % 2 == 0 { Act::Crash(n, 50) } else { Act::Reset(0, n) })).collect();
        let plan = Plan { seed, founders: 5, delay_ms, chunk_bytes: 300, acts, ..Plan::default() };
        let run = || -> Outcome<(Vec<u64>, Vec<u64>)> {
            let mut world = World::new(&plan)?;
            world.run()?;
            world.heal()?;
            world.pass(world.ms + 10_000)?;
            let marks = |world: &World| -> Vec<u64> {
                world.hosts.iter().filter_map(Host::up).map(|up| up.replica.marks().version()).collect()
            };
            let before = marks(&world);
            world.pass(world.ms + 30_000)?;
            Ok((before, marks(&world)))
        };
        let (before, after) = run().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(before, after, "seed {seed}: changes of the marks while nothing happens");
    }
}
