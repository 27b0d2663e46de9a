//! How a cluster comes to merge by other rules.
//!
//! Rules are declared with the next number. When every member is known to have the declaration, they are taken into use,
//! and what a replica writes from then on says so. So a version whose writer merged by a number is met by nobody who does
//! not know the rules of that number. Nobody declares a number twice: once all have a declaration, all others of the same
//! number that were made apart from it are known as well, and the last writer has won. A declaration waits for the one
//! before it. So versions that are still to come lie at most one number below what is in use.
//!
//! Rules are forgotten by deleting their key. The member that deletes it has all entries that were merged by them. At each replica the delete
//! settles only when all of that is settled there; until then the key's window holds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::counter::{AtomicRule, CounterRule};
use crate::command::reply::{Refusal, Reply};
use crate::entry::{Change, ChangeKind, Entry, EntryHead, Past};
use crate::merge::book::RuleBook;
use crate::merge::rules::{FIRST, Rules, UnknownRules};
use crate::merge::windows::Windows;
use crate::replica::Replica;
use crate::replica::remote::unknown_rules;
use crate::replica::turn::Turn;
use crate::store::system::{System, SystemKey};
use crate::words::id::Dot;
use crate::words::key::{Key, Keyspace};

impl Replica {
    /// Reads the rules out of the system keys, and out of changes of such keys that are about to be applied.
    pub(crate) fn read_rules<'a>(
        &self,
        system: &System,
        to_come: impl Iterator<Item = (&'a EntryHead, &'a Change)>,
    ) -> Result<RuleBook, UnknownRules> {
        let (mut declared, mut current) = (BTreeMap::new(), FIRST);
        let mut is_up = |key: &Option<SystemKey>| {
            if let Some(SystemKey::RulesUp(number)) = key {
                current = current.max(*number);
            }
        };
        let mut ahead = BTreeMap::new();
        for (head, change) in to_come {
            let key = SystemKey::decode(&change.key);
            is_up(&key);
            if let (Some(SystemKey::Rules(number)), ChangeKind::Put { value, .. }) = (key, &change.kind) {
                let order = (head.stamp, head.dot);
                let last = ahead.entry(number).or_insert((order, value));
                *last = (*last).max((order, value));
            }
        }
        for (number, (_, value)) in ahead {
            declared.insert(number, Rules::decode(value, self.engine)?);
        }
        for (key, value) in system {
            let key = SystemKey::decode(key);
            is_up(&key);
            if let Some(SystemKey::Rules(number)) = key {
                declared.insert(number, Rules::decode(&value.value, self.engine)?);
            }
        }
        for (number, value) in self.rules_on_their_way_out() {
            if let std::collections::btree_map::Entry::Vacant(vacant) = declared.entry(number) {
                vacant.insert(Rules::decode(value, self.engine)?);
            }
        }
        let first = declared.remove(&FIRST).unwrap_or_default();
        let begin = declared.keys().next().copied().unwrap_or(FIRST + 1);
        let later = (begin..).map_while(|number| declared.remove(&number)).collect();
        Ok(RuleBook::new(first, later, current))
    }

    /// Rules that were forgotten, as long as not all that was merged by them is settled here.
    fn rules_on_their_way_out(&self) -> impl Iterator<Item = (u32, &Bytes)> {
        let open = self.windows().into_iter().flat_map(Windows::system);
        open.filter_map(|(key, open)| {
            let SystemKey::Rules(number) = SystemKey::decode(key)? else { return None };
            // Of two that were declared apart the last writer's counted, in whatever order they came here.
            let puts = open.window.versions().iter().filter_map(|version| Some((version, version.value()?)));
            let last = puts.max_by_key(|(version, _)| version.order()).map(|(_, value)| value);
            Some((number, last.or_else(|| open.window.base().map(|base| &base.value))?))
        })
    }

    /// Takes rules out of the book that were forgotten for good.
    pub(crate) fn drop_forgotten_rules(&mut self) {
        // While a snapshot is installed, more is known than has been applied.
        let Some(oldest) = self.rules.oldest_later().filter(|_| !self.membership.joining) else { return };
        let key = SystemKey::Rules(oldest).encode();
        if !self.state.system.contains_key(&key) && self.window(Keyspace::System, &key).is_none() {
            self.reread_rules();
        }
    }

    /// Reads the rules anew.
    pub(crate) fn reread_rules(&mut self) {
        if let Ok(read) = self.read_rules(&self.state.system, std::iter::empty())
            && read != *self.rules
        {
            self.rules = Arc::new(read);
        }
    }

    /// Brings the rules up to date, if the system key that was written is one of theirs.
    pub(crate) fn follow_rules(&mut self, key: &[u8]) {
        if !matches!(SystemKey::decode(key), Some(SystemKey::Rules(_) | SystemKey::RulesUp(_))) {
            return;
        }
        // Rules that this build does not know are refused before they are written.
        let Ok(read) = self.read_rules(&self.state.system, std::iter::empty()) else { return };
        // While a snapshot is installed, more is known than has been applied.
        if !self.rules.foresees(&read) {
            self.state.local = read.first().local_keys();
            self.rules = Arc::new(read);
        }
    }

    /// Reads the rules of entries that are about to be applied, in whatever order. Changes that `are_settled`, by their places, have
    /// done to the rules what they do: some of what they declared may be gone, and others that are there not be declared by these.
    ///
    /// # Errors
    /// When one of them declares rules that this build does not know, also where others of the same number have replaced these.
    pub(crate) fn foresee_rules(
        &mut self,
        entries: &[Entry],
        are_settled: impl Fn(Dot, u32) -> bool,
    ) -> Result<(), UnknownRules> {
        let mut changes = entries.iter().flat_map(|entry| &entry.changes);
        if let Some(error) = changes.find_map(|change| unknown_rules(change, self.engine)) {
            return Err(error);
        }
        let are_settled = &are_settled;
        let to_come = entries.iter().flat_map(|Entry { head, changes }| {
            let of_system = changes.iter().zip(0..).filter(|(change, _)| change.keyspace == Keyspace::System);
            let open = of_system.filter(move |(_, place)| !are_settled(head.dot, *place));
            open.map(move |(change, _)| (head, change))
        });
        self.rules = Arc::new(self.read_rules(&self.state.system, to_come)?);
        Ok(())
    }

    /// The lowest rules number that an entry which is not known here may have.
    pub(crate) fn lowest_to_come(&self) -> u32 {
        let current = self.rules.current().number;
        let up = SystemKey::RulesUp(current).encode();
        let is_known_to_all = self.window(Keyspace::System, &up).is_none();
        if is_known_to_all { current } else { current.saturating_sub(1).max(FIRST) }
    }

    /// Declares which fields are counters from now on, and which are one value.
    pub(crate) fn declare(
        &mut self,
        turn: &mut Turn,
        mut counters: Vec<CounterRule>,
        mut atomic: Vec<AtomicRule>,
    ) -> Result<Reply, Refusal> {
        counters.sort_unstable();
        atomic.sort_unstable();
        let current = self.rules.current();
        if self.rules.declared().is_some() {
            return Err(Refusal::RulesMoving);
        }
        let rules = Rules { counters, atomic, ..current.clone() };
        if !rules.is_declared_like(current) {
            self.declare_next(turn, rules);
        }
        self.advance(turn);
        Ok(Reply::Rules { number: self.rules.newest().number })
    }

    /// Forgets rules below those in use once no version that is still to come has their number. They stay in the book of each
    /// replica until what was merged by them is settled there: the delete does not settle before (`Replication::floor_of_rules`).
    /// All of that is known here, and the delete depends on it.
    fn forget_rules(&mut self, turn: &mut Turn) {
        let current = self.rules.current().number;
        let (from, to) = (SystemKey::Rules(FIRST + 1).encode(), SystemKey::Rules(current).encode());
        if from >= to {
            return;
        }
        let number = |key: &Key| match SystemKey::decode(key) {
            Some(SystemKey::Rules(number)) => Some(number),
            _ => None,
        };
        let old: Vec<u32> = self.state.system.range(from..to).filter_map(|(key, _)| number(key)).collect();
        if old.is_empty() || self.lowest_to_come() < current {
            return;
        }
        self.transact(turn, |transaction| {
            for number in old {
                transaction.remove_system(SystemKey::Rules(number), ChangeKind::Delete);
                transaction.remove_system(SystemKey::RulesUp(number), ChangeKind::Delete);
            }
        });
        self.reread_rules();
    }

    fn declare_next(&mut self, turn: &mut Turn, rules: Rules) {
        let number = self.rules.current().number + 1;
        let value = Rules { number, ..rules }.encode();
        self.write_rules(turn, SystemKey::Rules(number), value);
    }

    fn write_rules(&mut self, turn: &mut Turn, key: SystemKey, value: Bytes) {
        let written = key.encode();
        self.transact(turn, |transaction| transaction.write_system(key, value));
        self.follow_rules(&written);
    }

    /// Whether it is this member that does that. What it writes in doubt may be lost, unless nobody else could know better.
    fn moves_rules(&self) -> bool {
        let mut present = self.membership.members.iter().filter(|member| !member.removed);
        let is_first = present.next().is_some_and(|first| first.id == self.identity.replica);
        is_first && (self.membership.past != Past::Doubtful || present.next().is_none())
    }

    /// Declares rules with a newer engine when all members have it, and with the schemas of custom resources that all have. Takes
    /// declared ones into use when all members have them. One member does this, so that it is done once.
    pub(crate) fn move_rules(&mut self, turn: &mut Turn) {
        if self.membership.joining || !self.moves_rules() {
            return;
        }
        loop {
            self.forget_rules(turn);
            let current = self.rules.current().clone();
            if self.rules.declared().is_none() {
                let all_have = self.membership.members.engine_of_all();
                let newer = all_have.filter(|engine| (current.engine + 1..=self.engine).contains(engine));
                let custom = self.schemas.wanted(&current);
                if newer.is_none() && custom.is_none() {
                    return;
                }
                let engine = newer.unwrap_or(current.engine);
                let custom = custom.unwrap_or_else(|| current.custom.clone());
                self.declare_next(turn, Rules { engine, custom, ..current });
            }
            let Some(number) = self.rules.declared().map(|rules| rules.number) else { return };
            if self.window(Keyspace::System, &SystemKey::Rules(number).encode()).is_some() {
                return;
            }
            self.write_rules(turn, SystemKey::RulesUp(number), Bytes::new());
            if self.rules.current().number != number {
                return;
            }
        }
    }
}
