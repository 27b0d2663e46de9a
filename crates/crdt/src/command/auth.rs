//! Users, roles and what they may do: what clients ask to change of them, and why that is refused.

use bytes::Bytes;

use crate::words::key::Key;

/// The name of the user that exists as long as authentication is enabled, and of the role that may do everything.
pub const ROOT: &str = "root";

/// What a permission allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Right {
    /// To read.
    Read,
    /// To write.
    Write,
    /// Both.
    ReadWrite,
}

impl Right {
    /// Whether it allows reads.
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether it allows writes.
    pub fn writes(self) -> bool {
        self != Self::Read
    }

    /// What both allow; `None` when that is nothing.
    #[must_use]
    pub fn and(self, other: Self) -> Option<Self> {
        match (self.reads() && other.reads(), self.writes() && other.writes()) {
            (true, true) => Some(Self::ReadWrite),
            (true, false) => Some(Self::Read),
            (false, true) => Some(Self::Write),
            (false, false) => None,
        }
    }
}

/// A range of keys as etcd's permissions write it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PermissionRange {
    /// The first key.
    pub key: Key,
    /// The first key after it; empty: it is one key; one zero byte: it has no end.
    pub range_end: Key,
}

impl PermissionRange {
    /// Whether a role can have a permission on it, by etcd's rules.
    pub fn is_valid(&self) -> bool {
        !self.key.is_empty()
            && (self.range_end.is_empty() || self.key < self.range_end || self.range_end.as_ref() == [0])
    }
}

/// What may be done with a range of keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Permission {
    /// The keys.
    pub range: PermissionRange,
    /// What may be done.
    pub right: Right,
}

/// A change of the users and roles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AuthCommand {
    /// From now on every call needs a user.
    Enable,
    /// From now on none does.
    Disable,
    /// Add a user.
    UserAdd {
        /// Its name.
        name: String,
        /// The hash of its password; `None` for a user that has none, and never will.
        password: Option<Bytes>,
    },
    /// Delete a user, and with it the roles that it has.
    UserDelete(String),
    /// Change the password of a user. A user without one stays without.
    UserChangePassword {
        /// Which user.
        name: String,
        /// The hash of the password.
        password: Bytes,
    },
    /// Give a user a role.
    UserGrantRole {
        /// The user.
        user: String,
        /// The role.
        role: String,
    },
    /// Take a role from a user.
    UserRevokeRole {
        /// The user.
        user: String,
        /// The role.
        role: String,
    },
    /// Add a role.
    RoleAdd(String),
    /// Delete a role, and take it from all users.
    RoleDelete(String),
    /// Give a role a permission; one on the same range is replaced.
    RoleGrantPermission {
        /// The role.
        role: String,
        /// The permission; etcd refuses its absence itself.
        permission: Option<Permission>,
    },
    /// Take a permission from a role.
    RoleRevokePermission {
        /// The role.
        role: String,
        /// The range of the permission, which must be the very same.
        range: PermissionRange,
    },
}

/// Why a change of users and roles is refused, or a call of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AuthRefusal {
    /// There is no user root.
    #[error("root user does not exist")]
    RootUserNotExist,
    /// The user root does not have the role root.
    #[error("root user does not have root role")]
    RootRoleNotExist,
    /// There is a user of that name.
    #[error("user name already exists")]
    UserExists,
    /// No user is named.
    #[error("user name is empty")]
    UserEmpty,
    /// No such user.
    #[error("user name not found")]
    UserNotFound,
    /// There is a role of that name.
    #[error("role name already exists")]
    RoleExists,
    /// No such role.
    #[error("role name not found")]
    RoleNotFound,
    /// No role is named.
    #[error("role name is empty")]
    RoleEmpty,
    /// A grant without a permission.
    #[error("permission not given")]
    PermissionNotGiven,
    /// The user may not do that.
    #[error("permission denied")]
    PermissionDenied,
    /// The user does not have that role.
    #[error("role is not granted to the user")]
    RoleNotGranted,
    /// The role does not have that permission.
    #[error("permission is not granted to the role")]
    PermissionNotGranted,
    /// What would leave nobody to manage users, or is no range.
    #[error("invalid auth management")]
    InvalidManagement,
    /// What the caller knows of users is older than what is known here.
    #[error("revision of auth store is old")]
    OldRevision,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_rights_what_both_allow_is_left() {
        use Right::{Read, ReadWrite, Write};
        for (one, other, both) in [
            (Read, Read, Some(Read)),
            (Read, ReadWrite, Some(Read)),
            (Write, ReadWrite, Some(Write)),
            (ReadWrite, ReadWrite, Some(ReadWrite)),
            (Read, Write, None),
        ] {
            assert_eq!((one.and(other), other.and(one)), (both, both));
        }
    }

    #[test]
    fn ranges_of_permissions_are_etcds() {
        let valid = |key: &'static str, range_end: &'static str| {
            PermissionRange { key: key.into(), range_end: range_end.into() }.is_valid()
        };
        assert!(valid("a", "") && valid("a", "b") && valid("b", "\0") && valid("\0", "\0"));
        assert!(!valid("", "") && !valid("", "\0") && !valid("b", "a") && !valid("a", "a"));
    }
}
