//! What leaves of a key while little is written, and where members hear of each other late.
//!
//! Members that all write one key all the time, and hear of each other a little late. Entries are streamed to all of them.
//!
//! Then no version is ever below all that are not settled, so nothing settles. What all have must leave, or each write
//! costs more than the one before.

use eddy_crdt::{Command, Input, Keyspace, VersionVector};

use crate::support::build::{delete, id, put};
use crate::support::world::World;

const MEMBERS: usize = 3;
const STEPS: usize = 400;

/// How many of the others' newest writes a member has not heard of.
const LATE: usize = 5;

/// The most versions of the key that a member may keep: some times those that are on their way.
const KEPT_MAX: usize = 6 * MEMBERS * LATE;

fn lease(site: usize, n: usize) -> String {
    format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"l","namespace":"kube-system",
        "uid":"u1"}},"spec":{{"holderIdentity":"site-{site}","renewTime":"2026-01-01T00:00:{:02}.{n:06}Z"}}}}"#,
        n % 60
    )
}

/// What a member has kept of the key, and of all entries.
fn kept(world: &World, node: usize, key: &str) -> (usize, usize) {
    let replica = &world.nodes[node].replica;
    let window = replica.windows().and_then(|windows| windows.get(Keyspace::Client, key.as_bytes()));
    (window.map_or(0, |open| open.window.versions().len()), replica.log_len())
}

/// `to` hears from `from` what that had, and nothing newer.
fn tell_upto(world: &mut World, from: usize, to: usize, upto: &VersionVector) {
    world.handle(from, Input::Stream { member: id(to), session: 1 });
    let have = world.nodes[to].replica.vector();
    let entries = world.nodes[from].replica.entries_for(have, upto, usize::MAX).unwrap();
    let entries: Vec<_> = entries.iter().map(|entry| (**entry).clone()).collect();
    let source = world.nodes[from].replica.identity();
    let births = world.nodes[to].replica.births_of(source.replica).chain([source.birth]).collect();
    world.handle(to, Input::Entries { from: source.replica, births, entries, together: None });
}

/// The last of them only listens, if `listens`.
fn written_late(key: &str, value: impl Fn(usize, usize) -> String, listens: bool) -> (World, Vec<(usize, usize)>) {
    let mut world = World::new(MEMBERS);
    world.run(0, put(key, value(0, 0))).unwrap();
    world.tell_all().unwrap();
    let writers = MEMBERS - usize::from(listens);
    let mut had: Vec<Vec<VersionVector>> = vec![vec![]; MEMBERS];
    let mut most = vec![(0, 0); MEMBERS];
    for n in 0..STEPS {
        for node in 0..MEMBERS {
            world.ms += 20;
            if node < writers {
                world.run(node, put(key, value(node, n))).unwrap();
            }
            let vector = world.nodes[node].replica.vector().clone();
            had[node].push(vector);
            for from in (0..MEMBERS).filter(|from| *from != node) {
                // Those that come later in the step have one less.
                if let Some(upto) = had[from].len().checked_sub(LATE).map(|at| had[from][at].clone()) {
                    tell_upto(&mut world, from, node, &upto);
                    world.tell_acks(from, node);
                }
            }
            while world.nodes[node].replica.next_tick_ms().is_some_and(|ms| ms <= world.ms) {
                world.handle(node, Input::Tick);
            }
            let (versions, entries) = kept(&world, node, key);
            most[node] = (most[node].0.max(versions), most[node].1.max(entries));
            assert!(
                versions.max(entries) <= KEPT_MAX,
                "after {n} steps a member keeps {versions} versions, {entries} entries"
            );
        }
    }
    (world, most)
}

fn check(key: &str, value: impl Fn(usize, usize) -> String, listens: bool) {
    let (mut world, most) = written_late(key, value, listens);
    println!("the most versions and entries at each: {most:?}");
    world.tell_all().unwrap();
    world.check_equal().unwrap();
}

#[test]
fn an_object_that_all_write_all_the_time_keeps_few_versions() {
    check("/registry/leases/kube-system/l", lease, false);
}

#[test]
fn a_member_that_only_listens_keeps_few_versions() {
    check("/registry/leases/kube-system/l", lease, true);
}

#[test]
fn a_key_that_is_no_object_keeps_few_versions() {
    check("plain", |site, n| format!("{site}-{n}"), false);
}

/// How many entries the first member keeps for the second, which is cut off, after so many writes of one key.
fn kept_beside_one_away(writes: usize, then: impl FnOnce(&mut World)) -> usize {
    let mut world = World::new(2);
    world.run(0, put("k", "there")).unwrap();
    world.tell_all().unwrap();
    world.handle(0, Input::Stop { member: id(1), session: 1, upto: None });
    (0..writes).for_each(|n| drop(world.run(0, put("k", format!("{n}")))));
    then(&mut world);
    let (here, there) = (&world.nodes[0].replica, &world.nodes[1].replica);
    here.entries_for(there.vector(), here.vector(), usize::MAX).unwrap().len()
}

#[test]
fn what_was_written_over_is_not_sent_when_a_stream_begins() {
    for writes in 1..40 {
        let sent =
            kept_beside_one_away(writes, |world| drop(world.handle(0, Input::Stream { member: id(1), session: 2 })));
        assert_eq!(sent, 1, "of {writes} writes");
    }
}

#[test]
fn what_was_written_over_leaves_in_time_though_nothing_else_is_written() {
    for writes in 1..40 {
        let kept = kept_beside_one_away(writes, |world| {
            while let Some(ms) = world.nodes[0].replica.next_tick_ms() {
                world.ms = world.ms.max(ms);
                world.handle(0, Input::Tick);
            }
        });
        assert_eq!(kept, 1, "of {writes} writes");
    }
}

/// A crash may come between any two trims. So nothing that a tombstone hides is on disk when that is trimmed, also nothing that
/// was left out of the log and waits for its turn.
#[test]
fn a_tombstone_stays_while_something_that_left_waits_that_it_hides() {
    let mut world = World::new(2);
    world.run(0, put("k", "there")).unwrap();
    world.tell_all().unwrap();
    world.handle(0, Input::Stop { member: id(1), session: 1, upto: None });
    (0..20).for_each(|n| drop(world.run(0, put("k", format!("{n}")))));
    world.run(0, delete("k")).unwrap();
    world.run(0, put("other", "behind it")).unwrap();
    for _ in 0..2 {
        world.tell_all().unwrap();
    }
    let node = &world.nodes[0];
    assert_eq!(node.replica.log_len(), 0);
    let (before, revision) = (node.disk.written().records.len(), node.replica.revision());
    world.run(0, Command::Compact(revision.get())).unwrap();
    let now = world.now();
    let node = &mut world.nodes[0];
    // At the first sweep, what earlier ones told is not trimmed yet.
    for is_trimmed in [false, true, true] {
        let sweep = node.replica.sweep(usize::MAX, is_trimmed);
        node.dead.extend(sweep.dead);
        while !node.dead.is_empty() {
            node.trim(1);
            let started = node.disk.written().load(now, node.replica.identity());
            assert!(started.is_ok(), "after a crash: {:?}", started.err());
        }
    }
    let left = world.nodes[0].disk.written().records.len();
    assert!(left < 6, "of {before} records {left} are left");
}
