//! What all versions of an object agree about needs no merging: it is set aside, and put back beside what became of the rest.
//!
//! Most of an object never changes; taking only the rest apart makes a merge several times cheaper and changes no outcome.

use smallvec::SmallVec;
use smol_str::SmolStr;

use super::json::{Fields, Json};
use super::path::{Path, Step};
use super::schema::{Schema, Shape, Spot};

/// What a field is in each of the objects: mostly a base and two versions.
type Values<'a> = SmallVec<[&'a Json; 4]>;

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
        let maps: Option<Vec<&Fields>> = objects.iter().map(|object| as_map(object)).collect();
        let Some(maps) = maps else {
            return Self {
                shared: Json::Map(Fields::new()),
                rests: objects.iter().map(|&object| object.clone()).collect(),
            };
        };
        let (shared, rests) = divide(&maps, schema, &mut Path::default(), schema.root());
        Self { shared: Json::Map(shared), rests: rests.into_iter().map(Json::Map).collect() }
    }
}

fn as_map(value: &Json) -> Option<&Fields> {
    value.as_map().filter(|map| !map.is_empty())
}

fn divide<'a>(maps: &[&Fields], schema: &Schema<'a>, path: &mut Path, spot: Spot<'a>) -> (Fields, Vec<Fields>) {
    // In any order: they are sorted at the end.
    let (mut shared, mut rests) = (vec![], vec![vec![]; maps.len()]);
    // Fields that come from one side stay together.
    let differs = |name: &&str| maps.iter().any(|map| map.get(*name) != maps[0].get(*name));
    let apart = spot.together().iter().filter(|one| one.fields.iter().any(&differs));
    let together: Vec<&str> = apart.flat_map(|one| one.fields.iter().copied()).collect();
    let mut everywhere = 0;
    for name in maps.first().into_iter().flat_map(|first| first.keys()) {
        let values: Option<Values<'_>> = maps.iter().map(|map| map.get(name)).collect();
        let Some(values) = values else { continue };
        everywhere += 1;
        let keep = |rests: &mut [Vec<(SmolStr, Json)>]| {
            rests.iter_mut().zip(&values).for_each(|(rest, value)| rest.push((name.clone(), (*value).clone())));
        };
        if together.contains(&name.as_str()) {
            keep(&mut rests);
            continue;
        }
        if values.iter().all(|other| *other == values[0]) {
            shared.push((name.clone(), values[0].clone()));
            continue;
        }
        let step = Step::Field(name.to_string());
        let spot = spot.next(&step);
        path.push(step);
        let inner: Option<Vec<&Fields>> = values.iter().map(|value| as_map(value)).collect();
        let shape = schema.shape_at(path, spot);
        match inner.filter(|_| shape != Shape::Atomic) {
            Some(inner) => {
                let (inner_shared, inner_rests) = divide(&inner, schema, path, spot);
                if !inner_shared.is_empty() {
                    shared.push((name.clone(), Json::Map(inner_shared)));
                }
                for (rest, inner) in rests.iter_mut().zip(inner_rests) {
                    // A struct that may be absent is there in all: each must say so.
                    if !inner.is_empty() || shape == Shape::Optional {
                        rest.push((name.clone(), Json::Map(inner)));
                    }
                }
            }
            None => keep(&mut rests),
        }
        path.pop();
    }
    for (map, rest) in maps.iter().zip(&mut rests).filter(|(map, _)| map.len() > everywhere) {
        let partly = map.iter().filter(|(name, _)| !maps.iter().all(|map| map.contains_key(*name)));
        rest.extend(partly.map(|(name, value)| (name.clone(), value.clone())));
    }
    (shared.into_iter().collect(), rests.into_iter().map(|rest| rest.into_iter().collect()).collect())
}

/// Puts what was set aside back beside what became of the rest.
pub fn join(shared: Json, merged: Json) -> Json {
    match (shared, merged) {
        (Json::Map(mut shared), Json::Map(merged)) => {
            let mut beside = vec![];
            for (name, value) in merged {
                match shared.get_mut(&name) {
                    Some(ours) => *ours = join(std::mem::replace(ours, Json::Null), value),
                    None => beside.push((name, value)),
                }
            }
            shared.extend(beside);
            Json::Map(shared)
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
