//! The node as a whole, on a journal in memory whose flushes can fail or be held back.

mod flow;
mod past;
mod slices;
mod space;
mod support;
mod watching;
