//! Which troubles were logged already.

use std::collections::BTreeSet;

/// How many different troubles are remembered. More are not logged.
const TROUBLES_MAX: usize = 1024;

/// The troubles that were logged, so that a peer cannot flood the log.
#[derive(Debug, Default)]
pub(crate) struct Troubles(BTreeSet<String>);

impl Troubles {
    /// Whether this text was not logged before.
    pub(crate) fn is_news(&mut self, text: String) -> bool {
        self.0.len() < TROUBLES_MAX && self.0.insert(text)
    }

    /// Forgets a trouble that is over, so that its next occurrence is logged.
    pub(super) fn is_over(&mut self, text: &str) {
        self.0.remove(text);
    }
}
