//! The schemas of custom resources, as far as merges need them: read out of their definitions, which lie in the store.
//!
//! Merges consult the rules, never a definition that happens to be known here. What all members have of the definitions is
//! compared with the rules in use; where it says something else, the first present member declares it (`replica::rules`). So a
//! schema counts once all members have the definition, and then the declaration. Definitions are read in ticks, a few in each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::merge::object::schema::custom::{Customs, Kind};
use crate::merge::object::schema::definition;
use crate::replica::Replica;
use crate::replica::definitions::{CustomKind, DEFINITIONS, Definition, WaitsFor};
use crate::words::clock::Now;
use crate::words::key::{Key, KeyRange, Keyspace};
use crate::words::revision::Revision;

/// How much of them is read in one tick, bytes.
const READ_PACE: usize = 1 << 20;

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
