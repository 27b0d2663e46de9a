//! The lab: eddy beside a real etcd, on one machine, in one run. Scenarios are data (`scenarios/*.toml`). Their measurements
//! go into one SQLite file, and from there into a report with figures. The binary `lab` runs scenarios; `empty` is the
//! ceiling of a tonic server.

pub mod experiment;
pub mod lab;
pub mod load;
pub mod machine;
pub mod record;
pub mod relay;
pub mod report;
pub mod results;
pub mod scenario;
pub mod stats;
pub mod target;
