//! What clients were told, and the check that a restarted server still says the same.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use eddy_proto::{
    etcdserverpb::{watch_request::RequestUnion, *},
    mvccpb::{Event, KeyValue, event::EventType},
};
use tonic::{Code, transport::Channel};

/// The key that writers only ever raise by one, through a compare.
pub const COUNTER: &str = "counter";
/// The whole history must come within this time.
const HISTORY_WITHIN: Duration = Duration::from_secs(30);

/// A write that was acknowledged: at its revision each key got the value, or was deleted.
pub struct Ack {
    pub revision: i64,
    pub changes: Vec<(String, Option<String>)>,
}

/// What one watcher was told.
#[derive(Clone, Default)]
pub struct Watched {
    pub events: Vec<Event>,
    /// Progress: no event up to this revision is still to come.
    pub complete_to: i64,
    /// Events that came although progress had excluded them.
    pub broken: Vec<String>,
}

/// All that clients saw of a server between its start and its end.
#[derive(Default)]
pub struct Round {
    pub acks: Vec<Ack>,
    /// Values that were sent, acknowledged or not.
    pub issued: Vec<String>,
    /// What reads returned.
    pub read: Vec<KeyValue>,
    pub watched: Vec<Watched>,
    /// The highest revision in any header.
    pub highest: i64,
    pub granted: Vec<i64>,
    /// Leases whose revocation was tried, and whether it was acknowledged.
    pub revoked: BTreeMap<i64, bool>,
    pub compacted: i64,
    /// The last compaction that was asked for, answered or not.
    pub compacting: i64,
}

/// What is known of one server's data dir over all its lives.
#[derive(Default)]
pub struct Model {
    history: BTreeMap<i64, Vec<Event>>,
    /// The keys at the last revision of `history`.
    state: BTreeMap<Bytes, KeyValue>,
    issued: HashSet<String>,
    /// Leases that must exist, and those that may.
    leases: BTreeSet<i64>,
    maybe_leases: BTreeSet<i64>,
    gone_leases: BTreeSet<i64>,
    compacted: i64,
    /// Per watcher: the revision up to which it has everything.
    pub resume: Vec<i64>,
    pub checked_acks: u64,
    pub checked_events: u64,
}

fn revision(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

impl Model {
    /// A model of an empty data dir with this many watchers.
    pub fn new(watchers: usize) -> Model {
        Model { resume: vec![1; watchers], compacted: 0, ..Model::default() }
    }

    /// The last revision that was checked.
    pub fn revision(&self) -> i64 {
        self.history.last_key_value().map_or(1, |(rev, _)| *rev)
    }

    /// The current state of a key.
    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.state.get(key.as_bytes())
    }

    /// Leases that exist for certain.
    pub fn leases(&self) -> Vec<i64> {
        self.leases.iter().copied().collect()
    }

    /// Compares a restarted server with all that clients were told, and learns what unacknowledged writes came to.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub async fn check(&mut self, channel: &Channel, round: Round) -> Result<()> {
        self.issued.extend(round.issued);
        self.compacted = self.compacted.max(round.compacted);
        let mut kv = kv_client::KvClient::new(channel.clone());
        let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
        let answer = kv.range(all).await.context("reading everything")?.into_inner();
        let now = answer.header.map_or(0, |h| h.revision);
        ensure!(now >= round.highest, "the server is at revision {now}, but a client has seen {}", round.highest);
        ensure!(now >= self.revision(), "the server is at revision {now}, but was at {}", self.revision());

        let events = match history(channel, self.compacted + 1, now).await? {
            Ok(events) => events,
            // A compaction that was under way has happened.
            Err(compacted) => {
                ensure!(compacted <= round.compacting, "compacted at {compacted}, asked for {}", round.compacting);
                self.compacted = compacted;
                let again = history(channel, compacted + 1, now).await?;
                again.map_err(|c| anyhow::anyhow!("compacted at {compacted} and then {c}"))?
            }
        };
        self.learn(events, now)?;
        let state: Vec<&KeyValue> = self.state.values().collect();
        ensure!(state == answer.kvs.iter().collect::<Vec<_>>(), "a full read differs from the history");
        for ack in &round.acks {
            self.check_ack(ack)?;
        }
        for kv in &round.read {
            let events = self.history.get(&kv.mod_revision).map_or(&[][..], Vec::as_slice);
            let known = events.iter().any(|e| e.r#type() == EventType::Put && e.kv.as_ref() == Some(kv));
            ensure!(known, "a client has read {kv:?}, which the history does not hold");
        }
        for (n, watched) in round.watched.iter().enumerate() {
            self.check_watcher(n, watched).with_context(|| format!("watcher {n}"))?;
        }
        self.check_compaction(&mut kv).await?;
        self.check_leases(channel, &round.granted, &round.revoked).await
    }

    /// Checks the server's history against what is known of it and takes over what is new.
    fn learn(&mut self, events: Vec<Event>, now: i64) -> Result<()> {
        let mut found: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
        for event in events {
            found.entry(revision(&event)).or_default().push(event);
        }
        self.checked_events += found.len() as u64;
        for rev in (self.compacted + 1).max(2)..=now {
            let Some(events) = found.remove(&rev) else { bail!("the history has nothing at revision {rev}") };
            match self.history.get(&rev) {
                Some(known) => ensure!(*known == events, "revision {rev} was {known:?} and is {events:?}"),
                None => {
                    events.iter().try_for_each(|e| self.apply(e))?;
                    self.history.insert(rev, events);
                }
            }
        }
        ensure!(found.is_empty(), "events outside of the history: {found:?}");
        Ok(())
    }

    fn apply(&mut self, event: &Event) -> Result<()> {
        let Some(kv) = event.kv.clone() else { bail!("an event without a key") };
        if event.r#type() == EventType::Delete {
            ensure!(self.state.remove(&kv.key).is_some(), "a delete of a key that is not there: {kv:?}");
            return Ok(());
        }
        let value = String::from_utf8_lossy(&kv.value).into_owned();
        ensure!(self.issued.contains(&value), "nobody wrote {kv:?}");
        let before = self.state.get(&kv.key);
        let (created, version) = before.map_or((kv.mod_revision, 0), |b| (b.create_revision, b.version));
        ensure!(kv.create_revision == created && kv.version == version + 1, "{kv:?} after {before:?}");
        if kv.key == COUNTER {
            let count = |kv: &KeyValue| String::from_utf8_lossy(&kv.value).parse::<u64>();
            ensure!(count(&kv)? == before.map_or(Ok(0), count)? + 1, "the counter went from {before:?} to {kv:?}");
        }
        self.state.insert(kv.key.clone(), kv);
        Ok(())
    }

    fn check_ack(&mut self, ack: &Ack) -> Result<()> {
        let events = self.history.get(&ack.revision).map_or(&[][..], Vec::as_slice);
        for (key, value) in &ack.changes {
            let found = events.iter().any(|e| {
                let kv = e.kv.as_ref();
                let same_key = kv.is_some_and(|kv| kv.key == *key);
                let same_value = match value {
                    Some(value) => e.r#type() == EventType::Put && kv.is_some_and(|kv| kv.value == *value),
                    None => e.r#type() == EventType::Delete,
                };
                same_key && same_value
            });
            let rev = ack.revision;
            ensure!(found, "lost: {key} = {value:?} was acknowledged at revision {rev}, which holds {events:?}");
        }
        self.checked_acks += 1;
        Ok(())
    }

    /// A watcher must have got every event from where it resumed to the last that it got, once, in order.
    fn check_watcher(&mut self, n: usize, Watched { events, complete_to, broken }: &Watched) -> Result<()> {
        ensure!(broken.is_empty(), "{broken:?}");
        let last = events.last().map_or(0, revision).max(*complete_to);
        if last <= self.resume[n] {
            ensure!(events.is_empty(), "events from before {}: {events:?}", self.resume[n]);
            return Ok(());
        }
        let from = self.resume[n] + 1;
        let expected: Vec<&Event> = self.history.range(from..=last).flat_map(|(_, events)| events).collect();
        for (got, expected) in events.iter().zip(&expected) {
            ensure!(got == *expected, "got {got:?} instead of {expected:?}");
        }
        ensure!(events.len() == expected.len(), "got {} events instead of {}", events.len(), expected.len());
        self.resume[n] = last;
        Ok(())
    }

    async fn check_compaction(&self, kv: &mut kv_client::KvClient<Channel>) -> Result<()> {
        if self.compacted < 2 {
            return Ok(());
        }
        let revision = self.compacted - 1;
        let old = RangeRequest { key: COUNTER.into(), revision, ..RangeRequest::default() };
        match kv.range(old).await {
            Err(status) if status.code() == Code::OutOfRange => Ok(()),
            other => bail!("a read at {revision}, compacted at {}, is answered {other:?}", self.compacted),
        }
    }

    async fn check_leases(&mut self, channel: &Channel, granted: &[i64], revoked: &BTreeMap<i64, bool>) -> Result<()> {
        self.leases.extend(granted);
        for (id, acknowledged) in revoked {
            self.leases.remove(id);
            if *acknowledged { &mut self.gone_leases } else { &mut self.maybe_leases }.insert(*id);
        }
        let mut client = lease_client::LeaseClient::new(channel.clone());
        let held = client.lease_leases(LeaseLeasesRequest {}).await?.into_inner().leases;
        let held: BTreeSet<i64> = held.iter().map(|l| l.id).collect();
        let lost: Vec<_> = self.leases.difference(&held).collect();
        ensure!(lost.is_empty(), "leases {lost:?} were granted and are gone");
        let back: Vec<_> = self.gone_leases.intersection(&held).collect();
        ensure!(back.is_empty(), "leases {back:?} were revoked and are back");
        let on = self.state.values().map(|kv| kv.lease).filter(|id| *id != 0);
        for id in on {
            ensure!(held.contains(&id), "a key is attached to lease {id}, which does not exist");
        }
        Ok(())
    }
}

/// All events from revision `from` to `now`, through a new watcher; or the compaction that forbids it.
async fn history(channel: &Channel, from: i64, now: i64) -> Result<Result<Vec<Event>, i64>> {
    let from = from.max(2);
    if from > now {
        return Ok(Ok(Vec::new()));
    }
    let create = WatchCreateRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        start_revision: from,
        ..WatchCreateRequest::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let read = async {
        // The stream must stay open for writing, or the server ends it.
        let requests = futures::StreamExt::chain(tokio_stream::once(request), tokio_stream::pending());
        let mut client = watch_client::WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
        let mut answers = client.watch(requests).await?.into_inner();
        let mut events = Vec::new();
        while events.last().map_or(0, revision) < now {
            let Some(answer) = answers.message().await? else { bail!("the watch ended") };
            if answer.compact_revision > 0 {
                return Ok(Err(answer.compact_revision));
            }
            ensure!(!answer.canceled, "a watch from {from} was cancelled: {answer:?}");
            events.extend(answer.events);
        }
        Ok(Ok(events))
    };
    tokio::time::timeout(HISTORY_WITHIN, read).await.context("the history up to the current revision did not come")?
}
