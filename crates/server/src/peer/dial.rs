//! Reaching a peer: its URLs in turn, TLS as the peer flags say, and how long to wait before the next attempt.

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

use super::FRAME_BYTES_MAX;
use crate::config::url::{Scheme, Url};
use crate::logging;

/// How long an attempt may take: name, TCP and TLS together.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection without a word from the other side for this long is asked whether it is there. Short, since TCP alone
/// takes minutes to see that a network was cut, and as long again to use it when it is back.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How long the answer may take.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of one stream in flight: several of the largest batches.
const STREAM_WINDOW: u32 = 2 << 20;

/// The first pause after a failure, and the longest. Peers that come back are met within this.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(2);

/// Why a peer is not reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// It has no URL that can be dialled.
    #[error("no peer URL to dial")]
    NoUrl,
    /// TCP, TLS or HTTP/2 does not come up.
    #[error("{url}: {reason}")]
    Connect {
        /// Where.
        url: String,
        /// What the system or TLS said.
        reason: String,
    },
}

/// What it takes to dial: the TLS side of the peer flags.
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

    /// A channel over one connection: when that is lost, so is the channel.
    pub(crate) async fn connect(&self, url: &Url) -> Result<Channel, String> {
        let authority = if url.scheme().is_unix() { "localhost".to_owned() } else { url.address() };
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|error| error.to_string())?
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW * 2);
        // Opened here rather than in the connector: its own errors come through as they are.
        let stream = timeout(CONNECT_TIMEOUT, self.open(url)).await.map_err(|_| "timed out".to_owned())??;
        let stream = Arc::new(parking_lot::Mutex::new(Some(TokioIo::new(stream))));
        let connector = tower::service_fn(move |_| {
            // A channel that lost its connection would ask again; it must not: the session is over then.
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

/// How long to wait before the next attempt: twice as long each time, up to a bound, and never exactly as long as
/// others that failed at the same moment.
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
        // Without randomness all wait the longest, which is still right.
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
