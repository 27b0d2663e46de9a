//! The log as a whole: which segments there are, appending to the last one, and reading all of them at a start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::super::dir::{damaged, io};
use super::super::disk::{Disk, DiskFile};
use super::super::error::StorageError;
use super::super::overlay::{Overlay, Place};
use super::super::page::{Meta, record_sum};
use super::frame::Content;
use super::segment::{Found, Options, Segment, encode_state};
use super::{delta, frame, segment};

/// Draws a number that nobody can guess.
pub type Draw = dyn FnMut() -> std::io::Result<u64> + Send;

/// A buffer that is kept between groups is at most so long, bytes.
const BUFFER_KEPT: usize = 1 << 20;

/// A segment that records are read from.
#[derive(Debug, Clone)]
pub struct LogFile {
    pub path: Arc<Path>,
    pub file: Arc<dyn DiskFile>,
    /// Where its frames end; of the last segment, where they ended when it was opened.
    bytes: u64,
}

/// The segments by number; clones read the same files.
#[derive(Debug, Clone, Default)]
pub struct Logs(BTreeMap<u64, LogFile>);

impl Logs {
    /// The segment of that number.
    pub fn get(&self, number: u64) -> Option<&LogFile> {
        self.0.get(&number)
    }

    /// Reads one record.
    pub fn read(&self, number: u64, place: Place) -> Result<Bytes, StorageError> {
        let log = self.0.get(&place.segment).ok_or_else(|| missing(Path::new(&segment::name(place.segment))))?;
        let mut record = vec![0; place.len as usize];
        log.file.read_at(&mut record, place.at).map_err(io("read", &log.path))?;
        check(number, place, &record, &log.path)?;
        Ok(record.into())
    }
}

/// Checks a record that was read from its place.
pub fn check(number: u64, place: Place, record: &[u8], path: &Path) -> Result<(), StorageError> {
    if record_sum(number, record) == place.sum {
        return Ok(());
    }
    Err(damaged(path, format!("record {number} does not check out, at byte {}", place.at)))
}

fn missing(path: &Path) -> StorageError {
    damaged(path, "the file is missing".to_owned())
}

/// See the module.
pub struct Wal {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    options: Options,
    draw: Box<Draw>,
    logs: Logs,
    last: Segment,
    /// The state after the last frame, as it is encoded and as it is.
    state: Vec<u8>,
    meta: Meta,
    buffer: Vec<u8>,
    /// The next frame begins a segment, whatever space is left.
    must_roll: bool,
}

/// What a start found.
pub struct Recovered {
    pub wal: Wal,
    /// The state at the beginning of the first segment.
    pub base: Meta,
    /// What the log has on top of that.
    pub overlay: Overlay,
    /// Files that mean nothing any more.
    pub stale: Vec<PathBuf>,
    /// The last process did not wait for the disk, and did not stop in order.
    pub unsynced: bool,
}

/// What an append gave.
pub struct Appended {
    /// Where the records lie now.
    pub places: Vec<(u64, Option<Place>)>,
    pub bytes: u64,
    pub write: Duration,
    pub sync: Duration,
    /// A file had to grow.
    pub grew: bool,
}

impl Wal {
    /// Makes a log with its first segment, durably, and answers that segment's number.
    pub fn create(disk: &dyn Disk, folder: &Path, options: Options, draw: &mut Draw) -> Result<u64, StorageError> {
        disk.create_dir(folder).map_err(io("create", folder))?;
        let nonce = draw().map_err(io("draw a number for", folder))?;
        Segment::create(disk, folder, (1, nonce), &Meta::default(), Options { sync: true, ..options })?;
        disk.sync_dir(folder).map_err(io("sync", folder))?;
        Ok(1)
    }

    /// Reads the log from segment `first` on. Writes nothing. `end`: the number of the last write, or of one before it.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        options: Options,
        draw: Box<Draw>,
        first: u64,
        end: Option<u64>,
    ) -> Result<Recovered, StorageError> {
        let mut reading = Reading::new(&*disk, folder, first)?;
        for number in first.. {
            if !reading.segment(&*disk, folder, number)? {
                break;
            }
        }
        let Reading { stale, overlay, base, logs, last, .. } = reading;
        let Found { segment, last: meta, state, sealed, later, .. } =
            last.ok_or_else(|| missing(&folder.join(segment::name(first))))?;
        if sealed {
            return Err(missing(&folder.join(segment::name(segment.number + 1))));
        }
        if later.is_some() && !segment.unsynced {
            return Err(segment.damaged("a message does not check out"));
        }
        if let Some(end) = end.filter(|end| meta.generation < *end) {
            let what = format!("the log ends with write {}, but write {end} was acknowledged", meta.generation);
            return Err(segment.damaged(&what));
        }
        let unsynced = segment.unsynced && end != Some(meta.generation);
        let must_roll = segment.unsynced || !options.sync;
        let folder = folder.to_owned();
        let buffer = Vec::new();
        let wal = Self { disk, folder, options, draw, logs, last: segment, state, meta, buffer, must_roll };
        Ok(Recovered { wal, base, overlay, stale, unsynced })
    }

    /// The state after the last frame.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The segments that there are.
    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    /// The file that is appended to.
    pub fn path(&self) -> &Path {
        &self.last.path
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.logs.0.range(..self.last.number).map(|(_, log)| log.bytes).sum::<u64>() + self.last.end
    }

    /// Makes durable what was read at the start: it may be a write that was never acknowledged, and counts from now on.
    pub fn settle(&self) -> Result<(), StorageError> {
        self.last.file.sync_data().map_err(io("sync", &self.last.path))
    }

    /// Appends a frame, after which the state is `meta`, and waits for the disk unless that is off.
    ///
    /// # Errors
    /// [`StorageError::NoSpace`]: the log is as before.
    pub fn append(&mut self, meta: &Meta, content: Content<'_>) -> Result<Appended, StorageError> {
        let start = Instant::now();
        let most = content.bytes_max(self.state.len().max(encode_state(meta, u64::MAX).len()));
        let full = self.last.begun && self.last.end + most > self.options.segment_bytes;
        if full || self.must_roll {
            self.roll()?;
        }
        let grew = self.last.reserve(most, self.options)?;
        let state = encode_state(meta, self.last.allocated);
        let patch = delta::between(&self.state, &state);
        let at = self.last.end;
        let places = frame::encode(&mut self.buffer, self.last.nonce, at, (state.len(), &patch), content);
        let too_long = || io("write", &self.last.path)(std::io::ErrorKind::InvalidInput.into());
        let places = places.ok_or_else(too_long)?;
        self.last.file.write_at(&self.buffer, at).map_err(io("write", &self.last.path))?;
        let write = start.elapsed();
        if self.options.sync {
            self.last.file.sync_data().map_err(synced(&self.last.path))?;
        }
        let places = places_in(&self.last, at, &places, &self.buffer);
        let bytes = self.buffer.len() as u64;
        self.last.end = at + bytes;
        self.last.begun = true;
        self.state = state;
        self.meta = meta.clone();
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT);
        let sync = start.elapsed().saturating_sub(write);
        Ok(Appended { places, bytes, write, sync: if self.options.sync { sync } else { Duration::ZERO }, grew })
    }

    /// Begins a segment, and answers its number. Everything before is durable then.
    ///
    /// # Errors
    /// [`StorageError::NoSpace`]: the log goes on in the segment before.
    pub fn roll(&mut self) -> Result<u64, StorageError> {
        let number = self.last.number + 1;
        let nonce = (self.draw)().map_err(io("draw a number for", &self.folder))?;
        let (next, state) = Segment::create(&*self.disk, &self.folder, (number, nonce), &self.meta, self.options)?;
        let sealed = self.disk.sync_dir(&self.folder).map_err(io("sync", &self.folder)).and_then(|()| self.seal());
        if let Err(e) = sealed {
            // Without frames it means nothing, also if it comes back after a crash. After any other error than this one a
            // seal may be durable, which says that the segment is there.
            if matches!(e, StorageError::NoSpace { .. }) {
                self.disk.remove(&next.path).map_err(io("remove", &next.path))?;
            }
            return Err(e);
        }
        if let Some(log) = self.logs.0.get_mut(&self.last.number) {
            log.bytes = self.last.end;
        }
        self.logs.0.insert(number, log_file(&next));
        self.last = next;
        self.state = state;
        self.must_roll = false;
        Ok(number)
    }

    /// Says at the end of the last segment that another one follows.
    fn seal(&mut self) -> Result<(), StorageError> {
        let Segment { nonce, end, file, path, .. } = &self.last;
        frame::encode_seal(&mut self.buffer, *nonce, *end);
        file.write_at(&self.buffer, *end).map_err(io("write", path))?;
        file.sync_data().map_err(synced(path))
    }

    /// Forgets the segments before a number, and answers their files.
    pub fn forget_before(&mut self, number: u64) -> Vec<PathBuf> {
        let kept = self.logs.0.split_off(&number);
        std::mem::replace(&mut self.logs.0, kept).into_values().map(|log| log.path.to_path_buf()).collect()
    }
}

/// A failed sync of the log is never one that can be tried again, whatever the system says of it.
fn synced(path: &Path) -> impl FnOnce(std::io::Error) -> StorageError {
    let path = path.to_owned();
    move |source| StorageError::Io { doing: "sync", path, source }
}

fn log_file(segment: &Segment) -> LogFile {
    LogFile { path: segment.path.clone().into(), file: Arc::clone(&segment.file), bytes: segment.end }
}

/// The places in the log of what a frame holds.
fn places_in(segment: &Segment, at: u64, places: &frame::Places, bytes: &[u8]) -> Vec<(u64, Option<Place>)> {
    let place = |number: u64, range: &std::ops::Range<usize>| {
        let record = bytes.get(range.clone()).unwrap_or_default();
        // A frame is no longer than its length says, which is 32 bits.
        let (len, sum) = (record.len() as u32, record_sum(number, record));
        Place { segment: segment.number, at: at + range.start as u64, len, sum }
    };
    places.iter().map(|(number, range)| (*number, range.as_ref().map(|range| place(*number, range)))).collect()
}

/// The log while it is read.
struct Reading {
    /// Segments that are there and not read yet.
    waiting: Vec<u64>,
    stale: Vec<PathBuf>,
    overlay: Overlay,
    base: Meta,
    logs: Logs,
    last: Option<Found>,
}

impl Reading {
    fn new(disk: &dyn Disk, folder: &Path, first: u64) -> Result<Self, StorageError> {
        let (mut waiting, mut stale) = (Vec::new(), Vec::new());
        for name in disk.list(folder).map_err(io("read", folder))? {
            match segment::number(&name) {
                Some(number) if number >= first => waiting.push(number),
                Some(_) => stale.push(folder.join(name)),
                None if segment::is_draft(&name) => stale.push(folder.join(name)),
                // Of somebody else.
                None => {}
            }
        }
        waiting.sort_unstable_by(|a, b| b.cmp(a));
        let (overlay, base, logs) = (Overlay::above(None), Meta::default(), Logs::default());
        Ok(Self { waiting, stale, overlay, base, logs, last: None })
    }

    /// Reads the next segment. Answers whether there may be more.
    fn segment(&mut self, disk: &dyn Disk, folder: &Path, number: u64) -> Result<bool, StorageError> {
        match self.waiting.pop() {
            None => return Ok(false),
            Some(there) if there != number => return Err(missing(&folder.join(segment::name(number)))),
            Some(_) => {}
        }
        let before = self.last.take();
        let overlay = &mut self.overlay;
        let mut entries = Vec::new();
        let found = Segment::read(disk, folder, number, &mut |segment, at, places, bytes| {
            entries.extend(places_in(segment, at, places, bytes));
        })?;
        let Some(before) = before else {
            self.base = found.first.clone();
            *overlay = Overlay::above(self.base.next);
            entries.drain(..).for_each(|(number, place)| overlay.set(number, place));
            self.logs.0.insert(number, log_file(&found.segment));
            self.last = Some(found);
            return Ok(true);
        };
        if !before.sealed {
            let unused = !found.segment.begun && found.later.is_none() && self.waiting.is_empty();
            // Also without fsync: a segment is sealed, and that waited for, before the next one is used.
            if !unused {
                return Err(before.segment.damaged("a message does not check out"));
            }
            // Made and not used: the log goes on in the one before.
            self.stale.push(found.segment.path);
            self.last = Some(before);
            return Ok(false);
        }
        if (found.first.generation, found.first.sum) != (before.last.generation, before.last.sum) {
            let what = format!(
                "it goes on from write {}, the segment before ends with write {}, at byte 0",
                found.first.generation, before.last.generation
            );
            return Err(damaged(&found.segment.path, what));
        }
        entries.drain(..).for_each(|(number, place)| overlay.set(number, place));
        self.logs.0.insert(number, log_file(&found.segment));
        self.last = Some(found);
        Ok(true)
    }
}
