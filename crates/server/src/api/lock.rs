//! The Lock service: a queue of keys under the lock's name, whose oldest holds it. It excludes the clients of this replica;
//! what it means among several is in docs/operations.md.

use eddy_proto::v3lockpb::lock_server::Lock;
use eddy_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tonic::{Request, Response, Status};

use super::concurrency::{Concurrency, LeavesQueue, created_at, first, get, prefix, put, read, read_in, session_key};

/// The service.
#[derive(Clone, Debug)]
pub struct LockService(pub Concurrency);

#[tonic::async_trait]
impl Lock for LockService {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        let shared = self.0.on_behalf(&request);
        let LockRequest { name, lease } = request.into_inner();
        let lease = shared.session(lease).await?;
        let prefix = prefix(&name);
        let key = session_key(&prefix, lease);
        let owner = || read(first(&prefix));
        let queue = vec![put(key.clone(), "".into(), lease), owner()];
        let queued = vec![read(get(key.clone())), owner()];
        let answer = shared.txn(created_at(key.clone(), 0), queue, queued).await?;
        let created = |step| Some(read_in(&answer.responses, step)?.kvs.first()?.create_revision);
        let mine = match answer.succeeded {
            true => answer.header.map_or(0, |header| header.revision),
            false => created(0).unwrap_or(0),
        };
        if created(1).is_none_or(|owners| owners == mine) {
            return Ok(Response::new(LockResponse { header: answer.header, key }));
        }
        let (leaves, gone) = (shared.clone(), key.clone());
        let queued = LeavesQueue::by(async move {
            if let Err(error) = leaves.delete(gone).await {
                tracing::debug!(%error, "who waited for a lock is gone, its key stays until its lease ends");
            }
        });
        shared.wait_deletes(&prefix, mine - 1).await?;
        let held = shared.range(get(key.clone())).await?;
        queued.stay();
        if held.kvs.is_empty() {
            return Err(Status::unknown("mutex: session is expired"));
        }
        Ok(Response::new(LockResponse { header: held.header, key }))
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Response<UnlockResponse>, Status> {
        let deleted = self.0.on_behalf(&request).delete(request.into_inner().key).await?;
        Ok(Response::new(UnlockResponse { header: deleted.header }))
    }
}
