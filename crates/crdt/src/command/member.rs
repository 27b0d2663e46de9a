//! A member of the cluster, as clients and operators are told of it.

use crate::words::id::ReplicaId;

/// A member of the cluster, or one that was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its id.
    pub id: ReplicaId,
    /// Its name; empty until it has published it.
    pub name: String,
    /// Where other members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// It says which revision spaces are the member's own.
    pub ordinal: Option<u16>,
    /// Whether it is a learner.
    pub learner: bool,
    /// The newest merge engine of its build; `None` until it has said.
    pub engine: Option<u32>,
    /// Whether it was removed.
    pub removed: bool,
}
