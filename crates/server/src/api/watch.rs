//! The Watch service: many watchers on one gRPC stream.
//!
//! A stream is one future that its connection polls when it can send. Requests are read and events are fetched only then,
//! so a client that does not read delays only itself.

use std::collections::{HashMap, VecDeque};

use eddy_crdt::{EventKind, KeyRange, KeyValue, LeaseId, Revision};
use eddy_proto::etcdserverpb::watch_create_request::FilterType;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::watch_server::Watch;
use eddy_proto::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse};
use eddy_proto::mvccpb;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::encoded_len_varint;
use tonic::{Request, Response, Status, Streaming};

use super::status;
use crate::auth::{Access, Claim};
use crate::node::Handle;
use crate::node::hub::{Filters, SharedEvent};
use crate::node::watch::{WatchItem, WatchSpec, WatchStream, is_create};

/// On the wire, the id that stands for no watcher, or for all watchers of a stream.
const NO_WATCHER: i64 = -1;

/// How much larger than the largest request a message may be, bytes, as in etcd.
const OVERHEAD_BYTES: usize = 512 << 10;

/// The service.
#[derive(Clone, Debug)]
pub struct WatchService {
    node: Handle,
    header: ResponseHeader,
    fragment_bytes: usize,
    access: Access,
}

impl WatchService {
    /// Serves the node. `header` is common to all response headers. A response that is larger than the largest request by
    /// etcd's overhead is split into fragments.
    pub fn new(node: Handle, access: Access, header: ResponseHeader, max_request_bytes: usize) -> Self {
        Self { node, header, fragment_bytes: max_request_bytes.saturating_add(OVERHEAD_BYTES), access }
    }

    /// Serves one stream of requests of that client.
    pub fn serve<S>(
        &self,
        claim: Claim,
        requests: S,
    ) -> impl Stream<Item = Result<WatchResponse, Status>> + Send + use<S>
    where
        S: Stream<Item = Result<WatchRequest, Status>> + Send + Unpin + 'static,
    {
        let call = WatchCall {
            requests: Some(requests),
            stream: self.node.watch_stream(),
            shapes: HashMap::new(),
            out: VecDeque::new(),
            header: self.header,
            fragment_bytes: self.fragment_bytes,
            access: self.access.clone(),
            claim,
        };
        futures::stream::unfold(Some(call), |call| async {
            let mut call = call?;
            match call.next().await {
                Ok(response) => Some((Ok(response), Some(call))),
                Err(status) => Some((Err(status), None)),
            }
        })
    }
}

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = BoxStream<'static, Result<WatchResponse, Status>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let claim = Claim::in_request(&request);
        Ok(Response::new(self.serve(claim, request.into_inner()).boxed()))
    }
}

/// How a watcher's events are written.
#[derive(Clone, Copy, Debug)]
struct Shape {
    prev_kv: bool,
    fragment: bool,
}

struct WatchCall<S> {
    /// `None` once the client has closed its half of the stream; events go on.
    requests: Option<S>,
    stream: WatchStream,
    shapes: HashMap<i64, Shape>,
    out: VecDeque<WatchResponse>,
    header: ResponseHeader,
    fragment_bytes: usize,
    access: Access,
    claim: Claim,
}

impl<S: Stream<Item = Result<WatchRequest, Status>> + Unpin> WatchCall<S> {
    async fn next(&mut self) -> Result<WatchResponse, Status> {
        loop {
            if let Some(response) = self.out.pop_front() {
                return Ok(response);
            }
            let request = async {
                match &mut self.requests {
                    Some(requests) => requests.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                request = request => match request {
                    Some(request) => self.request(request?),
                    None => self.requests = None,
                },
                item = self.stream.next() => match item {
                    Some(item) => self.item(item),
                    None => return Err(status::stopped()),
                },
            }
        }
    }

    fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: revision.get(), ..self.header })
    }

    fn response(&self, watch_id: i64, revision: Revision) -> WatchResponse {
        WatchResponse { header: self.header(revision), watch_id, ..WatchResponse::default() }
    }

    fn request(&mut self, request: WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create),
            Some(RequestUnion::CancelRequest(cancel)) => {
                if self.stream.cancel(cancel.watch_id) {
                    self.shapes.remove(&cancel.watch_id);
                    let response = self.response(cancel.watch_id, self.stream.revision());
                    self.out.push_back(WatchResponse { canceled: true, ..response });
                }
            }
            Some(RequestUnion::ProgressRequest(_)) => self.stream.request_progress(),
            None => tracing::debug!("a watch request of a kind that is not known"),
        }
    }

    fn create(&mut self, request: WatchCreateRequest) {
        let shape = Shape { prev_kv: request.prev_kv, fragment: request.fragment };
        let denied = self.denied(&request);
        let refusal = match spec(request) {
            None => None,
            Some(_) if denied.is_some() => return self.refuse(denied.unwrap_or_default()),
            Some(spec) => match self.stream.create(spec) {
                Ok(id) => {
                    self.shapes.insert(id, shape);
                    let response = self.response(id, self.stream.revision());
                    self.out.push_back(WatchResponse { created: true, ..response });
                    return;
                }
                Err(refusal) => Some(refusal),
            },
        };
        self.refuse(status::cancel_reason(refusal).to_owned());
    }

    /// Why the client may not watch that; `None` when it may. A token may have ended since the stream began.
    fn denied(&self, request: &WatchCreateRequest) -> Option<String> {
        let key = if request.key.is_empty() { &[0][..] } else { &request.key };
        let caller = self.access.claimed(&self.claim);
        let judged = caller.and_then(|caller| Ok(caller.reads(key, &request.range_end)?));
        judged.err().map(|error| status::watch_denied(&error))
    }

    fn refuse(&mut self, cancel_reason: String) {
        let response = self.response(NO_WATCHER, self.stream.revision());
        self.out.push_back(WatchResponse { created: true, canceled: true, cancel_reason, ..response });
    }

    fn item(&mut self, item: WatchItem) {
        match item {
            WatchItem::Events { watch_id, revision, events } => {
                let Some(shape) = self.shapes.get(&watch_id).copied() else { return };
                let events = events.iter().map(|event| wire_event(event, shape.prev_kv)).collect();
                let response = WatchResponse { events, ..self.response(watch_id, revision) };
                if shape.fragment {
                    fragment(response, self.fragment_bytes, &mut self.out);
                } else {
                    self.out.push_back(response);
                }
            }
            WatchItem::Compacted { watch_id, compact_revision } => {
                // etcd leaves the revision of this header empty.
                let response = self.response(watch_id, Revision::new(0));
                self.out.push_back(WatchResponse {
                    canceled: true,
                    compact_revision: compact_revision.get(),
                    ..response
                });
            }
            WatchItem::Progress { watch_id, revision } => {
                self.out.push_back(self.response(watch_id.unwrap_or(NO_WATCHER), revision));
            }
        }
    }
}

/// Decodes a request; `None` for a negative revision, which is before all history.
fn spec(request: WatchCreateRequest) -> Option<WatchSpec> {
    if request.start_revision < 0 {
        return None;
    }
    let has = |filter| request.filters.contains(&(filter as i32));
    let filters = Filters { no_put: has(FilterType::Noput), no_delete: has(FilterType::Nodelete) };
    // No key stands for the smallest one.
    let key = if request.key.is_empty() { Bytes::from_static(&[0]) } else { request.key };
    Some(WatchSpec {
        id: (request.watch_id != 0).then_some(request.watch_id),
        range: KeyRange::from_wire(key, request.range_end),
        start: (request.start_revision != 0).then(|| Revision::new(request.start_revision)),
        filters,
        progress_notify: request.progress_notify,
    })
}

fn wire_key_value(kv: &KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key.clone(),
        create_revision: kv.create_revision.get(),
        mod_revision: kv.mod_revision.get(),
        version: kv.version,
        value: kv.value.clone(),
        lease: kv.lease.map_or(0, LeaseId::get),
    }
}

fn wire_event(event: &SharedEvent, prev_kv: bool) -> mvccpb::Event {
    let (kind, kv) = match &event.kind {
        EventKind::Put(kv) => (mvccpb::event::EventType::Put, wire_key_value(kv)),
        EventKind::Delete { key, revision } => {
            let kv = mvccpb::KeyValue { key: key.clone(), mod_revision: revision.get(), ..Default::default() };
            (mvccpb::event::EventType::Delete, kv)
        }
    };
    let prev = event.prev.as_ref().filter(|_| prev_kv && !is_create(event));
    mvccpb::Event { r#type: kind.into(), kv: Some(kv), prev_kv: prev.map(wire_key_value) }
}

/// Splits a response that is too large, by etcd's rule. Each part has at least one event, and is smaller than `max_bytes`
/// if it has more. All parts but the last say that more follows.
fn fragment(mut response: WatchResponse, max_bytes: usize, out: &mut VecDeque<WatchResponse>) {
    if response.events.len() < 2 || response.encoded_len() < max_bytes {
        out.push_back(response);
        return;
    }
    let events = std::mem::take(&mut response.events);
    let empty = WatchResponse { fragment: true, ..response };
    let empty_len = empty.encoded_len();
    let (mut part, mut len) = (empty.clone(), empty_len);
    for event in events {
        let event_len = event.encoded_len();
        // One byte for the field's tag.
        let cost = 1 + encoded_len_varint(event_len as u64) + event_len;
        if !part.events.is_empty() && len + cost >= max_bytes {
            out.push_back(std::mem::replace(&mut part, empty.clone()));
            len = empty_len;
        }
        part.events.push(event);
        len += cost;
    }
    part.fragment = false;
    out.push_back(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(sizes: &[usize]) -> WatchResponse {
        let event = |size: &usize| mvccpb::Event {
            kv: Some(mvccpb::KeyValue { key: vec![b'k'; *size].into(), ..Default::default() }),
            ..Default::default()
        };
        WatchResponse { watch_id: 7, events: sizes.iter().map(event).collect(), ..Default::default() }
    }

    fn parts(sizes: &[usize], max: usize) -> Vec<(usize, bool)> {
        let mut out = VecDeque::new();
        fragment(response(sizes), max, &mut out);
        assert!(out.iter().all(|part| part.watch_id == 7));
        assert!(out.iter().all(|part| part.events.len() == 1 || part.encoded_len() < max));
        out.iter().map(|part| (part.events.len(), part.fragment)).collect()
    }

    #[test]
    fn small_responses_stay_whole() {
        assert_eq!(parts(&[10, 10], 1000), [(2, false)]);
        assert_eq!(parts(&[10_000], 1000), [(1, false)]);
    }

    #[test]
    fn large_ones_are_split_and_only_the_last_part_says_so() {
        assert_eq!(parts(&[400, 400, 400], 1000), [(2, true), (1, false)]);
        assert_eq!(parts(&[5000, 10, 5000], 1000), [(1, true), (1, true), (1, false)]);
    }

    #[test]
    fn requests_are_decoded_as_etcd_does() {
        let decoded = |request| spec(request).unwrap();
        let empty = decoded(WatchCreateRequest::default());
        assert_eq!(empty.range, KeyRange::Key(Bytes::from_static(&[0])));
        assert_eq!((empty.id, empty.start), (None, None));
        let all =
            decoded(WatchCreateRequest { range_end: Bytes::from_static(&[0]), watch_id: 4, ..Default::default() });
        assert_eq!(all.range, KeyRange::From(Bytes::from_static(&[0])));
        assert_eq!(all.id, Some(4));
        let filtered = decoded(WatchCreateRequest { filters: vec![0, 99], ..Default::default() });
        assert_eq!(filtered.filters, Filters { no_put: true, no_delete: false });
        assert!(spec(WatchCreateRequest { start_revision: -1, ..Default::default() }).is_none());
    }
}
