//! Exact counters per RPC, and streams that end when the process stops.

use std::pin::Pin;

use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_server::{Watch, WatchServer};
use eddy_proto::etcdserverpb::{WatchRequest, WatchResponse};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::support::{ANY_PORT, Options, PATIENCE, Server, eventually};

/// Answers every request with its number, and ends well when its client does.
struct Echo;

#[tonic::async_trait]
impl Watch for Echo {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let answers = request.into_inner().enumerate().map(|(number, request)| {
            request.map(|_| WatchResponse { watch_id: i64::try_from(number).unwrap_or(0), ..Default::default() })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

async fn watch(server: &Server) -> (mpsc::Sender<WatchRequest>, Streaming<WatchResponse>) {
    let mut client = WatchClient::connect(format!("http://{}", server.grpc[0])).await.unwrap();
    let (send, requests) = mpsc::channel(16);
    // The answer's headers come with its first message.
    send.send(WatchRequest::default()).await.unwrap();
    let answers = client.watch(ReceiverStream::new(requests)).await.unwrap().into_inner();
    (send, answers)
}

async fn start() -> Server {
    let options = Options { routes: Routes::new(WatchServer::new(Echo)), ..Options::default() };
    Server::with(ANY_PORT, options).await
}

fn line(server: &Server, metric: &str) -> bool {
    String::from_utf8(server.metrics.text().unwrap()).unwrap().lines().any(|line| line == metric)
}

const LABELS: &str = r#"grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream""#;

#[tokio::test]
async fn calls_and_messages_are_counted_exactly() {
    let server = start().await;
    assert!(line(&server, &format!("grpc_server_handled_total{{grpc_code=\"Canceled\",{LABELS}}} 0")));
    for _ in 0..3 {
        let (send, mut answers) = watch(&server).await;
        for number in 0..5 {
            assert_eq!(answers.message().await.unwrap().unwrap().watch_id, number);
            send.send(WatchRequest::default()).await.unwrap();
        }
        drop(send);
        while answers.message().await.unwrap().is_some() {}
    }
    for _ in 0..2 {
        let (_send, mut answers) = watch(&server).await;
        answers.message().await.unwrap().unwrap();
    }
    for metric in [
        format!("grpc_server_started_total{{{LABELS}}} 5"),
        format!("grpc_server_msg_received_total{{{LABELS}}} 20"),
        format!("grpc_server_msg_sent_total{{{LABELS}}} 20"),
        format!("grpc_server_handled_total{{grpc_code=\"OK\",{LABELS}}} 3"),
        format!("grpc_server_handled_total{{grpc_code=\"Canceled\",{LABELS}}} 2"),
        "etcd_server_client_requests_total{client_api_version=\"unknown\",type=\"stream\"} 5".to_owned(),
    ] {
        eventually(&metric, || line(&server, &metric)).await;
    }
}

#[tokio::test]
async fn open_streams_do_not_hold_up_the_end() {
    let server = start().await;
    let (_send, mut answers) = watch(&server).await;
    answers.message().await.unwrap().unwrap();
    eddy_server::run::drain(&server.stop, server.tracker.clone()).await;
    let status = tokio::time::timeout(PATIENCE, answers.message()).await.unwrap().unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: server stopped"));
    // Ended in order: what does not end in time is dropped and stays in the tracker.
    assert!(server.tracker.is_empty());
}

#[tokio::test]
async fn unknown_services_and_methods_are_named() {
    let server = start().await;
    let channel = tonic::transport::Endpoint::new(format!("http://{}", server.grpc[0])).unwrap().connect_lazy();
    for (path, message) in [
        ("/etcdserverpb.KV/Fly", "unknown method Fly for service etcdserverpb.KV"),
        ("/foo.Bar/Baz", "unknown service foo.Bar"),
        ("/etcdserverpb.KV/Put", "eddy: this RPC of etcd is not built yet"),
    ] {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<WatchRequest, WatchResponse>::default();
        let path = path.parse().unwrap();
        let status = client.unary(Request::new(WatchRequest::default()), path, codec).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unimplemented, message));
    }
}
