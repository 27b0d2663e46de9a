//! Objects of one kind in two apiVersions: a storage migration, or API servers of two releases.
//!
//! They merge where all that they hold means the same in both: the field lies at the same path and has the same form. Converting
//! what does not is for API servers alone. Which version counts is only known when all heads are, and versions may have left by
//! the rules of another one. So where the two merge in different ways, all heads must hold the same.

use std::collections::BTreeSet;

use smol_str::SmolStr;

use super::Object;
use super::json::Json;
use super::path::Step;
use super::schema::Spot;
use super::schema::catalogue::{Base, Form};
use crate::merge::rules::Rules;

/// Whether all that an object holds means the same in the apiVersion of another one of its kind, and merges so. Where only the way
/// differs in which it merges, both must hold the same there.
pub fn means_the_same_in(object: &Object, other: &Object, rules: &Rules) -> bool {
    let (own, target) = (object.schema(rules), other.schema(rules));
    if own.kind() == target.kind() {
        return true;
    }
    match (own.root(), target.root(), &object.json, &other.json) {
        // Of a kind of which nothing is declared nobody knows what a field is called elsewhere.
        (Spot::Root, ..) | (_, Spot::Root, ..) => false,
        (here, there, Json::Map(map), Json::Map(theirs)) => {
            let names: BTreeSet<&SmolStr> = map.keys().chain(theirs.keys()).collect();
            let mut names =
                names.into_iter().filter(|name| !["apiVersion", "kind", "metadata"].contains(&name.as_str()));
            names.all(|name| is_same_field(name, [map.get(name.as_str()), theirs.get(name.as_str())], here, there))
        }
        _ => false,
    }
}

/// The same of a field: what the object has there, and what the other one has.
fn is_same_field(name: &str, values: [Option<&Json>; 2], here: Spot<'_>, there: Spot<'_>) -> bool {
    let step = Step::Field(name.to_owned());
    let is_known =
        !here.is_strange(name) && !there.is_strange(name) && here.together_with(name) == there.together_with(name);
    match values {
        [Some(_), _] if !is_known => false,
        // Only the other one has it, and only its version knows it.
        [None, _] if !is_known => true,
        values => is_same(values, here.next(&step), there.next(&step)),
    }
}

fn is_same(values: [Option<&Json>; 2], here: Spot<'_>, there: Spot<'_>) -> bool {
    let [own, theirs] = values;
    if !has_one_form(here, there) {
        return own.is_none();
    }
    if here.shape() != there.shape() && own != theirs {
        return false;
    }
    let step = Step::Element(String::new());
    match (own, theirs) {
        (Some(Json::Map(map)), theirs) => {
            let theirs = theirs.and_then(Json::as_map);
            let names = map.keys().chain(theirs.into_iter().flat_map(|theirs| theirs.keys()));
            let mut names: BTreeSet<&SmolStr> = names.collect();
            names.retain(|name| {
                let values = [map.get(name.as_str()), theirs.and_then(|theirs| theirs.get(name.as_str()))];
                !is_same_field(name, values, here, there)
            });
            names.is_empty()
        }
        (None, Some(Json::Map(theirs))) => {
            theirs.iter().all(|(name, value)| is_same_field(name, [None, Some(value)], here, there))
        }
        (Some(Json::List(list)), theirs) => {
            let is_equal = own == theirs;
            let inside = |item| is_same([Some(item), is_equal.then_some(item)], here.next(&step), there.next(&step));
            list.iter().all(inside)
        }
        (None, Some(Json::List(theirs))) => {
            theirs.iter().all(|item| is_same([None, Some(item)], here.next(&step), there.next(&step)))
        }
        _ => true,
    }
}

/// Whether values at both places have one form, whatever lies in them.
fn has_one_form(here: Spot<'_>, there: Spot<'_>) -> bool {
    let is_struct = |form: Form| matches!(form.base, Base::Struct(_));
    match (here, there) {
        (Spot::Known(own, _), Spot::Known(target, _)) => {
            own.many == target.many && (own.base == target.base || is_struct(own) && is_struct(target))
        }
        (Spot::Known(..), _) | (_, Spot::Known(..)) => false,
        _ => true,
    }
}
