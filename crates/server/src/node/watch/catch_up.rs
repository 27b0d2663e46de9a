//! How a stream takes what arrived for its watchers, and how those that lag catch up from history.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use eddy_crdt::{Commit, EventsAsked, Key, KeyRange, PastValues, Revision};

use super::super::hub::{Delivery, Filters, SharedEvent, Standing, Subscription, event_size};
use super::super::matcher::Matcher;
use super::{Collected, WatchItem, WatchStream};

/// Adjacent commits of one watcher become one item up to about this many bytes.
const ITEM_BYTES: usize = 256 << 10;

/// How many events are looked at under one read lock. Watchers with fewer revisions to go rejoin the hub.
const CHUNK: usize = 512;

/// A lagging watcher.
struct Behind {
    slot: u32,
    id: i64,
    range: KeyRange,
    filters: Filters,
    from: Revision,
}

/// All lagging watchers of a stream.
struct Lagging {
    behind: Vec<Behind>,
    /// How far history reaches for them.
    to: Revision,
    /// Whether the hub serves them again, from the revision after `to` on.
    rejoined: bool,
}

impl WatchStream {
    /// Moves what arrived, or a chunk of history, to `out`.
    pub(super) fn collect(&mut self) -> Collected {
        let mut inner = self.mailbox.lock();
        let queue = inner.take();
        if !queue.is_empty() {
            let ids: Vec<Option<i64>> = inner.watchers.iter().map(|w| w.as_ref().map(|w| w.id)).collect();
            drop(inner);
            self.merge(queue, &ids);
            return Collected::More;
        }
        let lagging = inner.lagging > 0;
        drop(inner);
        if lagging { self.catch_up() } else { Collected::Nothing }
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

    /// Reads a chunk of history for all lagging watchers together. Watchers that are nearly there rejoin the hub first, so
    /// that nothing can fall between.
    fn catch_up(&mut self) -> Collected {
        let Some(Lagging { behind, to, rejoined }) = self.lagging() else { return Collected::More };
        let mut matcher = Matcher::default();
        for (place, b) in behind.iter().enumerate() {
            matcher.insert(&b.range, place);
        }
        let concerns = |key: &Key| {
            let mut any = false;
            matcher.visit(key, &mut |_| any = true);
            any
        };
        let (compacted, commits, reached, got_on) = {
            let replica = self.node.replica.read();
            let compacted = replica.compacted();
            let from = behind.iter().map(|b| b.from).filter(|from| Some(*from) >= compacted).min().unwrap_or(to.next());
            let limit = if rejoined { usize::MAX } else { CHUNK };
            let (commits, reached) = replica.events(&EventsAsked { from, to, limit, concerns: &concerns }, &self.past);
            (compacted, commits, reached, reached >= from)
        };
        for lost in behind.iter().filter(|b| Some(b.from) < compacted) {
            self.compacted(lost, compacted.unwrap_or(lost.from));
        }
        let kept = || behind.iter().filter(|b| Some(b.from) >= compacted);
        if rejoined && reached < to {
            self.leave_again(kept(), reached);
        } else if !rejoined {
            let mut inner = self.mailbox.lock();
            for b in kept() {
                if let Some(watcher) = inner.watcher(b.slot) {
                    watcher.next = watcher.next.max(reached.next());
                }
            }
        }
        // Clients hear of a write a little before the hub does.
        let revision = to.max(self.node.durable_revision());
        self.replay(&behind, &matcher, compacted, commits, revision);
        let lacking = self.past.missing();
        if got_on || lacking.is_empty() {
            // What was read back is told now. What comes next is asked for anew, so that it does not add up.
            self.past = PastValues::default();
            return Collected::More;
        }
        Collected::Lacking(lacking)
    }

    /// Makes watchers lag again that were made live, behind a revision: what they were to be told at once is not all in memory.
    /// What came for them meanwhile they read from history.
    fn leave_again<'a>(&self, behind: impl Iterator<Item = &'a Behind>, reached: Revision) {
        let mut inner = self.mailbox.lock();
        for b in behind {
            if let Some(watcher) = inner.watcher(b.slot) {
                // It may lag already: more came than its mailbox holds.
                let was = std::mem::replace(&mut watcher.standing, Standing::Lagging);
                watcher.next = b.from.max(reached.next());
                inner.lagging += usize::from(was != Standing::Lagging);
                inner.queue.retain(|delivery| delivery.slot != b.slot);
            }
        }
    }

    /// The lagging watchers, unless something arrived meanwhile or there are none. Makes all of them live again when none has
    /// more than a chunk of revisions to go.
    fn lagging(&self) -> Option<Lagging> {
        let hub = self.node.hub.lock();
        let mut inner = self.mailbox.lock();
        if !inner.queue.is_empty() {
            return None;
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
            return None;
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
        Some(Lagging { behind, to, rejoined })
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

    /// Sends history to the watchers that it concerns. `revision` is the store's revision.
    fn replay(
        &mut self,
        behind: &[Behind],
        matcher: &Matcher<usize>,
        compacted: Option<Revision>,
        commits: Vec<Commit>,
        revision: Revision,
    ) {
        let mut found: Vec<Vec<SharedEvent>> = vec![Vec::new(); behind.len()];
        for commit in commits.into_iter().map(Arc::new) {
            for (index, event) in commit.events.iter().enumerate() {
                matcher.visit(event.key(), &mut |place: &usize| {
                    let b = &behind[*place];
                    let is_kept = Some(b.from) >= compacted && commit.revision >= b.from;
                    if is_kept && b.filters.passes(event) {
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
}
