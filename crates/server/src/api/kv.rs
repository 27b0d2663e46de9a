//! The KV service: ranges, puts, deletes, transactions, compactions.

use std::pin::Pin;

use eddy_crdt::{Identity, Key, LeaseId, Revision};
use eddy_proto::etcdserverpb::kv_server::Kv;
use eddy_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use futures::Stream;
use tonic::{Request, Response, Status};

use super::limits::{RequestLimits, WriteLimit};
use super::{check, convert, header, range_stream, status};
use crate::auth::{Access, Caller};
use crate::node::Handle;

/// The service.
#[derive(Clone, Debug)]
pub struct KvService {
    node: Handle,
    identity: Identity,
    limits: RequestLimits,
    writes: WriteLimit,
    access: Access,
}

impl KvService {
    /// Serves the node within the limits.
    pub fn new(node: Handle, access: Access, limits: RequestLimits) -> Self {
        let identity = node.identity();
        Self { node, identity, limits, writes: WriteLimit::new(&limits, identity.replica), access }
    }

    /// Who makes a call.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.access.of(request).map_err(|error| status::auth(&error))
    }

    /// The keys of a lease.
    fn keys_of(&self, lease: i64) -> Vec<Key> {
        LeaseId::from_wire(lease).map(|lease| self.node.keys_of_lease(lease)).unwrap_or_default()
    }

    fn header(&self, revision: Revision) -> ResponseHeader {
        header::at(&self.identity, revision)
    }
}

#[tonic::async_trait]
impl Kv for KvService {
    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let (caller, request) = (self.caller(&request), request.into_inner());
        check::range(&request).map_err(status::invalid)?;
        caller?.reads(&request.key, &request.range_end).map_err(status::denied_user)?;
        let reply = self.node.range(&convert::range(request)).await.map_err(status::node)?;
        let header = self.header(reply.revision);
        Ok(Response::new(convert::range_response(reply, header)))
    }

    async fn range_stream(&self, request: Request<RangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        let (caller, request) = (self.caller(&request), request.into_inner());
        check::range(&request).map_err(status::invalid)?;
        caller?.reads(&request.key, &request.range_end).map_err(status::denied_user)?;
        // As in etcd, a range with a negative limit comes in one part.
        let whole = request.limit < 0;
        let op = convert::range(request);
        range_stream::check(&op)?;
        let stream = range_stream::parts(self.node.clone(), op, whole, self.limits.max_request_bytes);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let (caller, request) = (self.caller(&request), request.into_inner());
        check::put(&request).map_err(status::invalid)?;
        let caller = caller?;
        self.writes.admit(&request).map_err(status::invalid)?;
        caller.puts(&request, &|lease| self.keys_of(lease)).map_err(status::denied_user)?;
        let reply = self.node.put(convert::put(request)).await.map_err(status::node)?;
        let header = self.header(reply.revision);
        Ok(Response::new(convert::put_response(reply, header)))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let (caller, request) = (self.caller(&request), request.into_inner());
        check::delete(&request).map_err(status::invalid)?;
        let caller = caller?;
        self.writes.admit(&request).map_err(status::invalid)?;
        caller.deletes(&request).map_err(status::denied_user)?;
        let reply = self.node.delete(convert::delete(request)).await.map_err(status::node)?;
        let header = self.header(reply.revision);
        Ok(Response::new(convert::delete_response(reply, header)))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let (caller, request) = (self.caller(&request), request.into_inner());
        check::txn(&request, self.limits.max_txn_ops).map_err(status::invalid)?;
        let caller = caller?;
        // A transaction that only reads goes into no log, so only the size of its message is limited.
        let size = self.writes.admit(&request);
        let permitted = caller.runs(&request, &|lease| self.keys_of(lease)).map_err(status::denied_user);
        let txn = convert::txn(request);
        let reply = if txn.is_read_only() {
            permitted?;
            self.node.read_txn(&txn).await.map_err(status::node)?
        } else {
            size.map_err(status::invalid)?;
            permitted?;
            self.node.txn(txn).await.map_err(status::node)?
        };
        let header = self.header(reply.revision);
        Ok(Response::new(convert::txn_response(reply, header)))
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        self.caller(&request)?.is_root().map_err(status::denied_user)?;
        let request = request.into_inner();
        let revision = self.node.compact(request.revision, request.physical).await.map_err(status::node)?;
        Ok(Response::new(CompactionResponse { header: Some(self.header(revision)) }))
    }
}
