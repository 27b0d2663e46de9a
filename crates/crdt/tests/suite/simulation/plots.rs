//! Plots: what has to come together so that a version that left too early is missed, with members, moments and edits from
//! dice. In schedules that are random altogether it comes together too seldom. In each of them somebody is told `v`,
//! `v` is written over elsewhere, and the one that was told writes on top of it.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::nemesis::Act;

/// Acts, each after so many milliseconds.
type Acts = Vec<(u64, Act)>;

struct Plot<'a> {
    rng: &'a mut SmallRng,
    acts: Acts,
}

impl Plot<'_> {
    fn wait(&mut self, from_ms: u64, to_ms: u64) {
        let ms = self.rng.random_range(from_ms..=to_ms);
        self.acts.push((ms, Act::Rest));
    }

    fn act(&mut self, act: Act) {
        self.acts.push((0, act));
    }

    fn links(&mut self, open: &[(usize, usize)]) {
        let open = open.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect();
        self.act(Act::Links { open, sever: true });
    }

    /// A member edits so many times.
    fn edits(&mut self, host: usize, count: usize, wait_max_ms: u64) {
        for _ in 0..count {
            let wait_ms = self.rng.random_range(0..=wait_max_ms);
            self.acts.push((wait_ms, Act::Edit(host, self.rng.random())));
        }
    }

    /// The version that somebody is told; more than one, as edits are of several keys.
    fn told(&mut self, host: usize) {
        let count = self.rng.random_range(2..5);
        self.edits(host, count, 5);
    }

    /// What is written over it elsewhere, often enough that it is looked what may leave.
    fn written_over(&mut self, host: usize) {
        let count = self.rng.random_range(8..24);
        self.edits(host, count, 30);
    }

    /// A member that was told is killed, or one that told: nobody else knows of it, as the link is cut.
    fn killed_as_it_sends(&mut self, [a, b, c, _]: [usize; 4]) {
        self.links(&[(a, b)]);
        self.wait(2_500, 4_000);
        self.told(a);
        self.wait(700, 900);
        if self.rng.random_bool(0.6) {
            self.act(Act::Slow(a, 300));
        }
        self.links(&[(a, b), (a, c)]);
        self.wait(100, 2_200);
        self.act(Act::Crash(a, 1));
        self.wait(0, 20);
        self.links(&[(a, b)]);
        self.act(Act::Slow(a, 3));
        self.wait(50, 400);
        self.written_over(a);
        self.edits(c, 2, 10);
    }

    /// Two have something, one of two others is told all of it and passes it on while the last one writes.
    fn passed_on_in_parts(&mut self, [a, b, c, d]: [usize; 4]) {
        self.links(&[(a, b), (c, d)]);
        self.wait(2_500, 4_000);
        self.told(a);
        self.written_over(a);
        self.wait(0, 1_200);
        let giver = if self.rng.random() { a } else { b };
        let more = if self.rng.random() { giver } else { a };
        self.edits(more, 2, 20);
        self.links(&[(a, b), (c, d), (giver, c)]);
        self.wait(100, 900);
        self.edits(d, 60, 60);
    }

    /// The maker of something is cut off as it is passed on, with all that have it.
    fn cut_off_from_its_maker(&mut self, [a, b, c, _]: [usize; 4]) {
        self.links(&[(a, b), (b, c)]);
        self.wait(2_500, 4_000);
        self.told(a);
        self.wait(5, 400);
        self.links(&[]);
        self.wait(0, 400);
        self.written_over(c);
        let writer = if self.rng.random() { a } else { b };
        self.edits(writer, 3, 10);
    }

    /// One that passed something on loses its disk and begins anew from one that lacks it.
    fn forgotten_by_who_passed_it_on(&mut self, [a, b, c, d]: [usize; 4]) {
        self.links(&[(a, b), (b, c)]);
        self.wait(2_500, 4_000);
        self.told(a);
        self.wait(20, 900);
        self.act(Act::Wipe(b, 1));
        self.links(&[(b, d)]);
        self.wait(3_000, 6_000);
        if self.rng.random() {
            // The one that was told hears that the birth has ended.
            self.links(&[(b, d), (b, c)]);
            self.wait(500, 3_000);
            self.links(&[(b, d)]);
            self.wait(0, 1_000);
        }
        self.links(&[(a, b), (b, d)]);
        self.wait(1_500, 4_000);
        self.written_over(a);
        self.wait(0, 1_500);
        self.edits(a, 4, 200);
        self.edits(c, 3, 10);
    }
}

/// The acts of one of the plots, among four members.
pub fn draw(rng: &mut SmallRng) -> Acts {
    let mut hosts = [0, 1, 2, 3];
    hosts.shuffle(rng);
    let which = rng.random_range(0..4);
    let mut plot = Plot { rng, acts: vec![] };
    match which {
        0 => plot.killed_as_it_sends(hosts),
        1 => plot.passed_on_in_parts(hosts),
        2 => plot.cut_off_from_its_maker(hosts),
        _ => plot.forgotten_by_who_passed_it_on(hosts),
    }
    plot.acts
}
