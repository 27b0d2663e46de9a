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
        // The third is told what stands, as one step.
        let before = world.nodes[2].replica.revision();
        world.connect(0, 2);
        world.connect(1, 2);
        world.converge();
        let revisions = world.nodes[2].replica.revision().get() - before.get();
        assert!(revisions <= 8, "kubernetes {kubernetes}: {revisions} revisions");
    }
}
