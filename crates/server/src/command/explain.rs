//! `eddy explain merge`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use eddy_crdt::merge::{self, Rules};

use super::output::say;
use crate::config::policy::MergePolicy;

#[derive(clap::Args, Debug)]
pub(super) struct ExplainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Print how concurrent edits of each field of a kind merge.
    Merge(MergeArgs),
}

#[derive(clap::Args, Debug)]
struct MergeArgs {
    /// A built-in kind, as in Deployment or apps/v1/Deployment.
    kind: String,
    /// The counters of the cluster, as they were declared to it: eddy status shows them.
    #[arg(long, value_name = "LIST", default_value = "", conflicts_with = "merge_policy")]
    counters: String,
    /// The merge policy of the cluster.
    #[arg(long, value_name = "FILE")]
    merge_policy: Option<PathBuf>,
}

/// Prints it; needs no replica.
pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let What::Merge(args) = &args.what;
    let policy = match &args.merge_policy {
        Some(path) => MergePolicy::read(path)?,
        None => MergePolicy { counters: merge::counters(&args.counters)?, ..MergePolicy::default() },
    };
    let rules = Rules { counters: policy.counters, atomic: policy.atomic, ..Rules::default() };
    let found = merge::kinds(&args.kind);
    // Of several versions the stable one is meant.
    let is_stable = |(version, _): &&(&str, &str)| !version.contains("alpha") && !version.contains("beta");
    let stable: Vec<_> = found.iter().filter(is_stable).collect();
    let (api_version, kind) = match (&stable[..], &found[..]) {
        ([one], _) => **one,
        (_, [one]) => *one,
        (_, []) => bail!("{} is no built-in kind: custom resources merge by the names of their fields", args.kind),
        (_, several) => {
            let names: Vec<String> = several.iter().map(|(version, kind)| format!("{version}/{kind}")).collect();
            bail!("{} is several kinds: {}", args.kind, names.join(", "))
        }
    };
    let explained = merge::explain(api_version, kind, &rules).unwrap_or_default();
    ensure!(!explained.is_empty(), "nothing is known of {api_version}/{kind}");
    let width = explained.iter().map(|field| field.path.len()).max().unwrap_or_default();
    let mut text = format!("{api_version}/{kind}: where two sites edit one object apart, each field is\n\n");
    for field in explained {
        writeln!(text, "{:width$}  {}", field.path, field.how)?;
    }
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}
