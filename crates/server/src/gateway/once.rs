//! Refuses JSON that gives a field twice, as Go's reader of protobuf's JSON does. Ours would take the last one.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use prost_reflect::{Kind, MessageDescriptor};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Looks through the JSON of such a message.
pub(super) struct Once<'a>(pub(super) &'a MessageDescriptor);

impl<'de> DeserializeSeed<'de> for Once<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// What is no object is for the reader to judge.
impl<'de> Visitor<'de> for Once<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            let field = self.0.get_field_by_json_name(&name).or_else(|| self.0.get_field_by_name(&name));
            if let Some(field) = &field
                && !seen.insert(field.number())
            {
                return Err(Error::custom(format!("duplicate field {name:?}")));
            }
            match field.map(|field| field.kind()) {
                Some(Kind::Message(message)) => map.next_value_seed(Once(&message))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Once(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}
