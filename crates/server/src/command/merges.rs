//! `eddy merges`: what was merged and what was given up for it, as a diff.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use eddy_proto::admin::{GivenUp, Merge, MergesRequest, MergesResponse, Side};

use super::access::Access;
use super::answers::Answers;
use crate::admin::json;
use crate::logging::timestamp;

#[derive(clap::Args, Debug)]
pub(super) struct MergesArgs {
    #[command(flatten)]
    access: Access,
    /// At most so many of each endpoint, the newest first; 0 for all that it remembers.
    #[arg(long, default_value_t = 20)]
    limit: u32,
    /// Print JSON: a list with one object for each endpoint.
    #[arg(long)]
    json: bool,
}

/// Asks each endpoint. Fails when one does not answer.
pub(super) async fn run(args: &MergesArgs) -> anyhow::Result<ExitCode> {
    let request = MergesRequest { limit: args.limit };
    let answers = Answers::of(&args.access, async |mut admin| admin.merges(request).await).await?;
    if args.json {
        answers.print_json("merges", |merges| json::merges(merges)["merges"].take())
    } else {
        answers.print(text)
    }
}

fn text(url: &str, merges: &MergesResponse) -> String {
    match &merges.merges[..] {
        [] => format!("{url}: nothing was merged of late\n"),
        merges => merges.iter().map(diff).collect(),
    }
}

/// One merge. What is not there any more stands behind `-`, what stands there instead behind `+`.
fn diff(merge: &Merge) -> String {
    let mut text = format!("{}  {}", String::from_utf8_lossy(&merge.key), merge.rule);
    if merge.revision != 0 {
        let _infallible = write!(text, "  revision {}", merge.revision);
    }
    text.push('\n');
    if merge.given_up.is_empty() {
        text.push_str("  all edits are in it\n");
    }
    for given in &merge.given_up {
        lost(&mut text, given);
    }
    if merge.more > 0 {
        let _infallible = writeln!(text, "  and {} more", merge.more);
    }
    text
}

fn lost(text: &mut String, given: &GivenUp) {
    let _infallible = writeln!(text, "  {}", given.what);
    for (sign, side) in [('-', &given.lost), ('+', &given.stands)] {
        let Some(Side { member, written_ms, value, .. }) = side else { continue };
        let said = value.as_deref().unwrap_or("(not shown)");
        let _infallible = writeln!(
            text,
            "{sign}   {said}  # {member} at {}",
            timestamp(UNIX_EPOCH + Duration::from_millis(*written_ms))
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(member: &str, value: Option<&str>) -> Option<Side> {
        let value = value.map(str::to_owned);
        Some(Side { version: None, member: member.to_owned(), written_ms: 1_000, value })
    }

    #[test]
    fn a_merge_reads_like_a_diff() {
        let given = GivenUp {
            what: ".spec.replicas".to_owned(),
            lost: side("north", Some("3")),
            stands: side("south", Some("5")),
        };
        let merge = Merge {
            key: b"/registry/deployments/default/web".to_vec().into(),
            rule: "field-merge".to_owned(),
            revision: 7,
            given_up: vec![given],
            more: 2,
        };
        assert_eq!(
            diff(&merge),
            "/registry/deployments/default/web  field-merge  revision 7\n  .spec.replicas\n-   3  # north at 1970-01-01T00:00:01.000000Z\n\
             +   5  # south at 1970-01-01T00:00:01.000000Z\n  and 2 more\n"
        );
        assert!(diff(&Merge { given_up: vec![], more: 0, ..merge }).contains("all edits are in it"));
    }
}
