//! What all versions of an object agree about needs no merging: it is set aside, and put back beside what became of the rest.
//!
//! Most of an object never changes; taking only the rest apart makes a merge several times cheaper and changes no outcome.

use std::collections::BTreeMap;

use super::json::Json;
use super::path::{Path, Step};
use super::schema::{Schema, Shape, Spot};

type Map = BTreeMap<String, Json>;

/// Objects without what all of them have in common.
#[derive(Debug)]
pub struct Divided {
    /// The fields that are the same in all, in the maps where they stand.
    pub shared: Json,
    /// What each has besides. Of a map of which nothing is left there is nothing, so that no leaf says it is empty.
    pub rests: Vec<Json>,
}

impl Divided {
    /// Divides objects of one kind, down to where `schema` takes a value as one.
    pub fn of(objects: &[&Json], schema: &Schema<'_>) -> Self {
        let maps: Option<Vec<&Map>> = objects.iter().map(|object| as_map(object)).collect();
        let Some(maps) = maps else {
            return Self {
                shared: Json::Map(Map::new()),
                rests: objects.iter().map(|&object| object.clone()).collect(),
            };
        };
        let (shared, rests) = divide(&maps, schema, &mut Path::default(), schema.root());
        Self { shared: Json::Map(shared), rests: rests.into_iter().map(Json::Map).collect() }
    }
}

fn as_map(value: &Json) -> Option<&Map> {
    value.as_map().filter(|map| !map.is_empty())
}

fn divide<'a>(maps: &[&Map], schema: &Schema<'a>, path: &mut Path, spot: Spot<'a>) -> (Map, Vec<Map>) {
    let (mut shared, mut rests) = (Map::new(), vec![Map::new(); maps.len()]);
    let everywhere: BTreeMap<&String, Vec<&Json>> = maps
        .first()
        .into_iter()
        .flat_map(|first| first.keys())
        .filter_map(|name| Some((name, maps.iter().map(|map| map.get(name)).collect::<Option<_>>()?)))
        .collect();
    // Fields that come from one side stay together.
    let differs = |name: &&str| maps.iter().any(|map| map.get(*name) != maps[0].get(*name));
    let apart = spot.together().iter().filter(|one| one.fields.iter().any(&differs));
    let together: Vec<&str> = apart.flat_map(|one| one.fields.iter().copied()).collect();
    for (map, rest) in maps.iter().zip(&mut rests) {
        let partly = map.iter().filter(|(name, _)| !everywhere.contains_key(name));
        rest.extend(partly.map(|(name, value)| (name.clone(), value.clone())));
    }
    for (name, values) in everywhere {
        let [value, ..] = values[..] else { continue };
        if together.contains(&name.as_str()) {
            rests.iter_mut().zip(values).for_each(|(rest, value)| {
                rest.insert(name.clone(), value.clone());
            });
            continue;
        }
        if values.iter().all(|other| *other == value) {
            shared.insert(name.clone(), value.clone());
            continue;
        }
        let step = Step::Field(name.clone());
        let spot = spot.next(&step);
        path.push(step);
        let inner: Option<Vec<&Map>> = values.iter().map(|value| as_map(value)).collect();
        let shape = schema.shape_at(path, spot);
        match inner.filter(|_| shape != Shape::Atomic) {
            Some(inner) => {
                let (inner_shared, inner_rests) = divide(&inner, schema, path, spot);
                put(&mut shared, name, inner_shared);
                for (rest, inner) in rests.iter_mut().zip(inner_rests) {
                    // A struct that may be absent is there in all: each must say so.
                    if !inner.is_empty() || shape == Shape::Optional {
                        rest.insert(name.clone(), Json::Map(inner));
                    }
                }
            }
            None => rests.iter_mut().zip(values).for_each(|(rest, value)| {
                rest.insert(name.clone(), value.clone());
            }),
        }
        path.pop();
    }
    (shared, rests)
}

fn put(map: &mut Map, name: &str, inner: Map) {
    if !inner.is_empty() {
        map.insert(name.to_owned(), Json::Map(inner));
    }
}

/// Puts what was set aside back beside what became of the rest.
pub fn join(shared: Json, merged: Json) -> Json {
    match (shared, merged) {
        (Json::Map(shared), Json::Map(mut merged)) => {
            for (name, value) in shared {
                let value = match merged.remove(&name) {
                    Some(beside) => join(value, beside),
                    None => value,
                };
                merged.insert(name, value);
            }
            Json::Map(merged)
        }
        // Only maps are divided, and what all versions have as a map stays one.
        (shared, _) => shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::rules::Rules;

    fn divided(texts: &[&str]) -> (String, Vec<String>) {
        let objects: Vec<Json> = texts.iter().map(|text| Json::parse(text.as_bytes()).expect("JSON")).collect();
        let rules = Rules::default();
        let objects: Vec<&Json> = objects.iter().collect();
        let divided = Divided::of(&objects, &Schema::new("v1", "Pod", &rules));
        for (object, rest) in objects.iter().zip(&divided.rests) {
            assert_eq!(join(divided.shared.clone(), rest.clone()), **object, "not what it was");
        }
        (divided.shared.canonical(), divided.rests.iter().map(Json::canonical).collect())
    }

    #[test]
    fn what_all_have_is_set_aside_wherever_it_stands() {
        let (shared, rests) = divided(&[
            r#"{"a":1,"m":{"x":{"y":1,"z":2},"only":1},"s":"t"}"#,
            r#"{"a":1,"m":{"x":{"y":1,"z":3}},"s":"u"}"#,
            r#"{"a":1,"m":{"x":{"y":1}},"s":"t","new":[]}"#,
        ]);
        assert_eq!(shared, r#"{"a":1,"m":{"x":{"y":1}}}"#);
        // Nothing is left of the last one's m, and so it has none.
        assert_eq!(
            rests,
            [r#"{"m":{"only":1,"x":{"z":2}},"s":"t"}"#, r#"{"m":{"x":{"z":3}},"s":"u"}"#, r#"{"new":[],"s":"t"}"#]
        );
    }

    #[test]
    fn what_is_one_value_or_has_another_form_elsewhere_is_not_divided() {
        let (shared, rests) = divided(&[
            r#"{"l":[1,2],"m":{"a":1},"e":{},"spec":{"nodeSelector":{"a":"1","b":"2"}}}"#,
            r#"{"l":[1,3],"m":"a","e":{"a":1},"spec":{"nodeSelector":{"a":"1","b":"3"}}}"#,
        ]);
        assert_eq!(shared, "{}");
        assert_eq!(rests[0], r#"{"e":{},"l":[1,2],"m":{"a":1},"spec":{"nodeSelector":{"a":"1","b":"2"}}}"#);
    }
}
