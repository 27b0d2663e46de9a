//! The counts of a Job, pod by pod, so that each pod that any side counted counts once.
//!
//! A job controller first notes the uids of finished pods as uncounted. When a pod has lost its finalizer, the controller takes
//! its uid out again and raises the count by one, in one update. So what a version has counted since the base are the uids that
//! were ever uncounted at it, below it or in the base, and are not any more. Nothing but its value and the values below it is
//! asked. Where a count has risen by another number than that, or a uid stands in both lists, it is not known who was counted.
//! Then the counts come from one side.
//!
//! A version that notes a uid must stay until it is settled: nothing else tells whose pod a count is.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;
use smol_str::ToSmolStr as _;

use super::super::document::Scalar;
use super::super::json::{Fields, Json};
use super::super::past::{Past, Scalars};
use super::super::path::{Path, Step};
use super::super::schema::Schema;
use super::indexes::Indexes;
use super::place::{Place, int, list, text};

/// The fields of a Job's status in which pods are counted, once for those that succeeded and once for those that failed: the
/// number, and the indexes of an indexed Job. The first is also the name of the list of those that are uncounted.
const FIELDS: [(&str, &str); 2] = [("succeeded", "completedIndexes"), ("failed", "failedIndexes")];

/// Where the uids of those are that are not counted yet.
const UNCOUNTED: &str = "uncountedTerminatedPods";

/// What is counted of one of the two.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Tally {
    number: i64,
    uncounted: BTreeSet<String>,
    indexes: Indexes,
}

/// What a status counts: pods that succeeded, and pods that failed.
type Counts = [Tally; 2];

/// What the versions of a Job count.
pub struct Counting {
    /// The leaf in which it is.
    key: String,
    path: Path,
    /// What the base says; `None` where that cannot be read.
    base: Option<Counts>,
    /// The same of each version.
    versions: Vec<Option<Counts>>,
    /// Who showed a uid as uncounted without any version below that did: of those that succeeded, of those that failed.
    noted: [BTreeMap<String, SmallVec<[usize; 2]>>; 2],
}

impl Counting {
    /// Nothing is on top of these leaves yet; `None` for what counts no pods.
    pub fn of(schema: &Schema<'_>, base: &Scalars) -> Option<Self> {
        let mut path = Path::default();
        path.push(Step::Field("status".to_owned()));
        let together = schema.counted_together(&path)?;
        path.push(Step::Together(together));
        let key = path.to_string();
        let base = read(base.get(&key));
        Some(Self { key, path, base, versions: vec![], noted: Default::default() })
    }

    /// The leaf that holds the counts.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Where that lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the last version of `past`, which has these leaves. Tells whether it counts anything that the base does not.
    pub fn push(&mut self, after: &Scalars, past: &Past<'_>) -> bool {
        let at = self.versions.len();
        let counts = read(after.get(&self.key));
        for (noted, tally) in self.noted.iter_mut().zip(counts.iter().flatten()) {
            for uid in &tally.uncounted {
                let places = noted.entry(uid.clone()).or_default();
                if !places.iter().any(|place| past.is_under(*place, &[at])) {
                    places.push(at);
                }
            }
        }
        let is_other = counts != self.base;
        self.versions.push(counts);
        is_other
    }

    /// Whether a version notes a uid that the one below it does not (`None`: it stands on the base).
    pub fn notes(&self, at: usize, below: Option<usize>) -> bool {
        let below = below.map_or(&self.base, |below| &self.versions[below]);
        let is_new =
            |which: usize, uid: &String| below.as_ref().is_none_or(|below| !below[which].uncounted.contains(uid));
        let tallies = self.versions[at].iter().flatten().enumerate();
        tallies.into_iter().any(|(which, tally)| tally.uncounted.iter().any(|uid| is_new(which, uid)))
    }

    /// What is counted where these versions come together; `None` where it cannot be told pod by pod.
    fn merged(&self, heads: &[usize], past: &Past<'_>) -> Option<Counts> {
        let base = self.base.as_ref()?;
        let heads: Vec<(usize, &Counts)> =
            heads.iter().map(|at| Some((*at, self.versions[*at].as_ref()?))).collect::<Option<_>>()?;
        let is_indexed =
            std::iter::once(base).chain(heads.iter().map(|(_, own)| *own)).any(|of| !of[0].indexes.is_empty());
        let mut merged = Counts::default();
        let mut seen: [BTreeSet<&str>; 2] = Default::default();
        for which in 0..2 {
            let base = &base[which];
            let mut counted: BTreeSet<&str> = BTreeSet::new();
            for (at, own) in &heads {
                let noted = self.noted[which].iter().filter(|(_, by)| by.iter().any(|by| past.is_under(*by, &[*at])));
                let all: BTreeSet<&str> =
                    noted.map(|(uid, _)| uid).chain(&base.uncounted).map(String::as_str).collect();
                let gone: Vec<&str> = all.iter().copied().filter(|uid| !own[which].uncounted.contains(*uid)).collect();
                let is_told = match (which, is_indexed) {
                    (0, true) => own[0].number == own[0].indexes.len() && base.number == base.indexes.len(),
                    _ => own[which].number - base.number == i64::try_from(gone.len()).ok()?,
                };
                if !is_told {
                    return None;
                }
                counted.extend(gone);
                seen[which].extend(all);
            }
            let uncounted = heads.iter().flat_map(|(_, own)| &own[which].uncounted);
            merged[which].uncounted = uncounted.filter(|uid| !counted.contains(uid.as_str())).cloned().collect();
            merged[which].number = base.number + i64::try_from(counted.len()).ok()?;
            merged[which].indexes = base.indexes.merged(heads.iter().map(|(_, own)| &own[which].indexes));
        }
        if seen[0].intersection(&seen[1]).next().is_some() {
            return None;
        }
        let [succeeded, failed] = &mut merged;
        // An index that is completed at one side is, whatever failed at another.
        failed.indexes = failed.indexes.without(&succeeded.indexes);
        if is_indexed {
            succeeded.number = succeeded.indexes.len();
        }
        let is_number = |tally: &Tally| i32::try_from(tally.number).is_ok();
        merged.iter().all(is_number).then_some(merged)
    }

    /// Makes an object, less what all versions share, count each pod once that any of these counted. Tells whether it did.
    pub fn count(&self, object: &mut Json, heads: &[usize], past: &Past<'_>) -> bool {
        if past.edited(&self.key).is_none() {
            return false;
        }
        let Some(merged) = self.merged(heads, past) else { return false };
        write(object, &merged);
        true
    }

    /// Whether the one says nothing of its own beside what is counted: `got` says the same of the rest.
    pub fn is_in(wanted: Option<&str>, got: Option<&str>) -> bool {
        let rest = |text: Option<&str>| {
            let Some(Json::Map(mut rest)) = text.and_then(|text| Json::parse(text.as_bytes())) else { return None };
            rest.retain(|name, _| !is_counted(name));
            Some(rest)
        };
        rest(wanted).is_some_and(|wanted| rest(got).unwrap_or_default() == wanted)
    }
}

/// Whether that field of a Job's status says what is counted.
pub fn is_counted(field: &str) -> bool {
    field == UNCOUNTED || FIELDS.iter().any(|(number, indexes)| field == *number || field == *indexes)
}

/// What a leaf counts; `None` where it says what no job controller would.
fn read(leaf: Option<&Scalar>) -> Option<Counts> {
    let Some(leaf) = leaf else { return Some(Counts::default()) };
    read_status(&leaf.json()?)
}

fn read_status(status: &Json) -> Option<Counts> {
    let mut counts = Counts::default();
    for (tally, (name, indexes)) in counts.iter_mut().zip(FIELDS) {
        tally.number = match status.get(name) {
            None => 0,
            Some(_) => int(status, name).filter(|number| (0..=i64::from(i32::MAX)).contains(number))?,
        };
        tally.indexes = Indexes::read(text(status, indexes))?;
        for uid in status.get(UNCOUNTED).map(|uncounted| list(uncounted, name)).unwrap_or_default() {
            if !tally.uncounted.insert(uid.as_str()?.to_owned()) {
                return None;
            }
        }
    }
    Some(counts)
}

/// Makes the status of an object count that, and leaves what says so already as it is.
fn write(object: &mut Json, merged: &Counts) {
    let status = Place::of(&["status"]);
    if status.get(object).is_none() {
        status.put(object, Some(Json::Map(Fields::new())));
    }
    let before = status.get(object).and_then(read_status).unwrap_or_default();
    for ((before, merged), (name, indexes)) in before.iter().zip(merged).zip(FIELDS) {
        if before.number != merged.number {
            let number = (merged.number > 0).then(|| Json::Number(merged.number.to_smolstr()));
            status.field(name).put(object, number);
        }
        if before.indexes != merged.indexes {
            let all = (!merged.indexes.is_empty()).then(|| Json::String(merged.indexes.to_string().into()));
            status.field(indexes).put(object, all);
        }
        if before.uncounted != merged.uncounted {
            let uncounted = status.field(UNCOUNTED);
            let listed = uncounted.get(object).map(|uncounted| list(uncounted, name)).unwrap_or_default();
            let known = listed.iter().filter(|uid| uid.as_str().is_some_and(|uid| merged.uncounted.contains(uid)));
            let mut all: Vec<Json> = known.cloned().collect();
            all.extend(merged.uncounted.difference(&before.uncounted).map(|uid| Json::String(uid.into())));
            uncounted.field(name).put(object, (!all.is_empty()).then_some(Json::List(all)));
        }
    }
}
