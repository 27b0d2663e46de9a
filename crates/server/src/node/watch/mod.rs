//! One watch stream: its watchers, what arrived for them, and how they catch up from history.
//!
//! A [`WatchStream`] is driven by its reader alone: it has no task and, unless a watcher asked for progress
//! notifications, no timer. A client that does not read costs its mailbox and nothing more.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use eddy_crdt::{KeyRange, PastPlace, PastValues, Revision};
use tokio::time::Instant;

use super::engine::Engine;
use super::handle::Handle;
use super::hub::{Filters, Mailbox, SharedEvent, Standing, Subscription, Watcher};

mod catch_up;

/// Most progress requests that are remembered until they can be answered.
const PROGRESS_REQUESTS_MAX: usize = 64;

/// A stream ends when replaced values could not be read so often, one time after the other.
const UNREAD_MAX: u32 = 3;

/// Why a watcher is not created. `api::status` has etcd's texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchRefusal {
    /// The range ends before it begins.
    EmptyRange,
    /// The client chose an id that it already uses on this stream.
    DuplicateId,
}

/// A watcher to be created.
#[derive(Clone, Debug)]
pub struct WatchSpec {
    /// The client's choice of id; `None` lets the stream choose.
    pub id: Option<i64>,
    /// Which keys.
    pub range: KeyRange,
    /// First revision to report; `None` for from now on.
    pub start: Option<Revision>,
    /// Which events to leave out.
    pub filters: Filters,
    /// Whether to send a progress item from time to time when nothing happens.
    pub progress_notify: bool,
}

/// What a stream sends to its client.
#[derive(Clone, Debug)]
pub enum WatchItem {
    /// Events of whole commits, in order.
    Events {
        /// The watcher.
        watch_id: i64,
        /// For the header. As in etcd, this is the store's revision while the watcher catches up from history, so more
        /// events up to it may follow. Otherwise it is the revision of the last of these commits.
        revision: Revision,
        /// The events.
        events: Vec<SharedEvent>,
    },
    /// The history that the watcher needs is compacted. Its id stays taken until it is cancelled.
    Compacted {
        /// The watcher.
        watch_id: i64,
        /// The revision of the compaction.
        compact_revision: Revision,
    },
    /// All events up to the revision were sent: those of one watcher, or of all watchers of the stream.
    Progress {
        /// The watcher; `None` for all.
        watch_id: Option<i64>,
        /// The revision.
        revision: Revision,
    },
}

/// What is left to do behind a look for what to send.
enum Collected {
    /// There may be more to do at once.
    More,
    /// These replaced values must be read first.
    Lacking(Vec<PastPlace>),
    /// Nothing, until something arrives.
    Nothing,
}

/// A watcher as its stream remembers it.
#[derive(Debug)]
struct Local {
    slot: u32,
    progress_notify: bool,
    /// Whether nothing was sent to it since the last tick.
    idle: bool,
}

/// One client stream of watchers. Dropping it ends all of them.
pub struct WatchStream {
    node: Arc<Engine>,
    mailbox: Arc<Mailbox>,
    watchers: HashMap<i64, Local>,
    next_id: i64,
    free_slots: Vec<u32>,
    out: VecDeque<WatchItem>,
    /// Progress requests that are not answered: each wants at least that revision.
    progress: VecDeque<Revision>,
    /// What was read back for watchers that lag.
    past: PastValues,
    /// How often in a row that failed.
    unread: u32,
    interval: Duration,
    next_tick: Instant,
    notifying: usize,
}

impl Handle {
    /// Opens a stream of watchers.
    pub fn watch_stream(&self) -> WatchStream {
        let interval = self.engine.progress_interval;
        // As in etcd, streams that were opened together do not all notify at once.
        let jitter = interval.mul_f64(RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64 / 10.0);
        let interval = interval + jitter;
        WatchStream {
            mailbox: self.engine.hub.open(),
            node: Arc::clone(&self.engine),
            watchers: HashMap::new(),
            next_id: 0,
            free_slots: Vec::new(),
            out: VecDeque::new(),
            progress: VecDeque::new(),
            interval,
            next_tick: Instant::now() + interval,
            notifying: 0,
            past: PastValues::default(),
            unread: 0,
        }
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.node.hub.forget(&self.mailbox);
    }
}

impl WatchStream {
    /// Creates a watcher and returns its id. Its events come from [`Self::next`].
    ///
    /// # Errors
    /// When the range is empty or the id is taken.
    pub fn create(&mut self, spec: WatchSpec) -> Result<i64, WatchRefusal> {
        if let KeyRange::Span(start, end) = &spec.range
            && start >= end
        {
            return Err(WatchRefusal::EmptyRange);
        }
        let id = match spec.id {
            Some(id) if self.watchers.contains_key(&id) => return Err(WatchRefusal::DuplicateId),
            Some(id) => id,
            None => {
                while self.watchers.contains_key(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id += 1;
                self.next_id - 1
            }
        };

        self.take_back_progress();
        let foreign = self.foreign_start(spec.start);
        let mut hub = self.node.hub.lock();
        let mut inner = self.mailbox.lock();
        let slot = self.free_slots.pop().unwrap_or(inner.watchers.len() as u32);
        // A durable revision may not be published yet. A client that saw it must not be told of it again.
        let next = spec.start.unwrap_or_else(|| self.node.durable_revision().next());
        let standing = match foreign {
            Some(_) => Standing::Dead,
            None if next > hub.published => Standing::Live,
            None => Standing::Lagging,
        };
        inner.lagging += usize::from(standing == Standing::Lagging);
        let watcher =
            Watcher { id, range: spec.range.clone(), filters: spec.filters, start: spec.start, next, standing };
        if slot as usize == inner.watchers.len() {
            inner.watchers.push(Some(watcher));
        } else {
            inner.watchers[slot as usize] = Some(watcher);
        }
        drop(inner);
        match foreign {
            Some(compact_revision) => self.out.push_back(WatchItem::Compacted { watch_id: id, compact_revision }),
            None => hub.subscriptions.insert(&spec.range, Subscription { mailbox: Arc::clone(&self.mailbox), slot }),
        }
        drop(hub);
        self.node.hub.watchers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let local = Local { slot, progress_notify: spec.progress_notify, idle: true };
        self.notifying += usize::from(local.progress_notify);
        self.watchers.insert(id, local);
        Ok(id)
    }

    /// For a start at a revision of another replica: the compact revision with which the watcher is cancelled. Where nothing
    /// was compacted, that is the first revision of the present space: no watcher can be told of earlier ones.
    fn foreign_start(&self, start: Option<Revision>) -> Option<Revision> {
        let (start, durable) = (start?, self.node.durable_revision());
        let replica = self.node.replica.read();
        let foreign = replica.is_foreign(start, durable);
        let compacted = replica.compacted();
        drop(replica);
        foreign.then(|| {
            self.node.met_foreign(start);
            let first = Revision::first_in(durable.space());
            compacted.map_or(first, |compacted| compacted.max(first))
        })
    }

    /// Takes back progress items that were not sent yet: they would speak for the new watcher too.
    fn take_back_progress(&mut self) {
        let taken = &mut self.progress;
        self.out.retain(|item| match item {
            WatchItem::Progress { watch_id: None, revision } => {
                taken.push_front(*revision);
                false
            }
            _ => true,
        });
    }

    /// Ends a watcher; no more events come from it. Returns false if there is none of that id.
    pub fn cancel(&mut self, id: i64) -> bool {
        let Some(local) = self.watchers.remove(&id) else { return false };
        self.notifying -= usize::from(local.progress_notify);
        let slot = local.slot;
        let mut hub = self.node.hub.lock();
        let mut inner = self.mailbox.lock();
        if let Some(watcher) = inner.watchers.get_mut(slot as usize).and_then(Option::take) {
            inner.lagging -= usize::from(watcher.standing == Standing::Lagging);
            if watcher.standing != Standing::Dead {
                let subscription = Subscription { mailbox: Arc::clone(&self.mailbox), slot };
                hub.subscriptions.remove(&watcher.range, &subscription);
            }
        }
        // Another watcher may take the slot soon.
        inner.queue.retain(|delivery| delivery.slot != slot);
        drop(inner);
        drop(hub);
        self.out.retain(|item| match item {
            WatchItem::Events { watch_id, .. } | WatchItem::Compacted { watch_id, .. } => *watch_id != id,
            WatchItem::Progress { watch_id, .. } => *watch_id != Some(id),
        });
        self.free_slots.push(slot);
        self.node.hub.watchers.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        true
    }

    /// Asks for a progress item for all watchers. It comes once each was told all events up to now. As in etcd there is
    /// no item without watchers, or while a watcher starts in the future. There is none either before a watcher that
    /// lost its history to a compaction is cancelled.
    pub fn request_progress(&mut self) {
        if self.progress.len() < PROGRESS_REQUESTS_MAX {
            self.progress.push_back(self.node.durable_revision());
            // Answered at once where possible, so that it speaks of the moment of the request.
            self.answer_progress();
        }
    }

    /// The revision for headers of answers about the stream itself.
    pub fn revision(&self) -> Revision {
        self.node.durable_revision()
    }

    /// The next item; `None` when the node stops. Dropping the future loses no item.
    pub async fn next(&mut self) -> Option<WatchItem> {
        loop {
            if self.mailbox.is_closed() {
                return None;
            }
            if let Some(item) = self.out.pop_front() {
                if let WatchItem::Events { events, .. } = &item {
                    self.node.metrics.events(events.len());
                }
                return Some(item);
            }
            match self.collect() {
                Collected::Nothing => {}
                Collected::More if self.out.is_empty() => {
                    // A long history without a match: let others run.
                    tokio::task::yield_now().await;
                    continue;
                }
                Collected::More => continue,
                Collected::Lacking(_) if self.unread >= UNREAD_MAX => return None,
                Collected::Lacking(places) => {
                    self.recall(places).await;
                    continue;
                }
            }
            if self.notifying > 0 && Instant::now() >= self.next_tick {
                self.tick();
                continue;
            }
            if self.answer_progress() {
                continue;
            }
            if self.notifying == 0 {
                self.mailbox.arrived.notified().await;
            } else {
                tokio::select! {
                    () = self.mailbox.arrived.notified() => {}
                    () = tokio::time::sleep_until(self.next_tick) => {}
                }
            }
        }
    }

    /// Has replaced values read for watchers that lag.
    async fn recall(&mut self, places: Vec<PastPlace>) {
        match self.node.recall(places).await {
            Ok(past) => {
                self.past.add(past);
                self.unread = 0;
            }
            // The next look tells a compaction from a journal that cannot be read.
            Err(error) => {
                self.unread += 1;
                if self.unread == UNREAD_MAX {
                    tracing::warn!(%error, "a watch ends: what it is to be told cannot be read");
                }
            }
        }
    }

    /// Makes progress notifications for watchers that were told nothing for an interval.
    fn tick(&mut self) {
        self.next_tick = Instant::now() + self.interval;
        let hub = self.node.hub.lock();
        let mut inner = self.mailbox.lock();
        let synced = inner.queue.is_empty();
        for (id, local) in &mut self.watchers {
            if !local.progress_notify {
                continue;
            }
            let due = std::mem::replace(&mut local.idle, true);
            let Some(watcher) = inner.watcher(local.slot) else { continue };
            if due && synced && watcher.standing == Standing::Live && watcher.start <= Some(hub.published) {
                self.out.push_back(WatchItem::Progress { watch_id: Some(*id), revision: hub.published });
            }
        }
    }

    /// Answers progress requests if all events up to now were sent; otherwise has the stream woken when they can be. Returns
    /// true when it put something into `out`, or when there is something to do first.
    fn answer_progress(&mut self) -> bool {
        let Some(wanted) = self.progress.front().copied() else { return false };
        let mut hub = self.node.hub.lock();
        let inner = self.mailbox.lock();
        if !inner.queue.is_empty() || inner.lagging > 0 {
            return true;
        }
        let known = wanted.max(hub.published);
        let speaks = |watcher: &Watcher| watcher.standing == Standing::Live && watcher.start <= Some(known);
        let mut watchers = inner.watchers.iter().flatten().peekable();
        if watchers.peek().is_none() || !watchers.all(speaks) {
            self.progress.clear();
            return false;
        }
        if wanted > hub.published {
            hub.wake_at(wanted, &self.mailbox);
            return false;
        }
        let revision = hub.published;
        while self.progress.front().is_some_and(|wanted| *wanted <= revision) {
            self.progress.pop_front();
            self.out.push_back(WatchItem::Progress { watch_id: None, revision });
        }
        true
    }
}

/// Whether the event began an incarnation of its key. etcd sends no previous value with such an event.
pub fn is_create(event: &eddy_crdt::Event) -> bool {
    event.written().is_some_and(|kv| kv.create_revision == kv.mod_revision)
}
