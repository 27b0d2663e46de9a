//! What clients see, beside what schedules promise them: of things that depend on each other nobody sees the later one
//! first, in watches as in reads, and each at a revision of its own; two keys that are only written together show the same
//! write; a key under a lease that is kept alive does not go.

use std::collections::BTreeMap;

use bytes::Bytes;
use eddy_crdt::{Command, Commit, Event as Told, LeaseId, Op, Refusal, Reply, Txn, VersionVector};

use super::clients::put;
use super::world::{Event, Outcome, World};
use crate::support::checks::ensure;
use crate::support::shadow::Shadow;

/// What depends on each other: `own/3` was there when `own/3.7` was written, and that when `own/3.7.9` was.
const OWN: &[u8] = b"own/";
/// The keys that are only written together.
const PAIRS: [[&str; 2]; 2] = [["pair/a", "pair/b"], ["/registry/pair/a", "/registry/pair/b"]];
/// The time to live of a lease that is kept alive, seconds.
const TTL: i64 = 5;
/// How often it is kept alive, milliseconds.
const RENEWS_MS: u64 = 1_000;

/// What clients of a schedule do.
#[derive(Default)]
pub struct Clients {
    /// Counts what they wrote, so that no two values are the same.
    count: u64,
    /// Keys under leases that are kept alive, with the host whose client does it, and which start of it that was.
    kept: BTreeMap<Bytes, (usize, u32, LeaseId)>,
}

/// The key that must have been seen before that one.
fn owner(key: &[u8]) -> Option<&[u8]> {
    let dot = key.iter().rposition(|byte| *byte == b'.').filter(|_| key.starts_with(OWN))?;
    key.get(..dot)
}

/// Takes a commit as a watcher does that was shown this before.
pub fn watch(before: &Shadow, commit: &Commit) -> Outcome {
    for (at, event) in commit.events.iter().enumerate() {
        let Some(owner) = owner(event.key()).filter(|_| event.written().is_some()) else { continue };
        let is_here = || commit.events[..at].iter().any(|event| event.key() == owner);
        let is_seen = before.kvs.contains_key(owner) || is_here();
        ensure!(is_seen, "{:?} is shown before what it depends on: {commit:?}", event.key());
    }
    // A client whose watch breaks off at the first of them goes on behind the others.
    let alone = |event: &&Told| event.key().starts_with(OWN) && event.written().is_some();
    ensure!(
        commit.events.iter().filter(alone).count() < 2,
        "what was written apart is shown at one revision: {commit:?}"
    );
    Ok(())
}

/// What a read of all that is there must show.
pub fn read(shadow: &Shadow) -> Outcome {
    let value = |key: &str| shadow.kvs.get(key.as_bytes()).map(|kv| &kv.value);
    for pair in PAIRS {
        let [a, b] = pair.map(value);
        ensure!(a == b, "a part of a transaction is shown: {pair:?} are {a:?} and {b:?}");
    }
    for key in shadow.kvs.keys() {
        let Some(owner) = owner(key) else { continue };
        ensure!(shadow.kvs.contains_key(owner), "{key:?} is shown without what it depends on");
    }
    Ok(())
}

impl World {
    fn fresh_value(&mut self) -> u64 {
        self.clients.count += 1;
        self.clients.count
    }

    /// A client that sees a chain adds to it; one that sees none begins one.
    pub fn own(&mut self, host: usize) -> Outcome {
        let Some(up) = self.hosts.get(host).and_then(|host| host.up()) else { return Ok(()) };
        let n = self.clients.count;
        let before = up.shadow.kvs.keys().rfind(|key| key.starts_with(OWN) && !n.is_multiple_of(3));
        let key = before.map_or_else(|| format!("own/{n}"), |key| format!("{}.{n}", String::from_utf8_lossy(key)));
        self.clients.count += 1;
        self.command(host, Command::Put(put(key.into(), format!("{n}"), None))).map(drop)
    }

    /// A client writes what the oldest of such chains begins with again: it is newer then than what depends on it.
    pub fn status(&mut self, host: usize) -> Outcome {
        let Some(up) = self.hosts.get(host).and_then(|host| host.up()) else { return Ok(()) };
        let Some(key) = up.shadow.kvs.keys().find(|key| key.starts_with(OWN)).cloned() else { return Ok(()) };
        let n = self.fresh_value();
        self.command(host, Command::Put(put(key, format!("{n}"), None))).map(drop)
    }

    /// Both keys of a pair, in one transaction.
    pub fn pair(&mut self, host: usize) -> Outcome {
        let n = self.fresh_value();
        let success =
            PAIRS[n as usize % 2].iter().map(|key| Op::Put(put((*key).into(), format!("{n}"), None))).collect();
        self.command(host, Command::Txn(Txn { success, ..Txn::default() })).map(drop)
    }

    /// A client takes a lease, hangs a key on it, and keeps it alive from now on.
    pub fn keep_alive(&mut self, host: usize) -> Outcome {
        let Some(boot) = self.hosts.get(host).filter(|host| host.up().is_some()).map(|host| host.boot) else {
            return Ok(());
        };
        let id = 100 + self.fresh_value() as i64;
        let (lease, key) = (LeaseId::new(id), Bytes::from(format!("kept/{id}")));
        let granted = self.command(host, Command::LeaseGrant { id: lease, ttl: TTL })?;
        if !matches!(granted, Some(Ok(_))) {
            return Ok(());
        }
        self.command(host, Command::Put(put(key.clone(), "kept", Some(lease))))?;
        self.clients.kept.insert(key, (host, boot, lease));
        self.at(self.ms + RENEWS_MS, Event::Renew(host, boot));
        Ok(())
    }

    /// Those clients of a host keep their leases alive that have not stopped with it.
    pub fn renew(&mut self, host: usize, boot: u32) -> Outcome {
        if self.hosts[host].up().is_none() {
            return Ok(());
        }
        let mine = self.clients.kept.values().filter(|(at, since, _)| (*at, *since) == (host, boot));
        for lease in mine.map(|(_, _, lease)| *lease).collect::<Vec<_>>() {
            let reply: Option<Result<Reply, Refusal>> = self.command(host, Command::LeaseRenew(lease))?;
            ensure!(matches!(reply, Some(Ok(_))), "a living lease is gone at {host}: {reply:?}");
            self.coverage.count("leases kept alive");
        }
        self.at(self.ms + RENEWS_MS, Event::Renew(host, boot));
        Ok(())
    }

    /// The keys under leases that are kept alive still, with the host whose client does that.
    fn living(&self) -> impl Iterator<Item = (&Bytes, usize)> {
        let lives = |host: usize, boot| self.hosts[host].up().is_some() && self.hosts[host].boot == boot;
        self.clients
            .kept
            .iter()
            .filter(move |(_, (host, boot, _))| lives(*host, *boot))
            .map(|(key, (host, ..))| (key, *host))
    }

    /// Whether a host shows its clients the keys that they keep alive.
    pub fn check_kept_alive(&self, host: usize) -> Outcome {
        let Some(up) = self.hosts[host].up() else { return Ok(()) };
        let gone = self.living().find(|(key, at)| *at == host && !up.shadow.kvs.contains_key(*key));
        ensure!(gone.is_none(), "{host} does not show its own client {gone:?}, which is kept alive");
        Ok(())
    }

    /// Whether all hosts show what is kept alive at any.
    pub fn check_all_kept_alive(&self) -> Outcome {
        for host in self.hosts.iter().filter_map(|host| host.up()) {
            let gone = self.living().find(|(key, _)| !host.shadow.kvs.contains_key(*key));
            ensure!(gone.is_none(), "{gone:?}, which is kept alive, is not shown everywhere");
        }
        Ok(())
    }
}

impl World {
    /// Looks at what a replica shows after a turn, beside what it was given, and what schedule and clients know.
    pub fn look_at(&mut self, host: usize, before: &VersionVector, of_others: bool) -> Outcome {
        let Some(up) = self.hosts[host].up().filter(|_| self.plan.watched) else { return Ok(()) };
        self.history.note_rules(host, up.replica.rules(), &mut self.coverage)?;
        self.history.note_forgotten(before, up.replica.vector());
        if of_others {
            self.history.check(before, up.replica.vector(), &up.shadow, &mut self.coverage)?;
            // What is written again after a disk was lost has another name.
            if !self.disk_faults {
                self.fields.check(up.replica.vector(), &up.shadow)?;
                self.jobs.check(up.replica.vector(), &up.shadow)?;
            }
        }
        self.check_kept_alive(host)
    }
}
