//! Keeps clients from pinging too often (`--grpc-keepalive-min-time`), by the rules of grpc-go's server, which is etcd's.
//!
//! The HTTP/2 library answers pings and tells nobody, so this module stands below it. It reads the heads of the frames
//! that pass, and says goodbye itself. The goodbye carries the reason by which clients of gRPC ping less often from
//! then on.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;

/// Bytes before the first frame of a client.
const PREFACE_LEN: usize = 24;
/// Bytes of a frame's head.
const HEAD_LEN: usize = 9;

/// How many pings that come too early are forgiven.
const STRIKES_MAX: u8 = 2;
/// The shortest interval while no call is open.
const MIN_TIME_IDLE: Duration = Duration::from_secs(2 * 3600);
/// HTTP/2's error code for a client that asks for too much.
const ENHANCE_YOUR_CALM: u32 = 0xb;
/// What clients of gRPC look for.
const REASON: &[u8] = b"too_many_pings";
/// Time for the client to read the goodbye: a socket closed with unread bytes in it would take that back.
const LINGER: Duration = Duration::from_secs(1);

/// The head of a frame.
#[derive(Clone, Copy, Debug)]
struct Head {
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Finds the frames in the bytes of one direction.
#[derive(Debug)]
struct Frames {
    head: [u8; HEAD_LEN],
    have: usize,
    /// Bytes until the next head begins.
    left: usize,
}

impl Frames {
    fn after(left: usize) -> Frames {
        Frames { head: [0; HEAD_LEN], have: 0, left }
    }

    /// Whether the last frame is whole.
    fn is_between(&self) -> bool {
        self.have == 0 && self.left == 0
    }

    /// How many bytes certainly belong to the frame that has begun.
    fn sure(&self) -> usize {
        if self.have > 0 { HEAD_LEN - self.have } else { self.left }
    }

    fn pass(&mut self, mut bytes: &[u8], mut each: impl FnMut(Head)) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            let taken = (HEAD_LEN - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEAD_LEN {
                let [a, b, c, kind, flags, stream @ ..] = self.head;
                self.have = 0;
                self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                each(Head { kind, flags, stream: u32::from_be_bytes(stream) });
            }
        }
    }
}

/// Judges a client's pings.
#[derive(Debug)]
struct Judge {
    /// `None` lets a client ping as it likes.
    min_time: Option<Duration>,
    /// Streams with a call that is not over.
    open: HashSet<u32>,
    newest: u32,
    last_ping: Option<Instant>,
    strikes: u8,
    /// Something was sent since the last ping, which makes up for all before.
    forgiven: bool,
}

impl Judge {
    fn new(min_time: Option<Duration>) -> Judge {
        Judge { min_time, open: HashSet::new(), newest: 0, last_ping: None, strikes: 0, forgiven: false }
    }

    /// A frame of the client. True when it is one ping too many.
    fn came(&mut self, head: Head, now: impl FnOnce() -> Instant) -> bool {
        match head.kind {
            HEADERS if head.stream > self.newest => {
                self.newest = head.stream;
                self.open.insert(head.stream);
            }
            RST_STREAM => {
                self.open.remove(&head.stream);
            }
            PING if head.flags & ACK == 0 => return self.min_time.is_some_and(|min_time| self.ping(min_time, now())),
            _ => {}
        }
        false
    }

    /// A frame to the client.
    fn went(&mut self, head: Head) {
        let ends = head.kind == RST_STREAM || head.flags & END_STREAM != 0;
        match head.kind {
            DATA | HEADERS => self.forgiven = true,
            RST_STREAM => {}
            _ => return,
        }
        if ends {
            self.open.remove(&head.stream);
        }
    }

    fn ping(&mut self, min_time: Duration, now: Instant) -> bool {
        let before = self.last_ping.replace(now);
        if std::mem::take(&mut self.forgiven) {
            self.strikes = 0;
            return false;
        }
        let min_time = if self.open.is_empty() { MIN_TIME_IDLE } else { min_time };
        if before.is_some_and(|before| now.duration_since(before) < min_time) {
            self.strikes = self.strikes.saturating_add(1);
        }
        self.strikes > STRIKES_MAX
    }
}

/// How far the end of a connection has come.
enum End {
    /// Nothing is wrong.
    None,
    /// The client is to be told. This many bytes of that are sent.
    Telling(usize),
    /// It was told, and may read that for as long.
    Told(Pin<Box<Sleep>>),
}

/// A connection whose client may not ping too often.
pub(super) struct Pings<S> {
    stream: S,
    came: Frames,
    went: Frames,
    judge: Judge,
    end: End,
    /// The task that reads, while a frame is on its way out that must be whole before the goodbye.
    reader: Option<Waker>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pings<S> {
    /// Lets a client with an open call ping every `min_time`, or as it likes.
    pub(super) fn new(stream: S, min_time: Option<Duration>) -> Pings<S> {
        let (came, went) = (Frames::after(PREFACE_LEN), Frames::after(0));
        Pings { stream, came, went, judge: Judge::new(min_time), end: End::None, reader: None }
    }

    fn goodbye(&self) -> Vec<u8> {
        let mut frame = vec![0, 0, 8 + REASON.len() as u8, GOAWAY, 0];
        frame.extend([0; 4]);
        frame.extend(self.judge.newest.to_be_bytes());
        frame.extend(ENHANCE_YOUR_CALM.to_be_bytes());
        frame.extend(REASON);
        frame
    }

    /// Ready when the connection is to be closed.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.end {
                End::None => return Poll::Ready(Ok(())),
                End::Telling(_) if !self.went.is_between() => {
                    self.reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                End::Telling(sent) => {
                    let sent = *sent;
                    let goodbye = self.goodbye();
                    if sent < goodbye.len() {
                        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &goodbye[sent..]))?;
                        if written == 0 {
                            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                        }
                        self.end = End::Telling(sent + written);
                        continue;
                    }
                    ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
                    ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
                    self.end = End::Told(Box::pin(sleep(LINGER)));
                }
                End::Told(linger) => {
                    if linger.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                    let mut rest = [0; 1024];
                    let mut rest = ReadBuf::new(&mut rest);
                    ready!(Pin::new(&mut self.stream).poll_read(cx, &mut rest))?;
                    if rest.filled().is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }

    fn note_written(&mut self, bytes: &[u8]) {
        let judge = &mut self.judge;
        self.went.pass(bytes, |head| judge.went(head));
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Pings<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if matches!(this.end, End::None) {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
            let (judge, mut too_many) = (&mut this.judge, false);
            this.came.pass(&buf.filled()[before..], |head| too_many |= judge.came(head, Instant::now));
            if !too_many {
                return Poll::Ready(Ok(()));
            }
            tracing::debug!("a client pings too often: closing its connection");
            this.end = End::Telling(0);
            buf.set_filled(before);
        }
        ready!(this.poll_end(cx))?;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "got too many pings from the client")))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Pings<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let bytes = match this.end {
            End::None => buf,
            // What was not begun before the goodbye is not said any more.
            _ if this.went.is_between() => return Poll::Ready(Ok(buf.len())),
            _ => &buf[..this.went.sure().min(buf.len())],
        };
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes))?;
        this.note_written(&bytes[..written]);
        if this.went.is_between()
            && let Some(reader) = this.reader.take()
        {
            reader.wake();
        }
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !matches!(self.end, End::None) {
            let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
            return self.poll_write(cx, first);
        }
        let this = &mut *self;
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let taken = left.min(buf.len());
            this.note_written(&buf[..taken]);
            left -= taken;
        }
        Poll::Ready(Ok(written))
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const MIN_TIME: Option<Duration> = Some(Duration::from_secs(5));

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn head(kind: u8, flags: u8, stream: u32) -> Head {
        Head { kind, flags, stream }
    }

    /// The seconds at which a ping was one too many, of pings at these seconds.
    fn refused(judge: &mut Judge, start: Instant, pings: &[u64]) -> Vec<u64> {
        let at = |second: &u64| start + Duration::from_secs(*second);
        pings.iter().filter(|second| judge.came(head(PING, 0, 0), || at(second))).copied().collect()
    }

    #[test]
    fn a_client_with_a_call_may_ping_every_min_time() {
        let start = Instant::now();
        let mut judge = Judge::new(MIN_TIME);
        judge.came(head(HEADERS, 0, 1), Instant::now);
        assert_eq!(refused(&mut judge, start, &[0, 5, 10, 15, 20, 25]), [0; 0]);
        assert_eq!(refused(&mut judge, start, &[26, 27, 28]), [28], "the third that comes too early");
        assert_eq!(refused(&mut judge, start, &[28; 1000]), [28; 1000], "one read may hold any number of pings");
    }

    #[test]
    fn a_client_without_a_call_may_hardly_ping() {
        let start = Instant::now();
        let mut judge = Judge::new(MIN_TIME);
        for end in [head(DATA, END_STREAM, 1), head(RST_STREAM, 0, 1)] {
            judge.came(head(HEADERS, 0, 1), Instant::now);
            judge.went(end);
        }
        assert_eq!(refused(&mut judge, start, &[0, 10, 20, 30]), [30], "the first is forgiven: something was sent");
        let mut judge = Judge::new(MIN_TIME);
        judge.came(head(HEADERS, 0, 1), Instant::now);
        judge.came(head(RST_STREAM, 0, 1), Instant::now);
        assert_eq!(refused(&mut judge, start, &[0, 7200, 14_400, 14_410, 14_420, 14_430]), [14_430]);
    }

    #[test]
    fn whatever_is_sent_makes_up_for_early_pings() {
        let start = Instant::now();
        let mut judge = Judge::new(MIN_TIME);
        judge.came(head(HEADERS, 0, 1), Instant::now);
        for second in 0..20 {
            assert_eq!(refused(&mut judge, start, &[second]), [0; 0]);
            if second % 3 == 2 {
                judge.went(head(DATA, 0, 1));
            }
        }
        judge.went(head(PING, ACK, 0));
        assert_eq!(refused(&mut judge, start, &[20, 21, 22]), [21, 22], "an answered ping makes up for nothing");
    }

    #[test]
    fn answers_to_pings_are_none() {
        let mut judge = Judge::new(MIN_TIME);
        assert!(!(0..10).any(|_| judge.came(head(PING, ACK, 0), Instant::now)));
    }

    #[test]
    fn peers_ping_as_they_like() {
        assert_eq!(refused(&mut Judge::new(None), Instant::now(), &[0; 10]), [0; 0]);
    }

    fn connected() -> (Pings<DuplexStream>, DuplexStream) {
        let (client, server) = duplex(64);
        (Pings::new(server, MIN_TIME), client)
    }

    /// Frames are found however they are cut; what was begun is ended before the goodbye, and nothing comes after it.
    #[tokio::test]
    async fn the_goodbye_comes_between_frames_and_is_the_last() {
        let ping = frame(PING, 0, 0, &[7; 8]);
        let pings = [vec![b'p'; PREFACE_LEN], frame(HEADERS, 0, 3, b"headers"), ping.repeat(4)].concat();
        for piece in 1..pings.len() {
            let (mut server, mut client) = connected();
            let data = frame(DATA, 0, 3, b"data");
            server.write_all(&data[..11]).await.unwrap();
            let pings = &pings;
            // The client closes when it has read all, so nobody lingers.
            let reader = async move {
                for piece in pings.chunks(piece) {
                    client.write_all(piece).await.unwrap();
                }
                let mut all = Vec::new();
                client.read_to_end(&mut all).await.unwrap();
                all
            };
            let pinged = async {
                let mut buf = [0; 64];
                // The first ping is forgiven, since something was sent; the fourth is the third that comes too early.
                loop {
                    tokio::select! {
                        read = server.read(&mut buf) => if let Err(error) = read { return error },
                        () = sleep(Duration::from_millis(1)) => {
                            if !matches!(server.end, End::None) && !server.went.is_between() {
                                server.write_all(&data[11..]).await.unwrap();
                                server.write_all(&data).await.unwrap();
                            }
                        }
                    }
                }
            };
            let (said, error) = tokio::join!(reader, pinged);
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
            let goodbye = frame(GOAWAY, 0, 0, &[&[0, 0, 0, 3, 0, 0, 0, 0xb], REASON].concat());
            assert_eq!(said, [data, goodbye].concat(), "in pieces of {piece}");
        }
    }
}
