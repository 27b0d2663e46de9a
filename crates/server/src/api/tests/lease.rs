//! Leases from their grant to their end.

use bytes::Bytes;
use eddy_proto::etcdserverpb as pb;
use futures::{TryStreamExt, stream};
use tonic::Code;

use super::{Served, error, header};

#[tokio::test]
async fn leases_live_and_end() {
    let served = Served::start().await;
    let mut leases = served.leases();
    let grant = |id, ttl| pb::LeaseGrantRequest { id, ttl };
    let granted = leases.lease_grant(grant(7, 60)).await.unwrap().into_inner();
    assert_eq!((granted.header, granted.id, granted.ttl), (header(1), 7, 60));
    let exists = (Code::FailedPrecondition, "etcdserver: lease already exists".to_owned());
    assert_eq!(error(leases.lease_grant(grant(7, 60)).await), exists);
    let too_long = (Code::OutOfRange, "etcdserver: too large lease TTL".to_owned());
    assert_eq!(error(leases.lease_grant(grant(8, 9_000_000_001)).await), too_long);
    let drawn = leases.lease_grant(grant(0, 600)).await.unwrap().into_inner().id;
    assert!(drawn > 0);

    let leased = pb::PutRequest { key: "k".into(), lease: 7, ..Default::default() };
    served.kv().put(leased).await.unwrap();
    let ask = |id, keys| pb::LeaseTimeToLiveRequest { id, keys };
    let left = leases.lease_time_to_live(ask(7, true)).await.unwrap().into_inner();
    assert_eq!((left.header, left.granted_ttl, &left.keys[..]), (header(2), 60, &[Bytes::from("k")][..]));
    assert!((57..=59).contains(&left.ttl), "{left:?}");
    assert!(leases.lease_time_to_live(ask(7, false)).await.unwrap().into_inner().keys.is_empty());
    for unknown in [0, 99] {
        let left = leases.lease_time_to_live(ask(unknown, true)).await.unwrap().into_inner();
        let expected = pb::LeaseTimeToLiveResponse { header: header(2), id: unknown, ttl: -1, ..Default::default() };
        assert_eq!(left, expected);
    }
    let all = leases.lease_leases(pb::LeaseLeasesRequest {}).await.unwrap().into_inner();
    assert_eq!(all.leases, [7, drawn].map(|id| pb::LeaseStatus { id }), "the one with less time left first");

    let ids = [7, 99, 0, drawn].map(|id| pb::LeaseKeepAliveRequest { id });
    let renewed = leases.lease_keep_alive(stream::iter(ids)).await.unwrap().into_inner();
    let renewed: Vec<_> = renewed.try_collect().await.unwrap();
    let expected = [(7, 60), (99, 0), (0, 0), (drawn, 600)].map(|(id, ttl)| pb::LeaseKeepAliveResponse {
        header: header(2),
        id,
        ttl,
    });
    assert_eq!(renewed, expected);

    let revoked = leases.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await.unwrap().into_inner();
    assert_eq!(revoked.header, header(3));
    assert_eq!(served.get("k").await.count, 0);
    for unknown in [7, 0] {
        let missing = (Code::NotFound, "etcdserver: requested lease not found".to_owned());
        assert_eq!(error(leases.lease_revoke(pb::LeaseRevokeRequest { id: unknown }).await), missing);
    }
}

/// The requests of etcd's TestSessionTTLOptions, often enough that some answer comes within the millisecond of its grant.
#[tokio::test]
async fn less_than_its_time_to_live_is_left_of_a_lease_at_once() {
    let served = Served::start().await;
    let mut leases = served.leases();
    for id in 1..=50 {
        leases.lease_grant(pb::LeaseGrantRequest { id, ttl: 90 }).await.unwrap();
        let left =
            leases.lease_time_to_live(pb::LeaseTimeToLiveRequest { id, keys: false }).await.unwrap().into_inner();
        assert_eq!(left.granted_ttl, 90);
        assert!((70..90).contains(&left.ttl), "{left:?}");
    }
}
