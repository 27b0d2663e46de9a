//! The Auth service: users, roles, and logins.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use eddy_crdt::{AuthCommand, AuthRefusal, Identity, Permission, PermissionRange, ROOT, Right};
use eddy_proto::authpb;
use eddy_proto::authpb::permission::Type;
use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::auth_server::Auth;
use tonic::{Request, Response, Status};

use super::{header, status};
use crate::auth::{Access, AuthError, Caller};
use crate::node::Handle;

/// The service.
#[derive(Clone, Debug)]
pub struct AuthService {
    node: Handle,
    identity: Identity,
    access: Access,
}

type Header = Option<pb::ResponseHeader>;

fn denied(error: impl Into<AuthError>) -> Status {
    status::auth(&error.into())
}

/// A permission as etcd's wire has it. etcd keeps one of a kind that it does not know, and it allows nothing; here it is
/// refused.
fn permission_of(wire: authpb::Permission) -> Result<Permission, Status> {
    let right = match Type::try_from(wire.perm_type) {
        Ok(Type::Read) => Right::Read,
        Ok(Type::Write) => Right::Write,
        Ok(Type::Readwrite) => Right::ReadWrite,
        Err(_) => return Err(denied(AuthRefusal::InvalidManagement)),
    };
    Ok(Permission { range: PermissionRange { key: wire.key, range_end: wire.range_end }, right })
}

fn wire_permission(Permission { range, right }: &Permission) -> authpb::Permission {
    let perm_type = match right {
        Right::Read => Type::Read,
        Right::Write => Type::Write,
        Right::ReadWrite => Type::Readwrite,
    };
    authpb::Permission { perm_type: perm_type.into(), key: range.key.clone(), range_end: range.range_end.clone() }
}

impl AuthService {
    /// Serves the node.
    pub fn new(node: Handle, access: Access) -> Self {
        let identity = node.identity();
        Self { node, identity, access }
    }

    fn header(&self) -> Header {
        Some(header::at(&self.identity, self.node.revision()))
    }

    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.access.of(request).map_err(denied)
    }

    /// Lets only root through.
    fn only_root<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.caller(request)?.is_root().map_err(denied)
    }

    async fn change(&self, command: AuthCommand) -> Result<Header, Status> {
        let revision = self.node.auth(command).await.map_err(status::node)?;
        Ok(Some(header::at(&self.identity, revision)))
    }

    /// The hash of a password.
    async fn hashed(&self, password: String) -> Result<Bytes, Status> {
        self.access.hash(password).await.map_err(denied)
    }
}

#[tonic::async_trait]
impl Auth for AuthService {
    async fn auth_enable(
        &self,
        request: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        self.only_root(&request)?;
        let header = self.change(AuthCommand::Enable).await?;
        tracing::info!("authentication is enabled");
        Ok(Response::new(pb::AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        self.only_root(&request)?;
        let header = self.change(AuthCommand::Disable).await?;
        tracing::info!("authentication is disabled");
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    /// As in etcd, everybody may ask this.
    async fn auth_status(
        &self,
        request: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        self.caller(&request)?;
        let (header, users) = (self.header(), self.node.users());
        let (enabled, auth_revision) = (users.enabled, users.revision);
        Ok(Response::new(pb::AuthStatusResponse { header, enabled, auth_revision }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let token = self.access.log_in(name, password, self.node.journal_number()).await.map_err(denied)?;
        Ok(Response::new(pb::AuthenticateResponse { header: self.header(), token }))
    }

    async fn user_add(
        &self,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        self.only_root(&request)?;
        let pb::AuthUserAddRequest { name, password, options, .. } = request.into_inner();
        let password = match options {
            Some(options) if options.no_password => None,
            _ => Some(self.hashed(password).await?),
        };
        let header = self.change(AuthCommand::UserAdd { name, password }).await?;
        Ok(Response::new(pb::AuthUserAddResponse { header }))
    }

    /// A user may look at itself. As in etcd, nobody is the user without a name, who is never there.
    async fn user_get(
        &self,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        let (caller, request) = (self.caller(&request)?, request.into_inner());
        if caller.name().unwrap_or_default() != request.name {
            caller.is_root().map_err(denied)?;
        }
        let (header, users) = (self.header(), self.node.users());
        let user = users.user(&request.name).ok_or_else(|| denied(AuthRefusal::UserNotFound))?;
        Ok(Response::new(pb::AuthUserGetResponse { header, roles: user.roles.iter().cloned().collect() }))
    }

    async fn user_list(
        &self,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        self.only_root(&request)?;
        let users = self.node.users().users().map(|(name, _)| name.to_owned()).collect();
        Ok(Response::new(pb::AuthUserListResponse { header: self.header(), users }))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        self.only_root(&request)?;
        let header = self.change(AuthCommand::UserDelete(request.into_inner().name)).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        self.only_root(&request)?;
        let pb::AuthUserChangePasswordRequest { name, password, hashed_password } = request.into_inner();
        let password = match password.is_empty() {
            // As in etcd, a hash that somebody else made is taken, and none is a password that nobody knows.
            true => BASE64.decode(hashed_password).map_err(|_| denied(AuthError::NoPasswordUser))?.into(),
            false => self.hashed(password).await?,
        };
        let header = self.change(AuthCommand::UserChangePassword { name, password }).await?;
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        self.only_root(&request)?;
        let pb::AuthUserGrantRoleRequest { user, role } = request.into_inner();
        let header = self.change(AuthCommand::UserGrantRole { user, role }).await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        self.only_root(&request)?;
        let pb::AuthUserRevokeRoleRequest { name: user, role } = request.into_inner();
        let header = self.change(AuthCommand::UserRevokeRole { user, role }).await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        self.only_root(&request)?;
        let header = self.change(AuthCommand::RoleAdd(request.into_inner().name)).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header }))
    }

    /// A user may look at its roles.
    async fn role_get(
        &self,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        let (caller, request) = (self.caller(&request)?, request.into_inner());
        if !caller.has_role(&request.role) {
            caller.is_root().map_err(denied)?;
        }
        let (header, users) = (self.header(), self.node.users());
        let permissions = users.role(&request.role).ok_or_else(|| denied(AuthRefusal::RoleNotFound))?;
        let perm = match request.role.as_str() {
            ROOT => vec![authpb::Permission {
                perm_type: Type::Readwrite.into(),
                key: Bytes::new(),
                range_end: Bytes::from_static(&[0]),
            }],
            _ => permissions.iter().map(wire_permission).collect(),
        };
        Ok(Response::new(pb::AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        self.only_root(&request)?;
        let roles = self.node.users().roles().map(|(name, _)| name.to_owned()).collect();
        Ok(Response::new(pb::AuthRoleListResponse { header: self.header(), roles }))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        self.only_root(&request)?;
        let header = self.change(AuthCommand::RoleDelete(request.into_inner().role)).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        self.only_root(&request)?;
        let pb::AuthRoleGrantPermissionRequest { name: role, perm } = request.into_inner();
        let permission = perm.map(permission_of).transpose()?;
        let header = self.change(AuthCommand::RoleGrantPermission { role, permission }).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        self.only_root(&request)?;
        let pb::AuthRoleRevokePermissionRequest { role, key, range_end } = request.into_inner();
        let header =
            self.change(AuthCommand::RoleRevokePermission { role, range: PermissionRange { key, range_end } }).await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse { header }))
    }
}
