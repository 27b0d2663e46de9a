//! What is known of the definitions of custom resources: which are read, and which of them fit into the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::merge::object::schema::custom::{ALL_MAX, Customs, Kind};
use crate::merge::object::schema::definition::Unfit;
use crate::merge::rules::Rules;
use crate::store::history::ChangedKeys;
use crate::words::key::Key;

/// Where definitions lie behind the prefix of Kubernetes objects.
pub(super) const DEFINITIONS: &[u8] = b"apiextensions.k8s.io/customresourcedefinitions/";

/// How often definitions are looked at. Rules move no faster than that, however often definitions change.
const LOOK_EVERY_MS: u64 = 1_000;

/// A definition as it was read last.
#[derive(Debug)]
pub(super) struct Definition {
    /// As it is stored.
    pub(super) value: Bytes,
    /// What matters of it.
    pub(super) kind: Result<Arc<Kind>, Unfit>,
    /// What is kept of it, bytes.
    pub(super) length: usize,
}

/// What is known of the definitions of custom resources.
#[derive(Debug, Default)]
pub(crate) struct Schemas {
    /// Whether those were noted with which the replica began.
    pub(super) begun: bool,
    /// Definitions that changed since they were read, or that not all members are known to have.
    pub(super) waiting: BTreeSet<Key>,
    /// Those of them that are still to be looked at.
    pub(super) unread: BTreeSet<Key>,
    pub(super) known: BTreeMap<Key, Definition>,
    pub(super) looked_ms: Option<u64>,
    /// What they said together when all were read.
    pub(super) said: Option<Customs>,
    /// The number of the rules in use that say just that.
    pub(super) agreed: Option<u32>,
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

    pub(super) fn next_look_ms(&self) -> Option<u64> {
        match self.looked_ms {
            _ if !self.begun || !self.unread.is_empty() => Some(0),
            _ if self.waiting.is_empty() => None,
            None => Some(0),
            Some(looked_ms) => Some(looked_ms.saturating_add(LOOK_EVERY_MS)),
        }
    }

    /// The kinds that fit, in the order of their definitions' keys. Those that come later find less room.
    pub(super) fn fitting(&self) -> Vec<(&Key, &Arc<Kind>)> {
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
