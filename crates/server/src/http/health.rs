//! `/health`, `/livez` and `/readyz`: what they ask of the node, and what they make of its answers.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use eddy_crdt::AlarmKind;
use http::Uri;

use crate::metrics::Metrics;
use crate::node::alarm::alarm_name;

/// A boxed answer, so that the node can be behind a trait object.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// How long `/health` waits for its read, etcd's request timeout.
const READ_TIMEOUT: Duration = Duration::from_secs(7);

/// What the health endpoints ask of the node.
pub trait Health: Send + Sync + 'static {
    /// The raised alarms that stop this member: those of others do not make it unhealthy.
    fn alarms(&self) -> Vec<AlarmKind>;

    /// Reads one key; `serializable` reads don't wait for a flush.
    ///
    /// # Errors
    /// The text of the read's error.
    fn read(&self, serializable: bool) -> Answer<'_>;

    /// Why writes are not taken now, if they are not.
    fn write_failure(&self) -> Option<String>;

    /// Why only a restart brings writes back (a flush failed, a thread ended by a panic), if that is so.
    fn restart_reason(&self) -> Option<String>;

    /// Sets the gauges that show the node as it is now; asked before every scrape.
    fn refresh(&self, metrics: &Metrics);
}

/// The query of a request, as far as health endpoints read it.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Splits a query; percent signs are not decoded, since no name or value here needs one.
    pub fn of(uri: &Uri) -> Query {
        let pairs = uri.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    /// Whether a name is there, whatever its value.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    /// Whether `exclude` names this.
    pub fn excludes(&self, what: &str) -> bool {
        self.0.iter().any(|(key, value)| key == "exclude" && value == what)
    }

    fn serializable(&self) -> bool {
        self.0.iter().find(|(key, _)| key == "serializable").is_some_and(|(_, value)| value == "true")
    }
}

/// The answer of `/health`: alarms first, then writes, then a read.
///
/// # Errors
/// The reason, in etcd's words where etcd has it.
pub async fn health(node: &dyn Health, query: &Query) -> Result<(), String> {
    if let Some(alarm) = node.alarms().into_iter().find(|alarm| !query.excludes(alarm_name(*alarm))) {
        return Err(format!("ALARM {}", alarm_name(alarm)));
    }
    if let Some(reason) = node.write_failure() {
        return Err(format!("READ ONLY:{reason}"));
    }
    match tokio::time::timeout(READ_TIMEOUT, node.read(query.serializable())).await {
        Ok(result) => result.map_err(|err| format!("RANGE ERROR:{err}")),
        Err(_) => Err("RANGE ERROR:etcdserver: request timed out".to_owned()),
    }
}

/// One line of `/livez` or `/readyz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// No CORRUPT alarm that stops this member.
    DataCorruption,
    /// A read that waits for nothing.
    SerializableRead,
    /// A read that sees all acknowledged writes.
    LinearizableRead,
    /// Always good: replicas are never learners.
    NonLearner,
    /// Writes are taken. Ours; shown only when it fails, so that etcd's output is unchanged.
    Writable,
    /// A restart would change nothing: writes are taken, or come back by themselves. Ours, and shown as `Writable` is.
    NeedsNoRestart,
}

impl Check {
    /// The checks behind a path: all of its kind, or the one it names.
    pub fn find(path: &str) -> Option<(&'static str, Vec<Check>)> {
        const LIVE: &[Check] = &[Check::SerializableRead, Check::NeedsNoRestart];
        const READY: &[Check] = &[
            Check::DataCorruption,
            Check::SerializableRead,
            Check::LinearizableRead,
            Check::NonLearner,
            Check::Writable,
        ];
        for (kind, checks) in [("livez", LIVE), ("readyz", READY)] {
            let Some(rest) = path.strip_prefix('/').and_then(|path| path.strip_prefix(kind)) else { continue };
            if rest.is_empty() {
                return Some((kind, checks.to_vec()));
            }
            let name = rest.strip_prefix('/')?;
            return checks.iter().find(|check| check.name() == name).map(|check| (kind, vec![*check]));
        }
        None
    }

    /// Its name in paths, output and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
            Check::Writable => "writable",
            Check::NeedsNoRestart => "needs_no_restart",
        }
    }

    /// Whether a good result is left out of the list.
    pub fn only_when_failing(self) -> bool {
        matches!(self, Check::Writable | Check::NeedsNoRestart)
    }

    /// Does it.
    ///
    /// # Errors
    /// The text after `failed: `.
    pub async fn run(self, node: &dyn Health) -> Result<(), String> {
        match self {
            Check::DataCorruption if node.alarms().contains(&AlarmKind::Corrupt) => {
                Err("alarm activated: CORRUPT".to_owned())
            }
            Check::DataCorruption | Check::NonLearner => Ok(()),
            Check::SerializableRead => node.read(true).await,
            Check::LinearizableRead => node.read(false).await,
            Check::Writable => node.write_failure().map_or(Ok(()), Err),
            Check::NeedsNoRestart => node.restart_reason().map_or(Ok(()), Err),
        }
    }
}
