//! For tests: a disk in memory whose power can be cut. What was not synced may then be there or not, in any order and in parts.

pub(super) mod trees;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::disk::{Disk, DiskFile};

/// What a disk writes whole, if it writes whole sectors.
const SECTOR: usize = 512;

/// What goes wrong at some call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The power goes: this call and all that follow fail.
    Cut,
    /// The disk is full; of a write some bytes arrive.
    Full,
    /// The disk fails; of a write some bytes arrive.
    Broken,
}

#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

#[derive(Debug, Clone, Default)]
struct File {
    live: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Naming {
    Create(PathBuf, usize),
    Rename(PathBuf, PathBuf, usize),
    Remove(PathBuf),
}

impl Naming {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Create(path, _) | Self::Rename(_, path, _) | Self::Remove(path) => path.parent(),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Create(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Rename(from, to, file) => {
                if names.get(from) == Some(file) {
                    names.remove(from);
                }
                names.insert(to.clone(), *file);
            }
            Self::Remove(path) => drop(names.remove(path)),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct State {
    files: Vec<File>,
    live: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    pending: Vec<Naming>,
    /// Calls that change something, syncs included.
    calls: u64,
    faults: BTreeMap<u64, Fault>,
    dead: bool,
    /// Which sync does nothing: a planted fault.
    left_out: Option<&'static str>,
    seed: u64,
}

impl State {
    fn call(&mut self) -> io::Result<Option<Fault>> {
        if self.dead {
            return Err(io::Error::other("no power"));
        }
        self.calls += 1;
        let fault = self.faults.remove(&self.calls);
        if fault == Some(Fault::Cut) {
            self.dead = true;
        }
        Ok(fault)
    }

    fn random(&mut self) -> SmallRng {
        self.seed += 1;
        SmallRng::seed_from_u64(self.seed)
    }

    fn refused(fault: Fault) -> io::Error {
        match fault {
            Fault::Cut => io::Error::other("no power"),
            Fault::Full => ErrorKind::StorageFull.into(),
            Fault::Broken => io::Error::other("a broken disk"),
        }
    }

    /// A call that does all or nothing.
    fn whole(&mut self) -> io::Result<()> {
        self.call()?.map_or(Ok(()), |fault| Err(Self::refused(fault)))
    }

    fn is_left_out(&self, what: &str) -> bool {
        self.left_out == Some(what)
    }

    fn file_at(&self, path: &Path) -> io::Result<usize> {
        self.live.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn name(&mut self, naming: Naming) {
        naming.apply(&mut self.live);
        self.pending.push(naming);
    }

    fn write(&mut self, file: usize, at: usize, bytes: &[u8]) {
        let file = &mut self.files[file];
        let end = at + bytes.len();
        if file.live.len() < end {
            file.live.resize(end, 0);
            file.pending.push(Change::Length(end));
        }
        file.live[at..end].copy_from_slice(bytes);
        file.pending.push(Change::Write(at, bytes.to_vec()));
    }
}

/// Which part of a write reaches the disk: every sector for itself, whole, not at all, or torn.
fn scatter(content: &mut [u8], at: usize, bytes: &[u8], rng: &mut SmallRng) {
    let mut from = 0;
    while from < bytes.len() {
        let to = bytes.len().min(from + SECTOR - (at + from) % SECTOR);
        let part = match rng.random_range(0..10) {
            0..5 => from..to,
            5..9 => from..from,
            _ if rng.random() => from..rng.random_range(from..=to),
            _ => rng.random_range(from..=to)..to,
        };
        for i in part {
            // Beyond the length that the file got it is nowhere.
            if let Some(byte) = content.get_mut(at + i) {
                *byte = bytes[i];
            }
        }
        from = to;
    }
}

/// The disk; clones are the same disk.
#[derive(Debug, Clone, Default)]
pub(super) struct SimulatedDisk(Arc<Mutex<State>>);

impl SimulatedDisk {
    pub fn new(seed: u64) -> Self {
        let disk = Self::default();
        disk.0.lock().seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        disk
    }

    /// Makes the `nth` call from now on fail (1: the next).
    pub fn fail_at(&self, nth: u64, fault: Fault) {
        let mut state = self.0.lock();
        let at = state.calls + nth;
        state.faults.insert(at, fault);
    }

    /// Has a kind of sync do nothing from now on.
    pub fn leave_out(&self, what: &'static str) {
        self.0.lock().left_out = Some(what);
    }

    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// What is there after a power cut, by chance of `seed`.
    pub fn after_cut(&self, seed: u64) -> Self {
        let state = self.0.lock().clone();
        let mut rng = SmallRng::seed_from_u64(seed);
        // Often nearly all or nearly nothing: more is found then than in the middle.
        let kept = [0.0, 0.1, 0.5, 0.5, 0.9, 1.0][rng.random_range(0..6)];
        let mut names = state.durable.clone();
        for naming in &state.pending {
            if rng.random_bool(kept) {
                naming.apply(&mut names);
            }
        }
        // Of the others nothing is left.
        let mut files = Vec::new();
        for file in names.values_mut() {
            files.push(state.files[*file].clone());
            *file = files.len() - 1;
        }
        for file in &mut files {
            let mut content = std::mem::take(&mut file.durable);
            for change in file.pending.drain(..) {
                match change {
                    Change::Length(length) if rng.random_bool(kept.max(0.3)) => {
                        content.resize(length.max(content.len()), 0)
                    }
                    Change::Write(at, bytes) if rng.random_bool(kept.max(0.3)) => match kept {
                        1.0 => {
                            let end = content.len().min(at + bytes.len()).max(at.min(content.len()));
                            let at = at.min(end);
                            content[at..end].copy_from_slice(&bytes[..end - at]);
                        }
                        _ => scatter(&mut content, at, &bytes, &mut rng),
                    },
                    _ => {}
                }
            }
            *file = File { live: content.clone(), durable: content, pending: Vec::new() };
        }
        let (live, left_out) = (names.clone(), state.left_out);
        Self(Arc::new(Mutex::new(State { files, live, durable: names, left_out, seed, ..State::default() })))
    }

    /// The same disk as it is, with all of it durable: after a kill of the process.
    pub fn after_kill(&self) -> Self {
        let disk = Self(Arc::new(Mutex::new(self.0.lock().clone())));
        let mut state = disk.0.lock();
        state.dead = false;
        state.faults.clear();
        drop(state);
        disk
    }

    /// The files by name.
    pub fn names(&self) -> Vec<PathBuf> {
        self.0.lock().live.keys().cloned().collect()
    }

    /// Changes the bytes of a file behind everybody's back.
    pub fn rot(&self, path: &Path, harm: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.0.lock();
        let file = state.live[path];
        let file = &mut state.files[file];
        harm(&mut file.live);
        file.durable = file.live.clone();
    }

    /// Forgets a file behind everybody's back.
    pub fn lose(&self, path: &Path) {
        let mut state = self.0.lock();
        state.live.remove(path);
        state.durable.remove(path);
    }

    fn handle(&self, file: usize, path: &Path) -> Box<dyn DiskFile> {
        Box::new(SimulatedFile { disk: self.clone(), file, path: path.to_owned() })
    }
}

/// What kind of file it is, for the faults that leave a sync out.
fn kind(path: &Path) -> &'static str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name {
        "current.new" => "current",
        "tree" => "tree",
        name if name.ends_with(".new") => "segment",
        _ => "log",
    }
}

fn folder_kind(path: &Path) -> &'static str {
    match path.file_name().and_then(|name| name.to_str()).unwrap_or_default() {
        "wal" => "folder of the log",
        name if name.starts_with("checkpoint.") => "folder of a checkpoint",
        _ => "folder of the store",
    }
}

impl Disk for SimulatedDisk {
    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.whole()?;
        // A file that is emptied is another one here: nobody relies on what it had.
        let file = state.files.len();
        state.files.push(File::default());
        state.name(Naming::Create(path.to_owned(), file));
        drop(state);
        Ok(self.handle(file, path))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.0.lock().file_at(path)?;
        Ok(self.handle(file, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.whole()?;
        let file = state.file_at(from)?;
        state.name(Naming::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.whole()?;
        if state.live.contains_key(path) {
            state.name(Naming::Remove(path.to_owned()));
        }
        Ok(())
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.whole()?;
        let inside: Vec<_> = state.live.keys().filter(|name| name.starts_with(path)).cloned().collect();
        inside.into_iter().for_each(|name| state.name(Naming::Remove(name)));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let state = self.0.lock();
        let inside = state.live.keys().filter_map(|name| name.strip_prefix(path).ok()?.iter().next()?.to_str());
        let mut names: Vec<String> = inside.map(str::to_owned).collect();
        names.dedup();
        Ok(names)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.whole()?;
        if state.is_left_out(folder_kind(path)) {
            return Ok(());
        }
        let state = &mut *state;
        state.pending.retain(|naming| {
            let durable = naming.folder() == Some(path);
            if durable {
                naming.apply(&mut state.durable);
            }
            !durable
        });
        Ok(())
    }

    fn available(&self, _path: &Path) -> Option<u64> {
        None
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
    path: PathBuf,
}

impl SimulatedFile {
    fn sync(&self, what: &str) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.whole()?;
        if state.is_left_out(what) {
            return Ok(());
        }
        let file = &mut state.files[self.file];
        file.durable = file.live.clone();
        file.pending.clear();
        Ok(())
    }
}

impl DiskFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().files[self.file].live.len() as u64)
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let state = self.disk.0.lock();
        let at = at as usize;
        let from = state.files[self.file].live.get(at..at + into.len()).ok_or(ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        let fault = state.call()?;
        let arrived = match fault {
            None => bytes.len(),
            // The last byte is missing at least.
            Some(_) => state.random().random_range(0..bytes.len().max(1)),
        };
        state.write(self.file, at as usize, &bytes[..arrived]);
        fault.map_or(Ok(()), |fault| Err(State::refused(fault)))
    }

    fn extend(&self, _from: u64, to: u64, write: bool) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.whole()?;
        let length = state.files[self.file].live.len();
        if write {
            let zeros = vec![0; (to as usize).saturating_sub(length)];
            state.write(self.file, length, &zeros);
        } else {
            let file = &mut state.files[self.file];
            file.live.resize(to as usize, 0);
            file.pending.push(Change::Length(to as usize));
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(kind(&self.path))
    }

    fn sync_all(&self) -> io::Result<()> {
        let grown = if kind(&self.path) == "log" { "length" } else { kind(&self.path) };
        self.sync(grown)
    }
}
