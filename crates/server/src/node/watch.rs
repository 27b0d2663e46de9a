//! One watch stream: its watchers, what arrived for them, and how they catch up from history.
//!
//! A [`WatchStream`] is driven by its reader alone: it has no task and, unless a watcher asked for progress
//! notifications, no timer. A client that does not read costs its mailbox and nothing more.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use eddy_crdt::{Commit, EventKind, KeyRange, Revision};
use tokio::time::Instant;

use super::hub::{Delivery, Filters, Mailbox, SharedEvent, Standing, Subscription, Watcher, event_size};
use super::matcher::Matcher;
use super::{Handle, Shared};

/// Adjacent commits for one watcher are sent as one item up to about this many bytes.
const ITEM_BYTES: usize = 256 << 10;

/// Where a watcher stands that asked for a revision of another replica: before anything that can be told, so it is cancelled
/// as one whose history was compacted.
const BEFORE_ALL: Revision = Revision::new(-2);

/// So many events are read from history under one read lock, and a watcher with at most so many revisions to go
/// rejoins the hub.
const CHUNK: usize = 512;

/// Most progress requests that are remembered while they can't be answered.
const PROGRESS_REQUESTS_MAX: usize = 64;

/// Why a watcher is not created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WatchRefusal {
    /// The range ends before it begins.
    #[error("mvcc: watcher range is empty")]
    EmptyRange,
    /// The client chose an id that it uses already on this stream.
    #[error("mvcc: duplicate watch ID provided on the WatchStream")]
    DuplicateId,
}

/// What to watch.
#[derive(Clone, Debug)]
pub struct WatchSpec {
    /// The client's choice of id; `None` lets the stream choose.
    pub id: Option<i64>,
    /// Which keys.
    pub range: KeyRange,
    /// First revision to report; zero for from now on.
    pub start: Revision,
    /// Which events to leave out.
    pub filters: Filters,
    /// Whether to send a progress item from time to time when nothing happens.
    pub progress_notify: bool,
}

/// What a stream has to say.
#[derive(Clone, Debug)]
pub enum WatchItem {
    /// Events of whole commits, in order.
    Events {
        /// The watcher.
        watch_id: i64,
        /// For the header. While the watcher catches up from history this is the store's revision, as in etcd, so more
        /// events up to it may follow; otherwise it is the revision of the last of these commits.
        revision: Revision,
        /// The events.
        events: Vec<SharedEvent>,
    },
    /// The history that the watcher was to be caught up from is gone. Its id stays taken until it is cancelled.
    Compacted {
        /// The watcher.
        watch_id: i64,
        /// The revision of the compaction.
        compact_revision: Revision,
    },
    /// Everything up to the revision has been said: of one watcher, or of all of the stream.
    Progress {
        /// The watcher; `None` for all.
        watch_id: Option<i64>,
        /// The revision.
        revision: Revision,
    },
}

/// A watcher as its stream remembers it.
#[derive(Debug)]
struct Local {
    slot: u32,
    progress_notify: bool,
    /// Nothing was sent to it since the last tick.
    idle: bool,
}

/// What a lagging watcher is caught up with.
struct Behind {
    slot: u32,
    id: i64,
    range: KeyRange,
    filters: Filters,
    from: Revision,
}

/// One client stream of watchers. Dropping it ends them all.
pub struct WatchStream {
    node: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    watchers: HashMap<i64, Local>,
    next_id: i64,
    free_slots: Vec<u32>,
    out: VecDeque<WatchItem>,
    /// Progress requests: each wants at least that revision.
    progress: VecDeque<Revision>,
    interval: Duration,
    next_tick: Instant,
    notifying: usize,
}

impl Handle {
    /// Opens a stream of watchers.
    pub fn watch_stream(&self) -> WatchStream {
        let interval = self.shared.progress_interval;
        // So that streams opened together do not all report at once, as in etcd.
        let jitter = interval.mul_f64(RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64 / 10.0);
        let interval = interval + jitter;
        WatchStream {
            mailbox: self.shared.hub.open(),
            node: Arc::clone(&self.shared),
            watchers: HashMap::new(),
            next_id: 0,
            free_slots: Vec::new(),
            out: VecDeque::new(),
            progress: VecDeque::new(),
            interval,
            next_tick: Instant::now() + interval,
            notifying: 0,
        }
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.node.hub.forget(&self.mailbox);
    }
}

impl WatchStream {
    /// Creates a watcher; tells its id. Its events come from [`Self::next`].
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
        let foreign = self.node.replica.read().is_foreign(spec.start, self.node.durable_revision());
        if foreign {
            self.node.met_foreign(spec.start);
        }
        let mut hub = self.node.hub.lock();
        let mut inner = self.mailbox.lock();
        let slot = self.free_slots.pop().unwrap_or(inner.watchers.len() as u32);
        // A revision that is durable may not be published yet; a client that saw it must not be told of it again.
        let next = if spec.start == Revision::new(0) {
            self.node.durable_revision().next()
        } else if foreign {
            BEFORE_ALL
        } else {
            spec.start
        };
        let standing = if next > hub.published { Standing::Live } else { Standing::Lagging };
        inner.lagging += usize::from(standing == Standing::Lagging);
        let watcher =
            Watcher { id, range: spec.range.clone(), filters: spec.filters, start: spec.start, next, standing };
        if slot as usize == inner.watchers.len() {
            inner.watchers.push(Some(watcher));
        } else {
            inner.watchers[slot as usize] = Some(watcher);
        }
        drop(inner);
        hub.subscriptions.insert(&spec.range, Subscription { mailbox: Arc::clone(&self.mailbox), slot });
        drop(hub);
        self.node.hub.watchers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let local = Local { slot, progress_notify: spec.progress_notify, idle: true };
        self.notifying += usize::from(local.progress_notify);
        self.watchers.insert(id, local);
        Ok(id)
    }

    /// Progress that was not said yet would speak for the new watcher too.
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

    /// Ends a watcher; nothing more comes from it. False if there is none of that id.
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
        // The slot may be taken by another watcher soon.
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

    /// Asks for a progress item for all watchers. It comes once each has been told everything up to now. As in etcd
    /// there is none without watchers, while one starts in the future, or before one that lost its history to a
    /// compaction is cancelled.
    pub fn request_progress(&mut self) {
        if self.progress.len() < PROGRESS_REQUESTS_MAX {
            self.progress.push_back(self.node.durable_revision());
            // At once where it can be, so that it speaks of the moment of the request.
            self.answer_progress();
        }
    }

    /// The revision for headers of what is said about the stream itself.
    pub fn revision(&self) -> Revision {
        self.node.durable_revision()
    }

    /// The next item; `None` when the node stops. May be dropped at any time without losing anything.
    pub async fn next(&mut self) -> Option<WatchItem> {
        loop {
            if self.mailbox.is_closed() {
                return None;
            }
            if let Some(item) = self.out.pop_front() {
                if let WatchItem::Events { events, .. } = &item {
                    self.node.observer.events(events.len());
                }
                return Some(item);
            }
            if self.collect() {
                if self.out.is_empty() {
                    // A long history without a match: let others run.
                    tokio::task::yield_now().await;
                }
                continue;
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

    /// Moves what arrived, or a chunk of history, to `out`. True when there may be more to do at once.
    fn collect(&mut self) -> bool {
        let mut inner = self.mailbox.lock();
        let queue = inner.take();
        if !queue.is_empty() {
            let ids: Vec<Option<i64>> = inner.watchers.iter().map(|w| w.as_ref().map(|w| w.id)).collect();
            drop(inner);
            self.merge(queue, &ids);
            return true;
        }
        let lagging = inner.lagging > 0;
        drop(inner);
        if lagging {
            self.catch_up();
        }
        lagging
    }

    /// Adjacent commits of one watcher become one item.
    fn merge(&mut self, queue: VecDeque<Delivery>, ids: &[Option<i64>]) {
        let mut open: HashMap<u32, (usize, usize)> = HashMap::new();
        let single = queue.len() == 1;
        for delivery in queue {
            let Some(id) = ids.get(delivery.slot as usize).copied().flatten() else { continue };
            let Delivery { slot, commit, events } = delivery;
            let size: usize = events.iter().map(|index| event_size(&commit.events[*index as usize])).sum();
            let shared = events.iter().map(|index| SharedEvent::new(&commit, *index));
            if let Some((place, bytes)) = open.get_mut(&slot)
                && *bytes + size <= ITEM_BYTES
                && let Some(WatchItem::Events { revision, events, .. }) = self.out.get_mut(*place)
            {
                *revision = commit.revision;
                events.extend(shared);
                *bytes += size;
                continue;
            }
            let events = shared.collect();
            self.out.push_back(WatchItem::Events { watch_id: id, revision: commit.revision, events });
            self.sent(id);
            if !single {
                open.insert(slot, (self.out.len() - 1, size));
            }
        }
    }

    fn sent(&mut self, id: i64) {
        if self.notifying > 0
            && let Some(local) = self.watchers.get_mut(&id)
        {
            local.idle = false;
        }
    }

    /// Reads a chunk of history for all lagging watchers together; those that are nearly there rejoin the hub first,
    /// so that nothing can fall between.
    fn catch_up(&mut self) {
        let (behind, to, rejoined) = {
            let hub = self.node.hub.lock();
            let mut inner = self.mailbox.lock();
            if !inner.queue.is_empty() {
                return;
            }
            let to = hub.published;
            let mut behind = Vec::new();
            for (slot, watcher) in inner.watchers.iter().enumerate() {
                let Some(watcher) = watcher.as_ref().filter(|w| w.standing == Standing::Lagging) else { continue };
                behind.push(Behind {
                    slot: slot as u32,
                    id: watcher.id,
                    range: watcher.range.clone(),
                    filters: watcher.filters,
                    from: watcher.next,
                });
            }
            let Some(oldest) = behind.iter().map(|b| b.from).min() else {
                inner.lagging = 0;
                return;
            };
            let rejoined = to.get() - oldest.get() < CHUNK as i64;
            if rejoined {
                for b in &behind {
                    if let Some(watcher) = inner.watcher(b.slot) {
                        watcher.standing = Standing::Live;
                        watcher.next = to.next();
                    }
                }
                inner.lagging = 0;
            }
            (behind, to, rejoined)
        };

        let (lost, behind, commits) = {
            let replica = self.node.replica.read();
            let compacted = replica.compacted();
            let (lost, behind): (Vec<Behind>, Vec<Behind>) = behind.into_iter().partition(|b| b.from < compacted);
            let oldest = behind.iter().map(|b| b.from).min().unwrap_or(to);
            let limit = if rejoined { usize::MAX } else { CHUNK };
            let told = |lost: Behind| {
                // Where nothing was compacted, the present space is still as far back as anything can be told.
                let first = if lost.from == BEFORE_ALL { Revision::first_in(to.space()) } else { compacted };
                (lost, compacted.max(first))
            };
            let lost: Vec<_> = lost.into_iter().map(told).collect();
            (lost, behind, replica.events(oldest, to, limit))
        };
        let events: usize = commits.iter().map(|commit| commit.events.len()).sum();
        // A chunk that is not full went to the end.
        let reached = if rejoined || events < CHUNK { to } else { commits.last().map_or(to, |last| last.revision) };
        for (lost, compacted) in lost {
            self.compacted(&lost, compacted);
        }
        if !rejoined {
            let mut inner = self.mailbox.lock();
            for b in &behind {
                if let Some(watcher) = inner.watcher(b.slot) {
                    watcher.next = watcher.next.max(reached.next());
                }
            }
        }
        self.replay(&behind, commits, to);
    }

    fn compacted(&mut self, lost: &Behind, compact_revision: Revision) {
        let mut hub = self.node.hub.lock();
        let mut inner = self.mailbox.lock();
        let Some(watcher) = inner.watcher(lost.slot) else { return };
        let was = std::mem::replace(&mut watcher.standing, Standing::Dead);
        inner.lagging -= usize::from(was == Standing::Lagging);
        inner.queue.retain(|delivery| delivery.slot != lost.slot);
        let subscription = Subscription { mailbox: Arc::clone(&self.mailbox), slot: lost.slot };
        hub.subscriptions.remove(&lost.range, &subscription);
        drop(inner);
        drop(hub);
        self.out.push_back(WatchItem::Compacted { watch_id: lost.id, compact_revision });
    }

    /// Sends history to the watchers that it concerns. `revision` is the store's.
    fn replay(&mut self, behind: &[Behind], commits: Vec<Commit>, revision: Revision) {
        let mut matcher = Matcher::default();
        for (place, b) in behind.iter().enumerate() {
            matcher.insert(&b.range, place);
        }
        let mut found: Vec<Vec<SharedEvent>> = vec![Vec::new(); behind.len()];
        for commit in commits.into_iter().map(Arc::new) {
            for (index, event) in commit.events.iter().enumerate() {
                matcher.visit(&event.kv.key, &mut |place: &usize| {
                    let b = &behind[*place];
                    if commit.revision >= b.from && b.filters.passes(event) {
                        found[*place].push(SharedEvent::new(&commit, index as u32));
                    }
                });
            }
        }
        for (b, events) in behind.iter().zip(found) {
            if !events.is_empty() {
                self.out.push_back(WatchItem::Events { watch_id: b.id, revision, events });
                self.sent(b.id);
            }
        }
    }

    /// Progress notifications for watchers that were told nothing for an interval.
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
            if due && synced && watcher.standing == Standing::Live && watcher.start <= hub.published {
                self.out.push_back(WatchItem::Progress { watch_id: Some(*id), revision: hub.published });
            }
        }
    }

    /// Answers progress requests if everything has been said; otherwise sees to being woken. True when it has put
    /// something into `out`, or there is something to do first.
    fn answer_progress(&mut self) -> bool {
        let Some(wanted) = self.progress.front().copied() else { return false };
        let mut hub = self.node.hub.lock();
        let inner = self.mailbox.lock();
        if !inner.queue.is_empty() || inner.lagging > 0 {
            return true;
        }
        let known = wanted.max(hub.published);
        let speaks = |watcher: &Watcher| watcher.standing == Standing::Live && watcher.start <= known;
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

/// Whether the event began a life of its key: etcd sends no previous value with it.
pub fn is_create(event: &eddy_crdt::Event) -> bool {
    event.kind == EventKind::Put && event.kv.create_revision == event.kv.mod_revision
}
