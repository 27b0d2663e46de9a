//! Members of several builds: the cluster moves up when all can, and an older build is told what it lacks.
//!
//! A newer build is one that says it has one more merge engine. The test program itself serves as that, see [`newer_build`].

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use eddy_crdt::merge::ENGINE;
use eddy_server::{cli, run};

use crate::cluster::{Cluster, PATIENCE, Replica, binary, eventually, flags};
use crate::support::Server;

const COUNTERS: &str = "v1/Thing:.size";
const KEY: &str = "/registry/things/a";

/// Where the program below finds its flags, one a line.
const FLAGS: &str = "EDDY_TEST_FLAGS";

/// A server whose build has one merge engine more. Run by the script of [`newer`].
#[test]
#[ignore = "a program"]
fn newer_build() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    let flags: Vec<String> = flags.lines().map(str::to_owned).collect();
    let Ok(cli::Action::Serve(mut invocation)) = cli::parse(flags, std::iter::empty()) else { panic!("no flags") };
    invocation.config.merge_engine = ENGINE + 1;
    run::run(*invocation).expect("it serves");
}

/// A program that takes the flags of the server and is the newer build.
fn newer(dir: &Path) -> Result<PathBuf> {
    let script = dir.join("newer");
    let program = std::env::current_exe()?;
    let text = format!(
        "#!/bin/sh\nexport {FLAGS}=\"$(printf '%s\\n' \"$@\")\"\nexec '{}' --exact builds::newer_build --ignored --nocapture\n",
        program.display()
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755))?;
    Ok(script)
}

/// Starts a member again, which was killed, as that program.
async fn start_as(replica: &mut Replica, program: &Path, list: &str) -> Result<()> {
    spawn_as(replica, program, list)?;
    replica.server.ready().await
}

fn spawn_as(replica: &mut Replica, program: &Path, list: &str) -> Result<()> {
    let flags = flags(&replica.name, &replica.peer_url, list);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let data_dir = replica.server.data_dir().to_owned();
    replica.server.kill()?;
    replica.server = Server::spawn_with(program, &data_dir, replica.ports, &flags, Vec::new())?;
    Ok(())
}

async fn merges_by(replicas: &[Replica], rules: u32, engine: u32) -> Result<()> {
    eventually(&format!("all merge by rules {rules}"), || async {
        for replica in replicas {
            let status = replica.status().await?;
            ensure!((status.rules, status.engine) == (rules, engine), "{status:?}");
        }
        Ok(())
    })
    .await
}

fn thing(size: u32) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"Thing","metadata":{{"uid":"u"}},"size":{size}}}"#)
}

#[tokio::test]
async fn a_cluster_moves_up_when_the_last_member_can_and_older_builds_are_refused() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let newer = newer(cluster.dir.path())?;
    let list: Vec<String> = cluster.replicas.iter().map(|r| format!("{}={}", r.name, r.peer_url)).collect();
    let list = list.join(",");
    let replicas = &mut cluster.replicas;
    replicas[0].put(KEY, &thing(3)).await?;

    // Two of three are not all.
    for replica in &mut replicas[..2] {
        start_as(replica, &newer, &list).await?;
    }
    replicas[0].put("between", "x").await?;
    replicas[2].shows("between", Some("x")).await?;
    eventually("the first knows which build each has", || async {
        let peers = replicas[0].status().await?.peers;
        let mut engines: Vec<_> = peers.iter().map(|peer| peer.newest_engine).collect();
        engines.sort_unstable();
        ensure!(engines == [Some(ENGINE), Some(ENGINE + 1)], "{engines:?}");
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    merges_by(replicas, 1, ENGINE).await?;
    let table = replicas[0].status_table()?;
    assert!(table.contains(&format!("merge engine {ENGINE} (this build: {})", ENGINE + 1)), "{table}");
    assert!(table.contains(&format!("its build has merge engine {ENGINE}")), "{table}");

    start_as(&mut replicas[2], &newer, &list).await?;
    merges_by(replicas, 2, ENGINE + 1).await?;

    // The build of before does not start any more, and says why.
    spawn_as(&mut replicas[2], binary(), &list)?;
    assert!(!replicas[2].server.ended(PATIENCE).await?.success());
    let why = format!("rules number 2, which need merge engine {}; this build has engine {ENGINE}", ENGINE + 1);
    assert!(replicas[2].logged(&[&why]) > 0, "{}", replicas[2].server.log_tail());

    // Nor does it join with an empty disk.
    std::fs::remove_dir_all(replicas[2].server.data_dir())?;
    spawn_as(&mut replicas[2], binary(), &list)?;
    eventually("it says why it does not join", || async {
        ensure!(replicas[2].logged(&[&why]) > 1, "{}", replicas[2].server.log_tail());
        Ok(())
    })
    .await?;
    start_as(&mut replicas[2], &newer, &list).await?;
    replicas[2].shows(KEY, Some(&thing(3))).await?;

    // What is declared waits for who is away, and then counts everywhere.
    replicas[2].server.kill()?;
    let declare = std::process::Command::new(binary())
        .args(["declare", "--endpoints", &replicas[1].server.url(), "--counters", COUNTERS])
        .output()?;
    ensure!(declare.status.success(), "{declare:?}");
    let waits = format!("rules 3 wait for {}", replicas[2].name);
    eventually("the status says for whom it waits", || async {
        let table = replicas[0].status_table()?;
        ensure!(table.contains(&waits), "{table}");
        Ok(())
    })
    .await?;
    merges_by(&replicas[..2], 2, ENGINE + 1).await?;
    replicas[2].server.restart().await?;
    merges_by(replicas, 3, ENGINE + 1).await?;

    // One more at each of two that do not hear each other.
    replicas[0].server.kill()?;
    replicas[1].put(KEY, &thing(4)).await?;
    replicas[2].shows(KEY, Some(&thing(4))).await?;
    replicas[1].server.kill()?;
    replicas[2].server.kill()?;
    replicas[0].server.restart().await?;
    replicas[0].put(KEY, &thing(4)).await?;
    for replica in &mut replicas[1..] {
        replica.server.restart().await?;
    }
    eventually("+1 and +1 are +2 everywhere", || async {
        for replica in replicas.iter() {
            let value = replica.get(KEY).await?.context("it is there")?;
            ensure!(value.contains(r#""size":5"#), "{value}");
        }
        Ok(())
    })
    .await
}
