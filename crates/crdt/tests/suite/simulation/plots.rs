//! Plots: what has to come together so that a version that left too early is missed, with members, moments and edits from
//! dice. In schedules that are random altogether it comes together too seldom. In each of them somebody is told `v`,
//! `v` is written over elsewhere, and the one that was told writes on top of it.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::edits;
use super::nemesis::Act;

/// Acts, each after so many milliseconds.
type Acts = Vec<(u64, Act)>;

struct Plot<'a> {
    rng: &'a mut SmallRng,
    /// The longest that a message takes.
    delay_ms: u64,
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
            self.acts.push((wait_ms, Act::Edit(host, edits::seed_of_one(self.rng))));
        }
    }

    /// The version that somebody is told, or more than one.
    fn told(&mut self, host: usize) {
        let count = self.rng.random_range(1..4);
        self.edits(host, count, 5);
    }

    /// What is written over it elsewhere, often enough that it is looked what may leave.
    fn written_over(&mut self, host: usize) {
        let count = self.rng.random_range(5..12);
        self.edits(host, count, 30);
    }

    /// One is killed as it sends. Nobody else knows what it sent, as the link is cut.
    fn killed_as_it_sends(&mut self, [a, b, c, _]: [usize; 4]) {
        let beside: &[(usize, usize)] = if self.rng.random() { &[(a, b)] } else { &[] };
        self.links(beside);
        self.wait(2_500, 4_000);
        self.told(a);
        self.wait(700, 900);
        if self.rng.random_bool(0.7) {
            self.act(Act::Slow(a, 300));
        }
        self.links(&[beside, &[(a, c)]].concat());
        self.wait(100, 1_800);
        self.act(Act::Crash(a, 1));
        self.wait(0, 5);
        self.links(beside);
        self.act(Act::Slow(a, 3));
        self.wait(50, 400);
        self.written_over(a);
        if !beside.is_empty() {
            self.wait(1_500, 3_000);
            self.edits(a, 4, 100);
        }
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
        self.edits(d, 30, 80);
    }

    /// The maker of something is cut off as it is passed on, with all that have it.
    fn cut_off_from_its_maker(&mut self, [a, b, c, _]: [usize; 4]) {
        self.links(&[(a, b), (b, c)]);
        self.wait(2_500, 4_000);
        self.told(a);
        // Until the last one has it, and has not heard who else does.
        let delay_ms = self.delay_ms;
        self.wait(delay_ms / 2 + 10, 2 * delay_ms + 60);
        self.links(&[]);
        self.wait(0, 20);
        self.written_over(c);
        let writer = if self.rng.random() { a } else { b };
        self.edits(writer, 3, 10);
    }

    /// One edits on, alone, and another stands on an inner version of that run; a third has edited beside both.
    fn run_that_ends_early(&mut self, [a, b, c, _]: [usize; 4]) {
        self.links(&[(a, b)]);
        self.wait(2_500, 4_000);
        self.told(a);
        self.edits(c, 2, 100);
        self.edits(a, 1, 100);
        self.wait(800, 1_500);
        self.links(&[]);
        self.wait(0, 100);
        self.written_over(a);
        self.edits(b, 2, 10);
    }

    /// What something depends on is written again and again, while one is away who has seen neither.
    fn owner_written_over(&mut self, [a, b, ..]: [usize; 4]) {
        let beside: &[(usize, usize)] = if self.rng.random() { &[(a, b)] } else { &[] };
        self.links(beside);
        self.wait(2_500, 4_000);
        // An entry that does more than one thing does not leave, as the first of a member.
        self.told(a);
        for act in [Act::Own(a), Act::Own(a), Act::Own(a)].into_iter().chain((0..12).map(|_| Act::Status(a))) {
            self.wait(0, 40);
            self.act(act);
        }
        self.wait(0, 1_000);
    }

    /// One begins to tell another, while both write all the time. A third hears what the first writes sooner than that it
    /// has begun to tell.
    fn told_while_both_write(&mut self, [a, b, c, _]: [usize; 4]) {
        self.links(&[(a, b)]);
        self.wait(2_500, 4_000);
        self.told(b);
        self.wait(0, 1_000);
        self.links(&[(a, b), (b, c)]);
        for _ in 0..self.rng.random_range(40..120) {
            self.edits(b, 1, 10);
            if self.rng.random_bool(0.4) {
                self.edits(c, 1, 10);
            }
        }
        self.wait(0, 200);
        self.links(&[(a, b)]);
        self.edits(c, 1, 10);
    }

    /// One that passed something on loses its disk and begins anew from one that lacks it.
    fn forgotten_by_who_passed_it_on(&mut self, [a, b, c, d]: [usize; 4]) {
        self.links(&[(a, b), (b, c)]);
        self.wait(2_500, 4_000);
        self.told(a);
        // Until the last one has it, and its maker has not heard that.
        let delay_ms = self.delay_ms;
        self.wait(delay_ms + 10, 2 * delay_ms + 500);
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

/// The acts of the plot in which a statement would be of two moments, among four members.
pub fn draw_two_moments(rng: &mut SmallRng, delay_ms: u64) -> Acts {
    let mut hosts = [0, 1, 2, 3];
    hosts.shuffle(rng);
    let mut plot = Plot { rng, delay_ms, acts: vec![] };
    plot.told_while_both_write(hosts);
    plot.acts
}

/// The acts of one of the plots, among four members.
pub fn draw(rng: &mut SmallRng, delay_ms: u64) -> Acts {
    let mut hosts = [0, 1, 2, 3];
    hosts.shuffle(rng);
    let which = rng.random_range(0..12);
    let mut plot = Plot { rng, delay_ms, acts: vec![] };
    match which {
        0..2 => plot.killed_as_it_sends(hosts),
        2..4 => plot.passed_on_in_parts(hosts),
        4..6 => plot.cut_off_from_its_maker(hosts),
        6 => plot.owner_written_over(hosts),
        7 => plot.run_that_ends_early(hosts),
        _ => plot.forgotten_by_who_passed_it_on(hosts),
    }
    plot.acts
}
