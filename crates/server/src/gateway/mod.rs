//! The JSON gateway: etcd's API as `POST /v3/...`, for those who have no gRPC.
//!
//! It holds nothing of the API itself. A request is translated into the gRPC call that it stands for, which goes the way of
//! every call: the same service, limits and counters. The answer is translated back. What is read and written, and with
//! which codes, is what etcd's gateway does (grpc-gateway 2.29 with the options of etcd 3.7.3).

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tokio::time::timeout;
use tonic::{Code, Status};

use self::answers::Lines;
use self::frames::{Unframed, frame};
use self::requests::Requests;
pub use self::routes::Rpc;
use self::statuses::{fails, http_status, too_late};
use crate::grpc::{Grpc, GrpcBody};

mod answers;
mod frames;
mod json;
mod metadata;
mod objects;
mod once;
mod requests;
mod routes;
mod statuses;

/// How much longer than the message a request may be, as a factor: base64 takes a third, the names of fields their part.
const JSON_OVERHEAD: usize = 2;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The gateway.
#[derive(Clone)]
pub struct Gateway {
    grpc: Grpc,
    /// The longest JSON of one message, bytes.
    limit: usize,
}

impl Gateway {
    /// A gateway to what answers gRPC, whose messages are at most this long.
    pub fn new(grpc: Grpc, max_message_bytes: usize) -> Self {
        Self { grpc, limit: max_message_bytes.saturating_mul(JSON_OVERHEAD) }
    }

    /// Whether a path is the gateway's.
    pub fn has(path: &str) -> bool {
        path.starts_with("/v3/") || path.starts_with("/v3beta/")
    }

    /// The call that a request is for.
    ///
    /// # Errors
    /// The answer, when there is no such call.
    pub fn find(method: &Method, path: &str) -> Result<Rpc, Box<Response<GatewayBody>>> {
        match routes::find(path) {
            Some(rpc) if method == Method::POST => Ok(rpc),
            Some(_) => Err(Box::new(failure(&Status::unimplemented("Method Not Allowed")))),
            None => Err(Box::new(failure(&Status::not_found("Not Found")))),
        }
    }

    /// Answers a request for that call.
    pub async fn call<B>(&self, rpc: Rpc, request: Request<B>, remote: Option<SocketAddr>) -> Response<GatewayBody>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let (head, body) = request.into_parts();
        let limit = match metadata::timeout(&head) {
            Ok(limit) => limit,
            Err(status) => return failure(&status),
        };
        let answer = match limit {
            _ if rpc.many_out => self.stream(rpc, head, body, remote, limit).await,
            Some(limit) => {
                timeout(limit, self.unary(rpc, head, body, remote)).await.unwrap_or_else(|_| Err(too_late()))
            }
            None => self.unary(rpc, head, body, remote).await,
        };
        answer.unwrap_or_else(|status| failure(&status))
    }

    /// The gRPC request for a call.
    fn request<T>(rpc: &Rpc, head: &Parts, remote: Option<SocketAddr>, body: T) -> Request<T> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = http::Uri::from_static(rpc.path);
        *request.headers_mut() = metadata::of_request(head, remote);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        request
    }

    async fn unary<B>(
        &self,
        rpc: Rpc,
        head: Parts,
        mut body: B,
        remote: Option<SocketAddr>,
    ) -> Result<Response<GatewayBody>, Status>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let message = requests::single(&rpc.input, &mut body, self.limit).await?;
        let request = Self::request(&rpc, &head, remote, Full::new(frame(&message)));
        let (answer, body) = self.grpc.call(request, remote).await.into_parts();
        fails(&answer.headers)?;
        let collected = body.collect().await?;
        if let Some(trailers) = collected.trailers() {
            fails(trailers)?;
        }
        let mut messages = Unframed::default();
        messages.push(&collected.to_bytes());
        let message = messages.next()?.ok_or_else(|| Status::internal("an answer without a message"))?;
        let mut response = Response::new(GatewayBody::Whole(Full::new(json::write(&rpc.output, message)?)));
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        metadata::to_response(&answer.headers, response.headers_mut());
        Ok(response)
    }

    async fn stream<B>(
        &self,
        rpc: Rpc,
        head: Parts,
        mut body: B,
        remote: Option<SocketAddr>,
        limit: Option<Duration>,
    ) -> Result<Response<GatewayBody>, Status>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let answer = if rpc.many_in {
            let requests = Requests::new(rpc.input.clone(), body, self.limit);
            self.grpc.call(Self::request(&rpc, &head, remote, requests), remote).await
        } else {
            let message = requests::single(&rpc.input, &mut body, self.limit).await?;
            self.grpc.call(Self::request(&rpc, &head, remote, Full::new(frame(&message))), remote).await
        };
        let (answer, body) = answer.into_parts();
        let mut lines = Lines::new(rpc.output, body, limit);
        if let Err(status) = fails(&answer.headers) {
            lines.fail(&status);
        }
        // The head waits for the first line, since a stream that fails before it has another one.
        let failed = lines.first().await;
        let is_empty = lines.is_empty();
        let mut response = Response::new(GatewayBody::Lines(Box::new(lines)));
        if let Some(code) = failed {
            *response.status_mut() = http_status(code);
        }
        if !is_empty {
            response.headers_mut().insert(CONTENT_TYPE, JSON);
        }
        if !is_empty && failed.is_none() {
            metadata::to_response(&answer.headers, response.headers_mut());
        }
        Ok(response)
    }
}

/// The answer to a call that failed before anything was answered.
fn failure(status: &Status) -> Response<GatewayBody> {
    let mut response = Response::new(GatewayBody::Whole(Full::new(json::error(status))));
    *response.status_mut() = http_status(status.code());
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    if status.code() == Code::Unauthenticated
        && let Ok(text) = HeaderValue::from_str(status.message())
    {
        response.headers_mut().insert(WWW_AUTHENTICATE, text);
    }
    response
}

/// The body of an answer.
pub enum GatewayBody {
    /// Of a call with one answer, or that failed.
    Whole(Full<Bytes>),
    /// Of a stream.
    Lines(Box<Lines<GrpcBody>>),
}

impl Body for GatewayBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut *self {
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Lines(lines) => lines.poll_line(cx).map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Lines(lines) => lines.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Lines(_) => SizeHint::default(),
        }
    }
}
