//! Reads a database of bbolt's format, and trusts nothing in it.
//!
//! Every number is checked before it is used: places against their page, pages against the file. No page may be met twice,
//! so there is no circle, and none that the freelist names. Keys must stand in order, within and across pages. What is
//! wrong is told with the page.

use std::io::{Read, Seek, SeekFrom};

use super::page::{BRANCH, BUCKET, BUCKET_HEADER, FREELIST, HEADER, LEAF, Meta, MetaError, NO_FREELIST};
use super::page::{u16_at, u32_at, u64_at};

/// The deepest tree that is read. One of two children a branch would have more pages than a file can have.
const DEPTH_MAX: usize = 40;

/// The longest page, overflow included: far above the largest value that etcd can be told to take by default.
const PAGE_BYTES_MAX: u64 = 256 << 20;

/// A count of a freelist that is too large for its header: the count follows.
const MANY: u16 = u16::MAX;

/// Why a database can't be read.
#[derive(Debug, thiserror::Error)]
pub enum BadDatabase {
    /// The file itself can't be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Neither of its first two pages says where the rest is.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The end is missing.
    #[error("it is truncated: it has {has} bytes, and says that it has {pages} pages of {page_size}")]
    Truncated {
        /// Bytes of the file.
        has: u64,
        /// Pages in use.
        pages: u64,
        /// Bytes of a page.
        page_size: u32,
    },
    /// A page is not as bbolt writes it.
    #[error("page {id} is damaged: {what}")]
    Page {
        /// The page.
        id: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A bucket that has to be there is not.
    #[error("it has no bucket {0:?}, so etcd did not write it")]
    NoBucket(&'static str),
}

/// Which pages were met.
struct Pages(Vec<u64>);

impl Pages {
    fn of(count: u64) -> Self {
        Self(vec![0; (count / 64 + 1) as usize])
    }

    /// Notes a page; tells whether it was noted before.
    fn note(&mut self, id: u64) -> bool {
        let (word, bit) = ((id / 64) as usize, 1_u64 << (id % 64));
        let Some(word) = self.0.get_mut(word) else { return true };
        let had = *word & bit != 0;
        *word |= bit;
        had
    }
}

/// A bucket: its root page, or its only page itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bucket {
    /// The number of its root page.
    Root(u64),
    /// The bytes of its page.
    Inline(Vec<u8>),
}

/// What stands under a key.
enum Item<'a> {
    Value(&'a [u8]),
    Bucket(Bucket),
}

/// A database that is being read.
pub struct Database<F> {
    file: F,
    meta: Meta,
    met: Pages,
}

/// Where the keys of a page must lie: from one on, and below another.
#[derive(Clone, Default)]
struct Bounds {
    from: Vec<u8>,
    below: Option<Vec<u8>>,
}

/// A page with what overflows of it.
struct Page {
    id: u64,
    kind: u16,
    count: usize,
    bytes: Vec<u8>,
}

type Reads<T> = Result<T, BadDatabase>;

fn bad<T>(id: u64, what: &'static str) -> Reads<T> {
    Err(BadDatabase::Page { id, what })
}

impl<F: Read + Seek> Database<F> {
    /// A database in the first `len` bytes of a file.
    ///
    /// # Errors
    /// When it is none, or its end is missing.
    pub fn open(mut file: F, len: u64) -> Reads<Self> {
        let meta = newest_meta(&mut file, len)?;
        let size = u64::from(meta.page_size);
        if meta.pages.checked_mul(size).is_none_or(|bytes| bytes > len) {
            return Err(BadDatabase::Truncated { has: len, pages: meta.pages, page_size: meta.page_size });
        }
        let mut database = Self { file, meta, met: Pages::of(meta.pages) };
        database.met.note(0);
        database.met.note(1);
        if meta.freelist != NO_FREELIST {
            database.read_freelist()?;
        }
        Ok(database)
    }

    /// Notes the free pages, so that none of them is read.
    fn read_freelist(&mut self) -> Reads<()> {
        let page = self.page(self.meta.freelist)?;
        if page.kind != FREELIST {
            return bad(page.id, "it should be the freelist and is not");
        }
        let (count, from) = match page.count {
            count if count == usize::from(MANY) => (u64_at(&page.bytes, HEADER).unwrap_or(u64::MAX), HEADER + 8),
            count => (count as u64, HEADER),
        };
        if count > ((page.bytes.len() - HEADER) / 8) as u64 {
            return bad(page.id, "the freelist is longer than its page");
        }
        for place in 0..count as usize {
            let Some(free) = u64_at(&page.bytes, from + 8 * place) else {
                return bad(page.id, "the freelist is longer than its page");
            };
            if free < 2 || free >= self.meta.pages || self.met.note(free) {
                return bad(page.id, "the freelist names a page twice, or one that is not there");
            }
        }
        Ok(())
    }

    /// The buckets at the top, by name, in order.
    ///
    /// # Errors
    /// When the root is damaged, or holds anything but buckets.
    pub fn buckets(&mut self) -> Reads<Vec<(Vec<u8>, Bucket)>> {
        let mut buckets = vec![];
        let mut plain = false;
        self.walk(&Bucket::Root(self.meta.root), &mut |key, item| {
            match item {
                Item::Bucket(bucket) => buckets.push((key.to_vec(), bucket)),
                Item::Value(_) => plain = true,
            }
            Ok::<(), BadDatabase>(())
        })?;
        if plain { bad(self.meta.root, "the root holds a key that is no bucket") } else { Ok(buckets) }
    }

    /// Shows all keys of a bucket with their values, in order. Buckets within it are left out.
    ///
    /// # Errors
    /// When it is damaged, or `show` refuses.
    pub fn each<E: From<BadDatabase>>(
        &mut self,
        bucket: &Bucket,
        mut show: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.walk(bucket, &mut |key, item| match item {
            Item::Value(value) => show(key, value),
            Item::Bucket(_) => Ok(()),
        })
    }

    fn walk<E: From<BadDatabase>>(
        &mut self,
        bucket: &Bucket,
        show: &mut impl FnMut(&[u8], Item<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match bucket {
            Bucket::Root(root) => self.walk_page(*root, &Bounds::default(), 0, show),
            Bucket::Inline(bytes) => {
                let page = Page::decode(0, bytes.clone())?;
                if page.kind != LEAF {
                    return Ok(bad(0, "a small bucket is no leaf")?);
                }
                page.leaves(&Bounds::default(), show)
            }
        }
    }

    fn walk_page<E: From<BadDatabase>>(
        &mut self,
        id: u64,
        bounds: &Bounds,
        depth: usize,
        show: &mut impl FnMut(&[u8], Item<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if depth == DEPTH_MAX {
            return Ok(bad(id, "the tree is too deep")?);
        }
        let page = self.page(id)?;
        match page.kind {
            LEAF => page.leaves(bounds, show),
            BRANCH => {
                for (child, bounds) in page.children(bounds)? {
                    self.walk_page(child, &bounds, depth + 1, show)?;
                }
                Ok(())
            }
            _ => Ok(bad(id, "it should be a branch or a leaf and is neither")?),
        }
    }

    /// Reads a page that was not read before.
    fn page(&mut self, id: u64) -> Reads<Page> {
        let size = u64::from(self.meta.page_size);
        if id >= self.meta.pages {
            return bad(id, "it lies behind the last page");
        }
        let mut header = [0; HEADER];
        self.file.seek(SeekFrom::Start(id * size))?;
        self.file.read_exact(&mut header)?;
        let overflow = u64::from(u32_at(&header, 12).unwrap_or(u32::MAX));
        if id + overflow >= self.meta.pages || (overflow + 1) * size > PAGE_BYTES_MAX {
            return bad(id, "it goes on behind the last page");
        }
        for part in id..=id + overflow {
            if self.met.note(part) {
                return bad(part, "it is named twice, or free");
            }
        }
        let mut bytes = vec![0; ((overflow + 1) * size) as usize];
        bytes[..HEADER].copy_from_slice(&header);
        self.file.read_exact(&mut bytes[HEADER..])?;
        Page::decode(id, bytes)
    }
}

/// The valid meta with the higher transaction. Where the first one is not valid, the page size is not known either, and the
/// second one is looked for at all that it can be.
fn newest_meta<F: Read + Seek>(file: &mut F, len: u64) -> Reads<Meta> {
    let mut read = |at: u64| {
        let mut bytes = vec![];
        if at < len {
            file.seek(SeekFrom::Start(at))?;
            file.take((len - at).min(256)).read_to_end(&mut bytes)?;
        }
        Ok::<_, std::io::Error>(Meta::decode(&bytes))
    };
    let first = read(0)?;
    let second = match &first {
        Ok(meta) => read(u64::from(meta.page_size))?.ok().filter(|second| second.page_size == meta.page_size),
        Err(_) => {
            let mut found = None;
            for shift in 9..=16 {
                let at = 1_u64 << shift;
                found = found.or(read(at)?.ok().filter(|meta| u64::from(meta.page_size) == at));
            }
            found
        }
    };
    match (first, second) {
        (Ok(first), Some(second)) => Ok(if second.transaction > first.transaction { second } else { first }),
        (Ok(meta), None) | (Err(_), Some(meta)) => Ok(meta),
        (Err(error), None) => Err(error.into()),
    }
}

impl Page {
    fn decode(id: u64, bytes: Vec<u8>) -> Reads<Self> {
        let numbers = (u64_at(&bytes, 0), u16_at(&bytes, 8), u16_at(&bytes, 10));
        let (Some(found), Some(kind), Some(count)) = numbers else { return bad(id, "it is too short") };
        let Some(room) = bytes.len().checked_sub(HEADER) else { return bad(id, "it is too short") };
        if found != id {
            return bad(id, "it says another number");
        }
        let page = Self { id, kind, count: usize::from(count), bytes };
        if kind != FREELIST && page.count > room / HEADER {
            return bad(id, "it has more elements than fit");
        }
        Ok(page)
    }

    /// The key and the value at a place that is counted from an element, behind those of the element before. Tells also
    /// where they end.
    fn pair(&self, element: usize, place: u32, lens: [u32; 2], behind: usize) -> Reads<(&[u8], &[u8], usize)> {
        let outside = || bad(self.id, "an element lies outside of it, or over another one");
        let [Some(from), Some(key), Some(value)] = [element as u64 + u64::from(place), lens[0].into(), lens[1].into()]
            .map(|number: u64| usize::try_from(number).ok())
        else {
            return outside();
        };
        let middle = from.checked_add(key);
        let end = middle.and_then(|middle| middle.checked_add(value));
        let (Some(middle), Some(end)) = (middle, end) else { return outside() };
        match (self.bytes.get(from..middle), self.bytes.get(middle..end)) {
            (Some(key), Some(value)) if from >= behind => Ok((key, value, end)),
            _ => outside(),
        }
    }

    /// Where the elements end.
    fn elements_end(&self) -> usize {
        HEADER + self.count * HEADER
    }

    fn number(&self, at: usize) -> Reads<u32> {
        u32_at(&self.bytes, at).map_or_else(|| bad(self.id, "it is too short"), Ok)
    }

    /// Checks that a key follows the one before it, and lies where it must.
    fn check_order(&self, last: Option<&[u8]>, key: &[u8], bounds: &Bounds) -> Reads<()> {
        if last.is_some_and(|last| last >= key) {
            return bad(self.id, "its keys are not in order");
        }
        if key < &bounds.from[..] || bounds.below.as_ref().is_some_and(|below| key >= &below[..]) {
            return bad(self.id, "a key lies outside of what its branch says");
        }
        Ok(())
    }

    fn leaves<E: From<BadDatabase>>(
        &self,
        bounds: &Bounds,
        show: &mut impl FnMut(&[u8], Item<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut last, mut behind) = (None, self.elements_end());
        for place in 0..self.count {
            let element = HEADER + place * HEADER;
            let [flags, from, key, value] = [0, 4, 8, 12].map(|at| self.number(element + at));
            let (flags, from, key_len, value_len) = (flags?, from?, key?, value?);
            let (key, value, end) = self.pair(element, from, [key_len, value_len], behind)?;
            behind = end;
            self.check_order(last, key, bounds)?;
            last = Some(key);
            match flags {
                0 => show(key, Item::Value(value))?,
                BUCKET => show(key, Item::Bucket(self.bucket(value)?))?,
                _ => return Ok(bad(self.id, "an element has unknown flags")?),
            }
        }
        Ok(())
    }

    fn bucket(&self, value: &[u8]) -> Reads<Bucket> {
        match u64_at(value, 0) {
            None => bad(self.id, "a bucket is too short"),
            Some(0) if value.len() >= BUCKET_HEADER + HEADER => Ok(Bucket::Inline(value[BUCKET_HEADER..].to_vec())),
            Some(0) => bad(self.id, "a small bucket is too short"),
            Some(root) => Ok(Bucket::Root(root)),
        }
    }

    /// The children of a branch, each with where its keys must lie.
    fn children(&self, bounds: &Bounds) -> Reads<Vec<(u64, Bounds)>> {
        if self.count == 0 {
            return bad(self.id, "it is an empty branch");
        }
        let mut children: Vec<(u64, Bounds)> = vec![];
        let mut behind = self.elements_end();
        for place in 0..self.count {
            let element = HEADER + place * HEADER;
            let (from, len) = (self.number(element)?, self.number(element + 4)?);
            let (key, _, end) = self.pair(element, from, [len, 0], behind)?;
            let key = key.to_vec();
            behind = end;
            let last = children.last().map(|(_, bounds)| &bounds.from[..]);
            self.check_order(last, &key, bounds)?;
            if let Some((_, before)) = children.last_mut() {
                before.below = Some(key.clone());
            }
            let child = u64_at(&self.bytes, element + 8).unwrap_or(u64::MAX);
            children.push((child, Bounds { from: key, below: bounds.below.clone() }));
        }
        Ok(children)
    }
}
