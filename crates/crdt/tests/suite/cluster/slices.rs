//! What settles when a member that was away for long is removed is settled in slices, one in each turn.

use eddy_crdt::{Command, Input};

use super::stories::install;
use crate::support::build::{add, id, identity, put};
use crate::support::world::World;

/// Keys that were written while one was away.
const KEYS: usize = 5_000;

/// About how many are settled in one turn.
const PACE: usize = 1024;

/// The third is away while the others write, some keys both of them. Then it is removed.
fn removed(pace: Option<usize>) -> World {
    let mut world = World::new(3);
    for (node, from) in [(0, 0), (1, KEYS - 500)] {
        pace.iter().for_each(|pace| world.nodes[node].replica.settle_by(*pace));
        (from..from + KEYS - from / 2).for_each(|n| drop(world.run(node, put(&format!("k{n:05}"), format!("{node}")))));
    }
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        world.tell(from, to, usize::MAX).unwrap();
        world.tell_acks(from, to);
    }
    assert!(world.nodes[0].replica.windows_len() > KEYS, "nothing settles while one is away");
    world.run(0, Command::MemberRemove(id(2))).unwrap();
    world.tell(0, 1, usize::MAX).unwrap();
    world
}

/// Has the first hear that all know of the removal, and go on while it has something to do. Tells how many keys each turn
/// settled.
fn settle(world: &mut World) -> Vec<usize> {
    let mut left = world.nodes[0].replica.windows_len();
    let mut settled = vec![];
    world.tell_acks(1, 0);
    loop {
        let now = world.nodes[0].replica.windows_len();
        settled.push(left - now);
        left = now;
        if world.nodes[0].replica.next_tick_ms().is_none_or(|ms| ms > world.ms) {
            return settled;
        }
        world.handle(0, Input::Tick);
    }
}

#[test]
fn removing_one_that_was_away_for_long_settles_a_bounded_number_of_keys_in_a_turn() {
    let mut world = removed(None);
    let settled = settle(&mut world);
    assert!(settled.iter().all(|keys| *keys <= PACE) && settled.len() > KEYS / PACE, "{settled:?}");
    assert_eq!((world.nodes[0].replica.windows_len(), world.nodes[0].replica.log_len()), (0, 0));

    let mut at_once = removed(Some(usize::MAX));
    assert!(settle(&mut at_once)[0] > KEYS);
    for world in [&mut world, &mut at_once] {
        while !world.nodes[0].sweep(100_000) {}
        world.nodes[0].trim(100_000);
    }
    let (sliced, at_once) = (world.nodes[0].disk.written(), at_once.nodes[0].disk.written());
    assert!(sliced.head == at_once.head && sliced.records == at_once.records, "other bytes are left than at once");
}

/// What is on the disk says how far all have everything. A start settles the rest.
#[test]
fn a_start_in_the_middle_of_it_ends_the_same() {
    let mut world = removed(None);
    let unsettled = world.nodes[0].replica.windows_len();
    world.tell_acks(1, 0);
    let left = world.nodes[0].replica.windows_len();
    assert!(left > 0 && left < unsettled, "{left} of {unsettled}");
    let (now, disk, hash) = (world.now(), world.nodes[0].disk.clone(), world.nodes[0].replica.state_hash());
    world.nodes[0].start_from(now, disk);
    assert_eq!((world.nodes[0].replica.windows_len(), world.nodes[0].replica.state_hash()), (0, hash));
    world.restart(0).unwrap();
    settle(&mut world);
    assert_eq!(world.nodes[0].replica.log_len(), 0);
}

/// Its snapshot tells what waits as entries, and what is settled as keys.
#[test]
fn one_that_joins_in_the_middle_of_it_has_the_same() {
    let mut world = removed(None);
    world.tell_acks(1, 0);
    world.run(0, add(3)).unwrap();
    let joined = install(&mut world, 0, identity(3, 1), 1 << 20, None);
    world.nodes.push(joined);
    // It has announced its space.
    world.tell(3, 0, usize::MAX).unwrap();
    let first = &world.nodes[0].replica;
    assert!(!first.windows().unwrap().is_empty() && first.windows_len() < KEYS + KEYS / 2);
    assert_eq!(world.nodes[3].replica.state_hash(), first.state_hash());
}
