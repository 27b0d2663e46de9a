//! What runs one replica: its disk, its clocks, its life and deaths, and what its clients have been told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use eddy_crdt::merge::{ENGINE, Window};
use eddy_crdt::sync::{Exchange, Tuning};
use eddy_crdt::{
    Birth, Commit, Identity, Installer, Key, Keyspace, Now, Origin, Replica, ReplicaId, Revision, VersionVector,
};

use super::checks;
use super::nemesis::Plan;
use crate::support::build::{WALL_MS, id, identity};
use crate::support::disk::{Disk, Image};
use crate::support::shadow::Shadow;

/// A state that a flush makes durable.
#[derive(Clone, Default)]
pub struct Checkpoint {
    /// Whose it is, and under which birth; `None` for nothing.
    pub origin: Option<Origin>,
    pub vector: VersionVector,
    pub hash: u128,
    pub shadow: Shadow,
    pub marks: u64,
    pub floor: VersionVector,
    pub windows: BTreeMap<(Keyspace, Key), Window>,
}

impl Checkpoint {
    pub fn of(replica: &Replica, shadow: &Shadow) -> Self {
        Self {
            origin: Some(replica.identity().origin()),
            vector: replica.vector().clone(),
            hash: replica.state_hash(),
            shadow: shadow.clone(),
            marks: replica.marks().version(),
            floor: replica.floor().clone(),
            windows: checks::windows(replica),
        }
    }
}

/// A replica that runs.
pub struct Up {
    pub replica: Replica,
    pub exchange: Arc<Exchange>,
    /// As of the newest thing applied.
    pub shadow: Shadow,
    /// As of what is on disk.
    pub durable: Checkpoint,
    /// The flush that is going on: so many writes, and what they make durable.
    pub flight: Option<(usize, Checkpoint)>,
    /// Commits that are not on disk.
    pub untold: VecDeque<Commit>,
    pub dead: BTreeSet<u64>,
    pub tick_ms: Option<u64>,
    /// Flushes since the last sweep.
    pub unswept: u64,
}

/// One that fetches a snapshot, to begin or to begin anew.
pub struct Fetching {
    pub identity: Identity,
    pub empty: Replica,
    pub exchange: Arc<Exchange>,
    pub nothing: VersionVector,
    pub installer: Installer,
    /// The connection over which it reads. What still arrives over an older one is not for this installer.
    pub over: Option<usize>,
    /// What it had before.
    pub old: Option<Replica>,
    /// Who is asked first.
    pub giver: Option<usize>,
    pub since_ms: u64,
}

pub enum Life {
    Down,
    Up(Box<Up>),
    Fetching(Box<Fetching>),
    /// It was removed from the cluster and knows it.
    Gone,
}

pub struct Host {
    pub id: ReplicaId,
    pub place: usize,
    pub disk: Disk,
    pub life: Life,
    /// Counts starts, so that what was meant for an earlier one is not taken by a later.
    pub boot: u32,
    boot_ms: u64,
    pub births: u64,
    pub founder: bool,
    pub wall_off_ms: i64,
    pub tuning: Tuning,
    /// How many ended births of each member its replica knows still.
    pub kept_births: usize,
    /// How much its replica settles in a turn; `None`: as much as by itself.
    pub settle_pace: Option<usize>,
    pub flushes_per_sweep: u64,
    /// What clients have been told, since the last time it jumped.
    pub told: BTreeMap<Revision, Commit>,
    /// An older copy of the disk, with what its state was.
    pub backup: Option<(Image, Checkpoint)>,
    /// What must be on disk at the next start; nothing after a fault of the disk.
    pub expected: Option<Checkpoint>,
    /// What may be there instead: a flush was going on when it crashed.
    pub instead: Option<Checkpoint>,
    /// When the disk is slow, how long a flush takes.
    pub flush_ms: u64,
    /// Whether what is on its disk is an older copy, and can be seen to be one.
    pub copied: bool,
    /// Whether it has lost its disk and not begun anew since, or only from one of which that is true.
    pub lost: bool,
    /// What it told its operator that it had to give up.
    pub forsaken: BTreeSet<Bytes>,
    /// The newest merge engine of its build.
    pub engine: u32,
}

impl Host {
    pub fn new(place: usize, founder: bool, plan: &Plan) -> Self {
        Self {
            id: id(place),
            place,
            disk: Disk::default(),
            life: Life::Down,
            boot: 0,
            boot_ms: 0,
            births: 0,
            founder,
            wall_off_ms: 0,
            tuning: plan.tuning,
            kept_births: plan.kept_births,
            settle_pace: plan.settle_pace(place),
            flushes_per_sweep: plan.flushes_per_sweep,
            told: BTreeMap::new(),
            backup: None,
            expected: None,
            instead: None,
            flush_ms: 3,
            copied: false,
            lost: false,
            forsaken: BTreeSet::new(),
            engine: ENGINE,
        }
    }

    pub fn now(&self, ms: u64) -> Now {
        let mono_ms = ms - self.boot_ms + 1000 * self.place as u64;
        Now { wall_ms: (WALL_MS + ms).saturating_add_signed(self.wall_off_ms), mono_ms }
    }

    /// When, by the simulation's clock, this host's monotonic clock shows that.
    pub fn when(&self, mono_ms: u64) -> u64 {
        (mono_ms + self.boot_ms).saturating_sub(1000 * self.place as u64)
    }

    pub fn boots(&mut self, ms: u64) {
        self.boot += 1;
        self.boot_ms = ms;
    }

    /// An identity with a birth that was never used.
    pub fn fresh_identity(&mut self, ms: u64) -> Identity {
        self.births += 1;
        let seconds = (self.now(ms).wall_ms / 1000) as u32;
        // The last bits of a birth decide how far a replica jumps that may not know all that it was. So that two lives
        // do not meet by chance, as real ones hardly ever do, these bits are far apart.
        let random = (self.place as u64 + 1) * 1_024_000 + self.births * 615;
        identity(self.place, Birth::drawn(seconds, random as u32).get())
    }

    pub fn up(&self) -> Option<&Up> {
        match &self.life {
            Life::Up(up) => Some(up),
            _ => None,
        }
    }

    pub fn up_mut(&mut self) -> Option<&mut Up> {
        match &mut self.life {
            Life::Up(up) => Some(up),
            _ => None,
        }
    }

    /// Writes to its disk what its replica wants kept; tells whether that was anything.
    pub fn keep(&mut self, records: &[Bytes], head_changed: bool) -> bool {
        match &mut self.life {
            Life::Up(up) => self.disk.keep(&mut up.replica, records, head_changed),
            _ => false,
        }
    }

    /// What its sessions look at: the replica, what is durable, what they share.
    pub fn seat(&self) -> Option<(&Replica, &VersionVector, &Arc<Exchange>)> {
        match &self.life {
            Life::Up(up) => Some((&up.replica, &up.durable.vector, &up.exchange)),
            Life::Fetching(fetch) => Some((&fetch.empty, &fetch.nothing, &fetch.exchange)),
            Life::Down | Life::Gone => None,
        }
    }

    /// The marks that are on its disk.
    pub fn marks(&self) -> BTreeSet<Bytes> {
        self.expected.as_ref().map(|state| checks::marks(&state.shadow)).unwrap_or_default()
    }

    /// Runs that replica from now on.
    pub fn runs(&mut self, mut replica: Replica) {
        replica.keep_births(self.kept_births);
        self.settle_pace.iter().for_each(|pace| replica.settle_by(*pace));
        let shadow = Shadow::of(&replica);
        let durable = Checkpoint::of(&replica, &shadow);
        self.life = Life::Up(Box::new(Up {
            replica,
            exchange: Exchange::new(self.tuning),
            shadow,
            durable,
            flight: None,
            untold: VecDeque::new(),
            dead: BTreeSet::new(),
            tick_ms: None,
            unswept: 0,
        }));
    }
}
