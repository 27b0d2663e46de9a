//! Changes of users and roles.

use std::sync::Arc;

use crate::command::auth::{AuthCommand, AuthRefusal, ROOT};
use crate::command::reply::{Refusal, Reply};
use crate::replica::Replica;
use crate::replica::turn::Turn;
use crate::store::auth::{AuthKey, AuthValue, EnabledValue, GrantValue, PermissionValue, RoleValue, UserValue};
use crate::store::system::SystemKey;
use crate::store::users::{self, Users};

impl Replica {
    /// Users and roles as they are now.
    pub fn users(&self) -> &Arc<Users> {
        &self.users
    }

    /// Reads the users and roles anew.
    pub(crate) fn read_users(&mut self) {
        self.users = Arc::new(Users::read(&self.state.system));
    }

    /// What is known of a key of users and roles; `None` when it was never written.
    fn stored<T: AuthValue>(&self, key: &AuthKey) -> Option<T> {
        let key = SystemKey::Auth(key.clone()).encode();
        self.state.system.get(&key).map(|value| T::read(&value.value))
    }

    /// Changes users or roles.
    pub(crate) fn auth(&mut self, turn: &mut Turn, command: AuthCommand) -> Result<Reply, Refusal> {
        if let Some((key, value)) = self.auth_change(command)? {
            self.transact(turn, |transaction| transaction.write_system(SystemKey::Auth(key), value));
            self.read_users();
        }
        Ok(Reply::Auth { revision: self.state.revision })
    }

    /// The key that changes, and what it becomes; `None` where all is as it is to be.
    fn auth_change(&self, command: AuthCommand) -> Result<Option<(AuthKey, bytes::Bytes)>, AuthRefusal> {
        let users = &*self.users;
        let change = match command {
            AuthCommand::Enable if users.enabled => return Ok(None),
            AuthCommand::Enable => {
                let root = users.user(ROOT).ok_or(AuthRefusal::RootUserNotExist)?;
                if !root.is_root() {
                    return Err(AuthRefusal::RootRoleNotExist);
                }
                (AuthKey::Enabled, EnabledValue { enabled: true }.write())
            }
            AuthCommand::Disable if !users.enabled => return Ok(None),
            AuthCommand::Disable => (AuthKey::Enabled, EnabledValue { enabled: false }.write()),
            AuthCommand::UserAdd { name, .. } if name.is_empty() => return Err(AuthRefusal::UserEmpty),
            AuthCommand::UserAdd { name, .. } if users.user(&name).is_some() => return Err(AuthRefusal::UserExists),
            AuthCommand::UserAdd { name, password } => {
                let key = AuthKey::User(name);
                let life = self.stored::<UserValue>(&key).map_or(0, |user| user.life).saturating_add(1);
                let no_password = password.is_none();
                (key, UserValue { life, gone: false, password: password.unwrap_or_default(), no_password }.write())
            }
            AuthCommand::UserDelete(name) => {
                if users.enabled && name == ROOT {
                    return Err(AuthRefusal::InvalidManagement);
                }
                let mut user = self.user_value(&name)?;
                user.gone = true;
                if name != ROOT {
                    user.password.clear();
                }
                (AuthKey::User(name), user.write())
            }
            AuthCommand::UserChangePassword { name, password } => {
                let mut user = self.user_value(&name)?;
                if !user.no_password {
                    user.password = password;
                }
                (AuthKey::User(name), user.write())
            }
            AuthCommand::UserGrantRole { user, role } => {
                let UserValue { life: user_life, .. } = self.user_value(&user)?;
                if role != ROOT && users.role(&role).is_none() {
                    return Err(AuthRefusal::RoleNotFound);
                }
                if self.has_role(&user, &role) {
                    return Ok(None);
                }
                let role_life = self.role_life(&role);
                (AuthKey::Grant { user, role }, GrantValue { user_life, role_life, revoked: false }.write())
            }
            AuthCommand::UserRevokeRole { user, role } => {
                if users.enabled && user == ROOT && role == ROOT {
                    return Err(AuthRefusal::InvalidManagement);
                }
                let UserValue { life: user_life, .. } = self.user_value(&user)?;
                if !self.has_role(&user, &role) {
                    return Err(AuthRefusal::RoleNotGranted);
                }
                let role_life = self.role_life(&role);
                (AuthKey::Grant { user, role }, GrantValue { user_life, role_life, revoked: true }.write())
            }
            AuthCommand::RoleAdd(name) if name.is_empty() => return Err(AuthRefusal::RoleEmpty),
            AuthCommand::RoleAdd(name) if users.role(&name).is_some() => return Err(AuthRefusal::RoleExists),
            AuthCommand::RoleAdd(name) => {
                let key = AuthKey::Role(name);
                let life = self.stored::<RoleValue>(&key).map_or(0, |role| role.life).saturating_add(1);
                (key, RoleValue { life, gone: false }.write())
            }
            AuthCommand::RoleDelete(name) => {
                if users.enabled && name == ROOT {
                    return Err(AuthRefusal::InvalidManagement);
                }
                users.role(&name).ok_or(AuthRefusal::RoleNotFound)?;
                let key = AuthKey::Role(name);
                let life = self.stored::<RoleValue>(&key).map_or(0, |role| role.life);
                (key, RoleValue { life, gone: true }.write())
            }
            AuthCommand::RoleGrantPermission { role, permission } => {
                let permission = permission.ok_or(AuthRefusal::PermissionNotGiven)?;
                if !permission.range.is_valid() {
                    return Err(AuthRefusal::InvalidManagement);
                }
                users.role(&role).ok_or(AuthRefusal::RoleNotFound)?;
                let value = PermissionValue::new(self.role_life_of(&role), Some(permission.right));
                (AuthKey::Permission { role, range: permission.range }, value.write())
            }
            AuthCommand::RoleRevokePermission { role, range } => {
                let permissions = users.role(&role).ok_or(AuthRefusal::RoleNotFound)?;
                if !permissions.iter().any(|permission| permission.range == range) {
                    return Err(AuthRefusal::PermissionNotGranted);
                }
                let value = PermissionValue::new(self.role_life_of(&role), None);
                (AuthKey::Permission { role, range }, value.write())
            }
        };
        Ok(Some(change))
    }

    fn user_value(&self, name: &str) -> Result<UserValue, AuthRefusal> {
        self.users.user(name).ok_or(AuthRefusal::UserNotFound)?;
        self.stored(&AuthKey::User(name.to_owned())).ok_or(AuthRefusal::UserNotFound)
    }

    fn has_role(&self, user: &str, role: &str) -> bool {
        self.users.user(user).is_some_and(|user| user.roles.contains(role))
    }

    /// Which role of that name there is.
    fn role_life_of(&self, role: &str) -> u64 {
        self.stored::<RoleValue>(&AuthKey::Role(role.to_owned())).map_or(0, |role| role.life)
    }

    /// The same for one that is granted. The role root need not be there for that.
    fn role_life(&self, role: &str) -> u64 {
        match role {
            ROOT => users::deletions(self.stored(&AuthKey::Role(ROOT.to_owned())).as_ref()),
            role => self.role_life_of(role),
        }
    }
}
