//! The executor for the calls of an HTTP/2 connection.
//!
//! hyper hands every call to an executor, which usually spawns a task for it. A write mostly waits: for the committer, and
//! for its turn on the socket. With a task each, a group of writes that becomes durable wakes as many tasks, and each of
//! these wakes its connection. So the task of a connection drives its writes. It is woken once, runs all writes that are
//! answered, and sends their answers with one system call. Other calls get tasks of their own, since a long read would
//! delay the connection's other calls.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use hyper::rt::Executor;
use parking_lot::Mutex;

/// Calls that mostly wait.
const WRITES: [&str; 3] = ["/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/DeleteRange"];

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
struct Inbox {
    /// Whether the call that comes next is a write.
    write: bool,
    begun: Vec<Call>,
}

/// The executor of one connection.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<Mutex<Inbox>>);

impl Calls {
    /// Announces the path of the next call.
    pub(super) fn announce(&self, path: &str) {
        self.0.lock().write = WRITES.contains(&path);
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        let mut inbox = self.0.lock();
        if std::mem::take(&mut inbox.write) {
            // As with a task, a panic ends the call that panics, and no other.
            inbox.begun.push(Box::pin(AssertUnwindSafe(call).catch_unwind().map(drop)));
        } else {
            drop(tokio::spawn(call));
        }
    }
}

/// A connection together with those of its calls that it drives itself.
pub(super) struct Driven<'a, C> {
    connection: Pin<&'a mut C>,
    calls: Calls,
    running: FuturesUnordered<Call>,
}

impl<'a, C> Driven<'a, C> {
    /// Drives `connection`, whose executor is `calls`.
    pub(super) fn new(connection: Pin<&'a mut C>, calls: Calls) -> Self {
        Self { connection, calls, running: FuturesUnordered::new() }
    }

    /// The connection.
    pub(super) fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }
}

impl<C: Future> Future for Driven<'_, C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let this = &mut *self;
        loop {
            // Answered calls run first, so that the connection finds all answers to send.
            while let Poll::Ready(Some(())) = this.running.poll_next_unpin(cx) {}
            if let Poll::Ready(output) = this.connection.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            let begun = std::mem::take(&mut this.calls.0.lock().begun);
            if begun.is_empty() {
                return Poll::Pending;
            }
            this.running.extend(begun);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    /// A connection that begins the given calls at its first poll, and ends when it is told to.
    struct Scripted {
        calls: Calls,
        begin: Vec<(&'static str, Call)>,
        end: oneshot::Receiver<()>,
    }

    impl Future for Scripted {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            for (path, call) in std::mem::take(&mut self.begin) {
                self.calls.announce(path);
                self.calls.execute(call);
            }
            self.end.poll_unpin(cx).map(drop)
        }
    }

    #[tokio::test]
    async fn writes_run_with_their_connection_and_a_panic_ends_one_alone() {
        let (end, ended) = oneshot::channel();
        let (wake, woken) = oneshot::channel::<()>();
        let (spawned, ran) = oneshot::channel();
        let (calls, done) = (Calls::default(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&done);
        let begin: Vec<(&'static str, Call)> = vec![
            (WRITES[0], Box::pin(async { panic!("a call that panics") })),
            (
                WRITES[1],
                Box::pin(async move {
                    woken.await.unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                    end.send(()).unwrap();
                }),
            ),
            ("/etcdserverpb.KV/Range", Box::pin(async move { spawned.send(tokio::task::id()).unwrap() })),
        ];
        let mut connection = std::pin::pin!(Scripted { calls: calls.clone(), begin, end: ended });
        let mut driven = Driven::new(connection.as_mut(), calls);
        assert!(futures::poll!(&mut driven).is_pending());
        // The read has a task of its own and ends although the connection is not polled.
        ran.await.unwrap();
        assert_eq!(driven.running.len(), 1, "the one that panicked is gone, the other waits");
        wake.send(()).unwrap();
        driven.await;
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }
}
