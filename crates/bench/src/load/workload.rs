//! The operations of clients, drawn from a seed by a scenario's mix, keys and values.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::scenario::{KeyOrder, LoadSpec, Mix, ValueKind};

/// Random bytes that opaque values are cut from; more than a value is long, so that values differ.
const NOISE_BYTES: usize = 1 << 21;
/// All keys but those of Kubernetes objects begin so.
const PREFIX: &str = "lab/keys/";
/// Where Kubernetes keeps pods of the default namespace.
const PODS: &str = "/registry/pods/default/";
/// Length of a [`Stamp`] as text.
pub const STAMP_BYTES: usize = 24;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Write, whatever is there.
    Put {
        /// The key.
        key: Bytes,
        /// Not yet stamped.
        value: Value,
    },
    /// Read one key.
    Range {
        /// The key.
        key: Bytes,
        /// Whether a stale answer will do.
        serializable: bool,
    },
    /// Read all keys under a prefix.
    List {
        /// The prefix.
        prefix: Bytes,
    },
    /// Write if absent, as kube-apiserver creates.
    Create {
        /// The key.
        key: Bytes,
        /// Not yet stamped.
        value: Value,
    },
    /// Write if unchanged since this client last saw it, else read, as kube-apiserver updates.
    Update {
        /// The key.
        key: Bytes,
        /// Not yet stamped.
        value: Value,
    },
    /// Delete if unchanged since this client last saw it, else read, as kube-apiserver deletes.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Renew the client's lease.
    KeepAlive,
}

impl Operation {
    /// Its name in the results.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Range { serializable: false, .. } => "range",
            Self::Range { serializable: true, .. } => "serializable",
            Self::List { .. } => "list",
            Self::Create { .. } => "create",
            Self::Update { .. } => "txn",
            Self::Delete { .. } => "delete",
            Self::KeepAlive => "keepalive",
        }
    }
}

/// What is written, but for the moment of writing.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Bytes; the stamp replaces the first.
    Opaque(Bytes),
    /// Text around the stamp.
    Around(Bytes, Bytes),
    /// As recorded, without a stamp.
    Recorded(Bytes),
}

impl Value {
    /// The bytes to write now.
    pub fn stamped(&self, stamp: Stamp) -> Bytes {
        let stamp = stamp.text();
        let (before, after) = match self {
            Self::Opaque(bytes) => (&[][..], bytes.get(STAMP_BYTES..).unwrap_or_default()),
            Self::Around(before, after) => (&before[..], &after[..]),
            Self::Recorded(bytes) => return bytes.clone(),
        };
        [before, stamp.as_bytes(), after].concat().into()
    }
}

/// When a value was due to be written, and where. From it watchers compute how long the write took to reach them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Since the load began.
    pub at: Duration,
    /// The node that it is written at.
    pub node: usize,
}

impl Stamp {
    fn text(self) -> String {
        format!("@{:019}.{:03}", self.at.as_nanos(), self.node)
    }

    /// The stamp of a value, if it has one.
    pub fn find(value: &[u8]) -> Option<Self> {
        let at = if value.first() == Some(&b'@') {
            0
        } else {
            value.windows(MARK.len()).position(|window| window == MARK.as_bytes())? + MARK.len() - 1
        };
        let text = std::str::from_utf8(value.get(at + 1..at + STAMP_BYTES)?).ok()?;
        let (nanos, node) = text.split_once('.')?;
        Some(Self { at: Duration::from_nanos(nanos.parse().ok()?), node: node.parse().ok()? })
    }
}

/// What is before the stamp in an object.
const MARK: &str = "\"written\":\"@";

/// What all clients of an experiment draw from.
pub struct Workload {
    mix: Mix,
    order: KeyOrder,
    value: ValueKind,
    keys: u32,
    key_bytes: usize,
    value_bytes: usize,
    /// Of the first n keys together, when keys follow Zipf.
    likelihoods: Arc<[f64]>,
    noise: Bytes,
}

impl Workload {
    /// The workload of a scenario.
    pub fn new(spec: &LoadSpec) -> Self {
        let mut sum = 0.0;
        let likelihoods = match spec.key_order {
            KeyOrder::Zipf => (1..=spec.keys)
                .map(|n| {
                    sum += 1.0 / f64::from(n);
                    sum
                })
                .collect(),
            KeyOrder::Uniform | KeyOrder::Sequential => Arc::default(),
        };
        let mut noise = vec![0; NOISE_BYTES];
        SmallRng::seed_from_u64(0).fill_bytes(&mut noise);
        Self {
            mix: spec.mix,
            order: spec.key_order,
            value: spec.value,
            keys: spec.keys,
            key_bytes: spec.key_bytes,
            value_bytes: spec.value_bytes,
            likelihoods,
            noise: noise.into(),
        }
    }

    /// What every key begins with; what watchers watch.
    pub fn prefix(&self) -> &'static str {
        match self.value {
            ValueKind::Opaque => PREFIX,
            ValueKind::Pod => PODS,
        }
    }

    /// The n-th key.
    pub fn key(&self, n: u32) -> Bytes {
        let prefix = self.prefix();
        let width = self.key_bytes.saturating_sub(prefix.len()).max(6);
        format!("{prefix}{n:0width$}").into()
    }

    /// One of `clients` clients that draw from it.
    pub fn client(self: &Arc<Self>, client: usize, clients: usize, seed: u64) -> Generator {
        // Sequential clients walk through shares of the keys that do not overlap (but for more clients than keys).
        let share = (self.keys as usize / clients.max(1)).max(1) as u32;
        Generator {
            workload: Arc::clone(self),
            rng: SmallRng::seed_from_u64(seed ^ (client as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            first: (client as u32).wrapping_mul(share) % self.keys,
            share,
            drawn: 0,
        }
    }
}

/// The operations of one client.
pub struct Generator {
    workload: Arc<Workload>,
    rng: SmallRng,
    first: u32,
    share: u32,
    drawn: u32,
}

impl Generator {
    /// The next operation.
    pub fn draw(&mut self) -> Operation {
        let mix = self.workload.mix;
        let shares = [mix.put, mix.range, mix.serializable, mix.txn, mix.keepalive];
        let mut at = self.rng.random::<f64>() * shares.iter().sum::<f64>();
        let kind = shares.iter().position(|share| {
            at -= share;
            at < 0.0
        });
        let n = self.pick();
        let key = self.workload.key(n);
        match kind {
            Some(1) => Operation::Range { key, serializable: false },
            Some(2) => Operation::Range { key, serializable: true },
            Some(3) => Operation::Update { key, value: self.value(n) },
            Some(4) => Operation::KeepAlive,
            _ => Operation::Put { key, value: self.value(n) },
        }
    }

    fn pick(&mut self) -> u32 {
        let workload = &self.workload;
        self.drawn = self.drawn.wrapping_add(1);
        match workload.order {
            KeyOrder::Uniform => self.rng.random_range(0..workload.keys),
            KeyOrder::Zipf => {
                let all = workload.likelihoods.last().copied().unwrap_or(1.0);
                let at = self.rng.random::<f64>() * all;
                (workload.likelihoods.partition_point(|sum| *sum <= at) as u32).min(workload.keys - 1)
            }
            KeyOrder::Sequential => (self.first + (self.drawn - 1) % self.share) % workload.keys,
        }
    }

    /// The value of the n-th key, another at each call.
    pub fn value(&mut self, n: u32) -> Value {
        match self.workload.value {
            ValueKind::Opaque => {
                let length = self.workload.value_bytes;
                let start = self.rng.random_range(0..NOISE_BYTES - length);
                Value::Opaque(self.workload.noise.slice(start..start + length))
            }
            ValueKind::Pod => pod(n, self.rng.random()),
        }
    }
}

/// A Pod of about 2 KB in which `change` and the stamp alter two fields.
fn pod(n: u32, change: u32) -> Value {
    use std::fmt::Write;
    let mut variables = String::with_capacity(1400);
    for i in 0..24 {
        // Writing to a String cannot fail.
        let _infallible = write!(variables, r#"{{"name":"VARIABLE_{i}","value":"a value of some length, {i}"}},"#);
    }
    let before = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{n:06}","namespace":"default","uid":"8c1f2b1e-0000-4000-8000-{n:012}","generation":1,"labels":{{"app":"web"}},"annotations":{{{MARK}"#
    );
    let after = format!(
        r#""}}}},"spec":{{"containers":[{{"name":"web","image":"registry.example/web:1","env":[{variables}{{"name":"LAST","value":"1"}}]}}]}},"status":{{"phase":"Running","message":"change {change}"}}}}"#
    );
    Value::Around(before[..before.len() - 1].to_owned().into(), after.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn workload(load: &str) -> Arc<Workload> {
        let text = format!("name='w'\nabout='x'\n[cluster]\nnodes=[1]\n[load]\nkind='closed'\nclients=[1]\n{load}");
        Arc::new(Workload::new(&Scenario::parse("w", &text).expect("it is right").load))
    }

    #[test]
    fn a_stamp_is_found_again_in_every_kind_of_value() {
        let stamp = Stamp { at: Duration::from_nanos(1_234_567_890_123), node: 20 };
        for load in ["mix={put=1}\nvalue_bytes=32", "mix={put=1}\nvalue='pod'"] {
            let value = workload(load).client(0, 1, 7).value(3);
            assert_eq!(Stamp::find(&value.stamped(stamp)), Some(stamp), "{load}");
        }
        assert_eq!(Stamp::find(b"no stamp"), None);
        assert_eq!(Stamp::find(b"@short"), None);
    }

    #[test]
    fn a_pod_is_json_of_about_2_kb() {
        let stamp = Stamp { at: Duration::ZERO, node: 0 };
        let bytes = workload("mix={put=1}\nvalue='pod'").client(0, 1, 7).value(3).stamped(stamp);
        let pod: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!((&pod["kind"], &pod["metadata"]["name"]), (&"Pod".into(), &"000003".into()));
        assert!((1_500..3_000).contains(&bytes.len()), "{}", bytes.len());
    }

    #[test]
    fn equal_seeds_draw_equal_operations() {
        let load = workload("mix={put=1,range=1,txn=1}");
        let draw = |seed| (0..100).map(|_| 0).scan(load.client(1, 4, seed), |g, _| Some(g.draw())).collect::<Vec<_>>();
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }

    #[test]
    fn the_mix_has_the_shares_asked_for() {
        let mut client = workload("mix={put=1,range=3}").client(0, 1, 1);
        let puts = (0..10_000).filter(|_| client.draw().name() == "put").count();
        assert!((2_300..2_700).contains(&puts), "{puts} of 10,000 are puts, not a quarter");
    }

    #[test]
    fn zipf_prefers_the_first_keys_as_one_by_n() {
        let load = workload("mix={put=1}\nkeys=100\nkey_order='zipf'");
        let mut client = load.client(0, 1, 1);
        let mut counts = [0_u32; 100];
        for _ in 0..100_000 {
            counts[client.pick() as usize] += 1;
        }
        // The sum of 1/n for n from 1 to 100 is 5.187.
        let share = |n: usize| f64::from(counts[n - 1]) / 100_000.0 * 5.187 * n as f64;
        assert!((0.95..1.05).contains(&share(1)) && (0.85..1.15).contains(&share(10)), "{} {}", share(1), share(10));
    }

    #[test]
    fn sequential_clients_have_keys_of_their_own() {
        let load = workload("mix={put=1}\nkeys=10\nkey_order='sequential'");
        let keys = |client| {
            let mut generator = load.client(client, 2, 1);
            (0..6).map(|_| generator.pick()).collect::<Vec<_>>()
        };
        assert_eq!((keys(0), keys(1)), (vec![0, 1, 2, 3, 4, 0], vec![5, 6, 7, 8, 9, 5]));
    }

    #[test]
    fn keys_have_the_length_asked_for() {
        assert_eq!(workload("mix={put=1}\nkey_bytes=40").key(7).len(), 40);
        assert_eq!(&workload("mix={put=1}\nvalue='pod'\nkey_bytes=29").key(7)[..], b"/registry/pods/default/000007");
    }
}
