//! A month of absences: several members away at several points, alone and in a group whose members talk to each other, while
//! all that can write does. What every replica holds is counted all along, against a bound that follows from the schedule:
//! from the keys that are alive, from who writes them, and from the points at which somebody stopped listening. How
//! often they are written, and for how long, is not in it.
//!
//! `EDDY_AWAY_WRITES` says how many writes (100,000 otherwise).

use std::collections::BTreeMap;

use eddy_crdt::{Command, Input, Keyspace, Op, Txn};

use crate::support::build::{delete_op, id, put_op};
use crate::support::seeds::env;
use crate::support::world::World;

/// Opaque keys, which all groups write; and objects of Kubernetes, of which each has one group that writes it.
const KEYS: usize = 12;
const OBJECTS: usize = 6;
const LABELS: usize = 3;
/// How many writes there are between two looks at the peers, and how many milliseconds that takes.
const BURST: usize = 20;
const BURST_MS: u64 = 60;
/// What passes between two bursts, milliseconds.
const PAUSE_MS: u64 = 300_000;
/// How many members there are. The first two are at home and never part; the last two are a group of their own; the one in
/// the middle is away alone.
const MEMBERS: usize = 5;
/// How often the links change.
const PHASES: usize = 12;

/// Who writes what, and what is known of it from the schedule.
struct Month {
    world: World,
    /// How often somebody stopped listening to somebody.
    points: usize,
    written: usize,
    /// The last value of each label of each object.
    labels: BTreeMap<(usize, usize), usize>,
    /// The most that one replica held: versions, entries in its log, bytes in its journal.
    most: [usize; 3],
}

impl Month {
    fn connect(&mut self, pairs: &[(usize, usize)]) {
        for (a, b) in pairs {
            self.world.connect(*a, *b);
        }
        self.world.pass(3_000);
    }

    fn part(&mut self, pairs: &[(usize, usize)]) {
        for (a, b) in pairs {
            self.world.part(*a, *b);
            self.points += 2;
        }
    }

    /// One write: of an opaque key or of two in one transaction, of a label of an object, or of a key that is deleted and
    /// made again.
    fn write(&mut self) {
        self.written += 1;
        let n = self.written;
        let node = [0, 1, 0, 1, 3, 4, 2][n % 7];
        let key = n / 7 % KEYS;
        match n % 5 {
            0 => self.world.put(node, &format!("k{key}"), format!("{n}")),
            1 => {
                let keys = [format!("k{key}"), format!("k{}", (key + n / 5) % KEYS)];
                let success = keys.iter().take(1 + usize::from(keys[0] != keys[1]));
                let success = success.map(|key| Op::Put(put_op(key, format!("{n}"), None))).collect();
                let effects = self.world.handle(node, Input::Client(Command::Txn(Txn { success, ..Txn::default() })));
                assert!(effects.reply.is_some_and(|reply| reply.is_ok()));
            }
            2 if n.is_multiple_of(503) => {
                let gone = Command::Delete(delete_op(&format!("d{key}")));
                self.world.handle(node, Input::Client(gone));
            }
            2 => self.world.put(node, &format!("d{key}"), format!("{n}")),
            _ => {
                // Of each group one member writes an object; the home writes most.
                let object = key % OBJECTS;
                let node = [0, 0, 1, 1, 2, 3][object];
                self.labels.insert((object, n / 3 % LABELS), n);
                let of_object = self.labels.range((object, 0)..(object + 1, 0));
                let labels: Vec<String> = of_object.map(|((_, label), n)| format!(r#""l{label}":"{n}""#)).collect();
                let value = format!(
                    r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{object}","labels":{{{}}}}}}}"#,
                    labels.join(",")
                );
                self.world.put(node, &format!("/registry/minions/{object}"), value);
            }
        }
    }

    /// What any replica may hold, by the schedule: of each key what each of the three groups wrote last, and what each of
    /// its two writers wrote before each point. Twice that, because it is looked only when there is as much again.
    fn versions_max(&self) -> usize {
        let (groups, writers, keys) = (3, 2, 2 * KEYS + OBJECTS);
        2 * keys * (groups + writers * self.points).max(groups * 2 * LABELS)
    }

    fn check(&mut self) {
        let bound = self.versions_max();
        for (node, of) in self.world.nodes.iter().enumerate() {
            let windows = of.replica.windows().expect("it has peers");
            let client = windows.iter().filter(|(keyspace, ..)| *keyspace == Keyspace::Client);
            let versions: usize = client.map(|(_, _, open)| open.window.versions().len()).sum();
            let log = of.replica.log_len();
            let head = of.disk.durable.head.as_ref().map_or(0, |head| head.len());
            let bytes = of.disk.durable.records.values().map(|record| record.len()).sum::<usize>() + head;
            for (most, now) in self.most.iter_mut().zip([versions, log, bytes]) {
                *most = (*most).max(now);
            }
            let at = format!("replica {node} after {} writes, {} points", self.written, self.points);
            assert!(versions <= bound, "{versions} versions, at most {bound}: {at}");
            assert!(log <= bound, "{log} entries, versions at most {bound}: {at}");
            assert!(bytes <= bound * 300, "{bytes} bytes, versions at most {bound}: {at}");
        }
    }

    /// What clients can see of the past goes, as with auto-compaction, and what nobody needs leaves the disk.
    fn tidy(&mut self) {
        for node in 0..MEMBERS {
            let now = self.world.nodes[node].replica.revision().get();
            self.world.handle(node, Input::Client(Command::Compact(now)));
            for _ in 0..3 {
                self.world.nodes[node].tidy(usize::MAX, usize::MAX);
            }
        }
    }

    fn writes(&mut self, count: usize) {
        for burst in 0..count.div_ceil(BURST) {
            (0..BURST).for_each(|_| self.write());
            self.world.pass(BURST_MS);
            if burst % 10 == 9 {
                self.world.pass(1_000);
                self.tidy();
                self.world.ms += 10 * PAUSE_MS;
                self.world.pass(200);
                self.check();
            }
        }
    }
}

#[test]
fn what_is_held_beside_those_who_are_away_follows_from_the_schedule_and_not_from_how_much_is_written() {
    let count = env("EDDY_AWAY_WRITES", 100_000) as usize;
    let world = World::wired(MEMBERS);
    let mut month = Month { world, points: 0, written: 0, labels: BTreeMap::new(), most: [0; 3] };
    let begun = std::time::Instant::now();
    month.connect(&[(0, 1), (3, 4)]);
    for phase in 0..PHASES {
        // One after the other is told how far things are, and stops listening again: at different points.
        let told: &[(usize, usize)] = match phase % 4 {
            0 => &[(0, 2)],
            1 => &[(1, 3)],
            2 => &[(2, 4)],
            _ => &[],
        };
        month.connect(told);
        month.writes(200);
        month.part(told);
        month.writes(count / PHASES - 200);
    }
    println!(
        "{} writes in {} virtual hours, {} points: at most {} versions, {} entries and {} bytes of journal at one replica; {:?}",
        month.written,
        month.world.ms / 3_600_000,
        month.points,
        month.most[0],
        month.most[1],
        month.most[2],
        begun.elapsed()
    );
    assert!(month.world.ms > count as u64 * 7_200, "{} hours", month.world.ms / 3_600_000);
    assert!(month.world.nodes.iter().all(|node| node.replica.members().any(|member| member.id == id(2))));
    let before: Vec<i64> = month.world.nodes.iter().map(|node| node.replica.revision().get()).collect();
    month.connect(&[(0, 2), (1, 3), (2, 4)]);
    month.world.converge();
    month.world.pass(5_000);
    month.world.check_equal().unwrap_or_else(|error| panic!("{error}"));
    for (node, before) in month.world.nodes.iter().zip(before) {
        let steps = node.replica.revision().get() - before;
        assert!(steps <= 60, "{steps} revisions to come back");
        for ((object, label), n) in &month.labels {
            let key = format!("/registry/minions/{object}");
            let value = String::from_utf8_lossy(&node.kv(&key).expect("it is there").value).into_owned();
            assert!(value.contains(&format!(r#""l{label}":"{n}""#)), "label {label} of {key} is not {n}: {value}");
        }
    }
}
