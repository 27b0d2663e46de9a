//! A recorded trace of requests, played again and again, each round under names of its own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::workload::{Operation, Value};

/// What a request of a trace asks.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Write if absent.
    Create,
    /// Write if unchanged.
    Update,
    /// Delete if unchanged.
    Delete,
    /// Read one key.
    Get,
    /// Read a prefix.
    List,
}

/// One line of a trace.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Since the trace began, milliseconds.
    pub at_ms: f64,
    /// What is asked.
    pub kind: Kind,
    /// The key or prefix.
    pub key: String,
    /// What is written.
    #[serde(default)]
    pub value: String,
}

/// A trace: requests in the order of their time.
#[derive(Clone, Debug)]
pub struct Trace {
    requests: Vec<Request>,
    length_ms: f64,
}

impl Trace {
    /// Reads a trace: a JSON object on each line.
    ///
    /// # Errors
    /// When it cannot be read, a line is not a request, or time goes back.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut requests: Vec<Request> = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let request: Request = serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
            let before = requests.last().map_or(0.0, |last| last.at_ms);
            ensure!(request.at_ms >= before, "line {}: {} ms is before {before} ms", number + 1, request.at_ms);
            requests.push(request);
        }
        ensure!(!requests.is_empty(), "the trace is empty");
        // As long after the last request as requests are apart on average, so that rounds do not run into each other.
        let last = requests[requests.len() - 1].at_ms;
        let length_ms = last + (last / requests.len() as f64).max(1.0);
        Ok(Self { requests, length_ms })
    }

    /// Requests of one round.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none; there always are.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Plays it round after round, `speed` times as fast as it was recorded, until `end`. Round n is played at client n, since
    /// what one round creates is what it updates.
    pub fn play(self, speed: f64, clients: usize, end: Duration) -> impl Iterator<Item = (Duration, usize, Operation)> {
        let length = self.length_ms / speed;
        (0_usize..)
            .flat_map(move |round| {
                let requests = self.requests.clone();
                requests.into_iter().map(move |request| {
                    let due_ms = round as f64 * length + request.at_ms / speed;
                    (Duration::from_secs_f64(due_ms / 1000.0), round % clients, operation(request, round))
                })
            })
            .take_while(move |(due, _, _)| *due < end)
    }
}

fn operation(request: Request, round: usize) -> Operation {
    let Request { kind, key, value, .. } = request;
    // Lists keep their prefix: a list sees the objects of other rounds, as it would of other Deployments.
    let key = if kind == Kind::List { key } else { format!("{key}.{round}") };
    let (key, value) = (key.into(), Value::Recorded(value.into()));
    match kind {
        Kind::Create => Operation::Create { key, value },
        Kind::Update => Operation::Update { key, value },
        Kind::Delete => Operation::Delete { key },
        Kind::Get => Operation::Range { key, serializable: false },
        Kind::List => Operation::List { prefix: key },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"at_ms": 0, "kind": "create", "key": "/registry/pods/a", "value": "{}"}
{"at_ms": 10, "kind": "delete", "key": "/registry/pods/a"}
"#;

    #[test]
    fn rounds_follow_each_other_under_names_of_their_own() -> Result<()> {
        let trace = Trace::parse(TRACE)?;
        let played: Vec<_> = trace.play(2.0, 3, Duration::from_millis(20)).collect();
        let due: Vec<_> = played.iter().map(|(due, client, _)| (due.as_micros(), *client)).collect();
        // A round takes 10 ms, and 5 ms until the next; twice as fast.
        assert_eq!(due, [(0, 0), (5_000, 0), (7_500, 1), (12_500, 1), (15_000, 2)]);
        assert_eq!(played[3].2, Operation::Delete { key: "/registry/pods/a.1".into() });
        Ok(())
    }

    #[test]
    fn the_recorded_deployment_is_whole() -> Result<()> {
        let trace = Trace::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/deployment.jsonl"))?;
        let of =
            |kind, prefix: &str| trace.requests.iter().filter(|r| r.kind == kind && r.key.starts_with(prefix)).count();
        // 3 pods, then 7 more, and all 10 go again.
        assert_eq!((of(Kind::Create, "/registry/pods/"), of(Kind::Delete, "/registry/deployments/")), (10, 1));
        assert!(trace.requests.iter().filter(|r| r.kind == Kind::Create).all(|r| r.value.starts_with('{')));
        Ok(())
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = |text: &str| format!("{:#}", Trace::parse(text).expect_err("it is wrong"));
        assert!(error(&TRACE.replace("delete", "patch")).contains("line 2: unknown variant `patch`"));
        assert!(error(&TRACE.replace("\"at_ms\": 0", "\"at_ms\": 11")).contains("line 2: 10 ms is before 11 ms"));
        assert_eq!(error("\n"), "the trace is empty");
    }
}
