//! `eddy declare`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use eddy_proto::admin::{AtomicFields, DeclareRequest};

use super::access::Access;
use super::output::say;
use crate::config::policy::MergePolicy;

#[derive(clap::Args, Debug)]
pub(super) struct DeclareArgs {
    #[command(flatten)]
    access: Access,
    /// All counters, parted by commas, as in apps/v1/Deployment:.spec.replicas:min=0; what is not named is none any more.
    /// Fields that merge as one value stay as they are.
    #[arg(long, value_name = "LIST", required_unless_present = "merge_policy", conflicts_with = "merge_policy")]
    counters: Option<String>,
    /// A file that names all counters and all fields that merge as one value; what is not named is none any more.
    #[arg(long, value_name = "FILE")]
    merge_policy: Option<PathBuf>,
}

impl DeclareArgs {
    fn request(&self) -> anyhow::Result<DeclareRequest> {
        let Some(path) = &self.merge_policy else {
            return Ok(DeclareRequest { counters: self.counters.iter().cloned().collect(), atomic: None });
        };
        let policy = MergePolicy::read(path)?;
        let fields = policy.atomic.iter().map(ToString::to_string).collect();
        let counters = policy.counters.iter().map(ToString::to_string).collect();
        Ok(DeclareRequest { counters, atomic: Some(AtomicFields { fields }) })
    }
}

/// Declares them at the first endpoint that answers. They are in use once every member has them.
pub(super) async fn run(args: &DeclareArgs) -> anyhow::Result<ExitCode> {
    let request = args.request()?;
    let (url, mut admin) = args.access.any_admin().await?;
    let answer = admin.declare(request).await.map_err(|status| anyhow::anyhow!("{}", status.message()));
    let rules = answer.with_context(|| url.to_string())?.into_inner().rules;
    say(&format!("{url}: rules {rules}, in use once every member has them: see eddy status\n"))?;
    Ok(ExitCode::SUCCESS)
}
