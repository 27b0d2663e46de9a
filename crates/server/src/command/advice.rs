//! What is wrong, in a sentence each, and what to do about it.

use eddy_proto::admin::{Equality, PeerStatus, StatusResponse};

/// A clock is worth a word when it is so far off, milliseconds.
const CLOCK_MS: u64 = 10_000;

/// A connected peer is worth a word when it lacks so many entries.
const BEHIND: u64 = 1_000;

/// What to do about each alarm.
const ALARMS: [(&str, &str); 4] = [
    ("NOSPACE", "the quota is used up, so writes are refused: compact, `etcdctl defrag`, then `etcdctl alarm disarm`"),
    ("CORRUPT", "two members hold different states: save both data dirs, report it, and wipe the one that is wrong"),
    (
        "BELOW_FLOOR",
        "a member's entries are refused, because its disk was set back: `eddy rescue` there, then wipe its data dir",
    ),
    ("SPACES", "the revisions of this member are used up: begin a new cluster from a backup"),
];

/// All that is wrong; nothing when all is well.
pub(super) fn advice(status: &StatusResponse) -> Vec<String> {
    let mut advice = vec![];
    for (alarm, what) in ALARMS {
        let mut raised = status.alarms.iter().filter_map(|text| text.split_once("alarm:"));
        if raised.any(|(_, kind)| kind.split(' ').next() == Some(alarm)) {
            advice.push(what.to_owned());
        }
    }
    let refused = &status.writes_refused;
    if refused.contains("no space") {
        advice.push(
            "the disk is full: free space on the disk of the data dir, and writes go on by themselves".to_owned(),
        );
    } else if !refused.is_empty() {
        advice.push(format!("writes are refused ({refused}): look at the disk, then restart this member"));
    }
    if status.strays > 0 {
        advice.push(
            "no controller removes objects whose namespace does not exist: create it again and delete it, and they go"
                .to_owned(),
        );
    }
    advice.extend(status.peers.iter().flat_map(of_peer));
    advice
}

fn of_peer(peer: &PeerStatus) -> Vec<String> {
    let name = if peer.name.is_empty() { format!("{:x}", peer.member_id) } else { peer.name.clone() };
    let mut advice = vec![];
    if peer.equality() == Equality::Different {
        advice.push(format!("{name} holds another state with the same entries: save both data dirs and report it"));
    }
    if !peer.connected {
        let lacks = match peer.entries_behind {
            0 => "it lacks nothing".to_owned(),
            1 => "it lacks 1 entry".to_owned(),
            entries => format!("it lacks {entries} entries"),
        };
        let why = if peer.error.is_empty() { String::new() } else { format!(" ({})", peer.error) };
        advice.push(format!(
            "{name} is away{why}, and {lacks}: start it or mend the network; if it is gone for good, `etcdctl member remove {:x}`",
            peer.member_id
        ));
    } else if peer.entries_behind >= BEHIND {
        advice.push(format!(
            "{name} is connected and {} entries behind: it is overloaded, or its disk or the link is slow",
            peer.entries_behind
        ));
    }
    if let Some(ahead) = peer.clock_ahead_ms.filter(|ahead| ahead.unsigned_abs() > CLOCK_MS) {
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        advice.push(format!(
            "the clock of {name} is {} s {way} the one here: mend the wrong one, since clocks break ties between writes",
            ahead.unsigned_abs() / 1_000
        ));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_has_its_sentence_and_health_has_none() {
        let peer = |name: &str| PeerStatus { name: name.to_owned(), connected: true, ..PeerStatus::default() };
        let well = StatusResponse {
            peers: vec![PeerStatus { entries_behind: 3, clock_ahead_ms: Some(-900), ..peer("west") }],
            ..StatusResponse::default()
        };
        assert!(advice(&well).is_empty(), "{:?}", advice(&well));
        let ill = StatusResponse {
            alarms: vec![
                "memberID:2 alarm:NOSPACE".to_owned(),
                "memberID:3 alarm:CORRUPT".to_owned(),
                "memberID:3 alarm:BELOW_FLOOR (3 entries refused)".to_owned(),
            ],
            writes_refused: "no space left on the disk of the data dir".to_owned(),
            peers: vec![
                PeerStatus {
                    member_id: 0xab,
                    connected: false,
                    entries_behind: 17,
                    error: "timed out".to_owned(),
                    ..peer("west")
                },
                PeerStatus { entries_behind: 20_000, clock_ahead_ms: Some(61_000), ..peer("north") },
                PeerStatus { equality: Equality::Different.into(), ..peer("south") },
            ],
            ..StatusResponse::default()
        };
        expect_test::expect![[r#"
            the quota is used up, so writes are refused: compact, `etcdctl defrag`, then `etcdctl alarm disarm`
            two members hold different states: save both data dirs, report it, and wipe the one that is wrong
            a member's entries are refused, because its disk was set back: `eddy rescue` there, then wipe its data dir
            the disk is full: free space on the disk of the data dir, and writes go on by themselves
            west is away (timed out), and it lacks 17 entries: start it or mend the network; if it is gone for good, `etcdctl member remove ab`
            north is connected and 20000 entries behind: it is overloaded, or its disk or the link is slow
            the clock of north is 61 s ahead of the one here: mend the wrong one, since clocks break ties between writes
            south holds another state with the same entries: save both data dirs and report it
        "#]]
        .assert_eq(&(advice(&ill).join("\n") + "\n"));
    }
}
