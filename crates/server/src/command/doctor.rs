//! `eddy doctor`: whether a stopped replica would start, and what is wrong if not. Writes nothing into the data dir.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use eddy_crdt::{Birth, ClusterId, Damage, Identity, Loader, Now, Replica, ReplicaId};

use super::output::say;
use crate::storage::doctor::{Examined, Finding, Stored, examine};
use crate::storage::{StorageError, keeping_error};

/// What to do where something is wrong with the files.
const ADVICE: &str = "Keep a copy of this folder. Of a member of several, remove the data dir and start it: the others \
                      fill it again. Of a single one, make a data dir of the newest backup (`eddy restore`).";

#[derive(clap::Args, Debug)]
pub(super) struct DoctorArgs {
    /// The data dir of the stopped replica.
    #[arg(long)]
    data_dir: PathBuf,
    /// Where a copy of the checkpoint may lie meanwhile; by default where the system keeps temporary files.
    #[arg(long)]
    scratch: Option<PathBuf>,
}

/// Looks at everything, and prints what it finds.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let data_dir = &args.data_dir;
    if !data_dir.join("eddy").exists() {
        bail!("{} is no data dir of eddy", data_dir.display());
    }
    let scratch = Scratch::make(args.scratch.clone().unwrap_or_else(std::env::temp_dir))?;
    let mut judged = None;
    let examined = examine(data_dir, &scratch.0, &mut |stored| judge(stored, &mut judged));
    let mut examined = match examined {
        Err(StorageError::InUse { .. }) => {
            bail!("a replica runs on {}: stop it first, or ask it with `eddy status`", data_dir.display())
        }
        examined => examined.with_context(|| data_dir.display().to_string())?,
    };
    match judged {
        Some(Ok(Some(replica))) => examined.notes.extend(about(&replica)),
        Some(Err(damage)) => {
            let path = data_dir.join("eddy");
            examined.findings.push(Finding { path, what: damage.to_string(), is_damage: true });
        }
        // Never written to, or not whole, which is among the findings.
        Some(Ok(None)) | None => {}
    }
    say(&report(data_dir, &examined))?;
    Ok(if examined.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The replica that would start, `None` for a store that was never written to; or why none would.
type Judged = Result<Option<Replica>, Damage>;

/// Reads all of a store, and judges it as far as it can be read.
fn judge(stored: &mut Stored<'_>, judged: &mut Option<Judged>) -> Result<(), StorageError> {
    let head = stored.last_head();
    let mut loader = Loader::new(head.as_ref());
    let mut damage = None;
    // All is read, also behind damage of one kind: there may be some of the other.
    let looked = stored.look(&mut |number, record| {
        if let Ok(loader) = &mut loader
            && damage.is_none()
        {
            damage = loader.record(number, record).err();
        }
    });
    *judged = damage.map(Err);
    looked?;
    if judged.is_some() {
        return Ok(());
    }
    // The identity counts only for a store that was never written to.
    let nobody = Identity { cluster: ClusterId::new(0), replica: ReplicaId::new(0), birth: Birth::new(0), ordinal: 0 };
    let mut unread = None;
    let mut again = keeping_error(|number| stored.read(number), &mut unread);
    let replica = loader.and_then(|loader| loader.finish(Now::default(), nobody, &mut again));
    drop(again);
    match unread {
        Some(error) => Err(error),
        None => {
            *judged = Some(replica.map(|replica| head.map(|_| replica)));
            Ok(())
        }
    }
}

/// What a replica is that would start.
fn about(replica: &Replica) -> Vec<String> {
    let id = replica.identity();
    let others = replica.members().filter(|member| !member.removed && member.id != id.replica).count();
    let mut notes = vec![format!(
        "member {} of cluster {}, with {others} others, at revision {}: {} keys",
        id.replica,
        id.cluster,
        replica.revision(),
        replica.live_keys()
    )];
    if replica.members().any(|member| member.removed && member.id == id.replica) {
        notes.push(
            "this member was removed from its cluster, so no server starts: `eddy rescue` prints what only it has"
                .to_owned(),
        );
    }
    let alarms =
        replica.alarms_that_stop().map(|alarm| format!("the alarm {:?} is raised: it stops writes", alarm.kind));
    notes.extend(alarms);
    notes
}

fn report(data_dir: &Path, examined: &Examined) -> String {
    let mut text = String::new();
    for note in &examined.notes {
        let _infallible = writeln!(text, "{note}");
    }
    for Finding { path, what, .. } in &examined.findings {
        let _infallible = writeln!(text, "WRONG: {}: {what}", path.display());
    }
    if examined.findings.is_empty() {
        let _infallible = writeln!(text, "nothing is wrong with {}: all that was written is there", data_dir.display());
    } else if examined.findings.iter().any(|finding| finding.is_damage) {
        let _infallible = writeln!(text, "{ADVICE}");
    }
    text
}

/// A folder that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn make(within: PathBuf) -> anyhow::Result<Self> {
        let folder = within.join(format!("eddy-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}
