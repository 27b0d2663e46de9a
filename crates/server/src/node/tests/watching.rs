//! Watch streams against a model: whatever a watcher is told must be exactly what happened.

use std::collections::BTreeMap;
use std::time::Duration;

use eddy_crdt::{Event, KeyRange, Op, Revision};
use futures::poll;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::support::*;
use crate::node::hub::Filters;
use crate::node::watch::{WatchItem, WatchRefusal, WatchSpec, WatchStream};
use crate::node::{Handle, start};
use crate::storage::faulty::Disk;

pub(super) fn spec(range: KeyRange, start: Option<i64>) -> WatchSpec {
    WatchSpec { id: None, range, start: start.map(Revision::new), filters: Filters::default(), progress_notify: false }
}

/// What a test remembers of an event: revision, key, value or `None` for a delete.
type Seen = (i64, String, Option<String>);

fn seen(event: &Event) -> Seen {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let value = event.written().map(|kv| text(&kv.value));
    (event.revision().get(), text(event.key()), value)
}

async fn next(stream: &mut WatchStream) -> WatchItem {
    tokio::time::timeout(Duration::from_secs(30), stream.next()).await.unwrap().unwrap()
}

/// Reads until a watcher has been told that revision.
async fn read_to(stream: &mut WatchStream, revision: i64) -> Vec<Seen> {
    let mut all: Vec<Seen> = Vec::new();
    while all.last().is_none_or(|(last, ..)| *last < revision) {
        match next(stream).await {
            WatchItem::Events { events, .. } => all.extend(events.iter().map(|event| seen(event))),
            other => panic!("{other:?}"),
        }
    }
    all
}

/// A random write, and what it must tell.
async fn write(node: &Handle, rng: &mut SmallRng, model: &mut Vec<Seen>, live: &mut BTreeMap<String, ()>, n: usize) {
    let name = format!("k{}", rng.random_range(0..8));
    let value = n.to_string();
    match rng.random_range(0..4) {
        0 => {
            let other = format!("m{}", rng.random_range(0..4));
            let ops = vec![Op::Put(put(&name, &value)), Op::Put(put(&other, &value))];
            let reply = node.txn(txn(ops)).await.unwrap();
            for key in [name, other] {
                live.insert(key.clone(), ());
                model.push((reply.revision.get(), key, Some(value.clone())));
            }
        }
        1 if live.contains_key(&name) => {
            let reply = node.delete(delete(&name)).await.unwrap();
            live.remove(&name);
            model.push((reply.revision.get(), name, None));
        }
        _ => {
            let revision = put_ok(node, &name, &value).await;
            live.insert(name.clone(), ());
            model.push((revision.get(), name, Some(value)));
        }
    }
}

struct Observed {
    id: i64,
    range: KeyRange,
    filters: Filters,
    from: i64,
    got: Vec<Seen>,
    /// Everything up to it must have been said.
    promised: i64,
}

impl Observed {
    fn wants(&self, event: &Seen) -> bool {
        let passes = if event.2.is_some() { !self.filters.no_put } else { !self.filters.no_delete };
        event.0 >= self.from && self.range.contains(event.1.as_bytes()) && passes
    }

    fn check(&self, model: &[Seen], seed: u64) {
        let until = self.got.last().map_or(self.promised, |last| last.0.max(self.promised));
        let expected: Vec<&Seen> = model.iter().filter(|e| self.wants(e) && e.0 <= until).collect();
        assert_eq!(self.got.iter().collect::<Vec<_>>(), expected, "seed {seed}, watcher {}", self.id);
    }
}

fn note(item: WatchItem, watchers: &mut [Observed], model: &[Seen], seed: u64) {
    match item {
        WatchItem::Events { watch_id, events, revision } => {
            let watcher = watchers.iter_mut().find(|w| w.id == watch_id).unwrap();
            watcher.got.extend(events.iter().map(|event| seen(event)));
            assert!(watcher.got.last().unwrap().0 <= revision.get());
            watcher.check(model, seed);
        }
        WatchItem::Progress { revision, watch_id: None } => {
            for watcher in watchers.iter_mut() {
                watcher.promised = watcher.promised.max(revision.get());
                watcher.check(model, seed);
            }
        }
        other => panic!("seed {seed}: {other:?}"),
    }
}

#[tokio::test]
async fn random_watchers_with_random_readers_are_told_exactly_what_happened() {
    for seed in 0..40 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let disk = Disk::new();
        let node = node(&disk);
        let (mut model, mut live) = (Vec::new(), BTreeMap::new());
        let mut streams: Vec<(WatchStream, Vec<Observed>)> = Vec::new();
        for n in 0..400 {
            match rng.random_range(0..10) {
                0 if streams.len() < 4 => streams.push((node.watch_stream(), Vec::new())),
                1 if !streams.is_empty() => {
                    let place = rng.random_range(0..streams.len());
                    let (stream, watchers) = &mut streams[place];
                    let range = match rng.random_range(0..4) {
                        0 => everything(),
                        1 => KeyRange::Span(key("k"), key("l")),
                        2 => KeyRange::From(key("k4")),
                        _ => KeyRange::Key(key(&format!("k{}", rng.random_range(0..8)))),
                    };
                    let revision = node.revision().get();
                    let start = match rng.random_range(0..3) {
                        0 => None,
                        1 => Some(rng.random_range(1..=revision)),
                        _ => Some(revision + rng.random_range(0..5)),
                    };
                    let filters = Filters { no_put: rng.random_bool(0.2), no_delete: rng.random_bool(0.2) };
                    let id = stream.create(WatchSpec { filters, ..spec(range.clone(), start) }).unwrap();
                    let from = start.unwrap_or(revision + 1);
                    watchers.push(Observed { id, range, filters, from, got: vec![], promised: 0 });
                }
                2 if !streams.is_empty() => {
                    let place = rng.random_range(0..streams.len());
                    streams[place].0.request_progress();
                }
                3 | 4 if !streams.is_empty() => {
                    let place = rng.random_range(0..streams.len());
                    let (stream, watchers) = &mut streams[place];
                    for _ in 0..rng.random_range(1..5) {
                        let item = {
                            let mut item = Box::pin(stream.next());
                            poll!(&mut item)
                        };
                        if let std::task::Poll::Ready(Some(item)) = item {
                            note(item, watchers, &model, seed);
                        }
                    }
                }
                5 if !streams.is_empty() => {
                    let place = rng.random_range(0..streams.len());
                    let (stream, watchers) = &mut streams[place];
                    if let Some(watcher) = watchers.pop() {
                        assert!(stream.cancel(watcher.id));
                    }
                }
                _ => write(&node, &mut rng, &mut model, &mut live, n).await,
            }
        }
        // In the end everybody is told everything; futures are in reach.
        for n in 0..10 {
            write(&node, &mut rng, &mut model, &mut live, n).await;
        }
        let last = node.revision().get();
        for (stream, watchers) in &mut streams {
            if watchers.is_empty() {
                continue;
            }
            stream.request_progress();
            while watchers.iter().any(|w| w.promised < last) {
                note(next(stream).await, watchers, &model, seed);
            }
        }
        node.shutdown();
    }
}

#[tokio::test]
async fn a_stream_that_is_not_read_lags_in_bounded_memory_and_misses_nothing() {
    let disk = Disk::new();
    let node = node(&disk);
    let mut slow = node.watch_stream();
    slow.create(spec(everything(), None)).unwrap();
    let writer = node.clone();
    let total = 12_000;
    let results = futures::future::join_all((0..total).map(|n| {
        let writer = writer.clone();
        async move { writer.put(put(&format!("{}", n % 7), &n.to_string())).await }
    }))
    .await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(node.watch_counts().lagging, 1);
    // A writer goes on while the stream catches up and rejoins.
    let more = tokio::spawn(async move {
        for n in 0..2000 {
            put_ok(&writer, "more", &n.to_string()).await;
        }
    });
    let all = read_to(&mut slow, total as i64 + 2001).await;
    let revisions: Vec<i64> = all.iter().map(|(revision, ..)| *revision).collect();
    assert_eq!(revisions, (2..=total as i64 + 2001).collect::<Vec<i64>>());
    more.await.unwrap();
    assert_eq!(node.watch_counts().lagging, 0);
    node.shutdown();
}

#[tokio::test]
async fn large_events_fill_a_mailbox_by_bytes() {
    let disk = Disk::new();
    let node = node(&disk);
    let mut slow = node.watch_stream();
    slow.create(spec(everything(), None)).unwrap();
    let large = "x".repeat(1 << 20);
    for _ in 0..10 {
        put_ok(&node, "large", &large).await;
    }
    assert_eq!(node.watch_counts().lagging, 1);
    assert_eq!(read_to(&mut slow, 11).await.len(), 10);
    node.shutdown();
}

#[tokio::test]
async fn events_leave_only_once_durable() {
    let disk = Disk::new();
    let (node, gate) = gated(&disk);
    let mut stream = node.watch_stream();
    stream.create(spec(everything(), None)).unwrap();
    gate.close();
    let mut write = Box::pin(node.put(put("a", "1")));
    assert!(poll!(&mut write).is_pending());
    gate.wait_for_append();
    stream.create(spec(everything(), Some(1))).unwrap();
    stream.request_progress();
    // All that may be said is that nothing happened up to the durable revision.
    let item = next(&mut stream).await;
    assert!(matches!(item, WatchItem::Progress { revision: Revision::FIRST, .. }), "{item:?}");
    assert!(poll!(Box::pin(stream.next())).is_pending());
    gate.open();
    write.await.unwrap();
    assert!(matches!(next(&mut stream).await, WatchItem::Events { .. }));
    node.shutdown();
}

#[tokio::test]
async fn a_watch_from_now_is_not_told_what_was_acknowledged_before() {
    let disk = Disk::new();
    let node = node(&disk);
    for n in 0..200 {
        let before = put_ok(&node, "a", &n.to_string()).await;
        let mut stream = node.watch_stream();
        stream.create(spec(everything(), None)).unwrap();
        let after = put_ok(&node, "a", "next").await;
        let WatchItem::Events { events, .. } = next(&mut stream).await else { panic!("no events") };
        assert_eq!(events[0].revision(), after);
        assert!(after > before);
    }
    node.shutdown();
}

#[tokio::test]
async fn a_compaction_that_overtakes_a_watcher_cancels_it() {
    let disk = Disk::new();
    let node = node(&disk);
    for n in 0..20 {
        put_ok(&node, "a", &n.to_string()).await;
    }
    let mut stream = node.watch_stream();
    let lost = stream.create(spec(everything(), Some(5))).unwrap();
    let kept = stream.create(spec(everything(), Some(10))).unwrap();
    node.compact(10, true).await.unwrap();
    let mut items = vec![next(&mut stream).await, next(&mut stream).await];
    items.sort_by_key(|item| matches!(item, WatchItem::Events { .. }));
    assert!(matches!(
        items[0],
        WatchItem::Compacted { watch_id, compact_revision } if watch_id == lost && compact_revision.get() == 10
    ));
    let WatchItem::Events { watch_id, events, .. } = &items[1] else { panic!("{items:?}") };
    assert_eq!((*watch_id, events.len()), (kept, 12), "the compacted revision itself is still there");
    // The id stays taken until the client cancels it, and the rest of the stream goes on.
    assert_eq!(stream.create(WatchSpec { id: Some(lost), ..spec(everything(), None) }), Err(WatchRefusal::DuplicateId));
    stream.request_progress();
    assert!(poll!(Box::pin(stream.next())).is_pending(), "no progress is said for a stream with a lost watcher");
    assert!(stream.cancel(lost));
    assert!(!stream.cancel(lost));
    stream.request_progress();
    assert!(matches!(next(&mut stream).await, WatchItem::Progress { watch_id: None, .. }));
    node.shutdown();
}

#[tokio::test]
async fn ids_are_given_as_etcd_gives_them() {
    let disk = Disk::new();
    let node = node(&disk);
    let mut stream = node.watch_stream();
    let with = |id| WatchSpec { id, ..spec(everything(), None) };
    assert_eq!(stream.create(with(Some(1))), Ok(1));
    assert_eq!(stream.create(with(None)), Ok(0));
    assert_eq!(stream.create(with(None)), Ok(2));
    assert_eq!(stream.create(with(Some(2))), Err(WatchRefusal::DuplicateId));
    let wrong = spec(KeyRange::Span(key("b"), key("a")), None);
    assert_eq!(stream.create(wrong), Err(WatchRefusal::EmptyRange));
    assert_eq!(node.watch_counts().watchers, 3);
    drop(stream);
    assert_eq!(node.watch_counts(), crate::node::hub::WatchCounts::default());
    node.shutdown();
}

#[tokio::test]
async fn progress_is_not_said_while_a_watcher_starts_in_the_future() {
    let disk = Disk::new();
    let node = node(&disk);
    let mut stream = node.watch_stream();
    stream.create(spec(KeyRange::Key(key("other")), Some(4))).unwrap();
    stream.request_progress();
    for value in ["1", "2", "3"] {
        assert!(poll!(Box::pin(stream.next())).is_pending());
        put_ok(&node, "a", value).await;
    }
    assert!(poll!(Box::pin(stream.next())).is_pending(), "an old request is not answered later");
    stream.request_progress();
    let item = next(&mut stream).await;
    assert!(matches!(item, WatchItem::Progress { watch_id: None, revision } if revision.get() == 4), "{item:?}");
    node.shutdown();
}

#[tokio::test]
async fn idle_watchers_are_told_so_after_the_interval_and_busy_ones_are_not() {
    let disk = Disk::new();
    let mut options = options();
    options.progress_interval = Duration::from_secs(1);
    let node = start(Box::new(disk.open()), options).unwrap();
    put_ok(&node, "a", "1").await;
    let since = std::time::Instant::now();
    let mut stream = node.watch_stream();
    let notified = |name| WatchSpec { progress_notify: true, ..spec(KeyRange::Key(key(name)), None) };
    let idle = stream.create(notified("idle")).unwrap();
    let busy = stream.create(notified("busy")).unwrap();
    stream.create(spec(KeyRange::Key(key("silent")), None)).unwrap();
    put_ok(&node, "busy", "1").await;
    assert!(matches!(next(&mut stream).await, WatchItem::Events { watch_id, .. } if watch_id == busy));
    let item = next(&mut stream).await;
    assert!(matches!(item, WatchItem::Progress { watch_id: Some(id), revision } if id == idle && revision.get() == 3));
    assert!(since.elapsed() >= Duration::from_secs(1));
    // In the next interval both are idle; the third never asked.
    let mut told = Vec::new();
    for _ in 0..4 {
        let WatchItem::Progress { watch_id: Some(id), .. } = next(&mut stream).await else { panic!("no progress") };
        told.push(id);
    }
    told.sort_unstable();
    assert_eq!(told, [idle, idle, busy, busy]);
    node.shutdown();
}
