//! The oracle of what leaves: all versions that ever were, none of which leaves. What a replica shows of a key must be what
//! the versions mean together that it was given, whatever it has let go of them. So each run is compared, at every step,
//! with the same run in which nothing ever leaves and nothing settles.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use eddy_crdt::merge::{RuleBook, Rules, Version, Window};
use eddy_crdt::{Change, Dot, Key, Keyspace, LocalKeys, Logged, Origin, Replica, VersionVector};

use super::checks::Coverage;
use crate::support::checks::same;
use crate::support::shadow::Shadow;

/// All versions of all keys of clients.
#[derive(Default)]
pub struct History {
    /// Of each key, ancestors before descendants.
    keys: BTreeMap<Key, Vec<Version>>,
    /// Which keys each entry changed.
    entries: HashMap<Dot, Vec<Key>>,
    /// All rules that were ever in use, also those that replicas have forgotten, with the hosts that have used them.
    rules: BTreeMap<u32, (Rules, BTreeSet<usize>)>,
    /// The numbers of rules that some host has used that lost its disk since.
    lost: BTreeSet<u32>,
    book: RuleBook,
    /// How far each birth reached that is forgotten. What its maker wrote after that was lost with a disk: a vector covers it by
    /// the fence, and nobody has it.
    ended: HashMap<Origin, u64>,
    /// Whether a disk was replaced by an older copy of it.
    has_copies: bool,
    /// Whether a copy, or the last disk that had them, brought back rules that were lost everywhere else, under a number that others
    /// have got since. What versions mean is not told then; the members agree on one of the two, and that they become equal is
    /// checked all the same.
    is_ambiguous: bool,
}

impl History {
    /// An entry was made. Where its name was given before, that entry was lost in a crash, and nobody has heard of it.
    pub fn made(&mut self, logged: &Logged) {
        let head = &logged.entry.head;
        let dot = head.dot;
        for key in self.entries.remove(&dot).unwrap_or_default() {
            self.keys.entry(key).or_default().retain(|version| version.dot != dot);
        }
        let mut net: BTreeMap<&Key, &Change> = BTreeMap::new();
        net.extend(logged.entry.changes.iter().filter(|c| c.keyspace == Keyspace::Client).map(|c| (&c.key, c)));
        for (key, change) in &net {
            let version = Version::new(head, logged.deps.clone(), change);
            self.keys.entry((*key).clone()).or_default().push(version);
        }
        self.entries.insert(dot, net.into_keys().cloned().collect());
    }

    /// Notes what is new in a replica's log, if nobody else has it.
    pub fn note_new(&mut self, replica: &Replica) {
        let Some(log) = replica.log() else { return };
        for logged in log.iter() {
            if !self.entries.contains_key(&logged.entry.head.dot) {
                self.made(logged);
            }
        }
    }

    /// A replica went from one of these to the other. Where it forgot births, it had all that there is of them.
    pub fn note_forgotten(&mut self, before: &VersionVector, after: &VersionVector) {
        if after.fences().eq(before.fences()) {
            return;
        }
        let is_new = |origin: &Origin| after.has_forgotten(*origin) && !before.has_forgotten(*origin);
        for origin in self.entries.keys().map(|dot| dot.origin).filter(is_new) {
            self.ended.entry(origin).or_insert_with(|| before.get(origin));
        }
    }

    /// Whether what has this vector was given that version.
    fn has(&self, vector: &VersionVector, dot: Dot) -> bool {
        let is_lost = vector.has_forgotten(dot.origin) && self.ended.get(&dot.origin).is_some_and(|end| *end < dot.seq);
        vector.contains(dot) && !is_lost
    }

    /// Notes the rules that a host's replica uses. Those of one number are the same everywhere.
    pub fn note_rules(&mut self, host: usize, book: &RuleBook, coverage: &mut Coverage) -> Result<(), String> {
        let current = book.current().number;
        let mut is_new = self.book.current().number != current;
        for number in book.numbers().filter(|number| *number <= current) {
            let (known, hosts) = self.rules.entry(number).or_default();
            if hosts.is_empty() {
                self.lost.remove(&number);
                *known = book.of(number).clone();
                is_new = true;
            }
            if (self.has_copies || self.lost.contains(&number)) && book.of(number) != known {
                if !std::mem::replace(&mut self.is_ambiguous, true) {
                    coverage.count("rules that mean two things");
                }
                return Ok(());
            }
            same(book.of(number), known, format_args!("rules number {number}"))?;
            hosts.insert(host);
        }
        if is_new {
            let later = self.rules.values().skip(1).map(|(rules, _)| rules.clone()).collect();
            self.book = RuleBook::new(self.rules[&1].0.clone(), later, current);
        }
        Ok(())
    }

    /// A host's disk is lost. Rules that were in use nowhere else are lost with it, and others may get their number.
    pub fn lost_disk(&mut self, host: usize) {
        for (number, (_, hosts)) in &mut self.rules {
            if hosts.remove(&host) {
                self.lost.insert(*number);
            }
        }
    }

    /// An older copy takes the place of a host's disk.
    pub fn copied_disk(&mut self, host: usize) {
        self.has_copies = true;
        self.lost_disk(host);
    }

    /// What a replica was given between these two moments: the keys concerned are what all their versions mean.
    pub fn check(
        &self,
        before: &VersionVector,
        after: &VersionVector,
        shadow: &Shadow,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        let mut keys: Vec<&Key> = vec![];
        for newest in after.iter() {
            let seqs = before.get(newest.origin) + 1..=newest.seq;
            keys.extend(seqs.filter_map(|seq| self.entries.get(&Dot { seq, ..newest })).flatten());
        }
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().try_for_each(|key| self.check_key(key, after, shadow, coverage))
    }

    /// The same for all keys.
    pub fn check_all(&self, vector: &VersionVector, shadow: &Shadow, coverage: &mut Coverage) -> Result<(), String> {
        self.keys.keys().try_for_each(|key| self.check_key(key, vector, shadow, coverage))
    }

    fn check_key(
        &self,
        key: &Key,
        vector: &VersionVector,
        shadow: &Shadow,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        let is_told = !self.is_ambiguous && !LocalKeys::default().contains(key);
        let Some(versions) = self.keys.get(key).filter(|_| is_told) else { return Ok(()) };
        let mut window = Window::new(None);
        versions.iter().filter(|version| self.has(vector, version.dot)).for_each(|version| window.add(version.clone()));
        if !window.is_chain() {
            coverage.count("keys compared with all their versions");
        }
        let should = window.outcome(&self.book, Keyspace::Client, key).live;
        let should = should.map(|live| (live.value, live.version, live.lease));
        let shown = shadow.kvs.get(key).map(|kv| (kv.value.clone(), kv.version, kv.lease));
        same(&shown, &should, format_args!("{key:?} and what all its versions mean"))
    }
}
