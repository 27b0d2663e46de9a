//! The windows of all keys that have unsettled versions, and which records of the journal they rest on.
//!
//! The versions of a window stand in the order in which they were applied here. What settles is always a leading part
//! of that order: whatever came later descends from it. So the base of a window is what the key was here just after the
//! last settled version. A restart finds it in the journal and merges nothing. Of versions that came together, as one
//! step, only the last says what the key was after it; so they settle together.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use smallvec::SmallVec;

use crate::entry::Below;
use crate::merge::book::RuleBook;
use crate::merge::version::Version;
use crate::merge::window::{Settled, Window};
use crate::store::state::Recorded;
use crate::words::id::Dot;
use crate::words::key::{Key, Keyspace};
use crate::words::vector::VersionVector;

/// A key's window with the records that hold what it rests on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyWindow {
    /// The versions.
    pub window: Window,
    /// Journal number of the record that holds the base; `None` when the key is not there in the base.
    pub base_number: Option<u64>,
    /// How many stayed when it was looked last for those that may leave.
    pub stayed: usize,
    /// The same for what the key was after each of the versions at which a step ended, in their order.
    numbers: SmallVec<[(Dot, Option<u64>); 1]>,
}

impl KeyWindow {
    /// Whether it is noted what the key was after that version.
    pub(crate) fn is_noted(&self, dot: Dot) -> bool {
        self.numbers.iter().any(|(noted, _)| *noted == dot)
    }

    /// Whether something of it can settle.
    pub(crate) fn may_settle(&self, floor: &VersionVector) -> bool {
        self.window.is_under(floor) || self.window.may_settle(floor, |dot| self.is_noted(dot))
    }

    /// Settles what can be settled by `settle`, which is given what may end it. Tells how much that was, and the record
    /// that holds the base then.
    fn settle_to(
        &mut self,
        settle: impl FnOnce(&mut Window, &dyn Fn(Dot) -> bool) -> Settled,
    ) -> (Option<u64>, Settled) {
        let Self { window, numbers, .. } = self;
        let settled = settle(window, &|dot| numbers.iter().any(|(noted, _)| *noted == dot));
        let last = settled.dots.last().and_then(|last| numbers.iter().position(|(noted, _)| noted == last));
        let number = last.and_then(|last| numbers.drain(..=last).next_back()).and_then(|(_, number)| number);
        (number, settled)
    }
}

/// All windows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Windows {
    client: BTreeMap<Key, KeyWindow>,
    system: BTreeMap<Key, KeyWindow>,
    /// How many windows have their base in that record.
    bases: BTreeMap<u64, u32>,
}

impl Windows {
    fn of(&self, keyspace: Keyspace) -> &BTreeMap<Key, KeyWindow> {
        match keyspace {
            Keyspace::Client => &self.client,
            Keyspace::System => &self.system,
        }
    }

    fn of_mut(&mut self, keyspace: Keyspace) -> &mut BTreeMap<Key, KeyWindow> {
        match keyspace {
            Keyspace::Client => &mut self.client,
            Keyspace::System => &mut self.system,
        }
    }

    /// How many keys have unsettled versions.
    pub fn len(&self) -> usize {
        self.client.len() + self.system.len()
    }

    /// Whether everything is settled.
    pub fn is_empty(&self) -> bool {
        self.client.is_empty() && self.system.is_empty()
    }

    /// A key's window.
    pub fn get(&self, keyspace: Keyspace, key: &[u8]) -> Option<&KeyWindow> {
        self.of(keyspace).get(key)
    }

    /// All windows, client keys first, keys in order.
    pub fn iter(&self) -> impl Iterator<Item = (Keyspace, &Key, &KeyWindow)> {
        let client = self.client.iter().map(|(key, window)| (Keyspace::Client, key, window));
        client.chain(self.system.iter().map(|(key, window)| (Keyspace::System, key, window)))
    }

    /// The keys behind one (`None`: all) that have a window, in order.
    pub fn keys_behind<'a>(
        &'a self,
        keyspace: Keyspace,
        after: Option<&Key>,
    ) -> impl Iterator<Item = &'a Key> + use<'a> {
        let behind = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        self.of(keyspace).range((behind, Bound::Unbounded)).map(|(key, _)| key)
    }

    /// A key's window, opened when there is none yet; `base` tells what the key is then.
    fn opened(&mut self, keyspace: Keyspace, key: &Key, base: impl FnOnce() -> Option<Recorded>) -> &mut KeyWindow {
        let Self { client, system, bases } = self;
        let windows = match keyspace {
            Keyspace::Client => client,
            Keyspace::System => system,
        };
        // One look-up for both: this is on the path of each remote entry.
        windows.entry(key.clone()).or_insert_with(|| {
            let base = base();
            let base_number = base.as_ref().map(|base| base.number);
            rest_on(bases, base_number);
            let window = Window::new(base.map(|base| base.live));
            KeyWindow { window, base_number, stayed: 0, numbers: SmallVec::new() }
        })
    }

    /// Makes sure that there is a window; `base` tells what the key is when there is none yet.
    pub fn open(&mut self, keyspace: Keyspace, key: &Key, base: impl FnOnce() -> Option<Recorded>) {
        self.opened(keyspace, key, base);
    }

    /// Adds a version to an open window, and notes in which record stands what the key is after it.
    pub fn add_noted(&mut self, keyspace: Keyspace, key: &[u8], version: Version, number: Option<u64>) {
        let Some(open) = self.of_mut(keyspace).get_mut(key) else { return };
        open.numbers.push((version.dot, number));
        open.window.add(version);
    }

    /// Adds a version. Where there is no window yet, what the key is now is its base.
    pub fn add_or_open(
        &mut self,
        keyspace: Keyspace,
        key: &Key,
        version: Version,
        base: impl FnOnce() -> Option<Recorded>,
    ) {
        self.opened(keyspace, key, base).window.add(version);
    }

    /// Notes in which record stands what the key is after the newest version; `None` when it is not there.
    pub fn note(&mut self, keyspace: Keyspace, key: &[u8], number: Option<u64>) {
        let Some(open) = self.of_mut(keyspace).get_mut(key) else { return };
        if let Some(newest) = open.window.versions().last() {
            open.numbers.push((newest.dot, number));
        }
    }

    /// The same where that is not noted yet.
    pub fn note_unless_noted(&mut self, keyspace: Keyspace, key: &[u8], number: Option<u64>) {
        let Some(open) = self.get(keyspace, key) else { return };
        let newest = open.window.versions().last().map(|newest| newest.dot);
        if open.numbers.last().map(|(noted, _)| *noted) != newest {
            self.note(keyspace, key, number);
        }
    }

    /// Settles one window. Returns the record that it no longer rests on, if any, and whether versions under the floor
    /// are left in it.
    pub fn settle(
        &mut self,
        keyspace: Keyspace,
        key: &Key,
        floor: &VersionVector,
        book: &RuleBook,
    ) -> (Option<u64>, bool) {
        if let Some(released) = self.close_under(keyspace, key, floor) {
            return (released, false);
        }
        let Some(open) = self.of_mut(keyspace).get_mut(key) else { return (None, false) };
        let old = open.base_number;
        let (new, settled) = open.settle_to(|window, may_end| window.settle(floor, book, keyspace, key, may_end));
        let lingers = open.window.versions().iter().any(|version| floor.contains(version.dot));
        if settled.dots.is_empty() {
            return (None, lingers);
        }
        open.base_number = new;
        rest_on(&mut self.bases, new);
        (self.release(old), lingers)
    }

    /// The same at start-up: `base` tells from the journal what the key was after that number of versions, on which those that
    /// are kept stand.
    pub fn settle_known(
        &mut self,
        keyspace: Keyspace,
        key: &Key,
        floor: &VersionVector,
        base: impl FnOnce(usize, &[Version]) -> Option<Recorded>,
    ) {
        if self.close_under(keyspace, key, floor).is_some() {
            return;
        }
        let Some(open) = self.of_mut(keyspace).get_mut(key) else { return };
        let (old, mut new) = (open.base_number, None);
        open.settle_to(|window, may_end| {
            let base = |count, kept: &[Version]| {
                let base = base(count, kept)?;
                new = Some(base.number);
                Some(base.live)
            };
            window.settle_known(floor, base, may_end)
        });
        open.base_number = new;
        rest_on(&mut self.bases, new);
        self.release(old);
    }

    /// Closes a window of which all lies under the floor. Tells the record that it no longer rests on.
    fn close_under(&mut self, keyspace: Keyspace, key: &Key, floor: &VersionVector) -> Option<Option<u64>> {
        let Entry::Occupied(open) = self.of_mut(keyspace).entry(key.clone()) else { return None };
        if !open.get().window.is_under(floor) {
            return None;
        }
        // What the key is stays. Nothing stands on a base any more, so none is worked out, which may take a merge.
        let old = open.remove().base_number;
        Some(self.release(old))
    }

    fn release(&mut self, number: Option<u64>) -> Option<u64> {
        let number = number?;
        let count = self.bases.get_mut(&number)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.bases.remove(&number);
        Some(number)
    }

    /// Takes out versions of a key that are needless together; dots that it does not have are passed over.
    ///
    /// What the key was shown as after some versions is [no base](no_bases) from now on. Nor is what it was after a step of
    /// which the last version left: those before it do not tell. Tells what is to be noted of that for the next start.
    pub fn take_out(&mut self, keyspace: Keyspace, key: &[u8], needless: &[Dot]) -> Vec<(Dot, Around)> {
        let Some(open) = self.of_mut(keyspace).get_mut(key).filter(|_| !needless.is_empty()) else { return vec![] };
        let gone: BTreeSet<Dot> = needless.iter().copied().collect();
        let all = open.window.versions().to_vec();
        let untold = untold(open, &gone);
        open.window.take_out(needless);
        let alone: BTreeSet<Dot> = open.window.alone().collect();
        let no_bases = no_bases(&all, &gone, &alone);
        let mut noted: Vec<(Dot, Around)> = untold.into_iter().map(|dot| (dot, Around::NoBaseAfter)).collect();
        let unfit = open.numbers.iter().map(|(noted, _)| *noted).filter(|noted| no_bases.contains(noted));
        noted.extend(unfit.map(|dot| (dot, Around::NoBaseAfter)));
        open.numbers.retain(|(noted, _)| !gone.contains(noted) && !no_bases.contains(noted));
        noted.extend(below(&all, &gone, &alone, open));
        noted
    }

    /// Forgets what a key was after some versions: it is no base.
    pub fn forget_notes(&mut self, keyspace: Keyspace, key: &[u8], dots: &BTreeSet<Dot>) {
        if let Some(open) = self.of_mut(keyspace).get_mut(key) {
            open.numbers.retain(|(dot, _)| !dots.contains(dot));
        }
    }

    /// Notes that a key was looked at for what may leave.
    pub fn note_stayed(&mut self, keyspace: Keyspace, key: &[u8]) {
        if let Some(open) = self.of_mut(keyspace).get_mut(key) {
            open.stayed = open.window.versions().len();
        }
    }

    /// The windows of system keys.
    pub fn system(&self) -> impl Iterator<Item = (&Key, &KeyWindow)> {
        self.system.iter()
    }

    /// Whether a window has its base in that record.
    pub fn rests_on(&self, number: u64) -> bool {
        self.bases.contains_key(&number)
    }

    /// Whether that version of the key is unsettled.
    pub fn holds(&self, keyspace: Keyspace, key: &[u8], dot: Dot) -> bool {
        self.get(keyspace, key).is_some_and(|open| open.window.versions().iter().any(|version| version.dot == dot))
    }
}

/// What is to be noted of the bases of a key around one of its versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Around {
    /// What it was shown as then is no base.
    NoBaseAfter,
    /// What lies below the version.
    Below(Below),
    /// The same, where something else was noted before. A version that is alone in its segment hides what lies below it.
    BelowNow(Below),
}

/// After which versions of a window the key is no base, for the sake of what left. What it was shown as then holds what left, and a
/// merge of what is there now does not. It is a base again from the next version on that is `alone` in its segment, and that
/// stands on all that left before it: what was shown then is what that version says. What is shown now, after the last one, is not
/// changed by what leaves. `all` are the versions of before.
fn no_bases(all: &[Version], gone: &BTreeSet<Dot>, alone: &BTreeSet<Dot>) -> BTreeSet<Dot> {
    let (mut left, mut no_bases): (Vec<Dot>, _) = (vec![], BTreeSet::new());
    for version in all.iter().take(all.len().saturating_sub(1)) {
        if gone.contains(&version.dot) {
            left.push(version.dot);
            continue;
        }
        if alone.contains(&version.dot) {
            left.retain(|gone| !version.descends_from(*gone));
        }
        if !left.is_empty() {
            no_bases.insert(version.dot);
        }
    }
    no_bases
}

/// What lies below each version before which something left: what the key was after the one before that.
fn below(all: &[Version], gone: &BTreeSet<Dot>, alone: &BTreeSet<Dot>, open: &KeyWindow) -> Vec<(Dot, Around)> {
    let numbers: BTreeMap<Dot, Option<u64>> = open.numbers.iter().copied().collect();
    let (mut before, mut has_left, mut around) = (Below::Base(open.base_number), false, vec![]);
    for version in all {
        if gone.contains(&version.dot) {
            has_left = true;
            continue;
        }
        match before {
            _ if has_left && !alone.contains(&version.dot) => around.push((version.dot, Around::Below(before))),
            Below::Base(_) if !has_left => {}
            _ => around.push((version.dot, Around::BelowNow(before))),
        }
        before = numbers.get(&version.dot).map_or(Below::NoBase, |number| Below::Base(*number));
        has_left = false;
    }
    around
}

/// Which versions do not tell what the key was after their step, because what told it is gone, or what may have told it to a
/// start: what it was after one that is no base is noted no more.
fn untold(open: &KeyWindow, gone: &BTreeSet<Dot>) -> Vec<Dot> {
    let tells: BTreeSet<Dot> = open.numbers.iter().map(|(noted, _)| *noted).collect();
    let (mut before, mut untold): (Vec<Dot>, _) = (vec![], vec![]);
    for dot in open.window.versions().iter().map(|version| version.dot) {
        if gone.contains(&dot) {
            untold.append(&mut before);
        } else if tells.contains(&dot) {
            before.clear();
        } else {
            before.push(dot);
        }
    }
    untold
}

/// Notes that one more window has its base in that record.
fn rest_on(bases: &mut BTreeMap<u64, u32>, number: Option<u64>) {
    if let Some(number) = number {
        *bases.entry(number).or_default() += 1;
    }
}
