//! The messages of a request, out of its JSON.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use prost_reflect::MessageDescriptor;
use tokio::time::timeout;
use tonic::Status;

use super::frames::frame;
use super::json;
use super::objects::Objects;

/// How long the rest of a body is waited for that is not needed. A client that still sends may lose its answer otherwise.
const REST_WAIT: Duration = Duration::from_secs(1);

/// The one message of a request. An empty body stands for a message without fields; what follows the first object is ignored.
///
/// # Errors
/// When it is not such a message, or longer than the limit.
pub(super) async fn single<B>(kind: &MessageDescriptor, body: &mut B, limit: usize) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    let message = first(kind, body, limit).await;
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    if timeout(REST_WAIT, rest).await.is_err() {
        tracing::debug!("a client is slow to send a body that is not needed");
    }
    message
}

async fn first<B>(kind: &MessageDescriptor, body: &mut B, limit: usize) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut objects = Objects::new(limit);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(broken_off()) };
        if let Some(data) = frame.data_ref() {
            objects.push(data);
        }
        if let Some(object) = objects.next()? {
            return json::read(kind, &object);
        }
    }
    if objects.is_over() { Ok(Bytes::new()) } else { Err(incomplete()) }
}

fn broken_off() -> Status {
    // Not CANCELLED: of that tonic makes a stream that ended well, and a watch would go on for nobody.
    Status::aborted("the request was broken off")
}

fn incomplete() -> Status {
    Status::invalid_argument("unexpected EOF")
}

/// The messages of a request that sends many, as the body of its call.
pub(super) struct Requests<B> {
    kind: MessageDescriptor,
    /// `None` once it has ended.
    body: Option<B>,
    objects: Objects,
}

impl<B> Requests<B> {
    pub(super) fn new(kind: MessageDescriptor, body: B, limit: usize) -> Self {
        Self { kind, body: Some(body), objects: Objects::new(limit) }
    }

    fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(object) = self.objects.next()? else { return Ok(None) };
        json::read(&self.kind, &object).map(|message| Some(frame(&message)))
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Requests<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            match this.next() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Ok(None) => {}
                // etcd's gateway goes silent here; its client would wait for ever.
                Err(status) => {
                    this.body = None;
                    let status = Status::new(status.code(), format!("Failed to decode request: {}", status.message()));
                    return Poll::Ready(Some(Err(status)));
                }
            }
            let Some(body) = &mut this.body else { return Poll::Ready(None) };
            match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => this.objects.push(frame.data_ref().unwrap_or(&Bytes::new())),
                Some(Err(_)) => {
                    this.body = None;
                    return Poll::Ready(Some(Err(broken_off())));
                }
                None => {
                    this.body = None;
                    let over = this.objects.is_over();
                    return Poll::Ready((!over).then(|| Err(incomplete())));
                }
            }
        }
    }
}
