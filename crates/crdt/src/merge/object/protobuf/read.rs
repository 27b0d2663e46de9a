//! The messages of an object as JSON.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use smol_str::{SmolStr, ToSmolStr as _, format_smolstr};

use super::wire::{DEPTH_MAX, Value, next, only};
use crate::merge::object::json::{self, Fields, Json};
use crate::merge::object::schema::catalogue::{Base, Field, Form, Many, TypeId, catalogue};
use crate::merge::object::schema::normal;
use crate::merge::object::time;

/// The entries of each map that a message has, in the order in which they come.
type Entries = BTreeMap<&'static str, Vec<(SmolStr, Json)>>;

/// Reads a message of a type; `None` when it is not understood whole.
pub(super) fn message(of: TypeId, raw: &[u8], depth: usize) -> Option<Fields> {
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
