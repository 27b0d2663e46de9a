//! Whole clusters with simulated disks, links and clocks, run from seeds; every step is checked.
//!
//! A failure prints its seed and the command that shows it again. More than a plain `cargo test` runs (a million takes
//! hours): `EDDY_SIM_SCHEDULES=1000000 cargo test -p eddy-crdt --test suite simulation::`. `EDDY_SIM_SEED` is the first seed,
//! `EDDY_SIM_TRACE=1` tells all that happens, `EDDY_SIM_SHRINK=0` leaves a failing schedule as long as it is.
//!
//! What is checked where:
//! - `checks`: entries are applied after what they depend on, equal vectors are equal states, spaces are not used twice;
//! - `history`: a replica shows what all versions it was given mean, whatever has left or settled;
//! - `fields`: what edits of single fields give, from the schedule alone; `jobs`: what a Job counts;
//! - `observer`: what watches and reads show of things that depend on each other, and of leases that are kept alive;
//! - `host`, `lives`: a start gives what was on disk, and finds the base of each window again;
//! - `world`: what the floor lets settle is looked at; in the end all are equal, and nothing that was told is lost.
//!
//! `tools/mutations/run` plants faults that these must find.

mod absences;
mod builds;
mod checks;
mod clients;
mod copies;
mod crowd;
mod edits;
mod faults;
mod fields;
mod history;
mod host;
mod jobs;
mod links;
mod lives;
mod nemesis;
mod network;
mod observer;
mod plots;
mod schemas;
mod seeds;
mod stories;
mod unswept;
mod world;

use checks::Coverage;
use nemesis::{hot_plan, lossy_plan, plan, rules_plan};
use seeds::{SHARED_SPACES, sweep};

use crate::support::seeds::env;

/// How many schedules a plain `cargo test` runs, half of them in each test.
const SCHEDULES: u64 = 14_300;

/// What that many schedules must have met, so that they cannot silently test nothing.
const MET: [&str; 22] = [
    "merges",
    "multi-head settles",
    "multi-head settles with versions on top",
    "connections",
    "crashes",
    "crashes during a flush",
    "crashes during a snapshot",
    "snapshots installed",
    "begun anew",
    "refused entries",
    "members added",
    "members removed",
    "removed members that know it",
    "entries of removed members",
    "clocks ahead",
    "leaps",
    "peers that need snapshots",
    "wiped disks",
    "restored disks",
    "founded again",
    "several disks lost at once",
    "disks lost twice",
];

/// Runs one of two halves.
fn half(which: u64) {
    let count = env("EDDY_SIM_SCHEDULES", SCHEDULES);
    let first = env("EDDY_SIM_SEED", 1);
    let (begin, end) =
        if which == 0 { (first, first + count.div_ceil(2)) } else { (first + count.div_ceil(2), first + count) };
    let coverage: Coverage = sweep(begin, end - begin, plan);
    println!("{} schedules: {coverage:#?}", end - begin);
    let shared = coverage.0.get(SHARED_SPACES).copied().unwrap_or_default();
    assert!(shared <= 1 + count / 5_000, "{shared} spaces of two lives in {count} schedules: more than by chance");
    if count >= SCHEDULES {
        for what in MET {
            assert!(coverage.0.contains_key(what), "{count} schedules met no {what}");
        }
    }
}

/// How many schedules of few keys a plain `cargo test` runs; `EDDY_SIM_HOT` says otherwise.
const HOT_SCHEDULES: u64 = 2_000;

#[test]
fn whatever_leaves_beside_members_that_are_away_changes_nothing() {
    sweep(env("EDDY_SIM_SEED", 1), env("EDDY_SIM_HOT", HOT_SCHEDULES), hot_plan);
}

/// How many schedules of absences a plain `cargo test` runs; `EDDY_SIM_ABSENCES` says otherwise.
const ABSENCES: u64 = 1_400;

/// What these must have met.
const MET_IN_ABSENCES: [&str; 6] = [
    "keys compared with all their versions",
    "edits of fields",
    "updates of a job",
    "leases kept alive",
    "crashes during a flush",
    "wiped disks",
];

#[test]
fn whoever_is_away_each_replica_shows_what_all_versions_mean() {
    let count = env("EDDY_SIM_ABSENCES", ABSENCES);
    let coverage = sweep(env("EDDY_SIM_SEED", 1), count, absences::plan);
    println!("{count} schedules: {coverage:#?}");
    if count >= ABSENCES {
        for what in MET_IN_ABSENCES {
            assert!(coverage.0.contains_key(what), "{count} schedules met no {what}");
        }
    }
}

/// How many schedules in which rules and builds change a plain `cargo test` runs; `EDDY_SIM_RULES` says otherwise.
const RULES_SCHEDULES: u64 = 300;

/// What they must have met.
const RULES_MET: [&str; 8] = [
    "declarations",
    "declarations while another waits",
    "windows with versions of several numbers",
    "older builds that did not start",
    "members that an older build does not join",
    "rules moved up",
    "schemas in use",
    "rules forgotten",
];

#[test]
fn whenever_rules_move_up_all_become_equal() {
    let count = env("EDDY_SIM_RULES", RULES_SCHEDULES);
    let coverage = sweep(env("EDDY_SIM_SEED", 1), count, rules_plan);
    println!("{count} schedules: {coverage:#?}");
    if count >= RULES_SCHEDULES {
        for what in RULES_MET {
            assert!(coverage.0.contains_key(what), "{count} schedules met no {what}");
        }
    }
}

/// How many schedules of many lost disks a plain `cargo test` runs; `EDDY_SIM_LOSSY` says otherwise.
const LOSSY_SCHEDULES: u64 = 2_000;

#[test]
fn however_many_disks_are_lost_births_are_forgotten_and_nothing_else_is() {
    let count = env("EDDY_SIM_LOSSY", LOSSY_SCHEDULES);
    let coverage = sweep(env("EDDY_SIM_SEED", 1), count, lossy_plan);
    println!("{count} schedules: {coverage:#?}");
    if count >= LOSSY_SCHEDULES {
        assert!(
            coverage.0.get("births forgotten").is_some_and(|met| *met > count / 4),
            "births are hardly ever forgotten"
        );
    }
}

/// How many schedules with few sweeps and many crashes a plain `cargo test` runs; `EDDY_SIM_UNSWEPT` says otherwise.
const UNSWEPT_SCHEDULES: u64 = 200;

#[test]
fn wherever_a_crash_falls_between_two_sweeps_notes_say_what_records_do_not() {
    let count = env("EDDY_SIM_UNSWEPT", UNSWEPT_SCHEDULES);
    let coverage = sweep(env("EDDY_SIM_SEED", 1), count, unswept::plan);
    println!("{count} schedules: {coverage:#?}");
    for what in [unswept::LEFT, unswept::BASES].into_iter().filter(|_| count >= UNSWEPT_SCHEDULES) {
        let met = coverage.0.get(what).copied().unwrap_or_default();
        assert!(met >= count / 2, "{count} schedules met only {met} {what}");
    }
}

/// How many schedules of older copies of disks a plain `cargo test` runs; `EDDY_SIM_COPIES` says otherwise.
const COPIES: u64 = 400;

#[test]
fn whichever_copies_of_disks_come_back_what_left_for_the_sake_of_others_stays_left() {
    let count = env("EDDY_SIM_COPIES", COPIES);
    let coverage = sweep(env("EDDY_SIM_SEED", 1), count, copies::plan);
    println!("{count} schedules: {coverage:#?}");
    for what in ["restored disks", "begun anew"].into_iter().filter(|_| count >= COPIES) {
        let met = coverage.0.get(what).copied().unwrap_or_default();
        assert!(met >= count, "{count} schedules met only {met} {what}");
    }
}

/// How many of these, with members that come and go, a plain `cargo test` runs; `EDDY_SIM_MEMBERS` says otherwise.
const COPIES_WITH_MEMBERS: u64 = 200;

/// What they must have met.
const MET_WITH_MEMBERS: [&str; 4] = ["restored disks", "begun anew", "members added", "members removed"];

#[test]
fn whoever_is_added_or_removed_beside_copies_of_disks_all_become_equal() {
    let count = env("EDDY_SIM_MEMBERS", COPIES_WITH_MEMBERS);
    let mut coverage = sweep(env("EDDY_SIM_SEED", 1), count, copies::plan_with_members);
    coverage.add(&sweep(env("EDDY_SIM_SEED", 1), count.div_ceil(2), copies::plan_with_more_members));
    println!("{count} schedules and half as many: {coverage:#?}");
    for what in MET_WITH_MEMBERS.into_iter().filter(|_| count >= COPIES_WITH_MEMBERS) {
        let met = coverage.0.get(what).copied().unwrap_or_default();
        assert!(met >= count / 10, "{count} schedules met only {met} {what}");
    }
}

#[test]
fn whatever_befalls_a_cluster_it_becomes_equal_and_nothing_is_lost() {
    half(0);
}

#[test]
fn whatever_befalls_other_clusters_they_become_equal_and_nothing_is_lost() {
    half(1);
}

/// Seeds that found a fault once, as long as they stand for the same schedules. What each found is in the history of this line.
const FOUND: [u64; 30] = [
    20_276,
    56_066,
    74_300,
    86_863,
    89_578,
    117_958,
    173_577,
    186_141,
    203_656,
    233_644,
    247_528,
    255_485,
    334_203,
    372_361,
    432_340,
    458_523,
    461_782,
    551_248,
    587_781,
    719_925,
    721_641,
    761_282,
    886_373,
    4_003_140,
    211_011_297,
    220_038_549,
    244_002_291,
    251_004_593,
    255_037_739,
    263_035_393,
];

/// Such seeds among schedules of few keys.
const FOUND_HOT: [u64; 4] = [3_508, 5_844, 3_000_321, 7_000_026];

/// Such seeds among schedules in which rules and builds change. In 62 two members declare rules apart, and those are forgotten; of
/// the next two the histories have lives beside each other. In 864 all disks are lost but a copy, which begins anew. In the next
/// four a start took for a base what a key was before or beside a version that had left. Then the oracle was wrong: that base
/// differed in a field only that all had written over. Then the record of what had left was gone before a start.
/// Then a counter below its minimum was raised by edits that added up to nothing, while they had not left. Then the oracle did
/// not know that an older copy may bring rules back whose number means something else by now. In the next one an older build
/// began anew where rules that it does not know had lost their number to others. In the next one the oracle took what was lost
/// with a disk for a part of a birth that is forgotten. Then one step brought rules and their end, and the end waited for an entry
/// that waited for it. Then a write that was hidden at one place stood at another. In the next one of two rules the later one
/// would leave the book first. In the next one a unit ended at a mark that was made before the member lost its disk. Below it a
/// version had left for one beyond it. Then an entry was left in a log whose rules had been forgotten. Then the
/// oracle did not know that the only disk with rules may come back after others have got their number. Then the floor covered an
/// entry, but not what it stood on; that had left, and a start put it back without the other. Then a version left that
/// a birth had written on before it ended, because all had what stood for it; one of them had that birth's write, too. Then an
/// entry of a snapshot declared rules that were gone, and those declared after them were gone from its log. Then what
/// lay under the floor of forgotten rules was not looked at again, because something above it came later. Then a write of a lost
/// disk was given up for a life of its key that is not shown. Then a start put a base back below a hidden write, which was none on
/// top of that; the one that hid it wrote what was there then. In the next one the floor of a start was beyond the one of before, and
/// rules had gone for it. Then the record was gone that told what a key was after a step, and a start took nothing for it. Then a
/// member that had lost its disk began from a copy in doubt, and was sure of what that had written. Then the oracle did
/// not see that what differs in two bases was hidden. In the last ones the base of a start was another than the one of before: what
/// had left was in it; what settled was not, because its window had closed or had stood below what a crash brought back; or what
/// was noted of that was old, or was not noted because what told it had left.
const FOUND_BY_RULES: [u64; 40] = [
    62,
    884,
    1_078,
    864,
    66,
    169,
    390,
    101_000_373,
    260_000_073,
    270_000_744,
    273_000_352,
    277_001_386,
    278_002_052,
    281_000_894,
    283_000_416,
    283_001_636,
    283_000_058,
    283_021_904,
    283_025_852,
    283_042_940,
    283_044_251,
    283_049_144,
    286_051_040,
    286_009_500,
    290_050_140,
    290_058_488,
    286_000_874,
    290_021_928,
    300_006_366,
    300_011_293,
    300_147_456,
    300_156_554,
    310_003_202,
    310_003_226,
    310_024_230,
    300_148_082,
    300_148_732,
    300_161_545,
    310_060_156,
    300_200_936,
];

/// Such seeds among absences: a mark at which no unit could end any more, after the disk was lost that it was made for. In 842 a
/// start took for a base what a version that had left was merged to. In the last one a version left for one of two that had
/// written over it, and the other reached a member that had neither.
const FOUND_BY_ABSENCES: [u64; 5] = [842, 915, 33_558, 41_242, 6_001_506];

/// Such seeds among schedules of many lost disks. What only a copy of a disk had settled of a forgotten birth was not told; what
/// it had settled of several makers was not written again. In the next two the oracle was wrong: two members wrote the same
/// again, and one began with what a copy had. In the next three a floor forbade for ever what had been founded again, or
/// given by a copy in doubt. In the next one a first mend left what stands on a copy's writes to members that had lost it. In the last
/// one the oracle was wrong: all who knew that a member was added had lost their disks.
const FOUND_LOSSY: [u64; 9] =
    [4_000_092, 6_001_567, 6_003_726, 6_000_760, 6_000_326, 6_001_542, 7_007_418, 302_010_133, 303_031_632];

/// Such seeds among schedules with few sweeps. The first three found faults that were planted: nothing says what is known of bases,
/// or what has left, and a start that does not see what had settled. Then what left had told a start what a key was
/// after a step, though that is no base. In the next two a start took out what had come alone and then with what stands for it. In the
/// next ones a first mend of that kept what stood on an entry that it took out. In the last one two copies told each other theirs.
const FOUND_UNSWEPT: [u64; 9] = [
    320_000_046,
    320_000_986,
    320_003_902,
    320_008_982,
    320_009_389,
    320_038_392,
    320_040_349,
    320_041_871,
    320_013_882,
];

/// Such seeds among schedules of copies: a copy gave something under its name to who had not had it, and it had left elsewhere, where
/// later ones stood for it; or two copies told each other theirs. The last finds a planted fault, that who begins from a copy is sure
/// of what that wrote in doubt.
const FOUND_COPIES: [u64; 6] = [94, 218, 629, 805, 1452, 2883];

/// Such seeds with members that come and go. Two in doubt met each other, and the third was removed; they went on to doubt. In two
/// a copy gave something under its name to who had been away when the third was added. In the last one doubt ended too early: who was
/// met had begun anew since.
const FOUND_WITH_MEMBERS: [u64; 4] = [2_924, 40_560, 41_566, 43_925];

#[test]
fn seeds_that_found_a_fault_find_it_no_more() {
    for seed in FOUND {
        sweep(seed, 1, plan);
    }
    for seed in FOUND_HOT {
        sweep(seed, 1, hot_plan);
    }
    for seed in FOUND_BY_RULES {
        sweep(seed, 1, rules_plan);
    }
    for seed in FOUND_BY_ABSENCES {
        sweep(seed, 1, absences::plan);
    }
    for seed in FOUND_LOSSY {
        sweep(seed, 1, lossy_plan);
    }
    for seed in FOUND_UNSWEPT {
        sweep(seed, 1, unswept::plan);
    }
    for seed in FOUND_COPIES {
        sweep(seed, 1, copies::plan);
    }
    for seed in FOUND_WITH_MEMBERS {
        sweep(seed, 1, copies::plan_with_members);
    }
}
