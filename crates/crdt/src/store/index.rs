//! Every client key with its versions: the multi-version store in memory.
//!
//! Versions of a key stand in the order of their revisions. A deleted key ends in a tombstone (a version without value)
//! until a compaction above it. Absent, deleted and empty are three different things here.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::command::op::KeyValue;
use crate::store::past::{Held, Lately, Past, PastPlace, PastValues};
use crate::words::id::LeaseId;
use crate::words::key::{Key, KeyRange};
use crate::words::revision::Revision;
use crate::words::value::Incarnation;

/// What one revision made of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyVersion {
    /// The revision.
    pub revision: Revision,
    /// The position within the revision's transaction, counted from 0; orders what one transaction did.
    pub sub: u32,
    /// Journal number of the record that holds it.
    pub number: u64,
    /// The incarnation this version belongs to (of a tombstone: the one it ended).
    pub incarnation: Incarnation,
    /// What the key holds; `None` for a tombstone.
    pub content: Option<Content>,
}

/// What a key that is there holds, as its replica shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// The value.
    pub value: Held,
    /// When this incarnation of the key began.
    pub create_revision: Revision,
    /// How often the key was written in this incarnation, counted from 1.
    pub version: i64,
    /// The lease the key hangs on.
    pub lease: Option<LeaseId>,
}

impl KeyVersion {
    /// Whether the key is there.
    pub fn is_live(&self) -> bool {
        self.content.is_some()
    }

    /// The value of its content, unless `past` lacks it.
    pub fn value<'a>(&self, content: &'a Content, past: Past<'a>) -> Option<&'a Bytes> {
        match content.value {
            Held::Here(ref value) => Some(value),
            Held::Stored { len, crc } => past.want(self.place(len, crc)),
        }
    }

    /// Where a value of this length and CRC is in the journal.
    pub fn place(&self, len: u32, crc: u32) -> PastPlace {
        PastPlace { number: self.number, sub: self.sub, len, crc }
    }

    /// The version as clients see it; `None` for a tombstone. A value that `past` lacks is empty, and noted there.
    pub fn to_key_value(&self, key: &Key, past: Past<'_>) -> Option<KeyValue> {
        let content = self.content.as_ref()?;
        Some(KeyValue {
            key: key.clone(),
            value: self.value(content, past).cloned().unwrap_or_default(),
            create_revision: content.create_revision,
            mod_revision: self.revision,
            version: content.version,
            lease: content.lease,
        })
    }
}

/// The versions of one key, oldest first; never empty. Most keys have one.
type Versions = SmallVec<[KeyVersion; 1]>;

/// All client keys.
#[derive(Debug, Default)]
pub struct Index {
    keys: BTreeMap<Key, Versions>,
    lately: Lately,
    live: usize,
    versions: u64,
}

/// The version that is visible at a revision, whether put or tombstone.
pub fn newest_at(versions: &[KeyVersion], at: Revision) -> Option<&KeyVersion> {
    // Nearly every read wants the newest one.
    match versions.last() {
        Some(last) if last.revision <= at => Some(last),
        _ => versions[..versions.partition_point(|v| v.revision <= at)].last(),
    }
}

/// Adds the newest version. The value that it replaces is one of the past.
fn push(versions: &mut Versions, version: KeyVersion, lately: &mut Lately) {
    let place = |version: &KeyVersion| (version.revision, version.sub);
    debug_assert!(versions.last().is_none_or(|newest| place(newest) < place(&version)));
    if !lately.stay
        && let Some(replaced) = versions.last_mut()
        && let Some(content) = &mut replaced.content
        && let Some(value) = content.value.take_out()
        && let Held::Stored { len, crc } = content.value
    {
        lately.keep(version.revision, replaced.place(len, crc), value);
    }
    versions.push(version);
}

/// What an event at that revision says was there before: the newest version that an earlier revision made.
pub fn shown_before(versions: &[KeyVersion], revision: Revision) -> Option<&KeyVersion> {
    match versions.last() {
        Some(newest) if newest.revision == revision => newest_at(versions, revision.prev()),
        newest => newest,
    }
}

impl Index {
    /// The key's value at that revision, unless absent or deleted then.
    pub fn get(&self, key: &[u8], at: Revision) -> Option<&KeyVersion> {
        newest_at(self.keys.get(key)?, at).filter(|version| version.is_live())
    }

    /// The key's newest version, put or tombstone, with the key as it is stored.
    pub fn newest(&self, key: &[u8]) -> Option<(&Key, &KeyVersion)> {
        let (key, versions) = self.keys.get_key_value(key)?;
        Some((key, versions.last()?))
    }

    /// The version of that exact place in history, and the one that was visible at the revision before it.
    pub fn at(&self, key: &[u8], revision: Revision, sub: u32) -> Option<(Option<&KeyVersion>, &KeyVersion)> {
        let versions = self.keys.get(key)?;
        let place = versions.binary_search_by_key(&(revision, sub), |v| (v.revision, v.sub)).ok()?;
        Some((newest_at(&versions[..place], revision.prev()), &versions[place]))
    }

    /// Keys of the range that have a value at that revision, in order.
    pub fn range<'a>(
        &'a self,
        range: &KeyRange,
        at: Revision,
    ) -> impl Iterator<Item = (&'a Key, &'a KeyVersion)> + use<'a> {
        self.look(range, None, at).filter_map(|(key, version)| Some((key, version?)))
    }

    /// Keys of the range, in order, those behind one of them (`None`: all), with the value that each had at that revision.
    pub fn look<'a>(
        &'a self,
        range: &KeyRange,
        behind: Option<&Key>,
        at: Revision,
    ) -> impl Iterator<Item = (&'a Key, Option<&'a KeyVersion>)> + use<'a> {
        // BTreeMap panics when the bounds are the wrong way round; clients may send them so.
        let (from, to) = (
            behind.map_or(Bound::Included(&range.start()[..]), |behind| Bound::Excluded(&behind[..])),
            match range {
                KeyRange::Key(key) => Bound::Included(&key[..]),
                KeyRange::Span(_, to) => Bound::Excluded(&to[..]),
                KeyRange::From(_) => Bound::Unbounded,
            },
        );
        let empty = match range {
            KeyRange::Key(key) => behind.is_some_and(|behind| behind >= key),
            KeyRange::Span(from, to) => behind.unwrap_or(from) >= to,
            KeyRange::From(_) => false,
        };
        let keys = (!empty).then(|| self.keys.range::<[u8], _>((from, to))).into_iter().flatten();
        keys.map(move |(key, versions)| (key, newest_at(versions, at).filter(|version| version.is_live())))
    }

    /// Every version of every key, keys in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &[KeyVersion])> {
        self.keys.iter().map(|(key, versions)| (key, &versions[..]))
    }

    /// The keys behind one (`None`: all), put or tombstone, in order.
    pub fn keys_behind<'a>(&'a self, after: Option<&Key>) -> impl Iterator<Item = &'a Key> + use<'a> {
        self.iter_from(after.map_or(Bound::Unbounded, Bound::Excluded)).map(|(key, _)| key)
    }

    /// The keys from a place on with every version, in order.
    pub fn iter_from<'a>(&'a self, from: Bound<&Key>) -> impl Iterator<Item = (&'a Key, &'a [KeyVersion])> + use<'a> {
        self.keys.range((from.cloned(), Bound::Unbounded)).map(|(key, versions)| (key, &versions[..]))
    }

    /// How many keys have a value now.
    pub fn live(&self) -> usize {
        self.live
    }

    /// How many versions there are, tombstones included.
    pub fn versions(&self) -> u64 {
        self.versions
    }

    /// Adds a version, in one look-up. `make` is given the key as it is stored and its versions so far. The version
    /// that it makes must be newer than all of these.
    pub fn write<T>(&mut self, key: &[u8], make: impl FnOnce(&Key, &[KeyVersion], &Lately) -> (KeyVersion, T)) -> T {
        // Copied: what came from a socket or the journal shares the memory of a whole frame.
        match self.keys.entry(Bytes::copy_from_slice(key)) {
            Entry::Occupied(mut entry) => {
                let (version, made) = make(entry.key(), entry.get(), &self.lately);
                self.live += usize::from(version.is_live());
                self.live -= usize::from(entry.get().last().is_some_and(KeyVersion::is_live));
                self.versions += 1;
                push(entry.get_mut(), version, &mut self.lately);
                made
            }
            Entry::Vacant(entry) => {
                let (version, made) = make(entry.key(), &[], &self.lately);
                self.live += usize::from(version.is_live());
                self.versions += 1;
                entry.insert(SmallVec::from_buf([version]));
                made
            }
        }
    }

    /// The same for a key that has versions, unless `make` makes none.
    pub fn append<T>(
        &mut self,
        key: &[u8],
        make: impl FnOnce(&Key, &[KeyVersion], &Lately) -> Option<(KeyVersion, T)>,
    ) -> Option<T> {
        let bounds = (Bound::Included(key), Bound::Included(key));
        let (key, versions) = self.keys.range_mut::<[u8], _>(bounds).next()?;
        let (version, made) = make(key, versions, &self.lately)?;
        self.live += usize::from(version.is_live());
        self.live -= usize::from(versions.last().is_some_and(KeyVersion::is_live));
        self.versions += 1;
        push(versions, version, &mut self.lately);
        Some(made)
    }

    /// Lets the values go from memory that were replaced up to a revision, which must be on disk: at most `max` of them. Tells
    /// whether nothing is left.
    pub fn release(&mut self, upto: Revision, max: usize) -> bool {
        self.lately.release(upto, max)
    }

    /// How many bytes of replaced values are in memory still.
    pub fn replaced_bytes(&self) -> usize {
        self.lately.bytes()
    }

    /// Keeps all values in memory from now on.
    pub fn keep_past(&mut self) {
        self.lately.stay = true;
    }

    /// A replaced value that is still in memory.
    pub fn replaced_lately(&self, place: PastPlace) -> Option<&Bytes> {
        Past { lately: &self.lately, read: None }.want(place)
    }

    /// Where a reader looks for replaced values, who was given some.
    pub fn past<'a>(&'a self, read: &'a PastValues) -> Past<'a> {
        Past { lately: &self.lately, read: Some(read) }
    }

    /// Whether a version of the key is of that place in history and in that record.
    pub fn holds(&self, key: &[u8], revision: Revision, sub: u32, number: u64) -> bool {
        let Some(versions) = self.keys.get(key) else { return false };
        match versions.binary_search_by_key(&(revision, sub), |v| (v.revision, v.sub)) {
            Ok(place) => versions[place].number == number,
            // What was stamped anew keeps its record and its place in it, not its revision.
            Err(_) => versions.first().is_some_and(|v| v.number == number && v.sub == sub),
        }
    }

    /// Gives every key's newest version another revision, as if all had been created at it. Only the newest versions may
    /// be left, and no tombstones.
    pub fn restamp(&mut self, revision: Revision) {
        for versions in self.keys.values_mut() {
            for version in versions {
                if version.revision < revision {
                    version.revision = revision;
                    if let Some(content) = &mut version.content {
                        content.create_revision = revision;
                    }
                }
            }
        }
    }

    /// Drops the versions of one key that a compaction at `at` hides. Of those at or below `at` only the newest stays,
    /// unless it is a tombstone below `at`: a watch may still start at `at` itself. `dropped` is told the record of
    /// each dropped version, and whether it was a tombstone.
    pub fn compact(&mut self, key: &[u8], at: Revision, dropped: &mut impl FnMut(u64, bool)) {
        let Some(versions) = self.keys.get_mut(key) else { return };
        let hidden = versions.partition_point(|v| v.revision <= at);
        let Some(newest) = hidden.checked_sub(1) else { return };
        let gone = !versions[newest].is_live() && versions[newest].revision < at;
        let keep_from = if gone { hidden } else { newest };
        self.versions -= keep_from as u64;
        for version in versions.drain(..keep_from) {
            dropped(version.number, !version.is_live());
        }
        if versions.is_empty() {
            self.keys.remove(key);
        } else if versions.spilled() && (versions.len() == 1 || versions.len() <= versions.capacity() / 4) {
            // What a burst of writes to the key took is given back.
            versions.shrink_to_fit();
        }
    }

    /// Compacts every key; for start-up. Tells the journal numbers of the records that lost a version.
    pub fn compact_all(&mut self, at: Revision, mut dropped: impl FnMut(u64, bool)) {
        let keys: Vec<Key> = self
            .keys
            .iter()
            .filter(|(_, v)| v.len() > 1 || v.first().is_some_and(|v| !v.is_live()))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.compact(&key, at, &mut dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::clock::Stamp;
    use crate::words::id::{Birth, Dot, Origin, ReplicaId};

    fn version(revision: i64, value: Option<&'static str>) -> KeyVersion {
        let origin = Origin { replica: ReplicaId::new(1), birth: Birth::new(1) };
        let content = |value: &'static str| Content {
            value: Held::Here(Bytes::from_static(value.as_bytes())),
            create_revision: Revision::new(revision),
            version: 1,
            lease: None,
        };
        KeyVersion {
            revision: Revision::new(revision),
            sub: 0,
            number: revision as u64,
            incarnation: Incarnation { stamp: Stamp::default(), dot: Dot { origin, seq: 1 } },
            content: value.map(content),
        }
    }

    fn index(versions: &[(i64, Option<&'static str>)]) -> (Index, Key) {
        let (mut index, key) = (Index::default(), Key::from_static(b"k"));
        for (revision, value) in versions {
            index.write(&key, |_, _, _| (version(*revision, *value), ()));
        }
        (index, key)
    }

    fn compact(index: &mut Index, key: &Key, at: i64) -> Vec<u64> {
        let mut dropped = vec![];
        index.compact(key, Revision::new(at), &mut |number, _| dropped.push(number));
        dropped
    }

    #[test]
    fn reads_see_the_newest_version_at_their_revision() {
        let (index, key) = index(&[(2, Some("a")), (4, None), (6, Some(""))]);
        let value = |at| index.get(&key, Revision::new(at)).map(|v| v.revision.get());
        assert_eq!([1, 2, 3, 4, 5, 6, 9].map(value), [None, Some(2), Some(2), None, None, Some(6), Some(6)]);
        assert_eq!(index.live(), 1);
    }

    #[test]
    fn compaction_keeps_what_is_visible_at_its_revision() {
        let (mut index, key) = index(&[(2, Some("a")), (3, Some("b")), (5, Some("c"))]);
        assert_eq!(compact(&mut index, &key, 4), [2]);
        assert!(index.get(&key, Revision::new(4)).is_some());
    }

    #[test]
    fn a_compaction_gives_back_what_many_versions_took() {
        let versions: Vec<_> = (2..1002).map(|revision| (revision, Some("a"))).collect();
        let (mut index, key) = index(&versions);
        compact(&mut index, &key, 998);
        let kept = &index.keys[&key];
        assert_eq!(kept.len(), 4);
        assert!(kept.capacity() < 16, "{}", kept.capacity());
    }

    #[test]
    fn a_tombstone_stays_until_a_compaction_above_it() {
        let (mut index, key) = index(&[(2, Some("a")), (4, None)]);
        assert_eq!(compact(&mut index, &key, 4), [2]);
        assert!(index.newest(&key).is_some());
        assert_eq!(compact(&mut index, &key, 5), [4]);
        assert!(index.newest(&key).is_none());
    }

    #[test]
    fn ranges_the_wrong_way_round_are_empty() {
        let (index, _) = index(&[(2, Some("a"))]);
        let range = KeyRange::Span(Key::from_static(b"z"), Key::from_static(b"a"));
        assert_eq!(index.range(&range, Revision::new(9)).count(), 0);
    }
}
