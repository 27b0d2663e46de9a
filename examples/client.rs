//! A client that writes, watches, and survives a stop of its replica.
//!
//! ```sh
//! cargo run --example client -- http://127.0.0.1:2379                        # stays with this replica
//! cargo run --example client -- http://127.0.0.1:2379 http://127.0.0.1:2479  # moves to the second when the first is away
//! ```
//!
//! It puts a number into one of ten keys ten times a second, watches these keys, and prints what it is told, until Ctrl-C.
//! Stop the replica and start it again: no acknowledged put and no event is missing from the output.
//!
//! A client of eddy follows three rules.
//! 1. **Revisions belong to one replica.** Each replica numbers the writes it applies by itself. So keep a revision
//!    only together with the endpoint that gave it, and never compare two revisions of different replicas.
//! 2. **At the same replica, resume.** After a break, watch from the last revision seen plus one. Nothing is lost or repeated.
//! 3. **At another replica, list again.** It answers a revision that it did not give as compacted. What it lists is
//!    what it has heard of. The first replica may have acknowledged a write just before it stopped: that write arrives
//!    when the replica is back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::{PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use eddy_proto::mvccpb::event::EventType;
use tokio_stream::StreamExt;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

/// The keys of this example: all that begin with this, and so all below the same with its last byte one higher.
const PREFIX: &str = "example/";
const PREFIX_END: &str = "example0";
/// Time between two puts.
const PUT_EVERY: Duration = Duration::from_millis(100);
/// A replica that does not answer for that long counts as away. A stopped machine closes no connection, so only this tells.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Pause before it tries a replica again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// With a second endpoint: how long the first may be away before the client moves. A restart should not cost a move.
const MOVE_AFTER: Duration = Duration::from_secs(5);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut endpoints = std::env::args().skip(1);
    let mut endpoint = endpoints.next().context("usage: client ENDPOINT [ENDPOINT TO MOVE TO]")?;
    let mut second = endpoints.next();
    let mut client = Client::default();
    let mut answered = Instant::now();
    loop {
        let session = Instant::now();
        let Err(broken) = client.session(&endpoint, &mut answered).await else { return Ok(()) };
        println!("broken {endpoint} after {:?}: {broken:#}", session.elapsed());
        if answered.elapsed() > MOVE_AFTER
            && let Some(other) = second.take()
        {
            // For good: to go back and forth would mean to list again each time, and to see what is written late twice.
            println!("move from {endpoint} to {other}");
            endpoint = other;
            answered = Instant::now();
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

/// What it keeps from one connection to the next.
#[derive(Default)]
struct Client {
    /// The number of the last acknowledged put.
    put: u64,
    /// All events up to this revision have been seen. None before the first list.
    revision: Option<i64>,
    /// The keys as last seen.
    known: BTreeMap<String, String>,
}

impl Client {
    /// Puts and watches over one connection until something breaks, or until Ctrl-C.
    async fn session(&mut self, endpoint: &str, answered: &mut Instant) -> Result<()> {
        let channel = Endpoint::from_shared(endpoint.to_owned())?
            .connect_timeout(ANSWER_WITHIN)
            .http2_keep_alive_interval(ANSWER_WITHIN)
            .keep_alive_timeout(ANSWER_WITHIN)
            .keep_alive_while_idle(true)
            .connect()
            .await?;
        let mut kv = KvClient::new(channel.clone());
        let mut events = self.watch(&channel).await?;
        let mut ticks = tokio::time::interval(PUT_EVERY);
        loop {
            tokio::select! {
                told = events.message() => {
                    // An error or an end, and the session is over: the next one resumes.
                    if !self.take(told?.context("the watch ended")?)? {
                        events = self.watch(&channel).await?;
                    }
                }
                _ = ticks.tick() => self.put_next(&mut kv).await?,
                stopped = tokio::signal::ctrl_c() => return Ok(stopped?),
            }
            *answered = Instant::now();
        }
    }

    /// Puts the number after the last acknowledged one.
    ///
    /// When this fails, the put may have been made or not, and it is made again. That is right here, since the second
    /// put writes the same. Another client may compute what it writes from what it read. Such a client compares the
    /// key's `mod_revision` in a transaction, with the revision read at this same replica.
    async fn put_next(&mut self, kv: &mut KvClient<Channel>) -> Result<()> {
        let (key, value) = (format!("{PREFIX}{}", (self.put + 1) % 10), (self.put + 1).to_string());
        let request = PutRequest { key: key.clone().into(), value: value.clone().into(), ..PutRequest::default() };
        let answer = within(kv.put(request)).await?.into_inner();
        let revision = answer.header.context("no header")?.revision;
        println!("acknowledged {key} {value} at {revision}");
        self.put += 1;
        Ok(())
    }

    /// Watches from the first revision not seen; lists before where there is none.
    async fn watch(&mut self, channel: &Channel) -> Result<Streaming<WatchResponse>> {
        let seen = match self.revision {
            Some(revision) => revision,
            None => self.list(channel).await?,
        };
        let create = WatchCreateRequest {
            key: PREFIX.into(),
            range_end: PREFIX_END.into(),
            start_revision: seen + 1,
            ..WatchCreateRequest::default()
        };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The stream of requests stays open: its end would end the watch.
        let requests = tokio_stream::iter([create]).chain(tokio_stream::pending());
        println!("watch from {}", seen + 1);
        Ok(within(WatchClient::new(channel.clone()).watch(requests)).await?.into_inner())
    }

    /// Lists all keys, prints what differs from what was known, and gives the revision of the list.
    async fn list(&mut self, channel: &Channel) -> Result<i64> {
        let request = RangeRequest { key: PREFIX.into(), range_end: PREFIX_END.into(), ..RangeRequest::default() };
        let answer = within(KvClient::new(channel.clone()).range(request)).await?.into_inner();
        let revision = answer.header.context("no header")?.revision;
        let listed: BTreeMap<_, _> = answer.kvs.iter().map(|kv| (text(&kv.key), text(&kv.value))).collect();
        println!("listed {} keys at {revision}", listed.len());
        for (key, value) in listed.iter().filter(|(key, value)| self.known.get(*key) != Some(*value)) {
            println!("found {key} {value}");
        }
        for key in self.known.keys().filter(|key| !listed.contains_key(*key)) {
            println!("lacks {key}"); // deleted, or this replica has not heard of it yet
        }
        self.known = listed;
        self.revision = Some(revision);
        Ok(revision)
    }

    /// Takes what the watch was told. False: its history is gone, so the watch is over and the keys are listed again.
    fn take(&mut self, told: WatchResponse) -> Result<bool> {
        if told.canceled {
            if told.compact_revision == 0 {
                bail!("the watch was cancelled: {}", told.cancel_reason);
            }
            println!("compacted up to {}", told.compact_revision);
            self.revision = None;
            return Ok(false);
        }
        for event in told.events {
            let kv = event.kv.as_ref().context("an event of no key")?;
            let (key, value) = (text(&kv.key), text(&kv.value));
            if event.r#type() == EventType::Delete {
                println!("deleted {key} at {}", kv.mod_revision);
                self.known.remove(&key);
            } else {
                println!("event {key} {value} at {}", kv.mod_revision);
                self.known.insert(key, value);
            }
            // The event's revision, not the header's: that is the store's, and can be ahead of what this watch was told.
            // All events of one revision come in one response, so none is left behind in the middle.
            self.revision = Some(kv.mod_revision);
        }
        Ok(true)
    }
}

/// The answer to a call, unless the replica takes too long.
async fn within<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> Result<T> {
    Ok(tokio::time::timeout(ANSWER_WITHIN, call).await.context("no answer in time")??)
}

/// Keys and values are bytes; those of this example are text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
