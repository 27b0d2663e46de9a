//! A real kube-apiserver on eddy: objects are written and watched. eddy is killed with SIGKILL and comes back, and the
//! apiserver goes on as if nothing had happened.
//!
//! `cargo test -p eddy-server --test kubernetes`, after `tools/peers/build kubernetes`.

mod support;

use std::{
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use support::Server;

/// A kube-apiserver on a busy machine of two cores is ready within this time, or never.
const READY_WITHIN: Duration = Duration::from_secs(120);
const SEEN_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A child process that does not outlive the test.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // Both fail only when the process is gone already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

struct Cluster {
    dir: PathBuf,
    kubectl: PathBuf,
    server: String,
    apiserver: Reaped,
}

impl Cluster {
    fn start(peers: &Path, etcd: &str, dir: &Path) -> Result<Cluster> {
        let [apiserver, kubectl] = ["kube-apiserver", "kubectl"].map(|name| peers.join(name));
        for program in [&apiserver, &kubectl] {
            ensure!(program.exists(), "there is no {}: run `tools/peers/build kubernetes`", program.display());
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let [key, public, tokens] = ["service-accounts.key", "service-accounts.pub", "tokens.csv"].map(|f| dir.join(f));
        let pair = rcgen::KeyPair::generate()?;
        std::fs::write(&key, pair.serialize_pem())?;
        std::fs::write(&public, pair.public_key_pem())?;
        std::fs::write(&tokens, "token,admin,1,system:masters\n")?;
        let log = File::create(dir.join("kube-apiserver.log"))?;
        let child = Command::new(apiserver)
            .args([&format!("--etcd-servers={etcd}"), "--bind-address=127.0.0.1", &format!("--secure-port={port}")])
            .arg(format!("--cert-dir={}", dir.join("certs").display()))
            .arg(format!("--token-auth-file={}", tokens.display()))
            .arg(format!("--service-account-key-file={}", public.display()))
            .arg(format!("--service-account-signing-key-file={}", key.display()))
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.96.0.0/16",
            ])
            .args(["--authorization-mode=RBAC", "--advertise-address=192.0.2.1"])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let server = format!("https://127.0.0.1:{port}");
        Ok(Cluster { dir: dir.to_owned(), kubectl, server, apiserver: Reaped(child) })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        // An empty home: the user's own clusters are none of this test's business.
        command.env("HOME", &self.dir).env("KUBECONFIG", self.dir.join("none"));
        command.args(["--server", &self.server, "--token", "token", "--insecure-skip-tls-verify"]).args(args);
        command
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        let output = self.command(&["--request-timeout=20s"]).args(args).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {error}", args.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Tries until `done` says so.
    fn until(&mut self, limit: Duration, what: &str, done: impl Fn(&Cluster) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let ended = self.apiserver.0.try_wait()?;
            let last = if ended.is_some() { Ok(false) } else { done(self) };
            if matches!(last, Ok(true)) {
                return Ok(());
            }
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.dir.join("kube-apiserver.log")).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(15).collect();
                bail!("{what}: not within {limit:?} (last: {last:?}); kube-apiserver {ended:?}:\n{}", tail.join("\n"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn put_configmap(&self, name: &str, value: &str) -> Result<()> {
        let value = format!("--from-literal=value={value}");
        self.kubectl(&["create", "configmap", name, "--namespace=demo", &value]).map(drop)
    }

    fn configmap(&self, name: &str) -> Result<String> {
        let columns = "-o=jsonpath={.metadata.uid} {.metadata.resourceVersion} {.data.value}";
        self.kubectl(&["get", "configmap", name, "--namespace=demo", columns])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kube_apiserver_lives_on_eddy_through_kill_9() -> Result<()> {
    let binary = std::env::var_os("EDDY_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_eddy")), PathBuf::from);
    let dir = tempfile::Builder::new().prefix("eddy-kubernetes-").tempdir()?;
    let mut eddy = Server::start(&binary, &dir.path().join("data"), &[]).await?;
    let mut cluster = Cluster::start(&support::peers()?, &eddy.url(), dir.path())?;
    cluster.until(READY_WITHIN, "ready", |c| Ok(c.kubectl(&["get", "--raw", "/readyz"])? == "ok"))?;

    cluster.kubectl(&["create", "namespace", "demo"])?;
    cluster.put_configmap("before", "one")?;
    let seen = dir.path().join("seen.txt");
    let watch = cluster
        .command(&["get", "configmaps", "--namespace=demo", "--watch", "-o=name"])
        .stdout(File::create(&seen)?)
        .stderr(Stdio::null())
        .spawn()?;
    let _watch = Reaped(watch);
    let has_seen = |name: &'static str| {
        let seen = seen.clone();
        move |_: &Cluster| Ok(std::fs::read_to_string(&seen)?.lines().any(|l| l == format!("configmap/{name}")))
    };
    cluster.until(SEEN_WITHIN, "the watch lists what is there", has_seen("before"))?;
    cluster.put_configmap("during", "two")?;
    cluster.until(SEEN_WITHIN, "the watch sees a new object", has_seen("during"))?;
    let known = [cluster.configmap("before")?, cluster.configmap("during")?];

    eddy.kill()?;
    ensure!(cluster.put_configmap("refused", "three").is_err(), "a write succeeded without a store");
    eddy.restart().await.context("after kill -9")?;
    cluster.until(SEEN_WITHIN, "the apiserver writes again", |c| c.put_configmap("after", "four").map(|()| true))?;
    let now = [cluster.configmap("before")?, cluster.configmap("during")?];
    ensure!(now == known, "objects changed over the restart: {known:?}, {now:?}");
    cluster.until(SEEN_WITHIN, "the watch goes on", has_seen("after"))?;
    cluster.kubectl(&["delete", "configmap", "before", "--namespace=demo"])?;
    let left = cluster.kubectl(&["get", "configmaps", "--namespace=demo", "-o=name"])?;
    ensure!(!left.contains("configmap/before") && left.contains("configmap/during"), "left: {left}");
    Ok(())
}
