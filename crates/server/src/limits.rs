//! Limits of the operating system.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many descriptors client connections leave for the journal and all else, as in etcd.
const RESERVED: u64 = 150;

/// Most file descriptors that this process may have open; `None` for no limit.
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Most virtual memory that this process may have, bytes; `None` for no limit.
pub fn virtual_memory() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Raises the soft limit of open files to the hard one, as Go programs do. The usual soft limit of 1024 is for programs
/// that use select(2), and would hold 1,000 clients.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Without the right to raise it the old limit stays. That is no reason not to start.
    let _kept = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// How many client connections may be open at a time.
pub fn connections() -> usize {
    // At least half of the limit, where it is so low that etcd would not start.
    let limit = open_files().unwrap_or(1 << 20).min(1 << 20);
    usize::try_from(limit.saturating_sub(RESERVED).max(limit / 2)).unwrap_or(1 << 20).max(1)
}
