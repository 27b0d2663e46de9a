//! What befalls a cluster: a list of what happens when, drawn from a seed before anything runs, so that it can be shortened.

use eddy_crdt::sync::Tuning;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Who cannot reach whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// One alone.
    Alone(usize),
    /// Those below that place and the others.
    Halves(usize),
    /// Each reaches only the next and the one before.
    Ring,
    /// What the first sends does not reach the second.
    OneWay(usize, usize),
    /// These two do not reach each other; everyone else sees both.
    Pair(usize, usize),
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Act {
    /// A client's command at a replica; see [`super::clients::command`].
    Command(usize, u64),
    /// The same with one of few keys; see [`super::clients::hot_command`].
    Hot(usize, u64),
    /// One edit of an object that is there, or of an opaque value; see [`super::edits::command`].
    Edit(usize, u64),
    /// One edit of a leaf of the object whose fields are known from the schedule; see [`super::fields`].
    Field(usize, u64),
    /// A job controller notes and counts pods; see [`super::jobs`].
    Count(usize, u64),
    /// One step of a chain of keys that depend on each other; see [`super::observer`].
    Own(usize),
    /// The first key of such a chain is written again.
    Status(usize),
    /// Two keys that are only written together.
    Pair(usize),
    /// A client keeps a key alive from now on.
    Keep(usize),
    /// So many writes to one key.
    Burst(usize, usize),
    /// The connection of two breaks.
    Reset(usize, usize),
    /// They get a second one beside it.
    Double(usize, usize),
    Cut(Cut),
    Mend,
    /// These pairs can talk, and no others; `sever`: connections of the others break at once.
    Links {
        open: Vec<(usize, usize)>,
        sever: bool,
    },
    /// Nothing.
    Rest,
    /// It stops without warning, and is back after so many milliseconds.
    Crash(usize, u64),
    CrashAll(u64),
    /// Its disk takes so many milliseconds for a flush from now on.
    Slow(usize, u64),
    /// Its wall clock is off by so many milliseconds from now on.
    Skew(usize, i64),
    /// It stops, its disk is empty, and it is back after so many milliseconds.
    Wipe(usize, u64),
    /// Someone copies its disk.
    Backup(usize),
    /// It stops, its disk is that copy, and it is back after so many milliseconds; whether it can tell that it is one.
    Restore(usize, u64, bool),
    /// The same of all at once.
    RestoreAll(u64),
    /// That one is told to add a member at that place, which starts.
    Add(usize, usize),
    /// The first is told to remove the second.
    Remove(usize, usize),
    /// A client changes a number in an object.
    Weigh(usize, u64),
    /// That one is told which fields are counters from now on.
    Declare(usize, usize),
    /// A client defines a kind of custom resources in one of several ways, or takes the definition away.
    Define(usize, usize),
    /// A client changes a custom resource.
    Shape(usize, u64),
    /// It stops, and comes back after so many milliseconds as another build: a newer one, or an older one.
    Rebuild(usize, u64, bool),
}

/// What a schedule has in it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// How many found the cluster.
    pub founders: usize,
    /// Which pairs have a link; all when empty.
    pub links: Vec<(usize, usize)>,
    /// Messages within one connection may be lost, doubled and swapped.
    pub mangles: bool,
    /// The longest that a message takes, milliseconds.
    pub delay_ms: u64,
    /// Bytes of a chunk of a snapshot.
    pub chunk_bytes: usize,
    /// Bounds and intervals of the sessions.
    pub tuning: Tuning,
    /// Whether each replica is compared with all versions that ever were.
    pub watched: bool,
    /// Whether rules and builds change.
    pub rules: bool,
    /// How many ended births of each member are known still.
    pub kept_births: usize,
    /// Whether some of the members settle very little in a turn.
    pub settles_slowly: bool,
    /// How many flushes are between two sweeps, unless the replica wants one.
    pub flushes_per_sweep: u64,
    /// After how many milliseconds what happens.
    pub acts: Vec<(u64, Act)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 0,
            founders: 0,
            links: vec![],
            mangles: false,
            delay_ms: 0,
            chunk_bytes: 0,
            tuning: Tuning::default(),
            watched: false,
            rules: false,
            kept_births: KEPT_BIRTHS,
            settles_slowly: false,
            flushes_per_sweep: 1,
            acts: vec![],
        }
    }
}

impl Plan {
    /// How much the member at that place settles in a turn; `None`: as much as by itself. Beside one that settles little there
    /// is always one that settles all at once: they end in the same bytes.
    pub fn settle_pace(&self, place: usize) -> Option<usize> {
        (self.settles_slowly && !place.is_multiple_of(2)).then_some(1 + self.seed as usize % 4)
    }
}

/// Sessions that prepare one key of a unit after the other, for every second seed: clients write meanwhile.
pub fn units_in_looks(seed: u64) -> Tuning {
    let by_itself = Tuning::default();
    Tuning { prepared_keys: if seed.is_multiple_of(2) { by_itself.prepared_keys } else { 1 }, ..by_itself }
}

/// The schedule of few keys that a seed stands for: written everywhere, while links come and go and members are away. What
/// leaves then is what this looks at.
pub fn hot_plan(seed: u64) -> Plan {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let founders = [2, 3, 3, 3, 4][rng.random_range(0..5)];
    let (crashes, disks) = (rng.random_bool(0.5), rng.random_bool(0.5));
    let wait_max = [20, 200, 1500][rng.random_range(0..3)];
    let total = rng.random_range(30..160);
    let mut act = || {
        let one = rng.random_range(0..founders);
        let other = (one + rng.random_range(1..founders)) % founders;
        let back_ms = [1, 50, 3000][rng.random_range(0..3)];
        let act = match rng.random_range(0..100) {
            0..8 => Act::Reset(one, other),
            8..12 => Act::Mend,
            12..14 => Act::Cut(Cut::Alone(one)),
            14..15 => Act::Cut(Cut::Ring),
            15..17 => Act::Cut(Cut::OneWay(one, other)),
            17..19 => Act::Cut(Cut::Pair(one, other)),
            26..28 if disks => Act::Wipe(one, back_ms),
            28..30 if disks => Act::Backup(one),
            30..32 if disks => Act::Restore(one, back_ms, true),
            19..23 if crashes => Act::Crash(one, [1, 50, 3000][rng.random_range(0..3)]),
            23..26 if crashes => Act::Slow(one, [0, 10, 300][rng.random_range(0..3)]),
            32..34 => Act::Command(one, rng.random()),
            _ => Act::Hot(one, rng.random()),
        };
        (if rng.random_bool(0.5) { 0 } else { rng.random_range(0..wait_max) }, act)
    };
    let acts = (0..total).map(|_| act()).collect();
    let delay_ms = [2, 30, 400][rng.random_range(0..3)];
    let settles_slowly = !seed.is_multiple_of(3);
    let tuning = units_in_looks(seed);
    Plan { seed, founders, delay_ms, chunk_bytes: 300, tuning, watched: true, settles_slowly, acts, ..Plan::default() }
}

/// As many ended births as replicas keep by themselves.
pub const KEPT_BIRTHS: usize = 4;

/// The schedule of many lost disks that a seed stands for. What this looks at is that births are forgotten, and what comes
/// of it.
pub fn lossy_plan(seed: u64) -> Plan {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let founders = [2, 3, 3, 4][rng.random_range(0..4)];
    let (members, restores) = (rng.random_bool(0.2), rng.random_bool(0.5));
    let wait_max = [200, 1500, 4000][rng.random_range(0..3)];
    let mut count = founders;
    let acts = (0..rng.random_range(20..80)).map(|_| {
        let one = rng.random_range(0..count);
        let other = (one + rng.random_range(1..count)) % count;
        let back_ms = [1, 50, 3000][rng.random_range(0..3)];
        let act = match rng.random_range(0..100) {
            0..12 => Act::Wipe(one, back_ms),
            12..20 => Act::Mend,
            20..22 => Act::Cut(Cut::Alone(one)),
            22..24 => Act::Cut(Cut::Pair(one, other)),
            24..26 => Act::Cut(Cut::OneWay(one, other)),
            26..30 => Act::Crash(one, back_ms),
            30..32 => Act::Reset(one, other),
            32..36 if restores => Act::Backup(one),
            36..40 if restores => Act::Restore(one, back_ms, true),
            40..41 if members && count < founders + 2 => {
                count += 1;
                Act::Add(one, count - 1)
            }
            41..42 if members => Act::Remove(one, other),
            42..50 => Act::Hot(one, rng.random()),
            _ => Act::Command(one, rng.random()),
        };
        (if rng.random_bool(0.5) { 0 } else { rng.random_range(0..wait_max) }, act)
    });
    let acts = acts.collect();
    let (delay_ms, kept_births) = ([2, 30, 400][rng.random_range(0..3)], [0, 0, 1, 2][rng.random_range(0..4)]);
    let settles_slowly = !seed.is_multiple_of(3);
    let tuning = units_in_looks(seed);
    Plan { seed, founders, delay_ms, chunk_bytes: 300, tuning, kept_births, settles_slowly, acts, ..Plan::default() }
}

/// The schedule that a seed stands for.
pub fn plan(seed: u64) -> Plan {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let founders = match rng.random_range(0..1000) {
        0 => 21,
        1..20 => rng.random_range(5..8),
        20..100 => 1,
        100..300 => 4,
        300..550 => 2,
        _ => 3,
    };
    let mut links = vec![];
    if founders > 5 || (founders > 2 && rng.random_bool(0.2)) {
        for n in 1..founders {
            links.push((rng.random_range(0..n), n));
        }
        for _ in 0..founders / 2 {
            let (a, b) = (rng.random_range(0..founders), rng.random_range(0..founders));
            if a != b && !links.contains(&(a.min(b), a.max(b))) {
                links.push((a.min(b), a.max(b)));
            }
        }
    }
    let faults = Faults::draw(rng);
    let mut count = founders;
    let mut acts = vec![];
    let wait_max = [20, 200, 1500][rng.random_range(0..3)];
    let total = if founders > 5 { 30 } else { rng.random_range(10..70) };
    while acts.len() < total {
        let wait_ms = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..wait_max) };
        acts.push((wait_ms, faults.act(rng, founders, &mut count)));
    }
    Plan {
        seed,
        founders,
        links,
        mangles: rng.random_bool(0.1),
        delay_ms: [2, 30, 400][rng.random_range(0..3)],
        chunk_bytes: [1, 300, 1 << 20][rng.random_range(0..3)],
        acts,
        ..Plan::default()
    }
}

/// The schedule that a seed stands for in which rules and builds change, amid all that befalls other schedules.
pub fn rules_plan(seed: u64) -> Plan {
    let mut plan = if seed.is_multiple_of(2) { hot_plan(seed) } else { plan(seed) };
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x0041_1e5a);
    let total = plan.acts.len();
    for _ in 0..total / 2 + 4 {
        let host = rng.random_range(0..plan.founders);
        let back_ms = [1, 50, 3000][rng.random_range(0..3)];
        let act = match rng.random_range(0..20) {
            0..2 => Act::Declare(host, rng.random_range(0..4)),
            2..4 => Act::Rebuild(host, back_ms, true),
            4 => Act::Rebuild(host, back_ms, false),
            // What is declared is in use only after all were heard of.
            5 => Act::Mend,
            6..8 => Act::Define(host, rng.random_range(0..4)),
            8..14 => Act::Shape(host, rng.random()),
            _ => Act::Weigh(host, rng.random()),
        };
        let wait_ms = [0, 0, 30, 400][rng.random_range(0..4)];
        let at = rng.random_range(0..=plan.acts.len());
        plan.acts.insert(at, (wait_ms, act));
    }
    for _ in 0..rng.random_range(1..4) {
        let moves = moves_amid_writes(rng, plan.founders);
        let at = rng.random_range(0..=plan.acts.len());
        plan.acts.splice(at..at, moves);
    }
    plan.rules = true;
    plan
}

/// The rules move while all write, and one goes away just then: there are runs of versions of both numbers, and concurrent
/// ones that only know of the newer.
fn moves_amid_writes(rng: &mut SmallRng, founders: usize) -> Vec<(u64, Act)> {
    let away = rng.random_range(0..founders);
    let mut acts = vec![(0, Act::Mend), (1_500, Act::Declare(rng.random_range(0..founders), rng.random_range(0..4)))];
    if rng.random_bool(0.5) {
        // It is declared within a second.
        acts.push((0, Act::Define(rng.random_range(0..founders), rng.random_range(0..4))));
        acts.push(([500, 1_500][rng.random_range(0..2)], Act::Rest));
    }
    let mut write = |acts: &mut Vec<(u64, Act)>, count: usize| {
        for _ in 0..count {
            let wait_ms = [0, 1, 5, 40][rng.random_range(0..4)];
            let (host, seed) = (rng.random_range(0..founders), rng.random());
            acts.push((wait_ms, if rng.random_bool(0.5) { Act::Weigh(host, seed) } else { Act::Shape(host, seed) }));
        }
    };
    write(&mut acts, 10);
    acts.push((0, Act::Cut(Cut::Alone(away))));
    write(&mut acts, 20);
    acts
}

/// Which faults a schedule has: few at a time, so that each is seen with and without the others.
struct Faults {
    cuts: bool,
    crashes: bool,
    skews: bool,
    disks: bool,
    members: bool,
}

impl Faults {
    fn draw(rng: &mut SmallRng) -> Self {
        Self {
            cuts: rng.random_bool(0.6),
            crashes: rng.random_bool(0.5),
            skews: rng.random_bool(0.2),
            disks: rng.random_bool(0.2),
            members: rng.random_bool(0.2),
        }
    }

    fn act(&self, rng: &mut SmallRng, founders: usize, count: &mut usize) -> Act {
        let one = rng.random_range(0..*count);
        let other = if *count > 1 { (one + rng.random_range(1..*count)) % *count } else { one };
        let back_ms = [1, 50, 3000][rng.random_range(0..3)];
        match rng.random_range(0..100) {
            0..3 => Act::Burst(one, rng.random_range(10..60)),
            3..6 => Act::Reset(one, other),
            6..7 => Act::Double(one, other),
            7..13 if self.cuts => match rng.random_range(0..8) {
                0 | 1 => Act::Cut(Cut::Alone(one)),
                2 => Act::Cut(Cut::Halves(rng.random_range(0..*count))),
                3 => Act::Cut(Cut::Ring),
                4 => Act::Cut(Cut::OneWay(one, other)),
                5 => Act::Cut(Cut::Pair(one, other)),
                _ => Act::Mend,
            },
            13..18 if self.crashes => Act::Crash(one, back_ms),
            18..19 if self.crashes => Act::CrashAll(back_ms),
            19..22 if self.crashes => Act::Slow(one, [0, 10, 300][rng.random_range(0..3)]),
            22..24 if self.skews => {
                let far = [1_000, 3_600_000, 60 * 365 * 86_400_000][rng.random_range(0..3)];
                Act::Skew(one, if rng.random_bool(0.5) { far } else { -far })
            }
            24..26 if self.disks => Act::Wipe(one, back_ms),
            26..29 if self.disks => Act::Backup(one),
            29..32 if self.disks => Act::Restore(one, back_ms, true),
            32..34 if self.members && *count < founders + 3 => {
                // Now and then one that is there already: the same node added twice.
                let place = if rng.random_bool(0.3) && *count > founders { *count - 1 } else { *count };
                *count = (*count).max(place + 1);
                Act::Add(rng.random_range(0..founders), place)
            }
            34..36 if self.members => Act::Remove(one, other),
            _ => Act::Command(one, rng.random()),
        }
    }
}
