//! `eddy status`: a table for people, JSON for scripts.

use std::fmt::Write as _;
use std::process::ExitCode;

use eddy_proto::admin::{Equality, PeerStatus, StatusRequest, StatusResponse};

use super::access::Access;
use super::advice::advice;
use super::answers::Answers;
use crate::admin::json;

#[derive(clap::Args, Debug)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    access: Access,
    /// Print JSON: a list with one object for each endpoint.
    #[arg(long)]
    json: bool,
}

/// Asks each endpoint. Fails when one does not answer.
pub(super) async fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let answers = Answers::of(&args.access, async |mut admin| admin.status(StatusRequest {}).await).await?;
    if args.json { answers.print_json("status", json::status) } else { answers.print(table) }
}

fn table(url: &str, status: &StatusResponse) -> String {
    let mut text = String::new();
    let _infallible = writeln!(
        text,
        "{url}  {} {:x}  cluster {:x}  revision {}  unsettled keys {}",
        status.name, status.member_id, status.cluster_id, status.revision, status.windows
    );
    let list = |fields: &[String]| if fields.is_empty() { "none".to_owned() } else { fields.join(", ") };
    let (counters, atomic) = (list(&status.counters), list(&status.atomic));
    let _infallible = writeln!(
        text,
        "  rules {}: prefix {}, counters {counters}, atomic {atomic}, merge engine {} (this build: {})",
        status.rules, status.kubernetes_prefix, status.engine, status.newest_engine
    );
    if let Some(declared) = status.declared_rules {
        let _infallible = writeln!(text, "  rules {declared} wait for {}", status.declared_lack.join(", "));
    }
    if status.custom_kinds > 0 || !status.waiting_kinds.is_empty() {
        let _infallible = writeln!(text, "  custom kinds that merge by their schema: {}", status.custom_kinds);
    }
    for kind in &status.waiting_kinds {
        let _infallible = writeln!(text, "  {} does not yet: {}", kind.name, kind.why);
    }
    if status.strays > 0 {
        let _infallible = writeln!(text, "  objects in namespaces that do not exist: {}", status.strays);
    }
    if !status.writes_refused.is_empty() {
        let _infallible = writeln!(text, "  writes refused: {}", status.writes_refused);
    }
    for alarm in &status.alarms {
        let _infallible = writeln!(text, "  {alarm}");
    }
    let head = ["PEER", "NAME", "CONNECTED", "BEHIND", "BYTES", "LAST CONTACT", "ROUND TRIP", "STATE", "NOTE"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(status.peers.iter().map(|peer| row(peer, status.newest_engine)));
    let mut widths = [0; 9];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _infallible = writeln!(text, "  {}", cells.join("  ").trim_end());
    }
    for sentence in advice(status) {
        let _infallible = writeln!(text, "  ! {sentence}");
    }
    text
}

fn row(peer: &PeerStatus, own_engine: u32) -> [String; 9] {
    let mut notes = Vec::new();
    if peer.newest_engine.is_some_and(|engine| engine != own_engine) {
        notes.push(format!("its build has merge engine {}", peer.newest_engine.unwrap_or_default()));
    }
    if peer.holds_back {
        notes.push("holds settling back".to_owned());
    }
    if !peer.error.is_empty() {
        notes.push(peer.error.clone());
    }
    if !peer.first_difference.is_empty() {
        notes.push(format!("differs from {:?} on", String::from_utf8_lossy(&peer.first_difference)));
    }
    [
        format!("{:x}", peer.member_id),
        peer.name.clone(),
        if peer.connected { "yes" } else { "no" }.to_owned(),
        peer.entries_behind.to_string(),
        peer.bytes_behind.to_string(),
        peer.last_contact_ms.map_or_else(|| "never".to_owned(), ago),
        peer.round_trip_us.map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us as f64 / 1000.0)),
        match peer.equality() {
            Equality::Unknown => "unknown",
            Equality::Equal => "equal",
            Equality::Different => "DIFFERENT",
        }
        .to_owned(),
        notes.join("; "),
    ]
}

fn ago(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms ago"),
        1_000..120_000 => format!("{} s ago", ms / 1_000),
        120_000..7_200_000 => format!("{} min ago", ms / 60_000),
        _ => format!("{} h ago", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use eddy_proto::admin::WaitingKind;

    use super::*;

    #[test]
    fn the_table_says_what_is_wrong_with_a_peer() {
        let peers = vec![
            PeerStatus {
                member_id: 0xab,
                name: "west".to_owned(),
                connected: true,
                newest_engine: Some(2),
                last_contact_ms: Some(12),
                round_trip_us: Some(1_540),
                equality: Equality::Equal.into(),
                ..PeerStatus::default()
            },
            PeerStatus {
                member_id: 0xcd,
                entries_behind: 17,
                bytes_behind: 4_096,
                last_contact_ms: Some(300_000),
                holds_back: true,
                error: "timed out".to_owned(),
                ..PeerStatus::default()
            },
        ];
        let status = StatusResponse {
            cluster_id: 0x1,
            member_id: 0x2,
            name: "east".to_owned(),
            revision: 7,
            alarms: vec!["memberID:2 alarm:NOSPACE".to_owned()],
            peers,
            rules: 2,
            engine: 2,
            newest_engine: 3,
            declared_rules: Some(3),
            declared_lack: vec!["west".to_owned(), "north".to_owned()],
            kubernetes_prefix: "/registry/".to_owned(),
            strays: 3,
            counters: vec!["apps/v1/Deployment:.spec.replicas:min=0".to_owned()],
            custom_kinds: 12,
            waiting_kinds: vec![WaitingKind {
                name: "example.com/Thing".to_owned(),
                why: "not every member is known to have it".to_owned(),
            }],
            atomic: vec!["apps/v1/Deployment:.spec.template".to_owned()],
            ..StatusResponse::default()
        };
        expect_test::expect![[r#"
            http://h:1  east 2  cluster 1  revision 7  unsettled keys 0
              rules 2: prefix /registry/, counters apps/v1/Deployment:.spec.replicas:min=0, atomic apps/v1/Deployment:.spec.template, merge engine 2 (this build: 3)
              rules 3 wait for west, north
              custom kinds that merge by their schema: 12
              example.com/Thing does not yet: not every member is known to have it
              objects in namespaces that do not exist: 3
              memberID:2 alarm:NOSPACE
              PEER  NAME  CONNECTED  BEHIND  BYTES  LAST CONTACT  ROUND TRIP  STATE    NOTE
              ab    west  yes        0       0      12 ms ago     1.5 ms      equal    its build has merge engine 2
              cd          no         17      4096   5 min ago     -           unknown  holds settling back; timed out
              ! the quota is used up, so writes are refused: compact, `etcdctl defrag`, then `etcdctl alarm disarm`
              ! no controller removes objects whose namespace does not exist: create it again and delete it, and they go
              ! cd is away (timed out), and it lacks 17 entries: start it or mend the network; if it is gone for good, `etcdctl member remove cd`
        "#]]
        .assert_eq(&table("http://h:1", &status));
    }
}
