//! JSON as the messages of an object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::wire::{DEPTH_MAX, unknown_number};
use crate::merge::object::json::{Fields, Json};
use crate::merge::object::schema::catalogue::{Base, Form, Many, TypeId, catalogue};
use crate::merge::object::time;

/// Writes a field of bytes.
pub(super) fn bytes_field(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn varint_field(number: u32, value: u64, out: &mut Vec<u8>) {
    encode_key(number, WireType::Varint, out);
    encode_varint(value, out);
}

/// Writes a whole message: everything in the map must have found a place.
pub(super) fn write_message(map: &Fields, of: TypeId, out: &mut Vec<u8>, depth: usize) -> Option<()> {
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
pub(super) fn begin(number: u32, out: &mut Vec<u8>) -> usize {
    encode_key(number, WireType::LengthDelimited, out);
    // Most are short: one byte for the length.
    out.push(0);
    out.len()
}

/// Ends the field of bytes that began there.
pub(super) fn end(start: usize, out: &mut Vec<u8>) {
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
