//! Replicas from backups.

use std::path::Path;

use eddy_crdt::{
    AuthCommand, Birth, ClusterId, Command, Founder, Genesis, Identity, Key, KeyRange, LeaseId, Now, PastValues,
    Permission, PermissionRange, RangeOp, Replica, ReplicaId, Right,
};
use eddy_proto::mvccpb;
use prost::Message;

use super::{Contents, Still, command, database, new_replica, put, taken, with_history};
use crate::backup::give::HASH_BYTES;
use crate::backup::page::PAGE_SIZE;
use crate::backup::restore::{Backup, GoesOn, RestoreError, Restored, Wanted};
use crate::backup::schema::VersionPlace;
use crate::node;
use crate::storage::{DiskJournal, Options};

/// A file of a backup, and a folder for what is made of it.
fn filed(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup.db");
    std::fs::write(&file, bytes).unwrap();
    (folder, file)
}

fn wanted(birth: u64, founders: &[u64]) -> Wanted {
    let founder = |id: &u64| {
        let (id, name) = (ReplicaId::new(*id), format!("m{id}"));
        Founder { id, name, peer_urls: vec![format!("http://{id}:2380")] }
    };
    let genesis = Genesis { founders: founders.iter().map(founder).collect(), ..Genesis::default() };
    let (cluster, replica) = (ClusterId::new(9), ReplicaId::new(founders[0]));
    let identity = Identity { cluster, replica, birth: Birth::new(birth), ordinal: 0 };
    Wanted { identity, genesis, goes_on: GoesOn::Above(0), without_users: false }
}

fn restored(file: &Path, data_dir: &Path, wanted: &Wanted) -> (Restored, Replica) {
    let backup = Backup::open(file, false).unwrap();
    let told = backup.restore(data_dir, Options::default(), wanted).unwrap();
    let mut journal = DiskJournal::open(data_dir, Options::default()).unwrap();
    let replica = node::load(&mut journal, data_dir, wanted.identity, eddy_crdt::merge::ENGINE).unwrap();
    (told, replica)
}

fn all(replica: &Replica) -> Vec<eddy_crdt::KeyValue> {
    let op = RangeOp::all(KeyRange::From(Key::from_static(b"\0")));
    replica.range(&op, replica.revision(), &PastValues::default()).unwrap().kvs
}

#[test]
fn a_restored_replica_has_its_users_and_roles() {
    let mut replica = new_replica();
    let user = |name: &str, password: Option<&'static str>| AuthCommand::UserAdd {
        name: name.to_owned(),
        password: password.map(Into::into),
    };
    let grant = |user: &str, role: &str| AuthCommand::UserGrantRole { user: user.to_owned(), role: role.to_owned() };
    let permission = |key: &'static str, range_end: &'static str, right| AuthCommand::RoleGrantPermission {
        role: "r".to_owned(),
        permission: Some(Permission { range: PermissionRange { key: key.into(), range_end: range_end.into() }, right }),
    };
    for change in [
        user("root", Some("hash")),
        user("bob", None),
        grant("root", "root"),
        AuthCommand::RoleAdd("r".to_owned()),
        permission("a", "", Right::Read),
        permission("b", "\0", Right::ReadWrite),
        grant("bob", "r"),
        AuthCommand::Enable,
    ] {
        command(&mut replica, Command::Auth(change));
    }
    let replica = Still(replica);
    let (folder, file) = filed(&taken(&replica).bytes);
    let (_, found) = restored(&file, &folder.path().join("with"), &wanted(1, &[7]));
    let (now, before) = (found.users(), replica.0.users());
    assert!(now.enabled && now.users().eq(before.users()) && now.roles().eq(before.roles()), "{now:?}");
    assert_eq!((now.users().count(), now.roles().count()), (2, 1));
    let without = Wanted { without_users: true, ..wanted(1, &[7]) };
    let (_, found) = restored(&file, &folder.path().join("without"), &without);
    assert!(found.users().is_empty());
}

#[test]
fn a_restored_replica_holds_what_was_backed_up() {
    let mut replica = with_history();
    // One that stays on its replica, and one of no byte.
    command(&mut replica, Command::Put(put("compact_rev_key", "5", None)));
    command(&mut replica, Command::Put(put("empty", "", None)));
    let replica = Still(replica);
    let (folder, file) = filed(&taken(&replica).bytes);
    for founders in [&[7][..], &[7, 8, 9]] {
        let data_dir = folder.path().join(founders.len().to_string());
        let (told, found) = restored(&file, &data_dir, &wanted(1, founders));
        assert_eq!((told.of, told.keys), (replica.0.revision().get(), replica.0.live_keys()));
        assert_eq!((told.leases, told.without_lease), (1, 0));
        assert_eq!(all(&found), all(&replica.0));
        let (now, lease) = (Now::default(), LeaseId::new(77));
        let told_lease = found.lease(now, lease).unwrap();
        assert_eq!(told_lease.keys, replica.0.lease(now, lease).unwrap().keys);
        assert_eq!((told_lease.granted_ttl, told_lease.remaining_ms), (600, 600_000));
        assert_eq!((found.revision(), found.compacted()), (told.goes_on_at, Some(told.goes_on_at)));
        assert!(told.goes_on_at > replica.0.revision());
        assert_eq!(found.members().count(), founders.len());
        // It is not restored over what is there, but over what an interrupted restore left.
        let half = folder.path().join(format!("half{}", founders.len()));
        std::fs::create_dir_all(half.join("eddy.joining/eddy")).unwrap();
        assert_eq!(all(&restored(&file, &half, &wanted(1, founders)).1), all(&replica.0));
        let again = Backup::open(&file, false).unwrap().restore(&data_dir, Options::default(), &wanted(1, founders));
        assert!(matches!(again, Err(RestoreError::NotEmpty(_))));
    }
}

/// Each restore goes on elsewhere, above what was there, and as far above as is asked for.
#[test]
fn no_two_restores_count_the_same_revisions() {
    let replica = Still(with_history());
    let (folder, file) = filed(&taken(&replica).bytes);
    let goes_on = |wanted: &Wanted| restored(&file, tempfile::tempdir_in(&folder).unwrap().path(), wanted).0.goes_on_at;
    let spaces: std::collections::BTreeSet<u64> = (1..=20).map(|birth| goes_on(&wanted(birth, &[7])).space()).collect();
    assert_eq!(spaces.len(), 20);
    let far = Wanted { goes_on: GoesOn::Above(1 << 62), ..wanted(1, &[7]) };
    assert!(goes_on(&far).get() > 1 << 62);
    let backup = Backup::open(&file, false).unwrap();
    for bump in [i64::MAX as u64 - 3, u64::MAX] {
        let too_far = Wanted { goes_on: GoesOn::Above(bump), ..wanted(1, &[7]) };
        assert!(backup.restore(&folder.path().join("x"), Options::default(), &too_far).is_err());
    }
    assert!(!folder.path().join("x/eddy").exists());
    // Members founded from one backup take each other for members, those of two backups do not.
    let cluster = |file: &Path| Backup::open(file, false).unwrap().cluster(ClusterId::new(5));
    let (_other, other) = filed(&taken(&Still(new_replica())).bytes);
    assert_eq!(cluster(&file), cluster(&file));
    assert_ne!(cluster(&file), cluster(&other));
}

/// Each file that is no whole backup is refused, and it is told why.
#[test]
fn what_is_no_whole_backup_is_refused_by_name() {
    let good = taken(&Still(with_history())).bytes;
    let refused = |bytes: &[u8], skip: bool| {
        let (folder, file) = filed(bytes);
        let data_dir = folder.path().join("d");
        let made = Backup::open(&file, skip)
            .and_then(|backup| backup.restore(&data_dir, Options::default(), &wanted(1, &[7])));
        assert!(made.is_ok() || !data_dir.join("eddy").exists());
        made.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!([refused(&good, false), refused(&good, true)], ["", ""]);
    let mut altered = good.clone();
    altered[4 * PAGE_SIZE + 3000] ^= 1;
    assert!(refused(&altered, false).contains("altered"));
    let bare = &good[..good.len() - HASH_BYTES];
    assert!(refused(bare, false).contains("no hash"));
    assert_eq!(refused(bare, true), "");
    for len in [0, 1000, PAGE_SIZE, good.len() / 2, good.len() - HASH_BYTES - 1] {
        let said = refused(&good[..len], len % 2 == 0);
        assert!(said.contains("truncated") || said.contains("ends within"), "{len}: {said}");
    }
    assert!(refused(&good[..good.len() - 1], false).contains("no hash"));
    assert!(refused(&vec![b'x'; 10_000], false).contains("no bbolt database"));
    let (keys, empty) = (Contents::from([(vec![1; 17], vec![])]), Contents::new());
    let of = |buckets: &[(&'static str, &Contents)]| refused(&database(buckets), true);
    assert_eq!(of(&[("other", &empty)]), "it has no bucket \"key\", so etcd did not write it");
    assert_eq!(
        of(&[("key", &keys), ("meta", &empty)]),
        "bucket \"key\" is not as etcd writes it: a key is no revision"
    );
    let users = Contents::from([(b"u".to_vec(), vec![0xff])]);
    assert!(of(&[("authUsers", &users), ("key", &empty), ("meta", &empty)]).contains("a user is none"));
    assert!(of(&[("authRoles", &users), ("key", &empty), ("meta", &empty)]).contains("a role is none"));
    let key = |main: i64, kv: mvccpb::KeyValue| {
        let place = VersionPlace { main, sub: 0, tombstone: false };
        let keys = Contents::from([(place.encode(), kv.encode_to_vec())]);
        of(&[("key", &keys), ("meta", &empty)])
    };
    let kv = |create_revision, mod_revision, version| mvccpb::KeyValue {
        key: "k".into(),
        create_revision,
        mod_revision,
        version,
        ..Default::default()
    };
    assert_eq!(key(5, kv(4, 5, 2)), "");
    assert!(key(5, kv(4, 6, 2)).contains("another revision"));
    for (create, version) in [(0, 1), (6, 1), (4, 0), (4, -1), (4, i64::MAX)] {
        assert!(key(5, kv(create, 5, version)).contains("impossible"), "{create} {version}");
    }
}
