//! What the rules say of custom resources: of each kind the places whose parts do not merge as those of any value would.
//!
//! A place that is not named is a scalar, a list that is one value, or a map that merges key by key. So what is kept of a schema
//! of a megabyte is a few kilobytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;

use super::catalogue::Key;

/// What is kept of one kind at most, bytes as written. One that needs more merges by where its fields lie.
pub const KIND_MAX: usize = 64 << 10;

/// What is kept of all kinds together at most. Rules are one value, and travel as one.
pub const ALL_MAX: usize = 1 << 20;

/// How the parts of a value merge, as far as that is not what holds anyway.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum How {
    /// As any value's: maps key by key, lists as one value.
    #[default]
    Plain,
    /// As one value.
    Atomic,
    /// A struct that is there or not.
    Struct,
    /// A list in which each occurs once.
    Set,
    /// A list whose elements are told apart by these.
    Keyed(Vec<Key>),
}

/// What is declared of a value and of what lies in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// Of the value.
    pub how: How,
    /// Whether it is an object of its own, with metadata.
    pub is_object: bool,
    /// Of its fields.
    pub fields: BTreeMap<String, Node>,
    /// Of the elements of a list, and of what lies under other keys of a map.
    pub each: Option<Box<Node>>,
    /// Fields that other versions of the kind have here, and this one has not or means otherwise.
    pub strange: BTreeSet<String>,
}

static ONE_VALUE: Node =
    Node { how: How::Atomic, is_object: false, fields: BTreeMap::new(), each: None, strange: BTreeSet::new() };

impl Node {
    /// Whether it says nothing.
    pub fn is_silent(&self) -> bool {
        *self == Self::default()
    }

    /// Of the field of that name.
    pub fn field(&self, name: &str) -> Option<&Self> {
        self.fields.get(name).or(self.each.as_deref())
    }

    /// Of the elements of a list.
    pub fn each(&self) -> Option<&Self> {
        if self.how == How::Set { Some(&ONE_VALUE) } else { self.each.as_deref() }
    }
}

/// What is declared of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kind {
    /// Its group.
    pub group: String,
    /// Its name.
    pub name: String,
    /// Of its versions; those that are alike have one entry.
    pub versions: Vec<(Vec<String>, Node)>,
}

impl Kind {
    /// As it is written in the rules.
    pub fn encode(&self) -> Vec<u8> {
        let version = |(names, root): &(Vec<String>, Node)| wire::Version {
            names: names.clone(),
            root: Some(wire::Node::from(root)),
        };
        let versions = self.versions.iter().map(version).collect();
        wire::Kind { group: self.group.clone(), name: self.name.clone(), versions }.encode_to_vec()
    }

    /// Reads it back; `None` when it is none.
    pub fn decode(raw: &[u8]) -> Option<Self> {
        let wire::Kind { group, name, versions } = wire::Kind::decode(raw).ok()?;
        let versions = versions.into_iter().map(|version| (version.names, version.root.unwrap_or_default().into()));
        Some(Self { group, name, versions: versions.collect() })
    }

    fn names(&self) -> (&str, &str) {
        (&self.group, &self.name)
    }
}

/// The custom resources of a cluster, as far as their schemas are declared: sorted by group and name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Customs(Arc<Vec<Arc<Kind>>>);

impl Customs {
    /// These kinds; of two that have one name the first.
    pub fn new(kinds: impl IntoIterator<Item = Arc<Kind>>) -> Self {
        let mut kinds: Vec<Arc<Kind>> = kinds.into_iter().collect();
        kinds.sort_by(|a, b| a.names().cmp(&b.names()));
        kinds.dedup_by(|later, first| later.names() == first.names());
        Self(Arc::new(kinds))
    }

    /// All kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.0.iter()
    }

    /// Whether just that is declared of a kind.
    pub fn has(&self, kind: &Kind) -> bool {
        self.find(kind.names()).is_some_and(|known| *known == *kind)
    }

    fn find(&self, names: (&str, &str)) -> Option<&Kind> {
        let at = self.0.binary_search_by(|one| one.names().cmp(&names)).ok()?;
        Some(&self.0[at])
    }

    /// How many kinds there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is declared of that kind in that version.
    pub fn of(&self, api_version: &str, kind: &str) -> Option<&Node> {
        if self.0.is_empty() {
            return None;
        }
        let (group, version) = api_version.split_once('/')?;
        let versions = &self.find((group, kind))?.versions;
        versions.iter().find(|(names, _)| names.iter().any(|name| name == version)).map(|(_, root)| root)
    }
}

mod wire {
    //! The protobuf messages behind the types above. Its reader bounds how deep they lie in each other.
    use super::{How, Key};

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Kind {
        #[prost(string, tag = "1")]
        pub group: String,
        #[prost(string, tag = "2")]
        pub name: String,
        #[prost(message, repeated, tag = "3")]
        pub versions: Vec<Version>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Version {
        #[prost(string, repeated, tag = "1")]
        pub names: Vec<String>,
        #[prost(message, optional, tag = "2")]
        pub root: Option<Node>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Node {
        /// 0 plain, 1 atomic, 2 struct, 3 set; 4 where there are keys.
        #[prost(uint32, tag = "1")]
        pub how: u32,
        #[prost(message, repeated, tag = "2")]
        pub keys: Vec<NodeKey>,
        #[prost(bool, tag = "3")]
        pub is_object: bool,
        #[prost(message, repeated, tag = "4")]
        pub fields: Vec<Field>,
        #[prost(message, optional, boxed, tag = "5")]
        pub each: Option<Box<Node>>,
        #[prost(string, repeated, tag = "6")]
        pub strange: Vec<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Field {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, optional, tag = "2")]
        pub node: Option<Node>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct NodeKey {
        #[prost(string, tag = "1")]
        pub name: String,
        /// As JSON.
        #[prost(string, optional, tag = "2")]
        pub default: Option<String>,
    }

    impl From<&super::Node> for Node {
        fn from(node: &super::Node) -> Self {
            let (how, keys) = match &node.how {
                How::Plain => (0, &[][..]),
                How::Atomic => (1, &[][..]),
                How::Struct => (2, &[][..]),
                How::Set => (3, &[][..]),
                How::Keyed(keys) => (4, &keys[..]),
            };
            let key = |key: &Key| NodeKey {
                name: key.name.clone().into_owned(),
                default: key.default.clone().map(|default| default.into_owned()),
            };
            let field = |(name, node): (&String, &super::Node)| Field { name: name.clone(), node: Some(node.into()) };
            Self {
                how,
                keys: keys.iter().map(key).collect(),
                is_object: node.is_object,
                fields: node.fields.iter().map(field).collect(),
                each: node.each.as_deref().map(|each| Box::new(each.into())),
                strange: node.strange.iter().cloned().collect(),
            }
        }
    }

    impl From<Node> for super::Node {
        fn from(node: Node) -> Self {
            let key = |key: NodeKey| Key { name: key.name.into(), default: key.default.map(Into::into) };
            let how = match node.how {
                1 => How::Atomic,
                2 => How::Struct,
                3 => How::Set,
                4 => How::Keyed(node.keys.into_iter().map(key).collect()),
                _ => How::Plain,
            };
            let field = |field: Field| (field.name, field.node.unwrap_or_default().into());
            Self {
                how,
                is_object: node.is_object,
                fields: node.fields.into_iter().map(field).collect(),
                each: node.each.map(|each| Box::new((*each).into())),
                strange: node.strange.into_iter().collect(),
            }
        }
    }
}
