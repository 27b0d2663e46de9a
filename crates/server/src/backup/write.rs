//! A database of bbolt's format, written from front to back.
//!
//! The meta pages come first and name the root, and buckets name theirs. So the pages are laid out twice: a first time by the
//! lengths of keys and values alone, and a second time with their bytes. Of each tree only one open page per level is in
//! memory. A page is written as soon as it is full, leaves and branches as they come.

use super::page::{BRANCH, BUCKET, BUCKET_HEADER, FREELIST, HEADER, LEAF, Meta, PAGE_SIZE, header};

/// The pages before the first bucket: two metas, the freelist, and the root with all buckets.
const FIRST_FREE: u64 = 4;
const FREELIST_PAGE: u64 = 2;
const ROOT_PAGE: u64 = 3;

/// A key or a value: its bytes, or only how many there are.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// How many bytes there are.
    Len(usize),
    /// The bytes.
    Bytes(&'a [u8]),
}

impl Part<'_> {
    fn len(self) -> usize {
        match self {
            Self::Len(len) => len,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// Takes the bytes of a page; nothing when pages are only counted.
pub trait Sink {
    /// Why it refuses.
    type Error;

    /// Takes pages that lie behind those before. `None` where they are only counted.
    ///
    /// # Errors
    /// When it takes no more.
    fn take(&mut self, page: Option<Vec<u8>>) -> Result<(), Self::Error>;
}

/// Counts only.
#[derive(Clone, Copy, Debug)]
pub struct Count;

impl Sink for Count {
    type Error = std::convert::Infallible;

    fn take(&mut self, _: Option<Vec<u8>>) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A page in the making.
struct Open {
    kind: u16,
    /// Of each element: its flags or its page, and the lengths of its key and value.
    elements: Vec<(u64, usize, usize)>,
    /// Keys and values, one behind the other. Empty in a count.
    data: Vec<u8>,
    /// Bytes of the page so far.
    size: usize,
    /// The key of the first element.
    first: Key,
}

/// The first key of a page; only its length in a count.
#[derive(Clone, Debug)]
enum Key {
    Len(usize),
    Bytes(Vec<u8>),
}

impl Key {
    fn of(part: Part<'_>) -> Self {
        match part {
            Part::Len(len) => Self::Len(len),
            Part::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
        }
    }

    fn part(&self) -> Part<'_> {
        match self {
            Self::Len(len) => Part::Len(*len),
            Self::Bytes(bytes) => Part::Bytes(bytes),
        }
    }
}

impl Open {
    fn new(kind: u16) -> Self {
        Self { kind, elements: vec![], data: vec![], size: HEADER, first: Key::Len(0) }
    }

    fn has_room(&self, key: Part<'_>, value: Part<'_>) -> bool {
        // A branch has two children at least, or a tree would never come to its root.
        let least = if self.kind == BRANCH { 2 } else { 1 };
        let fits = self.size + HEADER + key.len() + value.len() <= PAGE_SIZE;
        self.elements.len() < least || (fits && self.elements.len() < usize::from(u16::MAX) - 1)
    }

    fn add(&mut self, tag: u64, key: Part<'_>, value: Part<'_>) {
        if self.elements.is_empty() {
            self.first = Key::of(key);
        }
        self.elements.push((tag, key.len(), value.len()));
        self.size += HEADER + key.len() + value.len();
        for part in [key, value] {
            if let Part::Bytes(bytes) = part {
                self.data.extend_from_slice(bytes);
            }
        }
    }

    fn pages(&self) -> u64 {
        self.size.div_ceil(PAGE_SIZE) as u64
    }

    /// The bytes, unless this is a count.
    fn encode(&self, id: u64) -> Option<Vec<u8>> {
        let wanted: usize = self.elements.iter().map(|(_, key, value)| key + value).sum();
        if self.data.len() != wanted {
            return None;
        }
        let mut page = Vec::with_capacity(self.pages() as usize * PAGE_SIZE);
        page.extend_from_slice(&header(id, self.kind, self.elements.len() as u16, self.pages() as u32 - 1));
        let mut place = self.elements.len() * HEADER;
        for (tag, key, value) in &self.elements {
            let (from, lens) = ((place as u32).to_le_bytes(), [*key as u32, *value as u32].map(u32::to_le_bytes));
            if self.kind == BRANCH {
                page.extend_from_slice(&[from, lens[0]].concat());
                page.extend_from_slice(&tag.to_le_bytes());
            } else {
                page.extend_from_slice(&[(*tag as u32).to_le_bytes(), from, lens[0], lens[1]].concat());
            }
            place = place - HEADER + key + value;
        }
        page.extend_from_slice(&self.data);
        page.resize(self.pages() as usize * PAGE_SIZE, 0);
        Some(page)
    }
}

/// The trees of a database, one behind the other.
pub struct Trees<S> {
    sink: S,
    next: u64,
    /// Of the present tree, the open page of each level, leaves first.
    levels: Vec<Open>,
}

impl<S: Sink> Trees<S> {
    /// Trees behind the first pages.
    pub fn new(sink: S) -> Self {
        Self { sink, next: FIRST_FREE, levels: vec![] }
    }

    /// Adds a key to the present tree. Keys come in order.
    ///
    /// # Errors
    /// When the sink refuses.
    pub fn push(&mut self, key: Part<'_>, value: Part<'_>) -> Result<(), S::Error> {
        self.add(0, 0, key, value)
    }

    fn add(&mut self, level: usize, tag: u64, key: Part<'_>, value: Part<'_>) -> Result<(), S::Error> {
        if self.levels.len() == level {
            self.levels.push(Open::new(if level == 0 { LEAF } else { BRANCH }));
        }
        if !self.levels[level].has_room(key, value) {
            let (id, first) = self.close(level)?;
            self.add(level + 1, id, first.part(), Part::Bytes(&[]))?;
        }
        self.levels[level].add(tag, key, value);
        Ok(())
    }

    /// Hands the open page of a level on. Tells its number and its first key.
    fn close(&mut self, level: usize) -> Result<(u64, Key), S::Error> {
        let kind = self.levels[level].kind;
        let page = std::mem::replace(&mut self.levels[level], Open::new(kind));
        let id = self.next;
        self.next += page.pages();
        self.sink.take(page.encode(id))?;
        Ok((id, page.first))
    }

    /// Ends the present tree; tells its root. The next key begins another one.
    ///
    /// # Errors
    /// When the sink refuses.
    pub fn finish(&mut self) -> Result<u64, S::Error> {
        if self.levels.is_empty() {
            self.levels.push(Open::new(LEAF));
        }
        let mut level = 0;
        loop {
            let (id, first) = self.close(level)?;
            level += 1;
            if level == self.levels.len() {
                self.levels.clear();
                return Ok(id);
            }
            self.add(level, id, first.part(), Part::Bytes(&[]))?;
        }
    }

    /// How many pages there are, those before the trees included, and the sink.
    pub fn end(self) -> (u64, S) {
        (self.next, self.sink)
    }
}

/// The first pages: of a database with that many pages, with buckets of that name and root, in order of their names.
pub fn first_pages(pages: u64, buckets: &[(&str, u64)]) -> Vec<u8> {
    let meta = |transaction| Meta {
        page_size: PAGE_SIZE as u32,
        root: ROOT_PAGE,
        freelist: FREELIST_PAGE,
        pages,
        transaction,
    };
    let mut first = [meta(0).encode(0), meta(1).encode(1)].concat();
    first.extend_from_slice(&header(FREELIST_PAGE, FREELIST, 0, 0));
    first.resize(3 * PAGE_SIZE, 0);
    let mut root = Open::new(LEAF);
    for (name, page) in buckets {
        let mut bucket = [0; BUCKET_HEADER];
        bucket[..8].copy_from_slice(&page.to_le_bytes());
        root.add(u64::from(BUCKET), Part::Bytes(name.as_bytes()), Part::Bytes(&bucket));
    }
    first.extend(root.encode(ROOT_PAGE).unwrap_or_default());
    debug_assert_eq!(first.len(), FIRST_FREE as usize * PAGE_SIZE);
    first
}
