//! The Auth service: there are no users yet, so authentication is disabled.

use eddy_crdt::Identity;
use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::auth_server::Auth;
use tonic::{Request, Response, Status};

use super::header;
use super::status::{self, Denied};
use crate::node::Handle;

/// The revision of users and roles in an etcd that has none.
const FIRST_AUTH_REVISION: u64 = 1;

/// The service.
#[derive(Clone, Debug)]
pub struct AuthService {
    node: Handle,
    identity: Identity,
}

impl AuthService {
    /// Serves the node.
    pub fn new(node: Handle) -> Self {
        let identity = node.identity();
        Self { node, identity }
    }

    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(header::at(&self.identity, self.node.revision()))
    }
}

fn no_users<T>() -> Result<T, Status> {
    Err(status::missing("users and roles (Auth)"))
}

#[tonic::async_trait]
impl Auth for AuthService {
    async fn auth_status(&self, _: Request<pb::AuthStatusRequest>) -> Result<Response<pb::AuthStatusResponse>, Status> {
        let header = self.header();
        Ok(Response::new(pb::AuthStatusResponse { header, enabled: false, auth_revision: FIRST_AUTH_REVISION }))
    }

    /// Authentication is disabled already, so there is nothing to do, as in etcd.
    async fn auth_disable(
        &self,
        _: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        Ok(Response::new(pb::AuthDisableResponse { header: self.header() }))
    }

    async fn authenticate(
        &self,
        _: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        Err(status::denied(Denied::AuthNotEnabled))
    }

    async fn auth_enable(&self, _: Request<pb::AuthEnableRequest>) -> Result<Response<pb::AuthEnableResponse>, Status> {
        no_users()
    }

    async fn user_add(&self, _: Request<pb::AuthUserAddRequest>) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        no_users()
    }

    async fn user_get(&self, _: Request<pb::AuthUserGetRequest>) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        no_users()
    }

    async fn user_list(
        &self,
        _: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        no_users()
    }

    async fn user_delete(
        &self,
        _: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        no_users()
    }

    async fn user_change_password(
        &self,
        _: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        no_users()
    }

    async fn user_grant_role(
        &self,
        _: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        no_users()
    }

    async fn user_revoke_role(
        &self,
        _: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        no_users()
    }

    async fn role_add(&self, _: Request<pb::AuthRoleAddRequest>) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        no_users()
    }

    async fn role_get(&self, _: Request<pb::AuthRoleGetRequest>) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        no_users()
    }

    async fn role_list(
        &self,
        _: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        no_users()
    }

    async fn role_delete(
        &self,
        _: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        no_users()
    }

    async fn role_grant_permission(
        &self,
        _: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        no_users()
    }

    async fn role_revoke_permission(
        &self,
        _: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        no_users()
    }
}
