//! What a site that is away costs the others, and what all see when it comes back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb::{CompactionRequest, PutRequest, WatchCreateRequest, WatchResponse};
use futures::{StreamExt, TryStreamExt};
use tonic::Streaming;

use crate::cluster::{Cluster, PATIENCE, Replica, Setup};

/// Bytes of a value, hot keys, and how often all of them are written over.
const VALUE: usize = 256;
const HOT: usize = 100;
const ROUNDS: usize = 200;
/// Less than the overwrites take together, and many times what is live.
const QUOTA: usize = 8 << 20;

async fn puts(replica: &Replica, puts: impl Iterator<Item = PutRequest>, at_once: usize) -> Result<()> {
    let kv = replica.kv().await?;
    let put = |request| {
        let mut kv = kv.clone();
        async move { kv.put(request).await }
    };
    futures::stream::iter(puts).map(put).buffer_unordered(at_once).try_for_each(|_| async { Ok(()) }).await?;
    Ok(())
}

/// Writes the hot keys over and over, with values of its own, and compacts as a kube-apiserver would.
async fn overwrite(replica: &Replica) -> Result<()> {
    for round in 0..ROUNDS {
        let value = format!("{} {round} ", replica.name).repeat(VALUE);
        let value: bytes::Bytes = value[..VALUE].to_owned().into();
        let keys = (0..HOT).map(|n| format!("hot-{n:03}"));
        let all = keys.map(|key| PutRequest { key: key.into(), value: value.clone(), ..PutRequest::default() });
        puts(replica, all, 32).await?;
        if round % 20 == 19 {
            let revision = replica.put("last-round", &round.to_string()).await?;
            // A compaction by itself may have gone further.
            drop(replica.kv().await?.compact(CompactionRequest { revision, physical: false }).await);
        }
    }
    Ok(())
}

/// Memory, log and quota are bounded by what is live, however much is written beside a member that is away.
#[tokio::test]
async fn overwrites_beside_a_killed_member_fill_no_quota() -> Result<()> {
    let flags = |_| {
        vec![
            format!("--quota-backend-bytes={QUOTA}"),
            "--auto-compaction-mode=periodic".to_owned(),
            "--auto-compaction-retention=1s".to_owned(),
        ]
    };
    let mut cluster = Cluster::with(3, Setup { flags: Some(&flags), ..Setup::default() }).await?;
    cluster.settled().await?;
    cluster.replicas[2].server.kill()?;
    let (one, other) = tokio::join!(overwrite(&cluster.replicas[0]), overwrite(&cluster.replicas[1]));
    one?;
    other?;
    for replica in &cluster.replicas[..2] {
        let alarms = replica.status().await?.alarms;
        ensure!(!alarms.iter().any(|alarm| alarm.contains("NOSPACE")), "{}: {alarms:?}", replica.name);
        // What was written last is there until the next compaction, which comes within a second.
        let mut used = u64::MAX;
        for _ in 0..100 {
            used = replica.metric("etcd_mvcc_db_total_size_in_use_in_bytes").await?;
            if used < QUOTA as u64 / 4 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ensure!(used < QUOTA as u64 / 4, "{} counts {used} bytes for {HOT} keys of {VALUE}", replica.name);
    }
    cluster.replicas[2].server.restart().await?;
    cluster.settled().await
}

/// How often each site writes its lease. A lock is renewed every 2 s for half an hour that way.
const RENEWALS: usize = 1_000;
const LEASE: &str = "/registry/leases/kube-system/controller";

/// Without one merge for each key and unit it takes minutes of computing, and tens of seconds where nothing leaves that two
/// wrote at the same time, or where it does only while one is away. At rest it is equal after 0.3 s. How long that takes
/// beside other tests says nothing, and beside other programs on a slow machine it computed for 3 s.
const EQUAL_WITHIN: Duration = Duration::from_secs(30);
const CPU_MAX: Duration = Duration::from_secs(10);

fn lease(site: &str, n: usize) -> PutRequest {
    let value = format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"controller","namespace":"kube-system",
        "uid":"6c3b1a52-0001-4a77-9d0e-3f0f3d1c0001"}},"spec":{{"acquireTime":"2026-01-01T00:00:00.000000Z",
        "holderIdentity":"{site}","leaseDurationSeconds":15,"leaseTransitions":1,
        "renewTime":"2026-01-01T00:{:02}:{:02}.{n:06}Z"}}}}"#,
        n / 60 % 60,
        n % 60,
    );
    PutRequest { key: LEASE.into(), value: value.into(), ..PutRequest::default() }
}

#[tokio::test]
async fn a_lock_that_three_sites_renewed_while_one_was_away_is_equal_soon() -> Result<()> {
    let cluster = Cluster::with(3, Setup { relays: true, ..Setup::default() }).await?;
    puts(&cluster.replicas[0], std::iter::once(lease("r0", 0)), 1).await?;
    cluster.settled().await?;
    cluster.tells_links_apart()?;
    cluster.settled().await?;
    cluster.relays()?.cut([(2, 0), (2, 1), (0, 2), (1, 2)]);
    let renewals = cluster.replicas.iter().map(|replica| async move {
        let mut kv = replica.kv().await?;
        for n in 1..=RENEWALS {
            kv.put(lease(&replica.name, n)).await?;
            // So that the two that see each other take turns.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(renewals).await?;
    let before: Vec<Duration> =
        cluster.replicas.iter().map(|replica| replica.server.computed()).collect::<Result<_>>()?;
    cluster.relays()?.heal();
    let healed = Instant::now();
    tokio::time::timeout(EQUAL_WITHIN, cluster.settled())
        .await
        .with_context(|| format!("not equal within {EQUAL_WITHIN:?}"))??;
    let took = healed.elapsed();
    for (replica, before) in cluster.replicas.iter().zip(before) {
        let computed = replica.server.computed()? - before;
        println!("{} computed for {computed:?}, equal after {took:?}", replica.name);
        ensure!(computed < CPU_MAX, "{} computed for {computed:?} to be equal after {took:?}", replica.name);
    }
    Ok(())
}

/// A watch of all Kubernetes objects from that revision on, or from now on.
async fn watch_from(replica: &Replica, start_revision: i64) -> Result<Streaming<WatchResponse>> {
    let (key, range_end) = ("/registry/".into(), "/registry0".into());
    replica.watch(WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() }).await
}

/// How many objects come with one unit.
const OBJECTS: usize = 30;

/// The keys that a client sees from a revision on whose watch breaks off after each object, as a reflector's may: it goes
/// on behind the revision of the last object that it saw.
async fn seen_in_pieces(replica: &Replica, mut revision: i64) -> Result<Vec<String>> {
    let mut keys = Vec::new();
    while keys.len() < OBJECTS {
        let mut watch = watch_from(replica, revision).await?;
        let Ok(answer) = tokio::time::timeout(PATIENCE, watch.message()).await else {
            anyhow::bail!("{}: nothing comes after {keys:?}", replica.name)
        };
        let answer = answer?.context("the watch ended")?;
        let object = answer.events.first().and_then(|event| event.kv.as_ref()).context("an event")?;
        keys.push(String::from_utf8_lossy(&object.key).into_owned());
        revision = object.mod_revision + 1;
    }
    Ok(keys)
}

/// Seen with real control planes: with one revision for all of a unit, a controller whose watch broke off while it
/// came never heard of a pod, and ran one too many.
#[tokio::test]
async fn a_watch_that_breaks_off_within_a_unit_misses_nothing() -> Result<()> {
    let mut cluster = Cluster::with(2, Setup { relays: true, ..Setup::default() }).await?;
    cluster.settled().await?;
    let [here, there] = &cluster.replicas[..] else { anyhow::bail!("another number of replicas") };
    let before = here.put("before", "").await?;
    cluster.relays()?.refuse();
    let map = |n: usize| {
        let value = object("v1", "ConfigMap", &n.to_string(), &format!(r#""data":{{"n":"{n}"}}"#));
        PutRequest { key: format!("/registry/configmaps/default/{n:02}").into(), value, ..PutRequest::default() }
    };
    puts(there, (0..OBJECTS).map(map), 1).await?;
    cluster.relays()?.heal();
    cluster.settled().await?;
    let all: Vec<String> = (0..OBJECTS).map(|n| format!("/registry/configmaps/default/{n:02}")).collect();
    let seen = seen_in_pieces(&cluster.replicas[0], before + 1).await?;
    ensure!(seen == all, "in pieces {seen:?}");
    cluster.replicas[0].server.kill()?;
    cluster.replicas[0].server.restart().await?;
    let seen = seen_in_pieces(&cluster.replicas[0], before + 1).await?;
    ensure!(seen == all, "after a restart {seen:?}");
    Ok(())
}

/// How many owners and pods, so that one is seen that way which is not the rule.
const OWNERS: usize = 20;
const STATUS_UPDATES: usize = 40;

fn object(api: &str, kind: &str, name: &str, rest: &str) -> bytes::Bytes {
    let metadata = format!(r#""name":"{name}","namespace":"default","uid":"uid-of-{kind}-{name}""#);
    format!(r#"{{"apiVersion":"{api}","kind":"{kind}","metadata":{{{metadata}}},{rest}}}"#).into()
}

/// One site makes a ReplicaSet, its pod, and updates of the status while it is cut off. Some of the
/// updates are never sent. Even so, a watch elsewhere shows the ReplicaSet before its pod.
#[tokio::test]
async fn nobody_sees_a_pod_before_the_replica_set_that_owns_it() -> Result<()> {
    let cluster = Cluster::with(2, Setup { relays: true, ..Setup::default() }).await?;
    let [here, there] = &cluster.replicas[..] else { anyhow::bail!("another number of replicas") };
    cluster.settled().await?;
    let mut watch = watch_from(here, 0).await?;

    cluster.relays()?.refuse();
    for owner in 0..OWNERS {
        let (set, pod) = (format!("/registry/replicasets/default/{owner}"), format!("/registry/pods/default/{owner}"));
        let name = owner.to_string();
        let status = |n: usize| {
            let rest = format!(r#""spec":{{"replicas":1}},"status":{{"observedGeneration":1,"replicas":{n}}}"#);
            let value = object("apps/v1", "ReplicaSet", &name, &rest);
            PutRequest { key: set.clone().into(), value, ..PutRequest::default() }
        };
        let owned = object("v1", "Pod", &name, r#""spec":{"nodeName":"edge"},"status":{"phase":"Running"}"#);
        let made = [status(0), PutRequest { key: pod.into(), value: owned, ..PutRequest::default() }];
        puts(there, made.into_iter().chain((1..=STATUS_UPDATES).map(status)), 1).await?;
    }
    cluster.relays()?.heal();
    let mut seen = Vec::new();
    let last = format!("/registry/pods/default/{}", OWNERS - 1);
    let all = async {
        while !(seen.contains(&last) && seen.contains(&last.replace("pods", "replicasets"))) {
            let answer = watch.message().await?.context("the watch ended")?;
            seen.extend(
                answer
                    .events
                    .iter()
                    .filter_map(|event| event.kv.as_ref().map(|kv| String::from_utf8_lossy(&kv.key).into_owned())),
            );
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, all).await.context("the watch does not tell all")??;
    let first = |key: &str| seen.iter().position(|is| is == key);
    let early: Vec<usize> = (0..OWNERS)
        .filter(|owner| {
            let pod = first(&format!("/registry/pods/default/{owner}"));
            let set = first(&format!("/registry/replicasets/default/{owner}"));
            set.is_none() || pod.is_some_and(|pod| set.is_some_and(|set| pod < set))
        })
        .collect();
    ensure!(early.is_empty(), "{} of {OWNERS} pods were told before their owners: {early:?}", early.len());
    cluster.settled().await
}
