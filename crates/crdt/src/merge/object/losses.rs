//! What a merge of objects gave up: which edits are not in the outcome, and whose stand there.

use std::collections::HashMap;

use crate::command::notice::{GivenUp, Part, Said, Stands};
use crate::merge::version::Version;

use super::Object;
use super::document::{DocumentError, Edit, Scalar};
use super::json::Json;
use super::leaves;
use super::meaning::counts::Counting;
use super::meaning::together::with_bits;
use super::meaning::watched::Mended;
use super::path::{Path, Step};
use super::replay::Replay;
use super::resolve::Written;
use super::schema::Resolution;

/// What a loss is told of: of an element that is one value, the element.
fn named(key: &str, path: &Path) -> String {
    match path.steps().last() {
        Some(Step::Whole) => key.trim_end_matches('=').to_owned(),
        _ => key.to_owned(),
    }
}

/// Whether all bits of the one are in the other.
fn is_in(wanted: Option<&str>, got: Option<&str>) -> bool {
    let [Some(wanted), Some(got)] = [wanted, got].map(|text| text.map(|text| Scalar::Text(text.to_owned()))) else {
        return false;
    };
    with_bits(&wanted, std::iter::once(&got)) == got
}

impl Replay<'_> {
    /// The edits that no later version saw and that are not in the outcome. `stay` are the heads whose status a pod has
    /// that the heads have bound to different nodes; `mended` is what is not as the leaves say.
    pub(super) fn given_up(
        &self,
        object: &Json,
        versions: &[&(&Version, &Object)],
        heads: &[usize],
        stay: Option<&[usize]>,
        mended: &[Mended],
    ) -> Result<Vec<GivenUp>, DocumentError> {
        let mut last: HashMap<&str, String> = HashMap::new();
        leaves::flatten(object, self.schema, &mut |key, _, text| {
            if let Some(key) = self.past.edited(key) {
                last.insert(key, text);
            }
        });
        let said = |text: Option<&str>| if self.schema.is_secret() { Said::Untold } else { Said::of(text) };
        let mut lost = vec![];
        for (at, replayed) in self.replayed.iter().enumerate() {
            let (dot, stamp) = (versions[at].0.dot, versions[at].0.stamp);
            for key in replayed.edits.keys().filter(|key| !replayed.seen.contains_key(*key)) {
                let Some((path, resolution)) = self.leaves.get(key) else { continue };
                let is_counted = self.counting.as_ref().is_some_and(|counting| {
                    counting.key() == key && mended.iter().any(|one| one.path == *counting.path())
                });
                let is_order = matches!(path.steps().last(), Some(Step::Order));
                let wanted = match replayed.scalars.get(key) {
                    Some(Scalar::Counter(_)) => continue,
                    Some(Scalar::Text(text)) => Some(text.as_str()),
                    None => None,
                };
                let got = last.get(key.as_str()).map(String::as_str);
                // That an empty map is not empty any more is no loss, nor is a place in a list.
                let is_empty = matches!(wanted, Some("{}" | "[]")) && got.is_none();
                let is_sum = match resolution {
                    Resolution::Counter { .. } => true,
                    Resolution::Bits => is_in(wanted, got),
                    _ if is_counted => Counting::is_in(wanted, got),
                    _ => false,
                };
                if is_order || is_empty || wanted == got || is_sum {
                    continue;
                }
                let seen = self.replayed.iter().zip(versions).skip(at + 1);
                let seen = seen.filter(|(later, _)| later.edits.contains_key(key)).any(|(_, v)| v.0.descends_from(dot));
                if !seen {
                    let heads = stay.filter(|_| path.begins_with(&["status"])).unwrap_or(heads);
                    let is_mended = mended.iter().any(|one| one.holds(path));
                    let written = match got {
                        _ if is_mended => self.mended_leaf(key, mended, heads, versions)?,
                        Some(_) => self.leaf(key, heads, versions)?.and_then(|(written, _)| written),
                        None => self.taken_away(at, path, versions),
                    };
                    // Where both are in what stands, nobody's stands instead.
                    let stands =
                        written.filter(|(_, by)| *by != dot).map(|(stamp, dot)| Stands { dot, stamp, said: said(got) });
                    lost.push(GivenUp { dot, part: Part::Field(named(key, path)), stamp, said: said(wanted), stands });
                }
            }
        }
        Ok(lost)
    }

    /// Who took away last what the version at `lost` wrote there, or something in which that lies.
    fn taken_away(&self, lost: usize, path: &Path, versions: &[&(&Version, &Object)]) -> Written {
        let mut around: Vec<String> = vec![];
        let mut way = String::new();
        for step in path.steps() {
            step.write(&mut way);
            around.push(way.clone());
        }
        let takes = |at: usize| around.iter().any(|key| self.replayed[at].edits.get(key) == Some(&Edit::Delete));
        let apart = |at: &usize| *at != lost && !versions[lost].0.descends_from(versions[*at].0.dot);
        let written = |at: usize| versions[at].0.order();
        let all = || (0..self.replayed.len()).filter(apart);
        all().filter(|at| takes(*at)).map(written).max().or_else(|| all().map(written).max())
    }
}
