//! A bound on what a stranger can make this replica hold: the first message of a peer's request is small.
//!
//! A peer's later messages may be 257 MiB long. The first one names the peer, and nothing after it is read before that
//! was checked. So it is enough to look at the length that stands in front of the first message.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

/// The longest first message, bytes. A greeting takes about a hundred for each birth of each member that the peer knows.
pub(super) const FIRST_MAX: usize = 64 << 10;

/// A gRPC message begins with a flag and its length.
const PREFIX: usize = 5;

/// The body of a peer's request, which ends with an error where its first message is too long.
pub(super) struct Opening<B> {
    body: B,
    /// What has come of the first message's prefix; `None` once it is known to be short enough.
    prefix: Option<Vec<u8>>,
}

impl<B> Opening<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body, prefix: Some(Vec::with_capacity(PREFIX)) }
    }

    /// Looks at the next bytes of the body.
    fn look(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let Some(prefix) = &mut self.prefix else { return Ok(()) };
        prefix.extend(bytes.iter().take(PREFIX - prefix.len()));
        if let [_flag, length @ ..] = prefix.as_slice()
            && let Ok(length) = <[u8; 4]>::try_from(length)
        {
            let length = u32::from_be_bytes(length);
            if length as usize > FIRST_MAX {
                return Err(Status::resource_exhausted(format!(
                    "eddy: the first message of a peer is {length} bytes long, at most {FIRST_MAX} are taken"
                )));
            }
            self.prefix = None;
        }
        Ok(())
    }
}

impl<B> Body for Opening<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        let looked = frame.data_ref().map_or(Ok(()), |bytes| self.look(bytes));
        Poll::Ready(Some(looked.map(|()| frame).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    /// How many bytes of the body come through, when they arrive in pieces of that size.
    async fn through(bytes: &[u8], piece: usize) -> Result<usize, String> {
        let frames: Vec<_> =
            bytes.chunks(piece).map(|chunk| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(chunk)))).collect();
        let body = Opening::new(StreamBody::new(futures::stream::iter(frames)));
        body.collect().await.map(|whole| whole.to_bytes().len()).map_err(|error| error.to_string())
    }

    fn message(length: usize) -> Vec<u8> {
        let prefix = u32::try_from(length).unwrap().to_be_bytes();
        [&[0], &prefix[..], &vec![1; length]].concat()
    }

    #[tokio::test]
    async fn only_the_first_message_is_bounded_however_it_is_cut() {
        for piece in [1, 3, 5, 1000, 1 << 20] {
            let two = [message(FIRST_MAX), message(FIRST_MAX * 3)].concat();
            assert_eq!(through(&two, piece).await, Ok(two.len()), "{piece}");
            let refused = through(&message(FIRST_MAX + 1), piece).await.unwrap_err();
            assert!(refused.contains("65537 bytes long"), "{refused}");
        }
        assert_eq!(through(&[0, 0], 1).await, Ok(2));
    }
}
