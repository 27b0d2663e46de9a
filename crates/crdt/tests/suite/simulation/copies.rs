//! Schedules of disks that come back as older copies while others are away. What the members of a group have told each other may have
//! left, for the sake of those that are away. A copy of one of their disks has some of it, and not what stands for it. Then it is
//! the copy that those meet who were away, or other copies. What is written again is another incarnation of its key, which is seen to go
//! and come: no client here counts on its staying. In more kinds members are added, and some may be removed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::nemesis::{Act, Plan, units_in_looks};

/// How long all is quiet before a member that is away counts as cut off, milliseconds.
const CUT_OFF_MS: u64 = 9_000;

struct Copies {
    rng: SmallRng,
    founders: usize,
    acts: Vec<(u64, Act)>,
}

impl Copies {
    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.random_range(0..of.len())]
    }

    /// Who is in which of two groups.
    fn groups(&mut self) -> Vec<bool> {
        let mut groups: Vec<bool> = (0..self.founders).map(|_| self.rng.random_bool(0.5)).collect();
        let (one, other) = (self.rng.random_range(0..self.founders), self.rng.random_range(1..self.founders));
        groups[(one + other) % self.founders] = !groups[one];
        groups
    }

    /// Only members of the same group can talk from now on.
    fn part(&mut self, wait_ms: u64, groups: &[bool]) {
        let n = self.founders;
        let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
        let open = pairs.filter(|(a, b)| groups[*a] == groups[*b]).collect();
        let sever = self.rng.random_bool(0.7);
        self.acts.push((wait_ms, Act::Links { open, sever }));
    }

    fn writes(&mut self, most: usize) {
        let wait_max = self.one_of(&[2, 60, 300]);
        for _ in 0..self.rng.random_range(2..=most) {
            let (host, seed) = (self.rng.random_range(0..self.founders), self.rng.random());
            let act = match self.rng.random_range(0..16) {
                0..3 => Act::Pair(host),
                3 => Act::Field(host, seed),
                4..6 => Act::Edit(host, seed),
                6..11 => Act::Weigh(host, seed),
                _ => Act::Hot(host, seed),
            };
            let wait_ms = self.rng.random_range(0..wait_max);
            self.acts.push((wait_ms, act));
        }
    }

    /// Some are away; disks are copied, and what has left meanwhile is on them.
    fn round(&mut self) {
        let before = self.groups();
        self.part(500, &before);
        self.writes(4);
        let quiet_ms = self.one_of(&[CUT_OFF_MS, CUT_OFF_MS, 400]);
        self.acts.push((quiet_ms, Act::Rest));
        let mut copied = vec![];
        for _ in 0..self.rng.random_range(1..=self.founders) {
            self.writes(8);
            let host = self.rng.random_range(0..self.founders);
            self.acts.push((self.rng.random_range(0..100), Act::Backup(host)));
            copied.push(host);
        }
        self.writes(12);
        let one = copied[0];
        let groups = match self.rng.random_range(0..10) {
            // The copy meets those that were away, and the others of its group are away now.
            0..6 => (0..self.founders).map(|host| host == one || before[host] != before[one]).collect(),
            6..9 => self.groups(),
            _ => before,
        };
        self.part(1_500, &groups);
        let restored = self.rng.random_range(1..=copied.len());
        for host in copied.into_iter().take(restored) {
            let back_ms = self.one_of(&[1, 50, 3_000]);
            self.acts.push((0, Act::Restore(host, back_ms, true)));
        }
        if self.rng.random_bool(0.1) {
            let (host, back_ms) = (self.rng.random_range(0..self.founders), self.one_of(&[1, 50, 3_000]));
            self.acts.push((0, Act::Wipe(host, back_ms)));
        }
        self.acts.push((4_000, Act::Rest));
        self.writes(8);
        if self.rng.random_bool(0.7) {
            self.acts.push((1_000, Act::Mend));
            self.acts.push((2_000, Act::Rest));
        }
    }
}

/// The schedule that a seed stands for.
pub fn plan(seed: u64) -> Plan {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x00c0_91e5);
    let founders = [2, 3, 3, 3, 4, 5][rng.random_range(0..6)];
    let mut copies = Copies { rng, founders, acts: vec![] };
    if copies.rng.random_bool(0.7) {
        let which = copies.rng.random_range(0..4);
        copies.acts.push((1_000, Act::Declare(0, which)));
    }
    copies.writes(6);
    copies.acts.push((3_000, Act::Rest));
    for _ in 0..copies.rng.random_range(1..=2) {
        copies.round();
    }
    let flushes_per_sweep = copies.one_of(&[1, 8]);
    let (delay_ms, settles_slowly) = (copies.one_of(&[2, 30]), copies.rng.random_bool(0.3));
    Plan {
        seed,
        founders,
        delay_ms,
        chunk_bytes: copies.one_of(&[300, 100_000]),
        tuning: units_in_looks(seed),
        watched: true,
        rules: true,
        settles_slowly,
        flushes_per_sweep,
        acts: copies.acts,
        ..Plan::default()
    }
}

/// Adds a member at some moment behind `from`. It can talk to whom another one can talk to, writes, and its disk may come back as an
/// older copy. Tells when that is.
fn add_member(plan: &mut Plan, rng: &mut SmallRng, from: usize, added: usize) -> usize {
    let begin = rng.random_range(from..plan.acts.len());
    plan.acts.insert(begin, (rng.random_range(0..1_000), Act::Add(rng.random_range(0..added), added)));
    for (_, act) in &mut plan.acts[begin + 1..] {
        let Act::Links { open, .. } = act else { continue };
        // Where one of those before it is.
        let beside = rng.random_range(0..added);
        let is_open = |host: usize| open.contains(&(beside.min(host), beside.max(host)));
        let more: Vec<_> = (0..added).filter(|host| *host == beside || is_open(*host)).collect();
        open.extend(more.into_iter().map(|host| (host, added)));
    }
    for _ in 0..rng.random_range(2..12) {
        let act = match rng.random_range(0..10) {
            0..3 => Act::Pair(added),
            3 => Act::Edit(added, rng.random()),
            4..7 => Act::Weigh(added, rng.random()),
            _ => Act::Hot(added, rng.random()),
        };
        let wait_ms = rng.random_range(0..300);
        insert(plan, rng, begin + 1, wait_ms, act);
    }
    if rng.random_bool(0.4) {
        let at = insert(plan, rng, begin + 1, 50, Act::Backup(added));
        let back_ms = [1, 50, 3_000][rng.random_range(0..3)];
        insert(plan, rng, at + 1, 0, Act::Restore(added, back_ms, true));
    }
    begin
}

/// Puts an act somewhere behind `from`; tells where.
fn insert(plan: &mut Plan, rng: &mut SmallRng, from: usize, wait_ms: u64, act: Act) -> usize {
    let at = rng.random_range(from..=plan.acts.len());
    plan.acts.insert(at, (wait_ms, act));
    at
}

/// Perhaps removes one of the members, at some moment.
fn remove_member(plan: &mut Plan, rng: &mut SmallRng, members: usize) {
    let (one, other) = (rng.random_range(0..members), rng.random_range(0..members));
    if one != other && rng.random_bool(0.4) {
        let wait_ms = rng.random_range(0..500);
        insert(plan, rng, 1, wait_ms, Act::Remove(one, other));
        // What a removed member writes before it knows is nobody's: the oracle of all versions does not know that.
        plan.watched = false;
    }
}

/// The schedule that a seed stands for, with a member more from some moment on, and in some a member less.
pub fn plan_with_members(seed: u64) -> Plan {
    let mut plan = plan(seed);
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x00ad_ded0);
    let founders = plan.founders;
    add_member(&mut plan, rng, 1, founders);
    remove_member(&mut plan, rng, founders + 1);
    plan
}

/// The same with two members more, the second perhaps added by the first, and in some up to two members less.
pub fn plan_with_more_members(seed: u64) -> Plan {
    let mut plan = plan(seed);
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x00ad_ded1);
    let founders = plan.founders;
    let first = add_member(&mut plan, rng, 1, founders);
    add_member(&mut plan, rng, first + 1, founders + 1);
    for _ in 0..2 {
        remove_member(&mut plan, rng, founders + 2);
    }
    plan
}
