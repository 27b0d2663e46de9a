//! What a session has for the replica, in order. What several messages brought becomes one input, so that a replica that
//! is behind is handed all that there is for it, and not one message after the other.

use std::collections::VecDeque;
use std::time::Instant;

use eddy_crdt::Input;

use crate::node::sessions::size_of;

/// An input that waits.
pub(super) struct Waiting {
    pub(super) input: Input,
    /// About what it takes in memory.
    pub(super) bytes: usize,
    /// When the first message of it came.
    pub(super) since: Instant,
}

impl Waiting {
    /// Joins an input to this one, or gives it back.
    fn join(&mut self, input: Input, bytes: usize) -> Option<Input> {
        match (&mut self.input, input) {
            (Input::Acks { own, acks }, Input::Acks { own: more_own, acks: more }) => {
                own.merge(&more_own);
                acks.extend(more);
            }
            (
                Input::Entries { from, births, entries, together: None },
                Input::Entries { from: more_from, births: more_births, entries: more, together: None },
            ) if *from == more_from && *births == more_births => entries.extend(more),
            (_, input) => return Some(input),
        }
        self.bytes += bytes;
        None
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Inbox {
    inputs: VecDeque<Waiting>,
}

impl Inbox {
    /// Adds an input; returns about what it takes in memory, bytes.
    pub(super) fn push(&mut self, input: Input) -> usize {
        let bytes = size_of(&input);
        // Acknowledgements may always wait for more entries.
        let acks_are_last = self.inputs.back().is_some_and(|waiting| matches!(waiting.input, Input::Acks { .. }));
        let mut rest = Some(input);
        for waiting in self.inputs.iter_mut().rev().take(1 + usize::from(acks_are_last)) {
            rest = rest.and_then(|input| waiting.join(input, bytes));
        }
        self.inputs.extend(rest.map(|input| Waiting { input, bytes, since: Instant::now() }));
        bytes
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.inputs.pop_front()
    }

    /// Drops all but what tells whether entries are streamed. Returns about how much is left, bytes.
    pub(super) fn keep_marks(&mut self) -> usize {
        self.inputs.retain(|waiting| matches!(waiting.input, Input::Stream { .. } | Input::Stop { .. }));
        self.inputs.iter().map(|waiting| waiting.bytes).sum()
    }
}
