//! Hashes of passwords. They are made to be slow, so they are made aside, and only a few at a time: logins must not take
//! the processors from puts.

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::error::AuthError;

/// How many may wait for a hash; more are refused.
const WAITING_MAX: usize = 1024;

/// bcrypt's bounds, and the cost where another one is given.
const COSTS: std::ops::RangeInclusive<u64> = 4..=31;
const COST_DEFAULT: u32 = 10;

/// Hashes and compares passwords.
#[derive(Debug)]
pub struct Passwords {
    cost: u32,
    running: Semaphore,
    waiting: Semaphore,
}

impl Passwords {
    /// Hashes of that cost (`--bcrypt-cost`). One that bcrypt does not have is replaced by its default, as in etcd.
    pub fn new(cost: u64) -> Self {
        let cost = match u32::try_from(cost) {
            Ok(valid) if COSTS.contains(&cost) => valid,
            _ => {
                tracing::warn!(cost, instead = COST_DEFAULT, "bcrypt has no such cost: the default is taken");
                COST_DEFAULT
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { cost, running: Semaphore::new((cores / 2).max(1)), waiting: Semaphore::new(WAITING_MAX) }
    }

    async fn aside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, AuthError> {
        let _waits = self.waiting.try_acquire().map_err(|_| AuthError::TooMany)?;
        let closed = |_| AuthError::TooMany;
        let _runs = self.running.acquire().await.map_err(closed)?;
        tokio::task::spawn_blocking(work).await.map_err(|error| AuthError::Impossible(error.to_string()))
    }

    /// The hash of a password.
    ///
    /// # Errors
    /// When it is too long for bcrypt, or too many wait.
    pub async fn hash(&self, password: String) -> Result<Bytes, AuthError> {
        let cost = self.cost;
        let hashed = self.aside(move || bcrypt::non_truncating_hash(password, cost)).await?;
        match hashed {
            Ok(hash) => Ok(hash.into()),
            // Go's text.
            Err(bcrypt::BcryptError::Truncation(_)) => {
                Err(AuthError::Impossible("bcrypt: password length exceeds 72 bytes".to_owned()))
            }
            Err(error) => Err(AuthError::Impossible(error.to_string())),
        }
    }

    /// Whether a password has that hash.
    ///
    /// # Errors
    /// When too many wait.
    pub async fn is_right(&self, password: String, hash: Bytes) -> Result<bool, AuthError> {
        // A user whose hash is none has a password that nobody knows.
        let verify =
            move || std::str::from_utf8(&hash).is_ok_and(|hash| bcrypt::verify(password, hash).unwrap_or(false));
        self.aside(verify).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash that Go's bcrypt made of "secret".
    const BY_GO: &str = "$2a$04$QZnkbsQNqyKTGHAPJLPEIOeDKsjIM9LfvVgsFDTqfLOInCNCwIQBK";

    #[tokio::test]
    async fn a_password_is_recognized_by_its_hash() {
        let passwords = Passwords::new(4);
        let hash = passwords.hash("secret".to_owned()).await.unwrap();
        assert!(hash.starts_with(b"$2b$04$") || hash.starts_with(b"$2a$04$"), "{hash:?}");
        let is_right = |password: &str, hash: &Bytes| passwords.is_right(password.to_owned(), hash.clone());
        assert_eq!(is_right("secret", &hash).await, Ok(true));
        assert_eq!(is_right("secrets", &hash).await, Ok(false));
        assert_eq!(is_right("", &Bytes::new()).await, Ok(false), "no hash is no empty password");
        assert_eq!(is_right("other", &Bytes::from_static(BY_GO.as_bytes())).await, Ok(false));
        let long = passwords.hash("x".repeat(80)).await;
        assert_eq!(long, Err(AuthError::Impossible("bcrypt: password length exceeds 72 bytes".to_owned())));
    }

    #[tokio::test]
    async fn who_comes_when_too_many_wait_is_refused() {
        let passwords = Passwords { waiting: Semaphore::new(1), ..Passwords::new(4) };
        let busy = passwords.waiting.try_acquire();
        assert_eq!(passwords.hash("a".to_owned()).await, Err(AuthError::TooMany));
        drop(busy);
        assert!(passwords.hash("a".to_owned()).await.is_ok());
    }
}
