//! Watches over gRPC.

use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion as WatchUnion;

use super::{Served, header};

/// The requests of etcd's TestV3WatchProgressWaitsForSync.
#[tokio::test]
async fn what_a_watch_catches_up_with_comes_with_the_revision_of_the_store() {
    const COUNT: i64 = 1001;
    let served = Served::start().await;
    for n in 0..COUNT {
        served.put("foo", n.to_string()).await.unwrap();
    }
    let create = pb::WatchCreateRequest { key: "foo".into(), start_revision: 1, ..Default::default() };
    let progress = pb::WatchProgressRequest {};
    let request = |union| pb::WatchRequest { request_union: Some(union) };
    let (requests, outgoing) = tokio::sync::mpsc::channel(4);
    requests.send(request(WatchUnion::CreateRequest(create))).await.unwrap();
    requests.send(request(WatchUnion::ProgressRequest(progress))).await.unwrap();
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let mut answers = WatchClient::new(served.channel.clone()).watch(outgoing).await.unwrap().into_inner();
    let mut next = async || answers.message().await.unwrap().unwrap();
    assert!(next().await.created);
    let (mut events, mut responses) = (0, 0);
    while events < COUNT {
        let response = next().await;
        assert_eq!(response.header, header(COUNT + 1), "after {events} events");
        assert!(!response.events.is_empty(), "progress before the watch has caught up");
        events += response.events.len() as i64;
        responses += 1;
    }
    assert!(responses > 1, "one response tells nothing of those that have more to follow");
    requests.send(request(WatchUnion::ProgressRequest(progress))).await.unwrap();
    let told = next().await;
    assert_eq!((told.header, told.events.len()), (header(COUNT + 1), 0));
}
