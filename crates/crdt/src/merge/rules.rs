//! What a merge consults beside the versions: the same on all members, kept in the system keyspace.

use bytes::Bytes;
use prost::Message;

use crate::words::key::Keyspace;

/// The newest rules that this build knows; it knows all older ones.
pub const NUMBER: u32 = 1;

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
#[derive(Clone, PartialEq, Eq, Debug)]
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

impl Default for Rules {
    fn default() -> Self {
        Self { number: 1, prefix: Bytes::from_static(b"/registry/"), counters: vec![] }
    }
}

impl Rules {
    /// Whether Kubernetes objects may lie at that key.
    pub fn is_kubernetes(&self, keyspace: Keyspace, key: &[u8]) -> bool {
        keyspace == Keyspace::Client && key.starts_with(&self.prefix)
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

    /// Reads them back; `None` when they are none, or of a number that this build does not know.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let rules = wire::Rules::decode(value).ok().filter(|rules| (1..=NUMBER).contains(&rules.number))?;
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
        assert_eq!(Rules::decode(&rules.encode()), Some(rules.clone()));
        assert_eq!(Rules::decode(&Rules { number: NUMBER + 1, ..rules }.encode()), None);
        assert_eq!(Rules::decode(b""), None);
    }
}
