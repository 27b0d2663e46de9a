//! The stream with one peer: frames out of it and into it, and how it ends.

use std::time::Duration;

use bytes::Bytes;
use eddy_crdt::sync::Message;
use eddy_proto::peer::Frame;
use futures::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::end::End;
use crate::logging;

/// How long the other side may take to read why the session ends.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// How many frames are taken in one look at the replica, if so many are here. Where it changes all the time, each look waits.
const FRAMES_AT_ONCE: usize = 32;

/// About how many bytes are, at most.
const BYTES_AT_ONCE: usize = 256 << 10;

/// Frames that wait for the network in one direction of a stream.
pub(super) const FRAMES_WAITING: usize = 4;

/// Both directions of a stream.
pub(crate) struct Link {
    pub(crate) inbound: Streaming<Frame>,
    pub(crate) outbound: mpsc::Sender<Bytes>,
}

/// The next message.
pub(super) async fn next(inbound: &mut Streaming<Frame>) -> Result<Bytes, End> {
    let frame = inbound.message().await.map_err(|status| End::Lost(reason(&status)))?;
    frame.map(|frame| frame.message).ok_or(End::Closed)
}

/// A message, those behind it that are here already, and why there is none behind these, where that is known.
pub(super) fn with_those_behind(first: Bytes, inbound: &mut Streaming<Frame>) -> (Vec<Bytes>, Option<End>) {
    let (mut bytes, mut frames) = (first.len(), vec![first]);
    while frames.len() < FRAMES_AT_ONCE && bytes < BYTES_AT_ONCE {
        match next(inbound).now_or_never() {
            Some(Ok(frame)) => {
                bytes += frame.len();
                frames.push(frame);
            }
            Some(Err(end)) => return (frames, Some(end)),
            None => break,
        }
    }
    (frames, None)
}

/// Tells the other side why the session ends, and waits until it closes the stream. A stream that is dropped loses the
/// messages on their way.
pub(super) async fn farewell(stop: &CancellationToken, refusal: &Message, link: Link) {
    let Link { mut inbound, outbound } = link;
    let told = async {
        if outbound.send(refusal.encode()).await.is_ok() {
            drop(outbound);
            while let Ok(Some(_)) = inbound.message().await {}
        }
    };
    tokio::select! {
        _too_late = timeout(FAREWELL_TIMEOUT, told) => {}
        () = stop.cancelled() => {}
    }
}

/// Why a stream broke: the cause, or gRPC's text where there is none.
fn reason(status: &tonic::Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => logging::chain(source),
        None => status.message().to_owned(),
    }
}
