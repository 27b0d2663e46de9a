//! A cluster of real processes in one temporary directory, and what tests ask of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use eddy_proto::admin::admin_client::AdminClient;
use eddy_proto::admin::{Dot, Equality, Merge, MergesRequest, StatusRequest, StatusResponse};
use eddy_proto::etcdserverpb::cluster_client::ClusterClient;
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::{
    DeleteRangeRequest, Member, MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest,
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use eddy_proto::mvccpb::KeyValue;
use futures::StreamExt;
use tempfile::TempDir;
use tonic::Streaming;

use crate::relay::{Relays, Shape};
use crate::support::{Server, free_ports};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_eddy"))
}

pub struct Cluster {
    // Before the directory, so that they are killed before it is removed.
    pub replicas: Vec<Replica>,
    relays: Option<Relays>,
    pub dir: TempDir,
}

pub struct Replica {
    pub server: Server,
    pub name: String,
    pub ports: [u16; 2],
    pub peer_url: String,
}

/// How a cluster is started.
#[derive(Default)]
pub struct Setup<'a> {
    /// Peers reach each other through relays.
    pub relays: bool,
    /// Flags of each replica by its place, beside those that name it.
    pub flags: Option<&'a dyn Fn(usize) -> Vec<String>>,
    /// Environment variables of each replica by its place.
    pub env: Option<&'a dyn Fn(usize) -> Vec<(&'static str, String)>>,
    /// `https` peers.
    pub peer_tls: bool,
}

impl Cluster {
    /// Starts `size` replicas with a static list of members, and waits until all serve.
    pub async fn start(size: usize) -> Result<Cluster> {
        Cluster::with(size, Setup::default()).await
    }

    pub async fn with(size: usize, setup: Setup<'_>) -> Result<Cluster> {
        let dir = tempfile::tempdir()?;
        let ports = (0..size).map(|_| free_ports()).collect::<Result<Vec<_>>>()?;
        let peers: Vec<SocketAddr> = ports.iter().map(|ports| ([127, 0, 0, 1], ports[1]).into()).collect();
        let relays = if setup.relays { Some(Relays::start(&peers, Shape::default(), 1).await?) } else { None };
        let scheme = if setup.peer_tls { "https" } else { "http" };
        let mut places = Vec::new();
        for (place, ports) in ports.into_iter().enumerate() {
            let peer = relays.as_ref().map_or(peers[place], |relays| relays.address(place));
            places.push((format!("r{place}"), ports, format!("{scheme}://{peer}")));
        }
        let list: Vec<String> = places.iter().map(|(name, _, url)| format!("{name}={url}")).collect();
        let list = list.join(",");
        let mut replicas = Vec::new();
        for (place, (name, ports, peer_url)) in places.into_iter().enumerate() {
            let mut flags = flags(&name, &peer_url, &list);
            if setup.peer_tls {
                flags.push(format!("--listen-peer-urls=https://127.0.0.1:{}", ports[1]));
            }
            flags.extend(setup.flags.map(|flags| flags(place)).unwrap_or_default());
            let env = setup.env.map(|env| env(place)).unwrap_or_default();
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let server = Server::spawn_with(binary(), &dir.path().join(&name), ports, &flags, env)?;
            replicas.push(Replica { server, name, ports, peer_url });
        }
        let mut cluster = Cluster { replicas, relays, dir };
        for replica in &mut cluster.replicas {
            replica.server.ready().await?;
        }
        Ok(cluster)
    }

    /// The network between the replicas. An error where the setup has none.
    pub fn relays(&self) -> Result<&Relays> {
        self.relays.as_ref().context("started without relays")
    }

    /// From here on each link can be cut by itself: connections are made anew, by processes that the relays know. No
    /// replica may be started again afterwards.
    pub fn tells_links_apart(&self) -> Result<()> {
        let relays = self.relays()?;
        relays.refuse();
        for (place, replica) in self.replicas.iter().enumerate() {
            relays.process(place, replica.server.pid());
        }
        relays.heal();
        Ok(())
    }

    /// A place for another data dir.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Waits until all replicas hold the same and have settled it: each knows of all others that they have it. Waits,
    /// too, until each connected pair has compared its states.
    pub async fn settled(&self) -> Result<()> {
        eventually("all replicas are equal and have settled", || async {
            let mut states = Vec::new();
            for replica in &self.replicas {
                states.push(replica.status().await?);
            }
            let first = &states[0];
            let settled = states.iter().all(|state| {
                state.vector == first.vector
                    && state.state_hash == first.state_hash
                    && state.windows == 0
                    && state.peers.len() + 1 == self.replicas.len()
                    && state.peers.iter().all(|peer| peer.connected && peer.equality() == Equality::Equal)
            });
            ensure!(settled, "{}", states.iter().map(summary).collect::<String>());
            Ok(())
        })
        .await?;
        let mut contents = Vec::new();
        for replica in &self.replicas {
            contents.push(replica.contents().await?);
        }
        ensure!(contents.iter().all(|content| *content == contents[0]), "the same hash and different keys");
        Ok(())
    }
}

/// What matters of a state, for the message of a test that fails.
fn summary(state: &StatusResponse) -> String {
    let dots = |vector: &[Dot]| -> String {
        vector
            .iter()
            .map(|dot| format!(" {:.4}/{:.4}:{}", format!("{:x}", dot.member_id), format!("{:x}", dot.birth), dot.seq))
            .collect()
    };
    let peers: String = state
        .peers
        .iter()
        .map(|peer| {
            let (name, equality, connected) = (&peer.name, peer.equality(), peer.connected);
            format!("\n    {name}: connected {connected}, {equality:?}, {}, has{}", peer.error, dots(&peer.vector))
        })
        .collect();
    let (name, hash, windows) = (&state.name, &state.state_hash, state.windows);
    let (vector, floor) = (dots(&state.vector), dots(&state.floor));
    format!("\n  {name}: {hash}, {windows} windows, has{vector}, floor{floor}{peers}")
}

/// The flags that name a member of a cluster.
pub fn flags(name: &str, peer_url: &str, list: &str) -> Vec<String> {
    vec![
        format!("--name={name}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--initial-cluster={list}"),
    ]
}

pub fn spawn(data_dir: &Path, ports: [u16; 2], flags: &[String]) -> Result<Server> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Server::spawn_on(binary(), data_dir, ports, &flags)
}

impl Replica {
    pub async fn kv(&self) -> Result<KvClient<tonic::transport::Channel>> {
        Ok(KvClient::new(self.server.connect().await?).max_decoding_message_size(usize::MAX))
    }

    /// A watch that was just created.
    pub async fn watch(&self, create: WatchCreateRequest) -> Result<Streaming<WatchResponse>> {
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = StreamExt::chain(tokio_stream::once(create), futures::stream::pending());
        let mut watch = WatchClient::new(self.server.connect().await?).watch(requests).await?.into_inner();
        let created = watch.message().await?.context("an answer")?;
        ensure!(created.created, "the watch was not created: {created:?}");
        Ok(watch)
    }

    pub async fn put(&self, key: &str, value: &str) -> Result<i64> {
        let request = PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
        let response = self.kv().await?.put(request).await?.into_inner();
        Ok(response.header.context("a header")?.revision)
    }

    pub async fn delete(&self, key: &str) -> Result<i64> {
        let request = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
        Ok(self.kv().await?.delete_range(request).await?.into_inner().deleted)
    }

    pub async fn get(&self, key: &str) -> Result<Option<String>> {
        let request = RangeRequest { key: key.to_owned().into(), ..Default::default() };
        let kvs = self.kv().await?.range(request).await?.into_inner().kvs;
        Ok(kvs.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()))
    }

    /// The version number of a key.
    pub async fn version_of(&self, key: &str) -> Result<Option<i64>> {
        let request = RangeRequest { key: key.to_owned().into(), ..Default::default() };
        Ok(self.kv().await?.range(request).await?.into_inner().kvs.first().map(|kv| kv.version))
    }

    /// The revision at which a key was last written.
    pub async fn mod_revision_of(&self, key: &str) -> Result<Option<i64>> {
        let request = RangeRequest { key: key.to_owned().into(), ..Default::default() };
        Ok(self.kv().await?.range(request).await?.into_inner().kvs.first().map(|kv| kv.mod_revision))
    }

    /// The merges that it remembers.
    pub async fn merges(&self) -> Result<Vec<Merge>> {
        let mut admin = AdminClient::new(self.server.connect().await?);
        Ok(admin.merges(MergesRequest { limit: 0 }).await?.into_inner().merges)
    }

    /// What `eddy status` prints of it.
    pub fn status_table(&self) -> Result<String> {
        let output = Command::new(binary()).args(["status", "--endpoints", &self.server.url()]).output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The value of a metric, by its name with labels; zero when it is not there.
    pub async fn metric(&self, name: &str) -> Result<u64> {
        let metrics = self.server.get("/metrics").await?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.map(str::trim).map(str::parse).transpose()?.unwrap_or(0))
    }

    /// How many lines of the log have all of these.
    pub fn logged(&self, texts: &[&str]) -> usize {
        self.server.log().lines().filter(|line| texts.iter().all(|text| line.contains(text))).count()
    }

    /// All keys with value and version: what replicas have in common.
    pub async fn contents(&self) -> Result<BTreeMap<Vec<u8>, (Vec<u8>, i64)>> {
        let request = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        let kvs = self.kv().await?.range(request).await?.into_inner().kvs;
        Ok(kvs.into_iter().map(|KeyValue { key, value, version, .. }| (key.into(), (value.into(), version))).collect())
    }

    pub async fn status(&self) -> Result<StatusResponse> {
        let mut admin = AdminClient::new(self.server.connect().await?);
        Ok(admin.status(StatusRequest {}).await?.into_inner())
    }

    pub async fn members(&self) -> Result<Vec<Member>> {
        let mut cluster = ClusterClient::new(self.server.connect().await?);
        Ok(cluster.member_list(MemberListRequest::default()).await?.into_inner().members)
    }

    pub async fn add(&self, peer_url: &str) -> Result<Member> {
        self.add_as(peer_url, false).await
    }

    pub async fn add_learner(&self, peer_url: &str) -> Result<Member> {
        self.add_as(peer_url, true).await
    }

    async fn add_as(&self, peer_url: &str, is_learner: bool) -> Result<Member> {
        let mut cluster = ClusterClient::new(self.server.connect().await?);
        let request = MemberAddRequest { peer_ur_ls: vec![peer_url.to_owned()], is_learner };
        cluster.member_add(request).await?.into_inner().member.context("the new member")
    }

    pub async fn promote(&self, id: u64) -> Result<()> {
        let mut cluster = ClusterClient::new(self.server.connect().await?);
        cluster.member_promote(MemberPromoteRequest { id }).await?;
        Ok(())
    }

    pub async fn remove(&self, id: u64) -> Result<()> {
        let mut cluster = ClusterClient::new(self.server.connect().await?);
        cluster.member_remove(MemberRemoveRequest { id }).await?;
        Ok(())
    }

    /// Waits until a key has this value here.
    pub async fn shows(&self, key: &str, value: Option<&str>) -> Result<()> {
        eventually(&format!("{} shows {key} = {value:?}", self.name), || async {
            let found = self.get(key).await?;
            ensure!(found.as_deref() == value, "it shows {found:?}");
            Ok(())
        })
        .await
    }

    /// Waits until the log has a line with this.
    pub async fn logs(&self, text: &str) -> Result<()> {
        eventually(&format!("{} logs {text:?}", self.name), || async {
            ensure!(self.server.log().contains(text), "its log ends: {}", self.server.log_tail());
            Ok(())
        })
        .await
    }
}

/// Waits until something holds; the last reason why not is told.
pub async fn eventually<F: Future<Output = Result<()>>>(what: &str, mut holds: impl FnMut() -> F) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match holds().await {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => bail!("in vain waited until {what}: {error:#}"),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}
