//! An object of which nothing is left to do but to go.
//!
//! An API server removes such an object itself, when the last finalizer goes or when it is deleted and has none. Where one site deletes
//! it and another takes the last finalizer away, neither has seen both, and nobody would ever do it.

use super::super::json::Json;
use super::place::{list, text};
use super::together::grace;

/// Whether an object is being deleted, nobody has to finish anything before, and no time of grace is left.
pub fn is_done(object: &Json) -> bool {
    let Some(metadata) = object.get("metadata") else { return false };
    let is_namespace = text(object, "kind") == "Namespace" && text(object, "apiVersion") == "v1";
    let waits = is_namespace && object.get("spec").is_some_and(|spec| !list(spec, "finalizers").is_empty());
    !text(metadata, "deletionTimestamp").is_empty()
        && list(metadata, "finalizers").is_empty()
        && !waits
        && grace(metadata) == 0
}
