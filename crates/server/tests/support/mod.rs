//! A real server process in a temporary directory: eddy, or anything else that takes etcd's flags.

#![allow(dead_code, reason = "each test that starts servers uses a part of this")]

use std::{
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use eddy_proto::etcdserverpb::{RangeRequest, kv_client::KvClient};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::{Channel, Endpoint};

/// How long a server may take from its start to its first answered request, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Pause between two attempts to reach a server that is starting.
const RETRY_EVERY: Duration = Duration::from_millis(10);
/// A port that was free may be taken before the server binds it; then others are tried.
const PORT_ATTEMPTS: u32 = 5;

/// The folder with the real programs that eddy is tested against: `EDDY_PEERS`, or where `tools/peers/build` puts them.
///
/// # Errors
/// Neither EDDY_PEERS nor a home directory is set.
pub fn peers() -> Result<PathBuf> {
    let cache = || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let root = std::env::var_os("EDDY_PEERS").map(PathBuf::from);
    let root = root.or_else(|| cache().or_else(home).map(|c| c.join("eddy/peers")));
    Ok(root.context("set EDDY_PEERS to the folder that tools/peers/build filled")?.join("bin"))
}

/// A running server. Dropping it kills it.
pub struct Server {
    child: Child,
    how: How,
}

/// How a server was started, to start it again.
struct How {
    binary: PathBuf,
    data_dir: PathBuf,
    flags: Vec<String>,
    env: Vec<(&'static str, String)>,
    port: u16,
    peer_port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts `binary` on `data_dir` with ports of its own and waits until it answers a read.
    ///
    /// # Errors
    /// The binary cannot be run, ends, or does not answer in time; the message holds the end of its log.
    pub async fn start(binary: &Path, data_dir: &Path, flags: &[&str]) -> Result<Server> {
        Server::start_with(binary, data_dir, flags, &[]).await
    }

    /// The same with environment variables.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn start_with(
        binary: &Path,
        data_dir: &Path,
        flags: &[&str],
        env: &[(&'static str, String)],
    ) -> Result<Server> {
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            let mut server = Server::spawn_with(binary, data_dir, free_ports()?, flags, env.to_vec())?;
            match server.ready().await {
                Ok(()) => return Ok(server),
                Err(e) if e.to_string().contains("address already in use") => last = Some(e),
                Err(e) => return Err(e),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no free port")))
    }

    /// Starts `binary` and kills it after that time, ready or not.
    ///
    /// # Errors
    /// It cannot be run.
    pub async fn start_and_kill(binary: &Path, data_dir: &Path, after: Duration) -> Result<()> {
        let mut server = Server::spawn_on(binary, data_dir, free_ports()?, &[])?;
        tokio::time::sleep(after).await;
        server.kill()
    }

    /// Starts `binary` on these ports for clients and peers, and does not wait.
    ///
    /// # Errors
    /// The binary cannot be run.
    pub fn spawn_on(binary: &Path, data_dir: &Path, ports: [u16; 2], flags: &[&str]) -> Result<Server> {
        Server::spawn_with(binary, data_dir, ports, flags, Vec::new())
    }

    /// The same with environment variables.
    ///
    /// # Errors
    /// The binary cannot be run.
    pub fn spawn_with(
        binary: &Path,
        data_dir: &Path,
        ports: [u16; 2],
        flags: &[&str],
        env: Vec<(&'static str, String)>,
    ) -> Result<Server> {
        let [port, peer_port] = ports;
        let how = How {
            binary: binary.to_owned(),
            data_dir: data_dir.to_owned(),
            flags: flags.iter().map(|f| (*f).to_owned()).collect(),
            env,
            port,
            peer_port,
            log: data_dir.with_extension("log"),
        };
        Ok(Server { child: how.run()?, how })
    }

    /// Starts the killed server again, on the same data dir and ports, and waits until it answers a read.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn restart(&mut self) -> Result<()> {
        self.child = self.how.run()?;
        self.ready().await
    }

    /// Starts the killed server again and does not wait.
    ///
    /// # Errors
    /// The binary cannot be run.
    pub fn respawn(&mut self) -> Result<()> {
        self.child = self.how.run()?;
        Ok(())
    }

    /// The data dir.
    pub fn data_dir(&self) -> &Path {
        &self.how.data_dir
    }

    /// Waits until it answers a read.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status} before it was ready:\n{}", self.log_tail());
            }
            if let Ok(channel) = self.endpoint()?.connect().await {
                let probe = RangeRequest { key: "\0".into(), count_only: true, ..RangeRequest::default() };
                let answer = KvClient::new(channel).range(probe).await;
                // Where authentication is enabled, it answers that a user is missing.
                if answer.map_or_else(|status| status.message().ends_with("user name is empty"), |_| true) {
                    return Ok(());
                }
            }
            if Instant::now() > deadline {
                bail!("the server did not answer within {READY_WITHIN:?}:\n{}", self.log_tail());
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    fn endpoint(&self) -> Result<Endpoint> {
        Ok(Endpoint::from_shared(self.url())?.connect_timeout(Duration::from_secs(5)))
    }

    /// The client URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.how.port)
    }

    /// The address of the client port.
    pub fn address(&self) -> (&'static str, u16) {
        ("127.0.0.1", self.how.port)
    }

    /// A new connection.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn connect(&self) -> Result<Channel> {
        self.endpoint()?.connect().await.with_context(|| format!("cannot reach the server:\n{}", self.log_tail()))
    }

    /// `kill -9`, and waits until the process is gone.
    ///
    /// # Errors
    /// The process cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    ///
    /// # Errors
    /// The process cannot be signalled.
    pub fn signal(&self, name: &str) -> Result<()> {
        let sent = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status()?;
        anyhow::ensure!(sent.success(), "kill -s {name}: {sent}");
        Ok(())
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Errors
    /// It does not end within that time.
    pub async fn ended(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("the server did not end within {within:?}:\n{}", self.log_tail());
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    /// Memory that the process has resident, bytes.
    ///
    /// # Errors
    /// The process is gone.
    pub fn resident(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// The most that it ever was, bytes.
    ///
    /// # Errors
    /// The process is gone.
    pub fn resident_at_most(&self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, line: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let found = status.lines().find_map(|found| found.strip_prefix(line)).with_context(|| line.to_owned())?;
        Ok(found.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
    }

    /// How long the process has computed.
    ///
    /// # Errors
    /// The process is gone.
    pub fn computed(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // The name of the program, in parentheses, may have spaces.
        let (_, fields) = stat.rsplit_once(") ").context("no name")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let ticks = |at: usize| anyhow::Ok(fields.get(at).context("too short")?.parse::<u64>()?);
        // The kernel tells user and system time in hundredths of a second.
        Ok(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
    }

    /// A plain GET over HTTP/1.1: the answer whole.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn get(&self, path: &str) -> Result<String> {
        self.get_at(self.how.port, path).await
    }

    /// The same at another of its ports.
    ///
    /// # Errors
    /// As [`Server::get`].
    pub async fn get_at(&self, port: u16, path: &str) -> Result<String> {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// All that the server printed.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.how.log).unwrap_or_default()).into_owned()
    }

    /// The end of what the server printed.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.how.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(3000)..]).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only when the process is gone already.
        drop(self.kill());
    }
}

impl How {
    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')))
    }

    fn run(&self) -> Result<Child> {
        let client_url = format!("http://127.0.0.1:{}", self.port);
        let peer_url = format!("http://127.0.0.1:{}", self.peer_port);
        let output = File::options().create(true).append(true).open(&self.log)?;
        let advertised = [
            ("--advertise-client-urls", client_url.clone()),
            ("--initial-advertise-peer-urls", peer_url.clone()),
            ("--initial-cluster", format!("default={peer_url}")),
        ];
        Command::new(&self.binary)
            .args(["--name", "default", "--data-dir"])
            .arg(&self.data_dir)
            .args(["--listen-client-urls", &client_url, "--listen-peer-urls", &peer_url])
            .args(advertised.iter().filter(|(flag, _)| !self.has(flag)).flat_map(|(flag, url)| [*flag, url]))
            .args(&self.flags)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot run {}", self.binary.display()))
    }
}

/// Ports below those that systems give to outgoing connections, which would take one that a test is about to use.
const PORTS: std::ops::Range<u16> = 15_000..32_000;

/// Two ports that were free a moment ago, and that this process gives to nobody else.
pub fn free_ports() -> Result<[u16; 2]> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let next = || {
        let count = u32::from(PORTS.end - PORTS.start);
        // Test processes that run at the same time begin at different places.
        let place = std::process::id().wrapping_mul(127).wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % count;
        PORTS.start + place as u16
    };
    let mut free =
        (0..PORTS.end - PORTS.start).map(|_| next()).filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().zip(free.next()).map(|(a, b)| [a, b]).context("no free port")
}
