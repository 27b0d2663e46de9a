//! Several real processes on loopback: what is written at one is read at the others, whatever happens between them.

#[path = "../support/mod.rs"]
mod support;

mod alarms;
mod cluster;
mod disks;
mod faults;
mod members;
mod relay;
mod security;
mod spaces;
mod sync;
