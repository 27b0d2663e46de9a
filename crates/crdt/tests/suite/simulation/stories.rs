//! One story for each kind of fault, told without dice but for what clients write and how long messages take.

use super::checks::Coverage;
use super::nemesis::{Act, Cut, Plan};
use super::seeds::run;

/// The number of a command that writes a key that is never deleted.
const MARKS: u64 = 13_781_892_404_805_387_496;
const MORE_MARKS: u64 = 11_775_599_224_548_369_396;

fn writes(host: usize, count: u64) -> Vec<(u64, Act)> {
    (0..count).map(|n| (5, Act::Command(host, 7_919 * (n + 1) + 104_729 * host as u64))).collect()
}

fn everyone_writes(count: u64) -> Vec<(u64, Act)> {
    (0..3).flat_map(|host| writes(host, count)).collect()
}

/// Runs a cluster of three through these acts, then heals it; all that is checked in a schedule is checked here.
fn story(acts: impl IntoIterator<Item = Vec<(u64, Act)>>) -> Coverage {
    let plan = Plan {
        seed: 1,
        founders: 3,
        delay_ms: 30,
        chunk_bytes: 300,
        acts: acts.into_iter().flatten().collect(),
        ..Plan::default()
    };
    run(&plan).unwrap_or_else(|error| panic!("{error}"))
}

fn met(coverage: &Coverage, what: &str) {
    assert!(coverage.0.contains_key(what), "no {what}: {coverage:?}");
}

fn cut(cut: Cut) -> Coverage {
    story([everyone_writes(5), vec![(500, Act::Cut(cut))], everyone_writes(20), vec![(4_000, Act::Mend)]])
}

#[test]
fn one_that_was_alone_merges() {
    met(&cut(Cut::Alone(1)), "multi-head settles");
}

#[test]
fn halves_merge() {
    met(&cut(Cut::Halves(1)), "merges");
}

#[test]
fn two_that_only_a_third_sees_merge() {
    met(&cut(Cut::Pair(0, 2)), "merges");
}

#[test]
fn what_goes_one_way_only_is_told_again() {
    met(&cut(Cut::OneWay(0, 1)), "merges");
}

#[test]
fn crashes_in_the_middle_of_everything_lose_nothing() {
    // What it writes last is on its way to the disk when it stops.
    let crash = |host| {
        let write = writes(host, 3);
        [vec![(0, Act::Slow(host, 300))], write, vec![(1, Act::Crash(host, 50))]].concat()
    };
    let coverage = story([everyone_writes(5), crash(1), everyone_writes(5), crash(0), crash(2), writes(1, 5)]);
    met(&coverage, "crashes during a flush");
}

#[test]
fn all_crash_at_once() {
    met(&story([everyone_writes(8), vec![(1, Act::CrashAll(50))], everyone_writes(2)]), "crashes");
}

#[test]
fn connections_break_and_overlap() {
    let breaks = || vec![(0, Act::Reset(0, 1)), (20, Act::Double(0, 2)), (20, Act::Reset(1, 2))];
    let coverage = story([everyone_writes(5), breaks(), everyone_writes(5), breaks(), everyone_writes(5)]);
    assert!(coverage.0["connections"] > 6, "{coverage:?}");
}

#[test]
fn a_joiner_that_crashes_while_it_reads_joins_in_the_end() {
    let acts = [everyone_writes(10), vec![(500, Act::Add(0, 3)), (200, Act::Crash(3, 50))], everyone_writes(5)];
    let coverage = story(acts);
    met(&coverage, "crashes during a snapshot");
    met(&coverage, "snapshots installed");
}

#[test]
fn the_same_node_added_twice_is_one_member() {
    let acts = [
        everyone_writes(3),
        vec![(500, Act::Cut(Cut::Halves(1))), (0, Act::Add(0, 3)), (0, Act::Add(1, 3))],
        everyone_writes(3),
        vec![(2_000, Act::Mend)],
    ];
    assert_eq!(story(acts).0["members added"], 2);
}

#[test]
fn two_that_remove_each_other_are_both_gone() {
    let acts = [
        everyone_writes(3),
        vec![(500, Act::Cut(Cut::Pair(1, 2))), (0, Act::Remove(1, 2)), (0, Act::Remove(2, 1))],
        writes(0, 3),
        vec![(2_000, Act::Mend)],
    ];
    let coverage = story(acts);
    assert_eq!(coverage.0["members removed"], 2);
    met(&coverage, "removed members that know it");
}

/// A member is removed while nobody hears it. It told what it wrote then only to a member that it had added itself.
/// That second member gives these writes up when the others add it, too. It says which writes those are (found by seed
/// 20276).
#[test]
fn what_only_a_removed_member_and_one_it_added_have_is_given_up_and_told() {
    let coverage = story([
        everyone_writes(5),
        vec![(500, Act::Cut(Cut::Alone(1))), (0, Act::Remove(0, 1))],
        writes(0, 5),
        vec![(2_000, Act::Add(1, 3))],
        (0..40).map(|n| (300, Act::Command(1, 7_919 * n))).collect(),
        vec![(3_000, Act::Mend), (10, Act::Add(0, 3))],
        everyone_writes(5),
    ]);
    met(&coverage, "writes of removed members given up");
}

#[test]
fn clocks_that_are_decades_off_change_nothing_but_who_wins() {
    let decades = 60 * 365 * 86_400_000;
    let skews = vec![(0, Act::Skew(0, decades)), (0, Act::Skew(2, -decades))];
    met(&story([skews, everyone_writes(20)]), "clocks ahead");
}

#[test]
fn a_wiped_disk_is_filled_by_the_others() {
    let acts = [everyone_writes(10), vec![(2_000, Act::Wipe(1, 50)), (5_000, Act::Mend)], everyone_writes(5)];
    met(&story(acts), "snapshots installed");
}

fn restored(seen: bool) -> Coverage {
    story([
        everyone_writes(5),
        vec![(500, Act::Backup(1))],
        everyone_writes(5),
        vec![(2_000, Act::Restore(1, 50, seen)), (5_000, Act::Mend)],
        everyone_writes(5),
    ])
}

#[test]
fn an_older_copy_of_a_disk_is_replaced() {
    met(&restored(true), "snapshots installed");
}

#[test]
fn an_older_disk_that_nothing_tells_from_the_newest_is_found_out() {
    let coverage = restored(false);
    met(&coverage, "lost tails");
    met(&coverage, "snapshots installed");
}

/// What is written on the old disk before anyone is met is written again; what the others had of it stays.
#[test]
fn an_older_copy_that_is_written_to_alone_merges() {
    let coverage = story([
        everyone_writes(5),
        vec![(500, Act::Backup(1))],
        everyone_writes(5),
        vec![(2_000, Act::Restore(1, 50, true)), (0, Act::Cut(Cut::Alone(1)))],
        vec![(100, Act::Command(1, 1)), (100, Act::Command(1, 2)), (100, Act::Command(0, 3))],
        vec![(5_000, Act::Mend)],
        everyone_writes(5),
    ]);
    met(&coverage, "snapshots installed");
}

/// A replica in doubt started again before it had met anyone. It found that entries were missing that it had left out
/// itself, under the birth before.
#[test]
fn an_older_copy_whose_middles_were_left_out_starts_again() {
    story([
        vec![(500, Act::Cut(Cut::Alone(1))), (0, Act::Reset(0, 1)), (0, Act::Reset(1, 2)), (1_500, Act::Burst(1, 45))],
        vec![(500, Act::Backup(1)), (50, Act::Restore(1, 1, true)), (500, Act::Crash(1, 50))],
        vec![(3_000, Act::Mend)],
        everyone_writes(3),
    ]);
}

/// The disk comes back from before a member was added. That member alone has what was written since. It is not taken
/// for a member until it is added again. The added member must not have begun anew from the old disk meanwhile (found
/// by seed 719925).
#[test]
fn an_older_copy_from_before_a_member_was_added_takes_from_it_what_was_written_since() {
    // The command writes a key that nobody deletes.
    let acts =
        vec![(34, Act::Backup(0)), (0, Act::Command(0, MARKS)), (0, Act::Add(0, 1)), (64, Act::Restore(0, 50, true))];
    let plan = Plan { seed: 1, founders: 1, delay_ms: 2, chunk_bytes: 300, acts, ..Plan::default() };
    met(&run(&plan).unwrap_or_else(|error| panic!("{error}")), "members added again");
}

/// What it writes alone meanwhile is settled at once, as there seems to be nobody else; it is kept nevertheless (found by seed
/// 247528).
#[test]
fn an_older_copy_from_before_a_member_was_added_keeps_what_it_writes_alone() {
    let acts = vec![
        (500, Act::Backup(0)),
        (0, Act::Add(0, 1)),
        (300, Act::Restore(0, 50, true)),
        (700, Act::Command(0, MARKS)),
        (1_000, Act::Crash(0, 50)),
    ];
    let plan = Plan { seed: 1, founders: 1, delay_ms: 2, chunk_bytes: 300, acts, ..Plan::default() };
    met(&run(&plan).unwrap_or_else(|error| panic!("{error}")), "members added again");
}

/// One lost what it had told a new member alone, and the others do not know that one until it is added again. They went on
/// without its entries; it writes again what their maker has lost (found by seed 117958).
#[test]
fn what_only_a_new_member_has_of_one_that_lost_its_disk_is_kept() {
    let acts = vec![
        (500, Act::Cut(Cut::Halves(1))),
        (50, Act::Backup(1)),
        (0, Act::Command(1, MARKS)),
        (200, Act::Add(1, 2)),
        (6_000, Act::Mend),
        (0, Act::Cut(Cut::Alone(2))),
        (0, Act::Restore(1, 1, true)),
        (5_000, Act::Mend),
    ];
    let plan = Plan { seed: 1, founders: 2, delay_ms: 2, chunk_bytes: 300, acts, ..Plan::default() };
    met(&run(&plan).unwrap_or_else(|error| panic!("{error}")), "members added again");
}

/// When all disks are copies of the same time, nobody knows better, and nobody waits for anyone.
#[test]
fn a_cluster_that_is_restored_as_a_whole_goes_on() {
    let backups = (0..3).map(|host| (0, Act::Backup(host))).collect();
    story([
        everyone_writes(5),
        vec![(3_000, Act::Mend)],
        backups,
        everyone_writes(5),
        vec![(0, Act::RestoreAll(50)), (5_000, Act::Mend)],
        everyone_writes(5),
    ]);
}

/// A founder that had acknowledged and written nothing loses its disk while it is alone. It founds again and writes
/// nothing. Nobody could tell that its first birth was over, and nothing settled any more (found by seeds 56066 and
/// 89578).
#[test]
fn a_founder_that_founds_again_and_writes_nothing_lets_the_others_settle() {
    let coverage = story([
        vec![(1_000, Act::Cut(Cut::Alone(2))), (100, Act::Wipe(2, 1))],
        writes(0, 3),
        vec![(40_000, Act::Mend)],
        writes(1, 3),
    ]);
    met(&coverage, "founded again");
}

/// It loses its disk so often that its first birth is forgotten. Then that disk comes back, and nothing tells it from the
/// newest one. It has all that was written under that birth, or not. It has written more when it meets the others, or not.
#[test]
fn a_disk_from_before_what_is_forgotten_is_found_out() {
    for (is_whole, writes_alone) in [(false, false), (false, true), (true, true)] {
        let mut acts = everyone_writes(5);
        acts.push((500, Act::Backup(1)));
        if !is_whole {
            acts.extend(everyone_writes(3));
        }
        for _ in 0..3 {
            acts.extend([(4_000, Act::Wipe(1, 50)), (4_000, Act::Mend)]);
            acts.extend(everyone_writes(3));
        }
        acts.extend([(4_000, Act::Cut(Cut::Alone(1))), (0, Act::Restore(1, 50, false))]);
        if writes_alone {
            acts.extend([(2_000, Act::Command(1, MARKS)), (100, Act::Command(1, MARKS + 1))]);
        }
        acts.push((8_000, Act::Mend));
        acts.extend(everyone_writes(3));
        let plan = Plan {
            seed: 1,
            founders: 3,
            links: vec![],
            mangles: false,
            delay_ms: 30,
            chunk_bytes: 300,
            kept_births: 0,
            acts,
            ..Plan::default()
        };
        let coverage = run(&plan).unwrap_or_else(|error| panic!("{error}"));
        met(&coverage, "births forgotten");
        met(&coverage, "begun anew");
    }
}

/// All three lose their disks and go on without what was written. It comes back on an older copy of one disk, where it has
/// settled. Its maker's birth is forgotten by then, so nobody can tell that nobody else has it: it is given up, and told
/// (found by seed 4000092 of the schedules of lost disks).
#[test]
fn what_only_a_copy_has_settled_of_a_birth_that_is_forgotten_is_told() {
    let mut acts = vec![(1_000, Act::Command(0, MARKS)), (4_000, Act::Backup(2))];
    acts.extend((0..3).map(|host| (0, Act::Wipe(host, 3_000))));
    acts.extend([(9_000, Act::Burst(0, 3)), (3_000, Act::Wipe(0, 50)), (4_000, Act::Burst(0, 3))]);
    acts.extend([(9_000, Act::Restore(2, 50, true)), (9_000, Act::Mend)]);
    let plan = Plan { seed: 1, founders: 3, delay_ms: 30, chunk_bytes: 300, kept_births: 0, acts, ..Plan::default() };
    let coverage = run(&plan).unwrap_or_else(|error| panic!("{error}"));
    met(&coverage, "births forgotten");
    met(&coverage, "writes of forgotten births told");
}

/// The same, while the makers' births are known by those who go on: then it is written again. The disk that comes back is of
/// one that had begun anew itself, so it shows the keys of several makers at one revision (found by seed 6001567 of the
/// schedules of lost disks).
#[test]
fn what_only_a_copy_has_settled_is_written_again_whoever_made_it() {
    let mut acts = vec![(1_000, Act::Command(0, MARKS)), (0, Act::Command(2, MORE_MARKS))];
    acts.extend([(4_000, Act::Wipe(1, 50)), (9_000, Act::Backup(1))]);
    acts.extend((0..3).map(|host| (0, Act::Wipe(host, 3_000))));
    acts.extend([(9_000, Act::Burst(0, 3)), (3_000, Act::Restore(1, 50, true)), (9_000, Act::Mend)]);
    let coverage = story([acts]);
    met(&coverage, "founded again");
    met(&coverage, "begun anew");
}
