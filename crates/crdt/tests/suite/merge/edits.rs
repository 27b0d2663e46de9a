//! Random edits of an object, as controllers and people make them.

use eddy_crdt::merge::Json;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

pub fn string(text: impl Into<String>) -> Json {
    Json::String(text.into())
}

pub fn number(number: i64) -> Json {
    Json::Number(number.to_string())
}

pub fn parse(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap_or_else(|| panic!("no JSON: {text}"))
}

/// Makes that field what it is to be, and the maps on the way to it.
pub fn set(object: &mut Json, path: &[&str], value: Json) {
    if !matches!(object, Json::Map(_)) {
        *object = Json::Map(Default::default());
    }
    let Json::Map(map) = object else { return };
    match path {
        [] => {}
        [last] => drop(map.insert((*last).to_owned(), value)),
        [first, rest @ ..] => set(map.entry((*first).to_owned()).or_insert(Json::Null), rest, value),
    }
}

/// Takes a field away.
pub fn unset(object: &mut Json, path: &[&str]) {
    let (Json::Map(map), [first, rest @ ..]) = (object, path) else { return };
    if rest.is_empty() {
        map.remove(*first);
    } else if let Some(value) = map.get_mut(*first) {
        unset(value, rest);
    }
}

pub fn get<'a>(object: &'a Json, path: &[&str]) -> Option<&'a Json> {
    path.iter().try_fold(object, |value, field| value.get(field))
}

/// A new object of some kind.
pub fn fresh(rng: &mut SmallRng) -> Json {
    let (api_version, kind) = *KINDS.choose(rng).unwrap_or(&KINDS[0]);
    let mut object = parse(r#"{"metadata":{"name":"a","generation":1,"labels":{}},"spec":{"replicas":1}}"#);
    set(&mut object, &["apiVersion"], string(api_version));
    set(&mut object, &["kind"], string(kind));
    set(&mut object, &["metadata", "uid"], string(format!("u{}", rng.random_range(0..1000))));
    object
}

const KINDS: [(&str, &str); 4] =
    [("v1", "Pod"), ("v1", "Pod"), ("apps/v1", "Deployment"), ("coordination.k8s.io/v1", "Lease")];

/// Changes a list in place.
fn list(object: &mut Json, path: &[&str], change: impl FnOnce(&mut Vec<Json>)) {
    let mut items = match get(object, path) {
        Some(Json::List(items)) => items.clone(),
        _ => vec![],
    };
    change(&mut items);
    set(object, path, Json::List(items));
}

fn few(rng: &mut SmallRng) -> String {
    ["a", "b", "c"].choose(rng).copied().unwrap_or("a").to_owned()
}

fn int(object: &Json, path: &[&str]) -> i64 {
    match get(object, path) {
        Some(Json::Number(number)) => number.parse().unwrap_or(0),
        _ => 0,
    }
}

/// One edit.
pub fn edit(rng: &mut SmallRng, object: &mut Json) {
    let (name, n) = (few(rng), rng.random_range(0..5));
    match rng.random_range(0..19) {
        0 | 1 => set(object, &["metadata", "labels", &name], string(n.to_string())),
        2 => unset(object, &["metadata", "labels", &name]),
        3 => set(object, &["metadata", "labels"], Json::Map(Default::default())),
        4 => {
            let generation = int(object, &["metadata", "generation"]);
            set(object, &["metadata", "generation"], number(generation + 1));
            set(object, &["spec", "image"], string(n.to_string()));
        }
        5 => set(object, &["spec", "replicas"], number(n)),
        6 => {
            let replicas = int(object, &["spec", "replicas"]);
            set(object, &["spec", "replicas"], number((replicas + n - 2).max(0)));
        }
        7 => set(object, &["spec", "nodeName"], string(format!("node-{n}"))),
        8 | 9 => list(object, &["status", "conditions"], |items| {
            items.retain(|item| item.get("type") != Some(&string(&*name)));
            let mut condition = parse(r#"{"status":"True"}"#);
            set(&mut condition, &["type"], string(&*name));
            set(&mut condition, &["n"], number(n));
            items.insert((n as usize).min(items.len()), condition);
        }),
        10 => list(object, &["status", "conditions"], |items| {
            items.retain(|item| item.get("type") != Some(&string(&*name)));
        }),
        11 => {
            list(object, &["metadata", "finalizers"], |items| match items.iter().position(|i| i == &string(&*name)) {
                Some(at) => drop(items.remove(at)),
                None => items.push(string(&*name)),
            })
        }
        // What is a map becomes a scalar or a list, and the other way round.
        12 => set(object, &["spec", "odd"], [number(n), Json::List(vec![]), Json::Null][n as usize % 3].clone()),
        13 => set(object, &["spec", "odd", &name], number(n)),
        14 => {
            set(object, &["status", "conditions"], [Json::Null, number(1), Json::List(vec![])][n as usize % 3].clone())
        }
        15 => unset(object, &["status"]),
        16 => set(object, &["status", "phase"], string(n.to_string())),
        17 => {
            let at = n.to_string();
            let claim = [("leaseTransitions", number(n % 2)), ("acquireTime", string(few(rng)))];
            claim.into_iter().for_each(|(field, value)| set(object, &["spec", field], value));
            set(object, &["spec", "holderIdentity"], string(name));
            set(object, &["spec", "renewTime"], string(at));
        }
        _ => set(object, &["metadata", "generation"], [number(1), string("x"), number(n)][n as usize % 3].clone()),
    }
}
