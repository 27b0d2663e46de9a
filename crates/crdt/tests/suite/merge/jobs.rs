//! Job controllers at several sites that count the same pods. What a Job must count follows from who did what and who had heard
//! of it: a pod counts once where anybody has counted it. Nothing of the merge is asked. `EDDY_MERGE_DEPTH` says how much longer
//! the schedules are that are all tried (default 0), `EDDY_MERGE_SEEDS` how many long ones.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use eddy_crdt::VersionVector;
use eddy_crdt::merge::{Encoding, Json, Object, Rules};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::braids::Braid;
use super::edits::{self, number, string};
use super::sites::{Place, Sites};
use crate::support::seeds::env;

const KEY: &str = "/registry/jobs/default/j";
const JOB: &str = r#"{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j","uid":"u"},"spec":{"completions":9},"status":{"active":3,"uncountedTerminatedPods":{}}}"#;

/// The pods of which a site knows that they are noted, and counted.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Pods {
    noted: BTreeSet<usize>,
    counted: BTreeSet<usize>,
}

/// What happens at sites.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Act {
    /// A controller sees that a pod has finished, and notes it.
    Note(usize, usize),
    /// It has taken the pod's finalizer away, and counts it.
    Count(usize, usize),
    /// The second site hears what the first knows.
    Sync(usize, usize),
}

/// Every third pod fails.
fn end(pod: usize) -> &'static str {
    if pod % 3 == 1 { "failed" } else { "succeeded" }
}

struct World {
    braid: Braid,
    pods: Vec<Pods>,
    encoding: Encoding,
}

fn written(json: &Json, encoding: Encoding) -> bytes::Bytes {
    Object { json: Json::Null, encoding }.write(json).expect("there is a place for all of it")
}

fn status<'a>(job: &'a Json, path: &[&str]) -> Option<&'a Json> {
    edits::get(job.get("status")?, path)
}

fn count(job: &Json, end: &str) -> i64 {
    status(job, &[end]).map_or(0, |count| count.canonical().parse().expect("a number"))
}

fn uncounted(job: &Json, end: &str) -> BTreeSet<String> {
    let Some(Json::List(all)) = status(job, &["uncountedTerminatedPods", end]) else { return BTreeSet::new() };
    let uids: BTreeSet<String> = all.iter().filter_map(Json::as_str).map(str::to_owned).collect();
    assert_eq!(uids.len(), all.len(), "a uid occurs twice: {job:?}");
    uids
}

/// A status that says so.
fn set_status(job: &mut Json, end: &str, count: i64, uids: &BTreeSet<String>) {
    if count > 0 {
        edits::set(job, &["status", end], number(count));
    }
    let uids: Vec<Json> = uids.iter().map(string).collect();
    edits::unset(job, &["status", "uncountedTerminatedPods", end]);
    if !uids.is_empty() {
        edits::set(job, &["status", "uncountedTerminatedPods", end], Json::List(uids));
    }
}

impl World {
    fn new(count: usize, encoding: Encoding) -> Self {
        let job = Object::parse(JOB.as_bytes()).expect("an object").json;
        let braid = Braid::at(Place::client(KEY), count, written(&job, encoding));
        Self { braid, pods: vec![Pods::default(); count], encoding }
    }

    fn job(&self, site: usize) -> Json {
        Object::parse(&self.braid.sites.live(site).expect("it is there").value).expect("an object").json
    }

    fn put(&mut self, site: usize, job: &Json) {
        self.braid.sites.put(site, written(job, self.encoding));
        self.braid.learn(site, site);
    }

    /// Whether a controller would do that.
    fn may(&self, act: Act) -> bool {
        match act {
            Act::Note(site, pod) => !self.pods[site].noted.contains(&pod),
            Act::Count(site, pod) => {
                let Pods { noted, counted } = &self.pods[site];
                noted.contains(&pod) && !counted.contains(&pod)
            }
            Act::Sync(from, to) => {
                let sites = &self.braid.sites;
                from != to && !sites.vector(to).covers(sites.vector(from))
            }
        }
    }

    /// A controller notes pods and counts others, in one update.
    fn update(&mut self, site: usize, notes: &[usize], counts: &[usize], also: impl FnOnce(&mut Json)) {
        let mut job = self.job(site);
        for which in ["succeeded", "failed"] {
            let mut uids = uncounted(&job, which);
            let before = uids.len();
            counts.iter().filter(|pod| end(**pod) == which).for_each(|pod| _ = uids.remove(&format!("p{pod}")));
            let risen = count(&job, which) + (before - uids.len()) as i64;
            uids.extend(notes.iter().filter(|pod| end(**pod) == which).map(|pod| format!("p{pod}")));
            set_status(&mut job, which, risen, &uids);
        }
        also(&mut job);
        self.put(site, &job);
        self.pods[site].noted.extend(notes);
        self.pods[site].counted.extend(counts);
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Note(site, pod) => self.update(site, &[pod], &[], |_| ()),
            Act::Count(site, pod) => self.update(site, &[], &[pod], |_| ()),
            Act::Sync(from, to) => {
                self.braid.sync(from, to);
                let Pods { noted, counted } = self.pods[from].clone();
                self.pods[to].noted.extend(noted);
                self.pods[to].counted.extend(counted);
            }
        }
    }

    /// Every site counts what it must, also with what left and settled.
    fn check(&self) {
        self.braid.check();
        let sites = &self.braid.sites;
        let vectors = || (0..self.pods.len()).map(|site| sites.vector(site));
        let floor = vectors().fold(None, |floor: Option<VersionVector>, next| {
            Some(floor.map_or_else(|| next.clone(), |floor| floor.meet(next)))
        });
        for (site, pods) in self.pods.iter().enumerate() {
            let job = self.job(site);
            for which in ["succeeded", "failed"] {
                let of = |pods: &BTreeSet<usize>| {
                    pods.iter().copied().filter(|pod| end(*pod) == which).collect::<BTreeSet<_>>()
                };
                let (noted, counted) = (of(&pods.noted), of(&pods.counted));
                let open: BTreeSet<String> = noted.difference(&counted).map(|pod| format!("p{pod}")).collect();
                let got = (count(&job, which), uncounted(&job, which));
                assert_eq!(got, (counted.len() as i64, open), "{which} at {site}: {pods:?}, {job:?}");
            }
            // Settled in part, whatever left before; and in another order of arrival.
            let place = &sites.place;
            let whole = place.outcome(&place.window(sites.known(site))).live;
            for versions in [&self.braid.kept[site], &sites.known(site).to_vec()] {
                let mut window = place.window(versions);
                place.settle(&mut window, floor.as_ref().expect("there are sites"));
                assert_eq!(place.outcome(&window).live, whole, "settled at {site}");
            }
            let known = |version: &&eddy_crdt::merge::Version| sites.vector(site).contains(version.dot);
            assert_eq!(
                place.outcome(&place.window(sites.history.iter().filter(known))).live,
                whole,
                "in another order"
            );
        }
    }
}

/// All schedules of that many acts at sites that have pods.
fn schedules(sites: usize, pods: usize, depth: usize, encoding: Encoding, lets_go: bool) -> (usize, usize) {
    let each = |act: fn(usize, usize) -> Act, count: usize| {
        (0..sites).flat_map(move |site| (0..count).map(move |other| act(site, other)))
    };
    let acts: Vec<Act> = each(Act::Note, pods).chain(each(Act::Count, pods)).chain(each(Act::Sync, sites)).collect();
    let (mut tried, mut gone) = (0, 0);
    let mut open: Vec<Vec<Act>> = vec![vec![]];
    while let Some(schedule) = open.pop() {
        let mut world = World::new(sites, encoding);
        for act in &schedule {
            world.act(*act);
            if lets_go {
                (0..sites).for_each(|site| world.braid.let_go(site, |_| true));
            }
        }
        if schedule.len() < depth {
            let next = acts.iter().filter(|act| world.may(**act));
            open.extend(next.map(|act| [&schedule[..], &[*act]].concat()));
            continue;
        }
        world.check();
        // All meet, one after the other.
        for (from, to) in (1..sites).map(|site| (site, 0)).chain((1..sites).map(|site| (0, site))) {
            world.act(Act::Sync(from, to));
        }
        let checked = catch_unwind(AssertUnwindSafe(|| world.check()));
        assert!(checked.is_ok(), "{schedule:?}");
        tried += 1;
        gone += world.braid.gone;
    }
    (tried, gone)
}

#[test]
fn in_every_short_schedule_each_pod_counts_once() {
    let more = env("EDDY_MERGE_DEPTH", 0) as usize;
    let (json, protobuf) = (Encoding::Json, Encoding::Protobuf);
    let (mut tried, mut gone) = (0, 0);
    for (sites, pods, depth, encoding, lets_go) in [
        (2, 2, 5, json, false),
        (2, 2, 5, json, true),
        (2, 2, 4, protobuf, true),
        (2, 3, 4, json, true),
        (3, 2, 3, json, true),
        (3, 3, 3, json, false),
        (3, 2, 3, protobuf, false),
    ] {
        let (more_tried, more_gone) = schedules(sites, pods, depth + more, encoding, lets_go);
        println!("{sites} sites, {pods} pods, {depth} acts, {encoding:?}, lets go {lets_go}: {more_tried} schedules");
        (tried, gone) = (tried + more_tried, gone + more_gone);
    }
    assert!(tried > 5_000 && gone > 300, "{tried} schedules, {gone} gone");
}

/// Updates that note some and count others, of other fields and of the spec, while sites let go what they can.
#[test]
fn in_long_schedules_each_pod_counts_once() {
    let mut gone = 0;
    for seed in 0..env("EDDY_MERGE_SEEDS", 150) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let sites = rng.random_range(2..=4);
        let encoding = if rng.random() { Encoding::Json } else { Encoding::Protobuf };
        let mut world = World::new(sites, encoding);
        for _ in 0..rng.random_range(5..50) {
            let (site, peer) = (rng.random_range(0..sites), rng.random_range(0..sites));
            match rng.random_range(0..8) {
                0..4 => {
                    let Pods { noted, counted } = world.pods[site].clone();
                    let some = |rng: &mut SmallRng, of: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
                        of.filter(|_| rng.random_range(0..3) == 0).collect()
                    };
                    let notes = some(&mut rng, &mut (0..9).filter(|pod| !noted.contains(pod)));
                    let counts = some(&mut rng, &mut noted.difference(&counted).copied());
                    let active = rng.random_range(0..4);
                    world.update(site, &notes, &counts, |job| match active {
                        0 => edits::set(job, &["metadata", "labels", "a"], string(format!("{seed}"))),
                        active => edits::set(job, &["status", "active"], number(active)),
                    });
                }
                4..7 => world.act(Act::Sync(site, peer)),
                _ => {
                    let (chance, salt): (u64, u64) = (rng.random_range(1..=4), rng.random());
                    let may = |dot: eddy_crdt::Dot| (dot.seq ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 < chance;
                    world.braid.let_go(site, may);
                }
            }
            let checked = catch_unwind(AssertUnwindSafe(|| world.check()));
            assert!(checked.is_ok(), "seed {seed}");
        }
        gone += world.braid.gone;
    }
    assert!(gone > 30, "hardly anything went: {gone}");
}

/// Two sites that write any count and any list on top of the same base, in one update each: where both can be told pod by pod,
/// each pod counts once; else the last writer's counts stand, and no sum is made.
#[test]
fn a_count_that_cannot_be_told_pod_by_pod_is_one_sides() {
    let uids = |bits: i64| -> BTreeSet<String> {
        (0..2).filter(|pod| bits >> pod & 1 == 1).map(|pod| format!("p{pod}")).collect()
    };
    let job = |count: i64, bits: i64| {
        let mut job = Object::parse(JOB.as_bytes()).expect("an object").json;
        set_status(&mut job, "succeeded", count, &uids(bits));
        job.canonical()
    };
    let (mut told, mut all) = (0, 0);
    for n in 0..1 << 10 {
        let [base, a, b, count_a, count_b] = [0, 2, 4, 6, 8].map(|at| n >> at & 3);
        let mut sites = Sites::new(Place::client(KEY), 2);
        sites.put(0, job(1, base));
        sites.sync_all();
        sites.put(0, job(count_a, a));
        sites.put(1, job(count_b, b));
        sites.sync_all();
        let merged = Object::parse(&sites.live(0).expect("it is there").value).expect("an object").json;
        let gone = [a, b].map(|own| (base | own) & !own);
        let is_told = [(count_a, gone[0]), (count_b, gone[1])]
            .iter()
            .all(|(count, gone)| count - 1 == i64::from(gone.count_ones()));
        let expected = match is_told {
            true => (1 + i64::from((gone[0] | gone[1]).count_ones()), uids((a | b) & !(gone[0] | gone[1]))),
            // Who writes what is there edits nothing.
            false if (count_b, b) == (1, base) => (count_a, uids(a)),
            false => (count_b, uids(b)),
        };
        assert_eq!((count(&merged, "succeeded"), uncounted(&merged, "succeeded")), expected, "{n:b}");
        (told, all) = (told + usize::from(is_told), all + 1);
    }
    assert!(told > 50 && told < all / 2, "{told} of {all}");
}

/// Members of older builds take the counts from one side, and so does everybody until the rules say otherwise.
#[test]
fn by_the_engine_before_the_counts_are_the_last_writers() {
    for (engine, succeeded) in [(5, 1), (6, 2)] {
        let place = Place { rules: Rules { engine, ..Rules::default() }.into(), ..Place::client(KEY) };
        let mut braid = Braid::at(place, 2, JOB.to_owned());
        let encoding = Encoding::Json;
        braid.sync(0, 1);
        let mut world = World { braid, pods: vec![Pods::default(); 2], encoding };
        let acts = [Act::Note(0, 0), Act::Note(0, 2), Act::Sync(0, 1), Act::Count(0, 0), Act::Count(1, 2)];
        acts.into_iter().for_each(|act| world.act(act));
        world.braid.sync(0, 1);
        assert_eq!(count(&world.job(1), "succeeded"), succeeded, "engine {engine}");
    }
}
