//! What concurrent versions of a key mean, without a replica around. The outcome of random histories must not depend on
//! the order of arrival, on how much is settled or on the middles of runs. The stories use real Kubernetes objects.

mod braids;
mod cases;
mod edits;
mod histories;
mod jobs;
mod kinds;
mod numbers;
mod objects;
mod runs;
mod sites;
mod stories;
