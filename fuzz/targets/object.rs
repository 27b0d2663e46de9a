//! Kubernetes objects, as JSON and as protobuf: read and written, taken apart and put together, edited at three sites, merged.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use eddy_crdt::merge::{
    Encoding, Json, MergeOutcome, Object, RuleBook, Rules, Version, Window, assemble, flatten, peek_node, peek_uid,
};
use eddy_crdt::{Birth, ChangeKind, Dot, Incarnation, Keyspace, Live, Origin, ReplicaId, Stamp, VersionVector};

use super::input::Input;

/// How many sites edit the object at once.
const SITES: u64 = 3;

/// What an edit may put somewhere.
const VALUES: &[&str] = &[
    "null",
    "1",
    "2",
    "-0.0",
    "\"a\"",
    "\"b\"",
    "[]",
    "{}",
    "[1]",
    "[\"a\",\"b\"]",
    "{\"a\":1}",
    "{\"name\":\"a\"}",
    "[{\"name\":\"a\"}]",
    "[{\"type\":\"A\",\"n\":1},{\"type\":\"B\"}]",
    "true",
    "\"u2\"",
];

/// Fields that an edit may add.
const FIELDS: &[&str] = &[
    "a",
    "b",
    "labels",
    "finalizers",
    "conditions",
    "name",
    "uid",
    "nodeName",
    "replicas",
    "status",
    "spec",
    "metadata",
    "containers",
    "type",
    "",
    "[\"",
];

/// Nine bytes of edits for each site, then the text of the object.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let edits: Vec<&[u8]> = (0..SITES).map(|_| input.take(9)).collect();
    let text = input.rest();
    // Whatever looks at a value without reading it whole must bear anything.
    let (_, _) = (peek_uid(text), peek_node(text));
    if let Some(json) = Json::parse(text) {
        assert_eq!(Json::parse(json.canonical().as_bytes()).as_ref(), Some(&json));
    }
    let Some(object) = Object::parse(text) else { return };
    comes_back(&object);
    if object.encoding == Encoding::Protobuf {
        let written = object.write(&object.json).expect("what was read can be written");
        assert_eq!(Object::parse(&written).as_ref(), Some(&object), "written otherwise");
    }
    let sites: Vec<Json> = edits.iter().map(|edits| edited(&object.json, edits)).collect();
    merges(text, &object, &sites);
}

/// An object that was taken apart is the same when it is put together.
fn comes_back(object: &Object) {
    let (rules, mut flat) = (Rules::default(), BTreeMap::new());
    flatten(&object.json, &object.schema(&rules), &mut |written, path, text| {
        let before = flat.insert(written.to_owned(), (path.clone(), text));
        assert!(before.is_none(), "{written} twice");
    });
    let back = assemble(&object.schema(&rules), flat.values().map(|(path, text)| (path, Cow::Borrowed(text.as_str()))));
    assert_eq!(back, object.json);
}

fn edited(object: &Json, edits: &[u8]) -> Json {
    let mut json = object.clone();
    for edit in edits.chunks(3) {
        let &[mut at, what, value] = edit else { break };
        change(&mut json, &mut at, what, VALUES[usize::from(value) % VALUES.len()]);
    }
    json
}

/// Counts places down to the one that changes, depth first. Tells whether it was there.
fn change(json: &mut Json, at: &mut u8, what: u8, value: &str) -> bool {
    if *at == 0 {
        let value = Json::parse(value.as_bytes()).expect("a value");
        match (json, what % 3) {
            (Json::Map(map), 0) => drop(map.insert(FIELDS[usize::from(what / 3) % FIELDS.len()].into(), value)),
            (Json::Map(map), 1) => {
                let last = map.keys().next_back().cloned();
                drop(last.and_then(|last| map.remove(&last)));
            }
            (Json::List(list), 0) => list.push(value),
            (Json::List(list), 1) => drop(list.pop()),
            (json, _) => *json = value,
        }
        return true;
    }
    *at -= 1;
    match json {
        Json::Map(map) => map.iter_mut().any(|(_, value_of)| change(value_of, at, what, value)),
        Json::List(list) => list.iter_mut().any(|item| change(item, at, what, value)),
        _ => false,
    }
}

/// Versions that were made at once give the same in any order, and it is an object where all of them are.
fn merges(base: &[u8], object: &Object, sites: &[Json]) {
    let origin = |n: u64| Origin { replica: ReplicaId::new(n), birth: Birth::new(7) };
    let first = Dot { origin: origin(1), seq: 1 };
    let incarnation = Incarnation { stamp: Stamp::new(1), dot: first };
    let base = Live { value: base.to_vec().into(), lease: None, version: 1, incarnation };
    // As the object was, where that has a place for it.
    let written = |json: &Json| object.write(json).unwrap_or_else(|| json.canonical().into());
    let version = |(n, json): (u64, &Json)| Version {
        dot: Dot { origin: origin(n), seq: 2 },
        stamp: Stamp::new(2 + n),
        rules: 1,
        deps: Arc::new([first].into_iter().filter(|dot| dot.origin != origin(n)).collect::<VersionVector>()),
        kind: ChangeKind::Put { value: written(json), lease: None, version: 2 },
        incarnation,
    };
    let versions: Vec<Version> = (1..).zip(sites).map(version).collect();
    let forward = outcome(&base, versions.iter());
    assert_eq!(forward, outcome(&base, versions.iter().rev()), "the order of arrival shows");
    assert_eq!(forward, outcome(&base, [1, 0, 2].map(|at| &versions[at]).into_iter()), "the order of arrival shows");
    let Some(live) = forward.live else {
        // Only an object that was being deleted goes when nothing is left to do.
        let begun =
            |json: &Json| json.get("metadata").is_some_and(|metadata| metadata.get("deletionTimestamp").is_some());
        assert!([&object.json].into_iter().chain(sites).any(begun), "nothing was deleted");
        return;
    };
    if sites.iter().all(|json| Object::parse(&written(json)).is_some()) {
        let merged = Object::parse(&live.value).expect("objects merge to an object");
        comes_back(&merged);
    }
}

fn outcome<'a>(base: &Live, versions: impl Iterator<Item = &'a Version>) -> MergeOutcome {
    let mut window = Window::new(Some(base.clone()));
    versions.for_each(|version| window.add(version.clone()));
    window.outcome(&RuleBook::default(), Keyspace::Client, b"/registry/pods/default/a")
}
