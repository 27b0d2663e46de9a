//! The admin API: the same over gRPC (`eddy.admin.v1`) and as JSON over HTTP (`/eddy/v1/...`).

pub mod json;

use std::sync::Arc;

use eddy_crdt::merge;
use eddy_proto::admin as pb;
use eddy_proto::admin::admin_server::Admin as AdminApi;
use tonic::{Request, Response, Status};

use crate::api::status;
use crate::auth::{Access, Claim};
use crate::node::Handle;
use crate::peer::Peers;

/// The service, and its answers as JSON for the HTTP endpoints.
#[derive(Clone)]
pub struct Admin {
    node: Handle,
    peers: Arc<Peers>,
    access: Access,
}

impl Admin {
    /// Serves this node and its peers.
    pub fn new(node: Handle, peers: Arc<Peers>, access: Access) -> Self {
        Self { node, peers, access }
    }

    /// Lets everybody through who is somebody, or only root.
    ///
    /// # Errors
    /// When this one is not let through.
    pub fn permits(&self, claim: &Claim, only_root: bool) -> Result<(), Status> {
        let caller = self.access.claimed(claim).map_err(|error| status::auth(&error))?;
        if only_root { caller.is_root() } else { caller.is_somebody() }.map_err(status::denied_user)
    }

    /// The status of this replica and its peers (`/eddy/v1/status`).
    pub fn status_json(&self) -> serde_json::Value {
        json::status(&self.peers.status())
    }

    /// Recent merges, newest first (`/eddy/v1/merges`).
    pub fn merges_json(&self) -> serde_json::Value {
        json::merges(&self.peers.merges(0))
    }

    /// The members, in the shape of etcd's `/members`.
    pub fn members_json(&self) -> serde_json::Value {
        let members = self.node.members();
        let present = members.iter().filter(|member| !member.removed);
        // etcd's field names; it writes ids as numbers here.
        present
            .map(|member| {
                let mut value = serde_json::json!({ "id": member.id.get(), "peerURLs": member.peer_urls });
                if member.learner {
                    value["isLearner"] = true.into();
                }
                if !member.name.is_empty() {
                    value["name"] = member.name.clone().into();
                }
                if !member.client_urls.is_empty() {
                    value["clientURLs"] = member.client_urls.clone().into();
                }
                value
            })
            .collect()
    }

    /// The cluster's id in hexadecimal.
    pub fn cluster_id(&self) -> String {
        self.node.identity().cluster.to_string()
    }
}

#[tonic::async_trait]
impl AdminApi for Admin {
    async fn status(&self, request: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        self.permits(&Claim::in_request(&request), false)?;
        Ok(Response::new(self.peers.status()))
    }

    async fn merges(&self, request: Request<pb::MergesRequest>) -> Result<Response<pb::MergesResponse>, Status> {
        self.permits(&Claim::in_request(&request), true)?;
        let limit = usize::try_from(request.into_inner().limit).unwrap_or(usize::MAX);
        Ok(Response::new(self.peers.merges(limit)))
    }

    async fn leap(&self, request: Request<pb::LeapRequest>) -> Result<Response<pb::LeapResponse>, Status> {
        self.permits(&Claim::in_request(&request), true)?;
        let revision = self.node.leap().await.map_err(status::node)?.get();
        tracing::warn!(revision, "leapt: watches are cancelled, and clients list again");
        Ok(Response::new(pb::LeapResponse { revision }))
    }

    async fn declare(&self, request: Request<pb::DeclareRequest>) -> Result<Response<pb::DeclareResponse>, Status> {
        self.permits(&Claim::in_request(&request), true)?;
        let request = request.into_inner();
        let invalid = |error: merge::BadDeclaration| Status::invalid_argument(error.to_string());
        let counters = merge::counters(&request.counters.join(",")).map_err(invalid)?;
        let atomic = match request.atomic {
            Some(atomic) => atomic.fields,
            None => self.node.look(|replica| replica.rules().newest().atomic.iter().map(ToString::to_string).collect()),
        };
        let atomic = merge::atomic(&atomic.join(","), &counters).map_err(invalid)?;
        let rules = self.node.declare(counters, atomic).await.map_err(status::node)?;
        tracing::warn!(rules, "a merge policy was declared: the rules are in use once every member has them");
        Ok(Response::new(pb::DeclareResponse { rules }))
    }

    async fn explain(&self, request: Request<pb::ExplainRequest>) -> Result<Response<pb::ExplainResponse>, Status> {
        self.permits(&Claim::in_request(&request), false)?;
        let wanted = request.into_inner().kind;
        let found = self.node.look(|replica| merge::explain_custom(&wanted, replica.rules().current()));
        let field = |field: merge::Explained| pb::ExplainedField { path: field.path, how: field.how };
        let kinds = found
            .into_iter()
            .map(|(name, fields)| pb::ExplainedKind { name, fields: fields.into_iter().map(field).collect() });
        Ok(Response::new(pb::ExplainResponse { kinds: kinds.collect() }))
    }
}
