//! Single stories.

use eddy_crdt::id::ReplicaId;
use eddy_crdt::notice::Notice;
use eddy_crdt::op::{Command, Refusal, Reply};

use crate::world::{Node, World, genesis, put};

#[test]
fn a_cluster_of_one_has_its_member_and_counts_as_etcd_does() {
    let node = Node::found(1, &genesis(1));
    assert_eq!(node.replica.revision().get(), 1);
    let members: Vec<_> = node.replica.members().collect();
    assert_eq!((members.len(), members[0].name.as_str(), members[0].ordinal), (1, "n1", Some(0)));
    assert_eq!((node.replica.log_len(), node.replica.windows_len()), (0, 0));
}

#[test]
fn a_write_shows_elsewhere_in_the_other_replicas_own_revisions() {
    let mut world = World::new(2);
    drop(world.run(0, put("k", "v")));
    world.sync(0, 1, usize::MAX).unwrap();
    let kv = world.nodes[1].kv("k").unwrap();
    assert_eq!((kv.mod_revision.space(), kv.mod_revision.counter(), kv.version), (1, 2, 1));
    assert_eq!(world.nodes[0].replica.windows_len(), 1);
    world.heal().unwrap();
    world.check_equal().unwrap();
}

#[test]
fn two_members_that_take_the_same_ordinal_end_with_different_ones() {
    let mut world = World::new(2);
    let add = |n: u64| Command::MemberAdd {
        id: ReplicaId::new(n),
        peer_urls: vec![format!("http://10.0.0.{n}:2380")],
        learner: false,
    };
    assert!(matches!(world.run(0, add(7)), Ok(Reply::Members(members)) if members.len() == 3));
    assert_eq!(world.run(0, add(7)), Err(Refusal::MemberExists));
    world.run(1, add(8)).unwrap();
    world.sync(0, 1, usize::MAX).unwrap();
    world.sync(1, 0, usize::MAX).unwrap();
    for node in &world.nodes {
        let ordinals: Vec<_> = node.replica.members().map(|m| (m.id.get(), m.ordinal)).collect();
        assert_eq!(ordinals, [(1, Some(0)), (2, Some(1)), (7, Some(2)), (8, None)]);
    }
}

#[test]
fn a_removed_member_is_not_heard_any_more() {
    let mut world = World::new(3);
    world.run(2, put("before", "1")).unwrap();
    world.sync(2, 1, usize::MAX).unwrap();
    world.run(0, Command::MemberRemove(ReplicaId::new(3))).unwrap();
    world.run(2, put("after", "1")).unwrap();
    world.sync(2, 0, usize::MAX).unwrap();
    assert!(matches!(world.nodes[0].notices[..], [Notice::NotAMember { .. }]));
    // What another member took before it knew is passed on.
    world.nodes.truncate(2);
    world.heal().unwrap();
    world.check_equal().unwrap();
    assert_eq!((world.nodes[0].get("before").as_deref(), world.nodes[0].get("after")), (Some("1"), None));
}
