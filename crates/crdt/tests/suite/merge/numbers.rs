//! Rules that changed while versions were on their way: the outcome of a window is a function of the versions all the same.

use std::collections::BTreeSet;

use eddy_crdt::merge::{RuleBook, Rules, Version, Window, counters};
use eddy_crdt::{Dot, Keyspace, VersionVector};

use super::sites::{Place, Sites};
use crate::support::seeds::env;

const KEY: &str = "/registry/pods/default/a";

/// How many steps of sites are tried in all ways; `EDDY_MERGE_STEPS` says otherwise.
const STEPS: u64 = 4;

/// What a site does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It adds to the weight of the object, and writes down who it is.
    Put(usize),
    /// The second learns what the first knows.
    Sync(usize, usize),
}

/// The rules as a replica has them that merges by that number. Under number 2 the weight is a counter.
fn book(current: u32) -> RuleBook {
    let counters = counters("v1/Pod:.weight").unwrap();
    RuleBook::new(Rules::default(), vec![Rules { number: 2, counters, ..Rules::default() }], current)
}

fn weight(value: &[u8]) -> i64 {
    let text = std::str::from_utf8(value).unwrap();
    let (_, rest) = text.split_once(r#""weight":"#).unwrap();
    rest.split(['}', ',']).next().unwrap().parse().unwrap()
}

fn put(sites: &mut Sites, site: usize) {
    let weight = sites.live(site).map_or(0, |live| weight(&live.value)) + 1 + site as i64;
    sites.put(
        site,
        format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"uid":"u"}},"site":{site},"weight":{weight}}}"#),
    );
}

/// All histories of that many steps of three sites, the first of them a put that all know.
fn histories(count: usize, steps: &mut Vec<Step>, each: &mut impl FnMut(&[Step], Sites)) {
    let mut sites = Sites::new(Place::client(KEY), 3);
    put(&mut sites, 0);
    sites.sync_all();
    for step in steps.iter() {
        match *step {
            Step::Put(site) => put(&mut sites, site),
            Step::Sync(from, to) => sites.sync(from, to),
        }
    }
    if steps.len() == count {
        each(steps, sites);
        return;
    }
    let lacks = |from: usize, to: usize| !sites.vector(to).covers(sites.vector(from));
    let syncs = (0..3).flat_map(|from| (0..3).map(move |to| (from, to))).filter(|(from, to)| lacks(*from, *to));
    let next: Vec<Step> = (0..3).map(Step::Put).chain(syncs.map(|(from, to)| Step::Sync(from, to))).collect();
    for step in next {
        steps.push(step);
        histories(count, steps, each);
        steps.pop();
    }
}

/// All ways in which writers can have merged by number 2: some did, and all that saw what these wrote.
fn numberings(versions: &[Version]) -> Vec<Vec<u32>> {
    let ways = (0..1_u32 << versions.len()).map(|first| {
        let is_up = |version: &Version| {
            let ups = versions.iter().enumerate().filter(|(at, _)| first >> at & 1 == 1);
            ups.map(|(_, up)| up).any(|up| up.dot == version.dot || version.descends_from(up.dot))
        };
        versions.iter().map(|version| 1 + u32::from(is_up(version))).collect()
    });
    ways.collect::<BTreeSet<_>>().into_iter().collect()
}

fn window<'a>(versions: impl IntoIterator<Item = &'a Version>) -> Window {
    let mut window = Window::new(None);
    versions.into_iter().for_each(|version| window.add(version.clone()));
    window
}

fn live(window: &Window, by: u32) -> Option<String> {
    let live = window.outcome(&book(by), Keyspace::Client, KEY.as_bytes()).live;
    live.map(|live| String::from_utf8_lossy(&live.value).into_owned())
}

/// Whether nobody has the one in its past and not the other.
pub fn is_needless(all: &[Version], version: &Version, stands: &Version) -> bool {
    all.iter()
        .all(|other| !other.descends_from(version.dot) || other.dot == stands.dot || other.descends_from(stands.dot))
}

#[derive(Default, Debug)]
struct Seen {
    histories: usize,
    numberings: usize,
    /// Windows whose outcome is another one by one number than by the other.
    differ: usize,
    left: usize,
    settled: usize,
}

fn check(steps: &[Step], versions: &[Version], known: &[BTreeSet<Dot>], seen: &mut Seen) {
    let expected = live(&window(versions), 1);
    let context = || format!("{steps:?}, {:?}", versions.iter().map(|v| (v.dot, v.rules)).collect::<Vec<_>>());
    assert_eq!(live(&window(versions), 2), expected, "another number in use: {}", context());
    let all_by =
        |number| live(&window(&versions.iter().map(|v| Version { rules: number, ..v.clone() }).collect::<Vec<_>>()), 1);
    seen.differ += usize::from(all_by(1) != all_by(2));
    for (known, by) in known.iter().zip([1, 2].into_iter().cycle()) {
        // This was known to one when the others came; it merged by either number then.
        let (first, rest): (Vec<&Version>, Vec<&Version>) = versions.iter().partition(|v| known.contains(&v.dot));
        let mut arrived = window(first.iter().copied());
        rest.iter().for_each(|version| arrived.add((*version).clone()));
        assert_eq!(live(&arrived, by), expected, "in another order: {}", context());
        // It let go what nobody needed.
        let mut left = window(first.iter().copied());
        let droppable = |version: &Version, stands: &Version| is_needless(versions, version, stands);
        seen.left += left.drop_middles(&book(by), 1, Keyspace::Client, KEY.as_bytes(), droppable).len();
        rest.iter().for_each(|version| left.add((*version).clone()));
        assert_eq!(live(&left, by), expected, "something left: {}", context());
        // It settled what all had.
        let under: VersionVector = first.iter().map(|version| version.dot).collect();
        let mut settled = window(first.iter().copied());
        let common = rest.iter().all(|later| first.iter().all(|version| later.descends_from(version.dot)));
        if common {
            let folded = settled.settle(&under, &book(by), Keyspace::Client, KEY.as_bytes(), |_| true);
            seen.settled += folded.dots.len();
        }
        rest.iter().for_each(|version| settled.add((*version).clone()));
        assert_eq!(live(&settled, 3 - by), expected, "something settled: {}", context());
    }
}

#[test]
fn whatever_numbers_its_versions_have_a_window_means_one_thing() {
    let mut seen = Seen::default();
    histories(env("EDDY_MERGE_STEPS", STEPS) as usize, &mut vec![], &mut |steps, sites| {
        let is_chain = sites.place.window(&sites.history).is_chain();
        if is_chain {
            return;
        }
        seen.histories += 1;
        let known = (0..3).map(|site| sites.known(site).iter().map(|version| version.dot).collect::<BTreeSet<Dot>>());
        let prefixes = (1..sites.history.len()).map(|end| sites.history[..end].iter().map(|v| v.dot).collect());
        let known: BTreeSet<BTreeSet<Dot>> = known.chain(prefixes).collect();
        let known: Vec<BTreeSet<Dot>> = known.into_iter().collect();
        for numbers in numberings(&sites.history) {
            seen.numberings += 1;
            let numbered = sites.history.iter().zip(numbers);
            let versions: Vec<Version> = numbered.map(|(v, rules)| Version { rules, ..v.clone() }).collect();
            check(steps, &versions, &known, &mut seen);
        }
    });
    println!("{seen:?}");
    assert!(seen.differ > 100 && seen.left > 100 && seen.settled > 100, "{seen:?}");
}
