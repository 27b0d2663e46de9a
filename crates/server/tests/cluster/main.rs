//! Several real processes on loopback: what is written at one is read at the others, whatever happens between them.

#[path = "../support/mod.rs"]
mod support;

// The lab's network, too. The lab depends on no server, and these tests on no lab.
#[path = "../../../bench/src/relay.rs"]
mod relay;

mod alarms;
mod away;
mod backlog;
mod builds;
mod clocks;
mod cluster;
mod corrupt;
mod disks;
mod example;
mod fake;
mod faults;
mod garbage;
mod leases;
mod members;
mod memory;
mod overload;
mod promql;
mod rules;
mod security;
mod spaces;
mod sync;
mod users;
mod watching;
