//! Why a call is not let through, and why the options of tokens are refused.

use std::path::PathBuf;

use eddy_crdt::AuthRefusal;

/// Why a call is not let through.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AuthError {
    /// The user may not do that, or there is none.
    #[error(transparent)]
    Refused(#[from] AuthRefusal),
    /// There is no such token, or no more.
    #[error("invalid auth token")]
    InvalidToken,
    /// A wrong name or password.
    #[error("authentication failed, invalid user ID or password")]
    Failed,
    /// Nobody can log in: authentication is disabled.
    #[error("authentication is not enabled")]
    NotEnabled,
    /// The user has no password.
    #[error("authentication failed, password was given for no password user")]
    NoPasswordUser,
    /// Tokens are only checked here, with a public key.
    #[error("token signing attempted with verify-only key")]
    VerifyOnly,
    /// No token can be made or no password hashed.
    #[error("{0}")]
    Impossible(String),
    /// Too many wait for the hash of a password.
    #[error("too many logins wait")]
    TooMany,
}

/// Why `--auth-token` is refused.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// Neither of the kinds of tokens, or no `name=value` behind it.
    #[error("auth: invalid auth options")]
    Invalid,
    /// No method of signing of that name.
    #[error("auth: invalid auth signature method")]
    Method,
    /// ECDSA over P-521 is not built.
    #[error("eddy does not sign with {0}")]
    NotBuilt(String),
    /// No key is given.
    #[error("auth: missing key data")]
    MissingKey,
    /// The public key is not that of the private one.
    #[error("auth: public and private keys don't match")]
    KeyMismatch,
    /// A file of a key cannot be read.
    #[error("cannot read {path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        error: std::io::Error,
    },
    /// What a file holds is no key for that method.
    #[error("{0} holds no key for that method of signing")]
    Key(PathBuf),
}
