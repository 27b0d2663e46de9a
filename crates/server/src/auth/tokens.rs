//! Tokens, of the kind that `--auth-token` names.

use std::collections::BTreeMap;
use std::time::Duration;

use eddy_crdt::Users;

use super::error::{AuthError, OptionsError};
use super::jwt::Jwt;
use super::simple::SimpleTokens;

/// How tokens are given and recognized.
#[derive(Debug)]
pub enum Tokens {
    /// Known to the replica that gave them.
    Simple(SimpleTokens),
    /// Signed, so that every replica with the key recognizes them.
    Jwt(Box<Jwt>),
}

impl Tokens {
    /// Tokens as the flags say.
    ///
    /// # Errors
    /// When the options are not etcd's, or a key cannot be had.
    pub fn new(options: &str, simple_ttl: Duration) -> Result<Self, OptionsError> {
        let mut parts = options.split(',');
        let kind = parts.next().unwrap_or_default();
        let mut given = BTreeMap::new();
        for part in parts {
            let (name, value) = part.split_once('=').ok_or(OptionsError::Invalid)?;
            if value.contains('=') || given.insert(name, value).is_some() {
                return Err(OptionsError::Invalid);
            }
        }
        match kind {
            "simple" => Ok(Self::Simple(SimpleTokens::new(simple_ttl))),
            "jwt" => Ok(Self::Jwt(Box::new(Jwt::new(&given)?))),
            _ => Err(OptionsError::Invalid),
        }
    }

    /// Gives a user a token.
    ///
    /// # Errors
    /// When none can be made here.
    pub fn assign(&self, users: &Users, name: &str, index: u64) -> Result<String, AuthError> {
        match self {
            Self::Simple(tokens) => tokens.assign(users, name, index),
            Self::Jwt(jwt) => jwt.assign(name, users.revision),
        }
    }

    /// Whose token that is, and as of which revision of users and roles.
    pub fn who(&self, users: &Users, token: &str) -> Option<(String, u64)> {
        match self {
            Self::Simple(tokens) => Some((tokens.who(users, token)?, users.revision)),
            Self::Jwt(jwt) => jwt.who(token),
        }
    }
}
