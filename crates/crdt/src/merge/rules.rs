//! What a merge consults beside the versions: the same on all members, kept in the system keyspace.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use crate::command::counter::{AtomicRule, CounterRule};
use crate::merge::object::schema::custom::{Customs, Kind};
use crate::words::key::{KUBERNETES_PREFIX, Keyspace, LocalKeys};

/// The newest merge engine of this build: the code of merges, with its lists of keyed fields. Engine 1 gave a run of
/// versions the stamp of its last one. For engine 2 a leaf that a run set back was not edited. Engine 3 took each field by itself,
/// also where Kubernetes means several together. Engine 4 took custom resources by the names of their fields alone, and two
/// apiVersions of a kind as two kinds. Engine 5 took the counts of a Job from one side. Nothing was released with any of them.
pub const ENGINE: u32 = 6;

/// From this engine on, the pods that a Job counts merge one by one.
pub const COUNTS_PODS: u32 = 6;

/// The oldest merge engine that this build can still merge by.
const OLDEST_ENGINE: u32 = 5;

/// The number of the rules with which a cluster begins.
pub const FIRST: u32 = 1;

/// Everything a merge consults; the same on all members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The number that names the rules in their cluster. It counts up from [`FIRST`] when the cluster takes other ones.
    pub number: u32,
    /// The code that merges.
    pub engine: u32,
    /// The keys under which Kubernetes objects lie.
    pub prefix: Bytes,
    /// Integers that are added up instead of overwritten.
    pub counters: Vec<CounterRule>,
    /// What the schemas of custom resources say.
    pub custom: Customs,
    /// Fields that merge as one value, in order.
    pub atomic: Vec<AtomicRule>,
}

/// Rules by which this build cannot merge. Merging by others would let replicas differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnknownRules {
    /// They need another engine.
    #[error(
        "the cluster merges by rules number {number}, which need merge engine {engine}; this build has engine {newest}: \
         use a build that has both"
    )]
    Engine {
        /// Their number.
        number: u32,
        /// The engine they need.
        engine: u32,
        /// The newest one of this build.
        newest: u32,
    },
    /// They cannot be read.
    #[error("the rules by which the cluster merges cannot be read")]
    Unreadable,
}

impl UnknownRules {
    /// Their number, if it can be read.
    pub fn number(self) -> Option<u32> {
        match self {
            Self::Engine { number, .. } => Some(number),
            Self::Unreadable => None,
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            number: FIRST,
            engine: ENGINE,
            prefix: Bytes::from_static(KUBERNETES_PREFIX),
            counters: vec![],
            custom: Customs::default(),
            atomic: vec![],
        }
    }
}

/// What the founders chose of them.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |rules: Vec<String>| if rules.is_empty() { "none".to_owned() } else { rules.join(",") };
        let counters = list(self.counters.iter().map(CounterRule::to_string).collect());
        let atomic = list(self.atomic.iter().map(AtomicRule::to_string).collect());
        write!(f, "prefix {}, counters {counters}, atomic {atomic}", String::from_utf8_lossy(&self.prefix))
    }
}

impl Rules {
    /// Whether both say the same of what founders declare.
    pub fn is_declared_like(&self, other: &Self) -> bool {
        self.prefix == other.prefix && self.counters == other.counters && self.atomic == other.atomic
    }

    /// The fields of that kind that are declared to be one value.
    pub fn atomic_of(&self, api_version: &str, kind: &str) -> &[AtomicRule] {
        let of = |rule: &AtomicRule| (rule.api_version.as_str(), rule.kind.as_str()).cmp(&(api_version, kind));
        let from = self.atomic.partition_point(|rule| of(rule).is_lt());
        let until = self.atomic.partition_point(|rule| of(rule).is_le());
        self.atomic.get(from..until).unwrap_or_default()
    }

    /// The client keys that each replica keeps for itself.
    pub fn local_keys(&self) -> LocalKeys {
        LocalKeys::under(self.prefix.clone())
    }

    /// Whether Kubernetes objects may lie at that key.
    pub fn is_kubernetes(&self, keyspace: Keyspace, key: &[u8]) -> bool {
        keyspace == Keyspace::Client && key.starts_with(&self.prefix)
    }

    /// Whether a build whose newest engine is `newest` can merge by these rules.
    ///
    /// # Errors
    /// When it has not the engine that they need.
    pub fn check(&self, newest: u32) -> Result<(), UnknownRules> {
        let Self { number, engine, .. } = *self;
        let is_known = (OLDEST_ENGINE..=newest).contains(&engine) && number >= FIRST;
        if is_known { Ok(()) } else { Err(UnknownRules::Engine { number, engine, newest }) }
    }

    /// The rules as the value of their system key.
    pub fn encode(&self) -> Bytes {
        let counters = self.counters.iter().map(|counter| wire::Counter {
            api_version: counter.api_version.clone(),
            kind: counter.kind.clone(),
            path: counter.path.clone(),
            minimum: counter.minimum,
        });
        let atomic = self.atomic.iter().map(|atomic| wire::Atomic {
            api_version: atomic.api_version.clone(),
            kind: atomic.kind.clone(),
            path: atomic.path.clone(),
        });
        let Self { number, engine, .. } = *self;
        let custom = self.custom.kinds().map(|kind| kind.encode().into()).collect();
        let (counters, atomic) = (counters.collect(), atomic.collect());
        let rules = wire::Rules { number, engine, prefix: self.prefix.clone(), counters, custom, atomic };
        rules.encode_to_vec().into()
    }

    /// Reads them back, for a build whose newest engine is `newest`.
    ///
    /// # Errors
    /// When they are none, or need an engine that the build has not.
    pub fn decode(value: &[u8], newest: u32) -> Result<Self, UnknownRules> {
        let rules = Self::read(value).ok_or(UnknownRules::Unreadable)?;
        rules.check(newest)?;
        Ok(rules)
    }

    /// Reads rules of any engine; `None` when they are none.
    pub fn read(value: &[u8]) -> Option<Self> {
        let rules = wire::Rules::decode(value).ok()?;
        let counters = rules.counters.into_iter().map(|counter| CounterRule {
            api_version: counter.api_version,
            kind: counter.kind,
            path: counter.path,
            minimum: counter.minimum,
        });
        let counters = counters.collect();
        let custom: Option<Vec<Arc<Kind>>> =
            rules.custom.iter().map(|raw| Some(Arc::new(Kind::decode(raw)?))).collect();
        let custom = Customs::new(custom?);
        let atomic = rules.atomic.into_iter().map(|atomic| AtomicRule {
            api_version: atomic.api_version,
            kind: atomic.kind,
            path: atomic.path,
        });
        let mut atomic: Vec<_> = atomic.collect();
        atomic.sort_unstable();
        Some(Self { number: rules.number, engine: rules.engine, prefix: rules.prefix, counters, custom, atomic })
    }
}

mod wire {
    //! The protobuf messages behind the types above.
    use bytes::Bytes;

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Rules {
        #[prost(uint32, tag = "1")]
        pub number: u32,
        #[prost(bytes = "bytes", tag = "2")]
        pub prefix: Bytes,
        #[prost(message, repeated, tag = "3")]
        pub counters: Vec<Counter>,
        #[prost(uint32, tag = "4")]
        pub engine: u32,
        #[prost(bytes = "bytes", repeated, tag = "5")]
        pub custom: Vec<Bytes>,
        #[prost(message, repeated, tag = "8")]
        pub atomic: Vec<Atomic>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Atomic {
        #[prost(string, tag = "1")]
        pub api_version: String,
        #[prost(string, tag = "2")]
        pub kind: String,
        #[prost(string, tag = "3")]
        pub path: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Counter {
        #[prost(string, tag = "1")]
        pub api_version: String,
        #[prost(string, tag = "2")]
        pub kind: String,
        #[prost(string, tag = "3")]
        pub path: String,
        #[prost(int64, optional, tag = "4")]
        pub minimum: Option<i64>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_back_as_they_were_and_newer_ones_are_not_understood() {
        let counter = CounterRule {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            path: ".spec.replicas".to_owned(),
            minimum: Some(0),
        };
        let kind = Kind { group: "e.com".to_owned(), name: "Thing".to_owned(), versions: vec![] };
        let custom = Customs::new([Arc::new(kind)]);
        let atomic = |kind: &str, path: &str| AtomicRule {
            api_version: "apps/v1".to_owned(),
            kind: kind.to_owned(),
            path: path.to_owned(),
        };
        let atomic = vec![atomic("DaemonSet", ".spec"), atomic("Deployment", ".a"), atomic("Deployment", ".b")];
        let rules = Rules { counters: vec![counter], custom, atomic, ..Rules::default() };
        assert_eq!(rules.atomic_of("apps/v1", "Deployment"), &rules.atomic[1..]);
        assert_eq!(rules.atomic_of("apps/v1", "ReplicaSet"), []);
        assert_eq!(Rules::decode(&rules.encode(), ENGINE), Ok(rules.clone()));
        let newer = Rules { number: 7, engine: ENGINE + 1, ..rules };
        let unknown = UnknownRules::Engine { number: 7, engine: ENGINE + 1, newest: ENGINE };
        assert_eq!(Rules::decode(&newer.encode(), ENGINE), Err(unknown));
        assert_eq!(Rules::decode(&newer.encode(), ENGINE + 1), Ok(newer));
        let none = UnknownRules::Engine { number: 0, engine: 0, newest: ENGINE };
        assert_eq!(Rules::decode(b"", ENGINE), Err(none));
        assert_eq!(Rules::decode(b"\xff", ENGINE), Err(UnknownRules::Unreadable));
    }
}
