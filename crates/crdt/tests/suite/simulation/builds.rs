//! Rules and builds that change while a cluster runs.

use std::collections::BTreeSet;

use bytes::Bytes;
use eddy_crdt::merge::{ENGINE, Windows, counters};
use eddy_crdt::{Command, Refusal, Replica};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::clients;
use super::host::{Host, Life};
use super::world::{Outcome, World};
use crate::support::checks::ensure;

/// The engine of a newer build. It merges as this one does: what differs between rules are the counters.
pub const NEWER_ENGINE: u32 = ENGINE + 1;

/// The objects that clients weigh, with what stands before their weight.
const WEIGHED: [(&str, &str); 2] = [
    ("/registry/pods/p", r#"{"apiVersion":"v1","kind":"Pod","#),
    ("/registry/configmaps/m", r#"{"apiVersion":"v1","kind":"ConfigMap","#),
];

/// What can be declared.
const DECLARED: [&str; 4] = ["", "v1/Pod:.weight", "v1/ConfigMap:.weight:min=0", "v1/ConfigMap:.weight,v1/Pod:.weight"];

/// The object with another weight: one or two more or less than it has.
fn weighed(rng: &mut SmallRng, before: Option<&str>, begin: &str) -> String {
    let field = r#""weight":"#;
    let by = rng.random_range(-2..=2);
    let rest = before.and_then(|text| text.strip_prefix(begin));
    match rest {
        None => format!(r#"{begin}{field}{by},"metadata":{{"name":"x","uid":"u0","generation":1}}}}"#),
        Some(rest) => match before.and_then(|text| text.split_once(field)) {
            None => format!("{begin}{field}{by},{rest}"),
            Some((head, tail)) => {
                let end = tail.find([',', '}']).unwrap_or(tail.len());
                let weight: i64 = tail[..end].parse().unwrap_or(0);
                format!("{head}{field}{}{}", weight + by, &tail[end..])
            }
        },
    }
}

impl World {
    pub fn weigh(&mut self, host: usize, seed: u64) -> Outcome {
        let Some(up) = self.hosts.get(host).and_then(Host::up) else { return Ok(()) };
        let rng = &mut SmallRng::seed_from_u64(seed);
        let (key, begin) = WEIGHED[rng.random_range(0..WEIGHED.len())];
        let before = up.shadow.kvs.get(key.as_bytes()).and_then(|kv| std::str::from_utf8(&kv.value).ok());
        let value = weighed(rng, before, begin);
        self.command(host, Command::Put(clients::put(Bytes::from_static(key.as_bytes()), value, None)))?;
        self.look_at_windows(host);
        Ok(())
    }

    pub fn declare(&mut self, host: usize, which: usize) -> Outcome {
        let counters = counters(DECLARED[which]).map_err(|error| error.to_string())?;
        match self.command(host, Command::Declare { counters, atomic: vec![] })? {
            Some(Ok(_)) => self.coverage.count("declarations"),
            Some(Err(Refusal::RulesMoving)) => self.coverage.count("declarations while another waits"),
            Some(Err(error)) => return Err(format!("a declaration: {error}")),
            None => {}
        }
        Ok(())
    }

    /// Starts it as another build.
    pub fn rebuild(&mut self, host: usize, back_ms: u64, newer: bool) {
        let Some(place) = self.hosts.get_mut(host) else { return };
        if matches!(place.life, Life::Gone) {
            return;
        }
        self.crash(host, back_ms);
        self.hosts[host].engine = if newer { NEWER_ENGINE } else { ENGINE };
    }

    /// The operator has the newer build everywhere in the end.
    pub fn rebuild_all(&mut self) {
        for host in 0..self.hosts.len() {
            let place = &mut self.hosts[host];
            if place.engine == NEWER_ENGINE || matches!(place.life, Life::Gone) {
                continue;
            }
            place.engine = NEWER_ENGINE;
            self.crash(host, 0);
        }
    }

    /// A member says which build it is, as it does when it has started.
    pub fn say_which_build(&mut self, host: usize) -> Outcome {
        if self.plan.rules {
            let name = format!("n{host}");
            self.command(host, Command::MemberPublish { name, client_urls: vec![] })?;
        }
        Ok(())
    }

    pub fn look_at_windows(&mut self, host: usize) {
        let Some(up) = self.hosts[host].up() else { return };
        let several = up.replica.windows().into_iter().flat_map(Windows::iter).any(|(_, _, open)| {
            let numbers: BTreeSet<u32> = open.window.versions().iter().map(|version| version.rules).collect();
            numbers.len() > 1 && !open.window.is_chain()
        });
        if several {
            self.coverage.count("windows with versions of several numbers");
        }
        if up.replica.rules().current().number > 1 {
            self.coverage.count("rules moved up");
        }
        if !up.replica.rules().current().custom.is_empty() {
            self.coverage.count("schemas in use");
        }
        if up.replica.rules().numbers().nth(1).is_some_and(|oldest| oldest > 2) {
            self.coverage.count("rules forgotten");
        }
    }
}

/// All replicas merge by the same rules, those of the newest engine, and nothing waits.
pub fn moved_up(replicas: &[&Replica]) -> Outcome {
    for replica in replicas {
        let rules = replica.rules();
        ensure!(rules == replicas[0].rules(), "rules: {rules:?} and {:?}", replicas[0].rules());
        ensure!(rules.declared().is_none(), "{:?} is not in use", rules.declared());
        ensure!(rules.current().engine == NEWER_ENGINE, "{:?}", rules.current());
        let kinds = replica.custom_kinds();
        let waits = kinds.iter().find(|kind| kind.waits.is_some());
        ensure!(waits.is_none() && kinds.len() == rules.current().custom.len(), "{waits:?} of {kinds:?}");
    }
    Ok(())
}
