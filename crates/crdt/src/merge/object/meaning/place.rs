//! Where something lies in an object, by fields and by the names of elements.

use super::super::json::{self, Fields, Json};
use super::super::path::{Path, Step};

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// To a field.
    Field(&'static str),
    /// To the element of a list whose field of that name, the first, is that, the second.
    Element(&'static str, String),
}

/// A way from the root of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place(Vec<Way>);

impl Place {
    /// Through these fields.
    pub fn of(fields: &[&'static str]) -> Self {
        Self(fields.iter().map(|name| Way::Field(name)).collect())
    }

    /// On to a field.
    pub fn field(&self, name: &'static str) -> Self {
        self.with(Way::Field(name))
    }

    /// On to an element.
    pub fn element(&self, key: &'static str, value: &str) -> Self {
        self.with(Way::Element(key, value.to_owned()))
    }

    fn with(&self, way: Way) -> Self {
        Self(self.0.iter().cloned().chain([way]).collect())
    }

    /// As leaves have it.
    pub fn path(&self) -> Path {
        let mut path = Path::default();
        for way in &self.0 {
            path.push(match way {
                Way::Field(name) => Step::Field((*name).to_owned()),
                Way::Element(key, value) => {
                    let mut written = format!("{key}=");
                    json::write_string(value, &mut written);
                    Step::Element(written)
                }
            });
        }
        path
    }

    /// What lies there.
    pub fn get<'a>(&self, object: &'a Json) -> Option<&'a Json> {
        self.0.iter().try_fold(object, |value, way| match (way, value) {
            (Way::Field(name), value) => value.get(name),
            (Way::Element(key, name), Json::List(list)) => list.iter().find(|item| is_named(item, key, name)),
            (Way::Element(..), _) => None,
        })
    }

    /// Makes it that (`None`: nothing) where what it lies in is there.
    pub fn put(&self, object: &mut Json, value: Option<Json>) {
        let Some((last, ways)) = self.0.split_last() else { return };
        let Some(inner) = ways.iter().try_fold(object, |value, way| inside(value, way)) else { return };
        match (last, inner) {
            (Way::Field(name), Json::Map(map)) => match value {
                Some(value) => drop(map.insert((*name).into(), value)),
                None => drop(map.remove(*name)),
            },
            (Way::Element(key, name), Json::List(list)) => match list.iter().position(|item| is_named(item, key, name))
            {
                Some(at) => drop(list.splice(at..=at, value)),
                None => list.extend(value),
            },
            _ => {}
        }
    }
}

fn inside<'a>(value: &'a mut Json, way: &Way) -> Option<&'a mut Json> {
    match (way, value) {
        (Way::Field(name), Json::Map(map)) => Some(map.entry((*name).into()).or_insert(Json::Map(Fields::new()))),
        (Way::Element(key, name), Json::List(list)) => list.iter_mut().find(|item| is_named(item, key, name)),
        _ => None,
    }
}

fn is_named(item: &Json, key: &str, name: &str) -> bool {
    item.get(key).and_then(Json::as_str) == Some(name)
}

/// The elements of a list that lies in a value.
pub fn list<'a>(value: &'a Json, field: &str) -> &'a [Json] {
    match value.get(field) {
        Some(Json::List(list)) => list,
        _ => &[],
    }
}

/// The text of a field; empty where there is none.
pub fn text<'a>(value: &'a Json, field: &str) -> &'a str {
    value.get(field).and_then(Json::as_str).unwrap_or_default()
}

/// The whole number of a field.
pub fn int(value: &Json, field: &str) -> Option<i64> {
    match value.get(field) {
        Some(Json::Number(number)) => number.parse().ok(),
        _ => None,
    }
}

/// Whether a field says yes.
pub fn is_true(value: &Json, field: &str) -> bool {
    value.get(field) == Some(&Json::Bool(true))
}
