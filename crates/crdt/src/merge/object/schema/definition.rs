//! What of a CustomResourceDefinition matters for merging.
//!
//! It is what server-side apply reads of it: list types with their keys, map types, objects in objects. Besides: which objects are
//! structs, so that none is left of which a side removed the rest, and where versions of the kind differ.

use std::collections::BTreeSet;

use super::super::Object;
use super::super::json::Json;
use super::catalogue::Key;
use super::custom::{How, KIND_MAX, Kind, Node};

/// Objects deeper than this in each other are not read: what is kept must be readable by others.
const DEPTH_MAX: usize = 40;

/// Why nothing is kept of a definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// It is none that is understood.
    #[error("its definition cannot be read")]
    Unreadable,
    /// Too much of it matters.
    #[error("its schema is too large")]
    TooLarge,
    /// Its parts lie too deep in each other.
    #[error("its schema is too deep")]
    TooDeep,
}

/// Reads a definition, in JSON or in protobuf.
///
/// # Errors
/// When its kind must be merged without a schema.
pub fn read(value: &[u8]) -> Result<Kind, Unfit> {
    let object = Object::parse(value).ok_or(Unfit::Unreadable)?.json;
    let text = |value: Option<&Json>| value.and_then(Json::as_str).map(str::to_owned).ok_or(Unfit::Unreadable);
    if text(object.get("kind"))? != "CustomResourceDefinition" {
        return Err(Unfit::Unreadable);
    }
    let spec = object.get("spec").ok_or(Unfit::Unreadable)?;
    let group = text(spec.get("group"))?;
    let name = text(spec.get("names").and_then(|names| names.get("kind")))?;
    let Some(Json::List(list)) = spec.get("versions") else { return Err(Unfit::Unreadable) };
    // Definitions are stored as v1beta1: where all versions have one schema, it stands once, beside them.
    let shared = spec.get("validation").and_then(|validation| validation.get("openAPIV3Schema"));
    let schemas: Vec<(String, &Json)> = list
        .iter()
        .filter_map(|version| {
            let own = version.get("schema").and_then(|schema| schema.get("openAPIV3Schema"));
            Some((version.get("name")?.as_str()?.to_owned(), own.or(shared)?))
        })
        .collect();
    if schemas.is_empty() {
        return Err(Unfit::Unreadable);
    }
    let mut versions: Vec<(Vec<String>, Node)> = vec![];
    for (name, schema) in &schemas {
        let mut root = Node { how: How::Plain, is_object: true, ..node(schema, 0)? };
        for (_, other) in &schemas {
            note_strange(&mut root, schema, other);
        }
        match versions.iter_mut().find(|(_, like)| *like == root) {
            Some((names, _)) => names.push(name.clone()),
            None => versions.push((vec![name.clone()], root)),
        }
    }
    let kind = Kind { group, name, versions };
    if kind.encode().len() > KIND_MAX { Err(Unfit::TooLarge) } else { Ok(kind) }
}

fn is_true(schema: &Json, field: &str) -> bool {
    schema.get(field) == Some(&Json::Bool(true))
}

fn text<'a>(schema: &'a Json, field: &str) -> &'a str {
    schema.get(field).and_then(Json::as_str).unwrap_or_default()
}

fn properties(schema: &Json) -> impl Iterator<Item = (&str, &Json)> {
    let fields = schema.get("properties").and_then(Json::as_map).into_iter().flatten();
    fields.map(|(name, value)| (name.as_str(), value))
}

/// The schema of what lies under other keys of a map.
fn others(schema: &Json) -> Option<&Json> {
    schema.get("additionalProperties").filter(|others| matches!(others, Json::Map(_)))
}

/// What is declared of a list.
fn list(schema: &Json) -> How {
    match text(schema, "x-kubernetes-list-type") {
        "set" => How::Set,
        "map" => {
            let items = schema.get("items").and_then(|items| items.get("properties"));
            let default = |name: &str| items?.get(name)?.get("default").filter(|value| **value != Json::Null);
            let names = match schema.get("x-kubernetes-list-map-keys") {
                Some(Json::List(names)) => names.iter().filter_map(Json::as_str).collect(),
                _ => vec![],
            };
            let key = |name: &str| Key {
                name: name.to_owned().into(),
                default: default(name).map(|default| default.canonical().into()),
            };
            How::Keyed(names.into_iter().map(key).collect())
        }
        _ => How::Plain,
    }
}

/// What matters of a schema.
fn node(schema: &Json, depth: usize) -> Result<Node, Unfit> {
    if depth > DEPTH_MAX {
        return Err(Unfit::TooDeep);
    }
    if text(schema, "type") == "array" {
        let how = list(schema);
        let each = match (&how, schema.get("items")) {
            (How::Keyed(_), Some(items)) => Some(node(items, depth + 1)?),
            _ => None,
        };
        return Ok(Node { how, each: each.filter(|each| !each.is_silent()).map(Box::new), ..Node::default() });
    }
    if text(schema, "x-kubernetes-map-type") == "atomic" {
        return Ok(Node { how: How::Atomic, ..Node::default() });
    }
    let is_object = is_true(schema, "x-kubernetes-embedded-resource");
    let mut fields = vec![];
    for (name, field) in properties(schema) {
        let mut inner = node(field, depth + 1)?;
        // The fields of a condition belong together, so it comes whole from one side.
        if name == "conditions"
            && matches!(&inner.how, How::Keyed(keys) if matches!(&keys[..], [key] if key.name == "type"))
        {
            inner.each = Some(Box::new(Node { how: How::Atomic, ..Node::default() }));
        }
        fields.push((name.to_owned(), inner));
    }
    let how = if fields.is_empty() && !is_object { How::Plain } else { How::Struct };
    let each = others(schema).map(|others| node(others, depth + 1)).transpose()?;
    fields.retain(|(_, inner)| !inner.is_silent());
    let each = each.filter(|each| !each.is_silent()).map(Box::new);
    Ok(Node { how, is_object, fields: fields.into_iter().collect(), each, strange: BTreeSet::new() })
}

/// Whether values of both schemas are of one form, whatever lies in them.
fn is_alike(one: &Json, other: &Json) -> bool {
    let words = ["type", "x-kubernetes-map-type"];
    words.iter().all(|word| text(one, word) == text(other, word))
        && is_true(one, "x-kubernetes-embedded-resource") == is_true(other, "x-kubernetes-embedded-resource")
        && is_true(one, "x-kubernetes-int-or-string") == is_true(other, "x-kubernetes-int-or-string")
        && list(one) == list(other)
        && others(one).is_some() == others(other).is_some()
}

/// Whether values of both schemas are of one form in all parts.
fn is_same(one: &Json, other: &Json) -> bool {
    let names = |schema| properties(schema).map(|(name, _)| name).collect::<Vec<_>>();
    let both = |a: Option<&Json>, b: Option<&Json>| match (a, b) {
        (Some(a), Some(b)) => is_same(a, b),
        (a, b) => a.is_some() == b.is_some(),
    };
    is_alike(one, other)
        && names(one) == names(other)
        && properties(one).zip(properties(other)).all(|((_, one), (_, other))| is_same(one, other))
        && both(one.get("items"), other.get("items"))
        && both(others(one), others(other))
}

/// Notes what another version of the kind has that this one has not, or means otherwise.
fn note_strange(node: &mut Node, own: &Json, other: &Json) {
    let mine = |name: &str| own.get("properties").and_then(|properties| properties.get(name));
    for (name, theirs) in properties(other) {
        let Some(mine) = mine(name).filter(|mine| is_alike(mine, theirs)) else {
            node.strange.insert(name.to_owned());
            continue;
        };
        let is_whole = text(mine, "type") == "array" && list(mine) == How::Plain
            || text(mine, "x-kubernetes-map-type") == "atomic";
        if is_whole {
            if !is_same(mine, theirs) {
                node.strange.insert(name.to_owned());
            }
            continue;
        }
        let inner = node.fields.entry(name.to_owned()).or_default();
        note_inside(inner, mine, theirs);
        if inner.is_silent() {
            node.fields.remove(name);
        }
    }
    if let (Some(mine), Some(theirs)) = (others(own), others(other)) {
        note_each(node, mine, theirs);
    }
}

fn note_inside(node: &mut Node, mine: &Json, theirs: &Json) {
    note_strange(node, mine, theirs);
    if let (Some(mine), Some(theirs)) = (mine.get("items"), theirs.get("items")) {
        note_each(node, mine, theirs);
    }
}

fn note_each(node: &mut Node, mine: &Json, theirs: &Json) {
    let mut each = node.each.take().unwrap_or_default();
    note_inside(&mut each, mine, theirs);
    node.each = Some(each).filter(|each| !each.is_silent());
}

#[cfg(test)]
mod tests {
    use super::super::super::Encoding;
    use super::*;

    /// A definition with these versions, each a name and a schema.
    fn definition(versions: &[(&str, &str)]) -> String {
        let version = |(name, schema): &(&str, &str)| {
            format!(r#"{{"name":"{name}","schema":{{"openAPIV3Schema":{schema}}},"served":true,"storage":true}}"#)
        };
        let versions: Vec<String> = versions.iter().map(version).collect();
        format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"t"}},"spec":{{"group":"e.com","names":{{"kind":"Thing","plural":"things"}},"scope":"Cluster","versions":[{}]}}}}"#,
            versions.join(",")
        )
    }

    fn object(properties: &str) -> String {
        format!(r#"{{"type":"object","properties":{{{properties}}}}}"#)
    }

    fn root(properties: &str) -> Node {
        let mut kind = read(definition(&[("v1", &object(properties))]).as_bytes()).unwrap();
        kind.versions.remove(0).1
    }

    #[test]
    fn only_what_does_not_hold_anyway_is_kept() {
        let root = root(
            r#""a":{"type":"string"},"b":{"type":"array","items":{"type":"object","properties":{"c":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}}}},
               "m":{"type":"object","additionalProperties":{"type":"string"}},"i":{"x-kubernetes-int-or-string":true},
               "u":{"type":"object","x-kubernetes-preserve-unknown-fields":true}"#,
        );
        assert_eq!(root, Node { is_object: true, ..Node::default() });
    }

    #[test]
    fn lists_maps_and_objects_are_what_their_extensions_say() {
        let root = root(
            r#""set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
               "one":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"a":{"type":"string"}}},
               "keyed":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a","b","c"],"items":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer","default":8},"c":{"type":"string","default":"x"}}}},
               "conditions":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["type"],"items":{"type":"object","properties":{"type":{"type":"string"}}}},
               "inner":{"type":"object","x-kubernetes-embedded-resource":true},
               "byName":{"type":"object","additionalProperties":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"integer"}}}"#,
        );
        assert_eq!(root.fields["set"].how, How::Set);
        assert_eq!(root.fields["one"], Node { how: How::Atomic, ..Node::default() });
        let keys = vec![Key::new("a"), Key::or("b", "8"), Key::or("c", "\"x\"")];
        assert_eq!(root.fields["keyed"].how, How::Keyed(keys));
        assert_eq!(root.fields["keyed"].each().map(|each| &each.how), Some(&How::Struct));
        assert_eq!(root.fields["conditions"].each().map(|each| &each.how), Some(&How::Atomic));
        assert!(root.fields["inner"].is_object);
        assert_eq!(root.fields["byName"].field("any").map(|each| &each.how), Some(&How::Set));
    }

    #[test]
    fn protobuf_says_the_same_and_what_is_kept_comes_back_as_it_was() {
        let keyed = object(
            r#""k":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"],"items":{"type":"object","properties":{"a":{"type":"integer","default":0}}}}"#,
        );
        let text = definition(&[("v1", &keyed), ("v2", &keyed), ("v3", &object(""))]);
        let kind = read(text.as_bytes()).unwrap();
        let json = Object::parse(text.as_bytes()).unwrap();
        let raw = Object { encoding: Encoding::Protobuf, ..json.clone() }.write(&json.json).unwrap();
        assert!(raw.starts_with(b"k8s\0"));
        assert_eq!(read(&raw).as_ref(), Ok(&kind));
        assert_eq!(Kind::decode(&kind.encode()), Some(kind.clone()));
        let names: Vec<usize> = kind.versions.iter().map(|(names, _)| names.len()).collect();
        assert_eq!(names, [2, 1]);
        assert_eq!(Kind::decode(b"\xff"), None);
    }

    #[test]
    fn a_schema_that_all_versions_share_stands_beside_them_in_what_kubernetes_stores() {
        let set = object(r#""tags":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}"#);
        let stored = |versions: &str| {
            format!(
                r#"{{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{{"name":"t"}},"spec":{{"group":"e.com","version":"v1","names":{{"kind":"Thing","plural":"things"}},"scope":"Cluster","validation":{{"openAPIV3Schema":{set}}},"versions":[{versions}]}}}}"#
            )
        };
        let one = r#"{"name":"v1","served":true,"storage":true}"#;
        let both = format!(r#"{one},{{"name":"v2","served":true,"storage":false}}"#);
        let of = |versions: &str| read(stored(versions).as_bytes()).unwrap();
        assert_eq!(of(one), read(definition(&[("v1", &set)]).as_bytes()).unwrap());
        assert_eq!(of(one).versions[0].1.fields["tags"].how, How::Set);
        assert_eq!(of(&both), read(definition(&[("v1", &set), ("v2", &set)]).as_bytes()).unwrap());
    }

    #[test]
    fn what_versions_do_not_share_is_strange_to_each_other() {
        let one = object(
            r#""size":{"type":"integer"},"list":{"type":"array","items":{"type":"string"}},"same":{"type":"object","properties":{"a":{"type":"string"}}}"#,
        );
        let other = object(
            r#""count":{"type":"integer"},"list":{"type":"array","items":{"type":"integer"}},"same":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}}}"#,
        );
        let kind = read(definition(&[("v1", &one), ("v2", &other)]).as_bytes()).unwrap();
        let strange = |at: usize| kind.versions[at].1.strange.iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(strange(0), ["count", "list"]);
        assert_eq!(strange(1), ["list", "size"]);
        assert!(kind.versions[0].1.fields["same"].strange.contains("b"));
        assert!(kind.versions[1].1.fields["same"].strange.is_empty());
    }

    #[test]
    fn what_is_no_definition_or_too_deep_or_too_large_is_refused() {
        for text in [
            "",
            "{",
            r#"{"apiVersion":"v1","kind":"Pod"}"#,
            r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition"}"#,
        ] {
            assert_eq!(read(text.as_bytes()), Err(Unfit::Unreadable), "{text}");
        }
        assert_eq!(read(definition(&[]).as_bytes()), Err(Unfit::Unreadable), "it has no schema");
        // JSON itself is not read any deeper.
        let deep = (0..42).fold(r#"{"type":"string"}"#.to_owned(), |inner, _| object(&format!(r#""a":{inner}"#)));
        assert_eq!(read(definition(&[("v1", &deep)]).as_bytes()), Err(Unfit::TooDeep));
        let deepest = (0..38).fold(r#"{"type":"string"}"#.to_owned(), |inner, _| object(&format!(r#""a":{inner}"#)));
        let kind = read(definition(&[("v1", &deepest)]).as_bytes()).unwrap();
        assert_eq!(Kind::decode(&kind.encode()), Some(kind), "others can read it");
        let fields: Vec<String> = (0..5_000)
            .map(|n| format!(r#""field-{n}":{{"type":"object","x-kubernetes-map-type":"atomic"}}"#))
            .collect();
        let large = object(&fields.join(","));
        assert_eq!(read(definition(&[("v1", &large)]).as_bytes()), Err(Unfit::TooLarge));
    }
}
