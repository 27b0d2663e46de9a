//! The Lease service.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use eddy_crdt::{AlarmKind, Identity, LeaseId, Refusal};
use eddy_proto::etcdserverpb::lease_server::Lease;
use eddy_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, ResponseHeader,
};
use futures::{Stream, stream};
use tonic::{Request, Response, Status, Streaming};

use super::{header, limits, status};
use crate::auth::{Access, Caller, Claim};
use crate::node::{Handle, NodeError};

/// How many bits of a lease id count leases. The replica's ordinal is above them; the sign bit stays clear.
const COUNT_BITS: u32 = 51;

/// Draws lease ids that no other replica draws, and that this one did not draw before a restart. They count from the
/// microsecond of the start, and no replica grants a million leases a second.
#[derive(Debug)]
struct LeaseIds {
    ordinal: u64,
    next: AtomicU64,
}

impl LeaseIds {
    fn new(ordinal: u16, now: SystemTime) -> Self {
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { ordinal: u64::from(ordinal) & 0xfff, next: AtomicU64::new(since_1970.as_micros() as u64) }
    }

    fn draw(&self) -> LeaseId {
        loop {
            let count = self.next.fetch_add(1, Ordering::Relaxed) & ((1 << COUNT_BITS) - 1);
            if let Some(id) = LeaseId::from_wire((self.ordinal << COUNT_BITS | count) as i64) {
                return id;
            }
        }
    }
}

/// The whole seconds that are left of a lease. etcd counts nanoseconds and rounds down, so a lease has less than its
/// time to live as soon as it is granted. Milliseconds are counted here, and one of them has always begun.
fn whole_seconds_left(remaining_ms: u64) -> i64 {
    i64::try_from(remaining_ms.saturating_sub(1) / 1000).unwrap_or(i64::MAX)
}

/// The service.
#[derive(Clone, Debug)]
pub struct LeaseService {
    node: Handle,
    identity: Identity,
    ids: Arc<LeaseIds>,
    access: Access,
}

impl LeaseService {
    /// Serves the node.
    pub fn new(node: Handle, access: Access) -> Self {
        let identity = node.identity();
        Self { node, identity, ids: Arc::new(LeaseIds::new(identity.ordinal, SystemTime::now())), access }
    }

    /// Who makes a call, which must be somebody.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.somebody(&Claim::in_request(request))
    }

    fn somebody(&self, claim: &Claim) -> Result<Caller, Status> {
        let caller = self.access.claimed(claim).map_err(|error| status::auth(&error))?;
        caller.is_somebody().map_err(status::denied_user)?;
        Ok(caller)
    }

    fn header(&self) -> ResponseHeader {
        header::at(&self.identity, self.node.revision())
    }

    /// Renews one lease. For a lease that does not exist the time to live is zero, as in etcd.
    async fn renew(&self, claim: &Claim, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
        let caller = self.somebody(claim)?;
        if let Some(lease) = LeaseId::from_wire(id).filter(|_| caller.is_root().is_err()) {
            caller.writes_all(&self.node.keys_of_lease(lease)).map_err(status::denied_user)?;
        }
        // Taken before the renewal: a keep-alive must not succeed at a revision at which the lease is gone.
        let header = Some(self.header());
        let ttl = match LeaseId::from_wire(id) {
            None => 0,
            Some(lease) => match self.node.lease_renew(lease).await {
                Ok(ttl) => ttl,
                Err(NodeError::Refused(Refusal::LeaseNotFound)) => 0,
                Err(error) => return Err(status::node(error)),
            },
        };
        Ok(LeaseKeepAliveResponse { header, id, ttl })
    }
}

#[tonic::async_trait]
impl Lease for LeaseService {
    type LeaseKeepAliveStream = Pin<Box<dyn Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Result<Response<LeaseGrantResponse>, Status> {
        let (caller, LeaseGrantRequest { id, ttl }) = (self.caller(&request), request.into_inner());
        let wanted = LeaseId::from_wire(id);
        caller?;
        loop {
            let id = wanted.unwrap_or_else(|| self.ids.draw());
            return match self.node.lease_grant(id, ttl).await {
                Ok((ttl, revision)) => {
                    let (header, id) = (Some(header::at(&self.identity, revision)), id.get());
                    Ok(Response::new(LeaseGrantResponse { header, id, ttl, error: String::new() }))
                }
                // A client has chosen the drawn id before.
                Err(NodeError::Refused(Refusal::LeaseExists)) if wanted.is_none() => continue,
                Err(error) => Err(status::node(error)),
            };
        }
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let caller = self.caller(&request)?;
        let Some(id) = LeaseId::from_wire(request.into_inner().id) else {
            let corrupt = self.node.alarms().iter().any(|alarm| alarm.kind == AlarmKind::Corrupt);
            return Err(if corrupt {
                status::node(NodeError::Corrupt)
            } else {
                status::refused(Refusal::LeaseNotFound)
            });
        };
        if caller.is_root().is_err() {
            caller.writes_all(&self.node.keys_of_lease(id)).map_err(status::denied_user)?;
        }
        // Not the newest revision: a client that watches from here must see the deletes.
        let revision = self.node.lease_revoke(id).await.map_err(status::node)?;
        Ok(Response::new(LeaseRevokeResponse { header: Some(header::at(&self.identity, revision)) }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let claim = Claim::in_request(&request);
        let state = Some((self.clone(), claim, request.into_inner()));
        let answers = stream::unfold(state, |state| async move {
            let (service, claim, mut requests) = state?;
            let answer = match requests.message().await {
                Ok(None) => return None,
                Ok(Some(request)) => service.renew(&claim, request.id).await,
                Err(status) => Err(limits::reword(&status).unwrap_or(status)),
            };
            let state = answer.is_ok().then_some((service, claim, requests));
            Some((answer, state))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let (caller, request) = (self.caller(&request)?, request.into_inner());
        let lease = match LeaseId::from_wire(request.id) {
            Some(id) => self.node.lease(id).await.map_err(status::node)?,
            None => None,
        };
        let mut response =
            LeaseTimeToLiveResponse { header: Some(self.header()), id: request.id, ttl: -1, ..Default::default() };
        if let Some(lease) = lease {
            response.ttl = whole_seconds_left(lease.remaining_ms);
            response.granted_ttl = lease.granted_ttl;
            if request.keys {
                caller.reads_all(&lease.keys).map_err(status::denied_user)?;
                response.keys = lease.keys;
            }
        }
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let caller = self.caller(&request)?;
        if caller.is_root().is_err() {
            caller.reads_all(&self.node.keys_of_leases()).map_err(status::denied_user)?;
        }
        let leases = self.node.leases().await.map_err(status::node)?;
        let leases = leases.into_iter().map(|id| LeaseStatus { id: id.get() }).collect();
        Ok(Response::new(LeaseLeasesResponse { header: Some(self.header()), leases }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_that_has_begun_is_not_left() {
        for (remaining_ms, seconds) in [(90_000, 89), (89_001, 89), (89_000, 88), (1_000, 0), (1, 0), (0, 0)] {
            assert_eq!(whole_seconds_left(remaining_ms), seconds, "{remaining_ms} ms");
        }
    }

    #[test]
    fn lease_ids_are_positive_and_nobody_elses() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let ids = LeaseIds::new(0, start);
        let (first, second) = (ids.draw().get(), ids.draw().get());
        assert!(0 < first && second == first + 1);
        let after_restart = LeaseIds::new(0, start + Duration::from_millis(1)).draw().get();
        assert!(after_restart > second);
        let elsewhere = LeaseIds::new(4095, start).draw().get();
        assert_eq!(elsewhere, first | 4095 << COUNT_BITS);
        assert!(elsewhere > 0);
    }
}
