//! Writes that were made before a disk was lost, made again.
//!
//! A member whose entries fork from what its peers have of it cannot keep them: their names are taken. It begins from a
//! snapshot under a new birth, and writes again what the snapshot lacks, with the old stamps. The rules of merging say
//! which of these writes stand beside what the others have written since.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::command::notice::{GivenUp, Losses, MergeReport, Rule};
use crate::entry::{ChangeKind, Entry};
use crate::merge::outcome;
use crate::merge::version::Version;
use crate::merge::window::Window;
use crate::replica::Replica;
use crate::replica::turn::Turn;
use crate::store::system::SystemKey;
use crate::store::txn::Again;
use crate::words::clock::Stamp;
use crate::words::id::{Birth, Dot, Origin};
use crate::words::key::Keyspace;
use crate::words::value::{Incarnation, Live};
use crate::words::vector::VersionVector;

/// An entry that only this member had, with what its maker had seen.
pub(super) struct Lost {
    pub(super) entry: Arc<Entry>,
    pub(super) deps: Arc<VersionVector>,
}

impl Replica {
    /// Writes lost entries again, each as one transaction. Tells what was given up.
    pub(super) fn write_again(&mut self, turn: &mut Turn, lost: Vec<Lost>) -> Vec<MergeReport> {
        let mut given_up = vec![];
        let mut firsts: BTreeMap<Origin, u64> = BTreeMap::new();
        for head in lost.iter().map(|lost| &lost.entry.head) {
            // What began a key may have left; what stands for it is here.
            let unknown = head.first_seq.max(self.origins.vector.get(head.dot.origin).saturating_add(1));
            firsts.entry(head.dot.origin).or_insert(unknown.min(head.dot.seq));
        }
        let own = self.identity.replica;
        // It has a birth and a space since that come after these. Rules that were lost may have the number of others.
        let is_outdated = |key: &[u8]| match SystemKey::decode(key) {
            Some(SystemKey::Birth(of) | SystemKey::Space(of)) => of == own,
            key => matches!(key, Some(SystemKey::Rules(_) | SystemKey::RulesUp(_))),
        };
        for Lost { entry, deps } in &lost {
            let mut steps = vec![];
            for change in entry.net() {
                if change.keyspace == Keyspace::System && is_outdated(&change.key) {
                    continue;
                }
                let version = Version {
                    dot: entry.head.dot,
                    stamp: entry.head.stamp,
                    rules: self.rules.current().number,
                    deps: Arc::clone(deps),
                    kind: change.kind.clone(),
                    incarnation: change.incarnation,
                };
                let (again, report) = self.judge(change.keyspace, &change.key, &version, &firsts);
                if let Some((rule, what)) = report {
                    let (keyspace, key, dot) = (change.keyspace, change.key.clone(), entry.head.dot);
                    given_up.push(MergeReport { keyspace, key, dot, revision: None, rule, given_up: Losses::of(what) });
                }
                steps.extend(again.map(|again| (change, again)));
            }
            self.clock.witness(entry.head.stamp);
            self.transact_at(turn, entry.head.stamp, |transaction| {
                for (change, again) in steps {
                    transaction.again(change.keyspace, &change.key, again);
                }
            });
        }
        given_up
    }

    /// What a lost version makes of the key that it wrote.
    fn judge(
        &self,
        keyspace: Keyspace,
        key: &[u8],
        lost: &Version,
        firsts: &BTreeMap<Origin, u64>,
    ) -> (Option<Again>, Option<(Rule, Vec<GivenUp>)>) {
        let present = self.state.recorded(keyspace, key).map(|recorded| recorded.live);
        let whole = |rule| Some((rule, vec![outcome::whole(lost, None)]));
        let in_tail = |dot: Dot| firsts.get(&dot.origin).is_some_and(|first| dot.seq >= *first);
        match (&present, &lost.kind) {
            (None, ChangeKind::Put { .. }) => match lost.live() {
                // The write began the incarnation itself, or only lost writes have ended that.
                Some(live) if in_tail(lost.incarnation.dot) || self.saw_all(keyspace, key, lost) => {
                    (Some(Again::Put { live, begins_anew: true }), None)
                }
                _ => (None, whole(Rule::DeletedIncarnation)),
            },
            (None, ChangeKind::Delete | ChangeKind::Expire) => (None, None),
            (Some(present), ChangeKind::Delete)
                if present.incarnation == lost.incarnation || self.is_again(present, in_tail(lost.incarnation.dot)) =>
            {
                (Some(Again::Delete(ChangeKind::Delete)), None)
            }
            (Some(_), ChangeKind::Expire) if self.saw_all(keyspace, key, lost) => {
                (Some(Again::Delete(ChangeKind::Expire)), None)
            }
            (Some(_), ChangeKind::Delete | ChangeKind::Expire) => (None, whole(Rule::OutlivedDelete)),
            (Some(present), ChangeKind::Put { .. }) => {
                if self.saw_all(keyspace, key, lost) {
                    return match lost.live() {
                        Some(live) => (Some(Again::Put { live, begins_anew: false }), None),
                        None => (None, None),
                    };
                }
                let nobody = Origin { replica: Origin::GENESIS.replica, birth: Birth::new(1) };
                let mut window = Window::new(None);
                window.add(Version {
                    dot: Dot { origin: nobody, seq: 1 },
                    stamp: self.written(keyspace, key, present.incarnation),
                    rules: lost.rules,
                    deps: Arc::default(),
                    kind: present.put(),
                    incarnation: present.incarnation,
                });
                window.add(Version { deps: Arc::default(), ..lost.clone() });
                let outcome = window.outcome(&self.rules, keyspace, key);
                let given_up: Vec<_> = outcome.given_up.into_iter().filter(|given| given.dot == lost.dot).collect();
                let report = outcome.rule.filter(|_| !given_up.is_empty()).map(|rule| (rule, given_up));
                match outcome.live {
                    Some(live) if live.value != present.value || live.lease != present.lease => {
                        let begins_anew = live.incarnation != present.incarnation;
                        (Some(Again::Put { live, begins_anew }), report)
                    }
                    _ => (None, report),
                }
            }
        }
    }

    /// Whether the lost version descends from all that is here of the key.
    fn saw_all(&self, keyspace: Keyspace, key: &[u8], lost: &Version) -> bool {
        let saw =
            |dot: Dot| dot.origin == self.identity.origin() || dot.origin == lost.dot.origin || lost.deps.contains(dot);
        self.log_base().iter().all(saw)
            && self.window(keyspace, key).is_none_or(|open| open.window.versions().iter().all(|v| saw(v.dot)))
    }

    /// When a key was written last in that incarnation, as far as that is unsettled. What began another one beside it is not in
    /// what is shown.
    fn written(&self, keyspace: Keyspace, key: &[u8], incarnation: Incarnation) -> Stamp {
        let versions = self.window(keyspace, key).map(|open| open.window.versions()).unwrap_or_default();
        let of_it = versions.iter().filter(|version| version.incarnation == incarnation);
        of_it.map(|version| version.stamp).max().unwrap_or(incarnation.stamp)
    }

    /// Whether what is there is itself a lost write that was made again: what follows it there follows it here.
    fn is_again(&self, present: &Live, lost_incarnation: bool) -> bool {
        lost_incarnation && present.incarnation.dot.origin == self.identity.origin()
    }
}
