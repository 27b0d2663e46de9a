//! How hosts live and die: starts, crashes, lost disks, members that come and go.

use bytes::Bytes;
use eddy_crdt::merge::ENGINE;
use eddy_crdt::sync::Exchange;
use eddy_crdt::{
    Command, Damage, Genesis, Head, Identity, Input, InstallError, Installer, Notes, Notice, Record, Replica,
    ReplicaId, Revision, SnapshotChunk, VersionVector,
};
use rand::Rng;

use super::builds::NEWER_ENGINE;
use super::checks;
use super::host::{Checkpoint, Fetching, Host, Life};

use super::unswept;
use super::world::{Event, Outcome, World};
use crate::support::build;
use crate::support::checks::{ensure, same};
use crate::support::disk::Image;
use crate::support::past;
use crate::support::shadow::Shadow;

/// How long an empty founder looks for the others before it begins without them, milliseconds.
const JOIN_TIMEOUT_MS: u64 = 30_000;

/// How many times as long is waited while some members do not answer.
const SILENT_PATIENCE: u64 = 3;

impl World {
    /// Begins with the first entry of the cluster.
    pub fn found(&mut self, host: usize) -> Outcome {
        // The founders agree on the engine before they begin: the oldest that any of them may have.
        let genesis = Genesis { engine: self.hosts[host].engine, ..build::genesis(self.plan.founders) };
        let place = &mut self.hosts[host];
        place.boots(self.ms);
        let (replica, image) = build::found(place.fresh_identity(self.ms), &genesis);
        self.begins_with(host, replica, image)
    }

    /// Runs what is on disk from now on, and nothing else is.
    fn begins_with(&mut self, host: usize, replica: Replica, image: Image) -> Outcome {
        let now = self.hosts[host].now(self.ms);
        let (identity, engine) = (replica.identity(), replica.engine());
        // A process that starts from it, or the one that fetched it.
        let replica = if self.rng.random_bool(0.5) {
            image.load_by(engine, now, identity).map_err(|e| e.to_string())?
        } else {
            replica
        };
        let place = &mut self.hosts[host];
        place.disk.replace(image);
        place.told.clear();
        place.runs(replica);
        let up = place.up().expect("it runs");
        let state = up.durable.clone();
        checks::shows(&up.replica, &up.shadow)?;
        if self.plan.watched {
            self.history.note_new(&up.replica);
            // What it had before is replaced, also where it was a copy that alone held what others have lost.
            self.history.lost_disk(host);
            self.history.note_rules(host, up.replica.rules(), &mut self.coverage)?;
            self.history.check_all(&state.vector, &up.shadow, &mut self.coverage)?;
        }
        self.ledger.durable(&up.replica, &state)?;
        place.expected = Some(state);
        place.instead = None;
        self.acknowledge_own(host)?;
        self.say_which_build(host)?;
        for other in 0..self.hosts.len() {
            let later = self.ms + self.rng.random_range(1..200);
            self.at(later, Event::Dial(host.min(other), host.max(other)));
        }
        Ok(())
    }

    /// Tells the replica what it has on disk, as the process does for as long as anything is unsettled. The crash may
    /// have come before the last acknowledgement was kept.
    fn acknowledge_own(&mut self, host: usize) -> Outcome {
        let own = self.hosts[host].up().map(|up| up.durable.vector.clone()).unwrap_or_default();
        self.handle(host, vec![Input::Acks { own, acks: vec![] }]).map(drop)
    }

    fn stop(&mut self, host: usize) {
        let ends: Vec<(usize, usize)> = self
            .connections
            .iter()
            .flat_map(|(at, c)| (0..2).filter(|side| c.ends[*side].host == host).map(|side| (*at, side)))
            .collect();
        self.hosts[host].life = Life::Down;
        for (at, side) in ends {
            self.close(at, side);
        }
        self.hosts[host].boots(self.ms);
    }

    /// It stops without warning. What waits for the disk is lost, unless the disk was just done with it.
    pub fn crash(&mut self, host: usize, back_ms: u64) {
        let Some(place) = self.hosts.get_mut(host) else { return };
        match &mut place.life {
            Life::Up(up) => {
                if let Some((count, state)) = up.flight.take() {
                    self.coverage.count("crashes during a flush");
                    if self.rng.random_bool(0.5) {
                        place.disk.flush(count);
                        place.instead = Some(state);
                    }
                }
                self.coverage.count("crashes");
            }
            Life::Fetching(_) => self.coverage.count("crashes during a snapshot"),
            Life::Down | Life::Gone => return,
        }
        place.disk.crash();
        self.stop(host);
        let boot = self.hosts[host].boot;
        self.at(self.ms + back_ms, Event::Start(host, boot));
    }

    /// Starts from what is on disk: everything that was durable is there.
    pub fn start(&mut self, host: usize) -> Outcome {
        let place = &mut self.hosts[host];
        if !matches!(place.life, Life::Down) {
            return Ok(());
        }
        place.boots(self.ms);
        let now = place.now(self.ms);
        if place.disk.durable.head.is_none() {
            self.begin_fetching(host, None, None);
            return Ok(());
        }
        let head =
            Head::decode(place.disk.durable.head.as_ref().unwrap_or(&Bytes::new())).map_err(|e| e.to_string())?;
        let records = place.disk.durable.records.values().filter_map(|record| Record::decode(record.clone()).ok());
        let notes: Vec<Notes> = records.map(|record| record.notes).collect();
        if notes.iter().any(|notes| !notes.left.is_empty()) {
            self.coverage.count(unswept::LEFT);
        }
        if notes.iter().any(|notes| !notes.bases.is_empty()) {
            self.coverage.count(unswept::BASES);
        }
        let nobody = Identity { ordinal: 0, ..head.identity };
        let mut loaded = place.disk.durable.load_by(place.engine, now, nobody);
        if matches!(loaded, Err(Damage::Rules(_))) && place.engine == ENGINE {
            // Its operator puts the newer build back.
            place.engine = NEWER_ENGINE;
            loaded = place.disk.durable.load_by(place.engine, now, nobody);
            self.coverage.count("older builds that did not start");
        }
        let place = &mut self.hosts[host];
        let replica = loaded.map_err(|e| format!("host {host} does not start: {e}"))?;
        let found = Checkpoint::of(&replica, &Shadow::of(&replica));
        if let Some(expected) = &place.expected {
            let state = if place
                .instead
                .as_ref()
                .is_some_and(|state| state.vector == found.vector && state.shadow == found.shadow)
            {
                place.instead.clone().unwrap_or_default()
            } else {
                expected.clone()
            };
            same(&found.vector, &state.vector, "vector after a restart")?;
            same(&found.shadow, &state.shadow, "keys after a restart")?;
            same(&found.hash, &state.hash, "state hash after a restart")?;
            checks::bases(&replica, &found, &state)?;
            ensure!(found.marks >= expected.marks, "a mark is forgotten");
            ensure!(found.floor.covers(&expected.floor), "the floor sank");
        }
        checks::history(&replica, &place.disk, &place.told)?;
        self.fields.lose(replica.identity().origin(), &found.vector);
        self.jobs.lose(replica.identity().origin(), &found.vector);
        if place.told.last_key_value().is_some_and(|(last, _)| Some(last.next()) <= replica.compacted()) {
            // Watchers are told that what they missed is compacted, and begin anew.
            place.told.clear();
        } else if let Some((last, _)) = place.told.last_key_value() {
            // What was flushed but not told before the crash: watchers hear of it when they come back.
            let from = last.next().max(replica.compacted().map_or(Revision::FIRST, Revision::next));
            let behind = past::events(&place.disk, &replica, from, replica.revision(), usize::MAX);
            place.told.extend(behind.into_iter().map(|commit| (commit.revision, commit)));
        }
        place.runs(replica);
        place.expected = Some(found);
        place.instead = None;
        self.say(|| format!("host {host} starts"));
        // The process doubts its disk before it does anything else: what it writes by itself has the new birth, too.
        if self.hosts[host].copied {
            let birth = self.hosts[host].fresh_identity(self.ms).birth;
            self.handle(host, vec![Input::Doubt(birth)])?;
            self.flush_all(host)?;
            self.hosts[host].copied = false;
        }
        self.acknowledge_own(host)?;
        self.say_which_build(host)?;
        for other in 0..self.hosts.len() {
            let later = self.ms + self.rng.random_range(1..200);
            self.at(later, Event::Dial(host.min(other), host.max(other)));
        }
        Ok(())
    }

    /// Begins anew from what the others have, under a new birth; that one should give it.
    pub fn anew(&mut self, host: usize, giver: ReplicaId) {
        if self.hosts[host].up().is_none() {
            return;
        }
        self.say(|| format!("host {host} begins anew"));
        self.coverage.count("begun anew");
        let place = &mut self.hosts[host];
        // An orderly stop: what was applied is flushed first.
        place.disk.flush(place.disk.waiting());
        let life = std::mem::replace(&mut place.life, Life::Down);
        let Life::Up(up) = life else { return };
        let state = Checkpoint::of(&up.replica, &up.shadow);
        (place.expected, place.instead) = (Some(state), None);
        self.stop(host);
        let giver = self.hosts.iter().position(|other| other.id == giver);
        // For every other loss the one that is asked is drawn, as if that giver were not reached.
        // As a process does, which starts again for this.
        let place = &self.hosts[host];
        let old = place.disk.written().load_old(place.engine, place.now(self.ms), up.replica.identity());
        let Ok(old) = old else { unreachable!("what is written can be read") };
        self.begin_fetching(host, Some(old), giver.filter(|_| self.ms.is_multiple_of(2)));
    }

    fn begin_fetching(&mut self, host: usize, old: Option<Replica>, giver: Option<usize>) {
        let place = &mut self.hosts[host];
        let identity = place.fresh_identity(self.ms);
        place.life = Life::Fetching(Box::new(Fetching {
            identity,
            empty: Replica::of_engine(identity, place.engine),
            exchange: Exchange::new(place.tuning),
            nothing: VersionVector::default(),
            installer: Installer::of_engine(place.engine),
            over: None,
            old,
            giver,
            since_ms: self.ms,
        }));
        let boot = place.boot;
        self.at(self.ms, Event::Fetch(host, boot));
    }

    /// Whether the connection over which a host reads a snapshot stands.
    pub fn is_reading(&self, host: usize) -> bool {
        let Life::Fetching(fetch) = &self.hosts[host].life else { return false };
        let connection = fetch.over.and_then(|at| self.connections.get(&at));
        connection.is_some_and(|connection| connection.ends.iter().all(|end| end.session.is_some()))
    }

    /// Looks for someone who gives a snapshot, unless one is being read.
    pub fn fetch(&mut self, host: usize) -> Outcome {
        let boot = self.hosts[host].boot;
        let reads = self.is_reading(host);
        let Life::Fetching(fetch) = &self.hosts[host].life else { return Ok(()) };
        let (is_new, since_ms) = (fetch.old.is_none(), fetch.since_ms);
        if !reads {
            let reachable =
                |other: &usize| *other != host && self.is_linked(host, *other) && self.blocked.is_open(host, *other);
            let met: Vec<usize> = (0..self.hosts.len()).filter(reachable).collect();
            let givers: Vec<usize> = met.iter().copied().filter(|other| self.hosts[*other].up().is_some()).collect();
            let starting = met.iter().any(|other| matches!(self.hosts[*other].life, Life::Fetching(_)));
            let waited = self.ms >= since_ms + JOIN_TIMEOUT_MS;
            let place = &self.hosts[host];
            if is_new && place.founder && givers.is_empty() && (starting || waited) {
                // Nobody who answers has anything, or nobody answers at all.
                self.coverage.count("founded again");
                // Whom it asked in vain is not spoken to under the birth that it had then.
                self.stop(host);
                return self.found(host);
            }
            let is_patient = self.ms < since_ms + SILENT_PATIENCE * JOIN_TIMEOUT_MS;
            if !is_new && waited && self.knows_best(host, is_patient) {
                self.coverage.count("gone back to an old disk");
                self.stop(host);
                self.hosts[host].copied = true;
                return self.start(host);
            }
            if !givers.is_empty() {
                let drawn = givers[self.rng.random_range(0..givers.len())];
                let Life::Fetching(fetch) = &mut self.hosts[host].life else { return Ok(()) };
                let giver = fetch.giver.take().filter(|giver| givers.contains(giver));
                self.connect(host, giver.unwrap_or(drawn))?;
            }
        }
        let later = self.ms + self.rng.random_range(300..2000);
        self.at(later, Event::Fetch(host, boot));
        Ok(())
    }

    pub fn take_chunk(&mut self, at: usize, side: usize, host: usize, chunk: &Bytes) -> Outcome {
        let now = self.hosts[host].now(self.ms);
        let giver = self.connections.get(&at).map(|connection| connection.ends[1 - side].host);
        let Life::Fetching(fetch) = &mut self.hosts[host].life else { return Ok(()) };
        if fetch.over != Some(at) {
            return Ok(());
        }
        let chunk = SnapshotChunk::decode(chunk).map_err(|e| e.to_string())?;
        match fetch.installer.chunk(chunk) {
            Ok(Some(after)) => {
                self.ask_chunk(at, side, Some(after));
                return Ok(());
            }
            Ok(None) => {}
            Err(InstallError::Moved) => {
                self.coverage.count("snapshots that moved");
                self.close(at, side);
                return Ok(());
            }
            Err(error) => return Err(format!("host {host}: chunk: {error}")),
        }
        let installer = std::mem::replace(&mut fetch.installer, Installer::of_engine(fetch.empty.engine()));
        let fetched_over = fetch.old.is_some();
        match installer.finish(now, fetch.identity, fetch.old.as_ref()) {
            Ok(installed) => {
                self.say(|| format!("host {host} has a snapshot"));
                self.coverage.count("snapshots installed");
                for report in &installed.given_up {
                    self.coverage.count("rebased writes that gave something up");
                    self.say(|| format!("given up: {report:?}"));
                }
                if !installed.forsaken.is_empty() {
                    self.coverage.count("writes of removed members given up");
                }
                for entry in &installed.forsaken {
                    self.check_forsaken(host, &installed.replica, entry.head.dot)?;
                    self.hosts[host].forsaken.extend(entry.changes.iter().map(|change| change.key.clone()));
                }
                self.stop(host);
                if fetched_over {
                    self.check_kept(host, &checks::marks(&Shadow::of(&installed.replica)))?;
                }
                self.hosts[host].lost = giver.is_some_and(|giver| self.hosts[giver].lost);
                let image = Image { records: (1..).zip(installed.records).collect(), head: Some(installed.head) };
                self.begins_with(host, installed.replica, image)
            }
            Err(InstallError::NotAMember) => {
                self.coverage.count("snapshots of those who do not know the joiner");
                self.close(at, side);
                Ok(())
            }
            Err(InstallError::Rules(_)) if self.hosts[host].engine == ENGINE => {
                self.coverage.count("snapshots that an older build does not know");
                self.close(at, side);
                Ok(())
            }
            Err(error) => Err(format!("host {host}: install: {error}")),
        }
    }

    /// It was removed, and knows it.
    pub fn gone(&mut self, host: usize) {
        self.coverage.count("removed members that know it");
        self.stop(host);
        self.hosts[host].life = Life::Gone;
    }

    /// Follows what a replica says to its operator.
    pub fn heed(&mut self, host: usize, notices: &[Notice]) -> Outcome {
        for notice in notices {
            match notice {
                Notice::Merged(_) => self.coverage.count("merges"),
                Notice::TooEarly { .. } => self.coverage.count("entries too early"),
                Notice::ClockAhead { .. } => self.coverage.count("clocks ahead"),
                Notice::Removed => self.gone(host),
                Notice::OrdinalChanged { .. } => self.coverage.count("ordinals changed"),
                Notice::NotAMember { .. } if self.removals => self.coverage.count("entries of removed members"),
                Notice::OwnTailLost { from, .. } if self.disk_faults => {
                    self.coverage.count("lost tails");
                    self.anew(host, *from);
                }
                // What was founded again, or what a copy in doubt gave, reached a member that had not heard what all have. It
                // is asked for again, and begins anew.
                Notice::BelowFloor { .. } if self.disk_faults => self.coverage.count("entries below the floor"),
                Notice::UnknownRules { .. } if self.plan.rules => {
                    self.coverage.count("entries that an older build does not know");
                }
                notice => return Err(format!("host {host} says {notice:?}")),
            }
        }
        Ok(())
    }

    pub fn add(&mut self, at: usize, place: usize) -> Outcome {
        let place = place.min(self.hosts.len());
        let Some(Ok(_)) = (if at < self.hosts.len() { self.command(at, build::add(place))? } else { None }) else {
            return Ok(());
        };
        self.coverage.count("members added");
        // Its operator starts it when it is told that it was added.
        self.flush_all(at)?;
        if place == self.hosts.len() {
            self.hosts.push(Host::new(place, false, &self.plan));
            self.hosts[place].boots(self.ms);
            self.begin_fetching(place, None, None);
        }
        Ok(())
    }

    /// Waits for the disk.
    pub fn flush_all(&mut self, host: usize) -> Outcome {
        while self.hosts[host].up().is_some_and(|up| up.flight.is_some()) {
            self.flushed(host)?;
        }
        Ok(())
    }

    /// The operator adds those members again that are not known where the cluster goes on. Either the disk that had
    /// their addition is lost, or the member that added them was removed before it told anyone.
    pub fn add_again(&mut self) -> Outcome {
        let Some(at) = (0..self.hosts.len()).find(|host| self.hosts[*host].up().is_some()) else { return Ok(()) };
        for unknown in 0..self.hosts.len() {
            let (id, runs) = (self.hosts[unknown].id, self.hosts[unknown].seat().is_some());
            let known = self.hosts[at].up().is_some_and(|up| up.replica.members().any(|m| m.id == id));
            if runs && !known {
                self.coverage.count("members added again");
                self.add(at, unknown)?;
            }
        }
        Ok(())
    }

    /// Members that were told of their removal by one whose word never reached anyone else: the operator removes them again.
    pub fn remove_again(&mut self) -> Outcome {
        let Some(at) = (0..self.hosts.len()).find(|host| self.hosts[*host].up().is_some()) else { return Ok(()) };
        for gone in 0..self.hosts.len() {
            let id = self.hosts[gone].id;
            let is_member = |m: &eddy_crdt::Member| m.id == id && !m.removed;
            let counts = self.hosts[at].up().is_some_and(|up| up.replica.members().any(is_member));
            if counts && matches!(self.hosts[gone].life, Life::Gone) {
                self.coverage.count("members removed again");
                self.command(at, Command::MemberRemove(id))?;
            }
        }
        Ok(())
    }

    pub fn remove(&mut self, at: usize, gone: usize) -> Outcome {
        // The first stays, so that there is a cluster in the end.
        if gone == 0 || at >= self.hosts.len() {
            return Ok(());
        }
        self.removals = true;
        if let Some(Ok(_)) = self.command(at, Command::MemberRemove(build::id(gone)))? {
            self.coverage.count("members removed");
        }
        Ok(())
    }
}
