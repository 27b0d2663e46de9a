//! The world: hosts, links, and what happens next. One seed decides everything.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use bytes::Bytes;
use eddy_crdt::{Command, Dot, Effects, Event as Told, Input, Notice, Refusal, Reply, Revision};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::builds;
use super::checks::{self, Coverage, Ledger};
use super::clients;
use super::edits;
use super::fields::Fields;
use super::history::History;
use super::host::{Checkpoint, Host, Life};
use super::jobs::Jobs;
use super::nemesis::{Act, Plan};
use super::network::{Blocked, Connection};
use super::observer::{self, Clients};
use crate::support::checks::{converged, ensure, same};
use crate::support::disk::Write;
use crate::support::shadow::{Beside, Shadow};

/// What is to happen at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// The first message on its way to that side of a connection.
    Arrive(usize, usize),
    Poll(usize, usize),
    Close(usize, usize),
    /// One of two tries to reach the other.
    Dial(usize, usize),
    /// A flush of that host's that start is done.
    Flushed(usize, u32),
    Tick(usize, u32),
    Start(usize, u32),
    /// A host that fetches looks whom to ask.
    Fetch(usize, u32),
    /// Clients of a host that keep leases alive do so.
    Renew(usize, u32),
}

/// How long everything may take to become equal once nothing is in the way, milliseconds. Three times are shorter: the
/// hold of a giver of snapshots, leases with their graces, and the wait until entries are sent again.
const HEALING_MS: u64 = 600_000;

/// More happens in no schedule that ends.
const EVENTS_MAX: u64 = 2_000_000;

/// How many dials between two hosts may wait. Each end of a connection that is over dials. If one host refuses the
/// other, the two would dial ever more often without this limit. One would do; a few more change fewer of the schedules
/// that seeds stand for.
const DIALS_MAX: usize = 8;

pub struct World {
    pub hosts: Vec<Host>,
    pub connections: BTreeMap<usize, Connection>,
    pub next_connection: usize,
    pub blocked: Blocked,
    pub links: Vec<(usize, usize)>,
    pub ms: u64,
    pub events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// How many dials between two wait.
    pub dials: BTreeMap<(usize, usize), usize>,
    pub event_number: u64,
    pub events_max: u64,
    pub traffic: Traffic,
    pub rng: SmallRng,
    pub ledger: Ledger,
    pub history: History,
    pub fields: Fields,
    pub jobs: Jobs,
    pub clients: Clients,
    pub coverage: Coverage,
    pub plan: Plan,
    /// Whether a disk was wiped or exchanged: then more may be refused.
    pub disk_faults: bool,
    pub removals: bool,
    pub healing: bool,
    pub trace: bool,
}

/// What was sent.
#[derive(Clone, Copy, Default)]
pub struct Traffic {
    pub messages: u64,
    pub bytes: u64,
}

impl Traffic {
    pub fn since(self, before: Self) -> Self {
        Self { messages: self.messages - before.messages, bytes: self.bytes - before.bytes }
    }
}

pub type Outcome<T = ()> = Result<T, String>;

/// What came of a group of inputs.
#[derive(Default)]
pub struct Handled {
    pub notices: Vec<Notice>,
    pub reply: Option<Result<Reply, Refusal>>,
}

impl World {
    pub fn new(plan: &Plan) -> Outcome<Self> {
        if std::env::var_os("EDDY_SIM_TRACE").is_some() {
            println!("--- a run");
        }
        let hosts = (0..plan.founders).map(|place| Host::new(place, true, plan)).collect();
        let mut world = Self {
            hosts,
            connections: BTreeMap::new(),
            next_connection: 0,
            blocked: Blocked::default(),
            links: plan.links.clone(),
            ms: 0,
            events: BinaryHeap::new(),
            dials: BTreeMap::new(),
            event_number: 0,
            events_max: EVENTS_MAX,
            traffic: Traffic::default(),
            rng: SmallRng::seed_from_u64(plan.seed ^ 0x5eed),
            ledger: Ledger::default(),
            history: History::default(),
            fields: Fields::default(),
            jobs: Jobs::default(),
            clients: Clients::default(),
            coverage: Coverage::default(),
            plan: plan.clone(),
            disk_faults: false,
            removals: false,
            healing: false,
            trace: std::env::var_os("EDDY_SIM_TRACE").is_some(),
        };
        for place in 0..plan.founders {
            world.found(place)?;
        }
        for a in 0..plan.founders {
            for b in a + 1..plan.founders {
                world.at(0, Event::Dial(a, b));
            }
        }
        Ok(world)
    }

    /// Whether these two have a link at all.
    pub fn is_linked(&self, a: usize, b: usize) -> bool {
        let founders = self.plan.founders;
        self.links.is_empty() || a >= founders || b >= founders || self.links.contains(&(a.min(b), a.max(b)))
    }

    pub fn say(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>8} {}", self.ms, text());
        }
    }

    pub fn at(&mut self, ms: u64, event: Event) {
        if let Event::Dial(a, b) = event {
            let waiting = self.dials.entry((a, b)).or_default();
            if *waiting == DIALS_MAX {
                return;
            }
            *waiting += 1;
        }
        self.event_number += 1;
        self.events.push(Reverse((ms.max(self.ms), self.event_number, event)));
    }

    /// Lets everything happen that is due until then.
    pub fn pass(&mut self, until_ms: u64) -> Outcome {
        while let Some(Reverse((ms, _, _))) = self.events.peek()
            && *ms <= until_ms
        {
            let Some(Reverse((ms, _, event))) = self.events.pop() else { break };
            self.ms = ms;
            ensure!(self.event_number < self.events_max, "it never ends: {event:?}");
            self.happen(event)?;
        }
        self.ms = until_ms;
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Outcome {
        match event {
            Event::Arrive(at, side) => self.arrive(at, side),
            Event::Poll(at, side) => self.poll(at, side),
            Event::Close(at, side) => {
                self.close(at, side);
                Ok(())
            }
            Event::Dial(a, b) => {
                self.dials.entry((a, b)).and_modify(|waiting| *waiting -= 1);
                self.dial(a, b)
            }
            Event::Flushed(host, boot) if self.hosts[host].boot == boot => self.flushed(host),
            Event::Tick(host, boot) if self.hosts[host].boot == boot => {
                if let Some(up) = self.hosts[host].up_mut() {
                    up.tick_ms = None;
                }
                self.handle(host, vec![Input::Tick]).map(drop)
            }
            Event::Start(host, boot) if self.hosts[host].boot == boot => self.start(host),
            Event::Fetch(host, boot) if self.hosts[host].boot == boot => self.fetch(host),
            Event::Renew(host, boot) if self.hosts[host].boot == boot => self.renew(host, boot),
            _ => Ok(()),
        }
    }

    /// Gives inputs to a replica as one group; tells what it had to say.
    pub fn handle(&mut self, host: usize, inputs: Vec<Input>) -> Outcome<Handled> {
        let now = self.hosts[host].now(self.ms);
        let mut handled = Handled::default();
        let (mut records, mut head_changed) = (vec![], false);
        let Some(up) = self.hosts[host].up() else { return Ok(handled) };
        let first = up.replica.next_number();
        for input in inputs {
            let Some(up) = self.hosts[host].up_mut() else { return Ok(handled) };
            let before = up.replica.vector().clone();
            let branched = checks::branched(&up.replica);
            let of_others = matches!(input, Input::Entries { .. });
            let effects = up.replica.handle(now, input);
            let branched = checks::settled(&up.replica, &branched);
            let overlooked = up.replica.overlooked();
            ensure!(overlooked.is_empty(), "nothing looks again at what may settle: {overlooked:?}");
            let after = up.replica.vector().clone();
            let own = up.replica.identity().origin();
            for seq in before.get(own) + 1..=after.get(own) {
                let dot = Dot { origin: own, seq };
                let logged = up.replica.log().and_then(|log| log.get(dot)).map(|logged| (*logged.deps).clone());
                let deps = logged.unwrap_or_else(|| before.clone());
                if self.plan.watched
                    && let Some(logged) = up.replica.log().and_then(|log| log.get(dot))
                {
                    self.history.made(logged);
                }
                if !of_others {
                    let mut seen = before.clone();
                    seen.remove(own);
                    let mut covered = deps.clone();
                    covered.remove(own);
                    // The same turn may have forgotten births before it wrote: of all that it had seen of them.
                    for fence in covered.fences() {
                        seen.forget(fence.replica, fence.before);
                    }
                    ensure!(covered == seen, "{dot:?} depends on {covered:?}, but its maker had seen {seen:?}");
                }
                self.ledger.made(dot, deps);
            }
            self.ledger.applied(&before, &after)?;
            for what in branched {
                self.coverage.count(what);
            }
            head_changed |= effects.head_changed;
            records.extend(effects.records.iter().cloned());
            handled.notices.extend(effects.notices.iter().cloned());
            handled.reply = self.absorb(host, effects)?.or(handled.reply);
            self.look_at(host, &before, of_others)?;
        }
        let Some(up) = self.hosts[host].up() else { return Ok(handled) };
        ensure!(up.replica.next_number() == first + records.len() as u64, "record numbers");
        if self.hosts[host].keep(&records, head_changed) {
            self.begin_flush(host);
        }
        self.wake(host);
        self.schedule_tick(host);
        self.heed(host, &handled.notices)?;
        Ok(handled)
    }

    fn schedule_tick(&mut self, host: usize) {
        let place = &self.hosts[host];
        let Some(up) = place.up() else { return };
        let Some(deadline_ms) = up.replica.next_tick_ms() else { return };
        let at = place.when(deadline_ms).max(self.ms + 1);
        let boot = place.boot;
        if up.tick_ms.is_none_or(|before| before > at) {
            self.hosts[host].up_mut().expect("up").tick_ms = Some(at);
            self.at(at, Event::Tick(host, boot));
        }
    }

    /// Follows what a replica tells its watchers.
    fn absorb(&mut self, host: usize, effects: Effects) -> Outcome<Option<Result<Reply, Refusal>>> {
        let Host { life: Life::Up(up), told, .. } = &mut self.hosts[host] else { return Ok(None) };
        let mut commits = effects.commits.iter();
        if effects.leapt {
            self.coverage.count("leaps");
            // What was told before is compacted now, and all that was shown may be shown as written anew.
            told.clear();
            up.untold.clear();
            let before = up.shadow.clone();
            for commit in commits.by_ref() {
                up.untold.push_back(commit.clone());
            }
            up.untold.retain(|commit| Some(commit.revision) > up.replica.compacted());
            up.shadow = Shadow::of(&up.replica);
            ensure!(up.shadow.revision >= before.revision, "a leap backwards");
        }
        for commit in commits {
            // Two that wrote again what a third had lost began two incarnations of the key: one follows the other. So it is
            // when a writer and one that had heard it were removed, and both were added again.
            let follows = |key: &[u8]| {
                let mut later = effects.commits.iter().filter(|later| later.revision > commit.revision);
                later.any(|later| later.events.iter().any(|told| told.written().is_some() && told.key() == key))
            };
            let kept = |event: &Told| {
                event.written().is_some()
                    || !event.key().starts_with(checks::MARK)
                    || ((self.disk_faults || self.removals) && follows(event.key()))
            };
            ensure!(commit.events.iter().all(kept), "what nobody deletes is deleted: {commit:?}");
            observer::watch(&up.shadow, commit)?;
            up.shadow.apply(commit)?;
            observer::read(&up.shadow)?;
            up.untold.push_back(commit.clone());
        }
        if !effects.commits.is_empty() || effects.leapt {
            checks::shows(&up.replica, &up.shadow)?;
        }
        Ok(effects.reply)
    }

    pub fn begin_flush(&mut self, host: usize) {
        let flush_ms = self.hosts[host].flush_ms;
        let takes_ms = if flush_ms == 0 { 0 } else { self.rng.random_range(1..=flush_ms) };
        let Host { life: Life::Up(up), disk, boot, .. } = &mut self.hosts[host] else { return };
        if up.flight.is_none() && disk.waiting() > 0 {
            up.flight = Some((disk.waiting(), Checkpoint::of(&up.replica, &up.shadow)));
            let event = Event::Flushed(host, *boot);
            self.at(self.ms + takes_ms, event);
        }
    }

    pub fn flushed(&mut self, host: usize) -> Outcome {
        let Host { life: Life::Up(up), disk, told, expected, instead, flushes_per_sweep, .. } = &mut self.hosts[host]
        else {
            return Ok(());
        };
        let Some((count, state)) = up.flight.take() else { return Ok(()) };
        disk.flush(count);
        let grown = up.durable.vector != state.vector;
        while let Some(commit) = up.untold.front().filter(|commit| commit.revision <= state.shadow.revision) {
            let next = told.last_key_value().map_or(commit.revision, |(last, _)| last.next());
            ensure!(next == commit.revision, "watchers miss something before {:?}", commit.revision);
            told.insert(commit.revision, commit.clone());
            up.untold.pop_front();
        }
        ensure!(state.vector.covers(&up.durable.vector), "what was durable is gone");
        up.durable = state;
        (*expected, *instead) = (Some(up.durable.clone()), None);
        self.ledger.durable(&up.replica, &up.durable)?;
        up.replica.release(up.durable.shadow.revision, usize::MAX);
        if self.ms.is_multiple_of(64) {
            checks::history(&up.replica, disk, told)?;
        }
        // What a compaction hid goes in slices.
        up.unswept += 1;
        if up.unswept >= *flushes_per_sweep {
            up.unswept = 0;
            let slice = self.rng.random_range(0..20);
            let is_trimmed = up.dead.is_empty();
            up.dead.extend(up.replica.sweep(slice, is_trimmed).dead);
        }
        let (mut trimmed, mut later) = (vec![], vec![]);
        for _ in 0..self.rng.random_range(0..20) {
            let Some(number) = up.dead.pop_first() else { break };
            match disk.durable.records.get(&number) {
                Some(record) => {
                    let left = up.replica.trim(record);
                    if left.as_ref() != Some(record) {
                        trimmed.push((number, left));
                    }
                }
                None => later.push(number),
            }
        }
        // What is not on disk yet; the others were trimmed before.
        let newest = disk.durable.records.last_key_value().map_or(0, |(number, _)| *number);
        up.dead.extend(later.into_iter().filter(|number| *number > newest));
        if !trimmed.is_empty() {
            disk.write(Write::Trim(trimmed));
        }
        if grown {
            let own = up.durable.vector.clone();
            self.handle(host, vec![Input::Acks { own, acks: vec![] }])?;
        }
        self.begin_flush(host);
        Ok(())
    }

    /// Runs a client's command and compares what is answered and told with what a sequential store would.
    pub fn command(&mut self, host: usize, command: Command) -> Outcome<Option<Result<Reply, Refusal>>> {
        // A member whose adding was refused is not there.
        let Some(place) = self.hosts.get(host) else { return Ok(None) };
        let now = place.now(self.ms);
        let Some(up) = place.up() else { return Ok(None) };
        let replica = &up.replica;
        let beside = Beside {
            has_lease: &|id| replica.lease(now, id).is_some(),
            past: &|_, _| unreachable!("no client reads the past"),
            compacted: replica.compacted().map_or(-1, Revision::get),
        };
        let predicted = up.shadow.predict(&command, &beside);
        let revision = up.shadow.revision;
        self.say(|| format!("host {host}: {command:?}"));
        let untold = up.untold.len();
        let reply = self.handle(host, vec![Input::Client(command)])?.reply;
        if let Some((expected, events)) = predicted {
            same(&reply, &Some(expected), "answer and that of a sequential store")?;
            let Some(up) = self.hosts[host].up() else { return Ok(reply) };
            let told: Vec<_> = up.untold.iter().skip(untold).flat_map(|commit| commit.events.iter().cloned()).collect();
            same(&told, &events, "events of a command")?;
            let expected = if events.is_empty() { revision } else { revision.next() };
            same(&up.shadow.revision, &expected, "revision after a command")?;
        }
        Ok(reply)
    }

    /// Everything that is planned happens.
    pub fn run(&mut self) -> Outcome {
        for (wait_ms, act) in self.plan.acts.clone() {
            self.pass(self.ms + wait_ms)?;
            self.act(&act)?;
        }
        Ok(())
    }

    fn act(&mut self, act: &Act) -> Outcome {
        if !matches!(act, Act::Command(..) | Act::Hot(..) | Act::Edit(..)) {
            self.say(|| format!("{act:?}"));
        }
        match act {
            Act::Command(host, seed) => {
                let Some(up) = self.hosts.get(*host).and_then(Host::up) else { return Ok(()) };
                let command = clients::command(*seed, &up.shadow, up.replica.compacted());
                self.command(*host, command)?;
            }
            Act::Hot(host, seed) if *host < self.hosts.len() => drop(self.command(*host, clients::hot_command(*seed))?),
            Act::Hot(..) => {}
            Act::Edit(host, seed) => {
                let Some(up) = self.hosts.get(*host).and_then(Host::up) else { return Ok(()) };
                let command = edits::command(*seed, &up.shadow);
                self.command(*host, command)?;
            }
            Act::Field(host, seed) => self.edit_field(*host, *seed)?,
            Act::Count(host, seed) => self.count_pods(*host, *seed)?,
            Act::Own(host) => self.own(*host)?,
            Act::Status(host) => self.status(*host)?,
            Act::Pair(host) => self.pair(*host)?,
            Act::Keep(host) => self.keep_alive(*host)?,
            Act::Burst(host, count) => {
                for n in 0..*count {
                    if self.hosts.get(*host).and_then(Host::up).is_some() {
                        let op = clients::put("burst".into(), format!("{n}"), None);
                        self.command(*host, Command::Put(op))?;
                    }
                }
            }
            Act::Reset(a, b) => self.reset(*a, *b),
            Act::Double(a, b) => self.connect(*a, *b)?,
            Act::Cut(cut) => {
                let count = self.hosts.len();
                self.blocked.cut(*cut, count);
            }
            Act::Mend => self.blocked.mend(),
            Act::Links { open, sever } => self.link_only(open, *sever),
            Act::Rest => {}
            Act::Crash(host, back_ms) => self.crash(*host, *back_ms),
            Act::CrashAll(back_ms) => {
                for host in 0..self.hosts.len() {
                    self.crash(host, *back_ms);
                }
            }
            Act::Slow(host, flush_ms) => {
                if let Some(host) = self.hosts.get_mut(*host) {
                    host.flush_ms = *flush_ms;
                }
            }
            Act::Skew(host, off_ms) => {
                self.coverage.count("clock skews");
                if let Some(host) = self.hosts.get_mut(*host) {
                    host.wall_off_ms = *off_ms;
                }
            }
            Act::Wipe(host, back_ms) => self.wipe(*host, *back_ms),
            Act::Backup(host) => self.backup(*host),
            Act::Restore(host, back_ms, seen) => self.restore(*host, *back_ms, *seen),
            Act::RestoreAll(back_ms) => (0..self.hosts.len()).for_each(|host| self.restore(host, *back_ms, true)),
            Act::Add(at, place) => self.add(*at, *place)?,
            Act::Remove(at, gone) => self.remove(*at, *gone)?,
            Act::Weigh(host, seed) => self.weigh(*host, *seed)?,
            Act::Declare(host, which) => self.declare(*host, *which)?,
            Act::Define(host, which) => self.define(*host, *which)?,
            Act::Shape(host, seed) => self.reshape(*host, *seed)?,
            Act::Rebuild(host, back_ms, newer) => self.rebuild(*host, *back_ms, *newer),
        }
        Ok(())
    }

    /// Nothing is in the way any more: all must become equal.
    pub fn heal(&mut self) -> Outcome {
        self.healing = true;
        self.blocked.mend();
        // Removed members may have been the only ones between others.
        self.links.clear();
        for b in 0..self.hosts.len() {
            for a in 0..b {
                self.at(self.ms, Event::Dial(a, b));
            }
        }
        if self.plan.rules {
            self.rebuild_all();
        }
        for host in 0..self.hosts.len() {
            self.hosts[host].flush_ms = 3;
            if matches!(self.hosts[host].life, Life::Down) {
                let boot = self.hosts[host].boot;
                self.at(self.ms, Event::Start(host, boot));
            }
        }
        let marks: Vec<_> = self.hosts.iter().map(Host::marks).collect();
        let begun = self.ms;
        let mut last = Err("nothing was looked at".to_owned());
        while self.ms < begun + HEALING_MS {
            if self.ms > begun + HEALING_MS / 4 {
                self.add_again()?;
                self.remove_again()?;
            }
            self.pass(self.ms + 100)?;
            last = self.check_converged().and_then(|()| self.check_all_kept_alive());
            if last.is_ok() {
                let has_forgotten = |up: &super::host::Up| up.replica.vector().fences().next().is_some();
                if self.hosts.iter().filter_map(Host::up).any(has_forgotten) {
                    self.coverage.count("births forgotten");
                }
                self.check_forgotten()?;
                return self.check_marks(&marks);
            }
        }
        let stages: Vec<_> = self
            .connections
            .iter()
            .flat_map(|(at, c)| c.ends.iter().filter_map(move |e| Some((at, e.host, e.session.as_ref()?.stage()))))
            .collect();
        last.map_err(|error| format!("no convergence: {error}\n{stages:?}"))
    }

    /// Checks the `marks` that each host had on disk when healing began. Those of a host that runs must be everywhere,
    /// except those that it gave up and said so.
    fn check_marks(&self, marks: &[BTreeSet<Bytes>]) -> Outcome {
        let ups = || self.hosts.iter().filter_map(Host::up);
        for (host, marks) in self.hosts.iter().zip(marks).filter(|(host, _)| host.up().is_some()) {
            for mark in marks.difference(&host.forsaken) {
                let missing = ups().any(|up| !up.shadow.kvs.contains_key(mark));
                ensure!(!missing, "{mark:?}, which {} had on disk, is lost", host.id);
            }
        }
        Ok(())
    }

    /// What is left on disk gives the same again.
    pub fn finish(&mut self) -> Outcome {
        for host in 0..self.hosts.len() {
            if self.hosts[host].up().is_some() {
                self.crash(host, 0);
                self.start(host)?;
            }
        }
        Ok(())
    }

    /// What is over and known to all is forgotten.
    fn check_forgotten(&self) -> Outcome {
        for up in self.hosts.iter().filter_map(Host::up) {
            let replica = &up.replica;
            for member in replica.members() {
                let births = replica.births_of(member.id).count();
                ensure!(births <= 2 + self.plan.kept_births, "{births} births of {} are known", member.id);
            }
            ensure!(replica.acks().len() <= replica.members().count(), "acknowledgements of the dead count");
        }
        Ok(())
    }

    fn check_converged(&self) -> Outcome {
        let mut replicas = vec![];
        for host in &self.hosts {
            match &host.life {
                Life::Up(up) => {
                    ensure!(up.flight.is_none() && host.disk.waiting() == 0, "{} has not flushed", host.id);
                    replicas.push(&up.replica);
                }
                Life::Gone => {}
                Life::Down => return Err(format!("{} is down", host.id)),
                Life::Fetching(_) => return Err(format!("{} fetches a snapshot", host.id)),
            }
        }
        if self.plan.rules {
            builds::moved_up(&replicas)?;
        }
        converged(&replicas)
    }
}
