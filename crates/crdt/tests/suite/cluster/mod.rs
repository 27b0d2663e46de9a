//! Several machines that exchange entries without a network: random orders of delivery, restarts at every point.
//!
//! `EDDY_CLUSTER_CASES` (default 1500) is the number of random histories; `EDDY_CLUSTER_SEED` the first one's seed. A
//! failure is shrunk and printed with its seed.

mod late;
mod losses;
mod random;
mod reports;
mod rules;
mod schemas;
mod slices;
mod spaces;
mod stories;
mod strays;
mod users;
