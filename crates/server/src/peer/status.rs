//! The status of this replica and of its peers, and its recent merges, as the admin API's messages.

use std::collections::BTreeMap;

use eddy_crdt::sync::{Equality, PeerStatus};
use eddy_crdt::{CustomKind, GivenUp, Replica, ReplicaId, Said, Stamp, VersionVector};
use eddy_proto::admin as pb;

use super::losses::rule_name;
use super::peers::Peers;
use crate::metrics::{Metrics, PEER_ALARM_KINDS};
use crate::node::alarm::alarm_text;

fn dots(vector: &VersionVector) -> Vec<pb::Dot> {
    vector.iter().map(dot).collect()
}

fn dot(dot: eddy_crdt::Dot) -> pb::Dot {
    pb::Dot { member_id: dot.origin.replica.get(), birth: dot.origin.birth.get(), seq: dot.seq }
}

/// An alarm about a member that etcd does not have. Only this replica sees it, and it stops no writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// Its clock is this many milliseconds ahead of ours.
    Clock { member: u64, ahead_ms: i64 },
    /// It sent this many entries that do not depend on the floor.
    BelowFloor { member: u64, entries: u64 },
    /// There is no connection to it, and nothing settles until it has this many entries. `silent_ms`: since when no message
    /// came from it, if any ever did.
    Away { member: u64, entries: u64, silent_ms: Option<u64> },
}

/// The alarm of a replica that has no revision space left. It alone stops writes.
fn spaces_text(member: ReplicaId) -> String {
    format!("memberID:{} alarm:SPACES (no revision space is left)", member.get())
}

impl Trouble {
    /// The text of the alarm, in the form of etcd's.
    fn text(&self) -> String {
        match *self {
            Self::Clock { member, ahead_ms } => {
                let way = if ahead_ms < 0 { "behind" } else { "ahead" };
                format!("memberID:{member} alarm:CLOCK ({} s {way})", ahead_ms.unsigned_abs() / 1000)
            }
            Self::BelowFloor { member, entries } => {
                format!("memberID:{member} alarm:BELOW_FLOOR ({entries} entries refused)")
            }
            Self::Away { member, entries, silent_ms } => {
                let since = silent_ms.map_or("never heard of".to_owned(), |ms| format!("silent for {} s", ms / 1000));
                format!("memberID:{member} alarm:AWAY ({since}, {entries} entries wait for it)")
            }
        }
    }

    fn member(&self) -> u64 {
        match *self {
            Self::Clock { member, .. } | Self::BelowFloor { member, .. } | Self::Away { member, .. } => member,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Clock { .. } => "clock",
            Self::BelowFloor { .. } => "below-floor",
            Self::Away { .. } => "away",
        }
    }
}

impl Peers {
    /// The alarms about these peers.
    fn alarms(&self, peers: &[pb::PeerStatus]) -> Vec<Trouble> {
        let tolerance_ms = self.exchange.tuning().clock_tolerance_ms;
        let board = self.board.snapshot();
        let mut troubles = Vec::new();
        for peer in peers {
            let member = peer.member_id;
            let known = board.get(&ReplicaId::new(member));
            let dated_ms = || known?.dated_ahead_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
            // A comparison of the clocks says more than the date of one entry.
            let ahead_ms = peer.clock_ahead_ms.or_else(dated_ms);
            if let Some(ahead_ms) = ahead_ms.filter(|ms| ms.unsigned_abs() > tolerance_ms) {
                troubles.push(Trouble::Clock { member, ahead_ms });
            }
            if let Some(entries) = known.map(|known| known.below_floor).filter(|entries| *entries > 0) {
                troubles.push(Trouble::BelowFloor { member, entries });
            }
            if peer.holds_back {
                let (entries, silent_ms) = (peer.entries_behind, peer.last_contact_ms);
                troubles.push(Trouble::Away { member, entries, silent_ms });
            }
        }
        troubles
    }

    /// The status of this replica and of its peers.
    pub(crate) fn status(&self) -> pb::StatusResponse {
        let status = self.node.status();
        let durable = self.node.durable().borrow().clone();
        let own = self.node.identity();
        let peers = self.peer_statuses();
        let mut alarms: Vec<String> = status.alarms.iter().map(alarm_text).collect();
        alarms.extend(self.alarms(&peers).iter().map(Trouble::text));
        if self.node.look(Replica::is_out_of_spaces) {
            alarms.push(spaces_text(own.replica));
        }
        let strays = self.counted.strays(&self.node);
        let own_member = durable.members.iter().find(|member| member.id == own.replica);
        self.node.look(|replica| pb::StatusResponse {
            cluster_id: own.cluster.get(),
            member_id: own.replica.get(),
            birth: replica.identity().birth.get(),
            name: own_member.map(|member| member.name.clone()).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: status.revision.get(),
            vector: dots(&durable.vector),
            floor: dots(replica.floor()),
            windows: replica.windows_len() as u64,
            state_hash: format!("{:032x}", replica.state_hash()),
            alarms,
            peers,
            writes_refused: status.state.reason().unwrap_or_default().to_owned(),
            rules: replica.rules().current().number,
            engine: replica.rules().current().engine,
            newest_engine: replica.engine(),
            declared_rules: replica.rules().declared().map(|rules| rules.number),
            declared_lack: replica.lack_declared().map(|member| member.name.clone()).collect(),
            kubernetes_prefix: String::from_utf8_lossy(&replica.rules().current().prefix).into_owned(),
            counters: replica.rules().current().counters.iter().map(ToString::to_string).collect(),
            custom_kinds: replica.rules().current().custom.len() as u32,
            waiting_kinds: replica.custom_kinds().iter().filter_map(waiting_kind).collect(),
            strays,
            atomic: replica.rules().current().atomic.iter().map(ToString::to_string).collect(),
        })
    }

    fn peer_statuses(&self) -> Vec<pb::PeerStatus> {
        let own = self.node.identity().replica;
        let board = self.board.snapshot();
        let durable = self.node.durable().borrow().clone();
        let others = durable.members.iter().filter(|member| member.id != own && !member.removed);
        others
            .map(|member| {
                let known = board.get(&member.id);
                let acked = self.node.look(|replica| replica.ack_of(member.id).cloned());
                let mut status = pb::PeerStatus {
                    member_id: member.id.get(),
                    name: member.name.clone(),
                    peer_urls: member.peer_urls.clone(),
                    newest_engine: member.engine,
                    vector: acked.as_ref().map(dots).unwrap_or_default(),
                    ..pb::PeerStatus::default()
                };
                let last = known.and_then(|known| {
                    let live = known
                        .session()
                        .map(|session| self.node.look(|replica| session.lock().report(replica, &durable.vector)));
                    live.or_else(|| known.last_status.clone())
                });
                if let Some(last) = &last {
                    fill(&mut status, last);
                }
                let acked = acked.unwrap_or_default();
                let mut has = last.map(|last| last.vector).unwrap_or_default();
                has.merge(&acked);
                // Counted anew: the status of a session that ended does not know what was written since.
                (status.entries_behind, status.bytes_behind) = self.node.look(|replica| {
                    (replica.count_for(&has, &durable.vector), replica.bytes_for(&has, &durable.vector))
                });
                if let Some(known) = known {
                    status.connected = known.is_connected();
                    status.last_contact_ms = known.last_contact.map(|at| at.elapsed().as_millis() as u64);
                    status.error = known.error.clone().unwrap_or_default();
                    status.first_difference = known.difference.clone().unwrap_or_default();
                }
                // A peer that is away holds settling back while it lacks entries.
                status.holds_back = !status.connected && status.entries_behind > 0;
                status
            })
            .collect()
    }

    /// Recent merges, newest first.
    pub(crate) fn merges(&self, limit: usize) -> pb::MergesResponse {
        let limit = if limit == 0 { usize::MAX } else { limit };
        let merges = self.node.look(|replica| {
            let mut merges: Vec<_> = replica.recent_merges().cloned().collect();
            merges.reverse();
            merges.truncate(limit);
            merges
        });
        let names = self.names();
        let merges = merges
            .into_iter()
            .map(|merge| pb::Merge {
                key: merge.key,
                rule: rule_name(&merge.rule).to_owned(),
                revision: merge.revision.map_or(0, |revision| revision.get()),
                given_up: merge.given_up.told.iter().map(|given| given_up(given, &names)).collect(),
                more: merge.given_up.more as u64,
            })
            .collect();
        pb::MergesResponse { merges }
    }

    /// The names of all members, also of those that were removed.
    pub(super) fn names(&self) -> BTreeMap<ReplicaId, String> {
        self.node.members().iter().map(|member| (member.id, member.name.clone())).collect()
    }

    /// Sets the gauges about peers. Called before they are read.
    pub(crate) fn refresh(&self, metrics: &Metrics) {
        let peers = self.peer_statuses();
        let troubles = self.alarms(&peers);
        for peer in peers {
            let member = format!("{:x}", peer.member_id);
            for kind in PEER_ALARM_KINDS {
                let raised = troubles.iter().any(|t| t.member() == peer.member_id && t.kind() == kind);
                metrics.peer_alarm.with_label_values(&[member.as_str(), kind]).set(i64::from(raised));
            }
            let label = [member.as_str()];
            metrics.peer_connected.with_label_values(&label).set(i64::from(peer.connected));
            metrics.peer_entries_behind.with_label_values(&label).set(peer.entries_behind as i64);
            metrics.peer_bytes_behind.with_label_values(&label).set(peer.bytes_behind as i64);
            // What was found stays until the states are compared again and are equal.
            let differ = metrics.peer_states_differ.with_label_values(&label);
            match peer.equality() {
                pb::Equality::Equal => differ.set(0),
                pb::Equality::Different => differ.set(1),
                pb::Equality::Unknown => {}
            }
            // A counter that begins with its first fault shows no increase, so no alert sees that one.
            for counter in [&metrics.peer_received_failures, &metrics.peer_sent_failures, &metrics.peer_requests_again]
            {
                let _at_least_zero = counter.with_label_values(&label);
            }
        }
        metrics.unsettled_keys.set(self.node.look(|replica| replica.windows_len()) as i64);
    }
}

fn given_up(given: &GivenUp, names: &BTreeMap<ReplicaId, String>) -> pb::GivenUp {
    let side = |of: eddy_crdt::Dot, stamp: Stamp, said: &Said| pb::Side {
        version: Some(dot(of)),
        member: names.get(&of.origin.replica).cloned().unwrap_or_default(),
        written_ms: stamp.wall_ms(),
        value: match said {
            Said::Text(text) => Some(text.clone()),
            Said::Nothing | Said::Untold => None,
        },
    };
    pb::GivenUp {
        what: given.part.to_string(),
        lost: Some(side(given.dot, given.stamp, &given.said)),
        stands: given.stands.as_ref().map(|stands| side(stands.dot, stands.stamp, &stands.said)),
    }
}

fn fill(status: &mut pb::PeerStatus, seen: &PeerStatus) {
    status.clock_ahead_ms = seen.clock_ahead_ms;
    status.round_trip_us = seen.round_trip_ms.map(|ms| ms * 1000);
    let equality = match &seen.equality {
        Equality::Unknown => pb::Equality::Unknown,
        Equality::Equal => pb::Equality::Equal,
        Equality::Different(place) => {
            if let Some((_, key)) = place {
                status.first_difference = key.clone();
            }
            pb::Equality::Different
        }
    };
    status.equality = equality.into();
    if !seen.vector.is_empty() {
        status.vector = dots(&seen.vector);
    }
}

/// A kind of custom resources that does not merge by its definition, if it is one.
fn waiting_kind(kind: &CustomKind) -> Option<pb::WaitingKind> {
    let definition = || kind.key.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = kind.name.clone().unwrap_or_else(|| String::from_utf8_lossy(definition()).into_owned());
    Some(pb::WaitingKind { name, why: kind.waits?.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_names_the_member_and_says_what_is_wrong() {
        let text = |trouble: Trouble| {
            assert!(PEER_ALARM_KINDS.contains(&trouble.kind()));
            trouble.text()
        };
        assert_eq!(text(Trouble::Clock { member: 7, ahead_ms: 90_500 }), "memberID:7 alarm:CLOCK (90 s ahead)");
        assert_eq!(text(Trouble::Clock { member: 7, ahead_ms: -90_500 }), "memberID:7 alarm:CLOCK (90 s behind)");
        let below = Trouble::BelowFloor { member: 7, entries: 3 };
        assert_eq!(text(below), "memberID:7 alarm:BELOW_FLOOR (3 entries refused)");
        let away = |silent_ms| text(Trouble::Away { member: 7, entries: 3, silent_ms });
        assert_eq!(away(Some(90_500)), "memberID:7 alarm:AWAY (silent for 90 s, 3 entries wait for it)");
        assert_eq!(away(None), "memberID:7 alarm:AWAY (never heard of, 3 entries wait for it)");
    }
}
