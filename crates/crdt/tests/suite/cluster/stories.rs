//! Single stories.

use eddy_crdt::{
    Birth, Command, Identity, Input, InstallError, Installed, Installer, LeaseId, Notice, Now, Refusal, Replica,
    ReplicaId, Reply, SnapshotChunk,
};

use crate::support::build::{add, delete, genesis, id, identity, put, put_leased};
use crate::support::node::Node;
use crate::support::world::World;

#[test]
fn a_cluster_of_one_has_its_member_and_counts_as_etcd_does() {
    let node = Node::found(identity(0, 1), &genesis(1));
    assert_eq!(node.replica.revision().get(), 1);
    let members: Vec<_> = node.replica.members().collect();
    assert_eq!((members.len(), members[0].name.as_str(), members[0].ordinal), (1, "n0", Some(0)));
    assert_eq!((node.replica.log_len(), node.replica.windows_len()), (0, 0));
}

#[test]
fn a_write_shows_elsewhere_in_the_other_replicas_own_revisions() {
    let mut world = World::new(2);
    drop(world.run(0, put("k", "v")));
    world.tell(0, 1, usize::MAX).unwrap();
    let kv = world.nodes[1].kv("k").unwrap();
    assert_eq!((kv.mod_revision.space() % 4096, kv.mod_revision.counter(), kv.version), (1, 2, 1));
    // The key, and in which space it was written.
    assert_eq!(world.nodes[0].replica.windows_len(), 2);
    world.tell_all().unwrap();
    world.check_equal().unwrap();
}

#[test]
fn two_members_that_take_the_same_ordinal_end_with_different_ones() {
    let mut world = World::new(2);
    assert!(matches!(world.run(0, add(6)), Ok(Reply::Members(members)) if members.len() == 3));
    assert_eq!(world.run(0, add(6)), Err(Refusal::MemberExists));
    world.run(1, add(7)).unwrap();
    world.tell(0, 1, usize::MAX).unwrap();
    world.tell(1, 0, usize::MAX).unwrap();
    for node in &world.nodes {
        let ordinals: Vec<_> = node.replica.members().map(|m| (m.id.get(), m.ordinal)).collect();
        assert_eq!(ordinals, [(1, Some(0)), (2, Some(1)), (7, Some(2)), (8, None)]);
    }
}

#[test]
fn a_removed_member_is_not_heard_any_more() {
    let mut world = World::new(3);
    world.run(2, put("before", "1")).unwrap();
    world.tell(2, 1, usize::MAX).unwrap();
    world.run(0, Command::MemberRemove(ReplicaId::new(3))).unwrap();
    world.run(2, put("after", "1")).unwrap();
    world.tell(2, 0, usize::MAX).unwrap();
    assert!(matches!(world.nodes[0].notices[..], [Notice::NotAMember { .. }]));
    // What another member took before it knew is passed on.
    world.nodes.truncate(2);
    world.tell_all().unwrap();
    world.check_equal().unwrap();
    assert_eq!((world.nodes[0].get("before").as_deref(), world.nodes[0].get("after")), (Some("1"), None));
}

#[test]
fn ten_thousand_writes_to_one_key_while_cut_off_leave_nothing_to_send_but_the_last() {
    let mut world = World::new(2);
    world.run(0, put("k", "first")).unwrap();
    world.tell_all().unwrap();
    world.handle(0, Input::Stop { member: id(1), session: 1, upto: None });
    for n in 0..10_000 {
        world.run(0, put("k", n.to_string())).unwrap();
    }
    assert!(world.nodes[0].replica.log_len() < 40, "{} entries", world.nodes[0].replica.log_len());
    world.nodes[0].tidy(usize::MAX, usize::MAX);
    world.run(0, put("other", "1")).unwrap();
    world.restart(0).unwrap();
    world.tell_all().unwrap();
    world.check_equal().unwrap();
    let kv = world.nodes[1].kv("k").unwrap();
    assert_eq!((&kv.value[..], kv.version), (&b"9999"[..], 10_001));
}

#[test]
fn what_peers_may_have_been_sent_is_never_left_out() {
    let mut world = World::new(2);
    for n in 0..100 {
        world.run(0, put("k", n.to_string())).unwrap();
        world.handle(0, Input::Stream { member: id(1), session: 1 });
    }
    assert_eq!(world.nodes[0].replica.log_len(), 100);
}

/// Fetches a snapshot in chunks of that many bytes.
pub(super) fn install(world: &mut World, from: usize, identity: Identity, bytes: usize, old: Option<&Replica>) -> Node {
    let installed = try_install(world, from, identity, bytes, old).unwrap_or_else(|error| panic!("{error}"));
    Node::installed(installed)
}

fn try_install(
    world: &mut World,
    from: usize,
    identity: Identity,
    bytes: usize,
    old: Option<&Replica>,
) -> Result<Installed, InstallError> {
    let (mut installer, mut after) = (Installer::new(), None);
    world.handle(from, Input::Begins { member: identity.replica, birth: identity.birth });
    loop {
        world.handle(from, Input::Hold);
        let giver = &world.nodes[from].replica;
        let chunk = giver.snapshot_chunk(after.as_ref(), giver.vector(), bytes).encode();
        after = installer.chunk(SnapshotChunk::decode(&chunk)?)?;
        if after.is_none() {
            return installer.finish(world.now(), identity, old);
        }
    }
}

#[test]
fn a_cluster_grows_from_one_by_a_snapshot() {
    let mut world = World::new(1);
    world.run(0, Command::LeaseGrant { id: LeaseId::new(7), ttl: 60 }).unwrap();
    for n in 0..40 {
        world.run(0, put_leased(&format!("k{n}"), "v", (n == 3).then_some(7))).unwrap();
    }
    assert!(matches!(try_install(&mut world, 0, identity(1, 1), 100, None), Err(InstallError::NotAMember)));
    world.run(0, add(1)).unwrap();
    world.run(0, put("k1", "after the new member was added")).unwrap();
    let node = install(&mut world, 0, identity(1, 1), 100, None);
    assert_eq!(node.replica.identity().ordinal, 1);
    assert!(node.replica.revision().space() > 0 && node.replica.revision().space() % 4096 == 1);
    let kv = node.kv("k3").unwrap();
    assert_eq!((Some(kv.mod_revision), kv.lease), (node.replica.compacted(), Some(LeaseId::new(7))));
    world.nodes.push(node);
    world.restart(1).unwrap();
    world.run(1, put("k2", "from the new member")).unwrap();
    world.tell_all().unwrap();
    assert!(world.nodes[0].replica.windows_len() > 0, "held for the one that read");
    world.handle(0, Input::Release);
    assert_eq!(world.nodes[0].replica.windows_len(), 0);
    world.check_equal().unwrap();
    assert_eq!(world.nodes[0].get("k2").as_deref(), Some("from the new member"));
    world.restart(1).unwrap();
}

#[test]
fn a_snapshot_carries_windows() {
    let mut world = World::new(3);
    world.run(0, put("/registry/x", "a")).unwrap();
    world.run(1, put("/registry/x", "b")).unwrap();
    world.tell(1, 0, usize::MAX).unwrap();
    assert_eq!(world.nodes[0].replica.windows_len(), 3, "the key's, and those of two revision spaces");
    let fresh = identity(2, 999);
    world.nodes[2] = install(&mut world, 0, fresh, 1, None);
    assert_eq!(world.nodes[2].replica.windows_len(), 5, "and those of its birth and its own revision space");
    assert_eq!(world.nodes[2].get("/registry/x"), world.nodes[0].get("/registry/x"));
    world.ms += eddy_crdt::HOLD_MS;
    world.tell_all().unwrap();
    world.check_equal().unwrap();
    assert_eq!(world.nodes[0].get("/registry/x").as_deref(), Some("a"), "the first to create it stays");
}

#[test]
fn a_giver_that_settles_between_two_chunks_is_found_out() {
    let mut world = World::new(2);
    for n in 0..9 {
        world.run(0, put(&format!("k{n}"), "v")).unwrap();
    }
    let mut installer = Installer::new();
    let giver = &world.nodes[0].replica;
    let next = installer.chunk(giver.snapshot_chunk(None, giver.vector(), 1)).unwrap();
    world.tell_all().unwrap();
    let giver = &world.nodes[0].replica;
    let again = installer.chunk(giver.snapshot_chunk(next.as_ref(), giver.vector(), 1));
    assert!(matches!(again, Err(InstallError::Moved)));
}

#[test]
fn a_disk_restored_from_a_backup_keeps_its_later_writes_and_overwrites_nothing() {
    let mut world = World::new(2);
    world.run(0, put("mine", "1")).unwrap();
    world.run(0, put("shared", "1")).unwrap();
    world.tell_all().unwrap();
    let backup = world.nodes[0].disk.clone();
    world.run(0, put("mine", "2, lost with the disk, but known to the other")).unwrap();
    world.run(1, put("shared", "by the other")).unwrap();
    world.tell_all().unwrap();
    // The backup starts alone and goes on under names that are taken.
    let now = world.now();
    world.nodes[0].start_from(now, backup);
    world.run(0, put("new", "after the backup was restored")).unwrap();
    world.run(0, delete("nothing")).unwrap();
    world.run(1, put("trigger", "1")).unwrap();
    world.nodes[1].notices.clear();
    let have = world.nodes[1].replica.vector().clone();
    assert!(
        world.nodes[0].replica.vector().iter().all(|dot| have.contains(dot)),
        "the fork shows in chain hashes only"
    );
    let forked =
        world.nodes[0].replica.chains().any(|(dot, chain)| world.nodes[1].replica.chain_at(dot) != Some(chain));
    assert!(forked);
    let old = world.nodes[0].found_again(world.now());
    let fresh = identity(0, 12345);
    world.nodes[0] = install(&mut world, 1, fresh, 50, Some(&old));
    let now = Now { mono_ms: 1, ..world.now() };
    world.nodes[0].restart(now).unwrap();
    world.ms += eddy_crdt::HOLD_MS;
    world.tell_all().unwrap();
    world.check_equal().unwrap();
    let get = |key| world.nodes[1].get(key);
    assert_eq!(get("new").as_deref(), Some("after the backup was restored"));
    assert_eq!(get("shared").as_deref(), Some("by the other"));
    assert_eq!(get("mine").as_deref(), Some("2, lost with the disk, but known to the other"));
}

/// Alone in its own view it settles what it writes at once: no log has it when it begins anew.
#[test]
fn what_is_written_alone_on_a_disk_from_before_a_member_was_added_is_kept() {
    let mut world = World::new(1);
    for key in ["updated", "deleted", "changed there"] {
        world.run(0, put(key, "1")).unwrap();
    }
    let backup = world.nodes[0].disk.clone();
    world.run(0, add(1)).unwrap();
    let node = install(&mut world, 0, identity(1, 1), usize::MAX, None);
    world.nodes.push(node);
    world.ms += eddy_crdt::HOLD_MS;
    world.run(1, put("changed there", "2")).unwrap();
    world.run(1, put("made there", "1")).unwrap();
    world.tell_all().unwrap();

    let now = world.now();
    world.nodes[0].start_from(now, backup);
    world.handle(0, Input::Doubt(Birth::new(12345)));
    world.run(0, Command::LeaseGrant { id: LeaseId::new(7), ttl: 60 }).unwrap();
    let writes =
        [put("updated", "2"), delete("deleted"), put("new", "1"), put("new", "2"), delete("new"), put("new", "3")];
    for write in writes {
        world.run(0, write).unwrap();
    }
    world.run(0, put_leased("leased", "1", Some(7))).unwrap();
    assert_eq!(world.nodes[0].replica.log_len(), 0);
    world.run(0, add(1)).unwrap();
    world.run(0, put("newest", "in the log")).unwrap();
    let old = world.nodes[0].found_again(world.now());
    let fresh = identity(0, 12346);
    world.nodes[0] = install(&mut world, 1, fresh, 50, Some(&old));
    world.restart(0).unwrap();
    world.ms += eddy_crdt::HOLD_MS;
    world.tell_all().unwrap();
    world.check_equal().unwrap();

    let get = |key| world.nodes[1].get(key);
    let kept = [
        ("updated", "2"),
        ("new", "3"),
        ("leased", "1"),
        ("newest", "in the log"),
        ("changed there", "2"),
        ("made there", "1"),
    ];
    for (key, value) in kept {
        assert_eq!(get(key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(get("deleted"), None);
    assert_eq!(world.nodes[1].kv("leased").unwrap().lease, Some(LeaseId::new(7)));
}

#[test]
fn a_lease_is_kept_alive_elsewhere_and_expires_everywhere_in_the_end() {
    let mut world = World::new(2);
    world.run(0, Command::LeaseGrant { id: LeaseId::new(5), ttl: 30 }).unwrap();
    world.run(0, put_leased("k", "v", Some(5))).unwrap();
    world.tell_all().unwrap();
    world.ms += 29_000;
    // Renewed where it was not granted: that one is the owner now, and says so.
    world.run(1, Command::LeaseRenew(LeaseId::new(5))).unwrap();
    world.tell_all().unwrap();
    world.ms += 29_000;
    for node in 0..2 {
        assert!(world.handle(node, Input::Tick).records.is_empty());
    }
    world.ms += 2_000;
    assert!(world.handle(0, Input::Tick).records.is_empty(), "who is not the owner waits");
    assert_eq!(world.handle(1, Input::Tick).records.len(), 1);
    world.tell_all().unwrap();
    world.check_equal().unwrap();
    assert_eq!((world.nodes[0].get("k"), world.nodes[0].replica.leases(world.now()).count()), (None, 0));
}

#[test]
fn a_leap_hides_all_that_was_and_never_uses_a_revision_twice() {
    let mut world = World::new(2);
    world.run(0, put("k", "v")).unwrap();
    world.run(1, Command::Leap).unwrap();
    let theirs = world.nodes[1].replica.revision();
    // One generation after that in which its birth lets it begin.
    assert_eq!(theirs.space(), 75 * 4096 + 1);
    world.tell_all().unwrap();
    let effects = world.handle(0, Input::Client(Command::Leap));
    assert!(effects.leapt);
    let revision = world.nodes[0].replica.revision();
    assert_eq!((revision.space(), world.nodes[0].replica.compacted()), (76 * 4096, Some(revision)));
    assert_eq!(world.nodes[0].get("k").as_deref(), Some("v"));
    world.run(0, put("k", "w")).unwrap();
    world.restart(0).unwrap();
    world.nodes[0].tidy(usize::MAX, usize::MAX);
    world.restart(0).unwrap();
    assert_eq!(world.nodes[0].replica.revision(), revision.next());
}

#[test]
fn who_loses_its_ordinal_shows_every_key_as_written_in_its_new_space() {
    let mut world = World::new(2);
    world.run(0, add(6)).unwrap();
    world.run(1, add(7)).unwrap();
    let seven = install(&mut world, 0, identity(6, 1), usize::MAX, None);
    let eight = install(&mut world, 1, identity(7, 1), usize::MAX, None);
    world.nodes.extend([seven, eight]);
    world.run(3, put("k", "v")).unwrap();
    let before = world.nodes[3].replica.revision();
    world.ms += eddy_crdt::HOLD_MS;
    world.tell_all().unwrap();
    world.check_equal().unwrap();
    let eight = &world.nodes[3];
    assert_eq!(eight.replica.identity().ordinal, 3);
    assert!(eight.replica.revision() > before && eight.replica.revision().space() % 4096 == 3);
    assert_eq!(eight.kv("k").unwrap().mod_revision.space() % 4096, 3);
    world.restart(3).unwrap();
    let members: Vec<_> = world.nodes[0].replica.members().map(|m| (m.id.get(), m.ordinal)).collect();
    assert_eq!(members, [(1, Some(0)), (2, Some(1)), (7, Some(2)), (8, Some(3))]);
}

/// Acknowledgements travel only when they change: one that came before its member was known got lost, and everything
/// waited for its next one.
#[test]
fn what_a_member_acknowledged_before_it_was_known_counts_later() {
    let mut world = World::new(2);
    world.run(0, add(2)).unwrap();
    let three = install(&mut world, 0, identity(2, 1), usize::MAX, None);
    world.nodes.push(three);
    world.ms += eddy_crdt::HOLD_MS;
    world.tell(2, 0, usize::MAX).unwrap();
    // The second has heard of neither the addition nor the new member's entries.
    world.tell_acks(2, 1);
    world.tell(0, 1, usize::MAX).unwrap();
    let vector = world.nodes[2].replica.vector().clone();
    assert_eq!(world.nodes[1].replica.ack_of(ReplicaId::new(3)), Some(&vector));
    world.tell_all().unwrap();
    world.check_equal().unwrap();
}
