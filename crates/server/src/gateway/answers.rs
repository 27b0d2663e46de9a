//! The answers of a stream, each a line of JSON; a failure is the last one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use prost_reflect::MessageDescriptor;
use tokio::time::{Sleep, sleep};
use tonic::{Code, Status};

use super::frames::Unframed;
use super::json;
use super::statuses::{fails, too_late};

/// See the module.
pub struct Lines<B> {
    kind: MessageDescriptor,
    /// `None` once nothing more comes of it.
    body: Option<B>,
    messages: Unframed,
    /// A line that is ready.
    ready: Option<Bytes>,
    /// The code of a failure, which is the last line.
    failed: Option<Code>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Lines<B> {
    pub(super) fn new(kind: MessageDescriptor, body: B, limit: Option<Duration>) -> Self {
        let deadline = limit.map(|limit| Box::pin(sleep(limit)));
        Self { kind, body: Some(body), messages: Unframed::default(), ready: None, failed: None, deadline }
    }

    /// Ends the stream with a failure.
    pub(super) fn fail(&mut self, status: &Status) {
        self.body = None;
        self.failed = Some(status.code());
        self.ready = Some(json::error_line(status));
    }

    /// Waits for the first line. Returns the code, if it is a failure.
    pub(super) async fn first(&mut self) -> Option<Code> {
        if self.ready.is_none() {
            self.ready = std::future::poll_fn(|cx| self.poll_line(cx)).await;
        }
        self.failed
    }

    /// Whether no line is there, and none will come.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_none() && self.body.is_none()
    }

    /// The next line; `None` at the end.
    pub(super) fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(line) = self.ready.take() {
                return Poll::Ready(Some(line));
            }
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            if let Some(deadline) = &mut self.deadline
                && deadline.as_mut().poll(cx).is_ready()
            {
                self.fail(&too_late());
                continue;
            }
            match self
                .messages
                .next()
                .and_then(|message| message.map(|message| json::line(&self.kind, message)).transpose())
            {
                Ok(Some(line)) => {
                    self.ready = Some(line);
                    continue;
                }
                Ok(None) => {}
                Err(status) => {
                    self.fail(&status);
                    continue;
                }
            }
            match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.messages.push(data);
                    } else if let Some(Err(status)) = frame.trailers_ref().map(fails) {
                        self.fail(&status);
                    }
                }
                Some(Err(status)) => self.fail(&status),
                None => self.body = None,
            }
        }
    }
}
