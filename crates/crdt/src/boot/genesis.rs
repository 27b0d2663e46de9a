//! The first entry of a cluster: the same everywhere, so that a static list of members needs no coordination. No
//! replica makes it.

use bytes::Bytes;

use crate::entry::{Applied, Bases, Change, ChangeKind, Entry, EntryHead, Notes, Past, Record};
use crate::replica::Replica;
use crate::replica::spaces::first_space;
use crate::replica::turn::{Effects, Turn};
use crate::store::state::State;
use crate::store::system;
use crate::words::chain::Chain;
use crate::words::clock::{Now, Stamp};
use crate::words::id::{Dot, Identity, Origin, ReplicaId};
use crate::words::key::Keyspace;
use crate::words::revision::Revision;
use crate::words::value::{Incarnation, Live};

use crate::merge::rules::{ENGINE, Rules};
use crate::store::system::SystemKey;
use crate::words::vector::VersionVector;

/// The name of the first entry.
pub(super) const DOT: Dot = Dot { origin: Origin::GENESIS, seq: 1 };

/// A member of the cluster as it is founded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Founder {
    /// Its id.
    pub id: ReplicaId,
    /// Its name.
    pub name: String,
    /// Where other members reach it.
    pub peer_urls: Vec<String>,
}

/// What a cluster begins with; all founders give the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Genesis {
    /// The members, in any order.
    pub founders: Vec<Founder>,
    /// How concurrent writes are merged.
    pub rules: Rules,
    /// The newest merge engine of this build: of what it says, this alone may differ between founders.
    pub engine: u32,
}

impl Default for Genesis {
    fn default() -> Self {
        Self { founders: vec![], rules: Rules::default(), engine: ENGINE }
    }
}

impl Genesis {
    /// The founders in order of id: their ordinals are their places.
    pub(super) fn ranked(&self) -> Vec<&Founder> {
        let mut founders: Vec<_> = self.founders.iter().collect();
        founders.sort_unstable_by_key(|founder| founder.id);
        founders.dedup_by_key(|founder| founder.id);
        founders
    }

    /// The ordinal of that founder: it says which revision spaces are the founder's.
    pub fn ordinal_of(&self, id: ReplicaId) -> Option<u16> {
        self.ranked().iter().position(|founder| founder.id == id).and_then(|place| u16::try_from(place).ok())
    }

    /// The first entry.
    pub fn entry(&self) -> Entry {
        let own = Incarnation { stamp: Stamp::default(), dot: DOT };
        let mut changes = vec![];
        let mut set = |key: SystemKey, value: Bytes| {
            let kind = ChangeKind::Put { value, lease: None, version: 1 };
            changes.push(Change::new(Keyspace::System, key.encode(), kind, own));
        };
        set(SystemKey::Rules(self.rules.number), self.rules.encode());
        for (place, founder) in self.ranked().into_iter().enumerate() {
            let mut peer_urls = founder.peer_urls.clone();
            peer_urls.sort_unstable();
            set(SystemKey::Member(founder.id), system::member_value(&peer_urls, false));
            set(SystemKey::Attributes(founder.id), system::attributes_value(&founder.name, &[], None));
            set(SystemKey::Ordinal(place as u16, founder.id), Bytes::new());
        }
        let head = EntryHead {
            dot: DOT,
            first_seq: 1,
            stamp: Stamp::default(),
            rules: self.rules.number,
            depends: VersionVector::default(),
            previous: Chain::default(),
            resulting: None,
        };
        Entry { head, changes }
    }
}

impl Replica {
    /// A member of a cluster that begins with a static list of members. The effects hold the first record. A replica
    /// that is not on the list begins empty, as by [`Self::new`].
    pub fn found(identity: Identity, genesis: &Genesis) -> (Self, Effects) {
        let mut turn = Turn::new(Now::default());
        let replica = Self::begin(&mut turn, identity, genesis);
        (replica.unwrap_or_else(|| Self::of_engine(identity, genesis.engine)), turn.effects)
    }

    /// The same, unless it is not on the list.
    pub(super) fn begin(turn: &mut Turn, mut identity: Identity, genesis: &Genesis) -> Option<Self> {
        identity.ordinal = genesis.ordinal_of(identity.replica)?;
        let mut replica = Self::of_engine(identity, genesis.engine);
        // It may have had a disk that is lost, and nobody was asked who knows.
        let space = first_space(identity.ordinal, identity.birth, genesis.ranked().len());
        replica.state = State::empty(Revision::first_in(space));
        let entry = genesis.entry();
        let (number, dot) = (replica.journal.number(), entry.head.dot);
        let mut changes = entry.changes.clone();
        for (change, sub) in changes.iter_mut().zip(0..) {
            if let ChangeKind::Put { value, version, .. } = &change.kind {
                let (value, incarnation) = (value.clone(), change.incarnation);
                let live = Live { value, lease: None, version: *version, incarnation };
                replica.state.set_system(&change.key, Some(&live), number);
            }
            change.applied = Some(Applied { sub, create_revision: None, after: 0 });
        }
        let state = replica.origins.others.entry(dot.origin).or_default();
        state.chain = state.chain.extend(&entry.head, &entry.changes);
        replica.origins.vector.advance(dot);
        replica.origins.fresh.advance(dot);
        replica.membership.past = Past::Founded;
        let record = Record {
            number,
            revision: None,
            head: Some(entry.head),
            changes,
            outcomes: vec![],
            trimmed: false,
            settled: true,
            until: None,
            bases: Bases::default(),
            notes: Notes::default(),
        };
        turn.effects.records.push(record.encode());
        replica.follow_system(turn, record.changes.iter());
        Some(replica)
    }
}
