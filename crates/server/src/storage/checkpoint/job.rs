//! Building and cleaning up in the background.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::super::error::StorageError;
use super::tree::Pacing;
use super::{Build, Built, Clean, Failure};

/// How many bytes are copied at once. sled writes the last leaf of each of these again.
pub(super) const STEP_BYTES: usize = 1 << 20;

/// How many bytes are written and synced at once where others are spared, and where somebody waits.
const PART_BYTES: usize = 64 << 10;
const PART_BYTES_IN_HURRY: usize = STEP_BYTES;

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
    /// others on a busy machine. It may be told to hurry.
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
    wishes: Arc<Wishes>,
    how: How,
}

enum How {
    Steps(Work, usize),
    Thread(JoinHandle<Outcome>),
    Over,
}

/// What the thread is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Wish {
    Spare,
    Hurry,
    Stop,
}

struct Wishes {
    wish: Mutex<Wish>,
    told: Condvar,
}

impl Wishes {
    fn get(&self) -> Wish {
        *self.wish.lock()
    }

    /// None is taken back.
    fn raise(&self, to: Wish) {
        let mut wish = self.wish.lock();
        if *wish < to {
            *wish = to;
            self.told.notify_all();
        }
    }

    fn rest(&self, time: Duration) {
        let mut wish = self.wish.lock();
        if *wish == Wish::Spare {
            self.told.wait_for(&mut wish, time);
        }
    }
}

/// The thread's pace. It rests as long as it worked, whenever it is asked.
struct Paced<'a> {
    wishes: &'a Wishes,
    since: Cell<Instant>,
}

impl Pacing for Paced<'_> {
    fn stopped(&self) -> bool {
        let worked = self.since.get().elapsed();
        if self.wishes.get() == Wish::Spare && worked >= WORK_MIN {
            self.wishes.rest(worked.min(REST_MAX));
            self.since.set(Instant::now());
        }
        self.wishes.get() == Wish::Stop
    }

    fn part_bytes(&self) -> usize {
        if self.wishes.get() == Wish::Spare { PART_BYTES } else { PART_BYTES_IN_HURRY }
    }
}

fn step(work: Work, bytes: usize, pacing: &dyn Pacing) -> Result<Outcome, Work> {
    match work {
        Work::Clean(clean) => {
            clean.run();
            Ok(Ok(Done::Cleaned))
        }
        Work::Build(mut build) => match build.step(bytes, pacing) {
            Ok(None) => Err(Work::Build(build)),
            Ok(Some(built)) => Ok(Ok(Done::Built(built))),
            Err(failure) => Ok(Err(failure)),
        },
    }
}

fn run(mut work: Work, wishes: &Wishes) -> Outcome {
    if wishes.get() == Wish::Spare
        && let Err(error) = rustix::process::nice(NICE)
    {
        tracing::debug!(%error, "the thread that builds checkpoints has the priority of all others");
    }
    let paced = Paced { wishes, since: Cell::new(Instant::now()) };
    loop {
        match step(work, STEP_BYTES, &paced) {
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
        let wish = if pace == Pace::Hurry { Wish::Hurry } else { Wish::Spare };
        let wishes = Arc::new(Wishes { wish: Mutex::new(wish), told: Condvar::new() });
        let how = match pace {
            Pace::Steps(bytes) => How::Steps(work, bytes),
            Pace::Background | Pace::Hurry => {
                let wishes = Arc::clone(&wishes);
                let thread = std::thread::Builder::new().name("checkpoint".to_owned());
                How::Thread(thread.spawn(move || run(work, &wishes))?)
            }
        };
        Ok(Self { wishes, how })
    }

    /// What came of it, if it has ended.
    pub fn poll(&mut self) -> Option<Outcome> {
        match std::mem::replace(&mut self.how, How::Over) {
            How::Steps(work, bytes) => match step(work, bytes, &|| self.wishes.get() == Wish::Stop) {
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
                match step(work, bytes, &|| self.wishes.get() == Wish::Stop) {
                    Ok(outcome) => return outcome,
                    Err(more) => work = more,
                }
            },
            How::Thread(thread) => join(thread),
            How::Over => Err(StorageError::Abandoned.into()),
        }
    }

    /// Has it rest no more: others wait for what comes of it.
    pub fn hurry(&self) {
        self.wishes.raise(Wish::Hurry);
    }

    /// Whether it was told to.
    #[cfg(test)]
    pub fn hurries(&self) -> bool {
        self.wishes.get() == Wish::Hurry
    }

    /// Has it given up as soon as may be, and waits for that. It may have ended well before.
    pub fn stop(self) -> Outcome {
        self.wishes.raise(Wish::Stop);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// One that has worked for a second rests as long, in small parts, until it is told to hurry.
    #[test]
    fn who_hurries_neither_rests_nor_goes_in_small_parts() {
        let rested = |wish| {
            let wishes = Wishes { wish: Mutex::new(wish), told: Condvar::new() };
            let begin = Instant::now();
            let since = Cell::new(begin.checked_sub(Duration::from_secs(1)).unwrap());
            let paced = Paced { wishes: &wishes, since };
            (paced.part_bytes(), paced.stopped(), begin.elapsed() >= REST_MAX)
        };
        assert_eq!(rested(Wish::Spare), (PART_BYTES, false, true));
        assert_eq!(rested(Wish::Stop), (PART_BYTES_IN_HURRY, true, false));
        assert_eq!(rested(Wish::Hurry).0, PART_BYTES_IN_HURRY);
        assert!(!rested(Wish::Hurry).1);
    }
}
