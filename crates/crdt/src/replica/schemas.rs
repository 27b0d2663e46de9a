//! The schemas of custom resources, as far as merges need them: read out of their definitions, which lie in the store.
//!
//! Merges consult the rules, never a definition that happens to be known here. What all members have of the definitions is
//! compared with the rules in use; where it says something else, the first present member declares it (`replica::rules`). So a
//! schema counts once all members have the definition, and then the declaration. Definitions are read in ticks, a few in each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::merge::object::schema::custom::{ALL_MAX, Customs, Kind};
use crate::merge::object::schema::definition::{self, Unfit};
use crate::merge::rules::Rules;
use crate::replica::Replica;
use crate::store::history::ChangedKeys;
use crate::words::clock::Now;
use crate::words::key::{Key, KeyRange, Keyspace};
use crate::words::revision::Revision;

/// Where definitions lie behind the prefix of Kubernetes objects.
const DEFINITIONS: &[u8] = b"apiextensions.k8s.io/customresourcedefinitions/";

/// How often definitions are looked at. Rules move no faster than that, however often definitions change.
const LOOK_EVERY_MS: u64 = 1_000;

/// How much of them is read in one tick, bytes.
const READ_PACE: usize = 1 << 20;

/// A definition as it was read last.
#[derive(Debug)]
struct Definition {
    value: Bytes,
    kind: Result<Arc<Kind>, Unfit>,
    /// What is kept of it, bytes.
    length: usize,
}

/// What is known of the definitions of custom resources.
#[derive(Debug, Default)]
pub(crate) struct Schemas {
    /// Whether those were noted with which the replica began.
    begun: bool,
    /// Definitions that changed since they were read, or that not all members are known to have.
    waiting: BTreeSet<Key>,
    /// Those of them that are still to be looked at.
    unread: BTreeSet<Key>,
    known: BTreeMap<Key, Definition>,
    looked_ms: Option<u64>,
    /// What they said together when all were read.
    said: Option<Customs>,
    /// The number of the rules in use that say just that.
    agreed: Option<u32>,
}

/// A kind of custom resources, and how it merges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CustomKind {
    /// The key of its definition.
    pub key: Key,
    /// Its group and name, where they could be read.
    pub name: Option<String>,
    /// What keeps it from merging by the schema that is here.
    pub waits: Option<WaitsFor>,
}

/// What keeps a kind from merging by its schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WaitsFor {
    /// Some member is not known to have it, or the rules that say it.
    #[error("not every member is known to have it")]
    Members,
    /// Another schema: it merges by where its fields lie.
    #[error("{0}: it merges by the names of its fields")]
    Unfit(Unfit),
    /// All kinds together are too large.
    #[error("the schemas of all kinds together are too large: it merges by the names of its fields")]
    Room,
}

impl Schemas {
    /// Takes note of client keys that changed.
    pub(crate) fn touch(&mut self, prefix: &[u8], keys: &ChangedKeys) {
        for (_, key) in keys {
            if key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(DEFINITIONS)) {
                self.waiting.insert(key.clone());
            }
        }
    }

    /// What the definitions say, if that is something else than these rules do.
    pub(crate) fn wanted(&mut self, current: &Rules) -> Option<Customs> {
        if self.agreed == Some(current.number) {
            return None;
        }
        let wanted = self.said.clone().filter(|said| *said != current.custom);
        if wanted.is_none() && self.said.is_some() {
            self.agreed = Some(current.number);
        }
        wanted
    }

    fn next_look_ms(&self) -> Option<u64> {
        match self.looked_ms {
            _ if !self.begun || !self.unread.is_empty() => Some(0),
            _ if self.waiting.is_empty() => None,
            None => Some(0),
            Some(looked_ms) => Some(looked_ms.saturating_add(LOOK_EVERY_MS)),
        }
    }

    /// The kinds that fit, in the order of their definitions' keys. Those that come later find less room.
    fn fitting(&self) -> Vec<(&Key, &Arc<Kind>)> {
        let (mut left, mut fitting) = (ALL_MAX, vec![]);
        for (key, definition) in &self.known {
            let Ok(kind) = &definition.kind else { continue };
            if let Some(rest) = left.checked_sub(definition.length) {
                left = rest;
                fitting.push((key, kind));
            }
        }
        fitting
    }
}

impl Replica {
    /// Takes note of all definitions that are here.
    fn note_definitions(&mut self) {
        let mut begin = self.rules.first().prefix.to_vec();
        begin.extend_from_slice(DEFINITIONS);
        let mut end = begin.clone();
        end.pop();
        end.push(b'/' + 1);
        let range = KeyRange::Span(begin.into(), end.into());
        let keys = self.state.index.range(&range, Revision::new(i64::MAX)).map(|(key, _)| key.clone());
        self.schemas.waiting.extend(keys);
        self.schemas.begun = true;
    }

    /// When definitions are to be looked at next, by the monotonic clock.
    pub(crate) fn next_schemas_ms(&self) -> Option<u64> {
        if self.membership.joining { None } else { self.schemas.next_look_ms() }
    }

    /// Reads definitions that changed, if it is time to. Tells whether the rules may have to move.
    pub(crate) fn read_schemas(&mut self, now: Now) -> bool {
        if self.next_schemas_ms().is_none_or(|at_ms| at_ms > now.mono_ms) {
            return false;
        }
        if !self.schemas.begun {
            self.note_definitions();
        }
        if self.schemas.unread.is_empty() {
            self.schemas.unread = self.schemas.waiting.clone();
            self.schemas.looked_ms = Some(now.mono_ms);
        }
        let mut left = READ_PACE;
        while left > 0
            && let Some(key) = self.schemas.unread.pop_first()
        {
            left = left.saturating_sub(self.read_definition(key).max(1));
        }
        if !self.schemas.unread.is_empty() {
            return false;
        }
        let said = Customs::new(self.schemas.fitting().into_iter().map(|(_, kind)| Arc::clone(kind)));
        (self.schemas.said, self.schemas.agreed) = (Some(said), None);
        true
    }

    /// Reads what all members have of a definition. Tells how much that was.
    fn read_definition(&mut self, key: Key) -> usize {
        let open = self.window(Keyspace::Client, &key).map(|open| open.window.base().cloned());
        let value = match open {
            Some(base) => base,
            None => {
                self.schemas.waiting.remove(&key);
                self.state.recorded(Keyspace::Client, &key).map(|recorded| recorded.live)
            }
        };
        let known = &mut self.schemas.known;
        let Some(value) = value.map(|live| live.value) else {
            known.remove(&key);
            return 0;
        };
        if known.get(&key).is_some_and(|definition| definition.value == value) {
            return 0;
        }
        let kind = definition::read(&value).map(Arc::new);
        let (read, length) = (value.len(), kind.as_ref().map_or(0, |kind| kind.encode().len()));
        known.insert(key, Definition { value, kind, length });
        read
    }

    /// All kinds of custom resources that have a definition here.
    pub fn custom_kinds(&self) -> Vec<CustomKind> {
        let fitting: BTreeMap<&Key, &Arc<Kind>> = self.schemas.fitting().into_iter().collect();
        let keys: BTreeSet<&Key> = self.schemas.known.keys().chain(&self.schemas.waiting).collect();
        let is_used = |kind: &Kind| self.rules.current().custom.has(kind);
        let of = |key: &Key| {
            let known = self.schemas.known.get(key);
            let kind = known.and_then(|known| known.kind.as_ref().ok());
            let waits = match known.map(|known| &known.kind) {
                Some(Err(unfit)) => Some(WaitsFor::Unfit(*unfit)),
                Some(Ok(_)) if !fitting.contains_key(key) => Some(WaitsFor::Room),
                Some(Ok(kind)) if is_used(kind) && !self.schemas.waiting.contains(key) => None,
                Some(Ok(_)) | None => Some(WaitsFor::Members),
            };
            CustomKind { key: key.clone(), name: kind.map(|kind| format!("{}/{}", kind.group, kind.name)), waits }
        };
        keys.into_iter().map(of).collect()
    }
}
