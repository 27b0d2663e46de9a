//! What a caller may do: the checks of etcd's `auth` package and of its appliers.

use std::sync::Arc;

use eddy_crdt::{AuthRefusal, Key, Users};
use eddy_proto::etcdserverpb::request_op::Request as Step;
use eddy_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};

/// Who makes a call, and what users and roles there are. Nothing is kept from anybody while authentication is disabled.
#[derive(Clone, Debug)]
pub struct Caller(Option<Judged>);

#[derive(Clone, Debug)]
struct Judged {
    users: Arc<Users>,
    /// Its name, and the revision of users and roles when it was recognized. `None`: it showed nothing.
    who: Option<(String, u64)>,
}

/// The keys of a lease, asked for where a put names one.
pub type LeaseKeys<'a> = &'a dyn Fn(i64) -> Vec<Key>;

impl Caller {
    /// Authentication is disabled.
    pub const ANYBODY: Self = Self(None);

    pub(super) fn of(users: Arc<Users>, who: Option<(String, u64)>) -> Self {
        Self(Some(Judged { users, who }))
    }

    /// Its name, if it has one.
    pub fn name(&self) -> Option<&str> {
        Some(self.0.as_ref()?.who.as_ref()?.0.as_str())
    }

    /// Whether a user has a role, as far as this caller's call is concerned.
    pub fn has_role(&self, role: &str) -> bool {
        let user = || self.0.as_ref()?.users.user(self.name()?);
        user().is_some_and(|user| user.roles.contains(role))
    }

    /// Checks that the caller is somebody.
    ///
    /// # Errors
    /// When it is not.
    pub fn is_somebody(&self) -> Result<(), AuthRefusal> {
        match &self.0 {
            Some(Judged { who: None, .. }) => Err(AuthRefusal::UserEmpty),
            _ => Ok(()),
        }
    }

    /// Checks that the caller has the role root.
    ///
    /// # Errors
    /// When it has not.
    pub fn is_root(&self) -> Result<(), AuthRefusal> {
        let Some(Judged { users, who }) = &self.0 else { return Ok(()) };
        match who {
            Some((name, _)) if !name.is_empty() => users.check_root(name),
            _ => Err(AuthRefusal::UserEmpty),
        }
    }

    fn check(&self, writes: bool, key: &[u8], range_end: &[u8]) -> Result<(), AuthRefusal> {
        let Some(Judged { users, who }) = &self.0 else { return Ok(()) };
        // A token that names no revision is nobody's.
        let Some((name, revision @ 1..)) = who else { return Err(AuthRefusal::UserEmpty) };
        if *revision < users.revision {
            return Err(AuthRefusal::OldRevision);
        }
        users.check(name, writes, key, range_end)
    }

    /// Checks a read of a range.
    ///
    /// # Errors
    /// When the caller may not read all of it.
    pub fn reads(&self, key: &[u8], range_end: &[u8]) -> Result<(), AuthRefusal> {
        self.check(false, key, range_end)
    }

    /// Checks a read of keys.
    ///
    /// # Errors
    /// When the caller may not read one of them.
    pub fn reads_all(&self, keys: &[Key]) -> Result<(), AuthRefusal> {
        self.as_root_or(|| keys.iter().try_for_each(|key| self.reads(key, &[])))
    }

    /// Checks a write of keys, as a revoke of their lease is one.
    ///
    /// # Errors
    /// When the caller may not write one of them.
    pub fn writes_all(&self, keys: &[Key]) -> Result<(), AuthRefusal> {
        self.as_root_or(|| keys.iter().try_for_each(|key| self.check(true, key, &[])))
    }

    fn as_root_or(&self, check: impl FnOnce() -> Result<(), AuthRefusal>) -> Result<(), AuthRefusal> {
        if self.is_root().is_ok() { Ok(()) } else { check() }
    }

    /// Checks a put. A lease on which other keys hang is a way to delete these, so they must be the caller's to write.
    ///
    /// # Errors
    /// When the caller may not do it.
    pub fn puts(&self, request: &PutRequest, keys_of: LeaseKeys<'_>) -> Result<(), AuthRefusal> {
        if self.0.is_none() {
            return Ok(());
        }
        self.check(true, &request.key, &[])?;
        if request.lease != 0 {
            self.as_root_or(|| self.writes_all(&keys_of(request.lease)))?;
        }
        if request.prev_kv { self.reads(&request.key, &[]) } else { Ok(()) }
    }

    /// Checks a delete.
    ///
    /// # Errors
    /// When the caller may not do it.
    pub fn deletes(&self, request: &DeleteRangeRequest) -> Result<(), AuthRefusal> {
        self.check(true, &request.key, &request.range_end)?;
        if request.prev_kv { self.reads(&request.key, &request.range_end) } else { Ok(()) }
    }

    /// Checks a transaction: all that it might do, whichever branch is run.
    ///
    /// # Errors
    /// When the caller may not do all of it.
    pub fn runs(&self, request: &TxnRequest, keys_of: LeaseKeys<'_>) -> Result<(), AuthRefusal> {
        if self.0.is_none() {
            return Ok(());
        }
        for compare in &request.compare {
            self.reads(&compare.key, &compare.range_end)?;
        }
        let mut steps = request.success.iter().chain(&request.failure);
        steps.try_for_each(|step| self.step(step, keys_of))
    }

    fn step(&self, step: &RequestOp, keys_of: LeaseKeys<'_>) -> Result<(), AuthRefusal> {
        match &step.request {
            None => Ok(()),
            Some(Step::RequestRange(range)) => self.reads(&range.key, &range.range_end),
            Some(Step::RequestPut(put)) => self.puts(put, keys_of),
            Some(Step::RequestDeleteRange(delete)) => {
                if delete.prev_kv {
                    self.reads(&delete.key, &delete.range_end)?;
                }
                self.check(true, &delete.key, &delete.range_end)
            }
            Some(Step::RequestTxn(txn)) => self.runs(txn, keys_of),
        }
    }
}
