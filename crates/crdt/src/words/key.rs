//! Keys, ranges of keys, and the two keyspaces.

use bytes::Bytes;

/// A key of a client, or of the system keyspace. Any bytes but none.
pub type Key = Bytes;

/// Which keyspace a key lies in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Keyspace {
    /// What clients read and write. Only entries that touch it take a revision.
    Client,
    /// Leases, alarms, members: replicated and merged like everything else, never shown as keys.
    System,
}

/// A key with its keyspace: a place in the order of all keys.
pub type Place = (Keyspace, Key);

/// A set of adjacent keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyRange {
    /// This key alone.
    Key(Key),
    /// All keys from the first (included) to the second (excluded). Nothing when they are the wrong way round.
    Span(Key, Key),
    /// All keys from this one on.
    From(Key),
}

impl KeyRange {
    /// Decodes etcd's `key` and `range_end`: no end means the key alone, a single zero byte means "to the last key".
    pub fn from_wire(key: Bytes, range_end: Bytes) -> Self {
        match &range_end[..] {
            [] => Self::Key(key),
            [0] => Self::From(key),
            _ => Self::Span(key, range_end),
        }
    }

    /// Whether the key lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Key(k) => k == key,
            Self::Span(from, to) => &from[..] <= key && key < &to[..],
            Self::From(from) => &from[..] <= key,
        }
    }

    /// The first key that can lie in the range.
    pub fn start(&self) -> &Key {
        match self {
            Self::Key(k) | Self::Span(k, _) | Self::From(k) => k,
        }
    }

    /// The first key behind the range; `None` when it goes on to the last key, or is one key.
    pub fn end(&self) -> Option<&Key> {
        match self {
            Self::Span(_, to) => Some(to),
            Self::Key(_) | Self::From(_) => None,
        }
    }
}

/// Where Kubernetes keeps its objects unless it is told otherwise.
pub const KUBERNETES_PREFIX: &[u8] = b"/registry/";

/// Where each kube-apiserver notes how far it has compacted. It does not stand under the prefix.
const COMPACTION_KEY: &[u8] = b"compact_rev_key";

/// Keys that each replica keeps for itself, as they go on behind the prefix. Part of the rules number.
const LOCAL: [&[u8]; 2] = [b"services/endpoints/default/kubernetes", b"endpointslices/default/kubernetes"];

/// How keys begin behind the prefix that each replica keeps for itself.
const LOCAL_PREFIXES: [&[u8]; 2] = [b"masterleases/", b"peerserverleases/"];

/// The client keys that each replica keeps for itself: never sent to peers, not in the state hash. Each kube-apiserver
/// compacts its own replica, and a site's pods must find their own site's apiserver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalKeys {
    prefix: Bytes,
}

impl Default for LocalKeys {
    fn default() -> Self {
        Self::under(Bytes::from_static(KUBERNETES_PREFIX))
    }
}

impl LocalKeys {
    /// Those of a cluster whose Kubernetes objects stand under that prefix.
    pub fn under(prefix: Bytes) -> Self {
        Self { prefix }
    }

    /// Whether that client key is one of them.
    pub fn contains(&self, key: &[u8]) -> bool {
        key == COMPACTION_KEY
            || key.strip_prefix(&self.prefix[..]).is_some_and(|rest| {
                LOCAL.contains(&rest) || LOCAL_PREFIXES.iter().any(|prefix| rest.starts_with(prefix))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &'static str, end: &'static str) -> KeyRange {
        KeyRange::from_wire(Bytes::from_static(key.as_bytes()), Bytes::from_static(end.as_bytes()))
    }

    #[test]
    fn range_end_is_decoded_once() {
        assert!(range("a", "").contains(b"a") && !range("a", "").contains(b"b"));
        assert!(range("a", "\0").contains(b"zzz") && !range("b", "\0").contains(b"a"));
        assert!(range("a", "c").contains(b"b") && !range("a", "c").contains(b"c"));
        assert!(!range("c", "a").contains(b"b"));
    }

    #[test]
    fn apiserver_housekeeping_is_replica_local() {
        let local = LocalKeys::default();
        assert!(local.contains(b"compact_rev_key"));
        assert!(local.contains(b"/registry/masterleases/10.0.0.1"));
        assert!(local.contains(b"/registry/services/endpoints/default/kubernetes"));
        assert!(!local.contains(b"/registry/services/endpoints/default/kubernetes2"));
        let elsewhere = LocalKeys::under(Bytes::from_static(b"/k8s/"));
        assert!(elsewhere.contains(b"compact_rev_key") && elsewhere.contains(b"/k8s/masterleases/10.0.0.1"));
        assert!(!elsewhere.contains(b"/registry/masterleases/10.0.0.1") && !elsewhere.contains(b"/k8s/pods/a/b"));
    }
}
