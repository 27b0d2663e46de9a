//! What waits for a peer that does not answer, and what it costs afterwards.

use std::time::Duration;

use anyhow::Result;
use eddy_proto::etcdserverpb::PutRequest;
use futures::{StreamExt, TryStreamExt};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::cluster::{Cluster, Replica, Setup};

/// Bytes of a value.
const VALUE: usize = 256;

/// Longer than a peer may say nothing while as much is on its way as may be.
const GIVEN_UP: Duration = Duration::from_millis(1_400);

/// The same where thousands of writes wait for it.
const GIVEN_UP_BESIDE_MUCH: Duration = Duration::from_millis(400);

/// Puts values to one key, `times` of them, that no compression makes smaller. The last one is text.
async fn overwrite(replica: &Replica, times: usize, last: &str) -> Result<()> {
    let mut random = SmallRng::seed_from_u64(times as u64);
    let values = (0..times).map(|_| {
        let mut value = vec![0; VALUE];
        random.fill_bytes(&mut value);
        value
    });
    let kv = replica.kv().await?;
    let put = |value: Vec<u8>| {
        let mut kv = kv.clone();
        async move { kv.put(PutRequest { key: "hot".into(), value: value.into(), ..PutRequest::default() }).await }
    };
    futures::stream::iter(values).map(put).buffer_unordered(32).try_for_each(|_| async { Ok(()) }).await?;
    replica.put("hot", last).await?;
    Ok(())
}

/// The link dies without a word and nobody has noticed yet. Only what was sent by then has to be sent; what is written
/// over later is not, however much that is.
#[tokio::test]
async fn what_is_written_over_while_a_link_is_silently_dead_is_not_sent_afterwards() -> Result<()> {
    let cluster = Cluster::with(2, Setup { relays: true, ..Setup::default() }).await?;
    let writer = &cluster.replicas[0];
    for (round, (silence, times)) in [(GIVEN_UP, 500), (GIVEN_UP_BESIDE_MUCH, 6_000)].into_iter().enumerate() {
        let last = format!("the last of round {round}");
        cluster.settled().await?;
        let before = cluster.relays()?.all_bytes();
        cluster.relays()?.cut_all();
        // What fills the window, and the time in which a link that is full and silent is given up. All writes until then must be
        // sent: a fast machine makes thousands.
        overwrite(writer, 500, "the window is full").await?;
        tokio::time::sleep(silence).await;
        overwrite(writer, times, &last).await?;
        cluster.relays()?.heal();
        cluster.replicas[1].shows("hot", Some(&last)).await?;
        cluster.settled().await?;
        let sent = cluster.relays()?.all_bytes() - before;
        // What the window lets out may be sent twice, where the link is given up and made anew.
        assert!(sent < 400_000, "{sent} bytes for {times} writes, whose values are {} bytes", times * VALUE);
    }
    Ok(())
}
