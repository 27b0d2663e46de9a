//! What replication costs and how soon a write is visible elsewhere: starts N eddies on loopback and prints a table.
//! `replicas EDDY N [N ...]`; the data dirs go into the temporary directory.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::{PutRequest, RangeRequest, WatchCreateRequest, WatchRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// Probes of one kind: enough for a 99th percentile.
const PROBES: usize = 300;
/// Time between probes, more than a write needs to be seen.
const PROBE_EVERY: Duration = Duration::from_millis(40);
/// How long load runs, and how long idle traffic is counted.
const PHASE: Duration = Duration::from_secs(10);
/// Clients that load each replica, and those that load one.
const CLIENTS_EACH: usize = 4;
const CLIENTS_OF_ONE: usize = 64;
/// Objects of the memory figure.
const OBJECTS: usize = 20_000;
/// A state that must come: replicas that connect, writes that arrive.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let binary = PathBuf::from(arguments.next().context("usage: replicas EDDY N [N ...]")?);
    let sizes = arguments.map(|n| n.parse().context("N is a number")).collect::<Result<Vec<usize>>>()?;
    println!("| replicas | figure | value |\n|---|---|---|");
    for size in sizes {
        if size < 2 {
            bail!("one replica has nobody to tell");
        }
        measure(&Cluster::start(&binary, size).await?).await?;
    }
    Ok(())
}

async fn measure(cluster: &Cluster) -> Result<()> {
    let n = cluster.replicas.len();
    let row = |figure: &str, value: String| println!("| {n} | {figure} | {value} |");
    cluster.wait_for_all("ready", b"x").await?;

    let before = cluster.sent_bytes().await?;
    tokio::time::sleep(PHASE).await;
    let idle = (cluster.sent_bytes().await? - before) * 60.0 / PHASE.as_secs_f64();
    row("bytes on the wire per replica and idle minute", format!("{:.0}", idle / n as f64));

    row("write to visible elsewhere, idle", cluster.visible().await?);
    row("put, 1 client, mean, all connected", format!("{:.2} ms", cluster.put_ms().await?));

    let before = cluster.sent_bytes().await?;
    for change in 0..PROBES {
        cluster.put(0, b"/registry/pods/default/one", pod("one", change)).await?;
        tokio::time::sleep(Duration::from_millis(12)).await;
    }
    cluster.wait_for_all("/registry/pods/default/one", &pod("one", PROBES - 1)).await?;
    let bytes = (cluster.sent_bytes().await? - before) / (PROBES * (n - 1)) as f64;
    let size = pod("one", 0).len();
    row(&format!("bytes on the wire per two-field update of a {size} B object and peer"), format!("{bytes:.0}"));

    let load = cluster.load((0..n).flat_map(|replica| [replica; CLIENTS_EACH]));
    row("write to visible elsewhere, under load at each replica", cluster.visible().await?);
    let (puts, took) = load.stop().await;
    row("puts of that load, all together", format!("{:.0} /s", puts as f64 / took.as_secs_f64()));
    cluster.wait_for_all("rest", b"x").await?;

    let (cpu, applied) = (cluster.cpu(1)?, cluster.metric(1, "eddy_peer_entries_applied_total").await?);
    let load = cluster.load([0; CLIENTS_OF_ONE].into_iter());
    tokio::time::sleep(PHASE).await;
    let (puts, took) = load.stop().await;
    cluster.wait_for_all("rest", b"y").await?;
    let applied = cluster.metric(1, "eddy_peer_entries_applied_total").await? - applied;
    let per_entry = (cluster.cpu(1)? - cpu).as_secs_f64() * 1e6 / applied;
    row("puts at one replica alone", format!("{:.0} /s", puts as f64 / took.as_secs_f64()));
    row("CPU of another's whole process per entry it applied then", format!("{per_entry:.1} us"));

    let before = cluster.rss_kb(1)?;
    for object in 0..OBJECTS {
        let name = format!("object-{object}");
        cluster.put(0, format!("/registry/pods/default/{name}").as_bytes(), pod(&name, 0)).await?;
    }
    cluster.wait_for_all("rest", b"z").await?;
    let bytes = (cluster.rss_kb(1)? - before) * 1024.0 / OBJECTS as f64;
    row(&format!("memory per settled {size} B object"), format!("{bytes:.0} B"));

    for replica in &cluster.replicas[1..] {
        replica.stop();
    }
    row("put, 1 client, mean, cut off from all others", format!("{:.2} ms", cluster.put_ms().await?));
    Ok(())
}

/// A Pod of about 2 KB in which `change` alters two fields.
fn pod(name: &str, change: usize) -> Vec<u8> {
    let noise: String =
        (0..24).map(|i| format!(r#"{{"name":"VARIABLE_{i}","value":"a value of some length, {i}"}},"#)).collect();
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"default","uid":"8c1f2b1e-0000-4000-8000-000000000001","generation":1,"labels":{{"app":"web","change":"{change}"}}}},"spec":{{"containers":[{{"name":"web","image":"registry.example/web:1","env":[{noise}{{"name":"LAST","value":"1"}}]}}]}},"status":{{"phase":"Running","message":"change {change}"}}}}"#
    )
    .into_bytes()
}

struct Replica {
    child: Mutex<Child>,
    id: u32,
    endpoint: String,
    kv: KvClient<Channel>,
    watch: WatchClient<Channel>,
}

impl Replica {
    fn stop(&self) {
        if let Ok(mut child) = self.child.lock()
            && let Err(error) = child.kill().and_then(|()| child.wait().map(drop))
        {
            eprintln!("{}: {error}", self.endpoint);
        }
    }
}

struct Cluster {
    replicas: Vec<Replica>,
    dir: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for replica in &self.replicas {
            replica.stop();
        }
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            eprintln!("{} is left: {error}", self.dir.display());
        }
    }
}

impl Cluster {
    async fn start(binary: &Path, size: usize) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("eddy-replicas-{}-{size}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        // Held together, so that no port is given twice; free again only when all are known.
        let sockets = (0..2 * size).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let ports = sockets.iter().map(|s| Ok(s.local_addr()?.port())).collect::<Result<Vec<_>>>()?;
        drop(sockets);
        let (clients, peers) = ports.split_at(size);
        let members: Vec<_> = (0..size).map(|i| format!("r{i}=http://127.0.0.1:{}", peers[i])).collect();
        let mut cluster = Self { replicas: Vec::new(), dir: dir.clone() };
        for i in 0..size {
            let (client, peer) = (format!("http://127.0.0.1:{}", clients[i]), format!("http://127.0.0.1:{}", peers[i]));
            let child = Command::new(binary)
                .args(["--name", &format!("r{i}"), "--data-dir"])
                .arg(dir.join(format!("r{i}")))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &members.join(","), "--log-level", "error"])
                .stdout(Stdio::null())
                .spawn()
                .with_context(|| format!("start {}", binary.display()))?;
            let channel = Channel::from_shared(client.clone())?.connect_lazy();
            let (kv, watch) = (KvClient::new(channel.clone()), WatchClient::new(channel));
            cluster.replicas.push(Replica { id: child.id(), child: Mutex::new(child), endpoint: client, kv, watch });
        }
        Ok(cluster)
    }

    async fn put(&self, replica: usize, key: &[u8], value: Vec<u8>) -> Result<()> {
        let request = PutRequest { key: key.to_vec().into(), value: value.into(), ..PutRequest::default() };
        self.replicas[replica].kv.clone().put(request).await?;
        Ok(())
    }

    /// Writes a value at the first replica until it is the one that all show.
    async fn wait_for_all(&self, key: &str, value: &[u8]) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.put(0, key.as_bytes(), value.to_vec()).await.is_err() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for replica in &self.replicas {
            loop {
                let request = RangeRequest { key: key.as_bytes().to_vec().into(), ..RangeRequest::default() };
                let reply = replica.kv.clone().range(request).await;
                if reply.is_ok_and(|reply| reply.into_inner().kvs.first().is_some_and(|kv| kv.value == value)) {
                    break;
                }
                if Instant::now() > until {
                    bail!("{} does not show what was written at the first replica", replica.endpoint);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// The mean of a put at the first replica, one after the other.
    async fn put_ms(&self) -> Result<f64> {
        let since = Instant::now();
        for probe in 0..PROBES {
            self.put(0, b"probe", probe.to_string().into_bytes()).await?;
        }
        Ok(since.elapsed().as_secs_f64() * 1000.0 / PROBES as f64)
    }

    /// Writes at each replica in turn and tells when the others' watchers see it: from the call to the event.
    async fn visible(&self) -> Result<String> {
        let (seen, mut events) = mpsc::unbounded_channel();
        let mut watchers = JoinSet::new();
        for (place, replica) in self.replicas.iter().enumerate() {
            let create = WatchCreateRequest { key: b"visible".to_vec().into(), ..WatchCreateRequest::default() };
            let (requests, stream) = mpsc::channel(1);
            requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
            let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
            let mut answers = replica.watch.clone().watch(stream).await?.into_inner();
            // The first answer says that the watch stands.
            answers.message().await?;
            let seen = seen.clone();
            watchers.spawn(async move {
                let _open = requests;
                while let Ok(Some(answer)) = answers.message().await {
                    let now = Instant::now();
                    for event in answer.events {
                        let value = event.kv.map(|kv| kv.value).unwrap_or_default();
                        let probe = std::str::from_utf8(&value).ok().and_then(|text| text.parse::<usize>().ok());
                        if seen.send((place, probe, now)).is_err() {
                            return;
                        }
                    }
                }
            });
        }
        let mut took = Vec::new();
        for probe in 0..PROBES {
            let writer = probe % self.replicas.len();
            let since = Instant::now();
            self.put(writer, b"visible", probe.to_string().into_bytes()).await?;
            let mut missing = self.replicas.len();
            while missing > 0 {
                let event = tokio::time::timeout(PATIENCE, events.recv()).await.context("a write is not seen")?;
                let (place, seen, at) = event.context("a watch ended")?;
                if seen == Some(probe) {
                    missing -= 1;
                    if place != writer {
                        took.push(at - since);
                    }
                }
            }
            tokio::time::sleep(PROBE_EVERY).await;
        }
        took.sort();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
        Ok(format!("p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms", at(0.5), at(0.99), at(1.0)))
    }

    /// Puts of 256 B by one client for each of the replicas named, until it is stopped.
    fn load(&self, replicas: impl Iterator<Item = usize>) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for (client, replica) in replicas.enumerate() {
            let (mut kv, stop) = (self.replicas[replica].kv.clone(), Arc::clone(&stop));
            clients.spawn(async move {
                let mut puts = 0;
                while !stop.load(Ordering::Relaxed) {
                    let key = format!("load/{client}/{}", puts % 1000).into_bytes();
                    let put = PutRequest { key: key.into(), value: vec![b'x'; 256].into(), ..PutRequest::default() };
                    puts += usize::from(kv.put(put).await.is_ok());
                }
                puts
            });
        }
        Load { stop, clients, since: Instant::now() }
    }

    async fn sent_bytes(&self) -> Result<f64> {
        let mut sum = 0.0;
        for replica in 0..self.replicas.len() {
            sum += self.metric(replica, "etcd_network_peer_sent_bytes_total").await?;
        }
        Ok(sum)
    }

    /// The sum over the labels of a metric.
    async fn metric(&self, replica: usize, name: &str) -> Result<f64> {
        let address = self.replicas[replica].endpoint.trim_start_matches("http://");
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let values = text.lines().filter(|line| line.starts_with(name));
        Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// CPU time that a replica has used.
    fn cpu(&self, replica: usize) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.replicas[replica].id))?;
        let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 = fields.get(11..13).context("/proc/PID/stat")?.iter().flat_map(|n| n.parse::<u64>()).sum();
        // Linux' USER_HZ, whatever the kernel's own.
        Ok(Duration::from_millis(ticks * 10))
    }

    fn rss_kb(&self, replica: usize) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.replicas[replica].id))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("VmRSS")?;
        Ok(line.split_whitespace().nth(1).context("VmRSS")?.parse()?)
    }
}

struct Load {
    stop: Arc<AtomicBool>,
    clients: JoinSet<usize>,
    since: Instant,
}

impl Load {
    /// How many puts were done, and in what time.
    async fn stop(self) -> (usize, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let took = self.since.elapsed();
        (self.clients.join_all().await.into_iter().sum(), took)
    }
}
