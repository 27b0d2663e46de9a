//! Who calls, and what that user may do. Users and roles themselves are keys of the replica; here are passwords, tokens, and
//! the checks that etcd makes of each call.
//!
//! A call is judged by the users and roles that are on disk here when it comes. What another replica has changed meanwhile
//! is not known yet.

mod caller;
mod claim;
mod error;
mod jwt;
mod passwords;
mod simple;
mod tokens;

use std::sync::Arc;

use eddy_crdt::Users;

pub use self::caller::Caller;
pub use self::claim::{Claim, CommonName};
pub use self::error::{AuthError, OptionsError};
pub use self::jwt::Jwt;
pub use self::passwords::Passwords;
pub use self::simple::SimpleTokens;
pub use self::tokens::Tokens;

use crate::node::Handle;

/// What judges calls. Cheap to clone.
#[derive(Clone)]
pub struct Access {
    node: Handle,
    tokens: Arc<Tokens>,
    passwords: Arc<Passwords>,
    /// Whether the common name of a client's certificate is a user.
    common_names: bool,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("common_names", &self.common_names).finish_non_exhaustive()
    }
}

impl Access {
    /// Judges calls of the node's clients.
    pub fn new(node: Handle, tokens: Tokens, passwords: Passwords, common_names: bool) -> Self {
        Self { node, tokens: Arc::new(tokens), passwords: Arc::new(passwords), common_names }
    }

    /// Who makes a call.
    ///
    /// # Errors
    /// When it shows a token that is none.
    pub fn of<T>(&self, request: &tonic::Request<T>) -> Result<Caller, AuthError> {
        match self.node.users_if_enabled() {
            None => Ok(Caller::ANYBODY),
            Some(users) => self.named(users, &Claim::of(request.metadata(), request.extensions())),
        }
    }

    /// Who makes this claim.
    ///
    /// # Errors
    /// When it is a token that is none.
    pub fn claimed(&self, claim: &Claim) -> Result<Caller, AuthError> {
        self.node.users_if_enabled().map_or(Ok(Caller::ANYBODY), |users| self.named(users, claim))
    }

    fn named(&self, users: Arc<Users>, claim: &Claim) -> Result<Caller, AuthError> {
        if let Some(token) = &claim.token {
            let who = self.tokens.who(&users, token).ok_or(AuthError::InvalidToken)?;
            return Ok(Caller::of(users, Some(who)));
        }
        let name = claim.common_name.as_ref().filter(|_| self.common_names);
        let who = name.map(|name| (name.to_string(), users.revision));
        Ok(Caller::of(users, who))
    }

    /// Hashes a password, when there is room for that.
    ///
    /// # Errors
    /// When too many wait, or it cannot be hashed.
    pub async fn hash(&self, password: String) -> Result<bytes::Bytes, AuthError> {
        self.passwords.hash(password).await
    }

    /// Gives a token to a user who knows the password. `index` is a number of the journal, which etcd's tokens have in them.
    ///
    /// # Errors
    /// When authentication is disabled, the password is wrong, or too many wait.
    pub async fn log_in(&self, name: String, password: String, index: u64) -> Result<String, AuthError> {
        loop {
            let users = self.node.users_if_enabled().ok_or(AuthError::NotEnabled)?;
            let user = users.user(&name).ok_or(AuthError::Failed)?;
            let hash = user.password.clone().ok_or(AuthError::NoPasswordUser)?;
            if !self.passwords.is_right(password.clone(), hash.clone()).await? {
                tracing::warn!(user = name, "a login with a wrong password");
                return Err(AuthError::Failed);
            }
            // The password may have been changed meanwhile.
            let now = self.node.users_if_enabled().ok_or(AuthError::NotEnabled)?;
            if now.user(&name).is_some_and(|user| user.password.as_ref() == Some(&hash)) {
                return self.tokens.assign(&now, &name, index);
            }
        }
    }
}
