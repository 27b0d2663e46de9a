//! Random histories of one key. `EDDY_MERGE_HISTORIES` says how many (default 4,000), `EDDY_MERGE_SEED` which alone.

use eddy_crdt::merge::{CounterRule, Json, RuleBook, Rules, Version, Window};
use eddy_crdt::{Dot, Keyspace, LeaseId, ReplicaId, Rule, Stamp, SystemKey, VersionVector};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use super::edits;
use super::sites::{Place, Sites, Written};

/// Histories that see what those before them do not. In the first one a put began an incarnation: its writer saw by two versions
/// together that the one before was done. In the second one an expiry became a common point, and a delete on top of it seemed to
/// have seen nothing. The third one finds the planted fault `sum-goes-twice`. In the last one a write that was hidden in one place
/// stood in another, and what was written on top of it seemed to write nothing.
const FOUND: [u64; 4] = [15_065, 99_077, 45_176, 29_403];

fn seeds() -> impl Iterator<Item = u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seeds, found) = match number("EDDY_MERGE_SEED") {
        Some(seed) => (seed..seed + 1, &[][..]),
        None => (0..number("EDDY_MERGE_HISTORIES").unwrap_or(4_000), &FOUND[..]),
    };
    seeds.chain(found.iter().copied())
}

/// Says which history failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: EDDY_MERGE_SEED={}", self.0);
        }
    }
}

fn place(rng: &mut SmallRng) -> Place {
    let counter = |kind: &str, api_version: &str| CounterRule {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        path: ".spec.replicas".to_owned(),
        minimum: Some(0),
    };
    let counters = vec![counter("Deployment", "apps/v1"), counter("Pod", "v1")];
    match rng.random_range(0..10) {
        0 => Place::client("elsewhere"),
        key @ (1 | 2) => {
            let (lease, birth) = (SystemKey::Lease(LeaseId::new(5)), SystemKey::Birth(ReplicaId::new(5)));
            let key = if key == 1 { lease } else { birth }.encode();
            Place { rules: RuleBook::default(), keyspace: Keyspace::System, key: Box::leak(key.to_vec().into()) }
        }
        3..5 => {
            Place { rules: Rules { counters, ..Rules::default() }.into(), ..Place::client("/registry/pods/default/a") }
        }
        _ => Place::client("/registry/pods/default/a"),
    }
}

fn value(rng: &mut SmallRng, place: &Place, before: Option<&[u8]>) -> Vec<u8> {
    if place.keyspace == Keyspace::System {
        return eddy_crdt::lease_value(rng.random_range(1..4), ReplicaId::new(1)).to_vec();
    }
    let before = before.and_then(Json::parse);
    let mut object = match before {
        Some(object) if rng.random_range(0..20) > 0 => object,
        _ => edits::fresh(rng),
    };
    if rng.random_range(0..25) == 0 {
        return format!("opaque {}", rng.random_range(0..4)).into_bytes();
    }
    if rng.random_range(0..25) == 0 {
        edits::set(&mut object, &["metadata", "uid"], edits::string(format!("u{}", rng.random_range(0..3))));
    }
    for _ in 0..rng.random_range(1..4) {
        edits::edit(rng, &mut object);
    }
    object.canonical().into_bytes()
}

fn step(rng: &mut SmallRng, sites: &mut Sites, site: usize) {
    // Stamps are no clock: they may run backwards against causality where a member's clock is far ahead.
    let stamp = Stamp::new(rng.random_range(1..1_000));
    let before = sites.live(site);
    match (rng.random_range(0..20), &before) {
        (0, _) => sites.idle(site),
        (1 | 2, Some(_)) => drop(sites.write(site, Written::Delete, stamp)),
        (3, Some(_)) => drop(sites.write(site, Written::Expire, stamp)),
        _ => {
            let value = value(rng, &sites.place, before.as_ref().map(|live| &live.value[..]));
            let lease = (rng.random_range(0..4) == 0).then(|| LeaseId::new(rng.random_range(1..3)));
            sites.write(site, Written::Put(value.into(), lease), stamp);
        }
    }
}

/// A history of rounds. In each round, sites write and talk at random. Between rounds everybody may learn everything.
/// So there are common points with several heads and concurrent versions on top of them.
fn history(rng: &mut SmallRng) -> Sites {
    let place = place(rng);
    let count = rng.random_range(2..=5);
    let mut sites = Sites::new(place, count);
    if rng.random_range(0..4) > 0 {
        step(rng, &mut sites, 0);
        sites.sync_all();
    }
    for _ in 0..rng.random_range(1..=3) {
        let talk = rng.random_range(1..6);
        for _ in 0..rng.random_range(2..9) {
            let site = rng.random_range(0..count);
            if rng.random_range(0..10) < talk {
                let from = rng.random_range(0..count);
                sites.sync(from, site);
            } else {
                step(rng, &mut sites, site);
            }
        }
        if rng.random_range(0..3) > 0 {
            sites.sync_all();
        }
    }
    sites
}

/// The same versions in another order in which they could have arrived.
fn shuffled(rng: &mut SmallRng, versions: &[Version]) -> Vec<Version> {
    let mut left = versions.to_vec();
    left.shuffle(rng);
    let mut order = vec![];
    while !left.is_empty() {
        let next = left.iter().position(|v| !left.iter().any(|other| v.descends_from(other.dot)));
        order.push(left.remove(next.expect("ancestry has no circles")));
    }
    order
}

/// Everything that some versions descend from, and they themselves.
fn closure<'a>(versions: &[Version], tops: impl Iterator<Item = &'a Version>) -> VersionVector {
    let tops: Vec<&Version> = tops.collect();
    let below = versions.iter().filter(|v| tops.iter().any(|top| top.dot == v.dot || top.descends_from(v.dot)));
    below.map(|v| v.dot).collect()
}

/// All common points of these versions: prefixes that every other version descends from.
fn common_points(versions: &[Version]) -> Vec<usize> {
    let is_common =
        |at: &usize| versions[*at..].iter().all(|later| versions[..*at].iter().all(|v| later.descends_from(v.dot)));
    (1..=versions.len()).filter(is_common).collect()
}

#[test]
fn the_outcome_does_not_depend_on_the_order_of_arrival() {
    for seed in seeds() {
        let _seed = Seed(seed);
        let mut rng = SmallRng::seed_from_u64(seed);
        let sites = history(&mut rng);
        let expected = sites.place.outcome(&sites.place.window(&sites.history));
        for _ in 0..3 {
            let order = shuffled(&mut rng, &sites.history);
            assert_eq!(sites.place.outcome(&sites.place.window(&order)), expected);
        }
    }
}

#[test]
fn the_outcome_does_not_depend_on_what_is_settled() {
    let (mut settled, mut with_heads) = (0, 0);
    for seed in seeds() {
        let _seed = Seed(seed);
        let mut rng = SmallRng::seed_from_u64(seed);
        let sites = history(&mut rng);
        let (place, versions) = (&sites.place, &shuffled(&mut rng, &sites.history));
        let expected = place.outcome(&place.window(versions));
        // Any floor that is causally closed: what is settled is what it allows.
        let mut floors = vec![VersionVector::default(), closure(versions, versions.iter())];
        for _ in 0..4 {
            let count = rng.random_range(1..4);
            floors.push(closure(versions, versions.choose_multiple(&mut rng, count)));
        }
        for floor in &floors {
            let mut window = place.window(versions);
            place.settle(&mut window, floor);
            settled += usize::from(window.versions().len() < versions.len());
            assert_eq!(place.outcome(&window).live, expected.live);
            if !window.is_empty() {
                assert_eq!(place.outcome(&window), expected);
            }
        }
        // Settled before the rest arrived: every common point, and each on top of another one.
        let points = common_points(versions);
        let mut step_by_step = Window::new(None);
        let mut done = 0;
        for &point in &points {
            let prefix = &versions[..point];
            let floor: VersionVector = prefix.iter().map(|v| v.dot).collect();
            let mut window = place.window(prefix);
            with_heads += usize::from(window.heads().count() > 1 && point < versions.len());
            place.settle(&mut window, &floor);
            assert!(window.is_empty());
            versions[point..].iter().for_each(|v| window.add(v.clone()));
            assert_eq!(place.outcome(&window).live, expected.live);

            versions[done..point].iter().for_each(|v| step_by_step.add(v.clone()));
            done = point;
            if rng.random_range(0..2) == 0 {
                place.settle(&mut step_by_step, &floor);
            }
        }
        assert_eq!(place.outcome(&step_by_step).live, expected.live);
    }
    if seeds().count() > 1 {
        assert!(settled > 100 && with_heads > 100, "{settled} settled, {with_heads} with several heads");
    }
}

#[test]
fn leaving_out_the_middles_of_runs_changes_nothing() {
    let mut dropped = 0;
    for seed in seeds() {
        let _seed = Seed(seed);
        let mut rng = SmallRng::seed_from_u64(seed);
        let sites = history(&mut rng);
        let (place, versions) = (&sites.place, &shuffled(&mut rng, &sites.history));
        let expected = place.outcome(&place.window(versions)).live;
        for chance in [1, 2, 4] {
            let goes: Vec<Dot> =
                versions.iter().filter(|_| rng.random_range(0..4) < chance).map(|version| version.dot).collect();
            let mut window = place.window(versions);
            let gone = window
                .drop_middles(&place.rules, 1, place.keyspace, place.key, |version, _| goes.contains(&version.dot));
            assert!(gone.iter().all(|dot| goes.contains(dot)));
            assert_eq!(window.versions().len() + gone.len(), versions.len());
            dropped += gone.len();
            assert_eq!(place.outcome(&window).live, expected, "without {gone:?}: {versions:#?}");
            let count = rng.random_range(1..4);
            let floor = closure(versions, versions.choose_multiple(&mut rng, count));
            place.settle(&mut window, &floor);
            assert_eq!(place.outcome(&window).live, expected);
        }
    }
    if seeds().count() > 1 {
        assert!(dropped > 100, "{dropped} dropped");
    }
}

/// A history in which a few leaves go to and fro between few values, so that what one writes was often there before.
fn to_and_fro(rng: &mut SmallRng) -> Sites {
    let (count, leaves) = (rng.random_range(2..=4), rng.random_range(1..=2));
    let mut sites = Sites::new(Place::client("/registry/example.com/things/default/a"), count);
    let object = |rng: &mut SmallRng| {
        let spec: Vec<String> = (0..leaves).map(|leaf| format!(r#""l{leaf}":"{}""#, rng.random_range(0..3))).collect();
        format!(
            r#"{{"apiVersion":"example.com/v1","kind":"Thing","metadata":{{"name":"a","uid":"u"}},"spec":{{{}}}}}"#,
            spec.join(",")
        )
    };
    let first = object(rng);
    sites.put(0, first);
    sites.sync_all();
    for _ in 0..rng.random_range(5..16) {
        let site = rng.random_range(0..count);
        if rng.random_range(0..3) == 0 {
            sites.sync(rng.random_range(0..count), site);
        } else {
            let value = object(rng);
            sites.write(site, Written::Put(value.into(), None), Stamp::new(rng.random_range(1_000..2_000)));
        }
    }
    sites
}

/// One who knows all leaves out what another one cannot miss. The other one has some of that, and is told what stays of the rest.
#[test]
fn who_has_some_of_what_left_sees_the_same() {
    let mut partly = 0;
    for seed in seeds() {
        let _seed = Seed(seed);
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut sites = if seed % 2 == 0 { history(&mut rng) } else { to_and_fro(&mut rng) };
        let place = &mut sites.place;
        let lowest = rng.random_range(1..=2);
        if rng.random_range(0..3) == 0 {
            let first = place.rules.current().clone();
            place.rules = RuleBook::new(first.clone(), vec![Rules { number: 2, ..first }], 2);
        }
        let versions = sites.history.clone();
        if versions.is_empty() {
            continue;
        }
        for _ in 0..4 {
            let count = rng.random_range(1..3);
            let has = closure(&versions, versions.choose_multiple(&mut rng, count));
            let place = &sites.place;
            let know = |version: &Version| has.contains(version.dot);
            let mut window = place.window(&versions);
            let gone = window.drop_middles(&place.rules, lowest, place.keyspace, place.key, |version, next| {
                !know(version) || know(next)
            });
            let mut told: Vec<Version> = versions.iter().filter(|version| know(version)).cloned().collect();
            partly += usize::from(told.iter().any(|version| gone.contains(&version.dot)));
            told.extend(window.versions().iter().filter(|version| !know(version)).cloned());
            let expected = place.outcome(&place.window(&versions)).live;
            assert_eq!(place.outcome(&place.window(&told)).live, expected, "{has:?}, without {gone:?}: {versions:#?}");
        }
    }
    if seeds().count() > 1 {
        assert!(partly > 100, "{partly}");
    }
}

#[test]
fn every_replica_agrees_with_every_other_that_knows_the_same() {
    let mut rules = std::collections::BTreeMap::<Option<Rule>, usize>::new();
    for seed in seeds() {
        let _seed = Seed(seed);
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut sites = history(&mut rng);
        let whole = sites.place.outcome(&sites.place.window(&sites.history));
        sites.sync_all();
        for site in 0..2 {
            // Each learned in its own order, and settles what it likes.
            let mut window = sites.place.window(sites.known(site));
            assert_eq!(sites.place.outcome(&window), whole);
            let floor = sites.vector(site).clone();
            sites.place.settle(&mut window, &floor);
            assert_eq!(window.base(), whole.live.as_ref());
        }
        *rules.entry(whole.rule).or_default() += 1;
    }
    if seeds().count() > 1 {
        for rule in [Rule::DeletedIncarnation, Rule::OutlivedDelete, Rule::CreatedFirst, Rule::CreatedLast] {
            assert!(rules.contains_key(&Some(rule)), "{rules:?}");
        }
        for rule in [Rule::FieldMerge, Rule::LastWriter, Rule::LongestLease, Rule::ContestedBirth] {
            assert!(rules.contains_key(&Some(rule)), "{rules:?}");
        }
    }
    println!("{rules:?}");
}
