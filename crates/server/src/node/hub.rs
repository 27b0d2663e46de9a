//! The watch fan-out: hands durable commits to the watchers they concern, and never waits for any of them.
//!
//! Every gRPC watch stream has a [`Mailbox`], bounded in items and bytes. A watcher whose event finds the mailbox full
//! becomes *lagging* at exactly that revision, and the hub pushes no more events to it. When the stream has read its
//! mailbox, it catches the watcher up from the replica's history (see [`super::watch`]). Then it makes the watcher live
//! again under the hub's lock, at an exact revision. So there is no gap, and no event comes twice.
//!
//! Locks are taken in this order: hub, mailbox. Neither is held while the replica's lock is taken.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use eddy_crdt::{Commit, Event, EventKind, KeyRange, Revision};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::matcher::Matcher;

/// Most deliveries that wait in one stream's mailbox.
const MAILBOX_ITEMS_MAX: usize = 4096;

/// Most bytes of keys and values that wait in one stream's mailbox, unless a single delivery is larger.
const MAILBOX_BYTES_MAX: usize = 4 << 20;

/// One event of a commit that several watchers share.
#[derive(Clone, Debug)]
pub struct SharedEvent {
    commit: Arc<Commit>,
    index: u32,
}

impl SharedEvent {
    pub(crate) fn new(commit: &Arc<Commit>, index: u32) -> Self {
        Self { commit: Arc::clone(commit), index }
    }
}

impl std::ops::Deref for SharedEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.commit.events[self.index as usize]
    }
}

/// A rough size of an event, bytes: the memory that it keeps alive.
pub(crate) fn event_size(event: &Event) -> usize {
    let prev = event.prev.as_ref().map_or(0, |prev| prev.value.len());
    event.key().len() + event.written().map_or(0, |kv| kv.value.len()) + prev + 64
}

/// Which events a watcher does not want.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filters {
    /// Leave puts out.
    pub no_put: bool,
    /// Leave deletes out.
    pub no_delete: bool,
}

impl Filters {
    pub(crate) fn passes(self, event: &Event) -> bool {
        match &event.kind {
            EventKind::Put(_) => !self.no_put,
            EventKind::Delete { .. } => !self.no_delete,
        }
    }
}

/// Whether the hub pushes events to a watcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It is pushed what is published, from revision `next` on.
    Live,
    /// Its stream catches it up from history, from revision `next` on.
    Lagging,
    /// A compaction cancelled it. Its id stays taken until the client cancels it.
    Dead,
}

#[derive(Debug)]
pub(crate) struct Watcher {
    pub(crate) id: i64,
    pub(crate) range: KeyRange,
    pub(crate) filters: Filters,
    /// The revision the client asked for; `None` for "from now".
    pub(crate) start: Option<Revision>,
    pub(crate) next: Revision,
    pub(crate) standing: Standing,
}

/// The events of one commit for one watcher.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) slot: u32,
    pub(crate) commit: Arc<Commit>,
    pub(crate) events: SmallVec<[u32; 2]>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) watchers: Vec<Option<Watcher>>,
    pub(crate) queue: VecDeque<Delivery>,
    bytes: usize,
    pub(crate) lagging: usize,
}

impl Inner {
    /// Takes all deliveries that wait.
    pub(crate) fn take(&mut self) -> VecDeque<Delivery> {
        self.bytes = 0;
        std::mem::take(&mut self.queue)
    }

    pub(crate) fn watcher(&mut self, slot: u32) -> Option<&mut Watcher> {
        self.watchers.get_mut(slot as usize)?.as_mut()
    }
}

/// The deliveries from the hub to one stream.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    inner: Mutex<Inner>,
    pub(crate) arrived: Notify,
    closed: AtomicBool,
}

impl Mailbox {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn deliver(&self, slot: u32, commit: &Arc<Commit>, mut events: SmallVec<[u32; 2]>) {
        let mut inner = self.inner.lock();
        let (waiting, bytes) = (inner.queue.len(), inner.bytes);
        let Some(watcher) = inner.watcher(slot) else { return };
        if watcher.standing != Standing::Live || commit.revision < watcher.next {
            return;
        }
        let filters = watcher.filters;
        events.retain(|index| filters.passes(&commit.events[*index as usize]));
        if events.is_empty() {
            return;
        }
        let size: usize = events.iter().map(|index| event_size(&commit.events[*index as usize])).sum();
        if waiting >= MAILBOX_ITEMS_MAX || (waiting > 0 && bytes + size > MAILBOX_BYTES_MAX) {
            // The stream needs no wake-up: its mailbox holds something already.
            watcher.standing = Standing::Lagging;
            watcher.next = commit.revision;
            inner.lagging += 1;
            return;
        }
        watcher.next = commit.revision.next();
        inner.bytes += size;
        inner.queue.push_back(Delivery { slot, commit: Arc::clone(commit), events });
        drop(inner);
        if waiting == 0 {
            self.arrived.notify_one();
        }
    }
}

/// A watcher as the hub knows it.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) slot: u32,
}

impl Subscription {
    fn order(&self) -> (usize, u32) {
        (Arc::as_ptr(&self.mailbox) as usize, self.slot)
    }
}

impl PartialEq for Subscription {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

#[derive(Debug)]
pub(crate) struct State {
    /// All commits up to this revision were handed to the mailboxes.
    pub(crate) published: Revision,
    pub(crate) subscriptions: Matcher<Subscription>,
    /// Streams that want to be woken when a revision is published.
    awaiting: BTreeMap<Revision, Vec<Arc<Mailbox>>>,
    streams: HashMap<usize, Arc<Mailbox>>,
    closed: bool,
}

/// How many watchers and streams there are, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WatchCounts {
    /// Open watch streams.
    pub streams: i64,
    /// Watchers on them.
    pub watchers: i64,
    /// Watchers that are being caught up from history.
    pub lagging: i64,
    /// Events that wait to be sent.
    pub pending: i64,
}

/// The fan-out; see the module.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    pub(crate) watchers: AtomicI64,
}

impl Hub {
    /// A hub for which all commits up to this revision are history.
    pub(crate) fn new(published: Revision) -> Self {
        let state = State {
            published,
            subscriptions: Matcher::default(),
            awaiting: BTreeMap::new(),
            streams: HashMap::new(),
            closed: false,
        };
        Self { state: Mutex::new(state), watchers: AtomicI64::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Hands commits on, in order, and notes that all commits up to `revision` are durable.
    pub(crate) fn publish(&self, commits: Vec<Commit>, revision: Revision) {
        let mut state = self.state.lock();
        if !state.subscriptions.is_empty() {
            for commit in commits {
                state.deliver(&Arc::new(commit));
            }
        }
        state.published = state.published.max(revision);
        while let Some(entry) = state.awaiting.first_entry() {
            if *entry.key() > revision {
                break;
            }
            entry.remove().iter().for_each(|mailbox| mailbox.arrived.notify_one());
        }
    }

    /// Notes that the replica moved to another revision space. Every watcher becomes lagging, and its stream finds that the
    /// history it would go on from is compacted.
    pub(crate) fn leap(&self) {
        let state = self.state.lock();
        for mailbox in state.streams.values() {
            let mut inner = mailbox.lock();
            let mut moved = 0;
            for watcher in inner.watchers.iter_mut().flatten() {
                if watcher.standing == Standing::Live {
                    watcher.standing = Standing::Lagging;
                    moved += 1;
                }
            }
            inner.lagging += moved;
            drop(inner);
            mailbox.arrived.notify_one();
        }
    }

    /// Opens a stream's mailbox.
    pub(crate) fn open(&self) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::default());
        let mut state = self.state.lock();
        mailbox.closed.store(state.closed, Ordering::Release);
        state.streams.insert(Arc::as_ptr(&mailbox) as usize, Arc::clone(&mailbox));
        mailbox
    }

    /// Forgets a stream and all its watchers.
    pub(crate) fn forget(&self, mailbox: &Arc<Mailbox>) {
        let mut state = self.state.lock();
        state.streams.remove(&(Arc::as_ptr(mailbox) as usize));
        let mut inner = mailbox.lock();
        for (slot, watcher) in inner.watchers.drain(..).enumerate() {
            let Some(watcher) = watcher else { continue };
            self.watchers.fetch_sub(1, Ordering::Relaxed);
            if watcher.standing != Standing::Dead {
                let subscription = Subscription { mailbox: Arc::clone(mailbox), slot: slot as u32 };
                state.subscriptions.remove(&watcher.range, &subscription);
            }
        }
        inner.take();
    }

    /// Ends all streams, and those that are opened later.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for mailbox in state.streams.values() {
            mailbox.closed.store(true, Ordering::Release);
            mailbox.arrived.notify_one();
        }
    }

    pub(crate) fn counts(&self) -> WatchCounts {
        let state = self.state.lock();
        let (mut lagging, mut pending) = (0, 0);
        for mailbox in state.streams.values() {
            let inner = mailbox.lock();
            lagging += inner.lagging as i64;
            pending += inner.queue.iter().map(|delivery| delivery.events.len() as i64).sum::<i64>();
        }
        let watchers = self.watchers.load(Ordering::Relaxed);
        WatchCounts { streams: state.streams.len() as i64, watchers, lagging, pending }
    }
}

impl State {
    /// Has the stream woken when that revision is published.
    pub(crate) fn wake_at(&mut self, revision: Revision, mailbox: &Arc<Mailbox>) {
        let awaiting = self.awaiting.entry(revision).or_default();
        if !awaiting.iter().any(|other| Arc::ptr_eq(other, mailbox)) {
            awaiting.push(Arc::clone(mailbox));
        }
    }

    fn deliver(&self, commit: &Arc<Commit>) {
        if let [event] = &commit.events[..] {
            self.subscriptions.visit(event.key(), &mut |subscription| {
                subscription.mailbox.deliver(subscription.slot, commit, SmallVec::from_slice(&[0]));
            });
            return;
        }
        // A watcher must get its events of one commit at once, or its stream could send only half of them.
        let mut matches: Vec<(&Subscription, u32)> = Vec::new();
        for (index, event) in commit.events.iter().enumerate() {
            self.subscriptions.visit(event.key(), &mut |subscription| matches.push((subscription, index as u32)));
        }
        matches.sort_by_key(|(subscription, index)| (subscription.order(), *index));
        for group in matches.chunk_by(|(a, _), (b, _)| a == b) {
            let (subscription, _) = group[0];
            let events = group.iter().map(|(_, index)| *index).collect();
            subscription.mailbox.deliver(subscription.slot, commit, events);
        }
    }
}
