//! One replica with its journal.

use std::collections::BTreeSet;
use std::sync::Arc;

use eddy_crdt::merge::ENGINE;
use eddy_crdt::sync::{Exchange, Tuning};
use eddy_crdt::{
    Effects, Genesis, Head, Identity, Input, Installed, KeyRange, KeyValue, Notice, Now, PastValues, RangeOp, Replica,
    Revision, VersionVector,
};

use super::build::{WALL_MS, found};
use super::checks::{self, same};
use super::disk::{Disk, Image, Write};
use super::past;

pub struct Node {
    pub replica: Replica,
    pub disk: Disk,
    /// What is on the disk of what the replica applied.
    pub durable: VersionVector,
    /// What its sessions share.
    pub exchange: Arc<Exchange>,
    /// What it said to its operator.
    pub notices: Vec<Notice>,
    /// Counts what it handled.
    pub handled: u64,
    /// Whether what it applies becomes durable at once.
    pub flushes: bool,
    /// How far its wall clock is off, milliseconds.
    pub wall_off_ms: i64,
    /// Records that lost a change.
    pub dead: BTreeSet<u64>,
}

impl Node {
    /// Runs a replica whose journal that is.
    pub fn new(replica: Replica, image: Image) -> Self {
        Self {
            durable: replica.vector().clone(),
            replica,
            disk: Disk::new(image),
            exchange: Exchange::new(Tuning::default()),
            notices: vec![],
            handled: 0,
            flushes: true,
            wall_off_ms: 0,
            dead: BTreeSet::new(),
        }
    }

    /// One that has nothing.
    pub fn empty(identity: Identity) -> Self {
        Self::new(Replica::new(identity), Image::default())
    }

    pub fn found(identity: Identity, genesis: &Genesis) -> Self {
        let (replica, image) = found(identity, genesis);
        Self::new(replica, image)
    }

    /// One that got a snapshot.
    pub fn installed(installed: Installed) -> Self {
        let image = Image { records: (1..).zip(installed.records).collect(), head: Some(installed.head) };
        Self::new(installed.replica, image)
    }

    pub fn now(&self, ms: u64) -> Now {
        Now { wall_ms: (WALL_MS + ms).saturating_add_signed(self.wall_off_ms), mono_ms: ms }
    }

    pub fn handle(&mut self, now: Now, input: Input) -> Effects {
        self.handled += 1;
        if let Input::Client(command) = &input {
            let reads = self.replica.reads_past(command);
            self.replica.give_past(past::recall(&self.disk, reads));
        }
        let effects = self.replica.handle(now, input);
        self.notices.extend(effects.notices.iter().cloned());
        self.disk.keep(&mut self.replica, &effects.records, effects.head_changed);
        if self.flushes {
            self.flush();
        }
        effects
    }

    /// All that it applied is durable now.
    pub fn flush(&mut self) {
        self.disk.flush(self.disk.waiting());
        self.durable = self.replica.vector().clone();
        self.replica.release(self.replica.revision(), usize::MAX);
    }

    /// Sweeps so many changes; tells whether that was all.
    pub fn sweep(&mut self, changes: usize) -> bool {
        let sweep = self.replica.sweep(changes, self.dead.is_empty());
        self.dead.extend(sweep.dead);
        sweep.done
    }

    /// Trims so many records.
    pub fn trim(&mut self, records: usize) {
        let mut trimmed = vec![];
        for _ in 0..records {
            let Some(number) = self.dead.pop_first() else { break };
            if let Some(record) = self.disk.record(number) {
                trimmed.push((number, self.replica.trim(record)));
            }
        }
        self.disk.write(Write::Trim(trimmed));
        if self.flushes {
            self.disk.flush(self.disk.waiting());
        }
    }

    /// Sweeps, and trims what lost a change by then.
    pub fn tidy(&mut self, changes: usize, records: usize) {
        self.sweep(changes);
        self.trim(records);
    }

    /// Goes on from another disk.
    pub fn start_from(&mut self, now: Now, disk: Disk) {
        self.replica = disk.written().load(now, self.replica.identity()).expect("nothing is damaged");
        self.disk = disk;
        self.dead.clear();
    }

    /// What a process finds on its disk that is to begin anew.
    pub fn found_again(&self, now: Now) -> Replica {
        self.disk.written().load_old(ENGINE, now, self.replica.identity()).expect("nothing is damaged")
    }

    /// Starts again from the disk; everything that was there must be there again.
    pub fn restart(&mut self, now: Now) -> Result<(), String> {
        let image = self.disk.written();
        let again = image.load(now, self.replica.identity()).map_err(|e| e.to_string())?;
        check_head(&again, &image)?;
        let (no_windows, no_log) = (eddy_crdt::merge::Windows::default(), eddy_crdt::Log::default());
        let windows = |of: &Replica| of.windows().unwrap_or(&no_windows).clone();
        let log = |of: &Replica| of.log().unwrap_or(&no_log).clone();
        checks::stands_again(&windows(&again), &windows(&self.replica))?;
        checks::is_kept(&log(&again), &log(&self.replica))?;
        same(again.floor(), self.replica.floor(), "floor after a restart")?;
        same(&again.state_hash(), &self.replica.state_hash(), "state after a restart")?;
        let members = |replica: &Replica| replica.members().cloned().collect::<Vec<_>>();
        same(&members(&again), &members(&self.replica), "members after a restart")?;
        let (from, to) = (again.compacted().unwrap_or(Revision::FIRST), again.revision());
        let events = |of: &Replica| past::events(&self.disk, of, from.next(), to, usize::MAX);
        same(&events(&again), &events(&self.replica), "events after a restart")?;
        self.replica = again;
        self.dead.clear();
        Ok(())
    }

    pub fn get(&self, key: &str) -> Option<String> {
        self.kv(key).map(|kv| String::from_utf8_lossy(&kv.value).into_owned())
    }

    pub fn kv(&self, key: &str) -> Option<KeyValue> {
        let range = RangeOp::all(KeyRange::Key(key.to_owned().into()));
        self.replica
            .range(&range, self.replica.revision(), &PastValues::default())
            .expect("a present revision")
            .kvs
            .pop()
    }
}

/// A replica that starts from an image has the head that is there. While a compaction is swept, a head does not say how many
/// versions there are.
pub fn check_head(replica: &Replica, image: &Image) -> Result<(), String> {
    let Some(head) = &image.head else { return Ok(()) };
    let stored = Head::decode(head).map_err(|e| e.to_string())?;
    // What streamed to a member has ended with what is here.
    let ended = stored.sent.iter().filter(|(_, upto)| upto.is_none()).count();
    let sent =
        stored.sent.iter().map(|(member, upto)| (*member, Some(upto.as_ref().unwrap_or(&stored.vector).clone())));
    let expected = Head { sent: sent.collect(), marks: stored.marks + u64::from(ended > 0), ..stored };
    same(&Head { versions: expected.versions, ..replica.head() }, &expected, "head after a restart")
}
