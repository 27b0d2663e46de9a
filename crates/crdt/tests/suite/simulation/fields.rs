//! The oracle of fields: an object that is edited leaf by leaf at all replicas. What it must be follows from the schedule
//! alone: which edits had reached the editor when it edited. Of each leaf those edits count that no other edit of the leaf
//! had seen; of these the latest. Edits of different leaves all survive. Nothing of the merge is asked.

use std::collections::BTreeMap;

use eddy_crdt::merge::Json;
use eddy_crdt::{Command, Dot, Origin, VersionVector};

use super::clients::put;
use super::world::{Outcome, World};
use crate::support::checks::ensure;
use crate::support::shadow::Shadow;

const KEY: &str = "/registry/configmaps/fields";
const LEAVES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// One edit of one leaf.
struct Edit {
    /// The entry that it became.
    dot: Dot,
    leaf: &'static str,
    /// When.
    ms: u64,
    /// `None`: it took the leaf away.
    value: Option<String>,
    /// Which entries had reached the editor, by the simulation's deliveries.
    seen: VersionVector,
}

/// All edits, in the order in which they were made.
#[derive(Default)]
pub struct Fields(Vec<Edit>);

/// The value of each leaf that an object shows.
fn shown(shadow: &Shadow) -> Option<BTreeMap<String, String>> {
    let object = Json::parse(&shadow.kvs.get(KEY.as_bytes())?.value)?;
    let Some(Json::Map(data)) = object.get("data") else { return None };
    data.iter().map(|(leaf, value)| Some((leaf.to_string(), value.as_str()?.to_owned()))).collect()
}

fn object(leaves: &BTreeMap<String, String>) -> String {
    let data = leaves.iter().map(|(leaf, value)| (leaf.into(), Json::String(value.into()))).collect();
    let data = Json::Map(data).canonical();
    format!(r#"{{"apiVersion":"v1","data":{data},"kind":"ConfigMap","metadata":{{"name":"f","uid":"f"}}}}"#)
}

impl Fields {
    /// A replica starts with this: what it wrote since is lost.
    pub fn lose(&mut self, origin: Origin, kept: &VersionVector) {
        self.0.retain(|edit| edit.dot.origin != origin || kept.contains(edit.dot));
    }

    /// Whether an object at a replica, to which these entries came, has the fields that the schedule gives it.
    pub fn check(&self, delivered: &VersionVector, shadow: &Shadow) -> Outcome {
        let here: Vec<&Edit> = self.0.iter().filter(|edit| delivered.contains(edit.dot)).collect();
        let Some(shown) = shown(shadow) else { return Ok(()) };
        for leaf in LEAVES {
            let edits: Vec<&&Edit> = here.iter().filter(|edit| edit.leaf == leaf).collect();
            let is_last = |edit: &&&&Edit| !edits.iter().any(|later| later.seen.contains(edit.dot));
            let last: Vec<&&&Edit> = edits.iter().filter(is_last).collect();
            // An edit outlives a removal that did not see it.
            let newest = last.iter().filter(|edit| edit.value.is_some()).map(|edit| edit.ms).max();
            let latest = last.iter().filter(|edit| edit.value.is_some() && Some(edit.ms) == newest);
            // In the same millisecond it is for the replicas to say which one is later.
            let allowed: Vec<&String> = latest.filter_map(|edit| edit.value.as_ref()).collect();
            let holds = match shown.get(leaf) {
                Some(value) => allowed.contains(&value),
                None => allowed.is_empty(),
            };
            ensure!(holds, "{leaf} of {KEY} is {:?}, by the schedule {allowed:?}", shown.get(leaf));
        }
        Ok(())
    }
}

impl World {
    /// A client edits a leaf of the object that it sees. The first edit makes the object.
    pub fn edit_field(&mut self, host: usize, seed: u64) -> Outcome {
        let Some(up) = self.hosts.get(host).and_then(|host| host.up()) else { return Ok(()) };
        let (seen, own) = (up.replica.vector().clone(), up.replica.identity().origin());
        let first = self.fields.0.is_empty();
        let Some(mut leaves) = shown(&up.shadow).or(first.then(BTreeMap::new)) else { return Ok(()) };
        let leaf = LEAVES[(seed % LEAVES.len() as u64) as usize];
        let value = (first || !(seed >> 8).is_multiple_of(4)).then(|| format!("{}", self.fields.0.len()));
        match &value {
            Some(value) => drop(leaves.insert(leaf.to_owned(), value.clone())),
            None => drop(leaves.remove(leaf)),
        }
        self.command(host, Command::Put(put(KEY.into(), object(&leaves), None)))?;
        let dot = Dot { origin: own, seq: seen.get(own) + 1 };
        self.fields.0.push(Edit { dot, leaf, ms: self.ms, value, seen });
        self.coverage.count("edits of fields");
        Ok(())
    }
}
