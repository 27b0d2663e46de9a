//! Kubernetes' protobuf as JSON, and back. The reader is strict: what it does not understand whole it does not take.
//!
//! A stored object is `k8s\0` and a message `runtime.Unknown`, which names the kind and holds the object's own message. The
//! catalogue says how that is written. Its writer emits fields in the order of their numbers. It leaves out no field that is not
//! optional, zero or not, and no other field that is empty. Fields that the catalogue does not know are kept byte for byte, as
//! fields named `#NUMBER`: no JSON field of Kubernetes has such a name.

mod read;
mod wire;
mod write;

use self::read::message;
use self::wire::{Value, next, only, unknown_number};
use self::write::{begin, bytes_field, end, write_message};
use super::json::Json;
use super::schema::catalogue::catalogue;

/// How a value in protobuf begins.
pub const MAGIC: &[u8] = b"k8s\0";

/// Reads a stored object, less what says nothing; `None` when it is not understood whole.
pub fn decode(value: &[u8]) -> Option<Json> {
    let envelope = Envelope::read(value)?;
    let of = catalogue().kind(envelope.api_version, envelope.kind)?;
    let mut object = message(of, envelope.raw, 0)?;
    for (name, text) in [("apiVersion", envelope.api_version), ("kind", envelope.kind)] {
        if object.insert(name.into(), Json::String(text.into())).is_some() {
            return None;
        }
    }
    Some(Json::Map(object))
}

/// Writes an object as it is stored; `None` when protobuf has no place for some of it.
pub fn encode(object: &Json) -> Option<Vec<u8>> {
    let Json::Map(map) = object else { return None };
    let (api_version, kind) = (object.get("apiVersion")?.as_str()?, object.get("kind")?.as_str()?);
    let of = catalogue().kind(api_version, kind)?;
    let mut out = MAGIC.to_vec();
    let start = begin(1, &mut out);
    bytes_field(1, api_version.as_bytes(), &mut out);
    bytes_field(2, kind.as_bytes(), &mut out);
    end(start, &mut out);
    let start = begin(2, &mut out);
    write_message(map, of, &mut out, 0)?;
    end(start, &mut out);
    // Content encoding and type.
    bytes_field(3, b"", &mut out);
    bytes_field(4, b"", &mut out);
    Some(out)
}

/// Whether an object has fields that only protobuf can hold.
pub fn has_unknown(json: &Json) -> bool {
    match json {
        Json::Map(map) => map.iter().any(|(name, value)| unknown_number(name).is_some() || has_unknown(value)),
        Json::List(list) => list.iter().any(has_unknown),
        _ => false,
    }
}

/// What stands around an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope<'a> {
    /// The API version of its kind.
    pub api_version: &'a str,
    /// Its kind.
    pub kind: &'a str,
    /// Its own message.
    pub raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Reads it; `None` for what is not stored so, or in another content type.
    pub fn read(value: &'a [u8]) -> Option<Self> {
        let [type_meta, raw, encoding, content_type] = only(value.strip_prefix(MAGIC)?)?;
        let [api_version, kind] = only(type_meta?)?;
        if !encoding.unwrap_or_default().is_empty() || !content_type.unwrap_or_default().is_empty() {
            return None;
        }
        let text = |bytes: Option<&'a [u8]>| std::str::from_utf8(bytes?).ok();
        Some(Self { api_version: text(api_version)?, kind: text(kind)?, raw: raw? })
    }

    /// The bytes of a field inside a message inside the object, without reading the rest.
    pub fn peek(&self, path: &[u32]) -> Option<&'a [u8]> {
        path.iter().try_fold(self.raw, |message, number| {
            let mut rest = message;
            while !rest.is_empty() {
                let (found, value) = next(&mut rest)?;
                if let (true, Value::Bytes(bytes)) = (found == *number, value) {
                    return Some(bytes);
                }
            }
            None
        })
    }
}
