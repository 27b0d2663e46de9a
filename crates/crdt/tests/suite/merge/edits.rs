//! Random edits of an object, as controllers and people make them.

use eddy_crdt::merge::Json;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

pub fn string(text: impl Into<String>) -> Json {
    Json::String(text.into().into())
}

pub fn number(number: i64) -> Json {
    Json::Number(number.to_string().into())
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
        [last] => drop(map.insert((*last).into(), value)),
        [first, rest @ ..] => set(map.entry((*first).into()).or_insert(Json::Null), rest, value),
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

const KINDS: [(&str, &str); 8] = [
    ("v1", "Pod"),
    ("v1", "Pod"),
    ("apps/v1", "Deployment"),
    ("coordination.k8s.io/v1", "Lease"),
    ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ("v1", "Service"),
    ("v1", "RangeAllocation"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
];

/// One edit of what is only right together, or not right beside something else.
fn contradict(rng: &mut SmallRng, object: &mut Json) {
    let (name, n) = (few(rng), rng.random_range(0..5));
    let pod: &[&str] = match get(object, &["kind"]).and_then(Json::as_str) {
        Some("Pod") => &["spec"],
        _ => &["spec", "template", "spec"],
    };
    let under = |fields: &[&'static str]| -> Vec<&str> { pod.iter().chain(fields).copied().collect() };
    match rng.random_range(0..11) {
        0 => list(object, &["metadata", "ownerReferences"], |items| {
            items.retain(|item| item.get("uid") != Some(&string(&*name)));
            let is_owned = items.iter().any(|item| item.get("controller").is_some());
            let controller = if is_owned || n == 0 { "" } else { r#","controller":true"# };
            items.push(parse(&format!(r#"{{"uid":"{name}","name":"{n}"{controller}}}"#)));
        }),
        1 => list(object, &["metadata", "ownerReferences"], |items| {
            items.retain(|item| item.get("uid") != Some(&string(&*name)));
        }),
        2 => {
            let most = int(object, &["spec", "maxReplicas"]);
            set(object, &["spec", "minReplicas"], number(n.min(most)));
        }
        3 => {
            let least = int(object, &["spec", "minReplicas"]);
            set(object, &["spec", "maxReplicas"], number(n.max(least)));
        }
        4 => list(object, &under(&["containers"]), |items| {
            items.retain(|item| item.get("name") != Some(&string(&*name)));
            let resources = format!(r#"{{"requests":{{"cpu":"{n}"}},"limits":{{"cpu":"{}"}}}}"#, n + 1);
            items.push(parse(&format!(r#"{{"name":"{name}","resources":{resources}}}"#)));
        }),
        5 => list(object, &under(&["containers"]), |items| {
            let limit = |item: &Json| int(item, &["resources", "limits", "cpu"]);
            items.iter_mut().for_each(|item| {
                let request = limit(item).min(n);
                set(item, &["resources", "requests", "cpu"], number(request));
            });
        }),
        6 => list(object, &under(&["containers"]), |items| {
            items.iter_mut().for_each(|item| {
                let limit = int(item, &["resources", "requests", "cpu"]).max(n);
                set(item, &["resources", "limits", "cpu"], number(limit));
            });
        }),
        7 => set(object, &["spec", "type"], string(["ClusterIP", "NodePort"][n as usize % 2])),
        8 => list(object, &["spec", "ports"], |items| {
            items.retain(|item| int(item, &["port"]) != n);
            items.push(parse(&format!(r#"{{"name":"{name}","port":{n},"nodePort":{}}}"#, 30_000 + n)));
        }),
        9 => {
            set(object, &["metadata", "deletionTimestamp"], string(format!("2026-01-01T00:00:0{n}Z")));
            set(object, &["metadata", "deletionGracePeriodSeconds"], number(n % 2));
        }
        _ => {
            set(object, &["data"], string(["AQ==", "Ag==", "BAg=", "AAQ="][n as usize % 4]));
            let versions = |names: &[&str]| Json::List(names.iter().map(|name| string(*name)).collect());
            set(object, &["status", "storedVersions"], versions([&[&*name], &["a", &*name][..]][n as usize % 2]));
            let all = ["a", "b"].map(|name| parse(&format!(r#"{{"name":"{name}"}}"#)));
            set(object, &["spec", "versions"], Json::List(all.to_vec()));
        }
    }
}

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
    if rng.random_range(0..3) == 0 {
        return contradict(rng, object);
    }
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
