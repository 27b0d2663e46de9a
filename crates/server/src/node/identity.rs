//! Who this replica is, when its data dir is new.
//!
//! Cluster and member ids are hashes of what all members of a static cluster are configured with, so that each
//! computes the same without asking. The birth is random: it tells this data dir from a lost one of the same member.

use eddy_crdt::id::{Birth, ClusterId, Identity, ReplicaId};

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// This member is not in the list.
    #[error("couldn't find local name {0:?} in the initial cluster configuration")]
    NotAMember(String),
    /// A part of the list is not `name=url`.
    #[error("initial cluster: {0:?} is not name=url")]
    Malformed(String),
    /// The operating system gives no randomness.
    #[error("no randomness from the operating system: {0}")]
    Randomness(getrandom::Error),
}

/// etcd's hash, so that the ids are those that an etcd with the same flags would have. It need not resist attackers.
fn hash(bytes: &[u8]) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, bytes);
    let mut id = [0; 8];
    id.copy_from_slice(&digest.as_ref()[..8]);
    // Zero means "none" to etcd's clients.
    u64::from_be_bytes(id).max(1)
}

/// A random birth.
///
/// # Errors
/// When the operating system has no randomness.
pub fn draw_birth() -> Result<Birth, IdentityError> {
    getrandom::u64().map(|n| Birth::new(n.max(1))).map_err(IdentityError::Randomness)
}

/// The identity of a member of a static cluster: `initial_cluster` is `name=url,name=url,...`, with a member's name
/// repeated for each of its URLs.
///
/// # Errors
/// When the list is malformed or lacks the member.
pub fn derive(name: &str, initial_cluster: &str, token: &str) -> Result<Identity, IdentityError> {
    let mut pairs = Vec::new();
    for part in initial_cluster.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        pairs.push(part.split_once('=').ok_or_else(|| IdentityError::Malformed(part.to_owned()))?);
    }
    let urls_of = |name: &str| {
        let mut urls: Vec<&str> = pairs.iter().filter(|(n, _)| *n == name).map(|(_, url)| *url).collect();
        urls.sort_unstable();
        urls
    };
    let own = urls_of(name);
    if own.is_empty() {
        return Err(IdentityError::NotAMember(name.to_owned()));
    }
    let member_id = |urls: &[&str]| hash((urls.concat() + token).as_bytes());
    let mut names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    let mut members: Vec<u64> = names.iter().map(|name| member_id(&urls_of(name))).collect();
    members.sort_unstable();
    let cluster = hash(&members.iter().flat_map(|id| id.to_be_bytes()).collect::<Vec<u8>>());
    let member = member_id(&own);
    // Members in the order of their first URL; each counts revisions in its own space.
    let mut firsts: Vec<&str> = pairs.iter().map(|(name, _)| urls_of(name)[0]).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let ordinal = firsts.iter().position(|first| *first == own[0]).unwrap_or(0);
    Ok(Identity {
        cluster: ClusterId::new(cluster),
        replica: ReplicaId::new(member),
        birth: draw_birth()?,
        ordinal: ordinal as u16,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_members_of_a_cluster_agree_on_it_and_differ_from_each_other() {
        let a = derive("a", "a=http://1:1,b=http://2:1,b=http://2:2", "t").unwrap();
        let b = derive("b", "b=http://2:2,a=http://1:1,b=http://2:1", "t").unwrap();
        assert_eq!(a.cluster, b.cluster);
        assert_ne!(a.replica, b.replica);
        assert_eq!((a.ordinal, b.ordinal), (0, 1));
        assert_ne!(derive("a", "a=http://1:1", "t").unwrap().cluster, a.cluster);
        assert_ne!(
            derive("a", "a=http://1:1", "u").unwrap().cluster,
            derive("a", "a=http://1:1", "t").unwrap().cluster
        );
    }

    /// What etcd 3.7.3 prints for these flags.
    #[test]
    fn ids_are_those_of_an_etcd_with_the_same_flags() {
        let id = derive("default", "default=http://localhost:2380", "etcd-cluster").unwrap();
        assert_eq!((id.cluster.get(), id.replica.get()), (0xcdf8_1819_4e3a_8c32, 0x8e9e_05c5_2164_694d));
        let id = derive("x", "x=https://localhost:20001", "new").unwrap();
        assert_eq!((id.cluster.get(), id.replica.get()), (0x34c2_1a2d_427d_b393, 0x00a8_f345_8387_986d));
    }

    #[test]
    fn each_data_dir_has_a_birth_of_its_own() {
        let one = derive("a", "a=http://1:1", "t").unwrap();
        let two = derive("a", "a=http://1:1", "t").unwrap();
        assert_eq!(one.replica, two.replica);
        assert_ne!(one.birth, two.birth);
    }

    #[test]
    fn a_list_without_the_member_is_refused() {
        assert!(matches!(derive("c", "a=http://1:1", "t"), Err(IdentityError::NotAMember(name)) if name == "c"));
        assert!(matches!(derive("a", "nonsense", "t"), Err(IdentityError::Malformed(_))));
    }
}
