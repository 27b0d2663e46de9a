//! One request, from its head to its answer: gRPC of clients or peers, JSON for the gateway, or plain HTTP.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::timeout;
use tower::Service;

use super::opening::Opening;
use super::setup::{Peer, Setup};
use crate::api::status;
use crate::auth::Claim;
use crate::gateway::{Gateway, GatewayBody};
use crate::grpc::GrpcBody;
use crate::http::{self as endpoints, HttpRequest, Surface};
use crate::peer::Caller;

/// How much of a body that is not needed is read, bytes. With a longer body the client may lose its answer.
const UNREAD_BODY_MAX: usize = 64 << 10;
/// How long a body that is not needed is waited for.
const UNREAD_BODY_WAIT: Duration = Duration::from_secs(1);

/// Answers one request.
pub(super) async fn answer(
    setup: Arc<Setup>,
    peer: Peer,
    mut request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let content = request.headers().get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let http2 = request.version() == http::Version::HTTP_2;
    let only_grpc = setup.http.is_none();
    let is_grpc = http2 && (only_grpc || content.starts_with(b"application/grpc"));
    if is_grpc && setup.grpc {
        if let Some(name) = &peer.common_name {
            request.extensions_mut().insert(name.clone());
        }
        return Ok(match setup.services.clients.get() {
            Some(clients) => clients.grpc.call(request, peer.address).await.map(ResponseBody::Grpc),
            None => status::not_joined().into_http().map(ResponseBody::Peer),
        });
    }
    if is_grpc && setup.http == Some(Surface::Peer) {
        return Ok(Box::pin(of_peer(setup, peer, request)).await.map(ResponseBody::Peer));
    }
    // Boxed: otherwise every call's task would have room for it, which is moved and paged in.
    Ok(Box::pin(plain(setup, peer, request)).await)
}

/// Answers the gRPC of a peer.
async fn of_peer(setup: Arc<Setup>, peer: Peer, mut request: Request<Incoming>) -> Response<tonic::body::Body> {
    request.extensions_mut().insert(Caller(peer.address));
    match setup.services.peers.clone().call(request.map(Opening::new)).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Answers what is not gRPC.
async fn plain(setup: Arc<Setup>, peer: Peer, request: Request<Incoming>) -> Response<ResponseBody> {
    let Some(surface) = setup.http else {
        return endpoints::error(StatusCode::NOT_FOUND, "404 page not found").map(ResponseBody::Full);
    };
    let (head, body) = request.into_parts();
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| head.uri.authority().map(|authority| authority.as_str())).unwrap_or("");
    let origin = head.headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let claim = Claim::of_http(&head.headers, peer.common_name.as_ref());
    let request = HttpRequest { method: &head.method, uri: &head.uri, host, origin, tls: peer.tls, claim };
    let Some(clients) = setup.services.clients.get() else {
        drain(body).await;
        let text = status::not_joined();
        return endpoints::error(StatusCode::SERVICE_UNAVAILABLE, text.message()).map(ResponseBody::Full);
    };
    if let Some(gateway) = &clients.gateway
        && surface == Surface::Client
        && Gateway::has(head.uri.path())
    {
        let refused = match clients.http.precheck(&request) {
            Some(response) => response.map(ResponseBody::Full),
            None => match Gateway::find(&head.method, head.uri.path()) {
                Ok(rpc) => {
                    let origin = origin.map(str::to_owned);
                    let response = gateway.call(rpc, Request::from_parts(head, body), peer.address).await;
                    return clients.http.shared(origin.as_deref(), response.map(ResponseBody::Gateway));
                }
                Err(response) => clients.http.shared(origin, response.map(ResponseBody::Gateway)),
            },
        };
        drain(body).await;
        return refused;
    }
    let response = clients.http.call(surface, request).await;
    drain(body).await;
    response.map(ResponseBody::Full)
}

/// Reads a body that is not needed. Dropping a body that is still on its way resets the HTTP/2 stream, and curl then drops
/// the answer.
async fn drain(mut body: Incoming) {
    let read = async {
        let mut left = UNREAD_BODY_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            left = match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(left) => left,
                None => break,
            };
        }
    };
    if timeout(UNREAD_BODY_WAIT, read).await.is_err() {
        tracing::debug!("a client is slow to send a body that is not needed");
    }
}

/// The body of a response, by the service that gave it.
pub(super) enum ResponseBody {
    Grpc(GrpcBody),
    Peer(tonic::body::Body),
    Full(Full<Bytes>),
    Gateway(GatewayBody),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        match &mut *self {
            ResponseBody::Grpc(body) => Pin::new(body).poll_frame(cx),
            ResponseBody::Peer(body) => Pin::new(body).poll_frame(cx),
            ResponseBody::Full(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            ResponseBody::Gateway(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Grpc(body) => body.is_end_stream(),
            ResponseBody::Peer(body) => body.is_end_stream(),
            ResponseBody::Full(body) => body.is_end_stream(),
            ResponseBody::Gateway(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Grpc(body) => body.size_hint(),
            ResponseBody::Peer(body) => body.size_hint(),
            ResponseBody::Full(body) => body.size_hint(),
            ResponseBody::Gateway(body) => body.size_hint(),
        }
    }
}
