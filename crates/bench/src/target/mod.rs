//! Clusters of eddy or etcd on loopback: started, waited for, watched, and gone with their data when dropped.

pub mod binaries;
pub mod http;
pub mod process;
pub mod share;
pub mod transport;

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use eddy_proto::etcdserverpb::StatusRequest;
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use eddy_proto::etcdserverpb::{PutRequest, RangeRequest};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::relay::{Relays, Shape};
use crate::scenario::{Cell, Disk, Event, NetworkSpec, Scenario, System};
use binaries::Binaries;
use process::Process;
use share::Shares;
use transport::Transport;

/// How long a cluster may take to serve, and writes to arrive. 21 nodes of etcd on two busy cores take a while.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a cluster is asked whether it serves.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where data dirs go.
#[derive(Clone, Debug)]
pub struct Places {
    /// A folder on a real disk.
    pub real: PathBuf,
    /// A folder in memory.
    pub tmpfs: PathBuf,
}

impl Places {
    /// The folder for a kind of disk, checked to be one of that kind.
    ///
    /// # Errors
    /// When it lies on the other kind.
    pub fn of(&self, disk: Disk) -> Result<&Path> {
        let path = match disk {
            Disk::Real => &self.real,
            Disk::Tmpfs => &self.tmpfs,
        };
        std::fs::create_dir_all(path).with_context(|| path.display().to_string())?;
        let mounts = std::fs::read_to_string("/proc/mounts").context("/proc/mounts")?;
        let kind = file_system(&mounts, &path.canonicalize()?);
        let in_memory = matches!(kind, "tmpfs" | "ramfs");
        match disk {
            Disk::Real if in_memory => {
                bail!("{} is in memory ({kind}), no real disk: name another with --dir", path.display())
            }
            Disk::Tmpfs if !in_memory => bail!("{} is no tmpfs: name one with --tmpfs", path.display()),
            _ => Ok(path),
        }
    }
}

/// The type of the file system that a path lies on, by the kernel's list of mounts.
fn file_system<'a>(mounts: &'a str, path: &Path) -> &'a str {
    let fields = mounts.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let under = fields.filter(|f| f.len() > 2 && path.starts_with(f[1]));
    // Of equal mount points the later one counts.
    under.max_by_key(|f| f[1].len()).map_or("", |f| f[2])
}

/// One node.
pub struct Node {
    /// Its number among the relays, and in its name.
    place: usize,
    process: Process,
    /// Host and port of its client address.
    pub address: String,
    /// Host and port where it tells its readiness and its metrics, in the clear.
    monitoring: String,
    /// A connection for what the lab itself asks.
    pub channel: Channel,
}

/// What a node has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU seconds.
    pub cpu_s: f64,
    /// Memory now, bytes.
    pub rss_bytes: f64,
    /// Bytes written to a device.
    pub written_bytes: f64,
    /// Flushes of log and store, as the node counts them.
    pub fsyncs: f64,
    /// Bytes sent to peers: what passed the relay, or without relays what the node counts.
    pub peer_bytes: f64,
    /// Entries of other replicas that it has applied; eddy's alone.
    pub remote_entries: f64,
}

/// A running cluster. Node 0 is etcd's leader.
pub struct Cluster {
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// How clients reach them.
    pub transport: Transport,
    relays: Option<Relays>,
    /// Goes after the nodes that are in it.
    _shares: Option<Shares>,
    _dir: TempDir,
}

/// Relays before the peer ports, if links are to be shaped or cut.
async fn relays(cell: &Cell, network: &NetworkSpec, peers: &[SocketAddr], seed: u64) -> Result<Option<Relays>> {
    let shaped = cell.round_trip_ms > 0.0 || network.jitter_ms > 0.0 || network.kib_per_second.is_some();
    if !shaped && network.events.is_empty() {
        return Ok(None);
    }
    let shape = Shape {
        delay: Duration::from_secs_f64(cell.round_trip_ms / 2000.0),
        jitter: Duration::from_secs_f64(network.jitter_ms / 1000.0),
        bytes_per_second: network.kib_per_second.map(|n| n * 1024),
    };
    Relays::start(peers, shape, seed).await.map(Some)
}

impl Cluster {
    /// Starts the cluster of a cell and waits until every node shows what is written at the first.
    ///
    /// # Errors
    /// When a program is missing, a node ends, or the cluster does not come up in time.
    pub async fn start(
        binaries: &Binaries,
        places: &Places,
        cell: &Cell,
        scenario: &Scenario,
        seed: u64,
    ) -> Result<Self> {
        let (cluster, network) = (&scenario.cluster, &scenario.network);
        let flags = match cell.system {
            System::Eddy => &cluster.eddy_flags,
            System::Etcd => &cluster.etcd_flags,
        };
        let shares = cluster.share.map(|share| Shares::new(share, cell.nodes)).transpose()?;
        let program = binaries.of(cell.system)?;
        let dir = tempfile::Builder::new().prefix("eddy-lab-").tempdir_in(places.of(cell.disk)?)?;
        let transport = if cluster.tls { Transport::tls(dir.path())? } else { Transport::default() };
        let ports = free_ports(3 * cell.nodes)?;
        let (client_ports, others) = ports.split_at(cell.nodes);
        let (peer_ports, monitoring_ports) = others.split_at(cell.nodes);
        let listening: Vec<_> = peer_ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
        let relays = relays(cell, network, &listening, seed).await?;
        let advertised: Vec<_> = match &relays {
            Some(relays) => (0..cell.nodes).map(|i| relays.address(i)).collect(),
            None => listening.clone(),
        };
        let members: Vec<_> =
            advertised.iter().enumerate().map(|(i, a)| format!("n{i}={}", transport.url(&a.to_string()))).collect();
        let mut nodes = Vec::new();
        for place in 0..cell.nodes {
            let address = format!("127.0.0.1:{}", client_ports[place]);
            let own_flags = [
                ("--listen-client-urls", transport.url(&address)),
                ("--advertise-client-urls", transport.url(&address)),
                ("--listen-peer-urls", transport.url(&listening[place].to_string())),
                ("--initial-advertise-peer-urls", transport.url(&advertised[place].to_string())),
                ("--initial-cluster", members.join(",")),
                ("--name", format!("n{place}")),
                ("--log-level", "error".to_owned()),
            ];
            let mut arguments: Vec<OsString> = vec!["--data-dir".into(), dir.path().join(format!("n{place}")).into()];
            arguments.extend(own_flags.into_iter().flat_map(|(flag, value)| [flag.into(), value.into()]));
            arguments.extend(transport.flags().into_iter().flat_map(|(flag, file)| [flag.into(), file.into()]));
            let mut monitoring = address.clone();
            if transport.is_tls() {
                monitoring = format!("127.0.0.1:{}", monitoring_ports[place]);
                arguments.extend(["--listen-metrics-urls".into(), format!("http://{monitoring}").into()]);
            }
            arguments.extend(flags.iter().map(OsString::from));
            let log = dir.path().join(format!("n{place}.log"));
            let process = Process::start(program, &arguments, log, cell.flush_delay_ms)?;
            if let Some(relays) = &relays {
                relays.process(place, process.id());
            }
            if let Some(shares) = &shares {
                shares.put(place, process.id())?;
            }
            let channel = transport.endpoint(&address)?.connect_lazy();
            nodes.push(Node { place, process, address, monitoring, channel });
        }
        let mut cluster = Self { nodes, transport, relays, _shares: shares, _dir: dir };
        cluster.come_up().await?;
        if cell.system == System::Etcd {
            cluster.leader_first().await?;
        }
        Ok(cluster)
    }

    async fn come_up(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        for i in 0..self.nodes.len() {
            while let Err(error) = http::get(&self.nodes[i].monitoring, "/readyz").await {
                self.check()?;
                if Instant::now() > until {
                    bail!("node {i} is not ready after {} s: {error}", PATIENCE.as_secs());
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        self.mark(&[0], "ready").await?;
        self.wait_for(&[0], "ready", PATIENCE).await?;
        Ok(())
    }

    /// etcd elects any node; the lab's node 0 is the one it elected.
    async fn leader_first(&mut self) -> Result<()> {
        for i in 0..self.nodes.len() {
            let mut client = MaintenanceClient::new(self.nodes[i].channel.clone());
            let status = client.status(StatusRequest::default()).await?.into_inner();
            if status.header.is_some_and(|header| header.member_id == status.leader) {
                self.nodes.swap(0, i);
                return Ok(());
            }
        }
        bail!("no node leads")
    }

    /// Whether all nodes still run.
    ///
    /// # Errors
    /// When one has ended.
    pub fn check(&mut self) -> Result<()> {
        self.nodes.iter_mut().try_for_each(|node| node.process.check())
    }

    /// Writes a mark at each of these nodes at once, until it is taken.
    ///
    /// # Errors
    /// When a node does not take it in time, or has ended.
    pub async fn mark(&mut self, at: &[usize], mark: &str) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut marking = JoinSet::new();
        for &node in at {
            let put = PutRequest {
                key: mark_key(node).into(),
                value: mark.as_bytes().to_vec().into(),
                ..PutRequest::default()
            };
            let mut kv = KvClient::new(self.nodes[node].channel.clone());
            marking.spawn(async move {
                while let Err(error) = kv.put(put.clone()).await {
                    if Instant::now() > until {
                        bail!("node {node} takes no write: {error}");
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Ok(())
            });
        }
        loop {
            match tokio::time::timeout(LOOK_EVERY, marking.join_next()).await {
                Ok(None) => return Ok(()),
                Ok(Some(marked)) => marked??,
                Err(_) => self.check()?,
            }
        }
    }

    /// Waits until all nodes show the marks that these nodes have written, and with them all that these wrote before.
    /// Returns whether that took no longer than `patience`.
    ///
    /// # Errors
    /// When a node has ended.
    pub async fn wait_for(&mut self, of: &[usize], mark: &str, patience: Duration) -> Result<bool> {
        let since = Instant::now();
        for node in 0..self.nodes.len() {
            let mut kv = KvClient::new(self.nodes[node].channel.clone());
            for &writer in of {
                let get = RangeRequest { key: mark_key(writer).into(), serializable: true, ..RangeRequest::default() };
                loop {
                    let reply = kv.range(get.clone()).await;
                    if reply.is_ok_and(|r| r.into_inner().kvs.first().is_some_and(|kv| kv.value == mark.as_bytes())) {
                        break;
                    }
                    self.check()?;
                    if since.elapsed() > patience {
                        return Ok(false);
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
        Ok(true)
    }

    /// Lets an event happen.
    pub fn happen(&self, event: &Event) {
        let Some(relays) = &self.relays else { return };
        let place = |node: &usize| self.nodes[*node].place;
        let others = |of: &[usize]| -> Vec<usize> {
            let of: Vec<_> = of.iter().map(place).collect();
            (0..self.nodes.len()).filter(|node| !of.contains(node)).collect()
        };
        for from in event.isolate.iter().map(place) {
            relays.cut(others(&event.isolate).into_iter().flat_map(|to| [(from, to), (to, from)]));
        }
        for from in event.silence.iter().map(place) {
            relays.cut(others(&event.silence).into_iter().map(|to| (from, to)));
        }
        if event.heal {
            relays.heal();
        }
    }

    /// What each node has used so far.
    ///
    /// # Errors
    /// When a node is gone or does not tell.
    pub async fn usage(&self) -> Result<Vec<Usage>> {
        let mut all = Vec::new();
        for node in &self.nodes {
            let page = http::get(&node.monitoring, "/metrics").await?;
            let sums = http::sums(&page);
            let metric = |name: &str| sums.get(name).copied().unwrap_or_default();
            let process = &node.process;
            all.push(Usage {
                cpu_s: process.cpu_s()?,
                rss_bytes: process.rss_bytes()?,
                written_bytes: process.written_bytes()?,
                fsyncs: metric("etcd_disk_wal_fsync_duration_seconds_count") + backend_commits(&sums),
                peer_bytes: match &self.relays {
                    Some(relays) => relays.sent_bytes(node.place) as f64,
                    None => metric("etcd_network_peer_sent_bytes_total"),
                },
                remote_entries: metric("eddy_peer_entries_applied_total"),
            });
        }
        Ok(all)
    }
}

/// etcd flushes its store beside its log. eddy has one log, and shows the same flush under both names.
fn backend_commits(sums: &std::collections::HashMap<&str, f64>) -> f64 {
    if sums.contains_key("eddy_writable") {
        return 0.0;
    }
    sums.get("etcd_disk_backend_commit_duration_seconds_count").copied().unwrap_or_default()
}

fn mark_key(node: usize) -> Vec<u8> {
    format!("lab/mark/{node}").into_bytes()
}

/// Ports that are free now. Held together, so that none is given twice.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let sockets = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    sockets.iter().map(|socket| Ok(socket.local_addr()?.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_says_what_a_path_lies_on() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmp/disk xfs rw 0 0\n";
        let kind = |path: &str| file_system(mounts, Path::new(path));
        assert_eq!(
            (kind("/srv/x"), kind("/tmp/x"), kind("/tmp/disk/x"), kind("/tmpx")),
            ("ext4", "tmpfs", "xfs", "ext4")
        );
    }

    #[test]
    fn flushes_are_not_counted_twice() {
        let commits = "etcd_disk_backend_commit_duration_seconds_count";
        assert_eq!(backend_commits(&[(commits, 5.0)].into()), 5.0);
        assert_eq!(backend_commits(&[(commits, 5.0), ("eddy_writable", 1.0)].into()), 0.0);
    }
}
