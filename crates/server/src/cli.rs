//! The command line and the environment, as etcd reads them, into a validated [`Config`].

use std::path::{Path, PathBuf};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command, ValueHint};

use crate::config::flags::{FLAGS, Flag, Kind};
use crate::config::{Config, file, validate};
use crate::tls::{self, TlsError};
use crate::version::ETCD_VERSION;

/// What the command line asks for.
#[derive(Debug)]
pub enum Action {
    /// Print this and stop with success.
    Print(String),
    /// Serve.
    Serve(Box<Invocation>),
}

/// A configuration, and what to tell the operator about it once logging works.
#[derive(Debug)]
pub struct Invocation {
    /// Validated.
    pub config: Config,
    /// What the log tells of it.
    pub notices: Vec<Notice>,
}

/// Something that reading the configuration turned up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// `ETCD_...` set a flag: its name and value.
    UsedVariable(String, String),
    /// `ETCD_...` names no flag.
    UnknownVariable(String),
    /// All other flags and variables are ignored in favour of this file.
    UsedFile(PathBuf),
    /// A flag that was given and does nothing, and why.
    NoEffect(&'static str, &'static str),
    /// Deprecated in etcd; the text is its.
    Deprecated(&'static str),
}

/// Why the process can't start.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line is not understood; the message is complete, with the closest flag.
    #[error("{0}")]
    Usage(String),
    /// A value of a flag or variable is not one; the message names it.
    #[error("invalid value {value:?} for {name}: {reason}")]
    Value {
        /// The flag with its dashes, or the variable.
        name: String,
        /// What was given.
        value: String,
        /// Why not.
        reason: String,
    },
    /// A flag and a variable set the same value. Refused, or a typo in a unit file would go unnoticed.
    #[error(
        "conflicting environment variable {0:?} is shadowed by corresponding command-line flag (either unset environment variable or disable flag)"
    )]
    Shadowed(String),
    /// The configuration file.
    #[error(transparent)]
    File(#[from] file::FileError),
    /// The flags contradict each other.
    #[error(transparent)]
    Config(#[from] validate::ConfigError),
    /// The TLS flags contradict each other, or name what rustls does not have.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl CliError {
    /// etcd's exit codes: 2 when the command line does not parse, 1 when what it says cannot be.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage(_) | CliError::Value { .. } => 2,
            _ => 1,
        }
    }
}

/// Reads arguments (without the program's name) and environment.
///
/// # Errors
/// See [`CliError`].
pub fn parse<A, E>(args: A, env: E) -> Result<Action, CliError>
where
    A: IntoIterator<Item = String>,
    E: IntoIterator<Item = (String, String)>,
{
    let matches = match command().try_get_matches_from(args.into_iter().map(double_dash)) {
        Ok(matches) => matches,
        Err(err) => {
            use clap::error::{ContextKind, ContextValue, ErrorKind};
            return match (err.kind(), err.get(ContextKind::InvalidArg)) {
                (ErrorKind::DisplayHelp, _) => Ok(Action::Print(help())),
                (ErrorKind::UnknownArgument, Some(ContextValue::String(arg))) if !arg.starts_with('-') => {
                    Err(CliError::Usage(format!("{arg:?} is not a valid flag\n")))
                }
                _ => Err(CliError::Usage(err.to_string())),
            };
        }
    };
    if matches.get_one::<String>("version").is_some_and(|value| value == "true") {
        return Ok(Action::Print(version()));
    }
    let given: Vec<(&Flag, &String)> =
        FLAGS.iter().filter_map(|flag| matches.get_one::<String>(flag.name).map(|value| (flag, value))).collect();
    // Not every variable that begins with EDDY_ is the server's, so none of these is unknown.
    let concerns = |key: &str| key.starts_with("ETCD_") || FLAGS.iter().any(|flag| flag.env() == key);
    let mut env: Vec<(String, String)> = env.into_iter().filter(|(key, _)| concerns(key)).collect();
    env.sort();

    let value_of = |name: &str| given.iter().find(|(flag, _)| flag.name == name).map(|(_, value)| (*value).clone());
    let from_env = || env.iter().find(|(key, _)| key == "ETCD_CONFIG_FILE").map(|(_, value)| value.clone());
    let path = value_of("config-file").filter(|path| !path.is_empty()).or_else(from_env);
    let mut notices = Vec::new();
    let config = match path.filter(|path| !path.is_empty()) {
        Some(path) => {
            notices.push(Notice::UsedFile(PathBuf::from(&path)));
            from_file(Path::new(&path))?
        }
        None => from_flags(&given, &env, &mut notices)?,
    };
    let config = config.finish()?;
    tls::check_rules(&config)?;
    for (flag, text) in [
        ("max-snapshots", "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8."),
        (
            "v2-deprecation",
            "--v2-deprecation is deprecated and scheduled for removal in v3.8. The default value is enforced, ignoring user input.",
        ),
    ] {
        if config.was_given(flag) {
            notices.push(Notice::Deprecated(text));
        }
    }
    notices.extend(config.flags_without_effect().map(|(flag, reason)| Notice::NoEffect(flag, reason)));
    Ok(Action::Serve(Box::new(Invocation { config, notices })))
}

fn from_file(path: &Path) -> Result<Config, CliError> {
    let mut config = file::load(path)?;
    config.explicit.insert("config-file".to_owned());
    Ok(config)
}

fn from_flags(
    given: &[(&Flag, &String)],
    env: &[(String, String)],
    notices: &mut Vec<Notice>,
) -> Result<Config, CliError> {
    let mut config = Config::default();
    for (flag, value) in given {
        flag.set(&mut config, value).map_err(|err| CliError::Value {
            name: format!("flag --{}", flag.name),
            value: (*value).clone(),
            reason: err.to_string(),
        })?;
    }
    for (key, value) in env {
        let known = FLAGS.iter().find(|flag| flag.env() == *key);
        match known {
            Some(flag) if given.iter().any(|(other, _)| other.name == flag.name) => {
                return Err(CliError::Shadowed(key.clone()));
            }
            Some(flag) if !value.is_empty() => {
                flag.set(&mut config, value).map_err(|err| CliError::Value {
                    name: format!("{key} (flag --{})", flag.name),
                    value: value.clone(),
                    reason: err.to_string(),
                })?;
                notices.push(Notice::UsedVariable(key.clone(), value.clone()));
            }
            _ => notices.push(Notice::UnknownVariable(key.clone())),
        }
    }
    Ok(config)
}

/// Go's flags may have one dash or two; clap wants two for anything longer than a letter.
fn double_dash(arg: String) -> String {
    let name = arg.strip_prefix('-').unwrap_or("");
    let long = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let named = name.split('=').next().unwrap_or("");
    if long && (named.len() > 1 || FLAGS.iter().any(|flag| flag.name == named)) { format!("-{arg}") } else { arg }
}

fn command() -> Command {
    let mut command = Command::new("eddy").no_binary_name(true).disable_version_flag(true).args_override_self(true);
    command = command.arg(boolean_arg("version"));
    for flag in FLAGS {
        command = command.arg(match flag.kind {
            Kind::Bool => boolean_arg(flag.name),
            Kind::Duration | Kind::Text => Arg::new(flag.name)
                .long(flag.name)
                .action(ArgAction::Set)
                .allow_hyphen_values(true)
                .value_parser(ValueParser::string()),
        });
    }
    command
}

fn boolean_arg(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::Set).num_args(0..=1).require_equals(true).default_missing_value("true")
}

/// Adds the server's flags, with all that is said of them, to the other commands: for man pages and shells, not to parse with.
pub fn describe(commands: Command) -> Command {
    let version = Arg::new("version").long("version").action(ArgAction::SetTrue).help("Print versions and stop.");
    let help =
        Arg::new("help").long("help").short('h').action(ArgAction::Help).help("Print a list of the flags and stop.");
    let described = commands
        .about("a datastore that speaks the etcd v3 API")
        .long_about(
            "eddy speaks the etcd v3 API. Every replica answers from its own memory and disk, tells its peers lazily, and \
             merges what happened concurrently.\n\n\
             Without a command it serves. Its flags are those of etcd 3.7, as --flag=value, --flag value or -flag value.",
        )
        .override_usage("eddy [flags]\neddy <command> [arguments]")
        .subcommand_help_heading("COMMANDS")
        .subcommand_required(false)
        .arg_required_else_help(false)
        .args_conflicts_with_subcommands(true)
        .disable_help_flag(true)
        .args([version, help]);
    FLAGS.iter().filter(|flag| flag.is_listed()).fold(described, |command, flag| command.arg(described_arg(flag)))
}

fn described_arg(flag: &Flag) -> Arg {
    let (value, hint) = match (flag.kind, flag.name) {
        (Kind::Bool, _) => ("BOOL", ValueHint::Other),
        (Kind::Duration, _) => ("DURATION", ValueHint::Other),
        (Kind::Text, name) if name.ends_with("-file") => ("FILE", ValueHint::FilePath),
        (Kind::Text, name) if name.ends_with("-dir") => ("DIR", ValueHint::DirPath),
        (Kind::Text, _) => ("VALUE", ValueHint::Other),
    };
    let arg = match flag.kind {
        Kind::Bool => boolean_arg(flag.name),
        Kind::Duration | Kind::Text => Arg::new(flag.name).long(flag.name).action(ArgAction::Set),
    };
    let arg = arg.help_heading(flag.section).value_name(value).value_hint(hint).env(flag.env()).help(flag.said());
    if flag.default.is_empty() { arg } else { arg.default_value(flag.default) }
}

/// The text of `--version`. The line `etcd Version:` is what etcd's tools and tests read.
pub fn version() -> String {
    format!("eddy {}\netcd Version: {ETCD_VERSION}\n", env!("CARGO_PKG_VERSION"))
}

/// The text of `--help`.
pub fn help() -> String {
    let mut text = String::from(
        "eddy: a datastore that speaks the etcd v3 API.\n\n\
         Usage: eddy [flags]\n\n\
         Flags are etcd 3.7's, as --flag=value, --flag value or -flag value. Each has a variable: ETCD_ and the flag's\n\
         name in capitals, with _ for -; for those under Replication, which etcd does not have, EDDY_.\n\n  --version\n      Print versions and stop.\n  --help, -h\n      Print this and stop.\n",
    );
    let mut section = "";
    for flag in FLAGS.iter().filter(|flag| flag.is_listed()) {
        if flag.section != section {
            section = flag.section;
            text.push_str(&format!("\n{section}:\n"));
        }
        text.push_str(&format!("  --{} '{}'\n", flag.name, flag.default));
        text.push_str(&format!("      {}\n", flag.said()));
    }
    text
}
