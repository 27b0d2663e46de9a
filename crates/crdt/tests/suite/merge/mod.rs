//! What concurrent versions of a key mean, without a replica around: random histories whose outcome must not depend on the
//! order of arrival, on how much is settled or on the middles of runs; and stories with real Kubernetes objects.

mod edits;
mod histories;
mod objects;
mod runs;
mod sites;
mod stories;
