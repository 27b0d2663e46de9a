//! What stays while a member is away, and what it is sent when it comes back.

use crate::support::world::World;

const KEYS: usize = 20;

/// Two write the same keys in turns, or at the same time; the third is never there.
fn write(world: &mut World, rounds: usize, kubernetes: bool) {
    for round in 0..rounds {
        for n in 0..KEYS {
            for node in 0..2 {
                let (key, value) = match kubernetes {
                    false => (format!("k{n}"), format!("{node}-{round}")),
                    true => (
                        format!("/registry/pods/{n}"),
                        format!(
                            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{n}","labels":{{"of-{node}":"{round}"}}}}}}"#
                        ),
                    ),
                };
                // A Kubernetes object has one writer at a time.
                if !kubernetes || n % 2 == node {
                    world.put(node, &key, value);
                }
            }
            world.pass(10);
        }
    }
    world.pass(2_000);
}

#[test]
fn what_is_overwritten_beside_an_away_member_leaves() {
    for kubernetes in [false, true] {
        let mut world = World::wired(3);
        world.connect(0, 1);
        world.pass(500);
        write(&mut world, 100, kubernetes);
        for node in &world.nodes[..2] {
            let len = node.replica.log_len();
            assert!(
                len <= KEYS * 8,
                "kubernetes {kubernetes}: {len} entries stay of {}",
                world.nodes[0].replica.vector().iter().map(|dot| dot.seq).sum::<u64>()
            );
        }
        // The third is told what stands, as one step: each key once, at a revision of its own.
        let before = world.nodes[2].replica.revision();
        world.connect(0, 2);
        world.connect(1, 2);
        world.converge();
        let revisions = world.nodes[2].replica.revision().get() - before.get();
        assert_eq!(revisions, KEYS as i64, "kubernetes {kubernetes}");
    }
}

#[test]
fn what_was_missed_comes_once() {
    let mut world = World::mesh(3);
    world.pass(500);
    // On its way when the links break. The member is brought to there first, in a unit of its own.
    world.put(0, "on-its-way", "1");
    world.step();
    [(0, 1), (0, 2), (1, 2)].into_iter().for_each(|(a, b)| world.part(a, b));
    world.connect(0, 1);
    world.pass(500);
    // So much that it takes a while: more than may be on its way, several times.
    for n in 0..300 {
        world.put(n % 2, &format!("k{n}"), vec![n as u8; 30_000]);
        world.pass(10);
    }
    world.pass(2_000);
    let (a, b) = (world.connect(2, 0), world.connect(2, 1));
    world.converge();
    world.pass(2_000);
    let came = [a, b].map(|wire| world.report(wire, 0).tally);
    assert_eq!(came.iter().map(|tally| tally.received_entries).sum::<u64>(), 301);
    assert_eq!(came.iter().map(|tally| tally.duplicates).sum::<u64>(), 0, "{came:?}");
}
