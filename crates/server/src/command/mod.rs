//! The commands besides serving: `eddy status`, `eddy leap`, `eddy declare`, `eddy doctor`, `eddy rescue`, `eddy restore`,
//! `eddy merges`, `eddy explain`, `eddy completions`, `eddy man`. As in etcd, arguments that begin with a dash are flags of
//! the server, so these words never collide with them.

mod access;
mod advice;
mod answers;
mod declare;
mod doctor;
mod explain;
mod export;
mod founding;
mod import;
mod leap;
mod manual;
mod merges;
mod output;
mod rescue;
mod restore;
mod status;
mod stopping;

pub use output::say;

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

/// The words that are commands.
const NAMES: &[&str] = &[
    "status",
    "leap",
    "declare",
    "doctor",
    "rescue",
    "restore",
    "import",
    "export",
    "explain",
    "merges",
    "completions",
    "man",
];

#[derive(Parser, Debug)]
#[command(name = "eddy", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show how replicas and their peers stand.
    Status(status::StatusArgs),
    /// Move a replica's revisions above all that any member has used; its clients list again.
    Leap(leap::LeapArgs),
    /// Declare which fields are counters from now on, and which merge as one value
    Declare(declare::DeclareArgs),
    /// Look for what is wrong with the disk of a stopped replica; writes nothing.
    Doctor(doctor::DoctorArgs),
    /// Export what a stopped replica wrote and has never sent to a peer, as JSON lines.
    Rescue(rescue::RescueArgs),
    /// Make a data dir of a backup of eddy or etcd.
    Restore(restore::RestoreArgs),
    /// Make a data dir that follows a running etcd, until it is told to stop.
    Import(import::ImportArgs),
    /// Have a running etcd follow a running eddy, until it is told to stop.
    Export(export::ExportArgs),
    /// Print what was merged of late and what was given up for it, as a diff.
    Merges(merges::MergesArgs),
    /// Print what eddy knows of a kind of objects.
    Explain(explain::ExplainArgs),
    /// Print what makes a shell complete eddy's flags and commands.
    Completions(manual::CompletionsArgs),
    /// Print the man page of eddy, or write all of its pages.
    Man(manual::ManArgs),
}

/// Runs a command, if the arguments (without the program's name) are one.
pub fn run(args: &[String]) -> Option<ExitCode> {
    if !args.first().is_some_and(|word| NAMES.contains(&word.as_str())) {
        return None;
    }
    let cli = match Cli::try_parse_from(std::iter::once("eddy").chain(args.iter().map(String::as_str))) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            // A closed pipe is no error of ours.
            let _closed = error.print();
            return Some(ExitCode::from(code));
        }
    };
    Some(match dispatch(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    match command {
        Command::Status(args) => runtime.block_on(status::run(&args)),
        Command::Leap(args) => runtime.block_on(leap::run(&args)),
        Command::Declare(args) => runtime.block_on(declare::run(&args)),
        Command::Doctor(args) => doctor::run(&args),
        Command::Rescue(args) => rescue::run(&args),
        Command::Explain(args) => runtime.block_on(explain::run(&args)),
        Command::Merges(args) => runtime.block_on(merges::run(&args)),
        Command::Restore(args) => runtime.block_on(restore::run(&args)),
        Command::Import(args) => runtime.block_on(import::run(&args)),
        Command::Export(args) => runtime.block_on(export::run(&args)),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
        Command::Man(args) => manual::man(&args, Cli::command()),
    }
}
