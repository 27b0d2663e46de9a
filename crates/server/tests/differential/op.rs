//! One request of a sequence, and its text form: one JSON object per line, so that a failure can be committed.
//!
//! Revisions and server-chosen lease ids are written relative to the run (`"now-1"`, `"#0"`). The same line has to mean
//! the same on two servers, and again when a shrunken sequence is replayed.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Bytes, written as a string of the characters U+0000 to U+00FF; a long run of one byte as `repeat:<char>*<count>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct B(pub Vec<u8>);

const RUN_PREFIX: &str = "repeat:";
/// Values longer than this that consist of one byte are written as a run.
const RUN_MIN: usize = 64;

impl<T: AsRef<[u8]>> From<T> for B {
    fn from(bytes: T) -> B {
        B(bytes.as_ref().to_vec())
    }
}

impl Serialize for B {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0.first() {
            Some(&first) if self.0.len() > RUN_MIN && self.0.iter().all(|b| *b == first) => {
                s.serialize_str(&format!("{RUN_PREFIX}{}*{}", char::from(first), self.0.len()))
            }
            _ => s.serialize_str(&self.0.iter().map(|b| char::from(*b)).collect::<String>()),
        }
    }
}

impl<'de> Deserialize<'de> for B {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<B, D::Error> {
        let text = String::deserialize(d)?;
        let byte = |c: char| u8::try_from(u32::from(c)).map_err(|_| D::Error::custom(format!("{c:?} is not a byte")));
        if let Some(run) = text.strip_prefix(RUN_PREFIX) {
            let (Some(c), Some(count)) = (run.chars().next(), run.rsplit('*').next()) else {
                return Err(D::Error::custom("a run is repeat:<char>*<count>"));
            };
            return Ok(B(vec![byte(c)?; count.parse().map_err(D::Error::custom)?]));
        }
        text.chars().map(byte).collect::<Result<_, _>>().map(B)
    }
}

/// A revision: a number, or an offset from the last revision that the server answered or compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rev {
    Abs(i64),
    Now(i64),
    Compacted(i64),
}

impl Default for Rev {
    fn default() -> Rev {
        Rev::Abs(0)
    }
}

/// A lease: its id, or `#n` for the n-th lease whose id the server chose in this sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    Id(i64),
    Nth(usize),
}

impl Default for Lease {
    fn default() -> Lease {
        Lease::Id(0)
    }
}

/// How a relative number is written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Number(i64),
    Relative(String),
}

impl Serialize for Rev {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Rev::Abs(n) => s.serialize_i64(*n),
            Rev::Now(n) => s.serialize_str(&format!("now{n:+}")),
            Rev::Compacted(n) => s.serialize_str(&format!("compacted{n:+}")),
        }
    }
}

impl<'de> Deserialize<'de> for Rev {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Rev, D::Error> {
        match Text::deserialize(d)? {
            Text::Number(n) => Ok(Rev::Abs(n)),
            Text::Relative(s) => {
                let offset = |s: &str| s.parse::<i64>().map_err(D::Error::custom);
                if let Some(n) = s.strip_prefix("now") {
                    offset(n).map(Rev::Now)
                } else if let Some(n) = s.strip_prefix("compacted") {
                    offset(n).map(Rev::Compacted)
                } else {
                    Err(D::Error::custom(format!("{s:?} is no revision")))
                }
            }
        }
    }
}

impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Lease::Id(n) => s.serialize_i64(*n),
            Lease::Nth(n) => s.serialize_str(&format!("#{n}")),
        }
    }
}

impl<'de> Deserialize<'de> for Lease {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Lease, D::Error> {
        match Text::deserialize(d)? {
            Text::Number(n) => Ok(Lease::Id(n)),
            Text::Relative(s) => s
                .strip_prefix('#')
                .and_then(|n| n.parse().ok())
                .map(Lease::Nth)
                .ok_or_else(|| D::Error::custom(format!("{s:?} is no lease"))),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares a request's fields, all of which may be left out of the text when they have their default.
macro_rules! request {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(#[serde(skip_serializing_if = "is_default")] pub $field: $type,)*
        }
    };
}

request! {
    /// RangeRequest; enums are numbers so that invalid ones can be sent.
    Range {
        key: B, range_end: B, limit: i64, revision: Rev, sort_order: i32, sort_target: i32, serializable: bool,
        keys_only: bool, count_only: bool, min_mod: Rev, max_mod: Rev, min_create: Rev, max_create: Rev,
    }
}
request! {
    /// PutRequest.
    Put { key: B, value: B, lease: Lease, prev_kv: bool, ignore_value: bool, ignore_lease: bool }
}
request! {
    /// DeleteRangeRequest.
    Delete { key: B, range_end: B, prev_kv: bool }
}
request! {
    /// TxnRequest.
    Txn { compare: Vec<Compare>, success: Vec<Inner>, failure: Vec<Inner> }
}
request! {
    /// Compare; `target` and `with` need not agree.
    Compare { result: i32, target: i32, key: B, range_end: B, with: With }
}
request! {
    /// CompactionRequest.
    Compact { revision: Rev, physical: bool }
}
request! {
    /// WatchCreateRequest on one of the sequence's streams.
    Watch {
        stream: u8, key: B, range_end: B, start: Rev, filters: Vec<i32>, prev_kv: bool, watch_id: i64, fragment: bool,
        progress_notify: bool,
    }
}
request! {
    /// WatchCancelRequest.
    Cancel { stream: u8, watch_id: i64 }
}
request! {
    /// LeaseGrantRequest; id 0 lets the server choose.
    Grant { id: i64, ttl: i64 }
}
request! {
    /// LeaseTimeToLiveRequest.
    TimeToLive { lease: Lease, keys: bool }
}
request! {
    /// AlarmRequest.
    Alarm { action: i32, alarm: i32 }
}

/// The value side of a compare.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum With {
    #[default]
    Nothing,
    Version(i64),
    Create(Rev),
    Mod(Rev),
    Value(B),
    Lease(Lease),
}

/// One operation inside a transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inner {
    Range(Range),
    Put(Put),
    Delete(Delete),
    Txn(Txn),
    /// A RequestOp whose oneof is not set.
    Nothing,
}

/// One step of a sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    Range(Range),
    RangeStream(Range),
    Put(Put),
    Delete(Delete),
    Txn(Txn),
    Compact(Compact),
    Watch(Watch),
    Cancel(Cancel),
    /// A manual progress request, answered or not before the next event.
    Progress {
        stream: u8,
    },
    /// A WatchRequest whose oneof is not set.
    EmptyWatch {
        stream: u8,
    },
    /// Closes the sequence's stream; a later step on it opens a new one.
    CloseStream {
        stream: u8,
    },
    /// Waits until all watchers have caught up, and compares what they got.
    Settle,
    Grant(Grant),
    Revoke(Lease),
    KeepAlive(Lease),
    TimeToLive(TimeToLive),
    Leases,
    /// Waits until the lease has run out on both servers.
    AwaitExpiry(Lease),
    MemberList {
        linearizable: bool,
    },
    Status,
    Hash,
    HashKv(Rev),
    Alarm(Alarm),
    AuthStatus,
    Defragment,
    /// Stops both servers, by SIGKILL or SIGTERM, and starts them again.
    Restart {
        kill: bool,
    },
    /// A unary call of a method that does not exist.
    Unknown(String),
}

/// The text form of a sequence.
pub fn print(ops: &[Op]) -> String {
    ops.iter().map(|op| serde_json::to_string(op).unwrap_or_else(|e| format!("# unprintable: {e}")) + "\n").collect()
}

/// Reads the text form; empty lines and lines that start with `#` are comments.
///
/// # Errors
/// The line number and what is wrong with it.
pub fn parse(text: &str) -> anyhow::Result<Vec<Op>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(n, line)| serde_json::from_str(line).map_err(|e| anyhow::anyhow!("line {}: {e}: {line}", n + 1)))
        .collect()
}
