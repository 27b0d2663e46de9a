//! The table of chosen cases in `tests/cases`: what two sites that cannot hear each other make of an object, and what it is when they
//! meet. Each is run in JSON and in protobuf, and in whatever order the versions arrive.

use std::sync::Arc;

use bytes::Bytes;
use eddy_crdt::merge::{Customs, Encoding, Json, Object, RuleBook, Rules, read_definition};

use super::edits::parse;
use super::sites::{Place, Sites};

const TABLES: [&str; 7] = [
    include_str!("../../cases/daily.txt"),
    include_str!("../../cases/kinds.txt"),
    include_str!("../../cases/traps.txt"),
    include_str!("../../cases/together.txt"),
    include_str!("../../cases/refused.txt"),
    include_str!("../../cases/custom.txt"),
    include_str!("../../cases/versions.txt"),
];

/// One case as it is written.
#[derive(Default)]
struct Case {
    name: String,
    object: String,
    a: Vec<String>,
    b: Vec<String>,
    gives: String,
    result: Vec<String>,
    /// What the report of the merge names, in its order.
    lost: Vec<String>,
    why: String,
    /// The definitions of custom resources in its table.
    custom: Customs,
}

/// The cases of a table; objects are named before they are used.
fn read(table: &str) -> Vec<Case> {
    let mut objects: Vec<(&str, &str)> = vec![];
    let mut cases: Vec<Case> = vec![];
    let mut kinds = vec![];
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == "object" {
            objects.push(rest.split_once(' ').expect("a name and an object"));
        } else if word == "definition" {
            kinds.push(Arc::new(read_definition(rest.as_bytes()).expect("a definition")));
        } else if word == "case" {
            let custom = Customs::new(kinds.clone());
            cases.push(Case { name: rest.to_owned(), custom, ..Case::default() });
        } else {
            let case = cases.last_mut().expect("a case");
            match word {
                "of" => {
                    let found = objects.iter().find(|(name, _)| *name == rest);
                    case.object = found.unwrap_or_else(|| panic!("no object {rest}")).1.to_owned();
                }
                "A" => case.a.push(rest.to_owned()),
                "B" => case.b.push(rest.to_owned()),
                "R" => case.result.push(rest.to_owned()),
                "gives" => case.gives = rest.to_owned(),
                "lost" => case.lost.push(rest.to_owned()),
                // For tools/accept, which has a real API server take the edits.
                "raw" => assert!(!rest.is_empty(), "{}: why?", case.name),
                "why" => case.why = rest.to_owned(),
                _ => panic!("{word} in {}", case.name),
            }
        }
    }
    cases
}

/// Makes an edit: `.path = JSON`, or `.path gone`. An element is named as `[name=a]`, and added where there is none.
fn edit(object: &mut Json, edit: &str) {
    let (path, value) = edit.split_once(" = ").map_or_else(
        || (edit.strip_suffix(" gone").unwrap_or_else(|| panic!("no edit: {edit}")), None),
        |(path, value)| (path, Some(parse(value))),
    );
    // A dot in a name of an element parts nothing.
    let mut steps: Vec<&str> = vec![];
    let mut rest = path;
    while !rest.is_empty() {
        let end = match rest.strip_prefix('[') {
            Some(_) => rest.find(']').map_or(rest.len(), |at| at + 1),
            None => rest[1..].find(['.', '[']).map_or(rest.len(), |at| at + 1),
        };
        steps.push(rest[1..end].trim_start_matches('.'));
        rest = &rest[end..];
    }
    apply(object, &steps, value);
}

fn apply(value: &mut Json, steps: &[&str], new: Option<Json>) {
    let [step, rest @ ..] = steps else {
        *value = new.expect("a value");
        return;
    };
    if let Some(named) = step.strip_suffix(']') {
        let (key, name) = named.split_once('=').expect("a key and a name");
        if !matches!(value, Json::List(_)) {
            *value = Json::List(vec![]);
        }
        let Json::List(list) = value else { return };
        let at = list.iter().position(|item| item.get(key).and_then(Json::as_str) == Some(name));
        match (at, rest, new) {
            (Some(at), [], None) => drop(list.remove(at)),
            (Some(at), rest, new) => apply(&mut list[at], rest, new),
            (None, [], Some(new)) => list.push(new),
            (None, ..) => panic!("no element {named}"),
        }
        return;
    }
    if !matches!(value, Json::Map(_)) {
        *value = Json::Map(Default::default());
    }
    let Json::Map(map) = value else { return };
    match (rest, new) {
        ([], None) => drop(map.remove(*step).unwrap_or_else(|| panic!("no {step} to take away"))),
        (rest, new) => apply(map.entry((*step).into()).or_insert(Json::Null), rest, new),
    }
}

fn edited(base: &Json, edits: &[&Vec<String>]) -> Json {
    let mut object = base.clone();
    edits.iter().copied().flatten().for_each(|one| edit(&mut object, one));
    object
}

fn normal(json: &Json) -> Json {
    Object::parse(json.canonical().as_bytes()).expect("an object").json
}

fn written(json: &Json, encoding: Encoding) -> Bytes {
    Object { json: Json::Null, encoding }.write(&normal(json)).expect("there is a place for all of it")
}

fn check(case: &Case, encodings: [Encoding; 2]) {
    let name = format!("{} ({encodings:?})", case.name);
    assert!(!case.why.is_empty(), "{name}: why?");
    let base = parse(&case.object);
    let mut place = Place::client("/registry/things/default/a");
    place.rules = RuleBook::from(Rules { custom: case.custom.clone(), ..Rules::default() });
    let mut sites = Sites::new(place, 2);
    sites.put(0, written(&base, encodings[0]));
    sites.sync_all();
    sites.put(0, written(&edited(&base, &[&case.a]), encodings[0]));
    sites.put(1, written(&edited(&base, &[&case.b]), encodings[1]));
    sites.sync_all();
    let outcome = sites.outcome(0);
    assert_eq!(sites.outcome(1), outcome, "{name}");
    let expected = match case.gives.as_str() {
        "A B" => Some(edited(&base, &[&case.a, &case.b, &case.result])),
        "A" => Some(edited(&base, &[&case.a, &case.result])),
        "B" => Some(edited(&base, &[&case.b, &case.result])),
        "neither" => Some(edited(&base, &[&case.result])),
        "nothing" => None,
        other => panic!("{name} gives {other}"),
    };
    let merged = outcome.live.as_ref().map(|live| Object::parse(&live.value).expect("an object"));
    let text = |json: Option<&Json>| json.map_or_else(|| "nothing".to_owned(), Json::canonical);
    let expected = expected.as_ref().map(normal);
    assert_eq!(text(merged.as_ref().map(|merged| &merged.json)), text(expected.as_ref()), "{name}");
    assert!(merged.is_none_or(|merged| merged.encoding == encodings[1]), "{name}: written in another way");
    let lost: Vec<String> = outcome.given_up.iter().map(|given_up| given_up.part.to_string()).collect();
    assert_eq!(lost, case.lost, "{name}: what was given up");
    // Whose edit stands instead is the other's.
    for given_up in &outcome.given_up {
        assert!(given_up.stands.as_ref().is_none_or(|stands| stands.dot != given_up.dot), "{name}: {given_up:?}");
    }
    // A site that knows all and writes what it sees changes nothing.
    if let Some(live) = outcome.live {
        sites.put(0, live.value.clone());
        sites.sync_all();
        assert_eq!(sites.live(1).map(|live| live.value), Some(live.value), "{name}: written again");
    }
}

#[test]
fn the_chosen_cases_merge_as_the_table_says() {
    let cases: Vec<Case> = TABLES.into_iter().flat_map(read).collect();
    let mut failed = 0;
    for case in &cases {
        let (json, protobuf) = (Encoding::Json, Encoding::Protobuf);
        // Custom resources have no protobuf.
        let only_json = [[json, json]];
        let all = [[json, json], [protobuf, protobuf], [json, protobuf]];
        for encodings in if case.custom.is_empty() { all.to_vec() } else { only_json.to_vec() } {
            // Each says what is amiss; all of them are wanted.
            failed += usize::from(std::panic::catch_unwind(|| check(case, encodings)).is_err());
        }
    }
    assert_eq!(failed, 0, "of {} cases", cases.len());
    assert!(cases.len() >= 174, "{} cases", cases.len());
}
