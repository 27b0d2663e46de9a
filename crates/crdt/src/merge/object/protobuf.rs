//! Kubernetes' protobuf as JSON, and back. The reader is strict: what it does not understand whole it does not take.
//!
//! A stored object is `k8s\0` and a message `runtime.Unknown`, which names the kind and holds the object's own message. The
//! catalogue says how that is written. Its writer emits fields in the order of their numbers. It leaves out no field that is not
//! optional, zero or not, and no other field that is empty. Fields that the catalogue does not know are kept byte for byte, as
//! fields named `#NUMBER`: no JSON field of Kubernetes has such a name.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use smol_str::{SmolStr, ToSmolStr as _, format_smolstr};

use super::json::{self, Fields, Json};
use super::schema::catalogue::{Base, Field, Form, Many, TypeId, catalogue};
use super::schema::normal;
use super::time;

/// How a value in protobuf begins.
pub const MAGIC: &[u8] = b"k8s\0";

/// Messages nested deeper are refused: the reader recurses.
const DEPTH_MAX: usize = 100;

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

/// The number of a field that the catalogue does not know, of which this is the name.
fn unknown_number(name: &str) -> Option<u32> {
    name.strip_prefix('#')?.parse().ok()
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

/// One value on the wire.
#[derive(Clone, Copy)]
enum Value<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
}

/// The next field: its number and value. `None` when it is broken, or a group or 32 bits, which Kubernetes does not use.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u32, Value<'a>)> {
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
fn only<const N: usize>(mut rest: &[u8]) -> Option<[Option<&[u8]>; N]> {
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

/// The entries of each map that a message has, in the order in which they come.
type Entries = BTreeMap<&'static str, Vec<(SmolStr, Json)>>;

fn message(of: TypeId, raw: &[u8], depth: usize) -> Option<Fields> {
    let mut map = Fields::new();
    read_message(of, raw, depth, &mut map)?;
    Some(map)
}

fn read_message(of: TypeId, mut rest: &[u8], depth: usize, map: &mut Fields) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    let fields = &catalogue().of(of).fields;
    let mut unknown: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let mut inlined = vec![];
    let mut entries = Entries::default();
    while !rest.is_empty() {
        let from = rest;
        let (number, value) = next(&mut rest)?;
        match fields.binary_search_by_key(&number, |field| field.number) {
            Ok(at) => match (&fields[at], fields[at].name) {
                (field, Some(name)) => read_field(field.form, map, &mut entries, name, value, depth)?,
                // A struct whose fields are written in its place: it comes once.
                (Field { form: Form { base: Base::Struct(inner), .. }, .. }, None) if !inlined.contains(&number) => {
                    inlined.push(number);
                    let Value::Bytes(bytes) = value else { return None };
                    let before = map.len();
                    let inner = message(*inner, bytes, depth + 1)?;
                    let added = inner.len();
                    // What is not known in there would be written elsewhere.
                    if inner.keys().any(|name| name.starts_with('#')) {
                        return None;
                    }
                    map.extend(inner);
                    (map.len() == before + added).then_some(())?;
                }
                _ => return None,
            },
            Err(_) => unknown.entry(number).or_default().extend(&from[..from.len() - rest.len()]),
        }
    }
    for (name, entries) in entries {
        map.insert(SmolStr::new_static(name), Json::Map(json::fields(entries)?)).is_none().then_some(())?;
    }
    let unknown = unknown
        .into_iter()
        .map(|(number, raw)| (format_smolstr!("#{number}"), Json::String(BASE64.encode(raw).into())));
    map.extend(unknown);
    Some(())
}

fn read_field(
    form: Form,
    map: &mut Fields,
    entries: &mut Entries,
    name: &'static str,
    value: Value<'_>,
    depth: usize,
) -> Option<()> {
    match form.many {
        Many::One | Many::Optional => {
            let read = read(form.base, value, depth)?;
            match (read, form.many) {
                // An optional one that is there and empty cannot be told from none in JSON.
                (Json::Null, Many::Optional) => None,
                (Json::Null, _) => Some(()),
                // What says nothing is left out, as everywhere.
                (read, Many::One) if normal::is_zero(&read, form.base) => Some(()),
                (read, _) => map.insert(SmolStr::new_static(name), read).is_none().then_some(()),
            }
        }
        Many::List => {
            let read = read(form.base, value, depth)?;
            match map.entry(SmolStr::new_static(name)).or_insert_with(|| Json::List(vec![])) {
                Json::List(list) => list.push(read),
                _ => return None,
            }
            Some(())
        }
        Many::Map => {
            entries.entry(name).or_default().push(read_entry(form.base, value, depth)?);
            Some(())
        }
    }
}

/// One entry of a map.
fn read_entry(base: Base, value: Value<'_>, depth: usize) -> Option<(SmolStr, Json)> {
    let Value::Bytes(mut rest) = value else { return None };
    let (mut key, mut entry) = (None, None);
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, Value::Bytes(bytes)) if key.is_none() => key = Some(std::str::from_utf8(bytes).ok()?),
            (2, value) if entry.is_none() => entry = Some(read(base, value, depth)?),
            _ => return None,
        }
    }
    let entry = match (entry, base) {
        (Some(entry), _) => entry,
        (None, Base::Bytes) => Json::String(SmolStr::default()),
        (None, _) => return None,
    };
    Some((key?.into(), entry))
}

/// One value as JSON. `Json::Null` is a time that is zero, or an object that is empty.
fn read(base: Base, value: Value<'_>, depth: usize) -> Option<Json> {
    let text = |bytes: &[u8]| Some(Json::String(std::str::from_utf8(bytes).ok()?.into()));
    let number = |number: u64| Json::Number(number.cast_signed().to_smolstr());
    Some(match (base, value) {
        (Base::String, Value::Bytes(bytes)) => text(bytes)?,
        (Base::Bool, Value::Varint(value @ (0 | 1))) => Json::Bool(value == 1),
        (Base::Int, Value::Varint(value)) => number(value),
        (Base::Float, Value::Fixed64(bytes)) => {
            let float = f64::from_le_bytes(bytes);
            float.is_finite().then(|| Json::Number(float.to_smolstr()))?
        }
        (Base::Bytes, Value::Bytes(bytes)) => Json::String(BASE64.encode(bytes).into()),
        (Base::Time | Base::MicroTime, Value::Bytes([])) => Json::Null,
        (Base::Time | Base::MicroTime, Value::Bytes(rest)) => {
            let [seconds, nanos] = varints(rest)?;
            let micros = (base == Base::MicroTime).then_some(nanos.unwrap_or_default());
            if base == Base::Time && nanos.unwrap_or_default() != 0 {
                return None;
            }
            Json::String(time::written(seconds.unwrap_or_default().cast_signed(), micros)?.into())
        }
        (Base::Quantity, Value::Bytes(bytes)) => {
            let [quantity] = only(bytes)?;
            text(quantity?)?
        }
        (Base::IntOrString, Value::Bytes(mut rest)) => {
            let (mut kind, mut int, mut string) = (0, 0, &[][..]);
            while !rest.is_empty() {
                match next(&mut rest)? {
                    (1, Value::Varint(value)) => kind = value,
                    (2, Value::Varint(value)) => int = value,
                    (3, Value::Bytes(bytes)) => string = bytes,
                    _ => return None,
                }
            }
            match kind {
                0 if string.is_empty() => number(int),
                1 if int == 0 => text(string)?,
                _ => return None,
            }
        }
        (Base::Strings, Value::Bytes(rest)) => Json::List(texts(rest)?),
        (Base::Raw | Base::AnyJson, Value::Bytes([])) => Json::Null,
        (Base::Fields | Base::Raw | Base::AnyJson, Value::Bytes(bytes)) => {
            let [raw] = only(bytes)?;
            Json::parse(raw?)?
        }
        (Base::Struct(of), Value::Bytes(bytes)) => Json::Map(message(of, bytes, depth + 1)?),
        (Base::SchemaOrBool, Value::Bytes(mut rest)) => {
            let (mut allows, mut schema) = (false, None);
            while !rest.is_empty() {
                match next(&mut rest)? {
                    (1, Value::Varint(value @ (0 | 1))) => allows = value == 1,
                    (2, Value::Bytes(bytes)) if schema.is_none() => schema = Some(bytes),
                    _ => return None,
                }
            }
            match schema {
                Some(bytes) if allows => read_schema(bytes, depth)?,
                Some(_) => return None,
                None => Json::Bool(allows),
            }
        }
        (Base::SchemaOrList | Base::SchemaOrStrings, Value::Bytes(mut rest)) => {
            let (mut one, mut several) = (None, vec![]);
            while !rest.is_empty() {
                match next(&mut rest)? {
                    (1, Value::Bytes(bytes)) if one.is_none() => one = Some(read_schema(bytes, depth)?),
                    (2, Value::Bytes(bytes)) if base == Base::SchemaOrStrings => several.push(text(bytes)?),
                    (2, Value::Bytes(bytes)) => several.push(read_schema(bytes, depth)?),
                    _ => return None,
                }
            }
            match (one, several) {
                (Some(schema), several) if several.is_empty() => schema,
                (None, several) if !several.is_empty() => Json::List(several),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn read_schema(bytes: &[u8], depth: usize) -> Option<Json> {
    Some(Json::Map(message(catalogue().crd_schema()?, bytes, depth + 1)?))
}

/// The fields 1 and 2 of a message of integers.
fn varints(mut rest: &[u8]) -> Option<[Option<u64>; 2]> {
    let mut found = [None; 2];
    while !rest.is_empty() {
        match next(&mut rest)? {
            (number @ (1 | 2), Value::Varint(value)) => found[number as usize - 1] = Some(value),
            _ => return None,
        }
    }
    Some(found)
}

/// The texts of a message that has them all in its field 1.
fn texts(mut rest: &[u8]) -> Option<Vec<Json>> {
    let mut list = vec![];
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, Value::Bytes(bytes)) => {
                list.push(Json::String(std::str::from_utf8(bytes).ok()?.into()));
            }
            _ => return None,
        }
    }
    Some(list)
}

fn bytes_field(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn varint_field(number: u32, value: u64, out: &mut Vec<u8>) {
    encode_key(number, WireType::Varint, out);
    encode_varint(value, out);
}

/// Writes a whole message: everything in the map must have found a place.
fn write_message(map: &Fields, of: TypeId, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    // The kind of an object that lies in another one is not written: its type is known.
    let is_object = catalogue().of(of).is_object;
    let named = map.keys().filter(|name| is_object && matches!(name.as_str(), "apiVersion" | "kind")).count();
    (write_fields(map, of, out, depth, true)? + named == map.len()).then_some(())
}

/// Writes the fields that a type has; tells how many of the map's have found a place.
fn write_fields(map: &Fields, of: TypeId, out: &mut Vec<u8>, depth: usize, whole: bool) -> Option<usize> {
    if depth > DEPTH_MAX {
        return None;
    }
    let mut unknown: Vec<(u32, &Json)> = vec![];
    if whole {
        unknown.extend(map.iter().filter_map(|(name, raw)| Some((unknown_number(name)?, raw))));
        unknown.sort_unstable_by_key(|(number, _)| *number);
    }
    let mut places = unknown.len();
    let mut unknown = unknown.into_iter().peekable();
    for field in &catalogue().of(of).fields {
        while let Some((_, raw)) = unknown.next_if(|(number, _)| *number < field.number) {
            out.extend(BASE64.decode(raw.as_str()?).ok()?);
        }
        match (field.name, field.form.base) {
            (Some(_), _) if field.number == 0 => {}
            (Some(name), _) => {
                let value = map.get(name);
                places += usize::from(value.is_some());
                write_field(field.number, field.form, value, out, depth)?;
            }
            (None, Base::Struct(inner)) => {
                let start = begin(field.number, out);
                places += write_fields(map, inner, out, depth + 1, false)?;
                end(start, out);
            }
            (None, _) => return None,
        }
    }
    for (_, raw) in unknown {
        out.extend(BASE64.decode(raw.as_str()?).ok()?);
    }
    Some(places)
}

fn write_field(number: u32, form: Form, value: Option<&Json>, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    match (form.many, value) {
        (Many::One, None) => write_zero(number, form.base, out, depth),
        (_, None) => Some(()),
        (Many::One | Many::Optional, Some(value)) => write(number, form.base, value, out, depth),
        (Many::List, Some(Json::List(list))) => {
            list.iter().try_for_each(|item| write(number, form.base, item, out, depth))
        }
        (Many::Map, Some(Json::Map(map))) => map.iter().try_for_each(|(key, value)| {
            let start = begin(number, out);
            bytes_field(1, key.as_bytes(), out);
            write(2, form.base, value, out, depth)?;
            end(start, out);
            Some(())
        }),
        _ => None,
    }
}

/// What is written for a field that is there in any case and that nobody set.
fn write_zero(number: u32, base: Base, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    match base {
        Base::Bytes | Base::Strings => {}
        Base::String | Base::Time | Base::MicroTime | Base::Raw | Base::AnyJson => bytes_field(number, b"", out),
        Base::Bool => write(number, base, &Json::Bool(false), out, depth)?,
        Base::Int | Base::Float | Base::IntOrString => write(number, base, &Json::Number("0".into()), out, depth)?,
        Base::Quantity => write(number, base, &Json::String("0".into()), out, depth)?,
        Base::Struct(_) => write(number, base, &Json::Map(Fields::new()), out, depth)?,
        Base::Fields | Base::SchemaOrBool | Base::SchemaOrList | Base::SchemaOrStrings => return None,
    }
    Some(())
}

/// Begins a field of bytes whose length is not known yet; tells where they begin.
fn begin(number: u32, out: &mut Vec<u8>) -> usize {
    encode_key(number, WireType::LengthDelimited, out);
    // Most are short: one byte for the length.
    out.push(0);
    out.len()
}

/// Ends the field of bytes that began there.
fn end(start: usize, out: &mut Vec<u8>) {
    let length = out.len() - start;
    match u8::try_from(length) {
        Ok(short @ ..0x80) => out[start - 1] = short,
        _ => {
            let mut written = vec![];
            encode_varint(length as u64, &mut written);
            out.splice(start - 1..start, written);
        }
    }
}

fn write(number: u32, base: Base, value: &Json, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    match (base, value) {
        (Base::String, Json::String(text)) => {
            bytes_field(number, text.as_bytes(), out);
            return Some(());
        }
        (Base::Bool, Json::Bool(value)) => {
            varint_field(number, u64::from(*value), out);
            return Some(());
        }
        (Base::Int, Json::Number(text)) => {
            varint_field(number, text.parse::<i64>().ok()?.cast_unsigned(), out);
            return Some(());
        }
        (Base::Float, Json::Number(text)) => {
            encode_key(number, WireType::SixtyFourBit, out);
            out.extend(text.parse::<f64>().ok()?.to_le_bytes());
            return Some(());
        }
        _ => {}
    }
    let start = begin(number, out);
    match (base, value) {
        (Base::Bytes, Json::String(text)) => out.extend(BASE64.decode(text).ok()?),
        (Base::Time | Base::MicroTime, Json::Null) => {}
        (Base::Time | Base::MicroTime, Json::String(text)) => {
            let (seconds, nanos) = time::read(text, base == Base::MicroTime)?;
            varint_field(1, seconds.cast_unsigned(), out);
            varint_field(2, nanos, out);
        }
        (Base::Quantity, Json::String(text)) => bytes_field(1, text.as_bytes(), out),
        (Base::IntOrString, Json::Number(text)) => {
            varint_field(1, 0, out);
            varint_field(2, i64::from(text.parse::<i32>().ok()?).cast_unsigned(), out);
            bytes_field(3, b"", out);
        }
        (Base::IntOrString, Json::String(text)) => {
            varint_field(1, 1, out);
            varint_field(2, 0, out);
            bytes_field(3, text.as_bytes(), out);
        }
        (Base::Strings, Json::List(list)) => {
            list.iter().try_for_each(|item| write(1, Base::String, item, out, depth))?;
        }
        (Base::Fields | Base::Raw | Base::AnyJson, value) => bytes_field(1, value.canonical().as_bytes(), out),
        (Base::Struct(of), Json::Map(map)) => write_message(map, of, out, depth + 1)?,
        (Base::SchemaOrBool, Json::Bool(allows)) => varint_field(1, u64::from(*allows), out),
        (Base::SchemaOrBool, Json::Map(_)) => {
            varint_field(1, 1, out);
            write_schema(2, value, out, depth)?;
        }
        (Base::SchemaOrList | Base::SchemaOrStrings, Json::Map(_)) => write_schema(1, value, out, depth)?,
        (Base::SchemaOrList, Json::List(list)) => {
            list.iter().try_for_each(|schema| write_schema(2, schema, out, depth))?;
        }
        (Base::SchemaOrStrings, Json::List(list)) => {
            list.iter().try_for_each(|item| write(2, Base::String, item, out, depth))?;
        }
        _ => return None,
    }
    end(start, out);
    Some(())
}

fn write_schema(number: u32, schema: &Json, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    write(number, Base::Struct(catalogue().crd_schema()?), schema, out, depth)
}
