//! Written, read again, altered.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;

use bytes::Bytes;
use eddy_crdt::{
    Birth, ClusterId, Command, DeleteOp, Founder, Genesis, Identity, Input, Key, KeyRange, LeaseId, Now, Op, PutLease,
    PutOp, PutValue, RangeOp, ReadAt, Replica, ReplicaId, Revision, Txn,
};
use eddy_proto::mvccpb;
use proptest::prelude::*;
use prost::Message;

use super::give::{GiveError, HASH_BYTES, Take, give, give_runs};
use super::order::{Look, Runs};
use super::page::PAGE_SIZE;
use super::read::{BadDatabase, Bucket, Database};
use super::restore::{Backup, RestoreError, Restored, Wanted};
use super::schema::{self, VersionPlace};
use super::write::{Part, Sink, Trees, first_pages};
use crate::node::{self, Captured};
use crate::storage::{DiskJournal, Options};

#[derive(Default)]
struct Memory(Vec<u8>);

impl Sink for Memory {
    type Error = std::convert::Infallible;

    fn take(&mut self, page: Option<Vec<u8>>) -> Result<(), Self::Error> {
        self.0.extend(page.expect("whole pages"));
        Ok(())
    }
}

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// A database with one bucket for each name.
fn database(buckets: &[(&'static str, &Contents)]) -> Vec<u8> {
    let (mut trees, mut roots) = (Trees::new(Memory::default()), vec![]);
    for (name, contents) in buckets {
        for (key, value) in *contents {
            let Ok(()) = trees.push(Part::Bytes(key), Part::Bytes(value));
        }
        let Ok(root) = trees.finish();
        roots.push((*name, root));
    }
    let (pages, Memory(rest)) = trees.end();
    let bytes = [first_pages(pages, &roots), rest].concat();
    assert_eq!(bytes.len() as u64, pages * PAGE_SIZE as u64);
    bytes
}

fn contents(bytes: &[u8]) -> Result<BTreeMap<String, Contents>, BadDatabase> {
    let mut database = Database::open(Cursor::new(bytes), bytes.len() as u64)?;
    let mut all = BTreeMap::new();
    for (name, bucket) in database.buckets()? {
        let mut found = Contents::new();
        database.each(&bucket, |key, value| {
            assert!(found.insert(key.to_vec(), value.to_vec()).is_none());
            Ok::<(), BadDatabase>(())
        })?;
        all.insert(String::from_utf8_lossy(&name).into_owned(), found);
    }
    Ok(all)
}

fn any_contents(most: usize) -> impl Strategy<Value = Contents> {
    let value = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..60),
        1 => prop::collection::vec(any::<u8>(), 3000..9000),
    ];
    prop::collection::btree_map(prop::collection::vec(any::<u8>(), 1..40), value, 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read_again(a in any_contents(400), b in any_contents(3)) {
        let read = contents(&database(&[("a", &a), ("b", &b), ("empty", &Contents::new())])).unwrap();
        prop_assert_eq!(read, BTreeMap::from([("a".into(), a), ("b".into(), b), ("empty".into(), Contents::new())]));
    }

    #[test]
    fn no_alteration_makes_the_reader_fail_otherwise_than_by_an_error(
        a in any_contents(300),
        alterations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        header in any::<bool>(),
    ) {
        let mut bytes = database(&[("a", &a)]);
        for (place, byte) in alterations {
            // Most of a page is values, and what stands at its begin says where all is.
            let place = place.index(bytes.len());
            bytes[if header { place - place % PAGE_SIZE + place % 96 } else { place }] = byte;
        }
        let _either = contents(&bytes);
    }
}

#[test]
fn a_tree_has_as_many_levels_as_it_needs() {
    let keys: Contents = (0..200_000_u32).map(|n| (n.to_be_bytes().to_vec(), vec![])).collect();
    assert_eq!(contents(&database(&[("a", &keys)])).unwrap()["a"], keys);
}

/// What is wrong is told, and where.
#[test]
fn what_is_not_as_bbolt_writes_it_is_refused() {
    let keys: Contents = (0..2000_u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 20])).collect();
    let good = database(&[("a", &keys)]);
    let told = |bytes: &[u8]| contents(bytes).err().map(|error| error.to_string()).unwrap_or_default();
    let altered = |at: usize, with: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        told(&bytes)
    };
    assert_eq!(told(&good), "");
    for len in [0, 10, 100, 4096, good.len() / 2, good.len() - 1] {
        let said = told(&good[..len]);
        assert!(said.contains("truncated") || said.contains("ends within"), "{len}: {said}");
    }
    assert_eq!(told(&vec![b'x'; 9000]), "it is no bbolt database (no magic number)");
    // Either meta is enough, as in bbolt.
    assert_eq!([altered(20, &[1]), altered(4096 + 40, &[1])], ["", ""]);
    // The root's only element names the page of the bucket.
    let root = 3 * PAGE_SIZE + 16 + 16 + 1;
    let page = |n: u64| n.to_le_bytes();
    assert_eq!(altered(root, &page(1 << 40)), format!("page {} is damaged: it lies behind the last page", 1_u64 << 40));
    assert_eq!(altered(root, &page(3)), "page 3 is damaged: it is named twice, or free");
    let first = 4 * PAGE_SIZE;
    assert_eq!(altered(first, &page(9)), "page 4 is damaged: it says another number");
    assert_eq!(altered(first + 8, &[2, 0, 255, 255]), "page 4 is damaged: it has more elements than fit");
    assert_eq!(altered(first + 8, &[4]), "page 4 is damaged: it should be a branch or a leaf and is neither");
    assert_eq!(altered(first + 16, &[9]), "page 4 is damaged: an element has unknown flags");
    assert_eq!(altered(first + 20, &[255; 4]), "page 4 is damaged: an element lies outside of it, or over another one");
    assert_eq!(altered(first + 12, &[255; 4]), "page 4 is damaged: it goes on behind the last page");
    let key = good[first..].windows(4).position(|bytes| bytes == 1_u32.to_be_bytes()).unwrap();
    assert_eq!(altered(first + key, &[0; 4]), "page 4 is damaged: its keys are not in order");
    assert!(altered(first + key, &[255; 4]).contains("a key lies outside of what its branch says"));
}

const FULL: Now = Now { wall_ms: 1_700_000_000_000, mono_ms: 1 };

/// A replica that nothing changes.
struct Still(Replica);

impl Look for Still {
    fn look<T>(&self, look: impl FnOnce(&Replica) -> T) -> T {
        look(&self.0)
    }
}

fn new_replica() -> Replica {
    let (cluster, replica) = (ClusterId::new(3), ReplicaId::new(7));
    let founder = Founder { id: replica, name: "m".to_owned(), peer_urls: vec!["http://a:2380".to_owned()] };
    let genesis = Genesis { founders: vec![founder], ..Genesis::default() };
    Replica::found(Identity { cluster, replica, birth: Birth::new(1), ordinal: 0 }, &genesis).0
}

fn command(replica: &mut Replica, command: Command) {
    let reply = replica.handle(FULL, Input::Client(command)).reply;
    assert!(matches!(reply, Some(Ok(_))), "{reply:?}");
}

fn put(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: Option<LeaseId>) -> PutOp {
    PutOp { key: key.into(), value: PutValue::Set(value.into()), lease: PutLease::Set(lease), prev_kv: false }
}

/// Puts, deletes, transactions of several keys, a lease, a compaction.
fn with_history() -> Replica {
    let mut replica = new_replica();
    let lease = LeaseId::new(77);
    command(&mut replica, Command::LeaseGrant { id: lease, ttl: 600 });
    for n in 0..40_u32 {
        let key = format!("k{}", n % 9);
        command(&mut replica, Command::Put(put(key, format!("v{n}"), (n % 5 == 0).then_some(lease))));
        if n % 6 == 5 {
            let range = KeyRange::Span(Key::from_static(b"k2"), Key::from_static(b"k5"));
            command(&mut replica, Command::Delete(DeleteOp { range, prev_kv: false }));
        }
        if n % 10 == 3 {
            let ops = ["x", "y", "z"].map(|key| Op::Put(put(key, format!("t{n}"), None)));
            command(&mut replica, Command::Txn(Txn { success: ops.into(), ..Txn::default() }));
        }
    }
    command(&mut replica, Command::Compact(20));
    replica
}

#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    remaining: Vec<u64>,
}

impl Take for Taken {
    fn take(&mut self, part: Bytes, remaining: u64) -> bool {
        self.bytes.extend_from_slice(&part);
        self.remaining.push(remaining);
        true
    }
}

fn taken(replica: &Still) -> Taken {
    let mut taken = Taken::default();
    give(replica, &Captured::of(&replica.0, 2), &mut taken).unwrap();
    taken
}

/// The database without its hash, which is right.
fn checked(taken: &Taken) -> &[u8] {
    let (database, hash) = taken.bytes.split_at(taken.bytes.len() - HASH_BYTES);
    assert_eq!(hash, ring::digest::digest(&ring::digest::SHA256, database).as_ref());
    assert_eq!(database.len() % PAGE_SIZE, 0);
    database
}

#[test]
fn a_backup_has_every_version_that_no_compaction_hides() {
    let replica = Still(with_history());
    let taken = taken(&replica);
    assert!(taken.remaining.is_sorted_by(|a, b| a >= b) && taken.remaining.last() == Some(&0));
    let read = contents(checked(&taken)).unwrap();
    assert_eq!(read["lease"].keys().collect::<Vec<_>>(), [&77_i64.to_be_bytes()]);
    assert_eq!(read["meta"][schema::COMPACTED], schema::revision(Revision::new(20)));
    assert_eq!(read["members"].keys().map(|key| &key[..]).collect::<Vec<_>>(), [b"7"]);
    let now = replica.0.revision();
    // What a reader of the database sees at each revision is what clients see.
    for at in 20..=now.get() {
        let mut seen = BTreeMap::new();
        for (place, value) in &read["key"] {
            let place = VersionPlace::decode(place).unwrap();
            let kv = mvccpb::KeyValue::decode(&value[..]).unwrap();
            if place.main <= at {
                seen.insert(kv.key.clone(), (!place.tombstone).then_some(kv));
            }
        }
        let op = RangeOp {
            at: ReadAt::Revision(Revision::new(at)),
            ..RangeOp::all(KeyRange::From(Key::from_static(b"\0")))
        };
        let expected = replica.0.range(&op, now).unwrap().kvs;
        let expected: Vec<mvccpb::KeyValue> = expected
            .into_iter()
            .map(|kv| schema::version(eddy_crdt::StoredVersion { key: kv.key.clone(), kv: Some(kv) }))
            .collect();
        assert_eq!(seen.into_values().flatten().collect::<Vec<_>>(), expected, "at {at}");
    }
    let (first, last) = (read["key"].keys().next().unwrap(), read["key"].keys().last().unwrap());
    assert!(VersionPlace::decode(first).unwrap().main < 20, "what was written before the compaction and is there");
    assert_eq!(VersionPlace::decode(last).unwrap().main, now.get());
}

#[test]
fn runs_of_any_length_give_the_same_backup() {
    let replica = Still(with_history());
    let whole = taken(&replica).bytes;
    for most in [1, 2, 3, 10, 40, 1000] {
        let captured = Captured::of(&replica.0, 2);
        let runs = Runs::new(&replica, captured.point, 0).of(most);
        let mut taken = Taken::default();
        give_runs(&replica, &captured, runs, &mut taken).unwrap();
        assert!(taken.bytes == whole, "{most}");
    }
}

/// A leap leaves a revision without a version: etcd takes the present revision from `meta` then.
#[test]
fn a_revision_without_a_version_is_told_as_compacted() {
    let mut replica = with_history();
    command(&mut replica, Command::Leap);
    let revision = replica.revision();
    assert!(revision.get() > 1 << 40);
    let read = contents(checked(&taken(&Still(replica)))).unwrap();
    assert_eq!(read["meta"][schema::COMPACTED], schema::revision(revision));
    let last = read["key"].keys().last().unwrap();
    assert!(VersionPlace::decode(last).unwrap().main < 100);
    let fresh = contents(checked(&taken(&Still(new_replica())))).unwrap();
    assert!(fresh["key"].is_empty() && !fresh["meta"].contains_key(schema::COMPACTED));
}

#[test]
fn nobody_needs_to_take_it() {
    struct Gone;
    impl Take for Gone {
        fn take(&mut self, _: Bytes, _: u64) -> bool {
            false
        }
    }
    let replica = Still(with_history());
    let ended = give(&replica, &Captured::of(&replica.0, 2), &mut Gone);
    assert!(matches!(ended, Err(GiveError::Gone)));
}

/// Buckets that fit stand in the root itself, as bbolt writes them.
#[test]
fn small_buckets_are_read_where_they_stand() {
    let mut page = super::page::header(0, super::page::LEAF, 1, 0).to_vec();
    for number in [0_u32, 16, 1, 2] {
        page.extend_from_slice(&number.to_le_bytes());
    }
    page.extend_from_slice(b"kvv");
    let bytes = database(&[("a", &Contents::new())]);
    let mut database = Database::open(Cursor::new(&bytes), bytes.len() as u64).unwrap();
    let mut seen = vec![];
    database
        .each(&Bucket::Inline(page.clone()), |key, value| {
            seen.push((key.to_vec(), value.to_vec()));
            Ok::<(), BadDatabase>(())
        })
        .unwrap();
    assert_eq!(seen, [(b"k".to_vec(), b"vv".to_vec())]);
    for cut in 0..page.len() {
        let cut = Bucket::Inline(page[..cut].to_vec());
        assert!(database.each(&cut, |_, _| Ok::<(), BadDatabase>(())).is_err());
    }
}

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
    Wanted { identity, genesis, bump: 0, without_users: false }
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
    replica.range(&op, replica.revision()).unwrap().kvs
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
        // It is not restored over what is there.
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
    let far = Wanted { bump: 1 << 62, ..wanted(1, &[7]) };
    assert!(goes_on(&far).get() > 1 << 62);
    let backup = Backup::open(&file, false).unwrap();
    for bump in [i64::MAX as u64 - 3, u64::MAX] {
        let too_far = Wanted { bump, ..wanted(1, &[7]) };
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
    let enabled = Contents::from([(b"authEnabled".to_vec(), vec![1])]);
    assert!(of(&[("auth", &enabled), ("key", &empty), ("meta", &empty)]).contains("--without-users"));
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
