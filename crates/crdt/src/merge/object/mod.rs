//! Kubernetes objects: a value as leaves, and concurrent values merged leaf by leaf.
//!
//! - [`json`]: a strict reader that keeps numbers as they are, and the one way a merged value is written;
//! - [`protobuf`]: Kubernetes' protobuf as the same JSON, and back; [`time`]: the times in it;
//! - [`lately`]: objects that were read lately, which need not be read again;
//! - [`path`], [`schema`], [`leaves`]: where a leaf lies, what Kubernetes declares about it, a value taken apart;
//! - [`shared`]: what all versions have in common, which needs no merging;
//! - [`past`]: what each leaf is where versions come together, read from their vectors; [`document`]: leaves as an Automerge
//!   document; [`contest`]: the leaves that several edited at the same time, in one;
//! - [`shown`]: what a writer saw where versions come together;
//! - [`resolve`]: which of several values stands; [`replay`]: versions replayed into both; [`losses`]: what a merge gave up;
//! - [`meaning`]: what Kubernetes means beyond single fields;
//! - [`silent`]: which versions no merge needs;
//! - [`versions`]: objects of one kind in two apiVersions;
//! - [`peek`]: one field without reading the rest.

pub mod contest;
pub mod document;
pub mod json;
pub mod lately;
pub mod leaves;
pub mod losses;
pub mod meaning;
pub mod past;
pub mod path;
pub mod peek;
pub mod protobuf;
pub mod replay;
pub mod resolve;
pub mod schema;
pub mod shared;
pub mod shown;
pub mod silent;
pub mod time;
pub mod versions;

use bytes::Bytes;

use crate::merge::rules::Rules;
use json::Json;
use schema::Schema;

/// A Kubernetes object that is understood: a map with `apiVersion` and `kind`, less what says nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// The whole.
    pub json: Json,
    /// How it was written.
    pub encoding: Encoding,
}

/// How kube-apiserver writes objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// As JSON.
    Json,
    /// As its protobuf.
    Protobuf,
}

impl Object {
    /// Reads a value; `None` when it is no object that is understood.
    pub fn parse(value: &[u8]) -> Option<Self> {
        if value.starts_with(protobuf::MAGIC) {
            return Some(Self { json: protobuf::decode(value)?, encoding: Encoding::Protobuf });
        }
        if value.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return None;
        }
        let mut json = Json::parse(value)?;
        let name = |field| json.get(field).and_then(Json::as_str).map(str::to_owned);
        let (api_version, kind) = (name("apiVersion")?, name("kind")?);
        if let Json::Map(map) = &mut json {
            schema::normalise(&api_version, &kind, map);
        }
        Some(Self { json, encoding: Encoding::Json })
    }

    /// Writes an object like this one is; in the other way if that one has no place for some of it. `None` when neither has.
    pub fn write(&self, json: &Json) -> Option<Bytes> {
        let is_json = || !protobuf::has_unknown(json);
        match self.encoding {
            Encoding::Json if is_json() => Some(json.canonical().into()),
            _ => match protobuf::encode(json) {
                Some(raw) => Some(raw.into()),
                None => is_json().then(|| json.canonical().into()),
            },
        }
    }

    fn text(&self, path: &[&str]) -> Option<&str> {
        path.iter().try_fold(&self.json, |value, field| value.get(field))?.as_str()
    }

    /// What is declared for its kind.
    pub fn schema<'a>(&'a self, rules: &'a Rules) -> Schema<'a> {
        let (api_version, kind) = (self.text(&["apiVersion"]).unwrap_or(""), self.text(&["kind"]).unwrap_or(""));
        Schema::new(api_version, kind, rules).of_secret(self.text(&["type"]).unwrap_or(""))
    }

    /// `metadata.uid`, if it has one.
    pub fn uid(&self) -> Option<&str> {
        self.text(&["metadata", "uid"])
    }

    /// Whether both have the same uid and kind, so that their fields can be mixed. Secrets must be of one type. Of two versions
    /// of a kind [`versions`] says more.
    pub fn is_like(&self, other: &Self) -> bool {
        self.uid() == other.uid()
            && self.group() == other.group()
            && self.text(&["kind"]) == other.text(&["kind"])
            && (self.text(&["kind"]) != Some("Secret") || self.text(&["type"]) == other.text(&["type"]))
    }

    /// The group of its kind; empty for the core of Kubernetes.
    fn group(&self) -> &str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// Its apiVersion.
    pub fn api_version(&self) -> &str {
        self.text(&["apiVersion"]).unwrap_or("")
    }

    /// The node that a pod is bound to; `None` for one that is not, and for everything else.
    pub fn node(&self) -> Option<&str> {
        let is_pod = self.text(&["apiVersion"]) == Some("v1") && self.text(&["kind"]) == Some("Pod");
        self.text(&["spec", "nodeName"]).filter(|name| is_pod && !name.is_empty())
    }
}

/// The `metadata.uid` of a value that looks like an object: `Some(None)` when it has none, `None` when it is no object.
pub fn peek_uid(value: &[u8]) -> Option<Option<&[u8]>> {
    if value.starts_with(protobuf::MAGIC) {
        const METADATA_UID: &[u32] = &[1, 5];
        let uid = protobuf::Envelope::read(value)?.peek(METADATA_UID);
        return Some(uid.filter(|uid| !uid.is_empty()));
    }
    peek::string(value, &["kind"])?;
    peek::string(value, &["apiVersion"])?;
    Some(peek::string(value, &["metadata", "uid"]).map(unquoted))
}

/// The namespace that a value that looks like an object says it is in.
pub fn peek_namespace(value: &[u8]) -> Option<&[u8]> {
    if value.starts_with(protobuf::MAGIC) {
        const METADATA_NAMESPACE: &[u32] = &[1, 3];
        return protobuf::Envelope::read(value)?.peek(METADATA_NAMESPACE).filter(|namespace| !namespace.is_empty());
    }
    peek::string(value, &["metadata", "namespace"]).map(unquoted)
}

/// The node that a value that looks like a pod is bound to.
pub fn peek_node(value: &[u8]) -> Option<&[u8]> {
    if value.starts_with(protobuf::MAGIC) {
        const SPEC_NODE_NAME: &[u32] = &[2, 10];
        let pod = protobuf::Envelope::read(value).filter(|of| (of.api_version, of.kind) == ("v1", "Pod"))?;
        return pod.peek(SPEC_NODE_NAME).filter(|node| !node.is_empty());
    }
    peek::find(value, &["kind"]).filter(|kind| *kind == b"\"Pod\"")?;
    peek::find(value, &["apiVersion"]).filter(|version| *version == b"\"v1\"")?;
    peek::string(value, &["spec", "nodeName"]).map(unquoted)
}

/// What stands between the quotes of a JSON text.
fn unquoted(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text)
}
