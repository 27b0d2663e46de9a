//! The Cluster service: the members, of which there is one.

use eddy_crdt::id::Identity;
use eddy_proto::etcdserverpb::cluster_server::Cluster;
use eddy_proto::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse,
};
use tonic::{Request, Response, Status};

use super::header;
use super::status::{self, Denied};
use crate::config::url::Url;

/// What a member list says of a member, beside its id.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberInfo {
    /// Its name (`--name`).
    pub name: String,
    /// Where other members reach it (`--initial-advertise-peer-urls`).
    pub peer_urls: Vec<String>,
    /// Where clients reach it (`--advertise-client-urls`).
    pub client_urls: Vec<String>,
}

/// The service.
#[derive(Clone, Debug)]
pub struct ClusterService {
    identity: Identity,
    member: Member,
}

impl ClusterService {
    /// Serves the member list of a single replica.
    pub fn new(identity: Identity, info: MemberInfo) -> Self {
        // Sorted, as etcd lists them.
        let sorted = |mut urls: Vec<String>| {
            urls.sort();
            urls
        };
        let member = Member {
            id: identity.replica.get(),
            name: info.name,
            peer_ur_ls: sorted(info.peer_urls),
            client_ur_ls: sorted(info.client_urls),
            is_learner: false,
        };
        Self { identity, member }
    }

    fn known(&self, id: u64) -> Result<(), Status> {
        if id == self.member.id { Ok(()) } else { Err(status::denied(Denied::MemberNotFound)) }
    }
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(&self, request: Request<MemberAddRequest>) -> Result<Response<MemberAddResponse>, Status> {
        let urls = request.into_inner().peer_ur_ls;
        if urls.is_empty() || !urls.iter().all(|url| Url::parse(url.trim()).is_ok()) {
            return Err(status::denied(Denied::MemberBadUrls));
        }
        if urls.iter().any(|url| self.member.peer_ur_ls.contains(url)) {
            return Err(status::denied(Denied::PeerUrlExists));
        }
        Err(status::missing("clusters of more than one member (MemberAdd)"))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        self.known(request.into_inner().id)?;
        Err(status::missing("clusters of more than one member (MemberRemove)"))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        self.known(request.into_inner().id)?;
        Err(status::missing("changing the peer URLs of a member (MemberUpdate)"))
    }

    async fn member_list(&self, _: Request<MemberListRequest>) -> Result<Response<MemberListResponse>, Status> {
        // What is known here is all there is: linearizable or not is the same.
        let header = Some(header::without_revision(&self.identity));
        Ok(Response::new(MemberListResponse { header, members: vec![self.member.clone()] }))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        self.known(request.into_inner().id)?;
        Err(status::denied(Denied::MemberNotLearner))
    }
}
