//! What concurrent versions of a key mean together: a pure function of a base and the versions on top of it.
//!
//! The rules are applied to all heads at once, never pairwise, so no order of arrival can show:
//! 1. heads of dead incarnations are dropped: a delete kills every incarnation it saw, an expiry none that was put
//!    concurrently;
//! 2. of several live incarnations the one created first stays under the Kubernetes prefix, elsewhere the one created
//!    last;
//! 3. one head left is the outcome; Kubernetes objects are merged field by field; else the last writer wins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::command::notice::{GivenUp, Part, Rule, Said, Stands};
use crate::entry::ChangeKind;
use crate::merge::object::lately::reader;
use crate::merge::object::{self, Object, replay};
use crate::merge::rights;
use crate::merge::rules::Rules;
use crate::merge::version;
use crate::merge::version::Version;
use crate::store::auth::AuthKey;
use crate::store::system;
use crate::words::key::Keyspace;
use crate::words::value::{Incarnation, Live};

/// What a key is, and how that was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MergeOutcome {
    /// What the key holds; `None` when it is not there.
    pub live: Option<Live>,
    /// The rule that decided between concurrent versions; `None` when there were none.
    pub rule: Option<Rule>,
    /// The parts of the concurrent versions that are not in the outcome.
    pub given_up: Vec<GivenUp>,
    /// Whether the versions disagreed about the node of a pod, which names the pod beside its incarnation. See
    /// [`replaces`].
    pub replaced: bool,
}

impl MergeOutcome {
    /// The outcome where nothing was concurrent.
    pub fn fast_forward(live: Option<Live>) -> Self {
        Self { live, rule: None, given_up: vec![], replaced: false }
    }
}

/// All of a version is given up. Values are not repeated: who knows what is in them.
pub(crate) fn whole(version: &Version, stands: Option<&Version>) -> GivenUp {
    let said = |version: &Version| match version.kind {
        ChangeKind::Put { .. } => Said::Untold,
        ChangeKind::Delete | ChangeKind::Expire => Said::Nothing,
    };
    let part = match version.kind {
        ChangeKind::Put { .. } => Part::Value,
        ChangeKind::Delete => Part::Delete,
        ChangeKind::Expire => Part::Expiry,
    };
    let stands = stands.map(|stands| Stands { dot: stands.dot, stamp: stands.stamp, said: said(stands) });
    GivenUp { dot: version.dot, part, stamp: version.stamp, said: said(version), stands }
}

/// The last written of these.
fn last_of<'a>(versions: impl IntoIterator<Item = &'a Version>) -> Option<&'a Version> {
    versions.into_iter().max_by_key(|version| version.order())
}

/// Whether a replica that showed `before` must show `after` as a delete and then a create. It must when the key has
/// another incarnation. It must when a pod has another node, too: a scheduler exits when it sees a bound pod move.
pub fn replaces(rules: &Rules, keyspace: Keyspace, key: &[u8], before: &Live, after: &Live) -> bool {
    if before.incarnation != after.incarnation {
        return true;
    }
    if !rules.is_kubernetes(keyspace, key) || before.value == after.value {
        return false;
    }
    let nodes = object::peek_node(&before.value).zip(object::peek_node(&after.value));
    nodes.is_some_and(|(before, after)| before != after)
}

/// Whether a put begins a new incarnation of a key that is there: it changes a Kubernetes object's `metadata.uid`.
pub fn begins_anew(rules: &Rules, keyspace: Keyspace, key: &[u8], before: &[u8], after: &[u8]) -> bool {
    if !rules.is_kubernetes(keyspace, key) || before == after {
        return false;
    }
    matches!((object::peek_uid(before), object::peek_uid(after)), (Some(old), Some(new)) if old != new)
}

/// Merges concurrent versions onto the value that all of them descend from. The versions are one segment of a window,
/// ancestors before descendants.
pub(crate) fn merge(
    base: Option<&Live>,
    versions: &[Version],
    rules: &Rules,
    keyspace: Keyspace,
    key: &[u8],
) -> MergeOutcome {
    let mut outcome = decide(base, versions, rules, keyspace, key);
    // The versions are in the order in which they arrived, which must not show.
    outcome.given_up.sort_unstable();
    outcome
}

fn decide(base: Option<&Live>, versions: &[Version], rules: &Rules, keyspace: Keyspace, key: &[u8]) -> MergeOutcome {
    let heads: Vec<&Version> = version::heads(versions).collect();
    let dead = dead(base, versions);
    let mut given_up = vec![];
    let mut live = vec![];
    let mut killed = false;
    for &head in &heads {
        match head.kind {
            ChangeKind::Put { .. } if dead.contains_key(&head.incarnation) => {
                killed = true;
                given_up.push(whole(head, dead.get(&head.incarnation).copied()));
            }
            ChangeKind::Put { .. } => live.push(head),
            ChangeKind::Delete | ChangeKind::Expire => {}
        }
    }
    if live.is_empty() {
        return MergeOutcome { live: None, rule: Some(Rule::DeletedIncarnation), given_up, replaced: false };
    }
    // An expiry that a put revived was given up; a delete did what it was to do.
    let revived = heads.iter().filter(|head| head.kind == ChangeKind::Expire);
    given_up.extend(revived.map(|head| whole(head, last_of(live.iter().copied()))));
    let mut rule = if killed { Rule::DeletedIncarnation } else { Rule::OutlivedDelete };
    if keyspace == Keyspace::System {
        return system_outcome(key, &live, rule, given_up);
    }
    let kubernetes = rules.is_kubernetes(keyspace, key);
    if kubernetes && live.iter().any(|head| head.incarnation != live[0].incarnation) {
        let gone = seen_done(base, versions, rules);
        let (stay, dead): (Vec<&Version>, Vec<&Version>) =
            live.into_iter().partition(|head| !gone.contains_key(&head.incarnation));
        if !dead.is_empty() {
            rule = Rule::DeletedIncarnation;
        }
        given_up.extend(dead.into_iter().map(|head| whole(head, gone.get(&head.incarnation).copied())));
        live = stay;
    }
    let incarnations: BTreeSet<Incarnation> = live.iter().map(|head| head.incarnation).collect();
    let (Some(&first), Some(&last)) = (incarnations.first(), incarnations.last()) else {
        return MergeOutcome { live: None, rule: Some(rule), given_up, replaced: false };
    };
    let (stays, rule) = match incarnations.len() {
        1 => (first, rule),
        _ if kubernetes => (first, Rule::CreatedFirst),
        _ => (last, Rule::CreatedLast),
    };
    let (live, gone): (Vec<&Version>, Vec<&Version>) = live.into_iter().partition(|head| head.incarnation == stays);
    given_up.extend(gone.into_iter().map(|head| whole(head, last_of(live.iter().copied()))));
    if let [head] = live[..] {
        return MergeOutcome { live: head.live(), rule: Some(rule), given_up, replaced: false };
    }
    if kubernetes && let Some(merged) = fields(base, versions, &live, rules) {
        given_up.extend(merged.given_up);
        let value = merged.value.map(|value| joined(&live, value, stays));
        return MergeOutcome { live: value, rule: Some(Rule::FieldMerge), given_up, replaced: merged.replaced };
    }
    last_writer(&live, |_| 0, Rule::LastWriter, given_up)
}

/// The heads, all of one incarnation, merged field by field; `None` when they are not all objects of one kind.
fn fields(base: Option<&Live>, versions: &[Version], heads: &[&Version], rules: &Rules) -> Option<replay::Merged> {
    let read = reader(versions.len());
    let object = |version: &Version| read(version.value()?);
    let mut of_heads = Vec::with_capacity(heads.len());
    for head in heads {
        of_heads.push((head.dot, object(head)?));
    }
    let (incarnation, (_, first)) = (heads.first()?.incarnation, of_heads.first()?);
    if !of_heads.iter().all(|(_, head)| head.is_like(first)) {
        return None;
    }
    let ancestry: Vec<&Version> =
        versions.iter().filter(|v| heads.iter().any(|head| head.dot == v.dot || head.descends_from(v.dot))).collect();
    // A version of another incarnation, or one that cannot be read, is no version of its fields.
    let like_first = |v: &&Version| match of_heads.iter().find(|(dot, _)| *dot == v.dot) {
        _ if v.incarnation != incarnation => None,
        Some((_, object)) => Some(Arc::clone(object)),
        None => object(v).filter(|object| object.is_like(first)),
    };
    let objects: Vec<Option<Arc<Object>>> = ancestry.iter().map(like_first).collect();
    let base = base.filter(|base| base.incarnation == incarnation).and_then(|base| read(&base.value));
    let base = base.filter(|base| base.is_like(first));
    let replayed: Vec<(&Version, &Object)> =
        ancestry.into_iter().zip(&objects).filter_map(|(v, object)| Some((v, object.as_deref()?))).collect();
    // Were Automerge to refuse, it would on every replica: the last writer wins then.
    replay::merge(base.as_deref(), &replayed, rules).ok().flatten()
}

/// The incarnations that a delete among these versions saw, each with the last such delete.
fn dead<'a>(base: Option<&Live>, versions: &'a [Version]) -> BTreeMap<Incarnation, &'a Version> {
    let mut dead: BTreeMap<Incarnation, &Version> = BTreeMap::new();
    // A delete saw all that the deletes below it saw: the topmost are enough.
    let mut topmost: Vec<&Version> = vec![];
    for delete in versions.iter().rev().filter(|v| v.kind == ChangeKind::Delete) {
        if topmost.iter().any(|above| above.descends_from(delete.dot)) {
            continue;
        }
        topmost.push(delete);
        let seen = versions.iter().filter(|v| delete.descends_from(v.dot)).map(|v| v.incarnation);
        for incarnation in seen.chain([delete.incarnation]).chain(base.map(|base| base.incarnation)) {
            let last = dead.entry(incarnation).or_insert(delete);
            *last = [*last, delete].into_iter().max_by_key(|delete| delete.order()).unwrap_or(delete);
        }
    }
    dead
}

/// The incarnations that were done where a put began another one on top of them, each with that put: its writer saw that they were
/// deleted, although no version says so.
fn seen_done<'a>(base: Option<&Live>, versions: &'a [Version], rules: &Rules) -> BTreeMap<Incarnation, &'a Version> {
    let mut done: BTreeMap<Incarnation, &Version> = BTreeMap::new();
    for begins in versions.iter().filter(|v| v.incarnation.dot == v.dot && v.value().is_some()) {
        let below: Vec<&Version> = versions.iter().filter(|v| begins.descends_from(v.dot)).collect();
        let is_head = |v: &&&Version| !below.iter().any(|later| later.descends_from(v.dot));
        let heads: Vec<&Version> = below.iter().filter(is_head).copied().collect();
        let [first, _, ..] = heads[..] else { continue };
        let is_one = heads.iter().all(|head| head.incarnation == first.incarnation && head.value().is_some());
        if is_one && fields(base, versions, &heads, rules).is_some_and(|merged| merged.value.is_none()) {
            let last = done.entry(first.incarnation).or_insert(begins);
            *last = [*last, begins].into_iter().max_by_key(|begins| begins.order()).unwrap_or(begins);
        }
    }
    done
}

/// In the system keyspace the last writer wins, whatever the incarnation; of one lease granted twice the longest stays. Of two
/// births of one member nobody but itself can say which is the later: until it does, it counts under none.
fn system_outcome(key: &[u8], live: &[&Version], rule: Rule, given_up: Vec<GivenUp>) -> MergeOutcome {
    if let [head] = live[..] {
        return MergeOutcome { live: head.live(), rule: Some(rule), given_up, replaced: false };
    }
    match system::SystemKey::decode(key) {
        Some(system::SystemKey::Lease(_)) => {
            let ttl = |value: &Bytes| system::lease_ttl(value).unwrap_or(0);
            last_writer(live, ttl, Rule::LongestLease, given_up)
        }
        Some(system::SystemKey::Birth(_)) if live.iter().any(|head| head.value() != live[0].value()) => {
            let mut outcome = last_writer(live, |_| 0, Rule::ContestedBirth, given_up);
            if let Some(live) = &mut outcome.live {
                live.value = system::AnnouncedBirth::Contested.encode();
            }
            outcome
        }
        Some(system::SystemKey::Auth(auth)) => of_rights(&auth, live, given_up),
        _ => last_writer(live, |_| 0, Rule::LastWriter, given_up),
    }
}

/// What takes rights away wins, whichever was written last.
fn of_rights(key: &AuthKey, live: &[&Version], mut given_up: Vec<GivenUp>) -> MergeOutcome {
    let mut heads = live.to_vec();
    heads.sort_unstable_by_key(|head| head.order());
    let values: Vec<&Bytes> = heads.iter().filter_map(|head| head.value()).collect();
    let Some((place, value)) = rights::merged(key, &values) else {
        return last_writer(live, |_| 0, Rule::FewerRights, given_up);
    };
    let stands = heads[place];
    given_up.extend(heads.iter().filter(|head| head.dot != stands.dot).map(|head| whole(head, Some(stands))));
    let live = joined(live, value, stands.incarnation);
    MergeOutcome { live: Some(live), rule: Some(Rule::FewerRights), given_up, replaced: false }
}

/// One of several heads stays: the one of the highest weight, then the last written.
fn last_writer(
    live: &[&Version],
    weight: impl Fn(&Bytes) -> i64,
    rule: Rule,
    mut given_up: Vec<GivenUp>,
) -> MergeOutcome {
    let weigh = |head: &Version| match &head.kind {
        ChangeKind::Put { value, .. } => (weight(value), head.order()),
        ChangeKind::Delete | ChangeKind::Expire => (i64::MIN, head.order()),
    };
    let Some(winner) = live.iter().max_by_key(|head| weigh(head)) else {
        return MergeOutcome { live: None, rule: Some(rule), given_up, replaced: false };
    };
    given_up.extend(live.iter().filter(|head| head.dot != winner.dot).map(|head| whole(head, Some(winner))));
    let value = winner.live().map(|won| joined(live, won.value, won.incarnation));
    MergeOutcome { live: value, rule: Some(rule), given_up, replaced: false }
}

/// A value of several heads: one version above all of them, with the lease of the last writer.
fn joined(live: &[&Version], value: Bytes, incarnation: Incarnation) -> Live {
    let version = live.iter().filter_map(|head| Some(head.live()?.version)).max().unwrap_or(0).saturating_add(1);
    let last = live.iter().max_by_key(|head| head.order()).and_then(|head| head.live());
    Live { value, lease: last.and_then(|live| live.lease), version, incarnation }
}
