//! Definitions of custom resources that come, change and go while clients change such resources.

use eddy_crdt::Command;
use eddy_crdt::merge::Json;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::clients::put;
use super::host::Host;
use super::world::{Outcome, World};
use crate::support::build::delete_op;

const DEFINITION: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/things.example.com";
const THING: &str = "/registry/example.com/things/default/s";
const PARTS: [&str; 3] = ["x", "y", "z"];

/// A definition whose parts are a keyed list, one value, or in a spec that is one value.
fn definition(which: usize) -> String {
    let items = r#"{"type":"object","properties":{"id":{"type":"string"},"n":{"type":"integer"}}}"#;
    let keyed = r#""x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["id"],"#;
    let (list, map) = [(keyed, ""), ("", ""), (keyed, r#""x-kubernetes-map-type":"atomic","#)][which];
    let parts = format!(r#"{{"type":"array",{list}"items":{items}}}"#);
    let spec = format!(r#"{{{map}"type":"object","properties":{{"parts":{parts},"note":{{"type":"string"}}}}}}"#);
    let schema = format!(r#"{{"openAPIV3Schema":{{"type":"object","properties":{{"spec":{spec}}}}}}}"#);
    format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"things.example.com","uid":"d"}},"spec":{{"group":"example.com","names":{{"kind":"Thing"}},"versions":[{{"name":"v1","schema":{schema}}}]}}}}"#
    )
}

/// The parts of a thing.
fn parts(thing: &Json) -> Option<Vec<(String, i64)>> {
    let Json::List(list) = thing.get("spec")?.get("parts")? else { return None };
    let part = |part: &Json| {
        let Json::Number(n) = part.get("n")? else { return None };
        Some((part.get("id")?.as_str()?.to_owned(), n.parse().ok()?))
    };
    list.iter().map(part).collect()
}

fn thing(parts: &[(String, i64)], note: usize) -> String {
    let parts: Vec<String> = parts.iter().map(|(id, n)| format!(r#"{{"id":"{id}","n":{n}}}"#)).collect();
    let parts = parts.join(",");
    format!(
        r#"{{"apiVersion":"example.com/v1","kind":"Thing","metadata":{{"name":"s","uid":"s"}},"spec":{{"note":"{note}","parts":[{parts}]}}}}"#
    )
}

impl World {
    pub fn define(&mut self, host: usize, which: usize) -> Outcome {
        let command = match which {
            3 => Command::Delete(delete_op(DEFINITION)),
            which => Command::Put(put(DEFINITION.into(), definition(which), None)),
        };
        self.command(host, command).map(drop)
    }

    pub fn reshape(&mut self, host: usize, seed: u64) -> Outcome {
        let Some(up) = self.hosts.get(host).and_then(Host::up) else { return Ok(()) };
        let rng = &mut SmallRng::seed_from_u64(seed);
        let before = up.shadow.kvs.get(THING.as_bytes()).and_then(|kv| Json::parse(&kv.value));
        let mut parts = before.as_ref().and_then(parts).unwrap_or_default();
        let id = PARTS[rng.random_range(0..PARTS.len())];
        parts.retain(|(other, n)| other != id || *n < 2);
        match parts.iter_mut().find(|(other, _)| other == id) {
            Some((_, n)) => *n += rng.random_range(1..3),
            None => parts.push((id.to_owned(), rng.random_range(0..2))),
        }
        let value = thing(&parts, rng.random_range(0..3));
        self.command(host, Command::Put(put(THING.into(), value, None)))?;
        self.look_at_windows(host);
        Ok(())
    }
}
