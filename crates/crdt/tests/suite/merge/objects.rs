//! Objects as a kube-apiserver stores them, taken apart and put together again.

use std::borrow::Cow;
use std::collections::BTreeMap;

use eddy_crdt::merge::{Json, Object, Rules, assemble, flatten, peek_node, peek_uid};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::edits;

pub const POD: &str = include_str!("objects/pod.json");
pub const DEPLOYMENT: &str = include_str!("objects/deployment.json");
pub const NODE: &str = include_str!("objects/node.json");
pub const LEASE: &str = include_str!("objects/lease.json");
pub const SERVICE: &str = include_str!("objects/service.json");

/// Whether the object is the same after it was taken apart.
fn check(text: &str) -> usize {
    let rules = Rules::default();
    let object = Object::parse(text.as_bytes()).unwrap_or_else(|| panic!("no object: {text}"));
    let mut flat = BTreeMap::new();
    flatten(&object.json, &object.schema(&rules), &mut |written, path, text| {
        assert!(flat.insert(written.to_owned(), (path.clone(), text)).is_none(), "{written} twice");
    });
    let back = assemble(&object.schema(&rules), flat.values().map(|(path, text)| (path, Cow::Borrowed(text.as_str()))));
    assert_eq!(back.canonical(), object.json.canonical());
    assert_eq!(back, object.json);
    assert_eq!(Json::parse(back.canonical().as_bytes()), Some(back));
    assert_eq!(peek_uid(text.as_bytes()), Some(object.uid().map(str::as_bytes)));
    assert_eq!(peek_node(text.as_bytes()), object.node().map(str::as_bytes));
    flat.len()
}

#[test]
fn real_objects_come_back_as_they_were() {
    assert!(check(POD) > 80);
    for text in [DEPLOYMENT, NODE, LEASE, SERVICE] {
        assert!(check(text) > 5);
    }
}

#[test]
fn numbers_and_odd_names_come_back_as_they_were() {
    check(
        r#"{"apiVersion":"v1","kind":"X","spec":{"a":1.0,"b":10000000000000000000001,"c":-0.0,"d":1E5,"":{"":[]},
        "x.y/z":{"[a]":null},"[":"]","list":[[],[{}],{"a":[null]}],"\u0000\"\\":"\u2028"}}"#,
    );
}

#[test]
fn random_objects_come_back_as_they_were() {
    for seed in 0..3_000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut object = edits::fresh(&mut rng);
        (0..20).for_each(|_| edits::edit(&mut rng, &mut object));
        check(&object.canonical());
    }
}

#[test]
fn what_is_no_json_object_with_a_kind_is_opaque() {
    for text in ["", "k8s\0\n\x0f", "[]", "{}", r#"{"kind":"Pod"}"#, r#"{"apiVersion":"v1","kind":1}"#] {
        assert_eq!(Object::parse(text.as_bytes()), None, "{text}");
    }
    assert_eq!(
        Object::parse(POD.replacen("\"spec\"", "\"metadata\"", 1).as_bytes()),
        None,
        "a key that is there twice"
    );
}
