//! Dials a peer: its URLs in turn, with TLS by the peer flags, and with pauses between attempts.

use std::sync::Arc;
use std::time::Duration;

use eddy_proto::peer::peer_client::PeerClient;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::config::url::{Scheme, Url};
use crate::logging;

/// The longest frame, bytes: that of the longest message, an entry of one huge transaction.
pub(crate) const FRAME_BYTES_MAX: usize = eddy_crdt::sync::ENTRY_MAX + (1 << 20);

/// How long an attempt may take: name, TCP and TLS together.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// After this long without a message the other side is pinged. TCP alone takes minutes to see that a network was cut, and
/// as long again to use it when it is back. With [`PING_TIMEOUT`] a cut link shows within 5 s in `eddy status`.
pub(crate) const PING_INTERVAL: Duration = Duration::from_millis(1_500);

/// How long the answer to a ping may take.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Bytes of one stream in flight, enough for several of the largest batches.
const STREAM_WINDOW: u32 = 2 << 20;

/// The first and the longest pause after a failure. A peer that comes back is met within the longest.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(2);

/// Why a peer is not reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The peer has no URL.
    #[error("no peer URL to dial")]
    NoUrl,
    /// TCP, TLS or HTTP/2 does not come up.
    #[error("{url}: {reason}")]
    Connect {
        /// The URL that was dialled.
        url: String,
        /// What the system or TLS said.
        reason: String,
    },
}

/// Dials peers with the TLS settings of the peer flags.
#[derive(Clone, Debug)]
pub struct Dialer {
    tls: Arc<ClientConfig>,
}

impl Dialer {
    pub(crate) fn new(tls: Arc<ClientConfig>) -> Self {
        Self { tls }
    }

    /// Connects to the first of the URLs that answers.
    pub(crate) async fn dial(&self, urls: &[String]) -> Result<PeerClient<Channel>, DialError> {
        let mut failed = DialError::NoUrl;
        for text in urls {
            let connected = match Url::parse(text) {
                Ok(url) => self.connect(&url).await,
                Err(error) => Err(error.to_string()),
            };
            match connected {
                Ok(channel) => {
                    return Ok(PeerClient::new(channel)
                        .max_decoding_message_size(FRAME_BYTES_MAX)
                        .max_encoding_message_size(FRAME_BYTES_MAX));
                }
                Err(reason) => failed = DialError::Connect { url: text.clone(), reason },
            }
        }
        Err(failed)
    }

    /// Opens a channel over one connection. It ends with the connection.
    pub(crate) async fn connect(&self, url: &Url) -> Result<Channel, String> {
        let authority = if url.scheme().is_unix() { "localhost".to_owned() } else { url.address() };
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|error| error.to_string())?
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW * 2);
        // Opened here rather than in the connector, so that errors arrive unchanged.
        let stream = timeout(CONNECT_TIMEOUT, self.open(url)).await.map_err(|_| "timed out".to_owned())??;
        let stream = Arc::new(parking_lot::Mutex::new(Some(TokioIo::new(stream))));
        let connector = tower::service_fn(move |_| {
            // A channel that lost its connection asks for another one. It gets none: the session is over.
            let stream = stream.lock().take();
            async move { stream.ok_or_else(|| std::io::Error::other("the connection was lost")) }
        });
        let connected = timeout(CONNECT_TIMEOUT, endpoint.connect_with_connector(connector)).await;
        connected.map_err(|_| "timed out".to_owned())?.map_err(|error| logging::chain(&error))
    }

    async fn open(&self, url: &Url) -> Result<Box<dyn Stream>, String> {
        let text = |error: std::io::Error| error.to_string();
        let plain: Box<dyn Stream> = match url.scheme() {
            Scheme::Unix | Scheme::Unixs => Box::new(UnixStream::connect(url.socket_path()).await.map_err(text)?),
            Scheme::Http | Scheme::Https => {
                let stream = TcpStream::connect(url.address()).await.map_err(text)?;
                stream.set_nodelay(true).map_err(text)?;
                Box::new(stream)
            }
        };
        if !url.scheme().is_tls() {
            return Ok(plain);
        }
        let host = if url.scheme().is_unix() { "localhost" } else { url.host() };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(self.tls.clone()).connect(name, plain).await.map_err(text)?;
        Ok(Box::new(stream))
    }
}

/// A connection of any kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// The pauses between attempts. Each is up to twice as long as the last, up to a bound. Their length is random, so that
/// members that failed together do not come back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: *PAUSE.start() }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// The pause after one more failure.
    pub(crate) fn pause(&mut self) -> Duration {
        let bound = self.next;
        self.next = (self.next * 2).min(*PAUSE.end());
        // Without randomness the pause is the longest, which still works.
        let share = getrandom::u32().unwrap_or(u32::MAX);
        bound.mul_f64(0.5 + 0.5 * f64::from(share) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew() {
        let mut backoff = Backoff::new();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.pause()).collect();
        assert!(pauses[0] >= *PAUSE.start() / 2 && pauses[0] <= *PAUSE.start());
        assert!(pauses.iter().all(|pause| pause <= PAUSE.end()));
        assert!(pauses[19] >= *PAUSE.end() / 2);
        backoff.reset();
        assert!(backoff.pause() <= *PAUSE.start());
    }
}
