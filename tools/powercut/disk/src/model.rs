//! The disk: what programs see, what is durable, and what a power cut leaves of the difference.
//!
//! - Contents are durable once their file was synced, names once their folder was.
//! - Of what was not synced any part may be left, in any order: sectors whole or torn, a length without its contents, a name
//!   without its file's contents, contents without their name.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::mem::take;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The number of a file or folder.
pub type Number = u64;

/// The folder that is mounted.
pub const ROOT: Number = 1;

/// What a disk writes whole, if it writes whole sectors.
const SECTOR: usize = 512;

/// What a sync makes durable besides the file or folder that it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Names {
    /// Nothing, as POSIX has it: a name is durable once its folder was synced.
    Strict,
    /// All names given before it, as a journal of metadata has it that is written in order (ext4).
    Ordered,
}

/// A kind of sync that does nothing: a planted fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeftOut {
    /// Of files whose path contains this.
    File(String),
    /// Of folders whose path ends with this.
    Folder(String),
}

/// Why the disk refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The power is gone.
    NoPower,
    /// There is no such file.
    Missing,
    /// There is one already.
    Exists,
    /// It is no folder.
    NotAFolder,
    /// It is a folder.
    IsAFolder,
    /// The folder is not empty.
    NotEmpty,
    /// The disk is full.
    Full,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write(at, bytes) => content[*at..at + bytes.len()].copy_from_slice(bytes),
            Self::Length(length) => content.resize(*length, 0),
        }
    }
}

/// A file.
#[derive(Clone, Default, Debug)]
pub struct File {
    /// What programs see.
    pub live: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

/// A folder.
#[derive(Clone, Default, Debug)]
pub struct Folder {
    /// What programs see.
    pub live: BTreeMap<OsString, Number>,
    durable: BTreeMap<OsString, Number>,
}

/// A file or a folder.
#[derive(Clone, Debug)]
pub enum What {
    /// A file.
    File(File),
    /// A folder.
    Folder(Folder),
}

/// A file or folder with its rights.
#[derive(Clone, Debug)]
pub struct Node {
    /// Which of them.
    pub what: What,
    /// The permissions, as in `chmod`.
    pub mode: u16,
    /// Its newest path, for the faults that leave a sync out.
    path: String,
    /// How often it is open.
    open: u32,
}

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
struct Naming {
    folder: Number,
    name: OsString,
    /// What has the name from then on; none where it is removed.
    node: Option<Number>,
    /// The name that it had before.
    before: Option<(Number, OsString)>,
}

/// The disk.
#[derive(Clone, Debug)]
pub struct Disk {
    nodes: BTreeMap<Number, Node>,
    next: Number,
    pending: Vec<Naming>,
    names: Names,
    left_out: Option<LeftOut>,
    dead: bool,
    /// Bytes that all files may have together.
    capacity: u64,
}

impl Disk {
    /// An empty disk.
    pub fn new(capacity: u64, names: Names, left_out: Option<LeftOut>) -> Self {
        let root = Node { what: What::Folder(Folder::default()), mode: 0o755, path: String::new(), open: 0 };
        let nodes = BTreeMap::from([(ROOT, root)]);
        Self { nodes, next: ROOT + 1, pending: Vec::new(), names, left_out, dead: false, capacity }
    }

    /// Bytes that all files may have, and that are free.
    pub fn space(&self) -> (u64, u64) {
        let taken: u64 = self.nodes.values().map(|node| length(node) as u64).sum();
        (self.capacity, self.capacity.saturating_sub(taken))
    }

    /// The file or folder of that number.
    pub fn node(&self, number: Number) -> Result<&Node, Refused> {
        if self.dead { Err(Refused::NoPower) } else { self.nodes.get(&number).ok_or(Refused::Missing) }
    }

    fn node_mut(&mut self, number: Number) -> Result<&mut Node, Refused> {
        if self.dead { Err(Refused::NoPower) } else { self.nodes.get_mut(&number).ok_or(Refused::Missing) }
    }

    /// The folder of that number.
    pub fn folder(&self, number: Number) -> Result<&Folder, Refused> {
        match &self.node(number)?.what {
            What::Folder(folder) => Ok(folder),
            What::File(_) => Err(Refused::NotAFolder),
        }
    }

    /// The file of that number.
    pub fn file(&self, number: Number) -> Result<&File, Refused> {
        match &self.node(number)?.what {
            What::File(file) => Ok(file),
            What::Folder(_) => Err(Refused::IsAFolder),
        }
    }

    fn file_mut(&mut self, number: Number) -> Result<&mut File, Refused> {
        match &mut self.node_mut(number)?.what {
            What::File(file) => Ok(file),
            What::Folder(_) => Err(Refused::IsAFolder),
        }
    }

    /// What has that name in a folder.
    pub fn look_up(&self, folder: Number, name: &OsStr) -> Result<Number, Refused> {
        self.folder(folder)?.live.get(name).copied().ok_or(Refused::Missing)
    }

    /// Makes an empty file or folder.
    pub fn create(&mut self, folder: Number, name: &OsStr, what: What, mode: u16) -> Result<Number, Refused> {
        if self.look_up(folder, name).is_ok() {
            return Err(Refused::Exists);
        }
        self.folder(folder)?;
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, Node { what, mode, path: self.path_of(folder, name), open: 0 });
        self.give_name(Naming { folder, name: name.to_owned(), node: Some(number), before: None });
        Ok(number)
    }

    /// Gives what has one name another one, in the place of whatever has that.
    pub fn rename(&mut self, from: (Number, &OsStr), to: (Number, &OsStr)) -> Result<(), Refused> {
        let number = self.look_up(from.0, from.1)?;
        self.folder(to.0)?;
        let path = self.path_of(to.0, to.1);
        self.node_mut(number)?.path = path;
        let before = Some((from.0, from.1.to_owned()));
        self.give_name(Naming { folder: to.0, name: to.1.to_owned(), node: Some(number), before });
        Ok(())
    }

    /// Takes a name away. What had it stays as long as it may be open.
    pub fn remove(&mut self, folder: Number, name: &OsStr, is_folder: bool) -> Result<(), Refused> {
        let number = self.look_up(folder, name)?;
        match &self.node(number)?.what {
            What::Folder(_) if !is_folder => return Err(Refused::IsAFolder),
            What::File(_) if is_folder => return Err(Refused::NotAFolder),
            What::Folder(folder) if !folder.live.is_empty() => return Err(Refused::NotEmpty),
            _ => {}
        }
        self.give_name(Naming { folder, name: name.to_owned(), node: None, before: None });
        Ok(())
    }

    /// Notes that a program opened it.
    pub fn open(&mut self, number: Number) -> Result<(), Refused> {
        self.node_mut(number)?.open += 1;
        Ok(())
    }

    /// Notes that a program closed it.
    pub fn close(&mut self, number: Number) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.open = node.open.saturating_sub(1);
        }
        self.free();
    }

    /// Gives back what has no name, durable or not, and is not open.
    fn free(&mut self) {
        let mut named = HashSet::from([ROOT]);
        named.extend(self.pending.iter().filter_map(|naming| naming.node));
        for node in self.nodes.values() {
            if let What::Folder(folder) = &node.what {
                named.extend(folder.live.values().chain(folder.durable.values()));
            }
        }
        self.nodes.retain(|number, node| node.open > 0 || named.contains(number));
    }

    /// Changes what is allowed.
    pub fn set_mode(&mut self, number: Number, mode: u16) -> Result<(), Refused> {
        self.node_mut(number)?.mode = mode;
        Ok(())
    }

    /// Writes at a place, and lengthens the file where it ends before.
    pub fn write(&mut self, number: Number, at: usize, bytes: &[u8]) -> Result<(), Refused> {
        self.lengthen(number, at + bytes.len())?;
        let file = self.file_mut(number)?;
        file.live[at..at + bytes.len()].copy_from_slice(bytes);
        file.pending.push(Change::Write(at, bytes.to_vec()));
        Ok(())
    }

    /// Reserves space: zeros up to a length, if the file is shorter.
    pub fn lengthen(&mut self, number: Number, to: usize) -> Result<(), Refused> {
        let has = self.file(number)?.live.len();
        if has >= to { Ok(()) } else { self.set_length(number, to) }
    }

    /// Cuts the file off, or lengthens it with zeros.
    pub fn set_length(&mut self, number: Number, length: usize) -> Result<(), Refused> {
        let more = length.saturating_sub(self.file(number)?.live.len());
        if more as u64 > self.space().1 {
            return Err(Refused::Full);
        }
        let file = self.file_mut(number)?;
        file.live.resize(length, 0);
        file.pending.push(Change::Length(length));
        Ok(())
    }

    /// Makes a file's contents and length durable.
    pub fn sync_file(&mut self, number: Number) -> Result<(), Refused> {
        let path = self.node(number)?.path.clone();
        if matches!(&self.left_out, Some(LeftOut::File(part)) if path.contains(part.as_str())) {
            return Ok(());
        }
        let file = self.file_mut(number)?;
        for change in take(&mut file.pending) {
            change.apply(&mut file.durable);
        }
        if self.names == Names::Ordered {
            take(&mut self.pending).iter().for_each(|naming| apply(naming, &mut self.nodes));
            self.free();
        }
        Ok(())
    }

    /// Makes the names in a folder durable.
    pub fn sync_folder(&mut self, number: Number) -> Result<(), Refused> {
        self.folder(number)?;
        let path = &self.nodes[&number].path;
        if matches!(&self.left_out, Some(LeftOut::Folder(end)) if path.ends_with(end.as_str())) {
            return Ok(());
        }
        let ordered = self.names == Names::Ordered;
        let goes = |naming: &Naming| {
            ordered || naming.folder == number || naming.before.as_ref().is_some_and(|before| before.0 == number)
        };
        let (now, later) = take(&mut self.pending).into_iter().partition(goes);
        self.pending = later;
        let now: Vec<Naming> = now;
        now.iter().for_each(|naming| apply(naming, &mut self.nodes));
        self.free();
        Ok(())
    }

    /// Cuts the power: from now on everything is refused. The disk as it is when the power is back, by chance of `seed`.
    pub fn cut(&mut self, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        // Often nearly all or nearly nothing: more is found then than in the middle.
        let kept = [0.0, 0.05, 0.3, 0.5, 0.7, 0.95, 1.0][rng.random_range(0..7)];
        let mut after = self.clone();
        self.dead = true;
        for naming in take(&mut after.pending) {
            if rng.random_bool(kept) {
                apply(&naming, &mut after.nodes);
            }
        }
        after.forget_unnamed();
        for node in after.nodes.values_mut() {
            node.open = 0;
            match &mut node.what {
                What::Folder(folder) => folder.live = folder.durable.clone(),
                What::File(file) => leave(file, kept, &mut rng),
            }
        }
        after
    }

    /// Drops what no durable name leads to.
    fn forget_unnamed(&mut self) {
        let (mut found, mut open) = (HashSet::from([ROOT]), vec![ROOT]);
        while let Some(number) = open.pop() {
            if let Some(Node { what: What::Folder(folder), .. }) = self.nodes.get(&number) {
                open.extend(folder.durable.values().filter(|inside| found.insert(**inside)));
            }
        }
        self.nodes.retain(|number, _| found.contains(number));
    }

    fn path_of(&self, folder: Number, name: &OsStr) -> String {
        let above = self.nodes.get(&folder).map_or("", |node| &node.path);
        format!("{above}/{}", name.to_string_lossy())
    }

    fn give_name(&mut self, naming: Naming) {
        if let Some((folder, name)) = &naming.before {
            live(&mut self.nodes, *folder).map(|names| names.remove(name));
        }
        if let Some(names) = live(&mut self.nodes, naming.folder) {
            match naming.node {
                Some(node) => drop(names.insert(naming.name.clone(), node)),
                None => drop(names.remove(&naming.name)),
            }
        }
        self.pending.push(naming);
    }
}

fn length(node: &Node) -> usize {
    match &node.what {
        What::File(file) => file.live.len(),
        What::Folder(_) => 0,
    }
}

fn live(nodes: &mut BTreeMap<Number, Node>, folder: Number) -> Option<&mut BTreeMap<OsString, Number>> {
    match &mut nodes.get_mut(&folder)?.what {
        What::Folder(folder) => Some(&mut folder.live),
        What::File(_) => None,
    }
}

fn durable(nodes: &mut BTreeMap<Number, Node>, folder: Number) -> Option<&mut BTreeMap<OsString, Number>> {
    match &mut nodes.get_mut(&folder)?.what {
        What::Folder(folder) => Some(&mut folder.durable),
        What::File(_) => None,
    }
}

/// Makes a change of names durable.
fn apply(naming: &Naming, nodes: &mut BTreeMap<Number, Node>) {
    if let Some((folder, name)) = &naming.before
        && let Some(names) = durable(nodes, *folder)
        && names.get(name).copied() == naming.node
    {
        names.remove(name);
    }
    if let Some(names) = durable(nodes, naming.folder) {
        match naming.node {
            Some(node) => drop(names.insert(naming.name.clone(), node)),
            None => drop(names.remove(&naming.name)),
        }
    }
}

/// What is left of a file: all that was synced, and each other change with a chance of `kept`.
fn leave(file: &mut File, kept: f64, rng: &mut SmallRng) {
    let mut content = take(&mut file.durable);
    for change in take(&mut file.pending) {
        if !rng.random_bool(kept) {
            continue;
        }
        match change {
            Change::Length(length) => content.resize(length, 0),
            Change::Write(at, bytes) => scatter(&mut content, at, &bytes, kept, rng),
        }
    }
    *file = File { live: content.clone(), durable: content, pending: Vec::new() };
}

/// Which part of a write reaches the disk: every sector for itself, whole, not at all, or torn. Where the length is not there,
/// nothing is.
fn scatter(content: &mut [u8], at: usize, bytes: &[u8], kept: f64, rng: &mut SmallRng) {
    let mut from = 0;
    while from < bytes.len() {
        let to = bytes.len().min(from + SECTOR - (at + from) % SECTOR);
        let part = if rng.random_bool(kept) {
            from..to
        } else if rng.random_bool(0.9) {
            from..from
        } else if rng.random() {
            from..rng.random_range(from..=to)
        } else {
            rng.random_range(from..=to)..to
        };
        for i in part {
            if let Some(byte) = content.get_mut(at + i) {
                *byte = bytes[i];
            }
        }
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::new(1 << 20, Names::Strict, None)
    }

    fn create(disk: &mut Disk, name: &str) -> Number {
        disk.create(ROOT, OsStr::new(name), What::File(File::default()), 0o600).unwrap()
    }

    fn content(disk: &Disk, name: &str) -> Option<Vec<u8>> {
        let number = disk.look_up(ROOT, OsStr::new(name)).ok()?;
        Some(disk.file(number).unwrap().live.clone())
    }

    #[test]
    fn what_was_synced_is_always_there_and_what_was_not_sometimes() {
        let mut names = HashSet::new();
        let mut contents = HashSet::new();
        for seed in 0..300 {
            let mut disk = disk();
            let synced = create(&mut disk, "synced");
            disk.write(synced, 0, &[1; 2000]).unwrap();
            disk.sync_file(synced).unwrap();
            disk.sync_folder(ROOT).unwrap();
            disk.write(synced, 1000, &[2; 2000]).unwrap();
            let other = create(&mut disk, "other");
            disk.write(other, 0, b"x").unwrap();
            let after = disk.cut(seed);
            let left = content(&after, "synced").unwrap();
            assert_eq!(left[..1000], [1; 1000]);
            names.insert(content(&after, "other"));
            contents.insert(left);
            assert_eq!(disk.write(synced, 0, b"y"), Err(Refused::NoPower));
        }
        for name in [None, Some(vec![]), Some(vec![0]), Some(b"x".to_vec())] {
            assert!(names.contains(&name), "{name:?} never was what was left");
        }
        assert!(contents.len() > 30, "{} different contents", contents.len());
    }

    #[test]
    fn a_name_is_durable_with_its_folder_and_with_a_file_only_where_names_are_in_order() {
        for (names, always) in [(Names::Strict, false), (Names::Ordered, true)] {
            let mut found = 0;
            for seed in 0..100 {
                let mut disk = Disk::new(1 << 20, names, None);
                let file = create(&mut disk, "a");
                disk.sync_file(file).unwrap();
                found += u32::from(content(&disk.cut(seed), "a").is_some());
            }
            assert_eq!(found == 100, always, "{names:?}: {found} of 100");
        }
    }

    #[test]
    fn space_comes_back_once_a_removal_is_durable_and_the_file_is_closed() {
        let mut disk = disk();
        let file = create(&mut disk, "a");
        disk.open(file).unwrap();
        disk.write(file, 0, &[1; 1 << 20]).unwrap();
        disk.sync_folder(ROOT).unwrap();
        assert_eq!(disk.space().1, 0);
        disk.remove(ROOT, OsStr::new("a"), false).unwrap();
        disk.sync_folder(ROOT).unwrap();
        assert_eq!(disk.space().1, 0, "it is open");
        disk.close(file);
        assert_eq!(disk.space(), (1 << 20, 1 << 20));
    }

    #[test]
    fn of_a_rename_one_of_both_names_is_there() {
        for seed in 0..100 {
            let mut disk = disk();
            for (name, text) in [("new", "2"), ("old", "1")] {
                let file = create(&mut disk, name);
                disk.write(file, 0, text.as_bytes()).unwrap();
                disk.sync_file(file).unwrap();
            }
            disk.sync_folder(ROOT).unwrap();
            disk.rename((ROOT, OsStr::new("new")), (ROOT, OsStr::new("old"))).unwrap();
            let after = disk.cut(seed);
            let both = (content(&after, "old").unwrap(), content(&after, "new"));
            assert!(both == (b"1".to_vec(), Some(b"2".to_vec())) || both == (b"2".to_vec(), None), "{both:?}");
        }
    }

    #[test]
    fn a_sync_that_is_left_out_loses_what_it_should_keep() {
        for left_out in [LeftOut::File("/a".into()), LeftOut::Folder(String::new())] {
            let lost = (0..100).filter(|seed| {
                let mut disk = Disk::new(1 << 20, Names::Strict, Some(left_out.clone()));
                let file = create(&mut disk, "a");
                disk.write(file, 0, b"x").unwrap();
                disk.sync_file(file).unwrap();
                disk.sync_folder(ROOT).unwrap();
                content(&disk.cut(*seed), "a") != Some(b"x".to_vec())
            });
            assert!(lost.count() > 20, "{left_out:?}");
        }
    }
}
