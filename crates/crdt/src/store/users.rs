//! Users and roles as they are now: what the system keys of both make together.
//!
//! One thing no merge of single keys can keep: while authentication is enabled there is a user root with the role root, or
//! nobody could manage users. Where root was deleted apart from being enabled, root stays as long as that lasts.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::command::auth::{AuthRefusal, Permission, ROOT};
use crate::store::auth::{AuthKey, AuthValue, EnabledValue, GrantValue, PermissionValue, RoleValue, UserValue};
use crate::store::system::{System, SystemKey};

/// The revision of users and roles where there are none, as in etcd.
const FIRST_REVISION: u64 = 1;

/// All users and roles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Users {
    /// Whether calls need a user.
    pub enabled: bool,
    /// Counts the changes. Replicas with equal users have equal revisions.
    pub revision: u64,
    /// Counts how often calls came to need a user, and ceased to.
    pub switched: u64,
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, Vec<Permission>>,
}

/// A user.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct User {
    /// The hash of its password; `None` for one that has none, and can only show a certificate.
    pub password: Option<Bytes>,
    /// Its roles.
    pub roles: BTreeSet<String>,
    reads: Ranges,
    writes: Ranges,
}

/// Ranges of keys that neither overlap nor touch, in order. No end: none at all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Ranges(Vec<(Bytes, Option<Bytes>)>);

impl Ranges {
    fn of<'a>(permissions: impl Iterator<Item = &'a Permission>) -> Self {
        let mut all: Vec<(Bytes, Option<Bytes>)> = permissions
            .map(|Permission { range, .. }| match &range.range_end[..] {
                [] => (range.key.clone(), Some([&range.key[..], &[0]].concat().into())),
                [0] => (range.key.clone(), None),
                _ => (range.key.clone(), Some(range.range_end.clone())),
            })
            .collect();
        all.sort_unstable();
        let mut ranges: Vec<(Bytes, Option<Bytes>)> = vec![];
        for (begin, end) in all {
            match ranges.last_mut() {
                Some((_, last)) if last.as_ref().is_none_or(|last| begin <= *last) => {
                    // No end is the furthest.
                    if let (Some(so_far), end) = (&last, &end)
                        && end.as_ref().is_none_or(|end| end > so_far)
                    {
                        *last = end.clone();
                    }
                }
                _ => ranges.push((begin, end)),
            }
        }
        Self(ranges)
    }

    /// Whether the range lies in one of them. An end of no bytes: it is one key; of one zero byte: it has no end.
    fn contain(&self, key: &[u8], range_end: &[u8]) -> bool {
        // A key of no bytes is behind all others where etcd's permissions are concerned.
        if key.is_empty() {
            return false;
        }
        let behind = self.0.partition_point(|(begin, _)| begin[..] <= *key);
        let Some((begin, end)) = behind.checked_sub(1).and_then(|at| self.0.get(at)) else { return false };
        let Some(end) = end else { return matches!(range_end, [] | [0]) || begin[..] < *range_end };
        match range_end {
            [] => *key < end[..],
            [0] => false,
            _ => *key < end[..] && begin[..] < *range_end && *range_end <= end[..],
        }
    }
}

impl Default for Users {
    fn default() -> Self {
        Self { enabled: false, revision: FIRST_REVISION, switched: 0, users: BTreeMap::new(), roles: BTreeMap::new() }
    }
}

impl Users {
    /// Reads the system keys.
    pub(crate) fn read(system: &System) -> Self {
        let mut read = Read::default();
        for (key, value) in system {
            if let Some(SystemKey::Auth(key)) = SystemKey::decode(key) {
                read.take(key, &value.value, u64::try_from(value.version).unwrap_or_default());
            }
        }
        read.join()
    }

    /// A user.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    /// What a role may do; `None` when there is no such role.
    pub fn role(&self, name: &str) -> Option<&[Permission]> {
        self.roles.get(name).map(Vec::as_slice)
    }

    /// All users, in order of their names.
    pub fn users(&self) -> impl Iterator<Item = (&str, &User)> {
        self.users.iter().map(|(name, user)| (name.as_str(), user))
    }

    /// All roles, in order of their names.
    pub fn roles(&self) -> impl Iterator<Item = (&str, &[Permission])> {
        self.roles.iter().map(|(name, permissions)| (name.as_str(), permissions.as_slice()))
    }

    /// Whether there was never any of them.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that a user may manage what is no key, which takes the role root.
    ///
    /// # Errors
    /// When it may not.
    pub fn check_root(&self, name: &str) -> Result<(), AuthRefusal> {
        match self.user(name) {
            None => Err(AuthRefusal::UserNotFound),
            Some(user) if user.is_root() => Ok(()),
            Some(_) => Err(AuthRefusal::PermissionDenied),
        }
    }

    /// Checks that a user may read, or write, a key (where the end has no bytes) or a range.
    ///
    /// # Errors
    /// When it may not.
    pub fn check(&self, name: &str, writes: bool, key: &[u8], range_end: &[u8]) -> Result<(), AuthRefusal> {
        let may = |user: &User| {
            let ranges = if writes { &user.writes } else { &user.reads };
            user.is_root() || ranges.contain(key, range_end)
        };
        if self.user(name).is_some_and(may) { Ok(()) } else { Err(AuthRefusal::PermissionDenied) }
    }
}

impl User {
    /// Whether it may do everything.
    pub fn is_root(&self) -> bool {
        self.roles.contains(ROOT)
    }
}

/// What the keys say, one by one.
#[derive(Default)]
struct Read {
    enabled: bool,
    changes: u64,
    switched: u64,
    users: BTreeMap<String, UserValue>,
    roles: BTreeMap<String, RoleValue>,
    grants: Vec<(String, String, GrantValue)>,
    permissions: Vec<(String, Permission, u64)>,
}

impl Read {
    fn take(&mut self, key: AuthKey, value: &[u8], version: u64) {
        // Enabling is no change of what etcd counts, disabling is.
        let counts = if key == AuthKey::Enabled { version / 2 } else { version };
        if key == AuthKey::Enabled {
            self.switched = version;
        }
        self.changes = self.changes.saturating_add(counts);
        match key {
            AuthKey::Enabled => self.enabled = EnabledValue::read(value).enabled,
            AuthKey::User(name) => {
                self.users.insert(name, UserValue::read(value));
            }
            AuthKey::Role(name) => {
                self.roles.insert(name, RoleValue::read(value));
            }
            AuthKey::Grant { user, role } => self.grants.push((user, role, GrantValue::read(value))),
            AuthKey::Permission { role, range } => {
                let value = PermissionValue::read(value);
                if let Some(right) = value.right() {
                    self.permissions.push((role, Permission { range, right }, value.role_life));
                }
            }
        }
    }

    fn join(self) -> Users {
        let mut roles: BTreeMap<String, Vec<Permission>> =
            self.roles.iter().filter(|(_, role)| !role.gone).map(|(name, _)| (name.clone(), vec![])).collect();
        for (role, permission, life) in self.permissions {
            if self.roles.get(&role).is_some_and(|role| role.life == life)
                && let Some(permissions) = roles.get_mut(&role)
            {
                permissions.push(permission);
            }
        }
        let keeps_root = |name: &str| self.enabled && name == ROOT;
        let is_there = |(name, user): &(&String, &UserValue)| !user.gone || keeps_root(name);
        let mut users: BTreeMap<String, User> = self
            .users
            .iter()
            .filter(is_there)
            .map(|(name, user)| {
                let password = (!user.no_password).then(|| user.password.clone());
                (name.clone(), User { password, ..User::default() })
            })
            .collect();
        for (user, role, grant) in self.grants {
            let is_had = match role.as_str() {
                ROOT => deletions(self.roles.get(ROOT)) == grant.role_life,
                role => self.roles.get(role).is_some_and(|role| !role.gone && role.life == grant.role_life),
            };
            let is_users = self.users.get(&user).is_some_and(|user| user.life == grant.user_life);
            if is_had
                && is_users
                && !grant.revoked
                && let Some(user) = users.get_mut(&user)
            {
                user.roles.insert(role);
            }
        }
        if let Some(root) = users.get_mut(ROOT).filter(|_| self.enabled) {
            root.roles.insert(ROOT.to_owned());
        }
        for user in users.values_mut() {
            let permissions = || user.roles.iter().filter_map(|role| roles.get(role)).flatten();
            let reads = Ranges::of(permissions().filter(|permission| permission.right.reads()));
            let writes = Ranges::of(permissions().filter(|permission| permission.right.writes()));
            (user.reads, user.writes) = (reads, writes);
        }
        let revision = FIRST_REVISION.saturating_add(self.changes);
        Users { enabled: self.enabled, revision, switched: self.switched, users, roles }
    }
}

/// How often a role was deleted.
pub(crate) fn deletions(role: Option<&RoleValue>) -> u64 {
    role.map_or(0, |role| if role.gone { role.life } else { role.life.saturating_sub(1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::auth::{PermissionRange, Right};

    fn ranges(of: &[(&'static str, &'static str)]) -> Ranges {
        let range = |key: &'static str, end: &'static str| PermissionRange { key: key.into(), range_end: end.into() };
        let permissions: Vec<Permission> =
            of.iter().map(|(key, end)| Permission { range: range(key, end), right: Right::Read }).collect();
        Ranges::of(permissions.iter())
    }

    /// Asks key by key, of all keys of two letters.
    #[test]
    fn ranges_contain_what_permissions_cover_together() {
        let names = ["\0", "a", "a\0", "b", "bb", "c", "d"];
        let ends = ["", "\0", "a\0", "b", "c", "d"];
        let all: Vec<(&str, &str)> =
            names.iter().flat_map(|name| ends.map(|end| (*name, end))).filter(|(n, e)| e.len() < 2 || n < e).collect();
        let covers = |of: &[(&str, &str)], key: &str| {
            of.iter().any(|(begin, end)| match *end {
                "" => key == *begin,
                "\0" => key >= *begin,
                end => key >= *begin && key < end,
            })
        };
        let points = ["\0", "\0\0", "a", "a\0", "aa", "b", "b\0", "bb", "bc", "c", "cc", "d", "d\0", "e"];
        for one in &all {
            for other in &all {
                let (permissions, merged) = ([*one, *other], ranges(&[*one, *other]));
                for (at, from) in points.iter().enumerate() {
                    assert_eq!(
                        merged.contain(from.as_bytes(), b""),
                        covers(&permissions, from),
                        "{permissions:?} {from:?}"
                    );
                    let all_from = points[at..].iter().all(|key| covers(&permissions, key));
                    let endless = permissions.iter().any(|(_, end)| *end == "\0");
                    assert_eq!(
                        merged.contain(from.as_bytes(), b"\0"),
                        all_from && endless,
                        "{permissions:?} {from:?}-"
                    );
                    for to in &points[at + 1..] {
                        let between = points.iter().filter(|key| *key >= from && *key < to);
                        if merged.contain(from.as_bytes(), to.as_bytes()) {
                            assert!(
                                between.clone().all(|key| covers(&permissions, key)),
                                "{permissions:?} {from:?} {to:?}"
                            );
                        }
                    }
                }
            }
        }
        assert!(ranges(&[("a", "b"), ("b", "c")]).contain(b"a", b"c"), "they touch");
        assert!(!ranges(&[("a", "b"), ("bb", "c")]).contain(b"a", b"c"));
        assert!(!ranges(&[("a", "\0")]).contain(b"", b""));
    }
}
