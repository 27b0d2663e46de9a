//! Simple tokens: random words, known only to the replica that gave them, until they were not used for some time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eddy_crdt::Users;
use parking_lot::Mutex;

use super::error::AuthError;

const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const LENGTH: usize = 16;

/// How long a token lasts where no time is given, as in etcd.
const TTL_DEFAULT: Duration = Duration::from_secs(300);

/// How many tokens there may be before those that ran out are looked for.
const SWEEP_FROM: usize = 64;

/// What is known of a token.
#[derive(Debug)]
struct Token {
    user: String,
    /// The hash of the password by which it was given: another password, or another user of that name, ends it.
    password: Option<Bytes>,
    /// How often authentication was enabled and disabled then: disabling ends all tokens.
    switched: u64,
    until: Instant,
}

/// The tokens that were given here.
#[derive(Debug)]
pub struct SimpleTokens {
    ttl: Duration,
    given: Mutex<Given>,
}

#[derive(Debug)]
struct Given {
    tokens: HashMap<String, Token>,
    sweep_at: usize,
}

impl SimpleTokens {
    /// Tokens that run out when they were not used for so long (`--auth-token-ttl`).
    pub fn new(ttl: Duration) -> Self {
        let ttl = if ttl.is_zero() { TTL_DEFAULT } else { ttl };
        Self { ttl, given: Mutex::new(Given { tokens: HashMap::new(), sweep_at: SWEEP_FROM }) }
    }

    /// Gives a user a token.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn assign(&self, users: &Users, name: &str, index: u64) -> Result<String, AuthError> {
        let token = format!("{}.{index}", word().map_err(|error| AuthError::Impossible(error.to_string()))?);
        let password = users.user(name).ok_or(AuthError::Failed)?.password.clone();
        let now = Instant::now();
        let mut given = self.given.lock();
        if given.tokens.len() >= given.sweep_at {
            given.tokens.retain(|_, token| token.until > now);
            given.sweep_at = (given.tokens.len() * 2).max(SWEEP_FROM);
        }
        let (user, switched, until) = (name.to_owned(), users.switched, now + self.ttl);
        given.tokens.insert(token.clone(), Token { user, password, switched, until });
        Ok(token)
    }

    /// Whose token that is. It lasts longer then.
    pub fn who(&self, users: &Users, token: &str) -> Option<String> {
        let now = Instant::now();
        let mut given = self.given.lock();
        let known = given.tokens.get_mut(token)?;
        let is_valid = known.until > now
            && known.switched == users.switched
            && users.user(&known.user).is_some_and(|user| user.password == known.password);
        if !is_valid {
            given.tokens.remove(token);
            return None;
        }
        known.until = now + self.ttl;
        Some(known.user.clone())
    }
}

/// A random word. Every letter is as likely as every other.
fn word() -> Result<String, getrandom::Error> {
    let mut word = String::with_capacity(LENGTH);
    while word.len() < LENGTH {
        let mut bytes = [0; LENGTH * 2];
        getrandom::fill(&mut bytes)?;
        let fair = bytes.iter().filter(|byte| usize::from(**byte) < 256 / LETTERS.len() * LETTERS.len());
        let letters = fair.map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]));
        word.extend(letters.take(LENGTH - word.len()));
    }
    Ok(word)
}
