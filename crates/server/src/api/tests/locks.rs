//! Locks and elections: handed over, given up, lost with a lease.

use std::time::Duration;

use eddy_proto::etcdserverpb as pb;
use eddy_proto::v3electionpb::election_client::ElectionClient;
use eddy_proto::v3electionpb::{CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest};
use eddy_proto::v3lockpb::lock_client::LockClient;
use eddy_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{Served, error};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough that who should wait would be seen not to.
const WHILE: Duration = Duration::from_millis(200);

type Locking = JoinHandle<Result<LockResponse, Status>>;

impl Served {
    fn locks(&self) -> LockClient<Channel> {
        LockClient::new(self.channel.clone())
    }

    fn elections(&self) -> ElectionClient<Channel> {
        ElectionClient::new(self.channel.clone())
    }

    async fn lease(&self, id: i64, ttl: i64) {
        self.leases().lease_grant(pb::LeaseGrantRequest { id, ttl }).await.unwrap();
    }

    fn lock(&self, lease: i64) -> Locking {
        let mut locks = self.locks();
        let request = LockRequest { name: "lock".into(), lease };
        tokio::spawn(async move { locks.lock(request).await.map(tonic::Response::into_inner) })
    }

    /// Waits until that many keys are in the queue of the lock or election.
    async fn queued(&self, name: &'static str, count: i64) {
        let end = format!("{name}0");
        let range =
            || pb::RangeRequest { key: format!("{name}/").into(), range_end: end.clone().into(), ..Default::default() };
        let mut kv = self.kv();
        let waited = timeout(PATIENCE, async {
            while kv.range(range()).await.unwrap().into_inner().count != count {
                sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("there are not {count} in the queue of {name}"));
    }
}

async fn done(locking: Locking) -> Result<LockResponse, Status> {
    timeout(PATIENCE, locking).await.expect("a lock that nobody holds").unwrap()
}

#[tokio::test]
async fn a_lock_is_handed_over_in_the_order_of_those_who_came() {
    let served = Served::start().await;
    for lease in [10, 11, 12] {
        served.lease(lease, 60).await;
    }
    let first = done(served.lock(10)).await.unwrap();
    assert_eq!((&first.key[..], first.header.map(|header| header.revision)), (&b"lock/a"[..], Some(2)));
    // Again with the same lease: it is held already.
    assert_eq!(done(served.lock(10)).await.unwrap().key, first.key);
    let second = served.lock(11);
    served.queued("lock", 2).await;
    let third = served.lock(12);
    served.queued("lock", 3).await;
    sleep(WHILE).await;
    assert!(!second.is_finished() && !third.is_finished());
    served.locks().unlock(UnlockRequest { key: first.key }).await.unwrap();
    let second = done(second).await.unwrap();
    assert_eq!((&second.key[..], second.header.map(|header| header.revision)), (&b"lock/b"[..], Some(5)));
    sleep(WHILE).await;
    assert!(!third.is_finished());
    served.locks().unlock(UnlockRequest { key: second.key }).await.unwrap();
    assert_eq!(done(third).await.unwrap().key, "lock/c");
}

#[tokio::test]
async fn who_goes_away_leaves_the_queue() {
    let served = Served::start().await;
    for lease in [10, 11, 12] {
        served.lease(lease, 60).await;
    }
    let first = done(served.lock(10)).await.unwrap();
    let second = served.lock(11);
    served.queued("lock", 2).await;
    let third = served.lock(12);
    served.queued("lock", 3).await;
    second.abort();
    served.queued("lock", 2).await;
    served.locks().unlock(UnlockRequest { key: first.key }).await.unwrap();
    assert_eq!(done(third).await.unwrap().key, "lock/c");
    // It stays locked when the one who holds it goes.
    served.queued("lock", 1).await;
}

#[tokio::test]
async fn a_lock_ends_with_its_lease() {
    let served = Served::start().await;
    served.lease(10, 2).await;
    served.lease(11, 60).await;
    served.lease(12, 60).await;
    done(served.lock(10)).await.unwrap();
    let next = served.lock(11);
    // The lease of the one that holds it runs out.
    assert_eq!(done(next).await.unwrap().key, "lock/b");
    // The lease of one that waits is revoked: it gets no lock when its turn comes.
    let late = served.lock(12);
    served.queued("lock", 2).await;
    served.leases().lease_revoke(pb::LeaseRevokeRequest { id: 12 }).await.unwrap();
    served.locks().unlock(UnlockRequest { key: "lock/b".into() }).await.unwrap();
    assert_eq!(error(done(late).await), (Code::Unknown, "mutex: session is expired".to_owned()));
    let no_lease = (Code::Unknown, "etcdserver: requested lease not found".to_owned());
    assert_eq!(error(done(served.lock(12)).await), no_lease);
    // Without a lease a new one of a minute is taken.
    let key = done(served.lock(0)).await.unwrap().key;
    let lease = i64::from_str_radix(std::str::from_utf8(&key).unwrap().strip_prefix("lock/").unwrap(), 16).unwrap();
    let left = served.leases().lease_time_to_live(pb::LeaseTimeToLiveRequest { id: lease, keys: true }).await.unwrap();
    let left = left.into_inner();
    assert_eq!((left.granted_ttl, &left.keys[..]), (60, &[key][..]));
}

#[tokio::test]
async fn an_election_has_one_leader_after_the_other_and_all_see_it() {
    let served = Served::start().await;
    let mut elections = served.elections();
    let name = bytes::Bytes::from_static(b"e");
    let asks = || LeaderRequest { name: "e".into() };
    let nobody = (Code::Unknown, "election: no leader".to_owned());
    assert_eq!(error(elections.leader(asks()).await), nobody);
    let mut seen = {
        let mut observer = served.elections();
        tokio::spawn(async move { observer.observe(asks()).await.unwrap().into_inner() }).await.unwrap()
    };
    for lease in [10, 11] {
        served.lease(lease, 60).await;
    }
    let stand = |lease, value: &'static str| CampaignRequest { name: "e".into(), lease, value: value.into() };
    let first = elections.campaign(stand(10, "a")).await.unwrap().into_inner().leader.unwrap();
    assert_eq!(first, LeaderKey { name, key: "e/a".into(), rev: 2, lease: 10 });
    let mut rival = served.elections();
    let second = tokio::spawn(async move { rival.campaign(stand(11, "b")).await });
    served.queued("e", 2).await;
    // Who stands again with another value says it.
    let again = elections.campaign(stand(10, "c")).await.unwrap().into_inner().leader.unwrap();
    assert_eq!(again, first);
    let says = |leader: Option<LeaderKey>, value: &'static str| ProclaimRequest { leader, value: value.into() };
    elections.proclaim(says(Some(first.clone()), "d")).await.unwrap();
    let led = elections.leader(asks()).await.unwrap().into_inner().kv.unwrap();
    assert_eq!((&led.key[..], &led.value[..]), (&b"e/a"[..], &b"d"[..]));
    sleep(WHILE).await;
    assert!(!second.is_finished());
    elections.resign(ResignRequest { leader: Some(first.clone()) }).await.unwrap();
    let second = timeout(PATIENCE, second).await.unwrap().unwrap().unwrap().into_inner().leader.unwrap();
    assert_eq!(&second.key[..], b"e/b");
    let not_leader = (Code::Unknown, "election: not leader".to_owned());
    assert_eq!(error(elections.proclaim(says(Some(first), "x")).await), not_leader);
    let missing = (Code::Unknown, "\"leader\" field must be provided".to_owned());
    assert_eq!(error(elections.proclaim(says(None, "x")).await), missing);
    assert_eq!(error(elections.resign(ResignRequest { leader: None }).await), missing);
    let mut values = vec![];
    while values.last().is_none_or(|value| value != "b") {
        let told = timeout(PATIENCE, seen.message()).await.expect("a leader is seen").unwrap().unwrap();
        values.push(String::from_utf8(told.kv.unwrap().value.to_vec()).unwrap());
    }
    // The first may have been written over before it was looked at.
    assert!(["a", "c", "d", "b"].ends_with(&values.iter().map(String::as_str).collect::<Vec<_>>()), "{values:?}");
}

#[tokio::test]
async fn who_waits_is_told_of_the_stop_and_who_goes_away_stands_no_more() {
    let served = Served::start().await;
    served.lease(10, 60).await;
    served.lease(11, 60).await;
    let stand = |lease| CampaignRequest { name: "e".into(), lease, value: "v".into() };
    served.elections().campaign(stand(10)).await.unwrap();
    let mut rival = served.elections();
    let waiting = tokio::spawn(async move { rival.campaign(stand(11)).await });
    served.queued("e", 2).await;
    waiting.abort();
    served.queued("e", 1).await;
    done(served.lock(10)).await.unwrap();
    let late = served.lock(11);
    served.queued("lock", 2).await;
    served.stop.cancel();
    assert_eq!(error(done(late).await), (Code::Unavailable, "etcdserver: server stopped".to_owned()));
}
