//! A scenario is data: one TOML file that says what is started, what load it gets, and which figures show the outcome.
//!
//! Where a setting is a list, every combination of its values is a [`Cell`]: what one experiment measures.

mod cell;
mod check;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use cell::Cell;

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is no TOML, has an unknown field, or a value of the wrong type.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: String,
        /// What the parser says, with line and column.
        message: String,
    },
    /// A value that makes no sense.
    #[error("{path}: {field}: {message}")]
    Value {
        /// The file.
        path: String,
        /// The field, as `table.name`.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
}

/// One scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Names the scenario in the results; letters, digits and `-`.
    pub name: String,
    /// What it asks, one sentence for the report.
    pub about: String,
    /// Experiments for each cell.
    #[serde(default = "three")]
    pub repeat: u32,
    /// What is started.
    pub cluster: ClusterSpec,
    /// What lies between the peers.
    #[serde(default)]
    pub network: NetworkSpec,
    /// What the clients do.
    pub load: LoadSpec,
    /// What the report draws.
    #[serde(default, rename = "figure")]
    pub figures: Vec<FigureSpec>,
}

/// The clusters that are started, each combination anew for each experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Which programs.
    #[serde(default = "both")]
    pub systems: Vec<System>,
    /// How many nodes.
    pub nodes: Vec<usize>,
    /// Where the data dirs lie.
    #[serde(default = "real_disk")]
    pub disk: Vec<Disk>,
    /// Time added to every fsync and fdatasync, milliseconds.
    #[serde(default = "no_time")]
    pub flush_delay_ms: Vec<u32>,
    /// What each node may use of the machine; without it all take what they get.
    pub share: Option<ShareSpec>,
    /// Whether clients and peers talk by TLS.
    #[serde(default)]
    pub tls: bool,
    /// Further flags of eddy.
    #[serde(default)]
    pub eddy_flags: Vec<String>,
    /// Further flags of etcd.
    #[serde(default)]
    pub etcd_flags: Vec<String>,
}

/// What a node may use of the machine, so that a further node brings its own. The load is outside of all shares.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ShareSpec {
    /// Cores: CPU seconds each second.
    pub cpu: f64,
    /// Memory with what the kernel keeps of the node's files, MiB; without it as much as there is.
    pub memory_mib: Option<u32>,
}

/// A program under test.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Ours.
    Eddy,
    /// The one it is measured against.
    Etcd,
}

impl System {
    /// Its name, as in scenarios.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eddy => "eddy",
            Self::Etcd => "etcd",
        }
    }
}

/// Where data dirs lie.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Disk {
    /// A file system on a device.
    Real,
    /// Memory; a flush costs nothing.
    Tmpfs,
}

/// What lies between peers. Nothing named: they talk directly.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// Time there and back, milliseconds; half of it is added in each direction.
    #[serde(default)]
    pub round_trip_ms: Vec<f64>,
    /// Up to this much more in each direction, milliseconds, uniform.
    #[serde(default)]
    pub jitter_ms: f64,
    /// Bandwidth of each directed pair.
    pub kib_per_second: Option<u64>,
    /// What happens to links while load runs.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
}

/// Something that happens to links at a moment of the measurement. Node 0 is etcd's leader.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Seconds after the measurement has begun.
    pub at_s: f64,
    /// These nodes are cut off from all others, in both directions.
    #[serde(default)]
    pub isolate: Vec<usize>,
    /// Of these nodes nothing reaches the others any more; what the others send does reach them.
    #[serde(default)]
    pub silence: Vec<usize>,
    /// All links work again.
    #[serde(default)]
    pub heal: bool,
}

/// How operations are started.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LoadKind {
    /// Each of N clients starts its next operation when its last one has ended.
    Closed,
    /// Operations start when they are due, whatever became of the earlier ones.
    Open,
    /// The requests of a recorded trace, in its order and by its clock.
    Replay,
}

/// When the operations of an open loop are due.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At random moments, as from many independent clients.
    #[default]
    Poisson,
    /// At equal distances.
    Even,
}

/// How keys are picked.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum KeyOrder {
    /// Each as likely as any other.
    #[default]
    Uniform,
    /// The n-th with a likelihood of 1/n.
    Zipf,
    /// One after the other, each client among keys of its own.
    Sequential,
}

/// What is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ValueKind {
    /// Bytes that do not compress.
    #[default]
    Opaque,
    /// A Pod of Kubernetes as JSON, about 2 KB. An update changes two of its fields.
    Pod,
}

/// Which nodes clients talk to.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Addressed {
    /// All, clients in turn.
    #[default]
    All,
    /// Node 0 alone; with etcd the leader, which is its best case.
    One,
}

/// Shares of the operations; they are relative to each other.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Put.
    #[serde(default)]
    pub put: f64,
    /// Linearizable range of one key.
    #[serde(default)]
    pub range: f64,
    /// Serializable range of one key.
    #[serde(default)]
    pub serializable: f64,
    /// Transactions as kube-apiserver makes them: put if unchanged, else get.
    #[serde(default)]
    pub txn: f64,
    /// Renewals of a lease, one lease and one stream for each client.
    #[serde(default)]
    pub keepalive: f64,
}

/// What the clients do.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadSpec {
    /// How operations are started.
    pub kind: LoadKind,
    /// Closed loop: clients, all nodes together.
    #[serde(default)]
    pub clients: Vec<usize>,
    /// Open loop: operations per second, all nodes together. Replay: how many times as fast as it was recorded.
    #[serde(default)]
    pub rate: Vec<f64>,
    /// Open loop: when operations are due.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Replay: the trace, relative to the scenario.
    pub trace: Option<String>,
    /// Connections to each node.
    #[serde(default = "ten")]
    pub connections: usize,
    /// Which nodes.
    #[serde(default)]
    pub addressed: Addressed,
    /// Shares of the operations.
    #[serde(default)]
    pub mix: Mix,
    /// How many keys.
    #[serde(default = "ten_thousand")]
    pub keys: u32,
    /// How keys are picked.
    #[serde(default)]
    pub key_order: KeyOrder,
    /// Length of a key, bytes.
    #[serde(default = "key_length")]
    pub key_bytes: usize,
    /// What is written.
    #[serde(default)]
    pub value: ValueKind,
    /// Length of an opaque value, bytes.
    #[serde(default = "value_length")]
    pub value_bytes: usize,
    /// Watchers of all keys, over all nodes together.
    #[serde(default = "nobody")]
    pub watchers: Vec<usize>,
    /// Seconds of load before anything counts.
    #[serde(default = "two_seconds")]
    pub warmup_s: f64,
    /// Seconds that count; of a load of so many operations, the most that it may take.
    #[serde(default = "ten_seconds")]
    pub measure_s: f64,
    /// Closed loop without a warm-up: how many operations are done, all clients together.
    pub operations: Option<u64>,
    /// When an operation counts as failed, milliseconds.
    #[serde(default = "patience_ms")]
    pub timeout_ms: u64,
}

/// What a figure shows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "lowercase")]
pub enum FigureSpec {
    /// A metric against a setting, a line for each system.
    Line {
        /// The setting, one that varies.
        x: Axis,
        /// The metric, as in the results.
        y: String,
        /// Whether y is logarithmic.
        #[serde(default)]
        log: bool,
    },
    /// The whole distribution of the latencies, a line for each cell.
    Distribution {
        /// The operation.
        of: String,
    },
    /// Operations per second while links are cut.
    Timeline,
    /// A metric for each cell as a bar.
    Bars {
        /// The metric, as in the results.
        y: String,
    },
}

/// A setting that cells differ in.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Nodes of the cluster.
    Nodes,
    /// Clients of a closed loop.
    Clients,
    /// Operations per second of an open loop.
    Rate,
    /// Round trip between peers, milliseconds.
    RoundTripMs,
    /// Time added to a flush, milliseconds.
    FlushDelayMs,
    /// Watchers.
    Watchers,
}

impl Axis {
    /// Words for the axis of a figure.
    pub fn label(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Clients => "clients",
            Self::Rate => "rate asked for",
            Self::RoundTripMs => "round trip between peers, ms",
            Self::FlushDelayMs => "time added to each flush, ms",
            Self::Watchers => "watchers",
        }
    }
}

impl Scenario {
    /// Reads and checks a scenario.
    ///
    /// # Errors
    /// When the file cannot be read, is no TOML, has an unknown field, or a value that makes no sense.
    pub fn load(path: &Path) -> Result<(Self, String), ScenarioError> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| ScenarioError::Read { path: name.clone(), source })?;
        let mut scenario = Self::parse(&name, &text)?;
        if let (Some(trace), Some(folder)) = (&mut scenario.load.trace, path.parent()) {
            *trace = folder.join(&*trace).display().to_string();
        }
        Ok((scenario, text))
    }

    /// Checks the text of a scenario; `path` only names it in errors.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn parse(path: &str, text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(|e| ScenarioError::Parse {
            path: path.to_owned(),
            message: e.to_string().trim_end().to_owned(),
        })?;
        scenario.check().map_err(|(field, message)| ScenarioError::Value { path: path.to_owned(), field, message })?;
        Ok(scenario)
    }
}

fn three() -> u32 {
    3
}
fn both() -> Vec<System> {
    vec![System::Eddy, System::Etcd]
}
fn real_disk() -> Vec<Disk> {
    vec![Disk::Real]
}
fn no_time() -> Vec<u32> {
    vec![0]
}
fn nobody() -> Vec<usize> {
    vec![0]
}
fn ten() -> usize {
    10
}
fn ten_thousand() -> u32 {
    10_000
}
fn key_length() -> usize {
    32
}
fn value_length() -> usize {
    256
}
fn two_seconds() -> f64 {
    2.0
}
fn ten_seconds() -> f64 {
    10.0
}
fn patience_ms() -> u64 {
    10_000
}

#[cfg(test)]
mod tests;
