//! A member that greets as it should and then sends what no peer would: refused or ignored, counted, logged once, and
//! nobody else notices.

use anyhow::{Result, ensure};
use bytes::Bytes;
use eddy_crdt::sync::{AckBatch, Message, Piece, Reason};
use eddy_crdt::{Birth, Chain, ClusterId, Dot, Keyspace, Origin, ReplicaId, VersionVector};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cluster::{Cluster, eventually};
use crate::fake::Fake;

/// How often each kind of nonsense is sent: often enough that logging each time would show.
const TIMES: usize = 4;

/// Writes at each go everywhere, and without the member that is none all is settled.
async fn goes_on(cluster: &Cluster, fake: &Fake) -> Result<()> {
    for writer in &cluster.replicas {
        writer.put(&format!("by-{}", writer.name), "x").await?;
    }
    for writer in &cluster.replicas {
        for reader in &cluster.replicas {
            reader.shows(&format!("by-{}", writer.name), Some("x")).await?;
        }
    }
    cluster.replicas[1].remove(fake.member.get()).await?;
    cluster.settled().await
}

#[tokio::test]
async fn garbage_ends_the_session_and_is_logged_once() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let target = &cluster.replicas[0];
    let fake = Fake::join(target).await?;
    for _ in 0..TIMES {
        // No message at all.
        let line = fake.call(target, |_| ()).await?;
        line.send_bytes(Bytes::from_static(b"\xff\x00 garbage")).await?;
        let (reason, text) = line.ends_refused().await?;
        ensure!(reason == Reason::Protocol && text.contains("checksum"), "{reason:?} {text}");
        // A message, but what it holds is no entry.
        let mut line = fake.call_until_asked(target).await?;
        line.send_encoded(vec![Bytes::from_static(b"\xff\xff\xff\xff no entry")]).await?;
        let (reason, text) = line.ends_refused().await?;
        ensure!(reason == Reason::Protocol && text.contains("garbage"), "{reason:?} {text}");
        // An empty one.
        let line = fake.call(target, |_| ()).await?;
        line.send_bytes(Bytes::new()).await?;
        ensure!(line.ends_refused().await?.0 == Reason::Protocol);
    }
    let id = fake.member.to_string();
    eventually("all are counted", || async {
        let name = format!("etcd_network_peer_received_failures_total{{From=\"{id}\"}}");
        let counted = target.metric(&name).await?;
        ensure!(counted == 3 * TIMES as u64, "{counted}");
        Ok(())
    })
    .await?;
    let told = target.logged(&["closed the connection to the peer", &id]);
    ensure!(told == 2, "one line for each of two reasons, not {told}: {}", target.server.log_tail());
    goes_on(&cluster, &fake).await
}

/// Before a peer has greeted, little of what it sends is taken in.
#[tokio::test]
async fn a_long_first_message_is_not_taken_in() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let target = &cluster.replicas[0];
    let fake = Fake::join(target).await?;
    let line = fake.call_without_greeting(target).await?;
    line.send_bytes(Bytes::from(vec![b'x'; 100 << 10])).await?;
    target.logs("the first message of a peer is").await?;
    ensure!(line.ends_refused().await.is_err(), "nothing is said to a stranger that does not greet");
    goes_on(&cluster, &fake).await
}

#[tokio::test]
async fn entries_that_come_twice_or_out_of_order_are_applied_once() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let target = &cluster.replicas[0];
    let mut fake = Fake::join(target).await?;
    let mut line = fake.call_until_asked(target).await?;
    let mut entries = Vec::new();
    for n in 1..=5 {
        entries.push(fake.put(&line, &format!("fake-{n}"), "x")?);
    }
    let [e1, e2, e3, e4, e5] = &entries[..] else { anyhow::bail!("five entries") };
    line.send_entries(&[e1]).await?;
    line.send_entries(&[e1]).await?;
    line.send_entries(&[e3, e1]).await?;
    line.send_entries(&[e2]).await?;
    line.send_entries(&[e2, e3]).await?;
    for replica in &cluster.replicas {
        for n in 1..=3 {
            replica.shows(&format!("fake-{n}"), Some("x")).await?;
        }
    }
    let name = |kind: &str| format!("eddy_peer_received_entries_total{{kind=\"{kind}\",peer=\"{}\"}}", fake.member);
    eventually("they are counted", || async {
        let counted = (target.metric(&name("new")).await?, target.metric(&name("doubled")).await?);
        ensure!(counted == (3, 4), "{counted:?}");
        Ok(())
    })
    .await?;

    // One is missing, and does not come: all are asked for again.
    line.send_entries(&[e5]).await?;
    line.asked_again().await?;
    ensure!(target.get("fake-5").await?.is_none(), "not without what came before it");
    line.send_entries(&[e4, e5]).await?;
    for replica in &cluster.replicas {
        replica.shows("fake-5", Some("x")).await?;
    }
    for n in 1..=5 {
        ensure!(target.version_of(&format!("fake-{n}")).await? == Some(1), "fake-{n} was written once");
    }
    ensure!(target.logged(&["refused an entry"]) == 0, "nothing of it is worth a line: {}", target.server.log());
    goes_on(&cluster, &fake).await
}

#[tokio::test]
async fn an_entry_below_the_floor_is_refused_and_an_alarm_names_who_sent_it() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    cluster.replicas[1].put("a", "1").await?;
    cluster.settled().await?;
    let target = &cluster.replicas[0];
    let mut fake = Fake::join(target).await?;
    let mut line = fake.call_until_asked(target).await?;
    let good = fake.put(&line, "good", "x")?;
    line.send_entries(&[&good]).await?;
    target.shows("good", Some("x")).await?;
    // Of an entry that does not know what all members have, nobody can say any more what it is concurrent with.
    fake.reborn();
    let mut line = fake.call_until_asked(target).await?;
    let mut below = fake.put(&line, "below", "x")?;
    below.head.depends = Default::default();
    for _ in 0..TIMES {
        line.send_entries(&[&below]).await?;
        line.asked_again().await?;
    }
    let alarm = format!("memberID:{} alarm:BELOW_FLOOR ({TIMES} entries refused)", fake.member.get());
    eventually("the alarm is there", || async {
        let alarms = target.status().await?.alarms;
        ensure!(alarms.contains(&alarm), "{alarms:?}");
        Ok(())
    })
    .await?;
    let id = fake.member.to_string();
    ensure!(target.metric(&format!("eddy_peer_alarm{{kind=\"below-floor\",peer=\"{id}\"}}")).await? == 1);
    let failures = format!("etcd_network_peer_received_failures_total{{From=\"{id}\"}}");
    ensure!(target.metric(&failures).await? == TIMES as u64, "each is counted");
    let told = target.logged(&["refused an entry", "it does not depend on what all members have", &id]);
    ensure!(told == 1, "{told} lines: {}", target.server.log_tail());
    ensure!(target.get("below").await?.is_none(), "it is not applied");
    let table = target.status_table()?;
    ensure!(table.contains(&alarm), "{table}");
    goes_on(&cluster, &fake).await?;
    ensure!(cluster.replicas[2].get("good").await?.as_deref() == Some("x"));
    ensure!(target.status().await?.alarms.is_empty(), "it is no member any more");
    Ok(())
}

#[tokio::test]
async fn a_forged_entry_is_refused() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let target = &cluster.replicas[0];
    let mut fake = Fake::join(target).await?;
    let mut line = fake.call_until_asked(target).await?;
    let first = fake.put(&line, "first", "x")?;
    line.send_entries(&[&first]).await?;
    target.shows("first", Some("x")).await?;
    // Another history of its own.
    let mut forked = fake.put(&line, "forked", "x")?;
    forked.head.previous = Chain::default();
    // Made by a replica that is no member.
    let mut nobody = fake.put(&line, "nobody", "x")?;
    nobody.head.dot.origin.replica = ReplicaId::new(0xdead);
    (nobody.head.dot.seq, nobody.head.first_seq, nobody.head.previous) = (1, 1, Chain::default());
    nobody.head.depends = line.theirs.vector.clone();
    for _ in 0..TIMES {
        for entry in [&forked, &nobody] {
            line.send_entries(&[entry]).await?;
            line.asked_again().await?;
        }
    }
    let id = fake.member.to_string();
    ensure!(target.logged(&["refused an entry", "another one of that name", &id]) == 1, "{}", target.server.log());
    ensure!(target.logged(&["refused entries of one that is no member", "dead"]) == 1, "{}", target.server.log());
    for key in ["forked", "nobody"] {
        ensure!(target.get(key).await?.is_none(), "{key}");
    }
    // Nor is one taken of which a part was lost.
    let whole = eddy_crdt::sync::encode_entry(&first, |_| None).bytes;
    line.send_encoded(vec![whole.slice(..whole.len() / 2)]).await?;
    ensure!(line.ends_refused().await?.0 == Reason::Protocol);
    goes_on(&cluster, &fake).await
}

#[tokio::test]
async fn whoever_is_of_another_cluster_or_no_member_gets_nothing_but_the_reason() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    cluster.replicas[0].put("secret", "x").await?;
    let target = &cluster.replicas[0];
    let fake = Fake::join(target).await?;
    for _ in 0..TIMES {
        let foreign = fake.call(target, |hello| hello.cluster = ClusterId::new(hello.cluster.get() ^ 1)).await?;
        ensure!(foreign.ends_refused().await?.0 == Reason::Cluster);
        let unknown = fake.call(target, |hello| hello.replica = ReplicaId::new(0xbeef)).await?;
        ensure!(unknown.ends_refused().await?.0 == Reason::UnknownMember);
        let newer = fake.call(target, |hello| hello.protocol += 1).await?;
        ensure!(newer.ends_refused().await?.0 == Reason::Version);
        let own = target.status().await?.member_id;
        let itself = fake.call(target, |hello| hello.replica = ReplicaId::new(own)).await?;
        ensure!(itself.ends_refused().await?.0 == Reason::Identity);
        // Entries from one that has not greeted.
        let rude = fake.call_without_greeting(target).await?;
        rude.send(&Message::Entries { epoch: 0, number: 1, entries: vec![], marks: 0, part: None }).await?;
        ensure!(rude.ends_refused().await?.0 == Reason::Protocol);
    }
    eventually("each is counted", || async {
        let strangers = target.metric("eddy_peer_strangers_total").await?;
        ensure!(strangers == 5 * TIMES as u64, "{strangers}");
        Ok(())
    })
    .await?;
    for reason in [
        "belongs to cluster",
        "beef is no member",
        "speaks protocol",
        "is this replica itself",
        "where it has no place",
    ] {
        let told = target.logged(&["refused a connection to the peer port", reason]);
        ensure!(told == 1, "{told} lines with {reason:?}: {}", target.server.log());
    }
    goes_on(&cluster, &fake).await
}

/// Messages of every kind that a peer may send and that tell nothing true: about origins, epochs, hashes and places that
/// are none. (A peer that lies about what members have is beyond this: it is as trusted as the disk.)
#[tokio::test]
async fn nonsense_in_messages_of_every_kind_breaks_nothing() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let target = &cluster.replicas[0];
    for n in 0..50 {
        cluster.replicas[n % 3].put(&format!("key-{n}"), "x").await?;
    }
    let fake = Fake::join(target).await?;
    let mut random = SmallRng::seed_from_u64(1);
    let mut ends = 0;
    for _ in 0..150 {
        let line = fake.call(target, |_| ()).await?;
        for _ in 0..random.random_range(1..12) {
            // The other side may have closed the stream already.
            if line.send(&nonsense(&mut random, &fake)).await.is_err() {
                break;
            }
        }
        let shortened = nonsense(&mut random, &fake).encode();
        let len = random.random_range(0..shortened.len());
        let _closed_already = line.send_bytes(shortened.slice(..len)).await;
        // What is cut off is no message: it ends every session that nothing ended before.
        ends += usize::from(line.ends_refused().await.is_ok());
    }
    ensure!(ends > 0, "none was told why");
    for (n, replica) in cluster.replicas.iter().enumerate() {
        replica.put(&format!("after-{n}"), "y").await?;
        replica.shows("key-49", Some("x")).await?;
    }
    ensure!(target.logged(&["closed the connection to the peer"]) < 10, "no storm: {}", target.server.log_tail());
    for replica in &cluster.replicas {
        ensure!(replica.logged(&["panicked"]) == 0, "{}", replica.server.log_tail());
    }
    goes_on(&cluster, &fake).await
}

fn nonsense(random: &mut SmallRng, fake: &Fake) -> Message {
    let mut number = || random.random_range(0..u64::MAX) >> random.random_range(0..64);
    let origin = Origin { replica: ReplicaId::new(number() | 1), birth: Birth::new(number()) };
    let vector: VersionVector = (0..3)
        .map(|_| Dot { origin: Origin { replica: ReplicaId::new(number() | 1), ..origin }, seq: number() | 1 })
        .collect();
    let place = (Keyspace::Client, Bytes::from(number().to_le_bytes().to_vec()));
    let (small, at, hash) = (number() as u32, number(), u128::from(number()));
    match number() % 10 {
        0 => Message::Acks(AckBatch {
            epoch: small,
            number: small,
            links: Some(vec![fake.member, origin.replica]),
            ..AckBatch::default()
        }),
        1 => Message::Again { epoch: small, have: vector.clone(), whole: small % 2 == 0, floor: vector },
        2 => Message::ChainsWanted { origin, seqs: (0..100).map(|_| number()).collect() },
        3 => Message::Chains(vec![(Dot { origin, seq: at }, Chain::default())]),
        4 => Message::Hash { at, hash: Some(hash) },
        5 => {
            let pieces = vec![Piece { end: Some(place.clone()), hash }, Piece { end: None, hash: 1 }];
            Message::Narrow { at, from: Some(place), pieces, single: small % 2 == 0 }
        }
        6 => Message::Ping { number: small, wall_ms: at },
        7 => Message::Pong { number: small, wall_ms: at },
        8 => Message::Entries {
            epoch: small,
            number: small,
            marks: 0,
            part: None,
            entries: vec![Bytes::from(number().to_le_bytes().to_vec())],
        },
        _ => Message::SnapshotWanted { after: Some(place) },
    }
}
