//! Which versions of an object are **silent**: every merge says the same of every leaf without them, also one with
//! versions that are still to come.
//!
//! A version may go when all that it wrote was written over by versions that stand for it: nobody can have it and not
//! them. All that wrote right over it must stand for it. It must not be missed by those that stay. So what one that stays
//! sees of a leaf stays, too, and it must still edit what it edited: its value must differ from what it is written over.
//! Neither matters where what it says of the leaf is itself hidden: a version above it wrote the leaf, and stands for it.
//! Where a counter is added to, a version may go only when all ways up from it lead through one that stands for it: the
//! sum is in that one.
//!
//! Each replica decides by itself, and one that was away may be told by several. All of this holds as well for what they
//! keep together, and for who has some of what leaves: a write that is hidden here may stand there.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::merge::graph::{Graph, Positions};
use crate::merge::rules::Rules;
use crate::merge::version::Version;

use super::Object;
use super::document::{DocumentError, Edit, Scalar};
use super::json::{Fields, Json};
use super::past::Past;
use super::replay::Replay;
use super::schema::Resolution;
use super::shared::Divided;

/// How often it is looked again for edits that would be none any more.
const ROUNDS: usize = 16;

/// Versions of one object, all of one incarnation, in an order in which ancestors come first.
pub struct Versions<'a> {
    /// What was there before all of them.
    pub base: Option<&'a Object>,
    /// The versions with what they hold.
    pub all: &'a [(&'a Version, &'a Object)],
    /// Those of them that may go at all.
    pub among: &'a [bool],
    /// Those of them on which nothing of this object can stand any more.
    pub ended: &'a [bool],
    /// Whether these are all versions of the key. A writer who saw others, too, may not have seen all of these.
    pub is_whole: bool,
    /// By what they are merged.
    pub by: By<'a>,
}

/// The rules by which it is asked what is silent.
#[derive(Clone, Copy)]
pub struct By<'a> {
    /// Declarations.
    pub rules: &'a Rules,
    /// Whether segments may be merged by other rules, too. What a writer edited where several versions come together is not
    /// known then.
    pub is_moving: bool,
}

/// Tells which versions are silent. `stands_for` tells of one and another above it whether nobody can have the one and
/// not the other.
///
/// # Errors
/// When the versions cannot be replayed.
pub fn silent(versions: &Versions<'_>, stands_for: impl Fn(usize, usize) -> bool) -> Result<Vec<bool>, DocumentError> {
    let Versions { base, all, among, ended, is_whole, by: By { rules, is_moving } } = versions;
    let nobody = vec![false; all.len()];
    let Some((_, first)) = all.first() else { return Ok(nobody) };
    // Which of several apiVersions counts depends on who writes last.
    if all.iter().any(|(_, object)| object.api_version() != first.api_version()) {
        return Ok(nobody);
    }
    let schema = first.schema(rules);
    let objects: Vec<&Json> = all.iter().map(|(_, object)| &object.json).chain(base.map(|base| &base.json)).collect();
    // Where there was nothing before, the first of them wrote also what all of them have.
    let Divided { shared, rests } = match base {
        Some(_) => Divided::of(&objects, &schema),
        None => Divided { shared: Json::Map(Fields::new()), rests: objects.into_iter().cloned().collect() },
    };
    let (rests, below) = rests.split_at(all.len());
    let references: Vec<_> = all.iter().collect();
    let mut replay = Replay::new(below.first(), &schema);
    replay.shared = shared;
    replay.run(&references, rests)?;

    let plain: Vec<&Version> = all.iter().map(|(version, _)| *version).collect();
    let ways = Ways::of(&Graph::of(&plain));
    let mut bound = bound(&replay, &plain);
    hold_for_others(&replay, &ways, &stands_for, &mut bound);
    // The status of such a pod follows its node, a sum may have been raised, and what contradicts itself is put right: more
    // counts than its edits.
    let nodes: BTreeSet<&str> = all.iter().map(|(_, object)| &**object).chain(*base).filter_map(Object::node).collect();
    if !is_whole || *is_moving || nodes.len() > 1 || has_minimum(&replay) || replay.is_delicate {
        (0..all.len()).for_each(|at| bound[at] |= !ways.is_alone(at));
    }
    // Only the version that noted a pod tells later who was counted.
    if let Some(counting) = &replay.counting {
        (0..all.len()).for_each(|at| bound[at] |= counting.notes(at, ways.parents[at].first().copied()));
    }
    // What a version does not need to say of a leaf, because one above it wrote the leaf and stands for it.
    let is_hidden = |at: usize, key: &str| match is_moving {
        true => ways.run_from(at).find(|later| replay.writes(*later, key)).is_some_and(|later| stands_for(at, later)),
        false => replay.past.next_writes(key, at).iter().any(|later| stands_for(at, *later)),
    };
    let mut stays: Vec<bool> = (0..all.len())
        .map(|at| {
            let may_go = || !bound[at] && is_written_over(&replay, &ways, at, &stands_for, is_hidden);
            !among[at] || !ended[at] && !may_go()
        })
        .collect();
    if stays.iter().all(|stays| *stays) {
        return Ok(nobody);
    }
    let touched: Vec<String> = replay.past.touched().cloned().collect();
    let mut news: Vec<usize> = (0..all.len()).filter(|at| stays[*at]).collect();
    for _ in 0..ROUNDS {
        // What a version that stays sees, stays.
        while let Some(at) = news.pop() {
            for key in &touched {
                let mut missing = replay.past.standing(key, &[at]);
                missing.retain(|seen| !stays[*seen]);
                if !missing.is_empty() && !is_hidden(at, key) {
                    missing.iter().for_each(|seen| stays[*seen] = true);
                    news.extend(missing);
                }
            }
        }
        match missed(&replay, &references, &ways, &stays, is_hidden)? {
            Missed::Nothing => return Ok(stays.iter().map(|stays| !stays).collect()),
            Missed::These(versions) if versions.is_empty() => return Ok(nobody),
            Missed::These(versions) => {
                versions.iter().for_each(|at| stays[*at] = true);
                news.extend(versions);
            }
        }
    }
    Ok(nobody)
}

/// How one gets from a version to those above it.
struct Ways {
    parents: Vec<Positions>,
    children: Vec<Vec<usize>>,
    /// The nearest version through which all ways up from one lead.
    through: Vec<Option<usize>>,
}

impl Ways {
    fn of(graph: &Graph) -> Self {
        let parents: Vec<Positions> = (0..graph.len()).map(|at| graph.parents(at).into()).collect();
        let mut children = vec![vec![]; parents.len()];
        for (at, parents) in parents.iter().enumerate() {
            parents.iter().for_each(|parent| children[*parent].push(at));
        }
        let mut through: Vec<Option<usize>> = vec![None; parents.len()];
        let mut heights = vec![0_usize; parents.len()];
        for at in (0..parents.len()).rev() {
            let height = |at: Option<usize>, heights: &[usize]| at.map_or(0, |at| heights[at]);
            let mut common = children[at].first().copied();
            for child in children[at].iter().skip(1) {
                let mut other = Some(*child);
                while common != other {
                    if height(common, &heights) >= height(other, &heights) {
                        common = common.and_then(|at| through[at]);
                    } else {
                        other = other.and_then(|at| through[at]);
                    }
                }
            }
            through[at] = common;
            heights[at] = height(common, &heights) + 1;
        }
        Self { parents, children, through }
    }

    /// Those that follow it in its run, in order.
    fn run_from(&self, at: usize) -> impl Iterator<Item = usize> {
        let next = |at: &usize| match self.children[*at][..] {
            [child] if self.parents[child].len() == 1 => Some(child),
            _ => None,
        };
        std::iter::successors(next(&at), next)
    }

    /// Whether it follows one version at most, and one follows it that follows no other.
    fn is_alone(&self, at: usize) -> bool {
        self.parents[at].len() < 2 && self.run_from(at).next().is_some()
    }
}

/// The versions that stay because they wrote a counter, or added to one that was written at other places, too.
fn bound(replay: &Replay<'_>, plain: &[&Version]) -> Vec<bool> {
    let mut bound = vec![false; plain.len()];
    for key in replay.past.touched() {
        if !matches!(replay.leaves.get(key), Some((_, Resolution::Counter { .. }))) {
            continue;
        }
        let (writes, adds) = replay.past.counted(key);
        let is_plain = match writes[..] {
            [] => true,
            [only] => adds.iter().all(|at| plain[*at].descends_from(plain[only].dot)),
            _ => false,
        };
        writes.iter().chain(adds.iter().filter(|_| !is_plain)).for_each(|at| bound[*at] = true);
    }
    bound
}

/// Keeps each version that some other wrote right over without standing for it. A member can get the other alone: it would not know
/// that the leaf was written in between, and show an older value of it.
fn hold_for_others(replay: &Replay<'_>, ways: &Ways, stands_for: impl Fn(usize, usize) -> bool, bound: &mut [bool]) {
    for (later, replayed) in replay.replayed.iter().enumerate() {
        for key in replayed.edits.keys().filter(|key| replay.writes(later, key)) {
            for at in replay.past.standing(key, &ways.parents[later]) {
                bound[at] |= !stands_for(at, later);
            }
        }
    }
}

/// Whether a counter was edited that has a minimum.
fn has_minimum(replay: &Replay<'_>) -> bool {
    let of = |key: &String| replay.leaves.get(key).map(|(_, resolution)| *resolution);
    replay.past.touched().any(|key| matches!(of(key), Some(Resolution::Counter { minimum: Some(_) })))
}

/// Whether all that a version edits was written over by versions that stand for it.
fn is_written_over(
    replay: &Replay<'_>,
    ways: &Ways,
    at: usize,
    stands_for: impl Fn(usize, usize) -> bool,
    is_hidden: impl Fn(usize, &str) -> bool,
) -> bool {
    let stands = |later: &usize| stands_for(at, *later);
    // A sum goes on to what stands for the version, to one and not to several, also where that edits nothing itself.
    if replay.past.adds() && !ways.through[at].iter().any(stands) {
        return false;
    }
    let edits = &replay.replayed[at].edits;
    let is_over = |(key, edit): (&String, &Edit)| match edit {
        Edit::Add(_) => true,
        Edit::Put(_) | Edit::Delete => is_hidden(at, key),
    };
    if edits.is_empty() { ways.children[at].iter().any(stands) } else { edits.iter().all(is_over) }
}

/// What those that stay miss of the others.
enum Missed {
    Nothing,
    /// Without these, one that stays would edit another thing than it does. None of them: it would for another reason.
    These(Vec<usize>),
}

fn missed(
    replay: &Replay<'_>,
    all: &[&(&Version, &Object)],
    ways: &Ways,
    stays: &[bool],
    is_hidden: impl Fn(usize, &str) -> bool,
) -> Result<Missed, DocumentError> {
    let kept: Vec<usize> = (0..all.len()).filter(|at| stays[*at]).collect();
    let versions: Vec<_> = kept.iter().map(|at| all[*at]).collect();
    let mut without = replay.anew();
    without.run_leaves(&versions, kept.iter().map(|at| replay.replayed[*at].scalars.clone()).collect())?;
    let plain: Vec<&Version> = versions.iter().map(|(version, _)| *version).collect();
    let graph = Graph::of(&plain);
    let mut between = Between::of(&kept, stays, [replay, &without]);
    let (mut is_other, mut missed) = (false, vec![]);
    for (place, at) in kept.iter().enumerate() {
        let (before, after) = (&replay.replayed[*at].edits, &without.replayed[place].edits);
        let mut unsure = vec![];
        for key in before.keys().chain(after.keys().filter(|key| !before.contains_key(*key))) {
            let is_sum = |edit: Option<&Edit>| matches!(edit, None | Some(Edit::Add(_)));
            let (edit, other) = (before.get(key), after.get(key));
            if is_sum(edit) && is_sum(other) {
                continue;
            }
            let is_as_seen = replay.replayed[*at].seen.get(key) == without.replayed[place].seen.get(key);
            let is_same = edit == other && is_as_seen;
            let writes = replay.past.standing(key, &ways.parents[*at]);
            let value = replay.replayed[*at].scalars.get(key);
            // Where the leaf says that already, the version is not seen to write it.
            let may_be_said = || {
                let all_stay = writes.iter().all(|write| stays[*write]);
                (!all_stay && without.past.says(key, graph.parents(place), value))
                    || between.may_say(key, graph.parents(place), value)
            };
            if is_same && !may_be_said() {
                continue;
            }
            if is_hidden(*at, key) {
                unsure.extend(edit.filter(|_| is_same).map(|edit| (key, edit)));
                continue;
            }
            is_other = true;
            // What only seems to be written there is missed as well where it comes from.
            let seeming = without.past.standing(key, graph.parents(place)).into_iter().filter(|writer| {
                replay.replayed[kept[*writer]].edits.get(key) != without.replayed[*writer].edits.get(key)
            });
            let theirs = seeming.flat_map(|writer| replay.past.standing(key, &ways.parents[kept[writer]]));
            let missing: Vec<usize> = writes.into_iter().chain(theirs).filter(|write| !stays[*write]).collect();
            if missing.is_empty() && is_same {
                // What makes the leaf unsure is some write below it.
                let is_below = |below: &usize| replay.past.is_under(*below, &ways.parents[*at]);
                missed.extend((0..*at).filter(|below| !stays[*below] && replay.writes(*below, key)).filter(is_below));
            }
            missed.extend(missing);
        }
        between.push(plain[place], [before, after], &unsure);
    }
    Ok(if is_other { Missed::These(missed) } else { Missed::Nothing })
}

/// A write that may be there or not.
struct Doubt<'a> {
    at: usize,
    says: Option<&'a Scalar>,
    /// It is there with all that leave and with none of them, and may be none between the two.
    is_between: bool,
}

/// What the versions that stay write, for a member that has some of those that leave. Which of them it has is not known. A write
/// that is the same with all of them and with none of them is sure, unless the leaf may have that value before it. Any other may
/// be there or not. Only leaves that one of those that leave edits are looked at.
struct Between<'a> {
    /// The sure writes, of the versions up to the one that is looked at.
    both: Past<'a>,
    /// The others, of each leaf.
    one: HashMap<&'a String, Vec<Doubt<'a>>>,
}

impl<'a> Between<'a> {
    fn of(kept: &[usize], stays: &[bool], [with, without]: [&'a Replay<'_>; 2]) -> Self {
        let leaving = with.replayed.iter().zip(stays).filter(|(_, stays)| !**stays);
        let keys = leaving.flat_map(|(left, _)| left.edits.keys());
        let both = Past::new(without.past.base().clone());
        let mut between = Self { both, one: keys.map(|key| (key, vec![])).collect() };
        for (place, (at, after)) in kept.iter().zip(&without.replayed).enumerate() {
            let (before, after) = (&with.replayed[*at].edits, &after.edits);
            let lost = before.iter().filter(|(key, edit)| after.get(*key) != Some(*edit));
            let gained = after.iter().filter(|(key, edit)| before.get(*key) != Some(*edit));
            lost.chain(gained).for_each(|(key, edit)| between.doubt(place, key, edit, false));
        }
        between
    }

    /// A write may be there or not.
    fn doubt(&mut self, at: usize, key: &'a String, edit: &'a Edit, is_between: bool) {
        let says = match edit {
            Edit::Put(scalar) => Some(scalar),
            Edit::Delete => None,
            Edit::Add(_) => return,
        };
        self.one.entry(key).or_default().push(Doubt { at, says, is_between });
    }

    /// Goes on to the next version. What it edits with all that leave and with none of them is sure, but for what is `unsure`.
    fn push(
        &mut self,
        version: &'a Version,
        [before, after]: [&'a BTreeMap<String, Edit>; 2],
        unsure: &[(&'a String, &'a Edit)],
    ) {
        let is_doubtful = |key: &String| unsure.iter().any(|(other, _)| *other == key);
        let is_sure = |(key, edit): &(&String, &Edit)| {
            self.one.contains_key(*key) && after.get(*key) == Some(*edit) && !is_doubtful(key)
        };
        let at = self.both.count();
        self.both.push(version, before.iter().filter(is_sure));
        unsure.iter().for_each(|(key, edit)| self.doubt(at, key, edit, true));
    }

    /// Whether a leaf may have that value where these versions come together, for some such member.
    fn may_say(&self, key: &String, heads: &[usize], value: Option<&Scalar>) -> bool {
        let Some(unsure) = self.one.get(key) else { return false };
        let sure = self.both.standing(key, heads);
        if sure.is_empty() && self.both.base().get(key) == value {
            return true;
        }
        let is_over = |over: &usize, at: usize| *over != at && self.both.is_under(at, &[*over]);
        let may_stand = |at: usize| self.both.is_under(at, heads) && !sure.iter().any(|over| is_over(over, at));
        let known = unsure.iter().filter(|doubt| doubt.at < self.both.count());
        // Without one that is none only between the two, the sure ones may stand.
        let says = |doubt: &Doubt<'_>| doubt.says == value || doubt.is_between && self.both.says(key, heads, value);
        known.filter(|doubt| may_stand(doubt.at)).any(says)
    }
}
