//! Names of replicas and of what they do.
//!
//! A [`Dot`] names one entry for ever. Its [`Birth`] keeps a replica that lost its disk (or the tail of it) from
//! naming a new entry as it named a lost one.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// Wraps the raw number.
            pub const fn new(raw: $inner) -> Self {
                Self(raw)
            }

            /// The raw number, as it goes over the wire and to disk.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }
    };
}

id! {
    /// One running eddy; the same number as its etcd member id.
    ReplicaId(u64)
}
id! {
    /// The cluster a replica belongs to; replicas of different clusters never exchange anything.
    ClusterId(u64)
}
id! {
    /// Drawn when a data dir is created, and anew whenever a replica may have lost entries it had already numbered.
    ///
    /// The high bits order a member's births: a later one is above those before it. The low bits are drawn.
    Birth(u64)
}

/// How many bits of a birth are drawn. The others order.
const DRAWN_BITS: u32 = 32;

impl Birth {
    /// A birth drawn at a time, by seconds of the wall clock. A member that knows nothing of the births before then still
    /// comes behind them, unless a clock was wrong. Nothing depends on it where anyone knows them: see [`Self::behind`].
    pub const fn drawn(seconds: u32, random: u32) -> Self {
        Self((seconds as u64) << DRAWN_BITS | random as u64)
    }

    /// This birth, or the one with the same drawn bits that comes behind another.
    #[must_use]
    pub const fn behind(self, last: Self) -> Self {
        if self.number() > last.number() {
            return self;
        }
        // A member has too few disks in its life to run out of numbers.
        Self((last.number().saturating_add(1) as u64) << DRAWN_BITS | self.random() as u64)
    }

    /// Whether both were drawn as one.
    pub const fn is_drawn_as(self, other: Self) -> bool {
        self.random() == other.random()
    }

    const fn number(self) -> u32 {
        (self.0 >> DRAWN_BITS) as u32
    }

    const fn random(self) -> u32 {
        self.0 as u32
    }
}

id! {
    /// An etcd lease id; never zero inside the state machine ("no lease" is `None`).
    LeaseId(i64)
}

impl LeaseId {
    /// Decodes etcd's convention: zero means "no lease".
    pub const fn from_wire(raw: i64) -> Option<Self> {
        if raw == 0 { None } else { Some(Self(raw)) }
    }
}

/// Where an entry comes from: the replica and the birth under which it numbered the entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// The replica that made the entry.
    pub replica: ReplicaId,
    /// The birth under which it did.
    pub birth: Birth,
}

impl Origin {
    /// Where the first entry of a cluster comes from: no replica, so that it is the same everywhere.
    pub const GENESIS: Self = Self { replica: ReplicaId::new(0), birth: Birth::new(0) };
}

/// The name of one entry: `seq` counts 1, 2, 3, ... without holes within its origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dot {
    /// The origin that made the entry.
    pub origin: Origin,
    /// Its number among that origin's entries, starting at 1.
    pub seq: u64,
}

impl fmt::Debug for Dot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.origin.replica, self.origin.birth, self.seq)
    }
}

/// The names of a replica. They are drawn or configured once, and kept with the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// This replica.
    pub replica: ReplicaId,
    /// The present birth of its data dir.
    pub birth: Birth,
    /// Which revision spaces are this replica's own: those equal to this modulo [`crate::words::revision::SPACES`].
    pub ordinal: u16,
}

impl Identity {
    /// The origin of the entries that this replica makes now.
    pub const fn origin(&self) -> Origin {
        Origin { replica: self.replica, birth: self.birth }
    }
}
