//! gRPC's frames: each message has a flag byte and four bytes of length before it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::Status;

const PREFIX: usize = 5;

/// The frame of a message.
pub(super) fn frame(message: &Bytes) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    // A message is far smaller: requests have a limit.
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(message);
    frame.freeze()
}

/// Takes messages out of the frames of an answer, however these are cut.
#[derive(Default)]
pub(super) struct Unframed(BytesMut);

impl Unframed {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next message, when it is there whole.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some((flag, mut length)) = self.0.split_at_checked(1).filter(|(_, rest)| rest.len() >= PREFIX - 1) else {
            return Ok(None);
        };
        if flag != [0] {
            return Err(Status::internal("a compressed answer, which nobody asked for"));
        }
        let length = length.get_u32() as usize;
        if self.0.len() - PREFIX < length {
            return Ok(None);
        }
        self.0.advance(PREFIX);
        Ok(Some(self.0.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        let messages: Vec<Bytes> = [0, 1, 300, 0, 7].iter().map(|length| vec![7; *length].into()).collect();
        let stream: Vec<u8> = messages.iter().flat_map(frame).collect();
        for piece in 1..=stream.len() {
            let (mut unframed, mut out) = (Unframed::default(), vec![]);
            for bytes in stream.chunks(piece) {
                unframed.push(bytes);
                while let Some(message) = unframed.next().unwrap() {
                    out.push(message);
                }
            }
            assert_eq!(out, messages, "in pieces of {piece}");
        }
        let mut compressed = Unframed::default();
        compressed.push(&[1, 0, 0, 0, 0]);
        assert!(compressed.next().is_err());
    }
}
