//! What a merge consults beside the versions: the same on all members, kept in the system keyspace.

use std::fmt;

use bytes::Bytes;
use prost::Message;

use crate::words::key::{KUBERNETES_PREFIX, Keyspace, LocalKeys};

/// The rules that this build knows. Number 1 gave a run of versions the stamp of its last one; nothing was released with it.
pub const NUMBER: u32 = 2;

/// Everything a merge consults; the same on all members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The number that names the rules, lists of keyed fields and the code.
    pub number: u32,
    /// The keys under which Kubernetes objects lie.
    pub prefix: Bytes,
    /// Integers that are added up instead of overwritten.
    pub counters: Vec<CounterRule>,
}

/// An integer field of a Kubernetes kind that is a counter: concurrent changes of it add up.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CounterRule {
    /// The object's `apiVersion`.
    pub api_version: String,
    /// The object's `kind`.
    pub kind: String,
    /// The field, as in `.spec.replicas`.
    pub path: String,
    /// A sum below this is raised to it.
    pub minimum: Option<i64>,
}

/// Rules by which this build cannot merge. Merging by others would let replicas differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnknownRules {
    /// They have another number.
    #[error("the cluster merges by rules number {0}, this build by number {NUMBER}: use a build that knows both")]
    Number(u32),
    /// They cannot be read.
    #[error("the rules by which the cluster merges cannot be read")]
    Unreadable,
}

impl UnknownRules {
    /// Their number, if it can be read.
    pub fn number(self) -> Option<u32> {
        match self {
            Self::Number(number) => Some(number),
            Self::Unreadable => None,
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self { number: NUMBER, prefix: Bytes::from_static(KUBERNETES_PREFIX), counters: vec![] }
    }
}

/// As it is declared: `apps/v1/Deployment:.spec.replicas:min=0`.
impl fmt::Display for CounterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.api_version, self.kind, self.path)?;
        self.minimum.map_or(Ok(()), |minimum| write!(f, ":min={minimum}"))
    }
}

/// What the founders chose of them.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counters: Vec<String> = self.counters.iter().map(CounterRule::to_string).collect();
        let counters = if counters.is_empty() { "none".to_owned() } else { counters.join(",") };
        write!(f, "prefix {}, counters {counters}", String::from_utf8_lossy(&self.prefix))
    }
}

impl Rules {
    /// Whether both are of one founding: what the founders chose never changes.
    pub fn is_founded_like(&self, other: &Self) -> bool {
        self.prefix == other.prefix && self.counters == other.counters
    }

    /// The client keys that each replica keeps for itself.
    pub fn local_keys(&self) -> LocalKeys {
        LocalKeys::under(self.prefix.clone())
    }

    /// Whether Kubernetes objects may lie at that key.
    pub fn is_kubernetes(&self, keyspace: Keyspace, key: &[u8]) -> bool {
        keyspace == Keyspace::Client && key.starts_with(&self.prefix)
    }

    /// Whether this build can merge by the rules of that number.
    ///
    /// # Errors
    /// When it does not know them.
    pub fn check(number: u32) -> Result<(), UnknownRules> {
        if number == NUMBER { Ok(()) } else { Err(UnknownRules::Number(number)) }
    }

    /// The rules as the value of their system key.
    pub fn encode(&self) -> Bytes {
        let counters = self.counters.iter().map(|counter| wire::Counter {
            api_version: counter.api_version.clone(),
            kind: counter.kind.clone(),
            path: counter.path.clone(),
            minimum: counter.minimum,
        });
        let rules = wire::Rules { number: self.number, prefix: self.prefix.clone(), counters: counters.collect() };
        rules.encode_to_vec().into()
    }

    /// Reads them back.
    ///
    /// # Errors
    /// When they are none, or of a number that this build does not know.
    pub fn decode(value: &[u8]) -> Result<Self, UnknownRules> {
        let rules = Self::read(value).ok_or(UnknownRules::Unreadable)?;
        Self::check(rules.number)?;
        Ok(rules)
    }

    /// Reads rules of any number; `None` when they are none.
    pub fn read(value: &[u8]) -> Option<Self> {
        let rules = wire::Rules::decode(value).ok()?;
        let counters = rules.counters.into_iter().map(|counter| CounterRule {
            api_version: counter.api_version,
            kind: counter.kind,
            path: counter.path,
            minimum: counter.minimum,
        });
        Some(Self { number: rules.number, prefix: rules.prefix, counters: counters.collect() })
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
        let rules = Rules { counters: vec![counter], ..Rules::default() };
        assert_eq!(Rules::decode(&rules.encode()), Ok(rules.clone()));
        assert_eq!(
            Rules::decode(&Rules { number: NUMBER + 1, ..rules }.encode()),
            Err(UnknownRules::Number(NUMBER + 1))
        );
        assert_eq!(Rules::decode(b""), Err(UnknownRules::Number(0)));
        assert_eq!(Rules::decode(b"\xff"), Err(UnknownRules::Unreadable));
    }
}
