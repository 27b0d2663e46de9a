//! Fields on the wire.

use prost::encoding::{WireType, decode_key, decode_varint};

/// Messages nested deeper are refused: the reader recurses.
pub(super) const DEPTH_MAX: usize = 100;

/// The number of a field that the catalogue does not know, of which this is the name.
pub(super) fn unknown_number(name: &str) -> Option<u32> {
    name.strip_prefix('#')?.parse().ok()
}

/// One value on the wire.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
}

/// The next field: its number and value. `None` when it is broken, or a group or 32 bits, which Kubernetes does not use.
pub(super) fn next<'a>(rest: &mut &'a [u8]) -> Option<(u32, Value<'a>)> {
    let (number, wire) = decode_key(rest).ok()?;
    let value = match wire {
        WireType::Varint => Value::Varint(decode_varint(rest).ok()?),
        WireType::SixtyFourBit => Value::Fixed64(*rest.split_off(..8)?.first_chunk()?),
        WireType::LengthDelimited => {
            let length = usize::try_from(decode_varint(rest).ok()?).ok()?;
            Value::Bytes(rest.split_off(..length)?)
        }
        WireType::StartGroup | WireType::EndGroup | WireType::ThirtyTwoBit => return None,
    };
    Some((number, value))
}

/// The fields 1 to `N` of a message that has bytes in each of them, at most once, and no others.
pub(super) fn only<const N: usize>(mut rest: &[u8]) -> Option<[Option<&[u8]>; N]> {
    let mut fields = [None; N];
    while !rest.is_empty() {
        let (number, Value::Bytes(bytes)) = next(&mut rest)? else { return None };
        let field = fields.get_mut(usize::try_from(number).ok()?.checked_sub(1)?)?;
        if field.replace(bytes).is_some() {
            return None;
        }
    }
    Some(fields)
}
