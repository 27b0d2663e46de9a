//! `eddy declare`.

use std::process::ExitCode;

use anyhow::Context;
use eddy_proto::admin::DeclareRequest;

use super::access::Access;
use super::output::say;

#[derive(clap::Args, Debug)]
pub(super) struct DeclareArgs {
    #[command(flatten)]
    access: Access,
    /// All counters, parted by commas, as in apps/v1/Deployment:.spec.replicas:min=0; what is not named is none any more.
    #[arg(long, value_name = "LIST")]
    counters: String,
}

/// Declares them at the first endpoint that answers. They are in use once every member has them.
pub(super) async fn run(args: &DeclareArgs) -> anyhow::Result<ExitCode> {
    let dialer = args.access.dialer()?;
    let mut last = None;
    for url in args.access.urls()? {
        let mut admin = match args.access.admin(&dialer, &url).await {
            Ok(admin) => admin,
            Err(error) => {
                last = Some(error);
                continue;
            }
        };
        let request = DeclareRequest { counters: vec![args.counters.clone()] };
        let answer = admin.declare(request).await.map_err(|status| anyhow::anyhow!("{}", status.message()));
        let rules = answer.with_context(|| url.to_string())?.into_inner().rules;
        say(&format!("{url}: rules {rules}, in use once every member has them: see eddy status\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no endpoint was given")))
}
