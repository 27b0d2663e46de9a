//! `eddy leap`.

use std::process::ExitCode;

use anyhow::Context;
use eddy_proto::admin::LeapRequest;

use super::access::Access;
use super::output::say;

#[derive(clap::Args, Debug)]
pub(super) struct LeapArgs {
    #[command(flatten)]
    access: Access,
}

/// Has each endpoint leap, in turn.
pub(super) async fn run(args: &LeapArgs) -> anyhow::Result<ExitCode> {
    let dialer = args.access.dialer()?;
    for url in args.access.urls()? {
        let mut admin = args.access.admin(&dialer, &url).await?;
        let answer = admin.leap(LeapRequest {}).await.map_err(|status| anyhow::anyhow!("{}", status.message()));
        let revision = answer.with_context(|| url.to_string())?.into_inner().revision;
        say(&format!("{url}: revision {revision}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
