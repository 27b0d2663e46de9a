//! `eddy`: parse, run, exit code.

use std::process::ExitCode;

use eddy_server::{cli, command, logging, program, run};

/// Measure idle memory, memory after a burst, and the put rate before another one is set. With huge pages, what sled reserves
/// when it opens a checkpoint would be 28 MB of touched memory. The third version of this one keeps what it took for a second and
/// more; the second serves as many puts.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    if let Some(code) = command::run(&args) {
        return code;
    }
    let env = std::env::vars_os().map(|(k, v)| (k.to_string_lossy().into_owned(), v.to_string_lossy().into_owned()));
    let invocation = match cli::parse(args, env) {
        Ok(cli::Action::Serve(invocation)) => invocation,
        Ok(cli::Action::Print(text)) => {
            return command::say(&text).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
        }
        Err(err @ cli::CliError::Usage(_)) => {
            eprint!("{err}");
            return ExitCode::from(err.exit_code());
        }
        Err(err) => {
            logging::early_error("failed to verify flags", &err);
            return ExitCode::from(err.exit_code());
        }
    };
    program::give_memory_back_at_once();
    match run::run(*invocation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            logging::early_error("failed to start", &*err);
            ExitCode::FAILURE
        }
    }
}
