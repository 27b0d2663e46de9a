//! Sets of indexes as an indexed Job writes them: `1,3-5`.

use std::collections::BTreeSet;
use std::fmt;

/// A set of indexes, as ranges in order. Two of them do not touch: the ends are the first and the last index of a range.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Indexes(Vec<(i64, i64)>);

impl Indexes {
    /// Reads one; `None` for what is none.
    pub fn read(text: &str) -> Option<Self> {
        let mut ranges = vec![];
        for range in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let index = |text: &str| text.parse::<i32>().ok().filter(|index| *index >= 0).map(i64::from);
            let (first, last) = (index(first)?, index(last)?);
            if first > last {
                return None;
            }
            ranges.push((first, last));
        }
        ranges.sort_unstable();
        let mut all = Self::default();
        ranges.into_iter().for_each(|(first, last)| all.add(first, last));
        Some(all)
    }

    /// Adds a range that begins at none before the last one.
    fn add(&mut self, first: i64, last: i64) {
        match self.0.last_mut() {
            Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
            _ => self.0.push((first, last)),
        }
    }

    /// Whether none is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are in it.
    pub fn len(&self) -> i64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    fn has(&self, index: i64) -> bool {
        let before = self.0.partition_point(|(first, _)| *first <= index);
        before.checked_sub(1).is_some_and(|at| index <= self.0[at].1)
    }

    /// The indexes for which `keep` says so. It says the same of all between two bounds of these sets.
    fn of(sets: &[&Self], keep: impl Fn(i64) -> bool) -> Self {
        let bounds: BTreeSet<i64> =
            sets.iter().flat_map(|set| &set.0).flat_map(|(first, last)| [*first, last + 1]).collect();
        let mut all = Self::default();
        for (first, next) in bounds.iter().zip(bounds.iter().skip(1)) {
            if keep(*first) {
                all.add(*first, next - 1);
            }
        }
        all
    }

    /// What became of this set at several sides: what was there and still is at all of them, and what any of them added.
    pub fn merged<'a>(&self, sides: impl Iterator<Item = &'a Self>) -> Self {
        let sides: Vec<&Self> = sides.collect();
        let all: Vec<&Self> = sides.iter().copied().chain([self]).collect();
        let has = |index: i64| move |side: &&Self| side.has(index);
        Self::of(
            &all,
            |index| if self.has(index) { sides.iter().all(has(index)) } else { sides.iter().any(has(index)) },
        )
    }

    /// Those of them that are not in the other.
    pub fn without(&self, other: &Self) -> Self {
        Self::of(&[self, other], |index| self.has(index) && !other.has(index))
    }
}

/// As the job controller writes it: two neighbours are no range.
impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            f.write_str(if at > 0 { "," } else { "" })?;
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Indexes {
        Indexes::read(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn indexes_are_read_and_written_as_the_job_controller_does() {
        for (text, written, len) in [
            ("", "", 0),
            ("0", "0", 1),
            ("1,2", "1,2", 2),
            ("1,2,3", "1-3", 3),
            ("7,1,3-5", "1,3-5,7", 5),
            ("1-5,2", "1-5", 5),
        ] {
            assert_eq!((read(text).to_string().as_str(), read(text).len()), (written, len));
        }
        assert_eq!(read("0-2147483647").len(), 1 << 31);
        for text in [",", "1,", "a", "1-", "-1", "3-1", "1 ", "2147483648"] {
            assert_eq!(Indexes::read(text), None, "{text}");
        }
    }

    /// All triples of subsets of four indexes, beside sets of numbers.
    #[test]
    fn sets_merge_index_by_index() {
        let of = |bits: usize| {
            let all: Vec<String> =
                (0..4).filter(|index| bits >> index & 1 == 1).map(|index| index.to_string()).collect();
            read(&all.join(","))
        };
        for (base, a, b) in (0..16 * 16 * 16).map(|n| (n & 15, n >> 4 & 15, n >> 8)) {
            let merged = of(base).merged([of(a), of(b)].iter());
            assert_eq!(merged, of(base & a & b | !base & (a | b)), "{base:b} {a:b} {b:b}");
            assert_eq!(of(a).without(&of(b)), of(a & !b));
        }
    }
}
