//! A handful of sites that write one key. Each site computes the version and incarnation of what it writes from what it
//! sees, as a replica does.

use std::sync::Arc;

use bytes::Bytes;
use eddy_crdt::merge::{self, MergeOutcome, RuleBook, Version, Window};
use eddy_crdt::{
    Birth, ChangeKind, Dot, Incarnation, Keyspace, LeaseId, Live, Origin, ReplicaId, Stamp, VersionVector,
};

/// What a site does to the key.
pub enum Written {
    Put(Bytes, Option<LeaseId>),
    Delete,
    Expire,
}

/// A key, and the rules by which it is merged.
#[derive(Clone, Debug)]
pub struct Place {
    pub rules: RuleBook,
    pub keyspace: Keyspace,
    pub key: &'static [u8],
}

impl Place {
    pub fn client(key: &'static str) -> Self {
        Self { rules: RuleBook::default(), keyspace: Keyspace::Client, key: key.as_bytes() }
    }

    pub fn outcome(&self, window: &Window) -> MergeOutcome {
        window.outcome(&self.rules, self.keyspace, self.key)
    }

    pub fn settle(&self, window: &mut Window, floor: &VersionVector) {
        window.settle(floor, &self.rules, self.keyspace, self.key, |_| true);
    }

    /// A window with these versions on top of nothing.
    pub fn window<'a>(&self, versions: impl IntoIterator<Item = &'a Version>) -> Window {
        let mut window = Window::new(None);
        versions.into_iter().for_each(|version| window.add(version.clone()));
        window
    }
}

struct Site {
    origin: Origin,
    vector: VersionVector,
    seq: u64,
    /// What it knows, in the order in which it learned it.
    versions: Vec<Version>,
}

/// All sites.
pub struct Sites {
    pub place: Place,
    sites: Vec<Site>,
    /// Everything that was ever written, ancestors before descendants.
    pub history: Vec<Version>,
    now: u64,
}

impl Sites {
    pub fn new(place: Place, count: usize) -> Self {
        let site = |i| Site {
            origin: Origin { replica: ReplicaId::new(i as u64 + 1), birth: Birth::new(7) },
            vector: VersionVector::default(),
            seq: 0,
            versions: vec![],
        };
        Self { place, sites: (0..count).map(site).collect(), history: vec![], now: 100 }
    }

    /// What a site sees.
    pub fn outcome(&self, site: usize) -> MergeOutcome {
        self.place.outcome(&self.place.window(&self.sites[site].versions))
    }

    pub fn live(&self, site: usize) -> Option<Live> {
        self.outcome(site).live
    }

    /// What a site knows.
    pub fn known(&self, site: usize) -> &[Version] {
        &self.sites[site].versions
    }

    pub fn vector(&self, site: usize) -> &VersionVector {
        &self.sites[site].vector
    }

    pub fn put(&mut self, site: usize, value: impl Into<Bytes>) -> Dot {
        self.put_with(site, value, None)
    }

    pub fn put_with(&mut self, site: usize, value: impl Into<Bytes>, lease: Option<LeaseId>) -> Dot {
        self.now += 1;
        self.write(site, Written::Put(value.into(), lease), Stamp::new(self.now))
    }

    pub fn delete(&mut self, site: usize) -> Dot {
        self.now += 1;
        self.write(site, Written::Delete, Stamp::new(self.now))
    }

    pub fn expire(&mut self, site: usize) -> Dot {
        self.now += 1;
        self.write(site, Written::Expire, Stamp::new(self.now))
    }

    /// One write at that stamp; a delete of what is not there is not asked for.
    pub fn write(&mut self, site: usize, written: Written, stamp: Stamp) -> Dot {
        let before = self.live(site);
        let me = &mut self.sites[site];
        me.seq += 1;
        let dot = Dot { origin: me.origin, seq: me.seq };
        let own = Incarnation { stamp, dot };
        let Place { rules, keyspace, key } = &self.place;
        let rules = rules.current();
        let (kind, incarnation) = match written {
            Written::Put(value, lease) => {
                let anew = |before: &Live| merge::begins_anew(rules, *keyspace, key, &before.value, &value);
                let incarnation = before.as_ref().filter(|before| !anew(before)).map_or(own, |live| live.incarnation);
                let continues = before.as_ref().filter(|before| before.incarnation == incarnation);
                let version = continues.map_or(1, |before| before.version + 1);
                (ChangeKind::Put { value, lease, version }, incarnation)
            }
            Written::Delete => (ChangeKind::Delete, before.map_or(own, |before| before.incarnation)),
            Written::Expire => (ChangeKind::Expire, before.map_or(own, |before| before.incarnation)),
        };
        let deps = me.vector.iter().filter(|dep| dep.origin != me.origin).collect();
        let version = Version { dot, stamp, rules: rules.number, deps: Arc::new(deps), kind, incarnation };
        me.vector.advance(dot);
        me.versions.push(version.clone());
        self.history.push(version);
        dot
    }

    /// An entry that does not touch the key.
    pub fn idle(&mut self, site: usize) {
        let me = &mut self.sites[site];
        me.seq += 1;
        me.vector.advance(Dot { origin: me.origin, seq: me.seq });
    }

    /// One site learns what another knows.
    pub fn sync(&mut self, from: usize, to: usize) {
        let known = self.sites[from].versions.clone();
        let vector = self.sites[from].vector.clone();
        let to = &mut self.sites[to];
        to.versions.extend(known.into_iter().filter(|version| !to.vector.contains(version.dot)));
        vector.iter().for_each(|dot| to.vector.advance(dot));
    }

    /// Everybody learns everything.
    pub fn sync_all(&mut self) {
        let count = self.sites.len();
        (1..count).for_each(|from| self.sync(from, 0));
        (1..count).for_each(|to| self.sync(0, to));
    }

    /// The first two learn what the other knows.
    pub fn exchange(&mut self) {
        self.sync(0, 1);
        self.sync(1, 0);
    }

    /// The last versions of the first two again and again, each time with another value, until there are so many. Each
    /// was made beside the other's, on top of both of before.
    pub fn repeat(&mut self, count: usize) {
        let [.., first, second] = &self.history[..] else { return };
        let lasts = [first.clone(), second.clone()];
        for n in 1..=(count.saturating_sub(self.history.len()) as u64).div_ceil(2) {
            for (at, last) in lasts.iter().enumerate() {
                let beside = lasts[1 - at].dot;
                let mut version = last.clone();
                version.dot.seq += n;
                version.stamp = Stamp::new(1_000_000 + 2 * n + at as u64);
                version.deps = Arc::new([Dot { seq: beside.seq + n - 1, ..beside }].into_iter().collect());
                if let ChangeKind::Put { value, .. } = &mut version.kind {
                    let text = String::from_utf8_lossy(value);
                    let own = format!("{at}-9");
                    *value = text
                        .replace(&own, &format!("{at}-{}", n + 9))
                        .replace(&format!("{}-8", 1 - at), &format!("{}-{}", 1 - at, n + 8))
                        .into();
                }
                self.history.push(version);
            }
        }
    }
}
