//! What a member wrote while it took itself for the only one.
//!
//! That is settled at once: nobody else has to have it, so it is in no log. There may be others all the same, when the disk
//! was set back to before they were added, or is another one. What it wrote then is in its keys alone, revision by revision
//! as far as it is not compacted; only the stamps are lost, of which the lives of keys give a lower bound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::clock::Stamp;
use crate::entry::{Applied, Chain, Change, ChangeKind, Entry, EntryHead, Past};
use crate::id::Dot;
use crate::index::Incarnation;
use crate::key::{self, Key, Keyspace};
use crate::replica::Replica;
use crate::revision::Revision;
use crate::snapshot::rebase::Lost;
use crate::system::SystemKey;
use crate::vector::VersionVector;

/// What is settled of what `old` wrote under its present birth, of which nobody else has heard; in the order in which it was
/// written, but for what is not a client's, which comes first.
pub(super) fn written(old: &Replica) -> Vec<Lost> {
    let origin = old.identity.origin();
    let announced = old.state.system.get(&SystemKey::Birth(origin.replica).encode());
    let (begins, stamp) = match old.past {
        Past::Known => return vec![],
        Past::Founded => (0, Stamp::default()),
        Past::Doubtful => {
            announced.map_or((u64::MAX, Stamp::default()), |value| (value.number, value.incarnation.stamp))
        }
    };
    if old.log_base().get(origin) == 0 {
        return vec![];
    }
    let logged: BTreeSet<u64> = old.log.iter().map(|logged| logged.number).collect();
    let is_wanted = |number: u64| number > begins && !logged.contains(&number);
    let change = |keyspace, key: &Key, kind, version, incarnation| Change {
        sub: 0,
        keyspace,
        local: false,
        key: key.clone(),
        kind,
        create_revision: Revision::default(),
        version,
        incarnation,
        applied: Applied::AsIs,
    };
    let mut entries: BTreeMap<(Revision, u32), Change> = BTreeMap::new();
    for (key, versions) in old.state.index.iter().filter(|(key, _)| !key::is_replica_local(key)) {
        for version in versions.iter().filter(|version| is_wanted(version.number)) {
            let kind = match &version.value {
                Some(value) => ChangeKind::Put { value: value.clone(), lease: version.lease },
                None => ChangeKind::Delete,
            };
            let change = change(Keyspace::Client, key, kind, version.version, version.incarnation);
            entries.insert((version.revision, version.sub), change);
        }
    }
    let system = old.state.system.iter().filter(|(_, value)| is_wanted(value.number)).map(|(key, value)| {
        let kind = ChangeKind::Put { value: value.value.clone(), lease: None };
        change(Keyspace::System, key, kind, value.version, value.incarnation)
    });
    let mut groups: Vec<Vec<Change>> = system.map(|change| vec![change]).collect();
    let mut newest = None;
    for ((revision, _), change) in entries {
        match groups.last_mut().filter(|_| newest == Some(revision)) {
            Some(group) => group.push(change),
            None => groups.push(vec![change]),
        }
        newest = Some(revision);
    }
    let mut deps = old.vector().clone();
    deps.remove(origin);
    let deps = Arc::new(deps);
    let mut last = (stamp, Dot { origin, seq: 1 });
    let lost = groups.into_iter().map(|changes| {
        let lives = changes.iter().map(|change| change.incarnation).filter(|life| life.dot.origin == origin);
        last = lives.fold(last, |last, life: Incarnation| (last.0.max(life.stamp), last.1.max(life.dot)));
        let head = EntryHead {
            dot: last.1,
            first_seq: last.1.seq,
            stamp: last.0,
            depends: VersionVector::default(),
            previous: Chain::default(),
            resulting: None,
        };
        Lost { entry: Arc::new(Entry { head, changes }), deps: Arc::clone(&deps) }
    });
    lost.collect()
}
