//! The oracle of counts: a Job whose pods controllers at all replicas note and count. What it must count follows from the
//! schedule alone: a pod that any update has counted which was delivered here counts once; one that was noted and not counted
//! is uncounted. Nothing of the merge is asked.

use std::collections::BTreeSet;

use eddy_crdt::merge::Json;
use eddy_crdt::{Command, Dot, Origin, VersionVector};

use super::clients::put;
use super::world::{Outcome, World};
use crate::support::checks::ensure;
use crate::support::shadow::Shadow;

const KEY: &str = "/registry/jobs/counts";

/// How many pods finish.
const PODS: u64 = 24;

/// One update of the Job's status.
struct Update {
    /// The entry that it became.
    dot: Dot,
    notes: Vec<u64>,
    counts: Vec<u64>,
}

/// All updates, in the order in which they were made.
#[derive(Default)]
pub struct Jobs(Vec<Update>);

/// How many pods an object counts, and which it has noted.
fn shown(shadow: &Shadow) -> Option<(usize, BTreeSet<u64>)> {
    let object = Json::parse(&shadow.kvs.get(KEY.as_bytes())?.value)?;
    let status = object.get("status")?;
    let count = status.get("succeeded").map_or(Some(0), |count| count.canonical().parse().ok())?;
    let uids = match status.get("uncountedTerminatedPods")?.get("succeeded") {
        None => &[][..],
        Some(Json::List(uids)) => uids,
        Some(_) => return None,
    };
    Some((count, uids.iter().map(|uid| uid.as_str()?.parse().ok()).collect::<Option<_>>()?))
}

fn object(count: usize, noted: &BTreeSet<u64>) -> String {
    let uids = Json::List(noted.iter().map(|uid| Json::String(uid.to_string().into())).collect()).canonical();
    let status = format!(r#"{{"succeeded":{count},"uncountedTerminatedPods":{{"succeeded":{uids}}}}}"#);
    format!(
        r#"{{"apiVersion":"batch/v1","kind":"Job","metadata":{{"name":"c","uid":"c"}},"spec":{{"completions":{PODS}}},"status":{status}}}"#
    )
}

impl Jobs {
    /// A replica starts with this: what it wrote since is lost.
    pub fn lose(&mut self, origin: Origin, kept: &VersionVector) {
        self.0.retain(|update| update.dot.origin != origin || kept.contains(update.dot));
    }

    /// The pods that were noted and those that were counted by updates that were delivered.
    fn known(&self, delivered: &VersionVector) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let here = || self.0.iter().filter(|update| delivered.contains(update.dot));
        (
            here().flat_map(|update| &update.notes).copied().collect(),
            here().flat_map(|update| &update.counts).copied().collect(),
        )
    }

    /// Whether an object at a replica, to which these entries came, counts each pod once.
    pub fn check(&self, delivered: &VersionVector, shadow: &Shadow) -> Outcome {
        if !shadow.kvs.contains_key(KEY.as_bytes()) {
            return Ok(());
        }
        let (noted, counted) = self.known(delivered);
        let open: BTreeSet<u64> = noted.difference(&counted).copied().collect();
        let expected = (counted.len(), open);
        let got = shown(shadow);
        ensure!(got == Some(expected.clone()), "{KEY} counts {got:?}, by the schedule {expected:?}");
        Ok(())
    }
}

impl World {
    /// A job controller notes pods that have finished and counts some that are noted. The first makes the Job.
    pub fn count_pods(&mut self, host: usize, seed: u64) -> Outcome {
        let Some(up) = self.hosts.get(host).and_then(|host| host.up()) else { return Ok(()) };
        let (seen, own) = (up.replica.vector().clone(), up.replica.identity().origin());
        let first = self.jobs.0.is_empty();
        let Some((count, uncounted)) = shown(&up.shadow).or(first.then(Default::default)) else { return Ok(()) };
        let (noted, _) = self.jobs.known(&seen);
        let takes = |pod: u64, of: u64| seed.rotate_left(pod as u32 * 5).is_multiple_of(of);
        let notes: Vec<u64> = (0..PODS).filter(|pod| !noted.contains(pod) && takes(*pod, 6)).collect();
        let counts: Vec<u64> = uncounted.iter().copied().filter(|pod| takes(*pod, 2)).collect();
        let left = uncounted.iter().chain(&notes).copied().filter(|pod| !counts.contains(pod)).collect();
        self.command(host, Command::Put(put(KEY.into(), object(count + counts.len(), &left), None)))?;
        let dot = Dot { origin: own, seq: seen.get(own) + 1 };
        self.jobs.0.push(Update { dot, notes, counts });
        self.coverage.count("updates of a job");
        Ok(())
    }
}
