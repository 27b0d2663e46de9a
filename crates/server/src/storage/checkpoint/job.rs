//! Building and cleaning up in the background.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::super::error::StorageError;
use super::{Build, Built, Clean, Failure};

/// How many bytes are copied at once. sled writes the last leaf of each of these again.
pub(super) const STEP_BYTES: usize = 1 << 20;

/// After so much work there is a rest.
const WORK_MIN: Duration = Duration::from_millis(1);

/// A rest is at most so long.
const REST_MAX: Duration = Duration::from_millis(200);

/// How much lower the thread's priority is than that of all others: it gets a tenth of a core that they would have for themselves.
const NICE: i32 = 10;

/// How the work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// In a thread that rests as long as it works, so that the log has the disk to itself half of the time, and that gives way to
    /// others on a busy machine.
    Background,
    /// In a thread that does not rest: somebody waits.
    Hurry,
    /// One small step, in bytes, with each look at it: for tests.
    #[cfg_attr(not(test), expect(dead_code, reason = "the thread's steps, without the thread"))]
    Steps(usize),
}

/// What is to be done.
pub enum Work {
    Build(Box<Build>),
    Clean(Clean),
}

/// What was done.
pub enum Done {
    Built(Built),
    Cleaned,
}

type Outcome = Result<Done, Failure>;

/// Work on its way.
pub struct Job {
    stop: Arc<Stop>,
    how: How,
}

enum How {
    Steps(Work, usize),
    Thread(JoinHandle<Outcome>),
    Over,
}

#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    told: Condvar,
}

impl Stop {
    fn is_set(&self) -> bool {
        *self.stopped.lock()
    }

    fn set(&self) {
        *self.stopped.lock() = true;
        self.told.notify_all();
    }

    fn rest(&self, time: Duration) {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.told.wait_for(&mut stopped, time);
        }
    }
}

fn step(work: Work, bytes: usize, stopped: &dyn Fn() -> bool) -> Result<Outcome, Work> {
    match work {
        Work::Clean(clean) => {
            clean.run();
            Ok(Ok(Done::Cleaned))
        }
        Work::Build(mut build) => match build.step(bytes, stopped) {
            Ok(None) => Err(Work::Build(build)),
            Ok(Some(built)) => Ok(Ok(Done::Built(built))),
            Err(failure) => Ok(Err(failure)),
        },
    }
}

/// Rests as long as it worked, whenever it is asked.
fn rest(stop: &Stop, since: &Cell<Instant>) {
    let worked = since.get().elapsed();
    if worked >= WORK_MIN {
        stop.rest(worked.min(REST_MAX));
        since.set(Instant::now());
    }
}

fn run(mut work: Work, stop: &Stop, rests: bool) -> Outcome {
    if rests && let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "the thread that builds checkpoints has the priority of all others");
    }
    let since = Cell::new(Instant::now());
    // It is asked often, also while sled's files are read.
    let stopped = || {
        if rests {
            rest(stop, &since);
        }
        stop.is_set()
    };
    loop {
        match step(work, STEP_BYTES, &stopped) {
            Ok(outcome) => return outcome,
            Err(more) => work = more,
        }
    }
}

impl Job {
    /// Starts the work.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(work: Work, pace: Pace) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let how = match pace {
            Pace::Steps(bytes) => How::Steps(work, bytes),
            Pace::Background | Pace::Hurry => {
                let stop = Arc::clone(&stop);
                let thread = std::thread::Builder::new().name("checkpoint".to_owned());
                How::Thread(thread.spawn(move || run(work, &stop, pace == Pace::Background))?)
            }
        };
        Ok(Self { stop, how })
    }

    /// What came of it, if it has ended.
    pub fn poll(&mut self) -> Option<Outcome> {
        match std::mem::replace(&mut self.how, How::Over) {
            How::Steps(work, bytes) => match step(work, bytes, &|| self.stop.is_set()) {
                Ok(outcome) => Some(outcome),
                Err(more) => {
                    self.how = How::Steps(more, bytes);
                    None
                }
            },
            How::Thread(thread) if !thread.is_finished() => {
                self.how = How::Thread(thread);
                None
            }
            How::Thread(thread) => Some(join(thread)),
            How::Over => Some(Err(StorageError::Abandoned.into())),
        }
    }

    /// Waits until it has ended.
    pub fn wait(mut self) -> Outcome {
        match std::mem::replace(&mut self.how, How::Over) {
            How::Steps(mut work, bytes) => loop {
                match step(work, bytes, &|| self.stop.is_set()) {
                    Ok(outcome) => return outcome,
                    Err(more) => work = more,
                }
            },
            How::Thread(thread) => join(thread),
            How::Over => Err(StorageError::Abandoned.into()),
        }
    }

    /// Has it given up as soon as may be, and waits for that. It may have ended well before.
    pub fn stop(self) -> Outcome {
        self.stop.set();
        self.wait()
    }
}

fn join(thread: JoinHandle<Outcome>) -> Outcome {
    let panicked = |_| {
        let source = io::Error::other("the thread that builds checkpoints panicked");
        let error = StorageError::Io { doing: "build", path: "a checkpoint".into(), source };
        // It may have done so while it named one.
        Err(Failure { error, fatal: true })
    };
    thread.join().unwrap_or_else(panicked)
}
