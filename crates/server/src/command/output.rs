//! What commands print.

use std::io::{self, ErrorKind, Write};

/// Prints to the standard output. A reader that has read enough and closed the pipe is no error.
///
/// # Errors
/// When the output cannot be written for another reason, such as a full disk.
pub fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
