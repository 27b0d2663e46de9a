//! A network on loopback: a TCP relay before each node's peer port, which delays, narrows and cuts links.
//!
//! All nodes dial the same address of a node, since it is part of the membership. So a relay asks the kernel which process
//! a connection comes from, and knows the ordered pair of nodes of each byte. Bytes on a cut link wait until the link is
//! healed, as TCP's retransmissions would. Only [`Relays::refuse`] ends connections.
//!
//! The lab uses it, and so do the server's tests of several processes: they include this file by its path.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Most that is read at once.
const CHUNK: usize = 16 << 10;
/// Chunks on the way in one direction of a connection: above it the sender waits, as before a full window. 4 MiB.
const ON_THE_WAY: usize = 256;
/// How long a node's process is searched: a connection may come before the relay knows the process.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// What every link does to what passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Time on the way.
    pub delay: Duration,
    /// Up to this much more, uniform; order is kept.
    pub jitter: Duration,
    /// Bandwidth of each ordered pair of nodes.
    pub bytes_per_second: Option<u64>,
}

/// From one node to another. `None` is a node that cannot be told from the others, as no process was named.
type Link = (Option<usize>, Option<usize>);

#[derive(Default)]
struct Links {
    processes: HashMap<u32, usize>,
    cut: HashSet<Link>,
    all_cut: bool,
    refuses: bool,
    /// When the last byte of a link has left it.
    free_at: HashMap<Link, Instant>,
    bytes: HashMap<Link, u64>,
}

struct Network {
    shape: Shape,
    links: Mutex<Links>,
    /// Counts changes of what is cut or refused.
    changed: watch::Sender<u64>,
}

impl Network {
    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the links are as wished.
    async fn until(&self, holds: impl Fn(&Links) -> bool) {
        let mut changed = self.changed.subscribe();
        while !holds(&self.links()) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until a link works.
    async fn works(&self, link: Link) {
        self.until(|links| !links.all_cut && !links.cut.contains(&link)).await;
    }

    fn change(&self, change: impl FnOnce(&mut Links)) {
        change(&mut self.links());
        self.changed.send_modify(|n| *n += 1);
    }

    /// When what is sent on a link now arrives.
    fn arrival(&self, link: Link, length: usize, jitter: f64) -> Instant {
        let mut links = self.links();
        *links.bytes.entry(link).or_default() += length as u64;
        let now = Instant::now();
        let mut sent = now;
        if let Some(rate) = self.shape.bytes_per_second {
            let free_at = links.free_at.entry(link).or_insert(now);
            *free_at = (*free_at).max(now) + Duration::from_secs_f64(length as f64 / rate as f64);
            sent = *free_at;
        }
        sent + self.shape.delay + self.shape.jitter.mul_f64(jitter)
    }
}

/// The relays of a cluster. They end when this is dropped.
pub struct Relays {
    network: Arc<Network>,
    addresses: Vec<SocketAddr>,
    _tasks: JoinSet<()>,
}

impl Relays {
    /// Listens before each of the nodes' peer ports.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(targets: &[SocketAddr], shape: Shape, seed: u64) -> Result<Self> {
        let network = Arc::new(Network { shape, links: Mutex::default(), changed: watch::Sender::new(0) });
        let (mut tasks, mut addresses) = (JoinSet::new(), Vec::new());
        for (to, target) in targets.iter().copied().enumerate() {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            addresses.push(listener.local_addr()?);
            tasks.spawn(accept(Arc::clone(&network), listener, to, target, seed ^ (to as u64) << 32));
        }
        Ok(Self { network, addresses, _tasks: tasks })
    }

    /// Where the others find a node.
    pub fn address(&self, node: usize) -> SocketAddr {
        self.addresses[node]
    }

    /// Says which process a node is. Where this is said of none, the relays do not ask who dials.
    pub fn process(&self, node: usize, id: u32) {
        self.network.links().processes.insert(id, node);
    }

    /// Cuts links, each from the first node to the second: bytes wait, and nobody is told. The processes must be named.
    pub fn cut(&self, links: impl IntoIterator<Item = (usize, usize)>) {
        self.network.change(|all| all.cut.extend(links.into_iter().map(|(from, to)| (Some(from), Some(to)))));
    }

    /// Cuts all links: bytes wait, and nobody is told.
    pub fn cut_all(&self) {
        self.network.change(|links| links.all_cut = true);
    }

    /// Ends all connections, and each new one at once.
    pub fn refuse(&self) {
        self.network.change(|links| links.refuses = true);
    }

    /// All links work again.
    pub fn heal(&self) {
        self.network.change(|links| {
            links.cut.clear();
            (links.all_cut, links.refuses) = (false, false);
        });
    }

    /// Bytes that a node has sent so far. Its process must be named.
    pub fn sent_bytes(&self, node: usize) -> u64 {
        self.network.links().bytes.iter().filter(|((from, _), _)| *from == Some(node)).map(|(_, n)| n).sum()
    }

    /// Bytes that all nodes have sent so far.
    pub fn all_bytes(&self) -> u64 {
        self.network.links().bytes.values().sum()
    }
}

async fn accept(network: Arc<Network>, listener: TcpListener, to: usize, target: SocketAddr, seed: u64) {
    let mut connections = JoinSet::new();
    let mut seeds = SmallRng::seed_from_u64(seed);
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (network, seed) = (Arc::clone(&network), seeds.random());
        connections.spawn(async move {
            // A connection that breaks ends here as it would without a relay: both its ends are closed.
            tokio::select! {
                _broken = carry(&network, stream, to, target, seed) => {}
                () = network.until(|links| links.refuses) => {}
            }
        });
    }
}

async fn carry(network: &Network, here: TcpStream, to: usize, target: SocketAddr, seed: u64) -> Result<()> {
    let is_asked = !network.links().processes.is_empty();
    let from = match is_asked {
        true => Some(dialler(network, &here).await.context("the process that dialled is not known")?),
        false => None,
    };
    let (there_link, back_link) = ((from, Some(to)), (Some(to), from));
    network.works(there_link).await;
    network.works(back_link).await;
    let there = TcpStream::connect(target).await?;
    here.set_nodelay(true)?;
    there.set_nodelay(true)?;
    let (here_read, here_write) = here.into_split();
    let (there_read, there_write) = there.into_split();
    tokio::select! {
        ended = pipe(network, there_link, here_read, there_write, seed) => ended,
        ended = pipe(network, back_link, there_read, here_write, seed.wrapping_add(1)) => ended,
    }
}

/// Carries one direction until it ends.
async fn pipe(network: &Network, link: Link, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, seed: u64) -> Result<()> {
    let (send, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let reading = async {
        let mut rng = SmallRng::seed_from_u64(seed);
        loop {
            let mut chunk = vec![0; CHUNK];
            let length = from.read(&mut chunk).await?;
            if length == 0 {
                return anyhow::Ok(());
            }
            chunk.truncate(length);
            let at = network.arrival(link, length, rng.random());
            send.send((at, chunk)).await?;
        }
    };
    let writing = async {
        while let Some((at, chunk)) = arriving.recv().await {
            tokio::time::sleep_until(at).await;
            network.works(link).await;
            to.write_all(&chunk).await?;
        }
        anyhow::Ok(())
    };
    // When reading ends, the bytes on the way are dropped: the side that closed does not wait for them.
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}

/// The node whose process holds the other end of a connection.
async fn dialler(network: &Network, stream: &TcpStream) -> Option<usize> {
    let (remote, local) = (stream.peer_addr().ok()?.port(), stream.local_addr().ok()?.port());
    let until = Instant::now() + LOOK_FOR;
    loop {
        let processes: Vec<_> = network.links().processes.iter().map(|(id, node)| (*id, *node)).collect();
        let found = tokio::task::spawn_blocking(move || {
            let tables =
                ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
            let inode = tables.iter().find_map(|table| socket_inode(table, remote, local))?;
            processes.into_iter().find(|(id, _)| holds(*id, &inode)).map(|(_, node)| node)
        })
        .await
        .ok()?;
        if found.is_some() || Instant::now() > until {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The socket between two ports, in the kernel's list.
fn socket_inode(table: &str, local: u16, remote: u16) -> Option<String> {
    let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let ends = (port(fields.get(1)?)?, port(fields.get(2)?)?);
        (ends == (local, remote)).then(|| fields.get(9).map(|inode| (*inode).to_owned())).flatten()
    })
}

fn holds(process: u32, inode: &str) -> bool {
    let socket = format!("socket:[{inode}]");
    let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == socket.as_str()))
}

#[cfg(test)]
#[path = "relay/tests.rs"] // where this file is included by its path, too
mod tests;
