//! What a cluster merges by: its founders say so, and all are told.

use anyhow::{Context, Result, ensure};

use crate::cluster::{Cluster, PATIENCE, Replica, Setup, binary, eventually, flags, spawn};
use crate::support::{Server, free_ports};

const COUNTERS: &str = "apps/v1/Deployment:.spec.replicas:min=0";

fn deployment(replicas: u32) -> String {
    format!(
        r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"name":"a","uid":"u"}},"spec":{{"replicas":{replicas}}}}}"#
    )
}

/// Flags of two members that found one cluster, with flags of its own for each.
fn founders(ports: [[u16; 2]; 2], own: [&[&str]; 2]) -> [Vec<String>; 2] {
    let url = |ports: [u16; 2]| format!("http://127.0.0.1:{}", ports[1]);
    let list = format!("r0={},r1={}", url(ports[0]), url(ports[1]));
    [0, 1].map(|n| {
        let mut all = flags(&format!("r{n}"), &url(ports[n]), &list);
        all.extend(own[n].iter().map(|flag| (*flag).to_owned()));
        all
    })
}

fn replica(server: Server, n: usize, ports: [u16; 2]) -> Replica {
    Replica { server, name: format!("r{n}"), ports, peer_url: format!("http://127.0.0.1:{}", ports[1]) }
}

const WARNING: &str = "the cluster has other declarations about merges";

#[tokio::test]
async fn what_is_declared_a_counter_adds_up_and_status_shows_it() -> Result<()> {
    let own = |_| vec!["--kubernetes-prefix=/k8s/".to_owned(), format!("--counters={COUNTERS}")];
    let cluster = Cluster::with(2, Setup { relays: true, flags: Some(&own), ..Setup::default() }).await?;
    let [first, second] = [&cluster.replicas[0], &cluster.replicas[1]];
    for key in ["/k8s/deployments/default/a", "/registry/deployments/default/a"] {
        first.put(key, &deployment(3)).await?;
        second.shows(key, Some(&deployment(3))).await?;
    }
    cluster.settled().await?;
    cluster.relays()?.refuse();
    for key in ["/k8s/deployments/default/a", "/registry/deployments/default/a"] {
        first.put(key, &deployment(4)).await?;
        second.put(key, &deployment(4)).await?;
    }
    // Under the prefix, so each apiserver has its own.
    first.put("/k8s/masterleases/10.0.0.1", "x").await?;
    cluster.relays()?.heal();
    let added_up = |value: &str| value.contains("\"replicas\":5");
    eventually("+1 and +1 are +2 at both, and the states are equal", || async {
        for replica in [first, second] {
            let value = replica.get("/k8s/deployments/default/a").await?.context("it is there")?;
            let status = replica.status().await?;
            ensure!(added_up(&value) && status.windows == 0, "{value}, {} windows", status.windows);
        }
        ensure!(first.status().await?.state_hash == second.status().await?.state_hash, "they differ");
        Ok(())
    })
    .await?;
    for replica in [first, second] {
        assert_eq!(replica.get("/registry/deployments/default/a").await?, Some(deployment(4)), "no object any more");
        let table = replica.status_table()?;
        assert!(table.contains(&format!("rules 1: prefix /k8s/, counters {COUNTERS}, atomic none")), "{table}");
        assert_eq!(replica.logged(&[WARNING]), 0, "it was given what counts");
    }
    assert_eq!(second.get("/k8s/masterleases/10.0.0.1").await?, None);
    Ok(())
}

#[tokio::test]
async fn founders_with_different_declarations_refuse_to_start_and_name_the_difference() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let ports = [free_ports()?, free_ports()?];
    let counters = format!("--counters={COUNTERS}");
    let all = founders(ports, [&[&counters], &[]]);
    let mut servers = Vec::new();
    for n in 0..2 {
        servers.push(spawn(&dir.path().join(format!("r{n}")), ports[n], &all[n])?);
    }
    for (n, server) in servers.iter_mut().enumerate() {
        let status = server.ended(PATIENCE).await?;
        let log = server.log();
        assert!(!status.success(), "{log}");
        let (with, without) = (
            format!("prefix /registry/, counters {COUNTERS}, atomic none"),
            "prefix /registry/, counters none, atomic none",
        );
        let [ours, theirs] = if n == 0 { [with.as_str(), without] } else { [without, with.as_str()] };
        let other = 1 - n;
        let text =
            format!("member r{other} would found the cluster with {theirs}, this one with {ours}: give all founders");
        assert!(log.contains(&text), "r{n}: {log}");
    }
    // With the same flags they begin: nothing was founded before.
    let all = founders(ports, [&[&counters], &[&counters]]);
    let mut cluster = Vec::new();
    for n in 0..2 {
        cluster.push(spawn(&dir.path().join(format!("r{n}")), ports[n], &all[n])?);
    }
    for server in &mut cluster {
        server.ready().await?;
    }
    Ok(())
}

/// Starts a member on a new data dir and waits until it has refused, with what it says.
async fn refused(dir: &std::path::Path, ports: [u16; 2], flags: &[String]) -> Result<String> {
    let mut server = spawn(dir, ports, flags)?;
    let status = server.ended(PATIENCE).await?;
    ensure!(!status.success(), "it started: {}", server.log());
    Ok(server.log())
}

#[tokio::test]
async fn a_member_that_comes_later_asks_for_what_the_cluster_has_or_for_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let ports = [free_ports()?, free_ports()?];
    let counters = format!("--counters={COUNTERS}");
    let other = "--kubernetes-prefix=/k8s/";
    let all = founders(ports, [&[&counters, "--join-timeout=300ms"], &[other]]);
    let mut first = spawn(&dir.path().join("r0"), ports[0], &all[0])?;
    first.ready().await?;
    let cluster = format!("prefix /registry/, counters {COUNTERS}");
    let asked = format!("prefix /k8s/, counters {COUNTERS}");
    let refusal =
        format!("the cluster of member r0 merges by {cluster}, atomic none, and the flags of this one ask for {asked}");
    let log = refused(&dir.path().join("r1"), ports[1], &all[1]).await?;
    assert!(log.contains(&refusal), "{log}");
    // Without a flag, or with the same, it comes.
    let second = &dir.path().join("r1");
    let plain = founders(ports, [&[], &[]]);
    let mut server = spawn(second, ports[1], &plain[1])?;
    server.ready().await?;
    let mut replicas = vec![replica(first, 0, ports[0]), replica(server, 1, ports[1])];
    replicas[0].put("/registry/deployments/default/a", &deployment(3)).await?;
    replicas[1].shows("/registry/deployments/default/a", Some(&deployment(3))).await?;
    for replica in &replicas {
        let table = replica.status_table()?;
        assert!(table.contains(&cluster), "{table}");
        assert_eq!(replica.logged(&[WARNING]), 0, "nothing else was asked for");
    }
    // A site that restarts with the file of yesterday must not stay down.
    replicas[1].server.kill()?;
    let mut server = spawn(second, ports[1], &all[1])?;
    server.ready().await?;
    replicas[1] = replica(server, 1, ports[1]);
    replicas[1].shows("/registry/deployments/default/a", Some(&deployment(3))).await?;
    assert_eq!(replicas[1].logged(&[WARNING, &cluster, &asked]), 1, "{}", replicas[1].server.log());

    // One that is added while the cluster runs is treated alike.
    replicas[0].put("old", "x").await?;
    let (ports, name) = (free_ports()?, "r2".to_owned());
    let peer_url = format!("http://127.0.0.1:{}", ports[1]);
    replicas[0].add(&peer_url).await?;
    let list: Vec<String> = replicas.iter().map(|r| format!("{}={}", r.name, r.peer_url)).collect();
    let mut all = flags(&name, &peer_url, &format!("{},{name}={peer_url}", list.join(",")));
    all.push("--initial-cluster-state=existing".to_owned());
    let third = dir.path().join(&name);
    let log = refused(&third, ports, &[&all[..], &[other.to_owned()]].concat()).await?;
    assert!(log.contains(&format!("merges by {cluster}")) && log.contains(&format!("ask for {asked}")), "{log}");
    all.push(counters);
    let mut server = spawn(&third, ports, &all)?;
    server.ready().await?;
    let third = Replica { server, name, ports, peer_url };
    third.shows("old", Some("x")).await?;
    assert_eq!(third.logged(&[WARNING]), 0, "{}", third.server.log());
    let table = third.status_table()?;
    assert!(table.contains(&cluster), "{table}");
    Ok(())
}

const POLICY: &str = "# what adds up, and what is one value\ncounters:\n- apps/v1/Deployment:.spec.replicas:min=0\n";

const ATOMIC: &str = "apps/v1/Deployment:.spec.template";

/// Writes a merge policy, with what is one value.
fn policy(dir: &std::path::Path, name: &str, atomic: &[&str]) -> Result<String> {
    let path = dir.join(name);
    let fields: String = atomic.iter().map(|field| format!("- {field}\n")).collect();
    let atomic = if atomic.is_empty() { String::new() } else { format!("atomic:\n{fields}") };
    std::fs::write(&path, format!("{POLICY}{atomic}"))?;
    Ok(path.to_str().context("a path")?.to_owned())
}

#[tokio::test]
async fn a_merge_policy_is_the_same_for_all_founders_and_can_be_declared_anew() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let ports = [free_ports()?, free_ports()?];
    let [one, other] = [policy(dir.path(), "one.yaml", &[ATOMIC])?, policy(dir.path(), "other.yaml", &[])?];
    let (one_flag, other_flag) = (format!("--merge-policy={one}"), format!("--merge-policy={other}"));
    let all = founders(ports, [&[&one_flag], &[&other_flag]]);
    let mut servers = Vec::new();
    for n in 0..2 {
        servers.push(spawn(&dir.path().join(format!("r{n}")), ports[n], &all[n])?);
    }
    let texts = [ATOMIC, "none"].map(|atomic| format!("prefix /registry/, counters {COUNTERS}, atomic {atomic}"));
    for (n, server) in servers.iter_mut().enumerate() {
        let status = server.ended(PATIENCE).await?;
        let log = server.log();
        let text = format!("would found the cluster with {}, this one with {}", texts[1 - n], texts[n]);
        assert!(!status.success() && log.contains(&text), "r{n}: {log}");
    }
    let all = founders(ports, [&[&one_flag], &[&one_flag]]);
    let mut replicas = Vec::new();
    for n in 0..2 {
        replicas.push(replica(spawn(&dir.path().join(format!("r{n}")), ports[n], &all[n])?, n, ports[n]));
    }
    for replica in &mut replicas {
        replica.server.ready().await?;
        let table = replica.status_table()?;
        assert!(table.contains(&format!("rules 1: {}", texts[0])), "{table}");
    }
    let declare = |args: &[&str]| -> Result<()> {
        let done = std::process::Command::new(binary())
            .args(["declare", "--endpoints", &replicas[0].server.url()])
            .args(args)
            .output()?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    };
    let shows = async |text: &str| {
        eventually("the new rules are in use at both", || async {
            for replica in &replicas {
                let table = replica.status_table()?;
                ensure!(table.contains(text), "{table}");
            }
            Ok(())
        })
        .await
    };
    // Counters alone leave what is one value as it is.
    declare(&["--counters", ""])?;
    shows(&format!("rules 2: prefix /registry/, counters none, atomic {ATOMIC}")).await?;
    declare(&["--merge-policy", &other])?;
    shows(&format!("rules 3: {}", texts[1])).await?;
    let wrong = policy(dir.path(), "wrong.yaml", &["v1/Pod:.spec"])?;
    let refused = declare(&["--merge-policy", &wrong]).err().context("it is refused")?;
    assert!(refused.to_string().contains("v1/Pod:.spec cannot be one value"), "{refused}");
    Ok(())
}
