//! The Cluster service: the members, and changes of them. Any replica takes changes; they spread and merge as keys do.

use std::future::Future;

use eddy_crdt::{Identity, Member as Known, ReplicaId};
use eddy_proto::etcdserverpb::cluster_server::Cluster;
use eddy_proto::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse,
    ResponseHeader,
};
use tonic::{Request, Response, Status};

use super::header;
use super::status::{self, Denied};
use crate::auth::Access;
use crate::config::url::Url;
use crate::node::{Handle, NodeError, identity};

/// This member as it is configured.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberInfo {
    /// Its name (`--name`).
    pub name: String,
    /// Where other members reach it (`--initial-advertise-peer-urls`).
    pub peer_urls: Vec<String>,
    /// Where clients reach it (`--advertise-client-urls`).
    pub client_urls: Vec<String>,
    /// Most learners at a time (`--max-learners`).
    pub max_learners: usize,
}

/// The service.
#[derive(Clone, Debug)]
pub struct ClusterService {
    node: Handle,
    identity: Identity,
    own: Member,
    max_learners: usize,
    access: Access,
}

/// Sorts URLs, as etcd lists them.
fn sorted(mut urls: Vec<String>) -> Vec<String> {
    urls.sort_unstable();
    urls
}

fn to_wire(member: &Known) -> Member {
    Member {
        id: member.id.get(),
        name: member.name.clone(),
        peer_ur_ls: member.peer_urls.clone(),
        client_ur_ls: sorted(member.client_urls.clone()),
        is_learner: member.learner,
    }
}

/// Checks and sorts the peer URLs of a request.
fn checked(urls: Vec<String>) -> Result<Vec<String>, Status> {
    let parsed: Option<Vec<String>> =
        urls.iter().map(|url| Url::parse(url.trim()).ok().map(|url| url.to_string())).collect();
    parsed.filter(|urls| !urls.is_empty()).map(sorted).ok_or_else(|| status::denied(Denied::MemberBadUrls))
}

impl ClusterService {
    /// Serves the member list of the node. `info` is this replica as it is configured.
    pub fn new(node: Handle, access: Access, info: MemberInfo) -> Self {
        let identity = node.identity();
        let own = Member {
            id: identity.replica.get(),
            name: info.name,
            peer_ur_ls: sorted(info.peer_urls),
            client_ur_ls: sorted(info.client_urls),
            is_learner: false,
        };
        Self { node, identity, own, max_learners: info.max_learners, access }
    }

    /// Lets only those through who may change the members.
    fn only_root<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let caller = self.access.of(request).map_err(|error| status::auth(&error))?;
        caller.is_root().map_err(status::denied_user)
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(header::without_revision(&self.identity))
    }

    /// The present members. A replica that belongs to no cluster lists itself.
    fn members(&self) -> Vec<Member> {
        let members = self.node.members();
        if members.is_empty() {
            return vec![self.own.clone()];
        }
        members.iter().filter(|member| !member.removed).map(to_wire).collect()
    }

    /// Waits for a change of the members, and returns those that are not removed.
    async fn changed(
        &self,
        change: impl Future<Output = Result<Vec<Known>, NodeError>>,
    ) -> Result<Vec<Member>, Status> {
        let members = change.await.map_err(status::node)?;
        Ok(members.iter().filter(|member| !member.removed).map(to_wire).collect())
    }
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(&self, request: Request<MemberAddRequest>) -> Result<Response<MemberAddResponse>, Status> {
        let (permitted, request) = (self.only_root(&request), request.into_inner());
        let peer_urls = checked(request.peer_ur_ls)?;
        permitted?;
        let known = self.node.members();
        if request.is_learner
            && known.iter().filter(|member| member.learner && !member.removed).count() >= self.max_learners
        {
            return Err(status::denied(Denied::TooManyLearners));
        }
        // The id of a removed member is never used again. A new member at its URLs gets the next id, the same one wherever
        // it is added.
        let removed = |id: &ReplicaId| known.iter().any(|member| member.id == *id && member.removed);
        let mut ids = (0..).map(|before| identity::member_id(self.identity.cluster, &peer_urls, before));
        let Some(id) = ids.find(|id| !removed(id)) else {
            return Err(status::denied(Denied::MemberExists));
        };
        let members = self.changed(self.node.member_add(id, peer_urls, request.is_learner)).await?;
        let member = members.iter().find(|member| member.id == id.get()).cloned();
        tracing::info!(member = %id, "added a member");
        Ok(Response::new(MemberAddResponse { header: self.header(), member, members }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        self.only_root(&request)?;
        let id = ReplicaId::new(request.into_inner().id);
        let members = self.changed(self.node.member_remove(id)).await?;
        tracing::info!(
            member = %id,
            "removed a member; what it wrote and has sent to nobody stays on its own disk, where `eddy rescue` exports it"
        );
        Ok(Response::new(MemberRemoveResponse { header: self.header(), members }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        self.only_root(&request)?;
        let request = request.into_inner();
        let peer_urls = checked(request.peer_ur_ls)?;
        let members = self.changed(self.node.member_update(ReplicaId::new(request.id), peer_urls)).await?;
        Ok(Response::new(MemberUpdateResponse { header: self.header(), members }))
    }

    async fn member_list(&self, request: Request<MemberListRequest>) -> Result<Response<MemberListResponse>, Status> {
        let caller = self.access.of(&request).map_err(|error| status::auth(&error))?;
        caller.is_somebody().map_err(status::denied_user)?;
        // Linearizable or not is the same: this replica answers from what it knows.
        Ok(Response::new(MemberListResponse { header: self.header(), members: self.members() }))
    }

    /// A learner of eddy is a member like all others, since there are no votes to count. It is only shown as a learner
    /// until it is promoted. As in etcd, that is refused for one that has never started: a member says its name then.
    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        self.only_root(&request)?;
        let id = ReplicaId::new(request.into_inner().id);
        // Who is not known yet may be known, and not have started, when the command is carried out.
        match self.node.members().iter().find(|member| member.id == id && !member.removed) {
            None => return Err(status::denied(Denied::MemberNotFound)),
            Some(member) if member.learner && member.name.is_empty() => {
                return Err(status::denied(Denied::LearnerNotReady));
            }
            Some(_) => {}
        }
        let members = self.changed(self.node.member_promote(id)).await?;
        Ok(Response::new(MemberPromoteResponse { header: self.header(), members }))
    }
}
