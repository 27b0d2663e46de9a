//! What clients ask and are told, and what operators are told.

pub(crate) mod auth;
pub(crate) mod counter;
pub(crate) mod event;
pub(crate) mod member;
pub(crate) mod notice;
pub(crate) mod op;
pub(crate) mod reply;
pub(crate) mod tally;
