//! Looks at the first bytes of a connection without losing them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The first byte of a TLS handshake record; no HTTP begins so.
const TLS_HANDSHAKE: u8 = 0x16;
/// How HTTP/2 begins; four bytes tell it from any HTTP/1 method.
const HTTP2: &[u8; 4] = b"PRI ";

/// A stream, and the bytes that were read ahead from it.
pub(super) struct Sniffed<S> {
    stream: S,
    ahead: [u8; 4],
    len: u8,
    given: u8,
}

impl<S: AsyncRead + Unpin> Sniffed<S> {
    pub(super) fn new(stream: S) -> Sniffed<S> {
        Sniffed { stream, ahead: [0; 4], len: 0, given: 0 }
    }

    /// Whether a TLS handshake comes; waits for the first byte.
    pub(super) async fn is_tls(&mut self) -> io::Result<bool> {
        self.fill(1).await?;
        Ok(self.ahead[0] == TLS_HANDSHAKE)
    }

    /// Whether HTTP/2 comes; waits until that is certain.
    pub(super) async fn is_http2(&mut self) -> io::Result<bool> {
        for len in 1..=HTTP2.len() {
            self.fill(len).await?;
            if self.ahead[len - 1] != HTTP2[len - 1] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn fill(&mut self, wanted: usize) -> io::Result<()> {
        while usize::from(self.len) < wanted {
            let read = self.stream.read(&mut self.ahead[usize::from(self.len)..wanted]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // At most four.
            self.len += u8::try_from(read).unwrap_or(0);
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sniffed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.given < this.len {
            let ahead = &this.ahead[usize::from(this.given)..usize::from(this.len)];
            let taken = ahead.len().min(buf.remaining());
            buf.put_slice(&ahead[..taken]);
            this.given += u8::try_from(taken).unwrap_or(0);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sniffed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
