//! Two servers side by side: runs sequences on both and finds the first step at which they differ.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::Code;

use crate::{
    op::{self, Op, Rev},
    seen::Seen,
    session::Session,
    support::Server,
};

/// Watchers that still differ after this time differ for good.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(4);
/// How long an orderly stop may take.
const STOPPED_WITHIN: Duration = Duration::from_secs(30);
/// How long a crash takes from the broken connection to the end of the process.
const CRASHED_WITHIN: Duration = Duration::from_secs(1);
/// Compactions of the few keys of a sequence are through by then.
const COMPACTED_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The two binaries, and how they are started.
#[derive(Clone)]
pub struct Binaries {
    pub reference: PathBuf,
    pub subject: PathBuf,
    pub flags: Vec<&'static str>,
    /// Where data dirs are made.
    pub scratch: PathBuf,
}

/// Falsifies what the subject answered, to see that it is noticed.
pub type Sabotage = fn(&Op, &mut Seen);

/// The first step at which the servers differ.
#[derive(Debug)]
pub struct Difference {
    pub step: usize,
    pub reference: Seen,
    pub subject: Seen,
}

pub struct Pair {
    binaries: Binaries,
    reference: Side,
    subject: Side,
    sabotage: Option<Sabotage>,
    /// A watcher that starts in the past was made since the watchers were last compared.
    behind: bool,
    used: bool,
}

struct Side {
    server: Server,
    session: Session,
    _dir: tempfile::TempDir,
}

impl Side {
    async fn start(binary: &Path, binaries: &Binaries) -> Result<Side> {
        let dir = tempfile::Builder::new().prefix("eddy-diff-").tempdir_in(&binaries.scratch)?;
        let server = Server::start(binary, &dir.path().join("data"), &binaries.flags).await?;
        let mut session = Session::new(server.connect().await?);
        session.storage_version_known().await?;
        Ok(Side { server, session, _dir: dir })
    }
}

impl Side {
    async fn restart(&mut self, kill: bool) -> Result<()> {
        self.session.streams.clear();
        if kill {
            self.server.kill()?;
        } else {
            self.server.signal("TERM")?;
            self.server.ended(STOPPED_WITHIN).await?;
        }
        self.server.restart().await?;
        let session = std::mem::replace(&mut self.session, Session::new(self.server.connect().await?));
        self.session = session.resume(self.server.connect().await?, kill).await?;
        Ok(())
    }
}

impl Pair {
    /// Starts both servers on empty data dirs.
    ///
    /// # Errors
    /// One of them does not start.
    pub async fn start(binaries: &Binaries) -> Result<Pair> {
        let (reference, subject) =
            tokio::join!(Side::start(&binaries.reference, binaries), Side::start(&binaries.subject, binaries));
        Ok(Pair {
            reference: reference.context("the reference")?,
            subject: subject.context("the subject")?,
            binaries: binaries.clone(),
            sabotage: None,
            behind: false,
            used: false,
        })
    }

    pub fn sabotage(&mut self, how: Option<Sabotage>) {
        self.sabotage = how;
    }

    /// Empties both servers, or starts them anew when one of them does not take it.
    ///
    /// # Errors
    /// They do not start.
    pub async fn reset(&mut self) -> Result<()> {
        self.behind = false;
        if !std::mem::replace(&mut self.used, true) {
            return Ok(());
        }
        if let Err(e) = self.clear().await {
            println!("starting both servers anew, since they could not be cleared: {e:#}");
            println!("end of the subject's log:\n{}", self.subject.server.log_tail());
            let sabotage = self.sabotage;
            *self = Pair::start(&self.binaries).await?;
            self.sabotage = sabotage;
            self.used = true;
        }
        Ok(())
    }

    async fn clear(&mut self) -> Result<()> {
        let (a, b) = (&mut self.reference, &mut self.subject);
        a.session = a.session.renewed(a.server.connect().await?);
        b.session = b.session.renewed(b.server.connect().await?);
        let (x, y) = tokio::join!(a.session.clear(), b.session.clear());
        x.context("the reference")?;
        y.context("the subject")?;
        let revision = a.session.now().max(b.session.now()) + 2;
        let (x, y) = tokio::join!(a.session.align(revision), b.session.align(revision));
        x.context("the reference")?;
        y.context("the subject")
    }

    /// Runs the steps on both servers until they differ.
    pub async fn run(&mut self, ops: &[Op]) -> Option<Difference> {
        for (step, op) in ops.iter().enumerate() {
            // These steps look at, or take away, what watchers get: the same for both only when all have caught up.
            let looks = matches!(
                op,
                Op::Settle | Op::Progress { .. } | Op::Compact(_) | Op::Cancel(_) | Op::CloseStream { .. }
            );
            if looks && let Some((reference, subject)) = self.settle().await {
                return Some(Difference { step, reference, subject });
            }
            if let Op::Restart { kill } = op {
                let (x, y) = tokio::join!(self.reference.restart(*kill), self.subject.restart(*kill));
                if x.is_err() || y.is_err() {
                    let seen = |r: Result<()>| r.map_or_else(|e| Seen::NoStart(format!("{e:#}")), |()| Seen::Done);
                    return Some(Difference { step, reference: seen(x), subject: seen(y) });
                }
                self.behind = false;
                continue;
            }
            let (reference, mut subject) = tokio::join!(self.reference.session.run(op), self.subject.session.run(op));
            if let Some(falsify) = self.sabotage {
                falsify(op, &mut subject);
            }
            if !reference.agrees_with(&subject) {
                if matches!(op, Op::HashKv(_)) && self.hashes_agree_soon(op).await {
                    continue;
                }
                if self.reference_crashed(&reference).await {
                    println!("etcd crashed at this, eddy answered:\n{}", op::print(&ops[..=step]));
                    return None;
                }
                return Some(Difference { step, reference, subject });
            }
            if let Op::Watch(op::Watch { start, .. }) = op {
                self.behind |= *start != Rev::Abs(0);
            }
        }
        None
    }

    /// Some transactions make etcd 3.7.3 panic: there is nothing to compare with then. (One that deletes a key and then
    /// puts it with ignore_value or ignore_lease is checked before it is applied, and fails only then.)
    async fn reference_crashed(&mut self, seen: &Seen) -> bool {
        let gone = matches!(seen, Seen::Error(Code::Unknown | Code::Unavailable | Code::Cancelled, _));
        gone && self.reference.server.ended(CRASHED_WITHIN).await.is_ok()
    }

    /// etcd's hash of a store without keys depends on whether its last compaction is through.
    async fn hashes_agree_soon(&mut self, op: &Op) -> bool {
        let deadline = Instant::now() + COMPACTED_WITHIN;
        while Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
            let (reference, subject) = tokio::join!(self.reference.session.run(op), self.subject.session.run(op));
            if reference.agrees_with(&subject) {
                return true;
            }
        }
        false
    }

    /// Waits until all watchers have caught up, and compares what they got.
    async fn settle(&mut self) -> Option<(Seen, Seen)> {
        let (a, b) = (&mut self.reference.session, &mut self.subject.session);
        if a.streams.is_empty() && b.streams.is_empty() {
            return None;
        }
        let deadline = Instant::now() + CAUGHT_UP_WITHIN;
        let sentinel = tokio::time::timeout(CAUGHT_UP_WITHIN, async { tokio::join!(a.sentinel(), b.sentinel()) }).await;
        match sentinel {
            Ok((Ok(_), Ok(_))) => {}
            Ok((x, y)) => {
                let seen = |r: Result<bool, tonic::Status>| {
                    r.map_or_else(|s| Seen::Error(s.code(), s.message().into()), |_| Seen::Done)
                };
                return Some((seen(x), seen(y)));
            }
            Err(_) => {} // the comparison below says who lacks what
        }
        if self.behind {
            for server in [&self.reference.server, &self.subject.server] {
                while Instant::now() < deadline && watchers_behind(&server.url()).await.is_some_and(|n| n > 0) {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
            self.behind = false;
        }
        loop {
            let [x, y] = [&self.reference.session, &self.subject.session].map(|session| {
                let snapshots = session.streams.values().map(|s| s.snapshot(|id| session.symbol(id)));
                Seen::Streams(snapshots.collect())
            });
            if x == y {
                return None;
            }
            if Instant::now() > deadline {
                return Some((x, y));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// How many watchers are still being caught up from history, where the server has etcd's metric for it.
async fn watchers_behind(url: &str) -> Option<u64> {
    let mut socket = TcpStream::connect(url.strip_prefix("http://")?).await.ok()?;
    socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.ok()?;
    let mut page = String::new();
    socket.read_to_string(&mut page).await.ok()?;
    let line = page.lines().find(|l| l.starts_with("etcd_debugging_mvcc_slow_watcher_total "))?;
    line.split(' ').nth(1)?.parse().ok()
}
