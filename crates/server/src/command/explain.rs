//! `eddy explain merge`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use eddy_crdt::merge::{self, Rules};
use eddy_proto::admin::{ExplainRequest, ExplainedKind};

use super::access::Access;
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
    /// A kind, as in Deployment or apps/v1/Deployment. How one merges that is not built in is asked of a replica.
    kind: String,
    #[command(flatten)]
    access: Access,
    /// The counters of the cluster, as they were declared to it: eddy status shows them.
    #[arg(long, value_name = "LIST", default_value = "", conflicts_with = "merge_policy")]
    counters: String,
    /// The merge policy of the cluster.
    #[arg(long, value_name = "FILE")]
    merge_policy: Option<PathBuf>,
}

/// Prints it. For a built-in kind no replica is needed.
pub(super) async fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
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
        (_, []) => return custom(args).await,
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

/// Asks the first endpoint that answers how a custom resource merges.
async fn custom(args: &MergeArgs) -> anyhow::Result<ExitCode> {
    let (url, mut admin) = args.access.any_admin().await?;
    let request = ExplainRequest { kind: args.kind.clone() };
    let answer = admin.explain(request).await.map_err(|status| anyhow!("{}", status.message()));
    let kinds = answer.with_context(|| url.to_string())?.into_inner().kinds;
    ensure!(
        !kinds.is_empty(),
        "{} is no built-in kind, and at {url} no schema of one is in use: it merges by the names of its fields",
        args.kind
    );
    kinds.iter().try_for_each(|kind| say(&explained(kind)))?;
    Ok(ExitCode::SUCCESS)
}

fn explained(kind: &ExplainedKind) -> String {
    let width = kind.fields.iter().map(|field| field.path.len()).max().unwrap_or_default();
    let mut text = format!("{}: where two sites edit one object apart, each field is\n\n", kind.name);
    for field in &kind.fields {
        let _infallible = writeln!(text, "{:width$}  {}", field.path, field.how);
    }
    text.push_str("\nany other list or scalar: one value; the last edit stays. Any other map: by key. Metadata: as of any kind.\n");
    text
}

#[cfg(test)]
mod tests {
    use eddy_proto::admin::ExplainedField;

    use super::*;

    #[test]
    fn a_custom_kind_is_told_with_what_its_schema_does_not_say() {
        let field = |path: &str, how: &str| ExplainedField { path: path.to_owned(), how: how.to_owned() };
        let fields = vec![field(".spec", "field by field"), field(".spec.tags", "a set")];
        let text = explained(&ExplainedKind { name: "e.com/v1/Thing".to_owned(), fields });
        expect_test::expect![[r#"
            e.com/v1/Thing: where two sites edit one object apart, each field is

            .spec       field by field
            .spec.tags  a set

            any other list or scalar: one value; the last edit stays. Any other map: by key. Metadata: as of any kind.
        "#]]
        .assert_eq(&text);
    }
}
