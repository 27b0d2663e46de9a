//! Steps of the lease, cluster, maintenance and auth services, and calls that no service has.

use std::time::Duration;

use eddy_proto::etcdserverpb::*;
use tonic::{Request, Status, client::Grpc, codegen::http::uri::PathAndQuery};

use super::Session;
use crate::{
    op::{self, Lease, Rev},
    seen::{Seen, normal_header},
};

impl Session {
    pub(super) async fn grant(&mut self, g: &op::Grant) -> Result<Seen, Status> {
        let mut answer = self.lease.lease_grant(LeaseGrantRequest { ttl: g.ttl, id: g.id }).await?.into_inner();
        self.learn(&mut answer.header);
        if g.id == 0 {
            self.granted.push(answer.id);
        }
        answer.id = self.symbol(answer.id);
        Ok(Seen::Grant(answer))
    }

    pub(super) async fn revoke(&mut self, lease: Lease) -> Result<Seen, Status> {
        let id = self.lease_id(lease);
        let mut answer = self.lease.lease_revoke(LeaseRevokeRequest { id }).await?.into_inner();
        self.learn(&mut answer.header);
        Ok(Seen::Revoke(answer))
    }

    pub(super) async fn keep_alive(&mut self, lease: Lease) -> Result<Seen, Status> {
        let request = LeaseKeepAliveRequest { id: self.lease_id(lease) };
        let mut answers = self.lease.lease_keep_alive(tokio_stream::once(request)).await?.into_inner();
        let mut all = Vec::new();
        while let Some(mut answer) = answers.message().await? {
            self.learn(&mut answer.header);
            answer.id = self.symbol(answer.id);
            all.push(answer);
        }
        Ok(Seen::KeepAlive(all))
    }

    pub(super) async fn time_to_live(&mut self, t: &op::TimeToLive) -> Result<Seen, Status> {
        let request = LeaseTimeToLiveRequest { id: self.lease_id(t.lease), keys: t.keys };
        let mut answer = self.lease.lease_time_to_live(request).await?.into_inner();
        self.learn(&mut answer.header);
        answer.id = self.symbol(answer.id);
        answer.keys.sort(); // etcd lists them in no order
        let left = std::mem::take(&mut answer.ttl);
        Ok(Seen::TimeToLive(answer, left))
    }

    pub(super) async fn leases(&mut self) -> Result<Seen, Status> {
        let mut answer = self.lease.lease_leases(LeaseLeasesRequest {}).await?.into_inner();
        self.learn(&mut answer.header);
        answer.leases.iter_mut().for_each(|l| l.id = self.symbol(l.id));
        answer.leases.sort_by_key(|l| l.id); // etcd lists them by the time that is left
        Ok(Seen::Leases(answer))
    }

    pub(super) async fn await_expiry(&mut self, lease: Lease) -> Result<Seen, Status> {
        let id = self.lease_id(lease);
        loop {
            let mut answer =
                self.lease.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: true }).await?.into_inner();
            if answer.granted_ttl == 0 {
                self.learn(&mut answer.header);
                return Ok(Seen::Done);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn member_list(&mut self, linearizable: bool) -> Result<Seen, Status> {
        let mut client = cluster_client::ClusterClient::new(self.channel.clone());
        let mut answer = client.member_list(MemberListRequest { linearizable }).await?.into_inner();
        answer.header.iter_mut().for_each(normal_header);
        Ok(Seen::Members(answer))
    }

    pub(super) async fn status(&mut self) -> Result<Seen, Status> {
        let mut answer = self.maintenance.status(StatusRequest {}).await?.into_inner();
        self.learn(&mut answer.header);
        answer.errors.sort(); // etcd lists alarms in no order
        Ok(Seen::Status {
            header: answer.header,
            version: answer.version,
            storage_version: answer.storage_version,
            quota: answer.db_size_quota,
            leader: answer.leader,
            learner: answer.is_learner,
            errors: answer.errors,
            sizes: answer.db_size >= answer.db_size_in_use && answer.db_size_in_use > 0,
            indexes: answer.raft_index > 0 && answer.raft_term > 0 && answer.raft_applied_index > 0,
        })
    }

    pub(super) async fn hash(&mut self) -> Result<Seen, Status> {
        let mut answer = self.maintenance.hash(HashRequest {}).await?.into_inner();
        self.learn(&mut answer.header);
        Ok(Seen::Hash(answer.header))
    }

    pub(super) async fn hash_kv(&mut self, rev: Rev) -> Result<Seen, Status> {
        let revision = self.revision(rev);
        let answer = self.maintenance.hash_kv(HashKvRequest { revision }).await;
        if self.compactions.contains(&revision) {
            // Until its next restart etcd answers what it hashed during its last ten compactions. Those hashes are over
            // versions that are gone now, at a cost that grows with the number of keys. eddy hashes what is there, or
            // says that it is gone.
            return Ok(Seen::Done);
        }
        let mut answer = answer?.into_inner();
        self.learn(&mut answer.header);
        if !self.granted.is_empty() {
            answer.hash = 0; // over lease ids too, that each server chose
        }
        Ok(Seen::HashKv(answer))
    }

    pub(super) async fn alarm(&mut self, a: &op::Alarm) -> Result<Seen, Status> {
        let request = AlarmRequest { action: a.action, member_id: 0, alarm: a.alarm };
        let mut answer = self.maintenance.alarm(request).await?.into_inner();
        self.learn(&mut answer.header);
        answer.alarms.sort_by_key(|m| m.alarm);
        Ok(Seen::Alarm(answer))
    }

    pub(super) async fn auth_status(&mut self) -> Result<Seen, Status> {
        let mut client = auth_client::AuthClient::new(self.channel.clone());
        let mut answer = client.auth_status(AuthStatusRequest {}).await?.into_inner();
        self.learn(&mut answer.header);
        Ok(Seen::AuthStatus(answer))
    }

    pub(super) async fn defragment(&mut self) -> Result<Seen, Status> {
        let mut answer = self.maintenance.defragment(DefragmentRequest {}).await?.into_inner();
        answer.header.iter_mut().for_each(normal_header);
        Ok(Seen::Defragment(answer))
    }

    pub(super) async fn unknown(&mut self, path: &str) -> Result<Seen, Status> {
        let path = PathAndQuery::try_from(path.to_owned()).map_err(|e| Status::internal(e.to_string()))?;
        let mut client = Grpc::new(self.channel.clone());
        client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let codec = tonic_prost::ProstCodec::<AuthStatusRequest, AuthStatusResponse>::default();
        client.unary(Request::new(AuthStatusRequest {}), path, codec).await?;
        Ok(Seen::Done)
    }
}
