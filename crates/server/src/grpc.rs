//! The gRPC side of a connection. It routes calls to the services, and counts calls and messages. It ends streams when
//! the process stops, and answers calls to RPCs that do not exist.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::Service;

use crate::api::{MountedKv, status};
use crate::metrics::Metrics;
use crate::metrics::rpc::{Method, MethodId, Shape};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The answer to a call of an RPC that etcd has and no mounted service answers.
const NOT_BUILT: &str = "eddy: this RPC of etcd is not built yet";

/// The paths of the KV service.
const KV_PREFIX: &str = "/etcdserverpb.KV/";

/// Everything that answers gRPC requests.
#[derive(Clone)]
pub struct Grpc {
    routes: Routes,
    kv: Option<MountedKv>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    slow: Duration,
}

impl Grpc {
    /// Serves `routes`; when `stop` is cancelled, streaming calls end with UNAVAILABLE.
    pub fn new(routes: Routes, metrics: Arc<Metrics>, stop: CancellationToken) -> Grpc {
        Grpc { routes: routes.prepare(), kv: None, metrics, stop, slow: Duration::MAX }
    }

    /// Reaches the KV service without a look-up among the routes, since nearly all calls are for it.
    #[must_use]
    pub fn directly(self, kv: Option<MountedKv>) -> Grpc {
        Grpc { kv, ..self }
    }

    /// Logs unary calls that take longer than this, as etcd does (`--warning-unary-request-duration`).
    #[must_use]
    pub fn warn_after(self, slow: Duration) -> Grpc {
        Grpc { slow, ..self }
    }

    /// Answers one request from that address.
    pub async fn call<B>(&self, request: Request<B>, remote: Option<SocketAddr>) -> Response<GrpcBody>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError> + Send,
    {
        let path = request.uri().path();
        let Some(id) = self.metrics.rpc.find(path) else {
            return no_such_rpc(&self.metrics, path).map(|body| GrpcBody { body, counted: None, end: None });
        };
        let mut call = Call::start(&self.metrics, id, request.headers(), remote, self.slow);
        let streaming = call.method().shape != Shape::Unary;
        let request =
            request.map(|body| RequestBody { body, frames: Frames::default(), metrics: self.metrics.clone(), id });
        let answered = match &self.kv {
            Some(kv) if request.uri().path().starts_with(KV_PREFIX) => kv.clone().call(request).await,
            _ => self.routes.clone().call(request).await,
        };
        let mut response = match answered {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if let Some(code) = status_of(response.headers()) {
            // The status is in the headers, so no message follows.
            call.end(code);
            if code == Code::Unimplemented && !response.headers().contains_key("grpc-message") {
                response.headers_mut().insert("grpc-message", HeaderValue::from_static(NOT_BUILT));
            }
        }
        // A child token: thousands of watches that poll the same token would wait for each other.
        let end = streaming.then(|| Box::pin(self.stop.child_token().cancelled_owned()));
        response.map(|body| GrpcBody { body, counted: Some((call, Frames::default())), end })
    }
}

fn no_such_rpc(metrics: &Metrics, path: &str) -> Response<tonic::body::Body> {
    // grpc-go's texts.
    let status = match path.strip_prefix('/').and_then(|path| path.rsplit_once('/')) {
        Some((service, method)) if metrics.rpc.has_service(service) => {
            Status::unimplemented(format!("unknown method {method} for service {service}"))
        }
        Some((service, _)) => Status::unimplemented(format!("unknown service {service}")),
        None => Status::unimplemented(format!("malformed method name: {path:?}")),
    };
    status.into_http()
}

fn status_of(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}

/// The counting of one call. A call ends once: with its status or, if it is dropped without one, as cancelled by its
/// client.
struct Call {
    metrics: Arc<Metrics>,
    id: MethodId,
    ended: bool,
    started: Instant,
    remote: Option<SocketAddr>,
    slow: Duration,
}

impl Call {
    fn start(
        metrics: &Arc<Metrics>,
        id: MethodId,
        headers: &HeaderMap,
        remote: Option<SocketAddr>,
        slow: Duration,
    ) -> Call {
        let method = metrics.rpc.method(id);
        method.started.inc();
        let version = headers.get("client-api-version").map_or(&b"unknown"[..], HeaderValue::as_bytes);
        metrics.rpc.count_client(method.shape, version);
        Call { metrics: metrics.clone(), id, ended: false, started: Instant::now(), remote, slow }
    }

    fn method(&self) -> &Method {
        self.metrics.rpc.method(self.id)
    }

    fn end(&mut self, code: Code) {
        if self.ended {
            return;
        }
        self.ended = true;
        let method = self.method();
        method.handled(code);
        let took = self.started.elapsed();
        if let Some(histogram) = &method.handling {
            histogram.observe(took.as_secs_f64());
        }
        if took > self.slow && method.shape == Shape::Unary {
            let remote = self.remote.map_or_else(|| "unix".to_owned(), |address| address.to_string());
            tracing::warn!("time spent" = ?took, remote, "response type" = method.path, code = ?code, "request stats");
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

/// Finds the messages in a stream of bytes: each has a flag byte and four bytes of length before it.
#[derive(Default)]
struct Frames {
    /// Bytes of the current message still to come.
    body_left: usize,
    head: [u8; 5],
    head_len: usize,
}

impl Frames {
    /// Takes the next bytes, and returns how many messages end in them.
    fn count(&mut self, mut bytes: &[u8]) -> u64 {
        let mut messages = 0;
        while !bytes.is_empty() {
            if self.body_left > 0 {
                let taken = self.body_left.min(bytes.len());
                self.body_left -= taken;
                bytes.advance(taken);
                messages += u64::from(self.body_left == 0);
                continue;
            }
            let taken = (5 - self.head_len).min(bytes.len());
            self.head[self.head_len..self.head_len + taken].copy_from_slice(&bytes[..taken]);
            self.head_len += taken;
            bytes.advance(taken);
            if self.head_len == 5 {
                self.head_len = 0;
                let [_, length @ ..] = self.head;
                self.body_left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                messages += u64::from(self.body_left == 0);
            }
        }
        messages
    }
}

struct RequestBody<B> {
    body: B,
    frames: Frames,
    metrics: Arc<Metrics>,
    id: MethodId,
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let messages = this.frames.count(data);
            this.metrics.rpc.method(this.id).received.inc_by(messages);
            this.metrics.client_grpc_received_bytes.inc_by(data.len() as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response on its way out, counted.
pub struct GrpcBody {
    body: tonic::body::Body,
    counted: Option<(Call, Frames)>,
    /// For streams: completes when the process stops, which a watch would otherwise delay for ever.
    end: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(end) = &mut this.end
            && end.as_mut().poll(cx).is_ready()
        {
            this.end = None;
            this.body = tonic::body::Body::empty();
            if let Some((mut call, _)) = this.counted.take() {
                call.end(Code::Unavailable);
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("14"));
                trailers.insert("grpc-message", HeaderValue::from_static(status::STOPPED));
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let (Some(Ok(frame)), Some((call, frames))) = (&frame, &mut this.counted) {
            if let Some(data) = frame.data_ref() {
                call.method().sent.inc_by(frames.count(data));
                call.metrics.client_grpc_sent_bytes.inc_by(data.len() as u64);
            } else if let Some(code) = frame.trailers_ref().and_then(status_of) {
                call.end(code);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_however_they_are_cut() {
        let mut stream = Vec::new();
        for length in [0_u32, 1, 300, 0, 7] {
            stream.push(0);
            stream.extend(length.to_be_bytes());
            stream.extend(vec![7; length as usize]);
        }
        for piece in 1..=stream.len() {
            let mut frames = Frames::default();
            let messages: u64 = stream.chunks(piece).map(|bytes| frames.count(bytes)).sum();
            assert_eq!(messages, 5, "in pieces of {piece}");
        }
    }
}
