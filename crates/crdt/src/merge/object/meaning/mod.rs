//! What Kubernetes means beyond single fields.
//!
//! - [`together`]: fields that come from one side, where that is not just the one that edited them last;
//! - [`counts`]: the counts of a Job, pod by pod; [`indexes`]: those of an indexed one;
//! - [`done`]: an object of which nothing is left to do but to go;
//! - [`mend`]: what versions do not mean together is put right where they come together: one controller, the versions in which
//!   objects are stored, ports of nodes, counts, and what [`refused`] lists; [`watched`] says where;
//! - [`quantity`], [`place`]: what these need.
//!
//! All of it is a function of the versions that come together: of their values, and of when each leaf was written. A version on top
//! saw the object as it was put right, and what it only saw is no edit of its own.

pub mod counts;
pub mod done;
pub mod indexes;
pub mod mend;
pub mod place;
pub mod quantity;
pub mod refused;
pub mod together;
pub mod watched;
