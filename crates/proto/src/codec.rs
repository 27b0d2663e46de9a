//! tonic's prost codec with small buffers.
//!
//! tonic reserves 8 KiB for the request and 8 KiB for the answer of every call. Most messages of etcd's API are a few
//! hundred bytes. Blocks of 8 KiB miss the allocator's fast path. A larger message grows its buffer.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::BufferSettings;
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Bytes reserved for a message: most requests and answers fit.
const BUFFER_BYTES: usize = 512;

/// Bytes after which a stream of messages is handed on: tonic's own default.
const YIELD_BYTES: usize = 32 << 10;

/// See the module.
#[derive(Clone, Debug)]
pub struct SmallCodec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for SmallCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> tonic::codec::Codec for SmallCodec<E, D>
where
    E: Message + Send + 'static,
    D: Message + Default + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = ProstEncoder<E>;
    type Decoder = ProstDecoder<D>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<E, D>::raw_encoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<E, D>::raw_decoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }
}
