//! `eddy completions` and `eddy man`: what shells and `man` know of eddy, written from the flags and commands themselves.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap_complete::Shell;
use clap_mangen::Man;

use super::output::say;
use crate::cli;

#[derive(clap::Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell, which reads the script from the standard output.
    shell: Shell,
}

#[derive(clap::Args, Debug)]
pub(super) struct ManArgs {
    /// Write a page for eddy and one for each command into this folder, which is made. Without it the page of eddy is printed.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// What no flag says. It stands at the end of the page of eddy.
const REST: &str = "\
.SH ENVIRONMENT
Each flag has a variable, named beside it. A variable beside the flag of the same name is refused. With \\fB\\-\\-config\\-file\\fR
all other flags and all variables are ignored.
.SH FILES
.TP
.I /etc/eddy/eddy.yml
Settings of the service \\fIeddy.service\\fR, in etcd's YAML.
.TP
.I /var/lib/eddy
Data of the service.
.SH \"EXIT STATUS\"
0 when it was told to stop, or when its member was removed; 1 when it cannot start or go on; 2 when the command line does not parse.
";

/// Prints the script of a shell.
pub(super) fn completions(args: &CompletionsArgs, commands: clap::Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::describe(commands), "eddy", &mut script);
    say(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the page of eddy, or writes all pages.
pub(super) fn man(args: &ManArgs, commands: clap::Command) -> anyhow::Result<ExitCode> {
    let mut described = cli::describe(commands);
    described.build();
    let Some(dir) = &args.dir else {
        say(&String::from_utf8(page(described, REST)?.1)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let mut waiting: Vec<clap::Command> = described.get_subcommands().cloned().collect();
    let mut pages = vec![page(described, REST)?];
    while let Some(command) = waiting.pop() {
        waiting.extend(command.get_subcommands().cloned());
        pages.push(page(command, "")?);
    }
    for (name, text) in pages {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of a command's page, and the page.
fn page(command: clap::Command, rest: &str) -> anyhow::Result<(String, Vec<u8>)> {
    let man = Man::new(command).source(concat!("eddy ", env!("CARGO_PKG_VERSION"))).manual("eddy");
    let mut text = Vec::new();
    man.render(&mut text)?;
    text.write_all(rest.as_bytes())?;
    Ok((man.get_filename(), text))
}
