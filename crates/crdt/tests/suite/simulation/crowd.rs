//! Clusters larger than there are machines at hand for: what a write costs on the wire, and when all have it.

use eddy_crdt::Command;

use super::clients;
use super::host::Host;
use super::nemesis::Plan;
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
    let (links, acts) = (vec![], vec![]);
    let plan =
        Plan { seed: 1, founders, links, mangles: false, delay_ms: 5, chunk_bytes: 64 << 10, kept_births: 4, acts };
    let mut world = World::new(&plan).unwrap_or_else(|error| panic!("{error}"));
    world.events_max = u64::MAX;
    lone_writes(&mut world).unwrap_or_else(|error| panic!("{error}"));
}
