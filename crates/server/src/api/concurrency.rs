//! What locks and elections are made of: sessions, queues of keys, and the wait for those ahead in the queue. They are what
//! etcd's client package `concurrency` does, run in the server. All goes through the services that clients call.

use std::future::Future;

use bytes::Bytes;
use eddy_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use eddy_proto::etcdserverpb::kv_server::Kv;
use eddy_proto::etcdserverpb::lease_server::Lease;
use eddy_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use eddy_proto::etcdserverpb::request_op::Request as Step;
use eddy_proto::etcdserverpb::response_op::Response as Answer;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse,
    RequestOp, ResponseOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use eddy_proto::mvccpb::event::EventType;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::kv::KvService;
use super::lease::LeaseService;
use super::status;
use super::watch::WatchService;
use crate::auth::Claim;

/// Seconds that a session lasts whose caller named no lease; etcd's.
const SESSION_TTL: i64 = 60;

/// The services behind locks and elections.
#[derive(Clone, Debug)]
pub struct Concurrency {
    /// Keys.
    pub kv: KvService,
    /// Leases.
    pub leases: LeaseService,
    /// Watches.
    pub watch: WatchService,
    /// Ends those who wait when the process stops.
    pub stop: CancellationToken,
    /// Whose call all of this is done for.
    pub claim: Claim,
}

/// A failure as etcd's servers for locks and elections tell it: the text stays, the code is lost.
fn told(status: &Status) -> Status {
    Status::unknown(status.message())
}

fn inner<T>(answer: Result<Response<T>, Status>) -> Result<T, Status> {
    answer.map(Response::into_inner).map_err(|status| told(&status))
}

/// The prefix of the keys of those who queue under a name.
pub fn prefix(name: &[u8]) -> Bytes {
    [name, b"/"].concat().into()
}

/// The key of a session in a queue.
pub fn session_key(prefix: &[u8], lease: i64) -> Bytes {
    // As Go writes it: lease ids are signed.
    let sign = if lease < 0 { "-" } else { "" };
    [prefix, format!("{sign}{:x}", lease.unsigned_abs()).as_bytes()].concat().into()
}

/// The end of the range of a prefix, which is not empty.
fn prefix_end(prefix: &[u8]) -> Bytes {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        Some(last) => prefix[..last].iter().copied().chain([prefix[last] + 1]).collect(),
        None => Bytes::from_static(&[0]),
    }
}

/// Reads one key.
pub fn get(key: Bytes) -> RangeRequest {
    RangeRequest { key, ..Default::default() }
}

/// Reads who is first in a queue.
pub fn first(prefix: &Bytes) -> RangeRequest {
    let (target, order) = (SortTarget::Create.into(), SortOrder::Ascend.into());
    let range_end = prefix_end(prefix);
    RangeRequest { range_end, limit: 1, sort_target: target, sort_order: order, ..get(prefix.clone()) }
}

/// Whether a key was created at that revision; at 0, whether there is none.
pub fn created_at(key: Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key,
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Default::default()
    }
}

/// A read as a step of a transaction.
pub fn read(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Step::RequestRange(request)) }
}

/// A put as a step of a transaction.
pub fn put(key: Bytes, value: Bytes, lease: i64) -> RequestOp {
    RequestOp { request: Some(Step::RequestPut(PutRequest { key, value, lease, ..Default::default() })) }
}

/// A delete as a step of a transaction.
pub fn delete(key: Bytes) -> RequestOp {
    RequestOp { request: Some(Step::RequestDeleteRange(DeleteRangeRequest { key, ..Default::default() })) }
}

/// The answer to the read that is that step of a transaction.
pub fn read_in(responses: &[ResponseOp], step: usize) -> Option<&RangeResponse> {
    match responses.get(step)?.response.as_ref()? {
        Answer::ResponseRange(range) => Some(range),
        _ => None,
    }
}

impl Concurrency {
    /// The same for that call: what it may do is what its client may.
    #[must_use]
    pub fn on_behalf<T>(&self, request: &Request<T>) -> Self {
        Self { claim: Claim::in_request(request), ..self.clone() }
    }

    /// The lease of a session: the caller's, or a new one where it is 0.
    ///
    /// # Errors
    /// When no lease is granted.
    pub async fn session(&self, lease: i64) -> Result<i64, Status> {
        if lease != 0 {
            return Ok(lease);
        }
        let request = LeaseGrantRequest { ttl: SESSION_TTL, id: 0 };
        Ok(inner(self.leases.lease_grant(self.claim.request(request)).await)?.id)
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// As [`Kv::txn`], without the code.
    pub async fn txn(
        &self,
        compare: Compare,
        success: Vec<RequestOp>,
        failure: Vec<RequestOp>,
    ) -> Result<TxnResponse, Status> {
        inner(self.kv.txn(self.claim.request(TxnRequest { compare: vec![compare], success, failure })).await)
    }

    /// Reads a range.
    ///
    /// # Errors
    /// As [`Kv::range`], without the code.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        inner(self.kv.range(self.claim.request(request)).await)
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`Kv::delete_range`], without the code.
    pub async fn delete(&self, key: Bytes) -> Result<DeleteRangeResponse, Status> {
        inner(self.kv.delete_range(self.claim.request(DeleteRangeRequest { key, ..Default::default() })).await)
    }

    /// Watches a key, or all keys of a prefix, from a revision on.
    pub fn watch(
        &self,
        key: Bytes,
        is_prefix: bool,
        revision: i64,
    ) -> BoxStream<'static, Result<WatchResponse, Status>> {
        let range_end = if is_prefix { prefix_end(&key) } else { Bytes::new() };
        let create = WatchCreateRequest { key, range_end, start_revision: revision, ..Default::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        self.watch.serve(self.claim.clone(), stream::iter([Ok(request)])).boxed()
    }

    /// Waits until all keys of a prefix are gone that were created at that revision or before.
    ///
    /// # Errors
    /// When the process stops, or a watch is lost.
    pub async fn wait_deletes(&self, prefix: &Bytes, created: i64) -> Result<(), Status> {
        // A bound of 0 would be none.
        if created <= 0 {
            return Ok(());
        }
        let last =
            RangeRequest { sort_order: SortOrder::Descend.into(), max_create_revision: created, ..first(prefix) };
        loop {
            let found = self.range(last.clone()).await?;
            let revision = found.header.map_or(0, |header| header.revision);
            let Some(ahead) = found.kvs.into_iter().next() else { return Ok(()) };
            tokio::select! {
                gone = self.wait_delete(ahead.key, revision) => gone?,
                () = self.stop.cancelled() => return Err(status::stopped()),
            }
        }
    }

    async fn wait_delete(&self, key: Bytes, revision: i64) -> Result<(), Status> {
        let mut watch = self.watch(key, false, revision);
        while let Some(response) = watch.next().await {
            let response = response.map_err(|status| told(&status))?;
            if response.events.iter().any(|event| event.r#type() == EventType::Delete) {
                return Ok(());
            }
            if response.canceled {
                return Err(Status::unknown(match response.compact_revision {
                    0 => response.cancel_reason,
                    _ => status::COMPACTED.to_owned(),
                }));
            }
        }
        Err(Status::unknown("lost watcher waiting for delete"))
    }
}

/// Takes a caller out of a queue who goes away while it waits: its call is dropped then, and nobody is left to do it.
pub struct LeavesQueue<F: Future<Output = ()> + Send + 'static>(Option<F>);

impl<F: Future<Output = ()> + Send + 'static> LeavesQueue<F> {
    /// Does that when it is dropped.
    pub fn by(leave: F) -> Self {
        Self(Some(leave))
    }

    /// Stays in the queue: what it waited for has come.
    pub fn stay(mut self) {
        self.0 = None;
    }
}

impl<F: Future<Output = ()> + Send + 'static> Drop for LeavesQueue<F> {
    fn drop(&mut self) {
        if let (Some(leave), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            drop(runtime.spawn(leave));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_etcds_clients() {
        assert_eq!(prefix(b"a"), "a/");
        assert_eq!(session_key(b"a/", 0x694d_a20a_683e_850a), "a/694da20a683e850a");
        assert_eq!(session_key(b"a/", -26), "a/-1a");
        assert_eq!(prefix_end(b"a/"), "a0");
        assert_eq!(prefix_end(b"a\xff"), "b");
        assert_eq!(prefix_end(b"\xff"), "\0");
    }
}
