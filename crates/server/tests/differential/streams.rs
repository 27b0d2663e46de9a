//! Watch streams: sends requests in step, gathers what comes, and gives it back per watcher. How a server batches
//! events and interleaves watchers is its own affair.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use eddy_proto::{
    etcdserverpb::{watch_request::RequestUnion, *},
    mvccpb::Event,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, transport::Channel};

use crate::seen::normal_header;

/// The key whose events show that a stream has delivered everything before them.
pub const SENTINEL: &str = "\u{7f}sentinel";
/// The id of the watcher of that key; no sequence uses it.
const SENTINEL_ID: i64 = 999_999;

/// What the watchers of a stream got, comparable between servers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub events: BTreeMap<i64, Vec<Event>>,
    /// Watchers that were cancelled because of a compaction, and the revision they were told.
    pub compacted: BTreeMap<i64, Vec<i64>>,
    /// Broken promises that can be seen in one stream alone.
    pub violations: Vec<String>,
    /// How the stream ended, when it did.
    pub ended: Option<String>,
}

#[derive(Default)]
struct Log {
    seen: Snapshot,
    control: Vec<WatchResponse>,
    progress: Vec<(i64, i64)>,
    sentinel: i64,
    /// Revision of the last event of a watcher, and whether more fragments of that response follow.
    last: BTreeMap<i64, (i64, bool)>,
}

/// One watch stream.
pub struct Stream {
    requests: mpsc::Sender<WatchRequest>,
    log: Arc<Mutex<Log>>,
    changed: watch::Sender<()>,
    reader: tokio::task::JoinHandle<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn sentinel_watch() -> WatchRequest {
    let create = WatchCreateRequest { key: SENTINEL.into(), watch_id: SENTINEL_ID, ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

/// The answer to a second watcher with an id in use.
fn is_refusal(response: &WatchResponse) -> bool {
    response.created && response.canceled && response.watch_id == -1
}

impl Stream {
    /// Opens a stream with its sentinel watcher.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn open(channel: Channel) -> Result<Stream, Status> {
        let (requests, outgoing) = mpsc::channel(64);
        // A server may send its headers only with its first answer, so there must be something to answer.
        send(&requests, sentinel_watch()).await?;
        let mut client = watch_client::WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let mut incoming = client.watch(ReceiverStream::new(outgoing)).await?.into_inner();
        let log = Arc::new(Mutex::new(Log::default()));
        let changed = watch::Sender::new(());
        let (to, signal) = (log.clone(), changed.clone());
        let reader = tokio::spawn(async move {
            loop {
                let next = incoming.message().await;
                let mut log = to.lock().unwrap_or_else(PoisonError::into_inner);
                match next {
                    Ok(Some(response)) => log.take(response),
                    Ok(None) => log.seen.ended = Some("ended".into()),
                    Err(status) => log.seen.ended = Some(format!("{:?}: {}", status.code(), status.message())),
                }
                let ended = log.seen.ended.is_some();
                drop(log);
                signal.send_replace(());
                if ended {
                    return;
                }
            }
        });
        let stream = Stream { requests, log, changed, reader };
        stream.until(|log| !log.control.is_empty()).await?;
        stream.lock().control.clear();
        Ok(stream)
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until(&self, done: impl Fn(&Log) -> bool) -> Result<(), Status> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let log = self.lock();
                if done(&log) {
                    return Ok(());
                }
                if let Some(end) = &log.seen.ended {
                    return Err(Status::aborted(format!("the watch stream ended: {end}")));
                }
            }
            changed.changed().await.map_err(|_| Status::aborted("the watch stream was dropped"))?;
        }
    }

    /// Sends a create or cancel request, and waits for its answers: all that come before the refusal of a second
    /// sentinel watcher.
    ///
    /// # Errors
    /// The stream has ended.
    pub async fn control(&self, request: RequestUnion) -> Result<Vec<WatchResponse>, Status> {
        let creates = matches!(request, RequestUnion::CreateRequest(_));
        self.fenced(WatchRequest { request_union: Some(request) }, creates).await
    }

    /// Sends a request without content.
    ///
    /// # Errors
    /// The stream has ended.
    pub async fn empty_request(&self) -> Result<Vec<WatchResponse>, Status> {
        self.fenced(WatchRequest { request_union: None }, false).await
    }

    async fn fenced(&self, request: WatchRequest, creates: bool) -> Result<Vec<WatchResponse>, Status> {
        send(&self.requests, request).await?;
        send(&self.requests, sentinel_watch()).await?;
        // The answer to a create may look like the fence's; it is always answered, so two answers are enough.
        let at_least = if creates { 2 } else { 1 };
        self.until(|log| log.control.len() >= at_least && log.control.last().is_some_and(is_refusal)).await?;
        let mut answers = std::mem::take(&mut self.lock().control);
        answers.pop();
        answers.iter_mut().for_each(|a| a.header.iter_mut().for_each(normal_header));
        Ok(answers)
    }

    /// Asks for progress without waiting for an answer: there may be none.
    ///
    /// # Errors
    /// The stream has ended.
    pub async fn ask_progress(&self) -> Result<(), Status> {
        self.lock().progress.clear();
        let request = WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) };
        send(&self.requests, request).await?;
        // Requests of a stream are handled in order: once the next is answered, this one was looked at.
        self.empty_request().await.map(drop)
    }

    /// Waits until a progress request was answered, at most that long.
    pub async fn progress_came(&self, at_most: Duration) {
        let start = Instant::now();
        while self.lock().progress.is_empty() && start.elapsed() < at_most {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The answers to progress requests so far.
    pub fn take_progress(&mut self) -> Vec<(i64, i64)> {
        std::mem::take(&mut self.lock().progress)
    }

    /// Waits for the sentinel's event at `revision` or above.
    ///
    /// # Errors
    /// The stream has ended.
    pub async fn reached(&self, revision: i64) -> Result<(), Status> {
        self.until(|log| log.sentinel >= revision).await
    }

    /// What came so far, with lease ids as `symbol` names them.
    pub fn snapshot(&self, symbol: impl Fn(i64) -> i64) -> Snapshot {
        let mut seen = self.lock().seen.clone();
        for event in seen.events.values_mut().flatten() {
            event.kv.iter_mut().chain(event.prev_kv.iter_mut()).for_each(|kv| kv.lease = symbol(kv.lease));
        }
        seen
    }
}

async fn send(to: &mpsc::Sender<WatchRequest>, request: WatchRequest) -> Result<(), Status> {
    to.send(request).await.map_err(|_| Status::aborted("the watch stream has ended"))
}

impl Log {
    fn take(&mut self, response: WatchResponse) {
        let id = response.watch_id;
        if response.compact_revision != 0 {
            self.seen.compacted.entry(id).or_default().push(response.compact_revision);
        } else if response.created || response.canceled {
            self.last.remove(&id);
            self.control.push(response);
        } else if response.events.is_empty() {
            self.progress.push((id, response.header.map_or(0, |h| h.revision)));
        } else {
            self.events(response);
        }
    }

    fn events(&mut self, response: WatchResponse) {
        let id = response.watch_id;
        let revision = |event: &Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let header = response.header.as_ref().map_or(0, |h| h.revision);
        let first = response.events.first().map_or(0, revision);
        let newest = response.events.last().map_or(0, revision);
        if let Some((last, continued)) = self.last.get(&id)
            && (first < *last || (first == *last && !continued))
        {
            self.seen.violations.push(format!("watcher {id}: revision {first} after {last}"));
        }
        if !response.events.is_sorted_by_key(revision) {
            self.seen.violations.push(format!("watcher {id}: events out of order"));
        }
        if header < newest && !response.fragment {
            self.seen.violations.push(format!("watcher {id}: header {header} below event {newest}"));
        }
        self.last.insert(id, (newest, response.fragment));
        if id == SENTINEL_ID {
            self.sentinel = newest;
        } else {
            self.seen.events.entry(id).or_default().extend(response.events);
        }
    }
}
