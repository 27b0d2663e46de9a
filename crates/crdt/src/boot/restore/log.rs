//! What is kept for the sake of other members: the log and the windows, rebuilt from the records behind its beginning.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::boot::restore::{Candidate, Damage, Step};
use crate::entry::Head;
use crate::merge::window::{Live, Version};
use crate::replica::Replica;
use crate::replica::acks::Acks;
use crate::replica::log::Logged;
use crate::replica::origins::OriginState;
use crate::words::key::{Key, Keyspace};
use crate::words::vector::VersionVector;

/// What a key was before one of its versions that the log may need, or before one that was left out of it.
struct Station {
    version: bool,
    before: (Option<Live>, u64),
}

/// What a key was before the first that followed so many versions. Not what it was after the last of these: other versions,
/// which settled and left the log earlier, may have come between.
fn base_after(stations: Vec<Station>, count: usize) -> (Option<Live>, u64) {
    let mut versions = 0;
    for station in stations {
        if versions == count {
            return station.before;
        }
        versions += usize::from(station.version);
    }
    (None, 0)
}

/// Rebuilds the log and the windows. Nothing is merged.
pub(super) fn restore(replica: &mut Replica, head: Head, candidates: Vec<Candidate>) -> Result<(), Damage> {
    for origin in head.origins {
        replica.base.advance(origin.dot);
        let state = OriginState::at(origin.clone());
        *replica.origin_mut(origin.dot.origin) = state;
    }
    let mut reached = replica.base.clone();
    let mut stations: BTreeMap<(Keyspace, Key), Vec<Station>> = BTreeMap::new();
    for Candidate { number, mut entry, steps, left_out } in candidates {
        let (dot, origin) = (entry.head.dot, entry.head.dot.origin);
        let known = reached.get(origin);
        if dot.seq <= known {
            continue;
        }
        if left_out {
            for Step { keyspace, key, before, .. } in steps {
                replica.state.windows.open(keyspace, &key, || before.clone());
                stations.entry((keyspace, key)).or_default().push(Station { version: false, before });
            }
            continue;
        }
        // Under an older birth it may have left entries out, too.
        let own = origin.replica == replica.identity.replica;
        let state = replica.origin_mut(origin);
        let chain = entry.head.previous.extend(&entry.head, &entry.changes);
        if entry.head.first_seq == known + 1 {
            if entry.head.previous != state.chain {
                return Err(Damage::Chain { number, dot });
            }
        } else if own {
            // Entries of its own that it left out: this one stands for them.
            entry.head.first_seq = known + 1;
            entry.head.previous = state.chain;
            entry.head.resulting = Some(chain);
        } else if entry.head.first_seq > known + 1 {
            return Err(Damage::Chain { number, dot });
        }
        if !entry.head.depends.is_empty() {
            let mut deps = VersionVector::clone(&state.deps);
            deps.merge(&entry.head.depends);
            state.deps = Arc::new(deps);
        }
        state.chain = chain;
        let deps = Arc::clone(&state.deps);
        reached.advance(dot);
        for (step, change) in steps.into_iter().zip(entry.net()) {
            let Step { keyspace, key, before, after } = step;
            let version = Version {
                dot,
                stamp: entry.head.stamp,
                deps: Arc::clone(&deps),
                kind: change.kind.clone(),
                version: change.version,
                incarnation: change.incarnation,
            };
            let windows = &mut replica.state.windows;
            windows.open(keyspace, &key, || before.clone());
            windows.add(keyspace, &key, version);
            windows.note(keyspace, &key, after);
            stations.entry((keyspace, key)).or_default().push(Station { version: true, before });
        }
        replica.log.push(Logged { number, entry: Arc::new(entry), deps, chain });
    }
    if reached != head.vector {
        return Err(Damage::State { what: "entries that members may lack" });
    }
    if replica.own.chain != head.chain {
        return Err(Damage::State { what: "chain hash of its own entries" });
    }
    for ((keyspace, key), stations) in stations {
        let base = |count| base_after(stations, count);
        if replica.state.windows.settle_known(keyspace, &key, &head.floor, base) {
            replica.lingering.insert((keyspace, key));
        }
    }
    let fresh = head.vector.iter().filter(|dot| dot.origin != head.identity.origin());
    replica.fresh = fresh.filter(|dot| !replica.own.deps.contains(*dot)).collect();
    replica.vector = head.vector;
    replica.floor = head.floor;
    replica.acks = Acks::restored(head.acks);
    replica.offered = head.offered;
    let alone = replica.members.is_empty() || replica.members.counting(&replica.acks) == [replica.identity.replica];
    replica.state.windowed = !alone || !replica.log.is_empty();
    Ok(())
}
