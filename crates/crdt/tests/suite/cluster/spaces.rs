//! No revision that a member counted is counted again after its disk was lost, or put back.

use std::collections::BTreeSet;

use eddy_crdt::{Birth, Command, Input, Reply};

use super::stories::install;
use crate::support::build::{genesis, identity, put};
use crate::support::node::Node;
use crate::support::world::World;

/// Writes a little, leaps, and writes again. Returns every revision that clients were shown.
fn counts(world: &mut World, node: usize) -> BTreeSet<i64> {
    let mut shown = BTreeSet::from([world.nodes[node].replica.revision().get()]);
    for command in [put("a", "1"), put("b", "1"), Command::Leap, put("a", "2"), Command::Leap, put("b", "2")] {
        let effects = world.handle(node, Input::Client(command));
        shown.extend(effects.commits.iter().map(|commit| commit.revision.get()));
        if let Some(Ok(Reply::Leap { revision })) = effects.reply {
            shown.insert(revision.get());
        }
    }
    shown
}

/// Whichever births the two draw, unless they agree in their last ten bits, or nearly so: a leap uses up a generation.
#[test]
fn a_backup_that_is_restored_twice_never_counts_what_was_counted() {
    for second in (300..300 + 1024).step_by(8) {
        let mut world = World::new(2);
        world.run(1, put("k", "v")).unwrap();
        world.tell_all().unwrap();
        let backup = world.nodes[1].disk.clone();
        // What the backup does not have.
        let mut lives = vec![counts(&mut world, 1)];
        for birth in [400, 400 + second % 1016 + 4] {
            let now = world.now();
            world.nodes[1].start_from(now, backup.clone());
            world.handle(1, Input::Doubt(Birth::new(birth)));
            lives.push(counts(&mut world, 1));
        }
        for (place, life) in lives.iter().enumerate() {
            for other in &lives[place + 1..] {
                assert!(life.is_disjoint(other), "{life:?} {other:?}");
            }
        }
    }
}

#[test]
fn a_founder_that_is_cut_off_with_an_empty_disk_never_counts_what_it_counted() {
    let mut lives = vec![];
    for birth in [100, 104, 2000, 1 << 60] {
        let mut world = World::new(3);
        world.nodes[0] = Node::found(identity(0, birth), &genesis(3));
        lives.push(counts(&mut world, 0));
        // The next life hears nothing of this one.
    }
    let all: BTreeSet<i64> = lives.iter().flatten().copied().collect();
    assert_eq!(all.len(), lives.iter().map(BTreeSet::len).sum::<usize>());
}

/// The one that gives the second life its state has not heard of the first one's leaps, nor of anything of it.
#[test]
fn a_member_that_joins_again_with_an_empty_disk_never_counts_what_it_counted() {
    let mut world = World::new(2);
    world.run(0, put("k", "v")).unwrap();
    world.tell_all().unwrap();
    let giver = world.nodes[0].disk.clone();
    let mut lives = vec![];
    for birth in [20, 24, 41] {
        let now = world.now();
        world.nodes[0].start_from(now, giver.clone());
        world.nodes[1] = install(&mut world, 0, identity(1, birth), usize::MAX, None);
        lives.push(counts(&mut world, 1));
    }
    let all: BTreeSet<i64> = lives.iter().flatten().copied().collect();
    assert_eq!(all.len(), lives.iter().map(BTreeSet::len).sum::<usize>());
}
