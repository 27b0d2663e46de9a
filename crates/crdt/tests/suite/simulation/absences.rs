//! Schedules of absences: few keys that are edited leaf by leaf, while the links change from phase to phase. So members are
//! away alone and in groups that talk to each other, at several points, and what leaves one member comes back through
//! others: over chains of members, in parts, from disks that were lost, by processes that were killed as they sent.

use eddy_crdt::sync::Tuning;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::nemesis::{Act, Plan, units_in_looks};
use super::plots;

/// Of ten seeds this one has a plot of its own, so that all others stand for the schedules that they stood for before.
const TWO_MOMENTS: u64 = 7;

/// What a schedule of absences has in it.
struct Absences {
    rng: SmallRng,
    founders: usize,
    /// Processes are killed, disks are slow.
    crashes: bool,
    /// Disks are lost.
    disks: bool,
    acts: Vec<(u64, Act)>,
}

impl Absences {
    fn push(&mut self, wait_ms: u64, act: Act) {
        self.acts.push((wait_ms, act));
    }

    fn any(&mut self) -> usize {
        self.rng.random_range(0..self.founders)
    }

    /// Which pairs can talk from now on.
    fn links(&mut self) -> Act {
        let n = self.founders;
        let pairs = (0..n).flat_map(move |a| (a + 1..n).map(move |b| (a, b)));
        let odd = self.rng.random_range(0..n);
        let open: Vec<(usize, usize)> = match self.rng.random_range(0..6) {
            0 => pairs.collect(),
            1 => pairs.filter(|(a, b)| *a != odd && *b != odd).collect(),
            // Two groups.
            2 => pairs.filter(|(a, b)| (a + odd) % n % 2 == (b + odd) % n % 2).collect(),
            // Each with the next alone.
            3 => pairs.filter(|(a, b)| (a + 1) % n == *b && *a != odd).collect(),
            _ => pairs.filter(|_| self.rng.random_bool(0.4)).collect(),
        };
        Act::Links { open, sever: self.rng.random_bool(0.7) }
    }

    /// A few writes at a few members, some in a row.
    fn writes(&mut self) {
        let writer = self.any();
        let wait_max = [2, 60, 400][self.rng.random_range(0..3)];
        for _ in 0..self.rng.random_range(2..14) {
            let host = if self.rng.random_bool(0.6) { writer } else { self.any() };
            let wait_ms = self.rng.random_range(0..wait_max);
            let seed = self.rng.random();
            let act = match self.rng.random_range(0..20) {
                0 => Act::Own(host),
                1 => Act::Pair(host),
                2 => Act::Status(host),
                5 => Act::Hot(host, seed),
                3 => Act::Field(host, seed),
                4 => Act::Count(host, seed),
                _ => Act::Edit(host, seed),
            };
            self.push(wait_ms, act);
        }
    }

    fn fault(&mut self) {
        let (one, wait_ms) = (self.any(), [0, 0, 5, 300][self.rng.random_range(0..4)]);
        let back_ms = [1, 50, 3000][self.rng.random_range(0..3)];
        let act = match self.rng.random_range(0..10) {
            0..4 if self.crashes => Act::Crash(one, back_ms),
            4..6 if self.crashes => Act::Slow(one, [0, 10, 300, 300][self.rng.random_range(0..4)]),
            6 if self.disks => Act::Wipe(one, back_ms),
            7 if self.disks => Act::Backup(one),
            8 if self.disks => Act::Restore(one, back_ms, true),
            _ => return,
        };
        self.push(wait_ms, act);
    }
}

/// The schedule that a seed stands for.
pub fn plan(seed: u64) -> Plan {
    let mut rng = SmallRng::seed_from_u64(seed);
    let founders = [2, 3, 3, 4, 4, 4][rng.random_range(0..6)];
    let (crashes, disks) = (rng.random_bool(0.5), rng.random_bool(0.25));
    let delay_ms = [2, 30, 200][rng.random_range(0..3)];
    let plot = match seed % 10 {
        TWO_MOMENTS => plots::draw_two_moments(&mut rng, delay_ms),
        _ if rng.random_bool(0.5) => plots::draw(&mut rng, delay_ms),
        _ => vec![],
    };
    let founders = if plot.is_empty() { founders } else { 4 };
    let keeps = rng.random_bool(0.3);
    let batch_bytes = if rng.random_bool(0.5) { 1 } else { Tuning::default().batch_bytes };
    let phases = if plot.is_empty() { rng.random_range(3..12) } else { rng.random_range(0..2) };
    let mut absences = Absences { rng, founders, crashes, disks, acts: vec![] };
    absences.push(1_500, Act::Field(0, 0));
    absences.push(0, Act::Count(0, 0));
    if keeps {
        let host = absences.any();
        absences.push(0, Act::Keep(host));
    }
    absences.acts.extend(plot);
    for _ in 0..phases {
        let links = absences.links();
        absences.push(0, links);
        // Until the links are there, what was said before has gone round, and some know that others have it.
        let wait_ms = [0, 30, 1_000, 3_000][absences.rng.random_range(0..4)];
        let wait_ms = wait_ms + absences.rng.random_range(0..200);
        let before = absences.acts.len();
        absences.writes();
        if let Some((first_ms, _)) = absences.acts.get_mut(before) {
            *first_ms += wait_ms;
        }
        if absences.rng.random_bool(0.5) {
            absences.fault();
        }
        if absences.rng.random_bool(0.5) {
            absences.writes();
        }
        let after_ms = [0, 100, 1_500, 4_000, if keeps { 20_000 } else { 4_000 }][absences.rng.random_range(0..5)];
        absences.push(after_ms, Act::Rest);
    }
    let tuning = Tuning { batch_bytes, ..units_in_looks(seed) };
    Plan {
        seed,
        founders,
        delay_ms,
        chunk_bytes: 300,
        tuning,
        watched: true,
        settles_slowly: !seed.is_multiple_of(3),
        acts: absences.acts,
        ..Plan::default()
    }
}
