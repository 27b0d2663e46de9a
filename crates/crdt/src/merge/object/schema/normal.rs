//! What an object says without the ways of saying nothing: `null`, zero where zero and nothing are one, and empty lists.
//!
//! Kubernetes' protobuf cannot tell these apart, so kube-apiserver does not either. Two versions of an object must not differ
//! by them: a `null` that Go writes for an unset field is no edit of it.

use litemap::LiteMap;
use smol_str::ToSmolStr as _;

use crate::merge::object::json::{Fields, Json};

use super::catalogue::{Base, Form, Many, TypeId, catalogue};

/// Leaves out of a struct's fields what says nothing, and writes integers in one way. What the type does not know stays.
pub fn fields(map: &mut Fields, of: TypeId) {
    let mut fields = std::mem::take(map).into_tuple_vec();
    fields.retain_mut(|(name, value)| catalogue().field(of, name).is_none_or(|field| says(value, field.form)));
    *map = LiteMap::from_sorted_store_unchecked(fields);
}

/// Whether the value of a field says anything.
fn says(value: &mut Json, form: Form) -> bool {
    match (form.many, &mut *value) {
        (_, Json::Null) => false,
        (Many::List, Json::List(list)) => {
            list.iter_mut().for_each(|item| inside(item, form.base));
            !list.is_empty()
        }
        (Many::Map, Json::Map(map)) => {
            map.iter_mut().for_each(|(_, value)| inside(value, form.base));
            !map.is_empty()
        }
        (Many::One, _) => {
            inside(value, form.base);
            !is_zero(value, form.base)
        }
        (Many::Optional, _) => {
            inside(value, form.base);
            true
        }
        _ => true,
    }
}

fn inside(value: &mut Json, base: Base) {
    match (base, &mut *value) {
        (Base::Struct(id), Json::Map(map)) => fields(map, id),
        (Base::Int, Json::Number(number)) => {
            if let Some(whole) = whole(number) {
                *number = whole.to_smolstr();
            }
        }
        _ => {}
    }
}

/// The integer that a number is, however it is written.
fn whole(number: &str) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    number.parse().ok().or_else(|| {
        let float: f64 = number.parse().ok()?;
        (float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i64)
    })
}

/// Whether a value is what a field holds that nobody set.
pub fn is_zero(value: &Json, base: Base) -> bool {
    match (base, value) {
        (Base::String | Base::Bytes, Json::String(text)) => text.is_empty(),
        (Base::Bool, Json::Bool(value)) => !value,
        (Base::Int | Base::IntOrString, Json::Number(number)) => number == "0",
        (Base::Struct(_), Json::Map(map)) => map.is_empty(),
        (Base::Strings, Json::List(list)) => list.is_empty(),
        _ => false,
    }
}
