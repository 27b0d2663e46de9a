//! Checks that a scenario makes sense.

use super::{FigureSpec, LoadKind, LoadSpec, Scenario};

/// Largest cluster that is started on one machine.
const NODES_MAX: usize = 64;

/// Least share of a core: the kernel gives no less than a millisecond in each [`crate::target::share::PERIOD_US`].
const SHARE_MIN: f64 = 0.05;
/// Least memory of a share: a node that cannot start measures nothing.
const MEMORY_MIN_MIB: u32 = 32;

/// The field, as `table.name`, and what is wrong with it.
type Wrong = (&'static str, String);

impl Scenario {
    pub(super) fn check(&self) -> Result<(), Wrong> {
        if self.name.is_empty() || !self.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return fail("name", "use letters, digits and -");
        }
        if self.repeat == 0 {
            return fail("repeat", "0 experiments measure nothing");
        }
        let smallest = self.check_cluster()?;
        check_kind(&self.load)?;
        check_mix(&self.load)?;
        check_sizes(&self.load)?;
        self.check_network(smallest)?;
        for figure in &self.figures {
            if let FigureSpec::Line { x, .. } = figure
                && self.cells().iter().all(|cell| cell.on(*x) == self.cells()[0].on(*x))
            {
                return Err(("figure.x", format!("{} is the same in all experiments", x.label())));
            }
        }
        Ok(())
    }

    /// Returns the size of the smallest cluster.
    fn check_cluster(&self) -> Result<usize, Wrong> {
        let cluster = &self.cluster;
        if cluster.systems.is_empty() || cluster.disk.is_empty() || cluster.flush_delay_ms.is_empty() {
            return fail("cluster", "an empty list leaves nothing to measure");
        }
        let Some(smallest) = cluster.nodes.iter().min() else { return fail("cluster.nodes", "is empty") };
        if cluster.nodes.iter().any(|n| *n == 0 || *n > NODES_MAX) {
            return Err(("cluster.nodes", format!("from 1 to {NODES_MAX}")));
        }
        if let Some(share) = cluster.share {
            if !(SHARE_MIN..=1_000.0).contains(&share.cpu) {
                return Err(("cluster.share.cpu", format!("cores, {SHARE_MIN} or more")));
            }
            if share.memory_mib.is_some_and(|mib| mib < MEMORY_MIN_MIB) {
                return Err(("cluster.share.memory_mib", format!("{MEMORY_MIN_MIB} or more")));
            }
        }
        Ok(*smallest)
    }

    fn check_network(&self, smallest: usize) -> Result<(), Wrong> {
        let (network, load) = (&self.network, &self.load);
        if !network.round_trip_ms.iter().all(|t| time(*t)) || !time(network.jitter_ms) {
            return fail("network", "times are numbers from 0 on");
        }
        if network.kib_per_second == Some(0) {
            return fail("network.kib_per_second", "0 is a cut; use an event");
        }
        for event in &network.events {
            let named = [&event.isolate, &event.silence];
            let kinds = named.iter().filter(|nodes| !nodes.is_empty()).count() + usize::from(event.heal);
            if kinds != 1 {
                return fail("network.event", "each has one of isolate, silence, heal");
            }
            if named.iter().flat_map(|nodes| nodes.iter()).any(|node| *node >= smallest) {
                return fail("network.event", "names a node that the smallest cluster does not have");
            }
            if load.operations.is_some() {
                return fail("network.event", "a load of so many operations may end before it");
            }
            if !time(event.at_s) || event.at_s >= load.measure_s {
                return fail("network.event", "at_s lies within load.measure_s");
            }
        }
        Ok(())
    }
}

fn fail<T>(field: &'static str, message: &str) -> Result<T, Wrong> {
    Err((field, message.to_owned()))
}

fn time(t: f64) -> bool {
    t.is_finite() && t >= 0.0
}

fn check_mix(load: &LoadSpec) -> Result<(), Wrong> {
    let mix = [load.mix.put, load.mix.range, load.mix.serializable, load.mix.txn, load.mix.keepalive];
    if mix.iter().any(|share| !time(*share)) {
        return fail("load.mix", "shares are numbers from 0 on");
    }
    if load.kind == LoadKind::Replay && mix.iter().any(|share| *share > 0.0) {
        return fail("load.mix", "a replay has the mix that was recorded");
    }
    if load.kind != LoadKind::Replay && mix.iter().sum::<f64>() <= 0.0 {
        return fail("load.mix", "all shares are 0");
    }
    Ok(())
}

/// Each kind of load has fields of its own.
fn check_kind(load: &LoadSpec) -> Result<(), Wrong> {
    match load.kind {
        LoadKind::Closed if load.clients.is_empty() || load.clients.contains(&0) => {
            return fail("load.clients", "a closed loop needs clients");
        }
        LoadKind::Closed if !load.rate.is_empty() => return fail("load.rate", "a closed loop has no rate"),
        LoadKind::Open | LoadKind::Replay if !load.clients.is_empty() => {
            return fail("load.clients", "only a closed loop has a number of clients");
        }
        LoadKind::Open | LoadKind::Replay
            if load.rate.is_empty() || load.rate.iter().any(|r| !time(*r) || *r == 0.0) =>
        {
            return fail("load.rate", "this kind of load needs rates above 0");
        }
        LoadKind::Open if load.mix.keepalive > 0.0 => {
            return fail("load.mix.keepalive", "renewals follow each other on a stream: only in a closed loop");
        }
        LoadKind::Replay if load.trace.is_none() => return fail("load.trace", "which trace is to be replayed?"),
        LoadKind::Closed | LoadKind::Open if load.trace.is_some() => {
            return fail("load.trace", "only kind = \"replay\" has a trace");
        }
        _ => {}
    }
    Ok(())
}

fn check_sizes(load: &LoadSpec) -> Result<(), Wrong> {
    if load.operations.is_some() && (load.kind != LoadKind::Closed || load.warmup_s > 0.0) {
        return fail("load.operations", "only a closed loop with warmup_s = 0 does so many");
    }
    if load.operations == Some(0) {
        return fail("load.operations", "0 operations measure nothing");
    }
    if load.connections == 0 || load.keys == 0 || load.watchers.is_empty() {
        return fail("load", "connections and keys are at least 1, watchers is not empty");
    }
    if !(16..=512).contains(&load.key_bytes) {
        return fail("load.key_bytes", "from 16 to 512");
    }
    if !(32..=1 << 20).contains(&load.value_bytes) {
        return fail("load.value_bytes", "from 32 (the moment of writing is in it) to 1 MiB");
    }
    if !time(load.warmup_s)
        || !time(load.measure_s)
        || load.measure_s == 0.0
        || load.measure_s > 86_400.0
        || load.timeout_ms == 0
    {
        return fail("load", "warmup_s, measure_s (up to a day) and timeout_ms are times");
    }
    Ok(())
}
