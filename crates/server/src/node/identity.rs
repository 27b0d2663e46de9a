//! The identity of a replica whose data dir is new.
//!
//! Cluster and member ids are hashes of the configuration that all members of a static cluster share. So each member
//! computes the same ids without asking. The birth is random: it tells this data dir from a lost one of the same
//! member.

use std::time::SystemTime;

use eddy_crdt::{Birth, ClusterId, Founder, Identity, ReplicaId};

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

/// etcd's hash, so that an etcd with the same flags would have the same ids. It need not resist attackers.
fn hash(bytes: &[u8]) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, bytes);
    let mut id = [0; 8];
    id.copy_from_slice(&digest.as_ref()[..8]);
    // Zero means "none" to etcd's clients.
    u64::from_be_bytes(id).max(1)
}

/// A birth drawn now.
///
/// # Errors
/// When the operating system has no randomness.
pub fn draw_birth() -> Result<Birth, IdentityError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
    getrandom::u32().map(|random| Birth::drawn(seconds, random)).map_err(IdentityError::Randomness)
}

/// The id of a member that is added at run time; `peer_urls` are sorted. It is the same wherever the member is added. The
/// id of a removed member is never used again, so `removed` members at these URLs make it another one.
pub fn member_id(cluster: ClusterId, peer_urls: &[String], removed: u32) -> ReplicaId {
    let mut text = peer_urls.concat() + &cluster.to_string();
    if removed > 0 {
        text += &format!("#{removed}");
    }
    ReplicaId::new(hash(text.as_bytes()))
}

/// A static cluster, as every member computes it from the same list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Founded {
    /// This member.
    pub identity: Identity,
    /// All members, in order of id.
    pub founders: Vec<Founder>,
}

/// The members of a static cluster: `initial_cluster` is `name=url,name=url,...`, with a member's name
/// repeated for each of its URLs.
///
/// # Errors
/// When the list is malformed or lacks the member.
pub fn derive(name: &str, initial_cluster: &str, token: &str) -> Result<Founded, IdentityError> {
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
    let mut founders: Vec<Founder> = names
        .iter()
        .map(|name| {
            let urls = urls_of(name);
            Founder {
                id: ReplicaId::new(member_id(&urls)),
                name: (*name).to_owned(),
                peer_urls: urls.into_iter().map(str::to_owned).collect(),
            }
        })
        .collect();
    founders.sort_unstable_by_key(|founder| founder.id);
    let cluster = hash(&founders.iter().flat_map(|founder| founder.id.get().to_be_bytes()).collect::<Vec<u8>>());
    let replica = ReplicaId::new(member_id(&own));
    // Each member counts revisions in its own space.
    let ordinal = founders.iter().position(|founder| founder.id == replica).unwrap_or(0) as u16;
    let identity = Identity { cluster: ClusterId::new(cluster), replica, birth: draw_birth()?, ordinal };
    Ok(Founded { identity, founders })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derive(name: &str, initial_cluster: &str, token: &str) -> Result<Identity, IdentityError> {
        super::derive(name, initial_cluster, token).map(|founded| founded.identity)
    }

    #[test]
    fn all_members_of_a_cluster_agree_on_it_and_differ_from_each_other() {
        let a = derive("a", "a=http://1:1,b=http://2:1,b=http://2:2", "t").unwrap();
        let b = derive("b", "b=http://2:2,a=http://1:1,b=http://2:1", "t").unwrap();
        assert_eq!(a.cluster, b.cluster);
        assert_ne!(a.replica, b.replica);
        assert_eq!((a.ordinal, b.ordinal), if a.replica < b.replica { (0, 1) } else { (1, 0) });
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

    #[test]
    fn a_member_at_the_urls_of_a_removed_one_is_another() {
        let urls = ["http://1:1".to_owned()];
        let id = |cluster, removed| member_id(ClusterId::new(cluster), &urls, removed);
        assert_eq!(id(1, 0), id(1, 0));
        assert_ne!(id(1, 0), id(1, 1));
        assert_ne!(id(1, 0), id(2, 0));
    }
}
