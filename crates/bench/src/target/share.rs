//! A share of the machine for each node, by the kernel's control groups.

use anyhow::{Context, Result};
use cgroups_rs::cgroup_builder::CgroupBuilder;
use cgroups_rs::{Cgroup, CgroupPid, hierarchies};

use crate::scenario::ShareSpec;

/// A node that has used up its part of this time waits for the rest of it, microseconds. Short, so that a wait is no longer than
/// what a put takes.
pub const PERIOD_US: u64 = 20_000;

/// The shares of a cluster's nodes; dropping them gives them back.
#[derive(Debug)]
pub struct Shares(Vec<Cgroup>);

impl Shares {
    /// Makes equal shares for that many nodes.
    ///
    /// # Errors
    /// Without root, or where the kernel has neither the first nor the second version of the controllers.
    pub fn new(spec: ShareSpec, nodes: usize) -> Result<Self> {
        let mut shares = Self(vec![]);
        for node in 0..nodes {
            shares.0.push(share(spec, node).context(
                "[cluster.share] gives each node a control group of its own. That needs root, and the controllers cpu and \
                 memory of cgroup v1 or v2",
            )?);
        }
        Ok(shares)
    }

    /// Has a node run in its share.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn put(&self, node: usize, process: u32) -> Result<()> {
        let share = self.0.get(node).with_context(|| format!("node {node} has no share"))?;
        share
            .add_task_by_tgid(CgroupPid::from(u64::from(process)))
            .with_context(|| format!("put node {node} in its share"))
    }
}

fn share(spec: ShareSpec, node: usize) -> Result<Cgroup> {
    let name = format!("eddy-lab-{}-{node}", std::process::id());
    let quota = (spec.cpu * PERIOD_US as f64).round() as i64;
    let mut builder = CgroupBuilder::new(&name)
        .set_specified_controllers(vec!["cpu".to_owned(), "memory".to_owned()])
        .cpu()
        .period(PERIOD_US)
        .quota(quota)
        .done();
    if let Some(mib) = spec.memory_mib {
        builder = builder.memory().memory_hard_limit(i64::from(mib) << 20).done();
    }
    Ok(builder.build(hierarchies::auto())?)
}

impl Drop for Shares {
    fn drop(&mut self) {
        for share in &self.0 {
            if let Err(error) = share.delete() {
                eprintln!("control group {}: {error}", share.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_node_runs_in_its_share_or_it_is_said_what_that_needs() -> Result<()> {
        let shares = match Shares::new(ShareSpec { cpu: 0.5, memory_mib: Some(64) }, 2) {
            Ok(shares) => shares,
            Err(error) => {
                assert!(format!("{error:#}").contains("needs root"), "{error:#}");
                return Ok(());
            }
        };
        let mut node = Command::new("sleep").arg("60").spawn()?;
        let put = shares.put(1, node.id());
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", node.id()))?;
        node.kill()?;
        node.wait()?;
        put?;
        assert!(groups.contains(&format!("/eddy-lab-{}-1\n", std::process::id())), "{groups}");
        assert!(shares.put(2, std::process::id()).is_err(), "there is no third share");
        let group = shares.0[1].path().to_owned();
        drop(shares);
        let groups = std::fs::read_to_string("/proc/self/cgroup")?;
        assert!(!groups.contains(&group) && !std::path::Path::new("/sys/fs/cgroup/cpu").join(&group).exists());
        Ok(())
    }
}
