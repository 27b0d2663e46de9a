//! Sites that write one object at the same time, and let go what nobody can tell any more. Each keeps the whole history
//! beside it: what the key is must be the same, at every step and to the byte. Whether something can be told is known
//! here from all sites at once. `EDDY_MERGE_DEPTH` says how long all schedules are that are tried (default 4).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eddy_crdt::merge::{Json, Rules, Version, counters};
use eddy_crdt::{Dot, Stamp, VersionVector};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::edits;
use super::sites::{Place, Sites};
use crate::support::seeds::env;

const KEY: &str = "/registry/configmaps/default/c";
const OBJECT: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"1","b":"1"},"metadata":{"name":"c"}}"#;

/// Sites, and what each of them has kept.
pub(super) struct Braid {
    pub(super) sites: Sites,
    pub(super) kept: Vec<Vec<Version>>,
    /// How many versions each has got, with those that were let go.
    learned: Vec<usize>,
    pub(super) gone: usize,
}

impl Braid {
    fn new(count: usize, text: &str) -> Self {
        Self::at(Place::client(KEY), count, text.to_owned())
    }

    pub(super) fn at(place: Place, count: usize, value: impl Into<Bytes>) -> Self {
        let mut sites = Sites::new(place, count);
        sites.put(0, value);
        sites.sync_all();
        let kept: Vec<Vec<Version>> = (0..count).map(|site| sites.known(site).to_vec()).collect();
        let learned = kept.iter().map(Vec::len).collect();
        Self { sites, kept, learned, gone: 0 }
    }

    fn write(&mut self, site: usize, edit: impl FnOnce(&mut Json)) {
        let mut object = match self.sites.live(site) {
            Some(live) => Json::parse(&live.value).expect("JSON"),
            None => edits::parse(OBJECT),
        };
        edit(&mut object);
        self.sites.put(site, object.canonical());
        self.learn(site, site);
    }

    pub(super) fn sync(&mut self, from: usize, to: usize) {
        self.sites.sync(from, to);
        self.learn(from, to);
    }

    /// Of what is new at a site it gets what the other has kept.
    pub(super) fn learn(&mut self, from: usize, to: usize) {
        let of_sender: BTreeSet<Dot> = self.kept[from].iter().map(|version| version.dot).collect();
        let new = &self.sites.known(to)[self.learned[to]..];
        self.learned[to] += new.len();
        let arrives = |version: &&Version| from == to || of_sender.contains(&version.dot);
        self.kept[to].extend(new.iter().filter(arrives).cloned());
    }

    /// A site lets go what it can, if that is one of these.
    pub(super) fn let_go(&mut self, site: usize, may: impl Fn(Dot) -> bool) {
        let vectors: Vec<&VersionVector> = (0..self.kept.len()).map(|site| self.sites.vector(site)).collect();
        // That a site has something counts once all that the site has is here, too: it may have written before.
        let is_here = |has: &VersionVector| has.iter().all(|dot| vectors[site].contains(dot));
        let stands_for = |version: &Version, later: &Version| {
            let tells_none = |has: &&VersionVector| has.contains(later.dot) && is_here(has);
            may(version.dot) && vectors.iter().all(|has| !has.contains(version.dot) || tells_none(has))
        };
        let place = &self.sites.place;
        let mut window = place.window(&self.kept[site]);
        self.gone += window.drop_middles(&place.rules, 1, place.keyspace, place.key, stands_for).len();
        self.kept[site] = window.versions().to_vec();
    }

    pub(super) fn check(&self) {
        for (site, kept) in self.kept.iter().enumerate() {
            let (place, all) = (&self.sites.place, self.sites.known(site));
            let (ours, whole) = (place.window(kept), place.window(all));
            assert_eq!(
                place.outcome(&ours).live,
                place.outcome(&whole).live,
                "site {site} keeps {kept:#?} of {all:#?}"
            );
        }
    }
}

/// The place with that field as a counter.
fn counted(declared: &str) -> Place {
    let counters = counters(declared).expect("a declaration");
    Place { rules: Rules { counters, ..Rules::default() }.into(), ..Place::client(KEY) }
}

/// A weight of one or two more or less, or as it is beside another label.
fn weigh(rng: &mut SmallRng, object: &mut Json) {
    let weight = edits::get(object, &["weight"]).and_then(|n| n.canonical().parse().ok()).unwrap_or(0_i64);
    match rng.random_range(-2..=3) {
        3 => other(object, "a"),
        by => edits::set(object, &["weight"], edits::number(weight + by)),
    }
}

fn other(object: &mut Json, leaf: &str) {
    let before = edits::get(object, &["data", leaf]).and_then(Json::as_str);
    let value = if before == Some("1") { "2" } else { "1" };
    edits::set(object, &["data", leaf], edits::string(value));
}

/// A scaler whose bounds every site keeps in order, and a controller that adopts what has none.
const SCALER: &str = r#"{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"c"},"spec":{"minReplicas":3,"maxReplicas":5}}"#;

/// An edit that is right where it is made, and may not be beside another.
fn contradict(rng: &mut SmallRng, object: &mut Json) {
    let number = |object: &Json, name| {
        let found = edits::get(object, &["spec", name]).and_then(|n| n.canonical().parse().ok());
        found.unwrap_or(3_i64)
    };
    let (least, most) = (number(object, "minReplicas"), number(object, "maxReplicas"));
    match rng.random_range(0..8) {
        0..3 => edits::set(object, &["spec", "minReplicas"], edits::number(rng.random_range(0..=most))),
        3..6 => edits::set(object, &["spec", "maxReplicas"], edits::number(rng.random_range(least..9))),
        6 => {
            let owner = ["a", "b", "c"][rng.random_range(0..3)];
            let owner = format!(r#"[{{"uid":"{owner}","name":"{owner}","controller":true}}]"#);
            edits::set(object, &["metadata", "ownerReferences"], edits::parse(&owner));
        }
        _ => edits::set(object, &["metadata", "labels", "a"], edits::number(rng.random_range(0..4))),
    }
}

/// All short schedules of two leaves that are switched to and fro, so that they are often set back.
#[test]
fn whatever_is_let_go_in_any_short_schedule_nobody_can_tell() {
    type Act = fn(&mut Braid);
    let acts: [Act; 9] = [
        |b| b.write(0, |object| other(object, "a")),
        |b| b.write(0, |object| other(object, "b")),
        |b| b.write(1, |object| other(object, "a")),
        |b| b.write(1, |object| other(object, "b")),
        |b| b.write(2, |object| other(object, "a")),
        |b| b.sync(0, 1),
        |b| b.sync(1, 0),
        |b| b.sync(1, 2),
        |b| b.sync(2, 0),
    ];
    let depth = env("EDDY_MERGE_DEPTH", 4) as u32;
    let mut gone = 0;
    for schedule in 0..acts.len().pow(depth) {
        let order = (0..depth).map(|at| schedule / acts.len().pow(at) % acts.len());
        let mut braid = Braid::new(3, OBJECT);
        for act in order {
            acts[act](&mut braid);
            (0..3).for_each(|site| braid.let_go(site, |_| true));
        }
        braid.check();
        braid.sync(0, 1);
        braid.sync(1, 2);
        braid.check();
        gone += braid.gone;
    }
    assert!(gone > acts.len().pow(depth) / 20, "hardly anything went: {gone}");
}

#[test]
fn whatever_is_let_go_in_long_schedules_nobody_can_tell() {
    let mut gone = 0;
    for seed in 0..env("EDDY_MERGE_SEEDS", 1_000) {
        if std::env::var("EDDY_MERGE_SEED").is_ok_and(|only| only != seed.to_string()) {
            continue;
        }
        let mut rng = SmallRng::seed_from_u64(seed);
        let count = rng.random_range(2..=4);
        let kinds = rng.random_range(0..8);
        let place = match kinds {
            3 | 4 => counted("v1/ConfigMap:.weight"),
            5 => counted("v1/ConfigMap:.weight:min=0"),
            _ => Place::client(KEY),
        };
        let weighed = format!("{{\"weight\":1,{}", &OBJECT[1..]);
        let text = match kinds {
            4 => OBJECT,
            6 | 7 => SCALER,
            _ => &weighed,
        };
        let mut braid = Braid::at(place, count, text.to_owned());
        for _ in 0..rng.random_range(5..40) {
            let (site, peer) = (rng.random_range(0..count), rng.random_range(0..count));
            match rng.random_range(0..8) {
                // Another object under the same name, as when it was deleted and made again. A site that is away may go on
                // with the one of before.
                0 if rng.random_range(0..3) == 0 => braid.write(site, |object| {
                    edits::set(object, &["metadata", "uid"], edits::string(format!("u{}", rng.random_range(0..9))));
                }),
                0..4 => braid.write(site, |object| match kinds {
                    0 => other(object, ["a", "b"][rng.random_range(0..2)]),
                    1 => {
                        let value = rng.random_range(0..4).to_string();
                        edits::set(object, &["data", "c"], edits::string(value));
                        let generation = edits::get(object, &["metadata", "generation"]);
                        let generation = generation.and_then(|n| n.canonical().parse().ok()).unwrap_or(0_i64);
                        if rng.random() {
                            edits::set(object, &["metadata", "generation"], edits::number(generation + 1));
                        }
                    }
                    3..6 => weigh(&mut rng, object),
                    6 | 7 => contradict(&mut rng, object),
                    _ => edits::edit(&mut rng, object),
                }),
                4 if rng.random_range(0..8) == 0 && braid.sites.live(site).is_some() => {
                    braid.sites.delete(site);
                    braid.learn(site, site);
                }
                4..7 => braid.sync(site, peer),
                _ => {
                    let chance = rng.random_range(1..=4);
                    let salt: u64 = rng.random();
                    braid.let_go(site, |dot| (dot.seq ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 < chance);
                }
            }
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| braid.check()));
            assert!(checked.is_ok(), "EDDY_MERGE_SEED={seed}, kind {kinds}");
        }
        gone += braid.gone;
    }
    assert!(gone > 300 || std::env::var("EDDY_MERGE_SEED").is_ok(), "hardly anything went: {gone}");
}

/// Two that write at the same time, without a pause: each has the other's version of before. A third is away.
fn overlapping(count: usize, leaves: [&str; 2]) -> Sites {
    let mut sites = Sites::new(Place::client(KEY), 2);
    sites.put(0, format!("{{\"pad\":\"{}\",{}", "x".repeat(1_700), &OBJECT[1..]));
    sites.sync_all();
    for n in 0..count / 2 {
        let lives = [0, 1].map(|site| sites.live(site).expect("it is there"));
        for site in [0, 1] {
            let mut object = Json::parse(&lives[site].value).expect("JSON");
            edits::set(&mut object, &["data", leaves[site]], edits::string(format!("{site}-{n}")));
            sites.write(
                site,
                super::sites::Written::Put(object.canonical().into(), None),
                Stamp::new(1_000 + 2 * n as u64 + site as u64),
            );
        }
        sites.exchange();
    }
    sites
}

#[test]
fn of_two_that_write_at_the_same_time_little_stays() {
    for leaves in [["a", "a"], ["a", "b"]] {
        let sites = overlapping(60, leaves);
        let (place, newest) = (&sites.place, sites.history.len() - 4);
        let known: VersionVector = sites.history[..newest].iter().map(|version| version.dot).collect();
        let mut window = place.window(&sites.history);
        let before = place.outcome(&window);
        let both_have = |version: &Version, later: &Version| known.contains(version.dot) && known.contains(later.dot);
        window.drop_middles(&place.rules, 1, place.keyspace, place.key, both_have);
        assert_eq!(place.outcome(&window).live, before.live);
        assert!(window.versions().len() <= 14, "{leaves:?}: {} are left", window.versions().len());
    }
}

/// A window of thousands, of which nothing may leave, is merged and looked through well within a second by a release build.
/// The bar is for a debug build beside other tests.
#[test]
fn a_window_of_thousands_is_merged_soon() {
    for count in [100, 1_000, 3_000] {
        let mut sites = overlapping(20, ["a", "b"]);
        let place = sites.place.clone();
        sites.repeat(count);
        let started = Instant::now();
        let window = place.window(&sites.history);
        let added = started.elapsed();
        let outcome = place.outcome(&window);
        let merged = started.elapsed() - added;
        let mut looked = window.clone();
        looked.drop_middles(&place.rules, 1, place.keyspace, place.key, |_, _| false);
        let looked = started.elapsed() - merged - added;
        println!(
            "{} versions: added in {added:?}, merged in {merged:?}, looked through in {looked:?}",
            sites.history.len()
        );
        assert!(outcome.live.is_some());
        assert!(merged < Duration::from_secs(20) && looked < Duration::from_secs(20), "{merged:?}, {looked:?}");
    }
}
