//! Kubernetes objects: a value as leaves, and concurrent values merged leaf by leaf.
//!
//! - [`json`]: a strict reader that keeps numbers as they are, and the one way a merged value is written;
//! - [`path`], [`schema`], [`leaves`]: where a leaf lies, what Kubernetes declares about it, a value taken apart;
//! - [`shared`]: what all versions have in common, which needs no merging;
//! - [`document`]: leaves as an Automerge document; [`past`]: what it would say, read from the versions' vectors;
//! - [`resolve`]: which of several values stands; [`replay`]: versions replayed into both; [`losses`]: what a merge gave up;
//! - [`silent`]: which versions no merge needs;
//! - [`peek`]: one field without reading the rest.

pub mod document;
pub mod json;
pub mod leaves;
pub mod losses;
pub mod past;
pub mod path;
pub mod peek;
pub mod replay;
pub mod resolve;
pub mod schema;
pub mod shared;
pub mod silent;

use crate::merge::rules::Rules;
use json::Json;
use schema::Schema;

/// A Kubernetes object that is understood: a JSON map with `apiVersion` and `kind`. (Kubernetes' protobuf is not.)
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// The whole.
    pub json: Json,
}

impl Object {
    /// Reads a value; `None` when it is no object that is understood.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let first = value.iter().find(|byte| !byte.is_ascii_whitespace())?;
        if *first != b'{' {
            return None;
        }
        let object = Self { json: Json::parse(value)? };
        let named = object.text(&["apiVersion"]).is_some() && object.text(&["kind"]).is_some();
        named.then_some(object)
    }

    fn text(&self, path: &[&str]) -> Option<&str> {
        path.iter().try_fold(&self.json, |value, field| value.get(field))?.as_str()
    }

    /// What is declared for its kind.
    pub fn schema<'a>(&'a self, rules: &'a Rules) -> Schema<'a> {
        Schema::new(self.text(&["apiVersion"]).unwrap_or(""), self.text(&["kind"]).unwrap_or(""), rules)
    }

    /// `metadata.uid`, if it has one.
    pub fn uid(&self) -> Option<&str> {
        self.text(&["metadata", "uid"])
    }

    /// Whether both have the same uid and kind, so that their fields can be mixed.
    pub fn is_like(&self, other: &Self) -> bool {
        self.uid() == other.uid()
            && self.text(&["apiVersion"]) == other.text(&["apiVersion"])
            && self.text(&["kind"]) == other.text(&["kind"])
    }

    /// The node that a pod is bound to; `None` for one that is not, and for everything else.
    pub fn node(&self) -> Option<&str> {
        let is_pod = self.text(&["apiVersion"]) == Some("v1") && self.text(&["kind"]) == Some("Pod");
        self.text(&["spec", "nodeName"]).filter(|name| is_pod && !name.is_empty())
    }
}

/// The `metadata.uid` of a value that looks like an object: `Some(None)` when it has none, `None` when it is no object.
pub fn peek_uid(value: &[u8]) -> Option<Option<&[u8]>> {
    peek::string(value, &["kind"])?;
    peek::string(value, &["apiVersion"])?;
    Some(peek::string(value, &["metadata", "uid"]))
}

/// The node that a value that looks like a pod is bound to.
pub fn peek_node(value: &[u8]) -> Option<&[u8]> {
    peek::find(value, &["kind"]).filter(|kind| *kind == b"\"Pod\"")?;
    peek::find(value, &["apiVersion"]).filter(|version| *version == b"\"v1\"")?;
    peek::string(value, &["spec", "nodeName"])
}
