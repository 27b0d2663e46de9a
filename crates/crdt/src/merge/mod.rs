//! What concurrent versions of a key mean together: pure functions of the versions, of nothing else.
//!
//! The [`Window`] of a key holds its unsettled versions; its [`MergeOutcome`] says what the key is. This module is public so
//! that tests and benches can drive it without a replica.

pub(crate) mod book;
pub(crate) mod declared;
pub(crate) mod graph;
pub(crate) mod object;
pub(crate) mod outcome;
pub(crate) mod rights;
pub(crate) mod rules;
pub(crate) mod runs;
pub(crate) mod version;
pub(crate) mod window;
pub(crate) mod windows;

pub use crate::command::counter::{AtomicRule, CounterRule};
pub use book::RuleBook;
pub use declared::{BadDeclaration, atomic, counters, prefix};
pub use object::document::{Document, Edit, Point, Scalar};
pub use object::json::{Fields, Json};
pub use object::leaves::{assemble, flatten};
pub use object::path::Path;
pub use object::schema::Schema;
pub use object::schema::custom::{Customs, Kind};
pub use object::schema::definition::{Unfit, read as read_definition};
pub use object::schema::explain::{Explained, explain, explain_custom, kinds};
pub use object::{Encoding, Object, peek_node, peek_uid};
pub use outcome::{MergeOutcome, begins_anew, replaces};
pub use rules::{ENGINE, Rules, UnknownRules};
pub use version::Version;
pub use window::{Settled, Window};
pub use windows::{KeyWindow, Windows};
