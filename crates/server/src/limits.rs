//! Limits of the operating system.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that connections must leave for the journal and everything else; etcd reserves as many.
const RESERVED: u64 = 150;

/// Most file descriptors that this process may have open; `None` for no limit.
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Most virtual memory that this process may have, bytes; `None` for no limit.
pub fn virtual_memory() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Raises the soft limit of open files to the hard one, as Go programs do. The usual soft limit of 1024 is there for
/// programs that use select(2). It would hold eddy at 1,000 clients.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Without the right to, the old limit stays, which is no reason not to start.
    let _kept = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// How many peers' connections may be open at a time, at most: far above any number of members.
const PEERS_MAX: usize = 1024;

/// How many connections may be open at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    /// Of clients.
    pub clients: usize,
    /// Of peers.
    pub peers: usize,
}

/// How many connections may be open at a time, by the limit of open files.
pub fn connections() -> Connections {
    Connections::within(open_files())
}

impl Connections {
    /// Peers get an eighth of what this many open files leave, clients the rest.
    fn within(open_files: Option<u64>) -> Connections {
        // At least half of the limit, where it is so low that etcd would not start.
        let limit = open_files.unwrap_or(1 << 20).min(1 << 20);
        let all = usize::try_from(limit.saturating_sub(RESERVED).max(limit / 2)).unwrap_or(1 << 20);
        let peers = (all / 8).clamp(1, PEERS_MAX);
        Connections { clients: all.saturating_sub(peers).max(1), peers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_and_clients_together_leave_some_files() {
        for (open_files, clients, peers) in [
            (Some(0), 1, 1),
            (Some(64), 28, 4),
            (Some(1024), 765, 109),
            (Some(1 << 20), 1_047_402, 1024),
            (None, 1_047_402, 1024),
        ] {
            assert_eq!(Connections::within(open_files), Connections { clients, peers }, "{open_files:?}");
        }
    }
}
