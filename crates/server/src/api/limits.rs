//! Limits on requests: the size of a gRPC message, the size of a write, and the steps of a transaction.

use std::convert::Infallible;
use std::task::{Context, Poll};

use eddy_crdt::ReplicaId;
use futures::TryFutureExt;
use futures::future::MapOk;
use http::{Request, Response};
use prost::Message;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use super::invalid::Invalid;
use super::status;

/// How much larger than the largest write a gRPC message may be, bytes.
const MESSAGE_OVERHEAD_BYTES: usize = 512 << 10;

/// RequestLimits on requests; the defaults are etcd's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLimits {
    /// Largest write, bytes, as etcd would put it into its log (`--max-request-bytes`).
    pub max_request_bytes: usize,
    /// Most compares of a transaction, and most steps of each of its branches (`--max-txn-ops`).
    pub max_txn_ops: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { max_request_bytes: 3 << 19, max_txn_ops: 128 }
    }
}

impl RequestLimits {
    /// Largest gRPC message, bytes.
    pub fn max_message_bytes(&self) -> usize {
        self.max_request_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES)
    }
}

/// Measures writes as etcd does.
#[derive(Clone, Copy, Debug)]
pub struct WriteLimit {
    max_bytes: usize,
    /// Bytes of the header that etcd's log adds to a request. It holds a request id.
    header_bytes: usize,
}

impl WriteLimit {
    /// The limit on the writes of this member.
    pub fn new(limits: &RequestLimits, member: ReplicaId) -> Self {
        // etcd's request ids begin with the low 16 bits of the member id; 48 bits of time and a count follow.
        let id_bits = 48 + (16 - (member.get() as u16).leading_zeros());
        let id_bytes = id_bits.div_ceil(7) as usize;
        // Tag and length of the header, tag of the id, and the id.
        Self { max_bytes: limits.max_request_bytes, header_bytes: 2 + 1 + 1 + id_bytes }
    }

    /// Admits a write.
    ///
    /// # Errors
    /// [`Invalid::TooLarge`] when it is larger than the limit.
    pub fn admit(&self, request: &impl Message) -> Result<(), Invalid> {
        let length = request.encoded_len();
        // All requests have a tag of one byte.
        if self.header_bytes + 1 + prost::length_delimiter_len(length) + length > self.max_bytes {
            return Err(Invalid::TooLarge);
        }
        Ok(())
    }
}

/// A service whose errors about the size of messages have etcd's texts.
#[derive(Clone, Debug)]
pub struct Worded<S>(pub S);

impl<S: NamedService> NamedService for Worded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for Worded<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = MapOk<S::Future, fn(Response<Body>) -> Response<Body>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.0.call(request).map_ok(reword_response)
    }
}

fn reword_response(response: Response<Body>) -> Response<Body> {
    // Only a response without messages has its status in the headers.
    if !response.headers().contains_key("grpc-status") {
        return response;
    }
    match Status::from_header_map(response.headers()) {
        Some(status) if matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted) => match reword(&status) {
            Some(reworded) => reworded.into_http(),
            None => response,
        },
        _ => response,
    }
}

/// Rewords a status about the size of a message; `None` for any other status.
pub fn reword(status: &Status) -> Option<Status> {
    let mut numbers = status.message().split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
    if status.message().starts_with("Error, decoded message length too large") {
        return Some(status::message_too_large(numbers.next()?, numbers.next()?));
    }
    if status.message().starts_with("Error decompressing: size limit") {
        return Some(status::inflated_message_too_large(numbers.next()?));
    }
    None
}

#[cfg(test)]
mod tests {
    use eddy_proto::etcdserverpb::PutRequest;

    use super::*;

    #[test]
    fn a_write_is_measured_with_what_etcd_adds() {
        for (member, overhead) in [(0x8000, 23), (0x7fff, 22), (0x0100, 22), (0x00ff, 21), (0, 20)] {
            let limit =
                WriteLimit::new(&RequestLimits { max_request_bytes: 10_000, max_txn_ops: 1 }, ReplicaId::new(member));
            let put =
                |value_bytes| PutRequest { key: "k".into(), value: vec![7; value_bytes].into(), ..Default::default() };
            // Within a put: tags, the key, its length of one byte and the value's of two. Around it: a length of two bytes.
            assert_eq!(put(9_000).encoded_len(), 9_000 + 6);
            let largest = 10_000 - overhead;
            let admitted = (9_900..10_000).rev().find(|bytes| limit.admit(&put(*bytes)).is_ok());
            assert_eq!(admitted, Some(largest), "member {member:x}");
        }
    }

    #[test]
    fn other_complaints_are_left_alone() {
        let text = |status: Status| reword(&status).map(|status| status.message().to_owned());
        assert_eq!(text(Status::out_of_range("etcdserver: mvcc: required revision has been compacted")), None);
        assert_eq!(
            text(Status::out_of_range(
                "Error, decoded message length too large: found 20 bytes, the limit is: 10 bytes"
            )),
            Some("grpc: received message larger than max (20 vs. 10)".to_owned())
        );
        assert_eq!(
            text(Status::resource_exhausted(
                "Error decompressing: size limit, of 10 bytes, exceeded while decompressing message"
            )),
            Some("grpc: received message after decompression larger than max 10".to_owned())
        );
    }
}
