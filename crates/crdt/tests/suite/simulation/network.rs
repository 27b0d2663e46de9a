//! Connections between hosts: reliable and in order as long as they last, and what is on its way is lost with them.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use eddy_crdt::sync::Session;
use rand::Rng;
use rand::rngs::SmallRng;

use super::nemesis::Cut;

/// One side of a connection.
pub struct End {
    pub host: usize,
    /// None once it is closed.
    pub session: Option<Session>,
    /// What is on its way to this side, and when it arrives.
    pub inbox: VecDeque<(u64, Bytes)>,
    /// When it is polled next.
    pub poll_ms: Option<u64>,
    /// Since when nothing gets through.
    pub stalled_ms: Option<u64>,
}

pub struct Connection {
    pub ends: [End; 2],
}

impl Connection {
    pub fn is_closed(&self) -> bool {
        self.ends.iter().all(|end| end.session.is_none())
    }

    /// Puts a message on its way to a side; tells when it arrives there.
    pub fn send(
        &mut self,
        to: usize,
        ms: u64,
        delay_ms: u64,
        mangles: bool,
        rng: &mut SmallRng,
        message: Bytes,
    ) -> Vec<u64> {
        let inbox = &mut self.ends[to].inbox;
        let at = (ms + rng.random_range(0..=delay_ms)).max(inbox.back().map_or(0, |(at, _)| *at));
        let mut copies = vec![message];
        // A greeting comes first.
        if mangles && !inbox.is_empty() {
            match rng.random_range(0..20) {
                1 => copies.push(copies[0].clone()),
                2 if inbox.len() > 1 => {
                    if let Some((_, last)) = inbox.back_mut() {
                        std::mem::swap(last, &mut copies[0]);
                    }
                }
                _ => {}
            }
        }
        let count = copies.len();
        inbox.extend(copies.into_iter().map(|message| (at, message)));
        vec![at; count]
    }
}

/// Who cannot be reached from where.
#[derive(Default)]
pub struct Blocked(BTreeSet<(usize, usize)>);

impl Blocked {
    pub fn cut(&mut self, cut: Cut, count: usize) {
        let mut both = |a: usize, b: usize| {
            self.0.insert((a, b));
            self.0.insert((b, a));
        };
        let pairs = || (0..count).flat_map(move |a| (a + 1..count).map(move |b| (a, b)));
        match cut {
            Cut::Alone(one) => pairs().filter(|(a, b)| *a == one || *b == one).for_each(|(a, b)| both(a, b)),
            Cut::Halves(at) => pairs().filter(|(a, b)| (*a < at) != (*b < at)).for_each(|(a, b)| both(a, b)),
            Cut::Ring => {
                let apart = |(a, b): &(usize, usize)| b - a != 1 && b - a != count - 1;
                pairs().filter(apart).for_each(|(a, b)| both(a, b));
            }
            Cut::Pair(a, b) => both(a, b),
            Cut::OneWay(a, b) => drop(self.0.insert((a, b))),
        }
    }

    /// Only these pairs can talk.
    pub fn only(&mut self, open: &[(usize, usize)], count: usize) {
        let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        self.0 = pairs.filter(|(a, b)| a != b && !open.contains(&(*a.min(b), *a.max(b)))).collect();
    }

    pub fn mend(&mut self) {
        self.0.clear();
    }

    pub fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.0.contains(&(from, to))
    }

    pub fn is_open(&self, a: usize, b: usize) -> bool {
        !self.is_blocked(a, b) && !self.is_blocked(b, a)
    }
}
