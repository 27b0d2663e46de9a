//! One connection, from its first byte to its last: TLS or not, HTTP/1.1 or HTTP/2.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::answer::answer;
use super::calls::{Calls, Driven};
use super::pings::Pings;
use super::setup::{Peer, Setup, remote};
use super::sniff::Sniffed;
use crate::auth::CommonName;
use crate::tls::san::{self, common_name};

/// A TLS handshake that takes longer is given up; etcd's limit.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of one stream in flight before the receiver must answer. It is above the largest usual request (1.5 MiB), so
/// that such a request never waits for a window.
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
/// The same for all streams of a connection: bounds what one client can make us buffer.
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes of one stream that wait for the client to read: what a watch costs whose client never does.
const SEND_BUFFER: usize = 128 * 1024;
/// Requests that their client took back before they were looked at; above it the connection is closed as an attack
/// (CVE-2023-44487). h2's 20 is less than what one client program cancels at once when it ends.
const PENDING_RESETS: usize = 1024;
/// Bytes of headers of one request; Go's limit for HTTP/1, and grpc-go's is larger than anything sent.
const HEADERS_MAX: u32 = 64 * 1024;
/// Buffer of an HTTP/1 connection: requests have no body to speak of.
const HTTP1_BUFFER: usize = 64 * 1024;
/// Idle time after which the kernel asks whether a TCP peer is still there, and the interval of its questions; Go's.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// A connection that was accepted.
pub(super) enum Stream {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// Serves a connection to its end, or until the process stops and its requests are answered.
pub(super) async fn serve(setup: Arc<Setup>, stream: Stream) {
    match stream {
        Stream::Tcp(stream, address) => {
            // Neither failing is a reason to refuse the connection.
            let _latency_only = stream.set_nodelay(true);
            let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE).with_interval(TCP_KEEPALIVE);
            let _late_detection = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
            first_byte(setup, stream, Some(address)).await;
        }
        Stream::Unix(stream) => first_byte(setup, stream, None).await,
    }
}

async fn first_byte<S>(setup: Arc<Setup>, stream: S, address: Option<SocketAddr>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stream = Sniffed::new(stream);
    let limit = setup.limits.header_timeout;
    let first = until_stop(&setup.stop, timeout(limit, stream.is_tls())).await;
    let Some(Ok(Ok(encrypted))) = first else { return };
    let peer = Peer { address, tls: encrypted, common_name: None };
    if !encrypted {
        // Like etcd's multiplexer: what is not served here is closed without a word.
        if setup.plain {
            http(setup, stream, peer).await;
        }
        return;
    }
    // Boxed, like what follows it: a connection that has sent nothing does not carry the size of a handshake.
    if let Some(tls) = setup.tls.clone() {
        Box::pin(handshake(setup, tls, stream, peer)).await;
    }
}

async fn handshake<S>(setup: Arc<Setup>, tls: Arc<ServerConfig>, stream: S, mut peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let address = peer.address;
    let accepted = until_stop(&setup.stop, timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream))).await;
    match accepted {
        Some(Ok(Ok(stream))) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(|certs| certs.first());
            if setup.checks_san
                && let (Some(cert), Some(address)) = (shown, address)
                && let Err(error) = san::check(cert, address.ip()).await
            {
                return setup.rejected(Some(address), &error.to_string());
            }
            peer.common_name = shown.filter(|_| setup.names_users).and_then(common_name).map(CommonName);
            http(setup, stream, peer).await;
        }
        Some(Ok(Err(err))) if err.kind() == std::io::ErrorKind::UnexpectedEof => {
            setup.metrics.tls_handshake_failures.inc();
            tracing::debug!("remote-addr" = remote(address), error = %err, "rejected connection on {} endpoint", setup.side());
        }
        Some(Ok(Err(err))) => setup.rejected(address, &err.to_string()),
        Some(Err(_)) => {
            setup.metrics.tls_handshake_failures.inc();
            tracing::warn!("remote-addr" = remote(address), error = "handshake timed out", "rejected connection");
        }
        None => {}
    }
}

async fn http<S>(setup: Arc<Setup>, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stream = Sniffed::new(stream);
    let version = until_stop(&setup.stop, timeout(setup.limits.header_timeout, stream.is_http2())).await;
    let Some(Ok(Ok(two))) = version else { return };
    // Boxed, so that a connection that idles in one of them does not carry the size of all.
    if two { Box::pin(http2(setup, stream, peer)).await } else { Box::pin(http1(setup, stream, peer)).await }
}

async fn http2<S>(setup: Arc<Setup>, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &setup.limits;
    let min_time = limits.ping_min_time;
    let calls = Calls::default();
    let mut builder = http2::Builder::new(calls.clone());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_max)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEADERS_MAX)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(Some(PENDING_RESETS))
        .keep_alive_interval(limits.ping_interval)
        .keep_alive_timeout(limits.ping_timeout);
    // A child: every wake-up asks it, and all connections asking one token would wait for each other.
    let stop = setup.stop.child_token();
    let announce = calls.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        announce.announce(request.uri().path());
        answer(setup.clone(), peer.clone(), request)
    });
    let stream = Pings::new(stream, min_time);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut driven = Driven::new(connection.as_mut(), calls);
    tokio::select! {
        // What went wrong on one connection is its client's business; requests are counted and logged elsewhere.
        _ = &mut driven => {}
        () = stop.cancelled() => {
            driven.connection().graceful_shutdown();
            let _closed = driven.await;
        }
    }
}

async fn http1<S>(setup: Arc<Setup>, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(setup.limits.header_timeout).max_buf_size(HTTP1_BUFFER);
    // A child: every wake-up asks it, and all connections asking one token would wait for each other.
    let stop = setup.stop.child_token();
    let service = service_fn(move |request| answer(setup.clone(), peer.clone(), request));
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _closed = connection.await;
        }
    }
}

async fn until_stop<T>(stop: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        output = future => Some(output),
        () = stop.cancelled() => None,
    }
}
