//! What the suites share: replicas with journals, the ways between them, what they must show, and failures made short.

pub mod build;
pub mod checks;
pub mod disk;
pub mod node;
pub mod past;
pub mod range;
pub mod seeds;
pub mod shadow;
pub mod wires;
pub mod world;
