//! Finds the watchers that a key concerns: exact keys by hash, ranges by an interval tree.
//!
//! The tree is a sorted array with the largest range end of each subtree. Ranges that came since it was last built wait in
//! a short list beside it, so adding and removing stays cheap. A look-up costs a logarithm of the number of distinct
//! ranges, however many watchers there are.

use std::collections::HashMap;

use eddy_crdt::{Key, KeyRange};

/// How many new ranges are searched one by one before the tree is built anew, besides an eighth of the tree's size.
const RECENT_MAX: usize = 32;

/// Where a range ends: before a key, or nowhere.
type End = Option<Key>;

/// A multimap from key ranges to subscribers.
#[derive(Debug)]
pub(crate) struct Matcher<T> {
    keys: HashMap<Key, Vec<T>>,
    ranges: Vec<Node<T>>,
    /// Nodes before this are sorted by start and searched as a tree.
    sorted: usize,
    places: HashMap<(Key, End), usize>,
    /// How many nodes have no subscribers; they are dropped when the tree is built anew.
    empty: usize,
}

#[derive(Debug)]
struct Node<T> {
    start: Key,
    end: End,
    /// The furthest end in the subtree of which this node is the root.
    furthest: End,
    subscribers: Vec<T>,
}

impl<T> Default for Matcher<T> {
    fn default() -> Self {
        Self { keys: HashMap::new(), ranges: Vec::new(), sorted: 0, places: HashMap::new(), empty: 0 }
    }
}

/// Whether a range that ends there can hold the key.
fn reaches(end: &End, key: &[u8]) -> bool {
    end.as_ref().is_none_or(|end| key < &end[..])
}

fn further(a: &End, b: &End) -> End {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b).clone()),
        _ => None,
    }
}

impl<T: PartialEq> Matcher<T> {
    /// Subscribes to a range. The same subscriber must not subscribe to the same range twice.
    pub(crate) fn insert(&mut self, range: &KeyRange, subscriber: T) {
        let (start, end) = match range {
            KeyRange::Key(key) => {
                self.keys.entry(key.clone()).or_default().push(subscriber);
                return;
            }
            KeyRange::Span(start, end) => (start.clone(), Some(end.clone())),
            KeyRange::From(start) => (start.clone(), None),
        };
        if let Some(place) = self.places.get(&(start.clone(), end.clone())) {
            let node = &mut self.ranges[*place];
            self.empty -= usize::from(node.subscribers.is_empty());
            node.subscribers.push(subscriber);
            return;
        }
        self.places.insert((start.clone(), end.clone()), self.ranges.len());
        self.ranges.push(Node { start, furthest: end.clone(), end, subscribers: vec![subscriber] });
        if self.ranges.len() - self.sorted > RECENT_MAX + self.sorted / 8 {
            self.build();
        }
    }

    /// Ends a subscription.
    pub(crate) fn remove(&mut self, range: &KeyRange, subscriber: &T) {
        let (start, end) = match range {
            KeyRange::Key(key) => {
                if let Some(subscribers) = self.keys.get_mut(key) {
                    subscribers.retain(|s| s != subscriber);
                    if subscribers.is_empty() {
                        self.keys.remove(key);
                    }
                }
                return;
            }
            KeyRange::Span(start, end) => (start.clone(), Some(end.clone())),
            KeyRange::From(start) => (start.clone(), None),
        };
        let Some(place) = self.places.get(&(start, end)) else { return };
        let node = &mut self.ranges[*place];
        if node.subscribers.is_empty() {
            return;
        }
        node.subscribers.retain(|s| s != subscriber);
        self.empty += usize::from(node.subscribers.is_empty());
        if self.empty > RECENT_MAX + self.ranges.len() / 4 {
            self.build();
        }
    }

    fn build(&mut self) {
        self.ranges.retain(|node| !node.subscribers.is_empty());
        self.empty = 0;
        self.ranges.sort_by(|a, b| a.start.cmp(&b.start));
        self.sorted = self.ranges.len();
        self.places = self
            .ranges
            .iter()
            .enumerate()
            .map(|(place, node)| ((node.start.clone(), node.end.clone()), place))
            .collect();
        measure(&mut self.ranges);
    }

    /// Whether there are no subscribers.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.len() == self.empty
    }

    /// Shows all subscribers of the key.
    pub(crate) fn visit<'a>(&'a self, key: &[u8], visit: &mut impl FnMut(&'a T)) {
        if let Some(subscribers) = self.keys.get(key) {
            subscribers.iter().for_each(&mut *visit);
        }
        let (sorted, recent) = self.ranges.split_at(self.sorted);
        stab(sorted, key, visit);
        for node in recent {
            if node.start[..] <= *key && reaches(&node.end, key) {
                node.subscribers.iter().for_each(&mut *visit);
            }
        }
    }
}

/// Notes the furthest end of every subtree; the middle of a slice is its root.
fn measure<T>(nodes: &mut [Node<T>]) -> Option<End> {
    if nodes.is_empty() {
        return None;
    }
    let middle = nodes.len() / 2;
    let (left, rest) = nodes.split_at_mut(middle);
    let (root, right) = rest.split_first_mut()?;
    let mut furthest = root.end.clone();
    for end in [measure(left), measure(right)].into_iter().flatten() {
        furthest = further(&furthest, &end);
    }
    root.furthest = furthest.clone();
    Some(furthest)
}

fn stab<'a, T>(nodes: &'a [Node<T>], key: &[u8], visit: &mut impl FnMut(&'a T)) {
    if nodes.is_empty() {
        return;
    }
    let middle = nodes.len() / 2;
    let root = &nodes[middle];
    if !reaches(&root.furthest, key) {
        return;
    }
    stab(&nodes[..middle], key, visit);
    if root.start[..] <= *key {
        if reaches(&root.end, key) {
            root.subscribers.iter().for_each(&mut *visit);
        }
        stab(&nodes[middle + 1..], key, visit);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn key(rng: &mut SmallRng) -> Key {
        let len = rng.random_range(1..4);
        (0..len).map(|_| rng.random_range(b'a'..b'e')).collect::<Vec<u8>>().into()
    }

    #[test]
    fn finds_exactly_the_ranges_that_contain_the_key() {
        for seed in 0..30 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut matcher = Matcher::default();
            let mut model: Vec<(KeyRange, usize)> = Vec::new();
            for step in 0..600 {
                if rng.random_bool(0.3) && !model.is_empty() {
                    let (range, subscriber) = model.swap_remove(rng.random_range(0..model.len()));
                    matcher.remove(&range, &subscriber);
                } else {
                    let range = match rng.random_range(0..3) {
                        0 => KeyRange::Key(key(&mut rng)),
                        1 => KeyRange::Span(key(&mut rng), key(&mut rng)),
                        _ => KeyRange::From(key(&mut rng)),
                    };
                    matcher.insert(&range, step);
                    model.push((range, step));
                }
                let probe = key(&mut rng);
                let mut found = Vec::new();
                matcher.visit(&probe, &mut |s| found.push(*s));
                found.sort_unstable();
                let mut expected: Vec<usize> =
                    model.iter().filter(|(range, _)| range.contains(&probe)).map(|(_, s)| *s).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "seed {seed}, step {step}, key {probe:?}");
                assert_eq!(matcher.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn ten_thousand_distinct_keys_cost_a_commit_one_look_up() {
        let mut matcher = Matcher::default();
        for n in 0..10_000u32 {
            matcher.insert(&KeyRange::Key(Bytes::copy_from_slice(&n.to_be_bytes())), n);
        }
        let mut found = Vec::new();
        matcher.visit(&77u32.to_be_bytes(), &mut |s| found.push(*s));
        assert_eq!(found, [77]);
    }
}
