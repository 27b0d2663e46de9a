//! What tests break on purpose. This is not in release builds.

use std::path::PathBuf;
use std::sync::OnceLock;

use eddy_crdt::Command;

use crate::storage::{Group, StorageError};

/// By how many milliseconds the wall clock is off: `EDDY_FAULT_CLOCK_MS`.
pub(super) fn clock_off_ms() -> i64 {
    static OFF_MS: OnceLock<i64> = OnceLock::new();
    *OFF_MS.get_or_init(|| std::env::var("EDDY_FAULT_CLOCK_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(0))
}

/// The put of this key is what the fault that `EDDY_FAULT` names waits for.
const KEY: &[u8] = b"eddy-fault";

/// Whether `EDDY_FAULT` names that fault: `committer` or `storage`, whose thread panics, or `flush`, which fails.
fn is_wanted(fault: &str) -> bool {
    static WANTED: OnceLock<Option<String>> = OnceLock::new();
    WANTED.get_or_init(|| std::env::var("EDDY_FAULT").ok()).as_deref() == Some(fault)
}

/// Before the committer applies a command.
pub(super) fn before_command(command: &Command) {
    let meant = is_wanted("committer") && matches!(command, Command::Put(op) if &op.key[..] == KEY);
    assert!(!meant, "EDDY_FAULT=committer");
}

/// Before the storage thread appends a group.
pub(super) fn before_append(group: &Group) -> Result<(), StorageError> {
    let meant = || group.records.iter().any(|record| record.windows(KEY.len()).any(|bytes| bytes == KEY));
    assert!(!(is_wanted("storage") && meant()), "EDDY_FAULT=storage");
    if is_wanted("flush") && meant() {
        let source = std::io::Error::other("EDDY_FAULT=flush");
        return Err(StorageError::Io { doing: "sync", path: PathBuf::from("the journal"), source });
    }
    Ok(())
}
