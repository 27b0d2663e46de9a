//! The program of this process, begun once more in its place.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The allocator's delay in milliseconds before it gives freed memory back to the system. It reads this when the program
/// begins, and from nowhere else.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";

/// What Linux calls the program that runs, also when its file was replaced since.
const RUNNING: &str = "/proc/self/exe";

/// Begins once more, with the same arguments, under the same process id. Returns only when that fails.
pub fn again() -> io::Error {
    program().exec()
}

/// Begins once more with an allocator that gives freed memory back at once, unless the environment says how long it is to
/// wait. With a delay it gives back only while it is asked for more. So what a burst took would stay until the next one.
/// A process that cannot begin once more goes on, with more memory.
pub fn give_memory_back_at_once() {
    if env::var_os(PURGE_DELAY).is_none() {
        let _goes_on = program().env(PURGE_DELAY, "0").exec();
    }
}

fn program() -> Command {
    let mut args = env::args_os();
    let mut program = Command::new(file().unwrap_or_else(|| RUNNING.into()));
    if let Some(name) = args.next() {
        program.arg0(name);
    }
    program.args(args);
    program
}

/// Where the program's file is, if it is the one that runs. The process is listed by that name.
fn file() -> Option<PathBuf> {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    env::current_exe().ok().filter(|file| identity(file).is_some() && identity(file) == identity(Path::new(RUNNING)))
}
