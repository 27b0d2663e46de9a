//! Users and roles as system keys: one key for each thing that can change by itself.
//!
//! None of these keys is ever deleted. What is taken away is a value that says so, which a merge weighs against what was
//! given at the same time. A user or a role that is added again after it was deleted begins another life, which is
//! counted. What was given names the lives of both sides, so it is not given to the next one of that name.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::command::auth::{PermissionRange, Right};

/// What a system key of users and roles stands for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AuthKey {
    /// Whether calls need a user.
    Enabled,
    /// A user.
    User(String),
    /// A role.
    Role(String),
    /// A user has a role.
    Grant {
        /// The user.
        user: String,
        /// The role.
        role: String,
    },
    /// A role has a permission on a range.
    Permission {
        /// The role.
        role: String,
        /// The range.
        range: PermissionRange,
    },
}

const ENABLED: u8 = b'e';
const USER: u8 = b'u';
const ROLE: u8 = b'r';
const GRANT: u8 = b'g';
const PERMISSION: u8 = b'p';

impl AuthKey {
    /// Writes the key behind the tag that all of them share.
    pub(super) fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Enabled => out.put_u8(ENABLED),
            Self::User(name) => put(out, USER, &[name.as_bytes()]),
            Self::Role(name) => put(out, ROLE, &[name.as_bytes()]),
            Self::Grant { user, role } => put(out, GRANT, &[user.as_bytes(), role.as_bytes()]),
            Self::Permission { role, range } => {
                put(out, PERMISSION, &[role.as_bytes(), &range.key, &range.range_end]);
            }
        }
    }

    /// Reads it back.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, mut rest) = bytes.split_first()?;
        let mut next = || {
            let length = rest.try_get_u32().ok()? as usize;
            let (part, behind) = rest.split_at_checked(length)?;
            rest = behind;
            Some(part)
        };
        let name = |part: Option<&[u8]>| String::from_utf8(part?.to_vec()).ok();
        let key = match *tag {
            ENABLED => Self::Enabled,
            USER => Self::User(name(next())?),
            ROLE => Self::Role(name(next())?),
            GRANT => Self::Grant { user: name(next())?, role: name(next())? },
            PERMISSION => {
                let role = name(next())?;
                let mut part = || next().map(Bytes::copy_from_slice);
                Self::Permission { role, range: PermissionRange { key: part()?, range_end: part()? } }
            }
            _ => return None,
        };
        rest.is_empty().then_some(key)
    }
}

fn put(out: &mut BytesMut, tag: u8, parts: &[&[u8]]) {
    out.put_u8(tag);
    for part in parts {
        out.put_u32(part.len() as u32);
        out.put_slice(part);
    }
}

/// The value of [`AuthKey::Enabled`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EnabledValue {
    #[prost(bool, tag = "1")]
    pub(crate) enabled: bool,
}

/// The value of [`AuthKey::User`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UserValue {
    /// Counts the users of that name, from 1.
    #[prost(uint64, tag = "1")]
    pub(crate) life: u64,
    /// Whether it was deleted.
    #[prost(bool, tag = "2")]
    pub(crate) gone: bool,
    /// The hash of its password. That of root stays when root is deleted: see [`crate::store::users`].
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) password: Bytes,
    /// Whether it has no password, and is only known by a certificate.
    #[prost(bool, tag = "4")]
    pub(crate) no_password: bool,
}

/// The value of [`AuthKey::Role`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RoleValue {
    /// Counts the roles of that name, from 1.
    #[prost(uint64, tag = "1")]
    pub(crate) life: u64,
    /// Whether it was deleted.
    #[prost(bool, tag = "2")]
    pub(crate) gone: bool,
}

/// The value of [`AuthKey::Grant`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GrantValue {
    /// Which user of that name has it.
    #[prost(uint64, tag = "1")]
    pub(crate) user_life: u64,
    /// Which role of that name it has. The role root need not be there to be had: of it the deletions are counted.
    #[prost(uint64, tag = "2")]
    pub(crate) role_life: u64,
    /// Whether it was taken away.
    #[prost(bool, tag = "3")]
    pub(crate) revoked: bool,
}

/// The value of [`AuthKey::Permission`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PermissionValue {
    /// Which role of that name has it.
    #[prost(uint64, tag = "1")]
    pub(crate) role_life: u64,
    /// Whether it allows reads.
    #[prost(bool, tag = "2")]
    pub(crate) reads: bool,
    /// Whether it allows writes. One that allows neither was taken away.
    #[prost(bool, tag = "3")]
    pub(crate) writes: bool,
}

impl PermissionValue {
    /// What the role may do; `None` when it was taken away.
    pub(crate) fn new(role_life: u64, right: Option<Right>) -> Self {
        let (reads, writes) = (right.is_some_and(Right::reads), right.is_some_and(Right::writes));
        Self { role_life, reads, writes }
    }

    /// What it allows.
    pub(crate) fn right(&self) -> Option<Right> {
        match (self.reads, self.writes) {
            (true, true) => Some(Right::ReadWrite),
            (true, false) => Some(Right::Read),
            (false, true) => Some(Right::Write),
            (false, false) => None,
        }
    }
}

/// Reads a value; one that cannot be read gives nothing to anybody.
pub(crate) trait AuthValue: Message + Default {
    /// What takes away all that the value could give.
    fn nothing() -> Self;

    /// Reads it.
    fn read(value: &[u8]) -> Self {
        Self::decode(value).unwrap_or_else(|_| Self::nothing())
    }

    /// Writes it.
    fn write(&self) -> Bytes {
        self.encode_to_vec().into()
    }
}

impl AuthValue for EnabledValue {
    fn nothing() -> Self {
        Self { enabled: true }
    }
}

impl AuthValue for UserValue {
    fn nothing() -> Self {
        Self { gone: true, ..Self::default() }
    }
}

impl AuthValue for RoleValue {
    fn nothing() -> Self {
        Self { gone: true, ..Self::default() }
    }
}

impl AuthValue for GrantValue {
    fn nothing() -> Self {
        Self { revoked: true, ..Self::default() }
    }
}

impl AuthValue for PermissionValue {
    fn nothing() -> Self {
        Self::default()
    }
}
