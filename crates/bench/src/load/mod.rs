//! Load: the operations of clients ([`workload`]), their moments ([`closed`], [`open`], [`replay`]), their results
//! ([`recorder`]), and watchers beside them ([`watchers`]).

pub mod closed;
pub mod open;
pub mod recorder;
pub mod replay;
pub mod watchers;
pub mod workload;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use eddy_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::etcdserverpb::response_op::Response;
use eddy_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest,
    RangeRequest, RequestOp, TxnRequest, TxnResponse,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::target::transport::Transport;
use recorder::Ended;
use workload::{Generator, Operation, Stamp, Workload};

/// Time to live of a lease, seconds: longer than any pause of an experiment.
const LEASE_TTL_S: i64 = 600;
/// Writers that fill the store before load begins.
const FILLERS: usize = 64;

/// Revisions at which the clients of one node last saw keys.
type Known = Arc<Mutex<HashMap<Bytes, i64>>>;

/// Connections to the nodes that clients talk to.
pub struct Ends {
    /// For each node: its number, its connections, and what its clients know.
    nodes: Vec<(usize, Vec<Channel>, Known)>,
}

impl Ends {
    /// Connects to nodes, given by number and address.
    ///
    /// # Errors
    /// When an address is none.
    pub fn connect(nodes: &[(usize, String)], connections: usize, transport: &Transport) -> Result<Self> {
        let connect = |address: &String| -> Result<Channel> { Ok(transport.endpoint(address)?.connect_lazy()) };
        let nodes = nodes.iter().map(|(node, address)| {
            let channels = (0..connections).map(|_| connect(address)).collect::<Result<_>>()?;
            Ok((*node, channels, Known::default()))
        });
        Ok(Self { nodes: nodes.collect::<Result<_>>()? })
    }

    /// The n-th client: nodes in turn, and at each its connections in turn.
    pub fn client(&self, n: usize, timeout: Duration) -> Client {
        let (node, channels, known) = &self.nodes[n % self.nodes.len()];
        let channel = channels[(n / self.nodes.len()) % channels.len()].clone();
        Client {
            node: *node,
            kv: KvClient::new(channel.clone()),
            channel,
            known: Arc::clone(known),
            lease: None,
            timeout,
        }
    }

    /// Different clients: all connections of all nodes.
    pub fn count(&self) -> usize {
        self.nodes.iter().map(|(_, channels, _)| channels.len()).sum()
    }
}

struct Renewals {
    id: i64,
    requests: mpsc::Sender<LeaseKeepAliveRequest>,
    answers: Streaming<LeaseKeepAliveResponse>,
}

/// One client of one node.
pub struct Client {
    /// The node it talks to.
    pub node: usize,
    kv: KvClient<Channel>,
    channel: Channel,
    known: Known,
    lease: Option<Renewals>,
    timeout: Duration,
}

impl Client {
    /// Does one operation, which was due `at` after the load began.
    pub async fn perform(&mut self, operation: &Operation, at: Duration) -> Ended {
        let stamp = Stamp { at, node: self.node };
        match tokio::time::timeout(self.timeout, self.ask(operation, stamp)).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(status)) => {
                self.lease = None;
                Ended::Failed(format!("{}: {}", operation.name(), status.message()))
            }
            Err(_) => {
                self.lease = None;
                Ended::Failed(format!("{}: no answer after {} ms", operation.name(), self.timeout.as_millis()))
            }
        }
    }

    async fn ask(&mut self, operation: &Operation, stamp: Stamp) -> Result<Ended, Status> {
        match operation {
            Operation::Put { key, value } => {
                let put = PutRequest { key: key.clone(), value: value.stamped(stamp), ..PutRequest::default() };
                self.kv.put(put).await?;
            }
            Operation::Range { key, serializable } => {
                let serializable = *serializable;
                self.kv.range(RangeRequest { key: key.clone(), serializable, ..RangeRequest::default() }).await?;
            }
            Operation::List { prefix } => {
                let range_end = end_of_prefix(prefix);
                self.kv.range(RangeRequest { key: prefix.clone(), range_end, ..RangeRequest::default() }).await?;
            }
            Operation::Create { key, value } => {
                let put = PutRequest { key: key.clone(), value: value.stamped(stamp), ..PutRequest::default() };
                return self.guarded(key, 0, Request::RequestPut(put)).await;
            }
            Operation::Update { key, value } => {
                let put = PutRequest { key: key.clone(), value: value.stamped(stamp), ..PutRequest::default() };
                let last_seen = self.last_seen(key);
                return self.guarded(key, last_seen, Request::RequestPut(put)).await;
            }
            Operation::Delete { key } => {
                let delete = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
                let last_seen = self.last_seen(key);
                return self.guarded(key, last_seen, Request::RequestDeleteRange(delete)).await;
            }
            Operation::KeepAlive => self.renew().await?,
        }
        Ok(Ended::Done)
    }

    fn last_seen(&self, key: &Bytes) -> i64 {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or_default()
    }

    /// Does `then` if the key was last changed at `revision`, else reads it, as all writes of kube-apiserver do.
    async fn guarded(&mut self, key: &Bytes, revision: i64, then: Request) -> Result<Ended, Status> {
        let deletes = matches!(then, Request::RequestDeleteRange(_));
        let unchanged = Compare {
            key: key.clone(),
            target: CompareTarget::Mod.into(),
            result: CompareResult::Equal.into(),
            target_union: Some(TargetUnion::ModRevision(revision)),
            ..Compare::default()
        };
        let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let answer = self
            .kv
            .txn(TxnRequest {
                compare: vec![unchanged],
                success: vec![RequestOp { request: Some(then) }],
                failure: vec![RequestOp { request: Some(Request::RequestRange(get)) }],
            })
            .await?
            .into_inner();
        let seen = revision_after(&answer, deletes);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), seen);
        Ok(if answer.succeeded { Ended::Done } else { Ended::Refused })
    }

    async fn renew(&mut self) -> Result<(), Status> {
        if self.lease.is_none() {
            let mut client = LeaseClient::new(self.channel.clone());
            let grant = LeaseGrantRequest { ttl: LEASE_TTL_S, ..LeaseGrantRequest::default() };
            let id = client.lease_grant(grant).await?.into_inner().id;
            let (requests, stream) = mpsc::channel(1);
            let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
            // The stream opens with the first request on it.
            let gone = |_| Status::unavailable("the stream of renewals is gone");
            requests.send(LeaseKeepAliveRequest { id }).await.map_err(gone)?;
            let answers = client.lease_keep_alive(stream).await?.into_inner();
            let renewals = self.lease.insert(Renewals { id, requests, answers });
            renewals.answers.message().await?;
            return Ok(());
        }
        let Some(renewals) = &mut self.lease else { return Ok(()) };
        let gone = |_| Status::unavailable("the stream of renewals is gone");
        renewals.requests.send(LeaseKeepAliveRequest { id: renewals.id }).await.map_err(gone)?;
        match renewals.answers.message().await? {
            Some(answer) if answer.ttl > 0 => Ok(()),
            Some(_) => Err(Status::not_found("the lease has expired")),
            None => Err(Status::unavailable("the stream of renewals has ended")),
        }
    }
}

/// The revision at which the answer to a guarded write says that its key last changed; 0 when it is not there.
fn revision_after(answer: &TxnResponse, deletes: bool) -> i64 {
    if answer.succeeded {
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        return if deletes { 0 } else { revision };
    }
    match answer.responses.first().and_then(|op| op.response.as_ref()) {
        Some(Response::ResponseRange(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
        _ => 0,
    }
}

/// The first key after all that begin with a prefix.
pub fn end_of_prefix(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

/// Writes every key once, so that reads find something.
///
/// # Errors
/// When a write fails.
pub async fn fill(ends: &Ends, workload: &Arc<Workload>, keys: u32, timeout: Duration) -> Result<()> {
    let mut fillers = JoinSet::new();
    for filler in 0..FILLERS {
        let mut client = ends.client(filler, timeout);
        let (workload, mut values): (_, Generator) = (Arc::clone(workload), workload.client(filler, FILLERS, 0));
        fillers.spawn(async move {
            for n in (filler as u32..keys).step_by(FILLERS) {
                let operation = Operation::Put { key: workload.key(n), value: values.value(n) };
                if let Ended::Failed(why) = client.perform(&operation, Duration::ZERO).await {
                    anyhow::bail!("fill the store: {why}");
                }
            }
            Ok(())
        });
    }
    while let Some(filled) = fillers.join_next().await {
        filled.context("fill the store")??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use eddy_proto::etcdserverpb::{RangeResponse, ResponseHeader, ResponseOp};
    use eddy_proto::mvccpb::KeyValue;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_of_its_length() {
        assert_eq!(&end_of_prefix(b"abc/")[..], b"abc0");
        assert_eq!(&end_of_prefix(b"a\xff\xff")[..], b"b");
        assert_eq!(&end_of_prefix(b"\xff")[..], b"\0");
    }

    #[test]
    fn a_client_learns_a_keys_revision_from_every_answer() {
        let header = Some(ResponseHeader { revision: 9, ..ResponseHeader::default() });
        let written = TxnResponse { header, succeeded: true, responses: vec![] };
        assert_eq!((revision_after(&written, false), revision_after(&written, true)), (9, 0));
        let kvs = vec![KeyValue { mod_revision: 5, ..KeyValue::default() }];
        let range = Response::ResponseRange(RangeResponse { kvs, ..RangeResponse::default() });
        let read = TxnResponse { succeeded: false, responses: vec![ResponseOp { response: Some(range) }], ..written };
        assert_eq!(revision_after(&read, false), 5);
    }
}
