//! Log lines in the shape of etcd's (zap): JSON with `level`, `ts`, `caller`, `msg` and fields, or tab-separated text.
//! Never any colour: tools read these lines through pseudo-terminals.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogConfig;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A path of `--log-outputs` can't be opened for appending.
    #[error("open log output {path:?}: {source}")]
    Open {
        /// As given.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Logging was set up before in this process.
    #[error("logging is already set up")]
    Twice,
}

/// Sends this process's log lines where `config` says.
///
/// # Errors
/// See [`LogError`].
pub fn init(config: &LogConfig) -> Result<(), LogError> {
    let outputs = config.outputs.iter().map(|name| Output::open(name)).collect::<Result<Vec<_>, _>>()?;
    let layer = Lines { level: level(&config.level), json: config.format != "console", outputs: Mutex::new(outputs) };
    tracing_subscriber::registry().with(layer).try_init().map_err(|_| LogError::Twice)
}

/// Writes one error line to stderr, for when there is no logging yet, or no longer.
pub fn early_error(msg: &str, error: &(dyn std::error::Error + 'static)) {
    let mut line = String::new();
    head(&mut line, true, "error", "main.rs", 0, msg);
    let _infallible = write!(line, ",\"error\":{}", quoted(&chain(error)));
    line.push_str("}\n");
    let _closed_stderr = io::stderr().write_all(line.as_bytes());
}

/// An error and its sources in one line, without repeating what a wrapper already says.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let part = source.to_string();
        if !text.contains(&part) {
            let _infallible = write!(text, ": {part}");
        }
        next = source.source();
    }
    text
}

fn level(name: &str) -> LevelFilter {
    match name.to_ascii_lowercase().as_str() {
        "debug" => LevelFilter::DEBUG,
        "info" => LevelFilter::INFO,
        "warn" => LevelFilter::WARN,
        "error" => LevelFilter::ERROR,
        // dpanic, panic and fatal: eddy logs no such lines; those of `early_error` are written all the same.
        _ => LevelFilter::OFF,
    }
}

enum Output {
    Stderr,
    Stdout,
    File(File),
}

impl Output {
    fn open(name: &str) -> Result<Output, LogError> {
        Ok(match name {
            // etcd falls back to stderr as well where there is no journal socket.
            "default" | "stderr" | "systemd/journal" => Output::Stderr,
            "stdout" => Output::Stdout,
            path => Output::File(
                OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
                    .map_err(|source| LogError::Open { path: path.to_owned(), source })?,
            ),
        })
    }

    fn write(&mut self, line: &[u8]) {
        // A log that can't be written must not take the store down with it.
        let _lost_line = match self {
            Output::Stderr => io::stderr().write_all(line),
            Output::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(line).and_then(|()| out.flush())
            }
            Output::File(file) => file.write_all(line),
        };
    }
}

struct Lines {
    level: LevelFilter,
    json: bool,
    outputs: Mutex<Vec<Output>>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let own = metadata.target().starts_with("eddy");
        // Below warnings, libraries log their internals.
        let least = if own { self.level } else { self.level.min(LevelFilter::WARN) };
        *metadata.level() <= least
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields { msg: String::new(), rest: String::new() };
        event.record(&mut fields);
        let mut line = String::with_capacity(160);
        let file = metadata.file().map_or(metadata.target(), short_path);
        head(&mut line, self.json, level_name(*metadata.level()), file, metadata.line().unwrap_or(0), &fields.msg);
        if self.json {
            line.push_str(&fields.rest);
            line.push('}');
        } else if !fields.rest.is_empty() {
            line.push_str("\t{");
            line.push_str(&fields.rest[1..]);
            line.push('}');
        }
        line.push('\n');
        for output in self.outputs.lock().iter_mut() {
            output.write(line.as_bytes());
        }
    }
}

fn head(line: &mut String, json: bool, level: &str, file: &str, number: u32, msg: &str) {
    let ts = timestamp(SystemTime::now());
    let _infallible = if json {
        write!(
            line,
            "{{\"level\":\"{level}\",\"ts\":\"{ts}\",\"caller\":{},\"msg\":{}",
            quoted(&format!("{file}:{number}")),
            quoted(msg)
        )
    } else {
        write!(line, "{ts}\t{level}\t{file}:{number}\t{msg}")
    };
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG | Level::TRACE => "debug",
    }
}

/// The last two parts of a path, as zap shortens it.
fn short_path(path: &str) -> &str {
    let mut slashes = path.rmatch_indices('/');
    slashes.next();
    slashes.next().map_or(path, |(at, _)| &path[at + 1..])
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

struct Fields {
    msg: String,
    /// `,"name":value` for each field.
    rest: String,
}

impl Fields {
    fn push(&mut self, field: &Field, value: impl fmt::Display) {
        let _infallible = write!(self.rest, ",{}:{value}", quoted(field.name()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" { self.msg = text } else { self.push(field, quoted(&text)) }
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" { value.clone_into(&mut self.msg) } else { self.push(field, quoted(value)) }
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, serde_json::Value::from(value));
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.push(field, quoted(&chain(value)));
    }
}

/// RFC 3339 in UTC with microseconds.
pub(crate) fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_micros()
    )
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, so that the leap day is the last of its year.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn timestamps_are_rfc3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (4_102_444_800, "2100-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_file_gets_zap_shaped_lines_from_the_level_up() {
        let dir = tempfile::tempdir().unwrap();
        for (json, level) in [(true, LevelFilter::INFO), (false, LevelFilter::DEBUG)] {
            let path = dir.path().join("log");
            let output = Output::open(path.to_str().unwrap()).unwrap();
            let lines = Lines { level, json, outputs: Mutex::new(vec![output]) };
            tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
                tracing::warn!(number = 7, "data-dir" = "a\"b", "said {}", "so");
                tracing::debug!("detail");
                tracing::info!(target: "h2::codec", "insides");
            });
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            if json {
                let line: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(line["level"], "warn");
                assert_eq!(line["msg"], "said so");
                assert_eq!(line["number"], 7);
                assert_eq!(line["data-dir"], "a\"b");
                assert!(line["caller"].as_str().unwrap().starts_with("src/logging.rs:"), "{line}");
            } else {
                let lines: Vec<_> = text.lines().collect();
                assert_eq!(lines.len(), 2, "{text}");
                assert!(lines[0].ends_with("\tsaid so\t{\"number\":7,\"data-dir\":\"a\\\"b\"}"), "{text}");
                assert!(lines[1].contains("\tdebug\tsrc/logging.rs:"), "{text}");
            }
        }
    }
}
