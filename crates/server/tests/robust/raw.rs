//! Clients that say exactly which bytes they send.

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An HTTP/2 frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The header block of a gRPC request, without compression (RFC 7541, section 6.2.2).
pub fn grpc_headers(path: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [
        // :method POST and :scheme http, then :path, :authority, content-type and te.
        vec![0x83, 0x86, 0x04],
        text(path),
        vec![0x01],
        text("test"),
        vec![0x0f, 0x10],
        text("application/grpc"),
        vec![0x00],
        text("te"),
        text("trailers"),
    ]
    .concat()
}

/// The settings that a server begins a connection with: number and value of each.
pub async fn settings(address: (&str, u16)) -> Result<Vec<(u16, u32)>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.context("the server's settings")?;
    anyhow::ensure!(head[3] == SETTINGS, "{head:?}");
    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    stream.read_exact(&mut payload).await?;
    let (settings, _) = payload.as_chunks::<6>();
    Ok(settings.iter().map(|[a, b, value @ ..]| (u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value))).collect())
}

/// A connection that has exchanged settings.
pub async fn http2(address: (&str, u16)) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.context("the server's settings")?;
    anyhow::ensure!(head[3] == SETTINGS, "{head:?}");
    let [a, b, c, ..] = head;
    stream.read_exact(&mut vec![0; u32::from_be_bytes([0, a, b, c]) as usize]).await?;
    Ok(stream)
}

/// A put whose body never comes.
pub async fn open_request(address: (&str, u16)) -> Result<TcpStream> {
    let mut stream = http2(address).await?;
    let headers = grpc_headers("/etcdserverpb.KV/Put");
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, &headers)).await?;
    // An answered ping says that the frame before it was taken.
    stream.write_all(&frame(PING, 0, 0, &[7; 8])).await?;
    let mut seen = Vec::new();
    while !seen.windows(8).any(|window| window == [7; 8]) {
        anyhow::ensure!(stream.read_buf(&mut seen).await? > 0, "the server closed");
    }
    Ok(stream)
}

/// How a gRPC call with this body ended: code and message.
pub async fn call(address: (&str, u16), path: &str, body: Vec<u8>) -> Result<(i32, String)> {
    let stream = TcpStream::connect(address).await?;
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let request = http::Request::post(format!("http://test{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(body)))?;
    let answer = send.send_request(request).await?;
    let (head, body) = answer.into_parts();
    let end = body.collect().await?;
    let trailers = end.trailers().filter(|trailers| trailers.contains_key("grpc-status")).unwrap_or(&head.headers);
    let field = |name| trailers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let code = field("grpc-status").context("no grpc-status")?.parse()?;
    driver.abort();
    Ok((code, field("grpc-message").unwrap_or_default()))
}

/// A gRPC message: not compressed, its length, its bytes.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
}
