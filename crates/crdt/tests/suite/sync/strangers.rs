//! Peers that are refused, or must first become what they were.

use eddy_crdt::merge::{ENGINE, Rules, UnknownRules, counters};
use eddy_crdt::sync::{Message, PROTOCOL, Reason, SessionEvent, Stage, SyncError};
use eddy_crdt::{ClusterId, Command, Dot, Founder, Genesis, Input, Now};

use crate::support::build::{genesis, id, identity};
use crate::support::node::Node;
use crate::support::wires::STEP_MS;
use crate::support::world::World;

/// Connects replica 0 with replica 1; tells why the first refused, and the second was refused.
fn refused(mut world: World) -> (SyncError, SyncError) {
    let wire = world.connect(0, 1);
    world.wires[wire].ends[0]
        .session
        .poll(&world.nodes[0].replica, &world.nodes[0].durable, Now::default(), 1)
        .expect("idle");
    world.pass(4 * STEP_MS);
    let error = |side| world.error(wire, side).expect("an end of the session").clone();
    (error(0), error(1))
}

#[test]
fn a_replica_of_another_cluster_is_refused() {
    let mut world = World::wired(2);
    let mut other = identity(1, 1);
    other.cluster = ClusterId::new(0xc2);
    world.nodes[1] = Node::found(other, &genesis(2));
    let (error, _) = refused(world);
    assert_eq!(error, SyncError::Cluster { ours: ClusterId::new(0xc1), theirs: ClusterId::new(0xc2) });
    assert_eq!(error.to_string(), "the peer belongs to cluster c2, this replica to c1");
}

#[test]
fn one_whose_cluster_was_founded_with_other_declarations_is_refused_and_both_are_named() {
    let mut world = World::wired(2);
    let counters = counters("apps/v1/Deployment:.spec.replicas:min=0").expect("a counter");
    let apart = Genesis { rules: Rules { counters, ..Rules::default() }, ..genesis(2) };
    world.nodes[1] = Node::found(identity(1, 1), &apart);
    let (error, _) = refused(world);
    assert_eq!(
        error.to_string(),
        "the peer's cluster was founded with prefix /registry/, counters apps/v1/Deployment:.spec.replicas:min=0, atomic \
         none, this replica's with prefix /registry/, counters none, atomic none: empty the data dir of the one that is \
         wrong, and start it with the flags of the other"
    );
}

#[test]
fn this_replica_itself_is_refused() {
    let mut world = World::wired(2);
    world.nodes[1] = Node::found(identity(0, 7), &genesis(2));
    assert_eq!(refused(world).0, SyncError::OwnId(id(0)));
}

#[test]
fn someone_who_is_no_member_is_refused_and_told_so() {
    let mut world = World::wired(2);
    let founder = |n| Founder { id: id(n), name: String::new(), peer_urls: vec![] };
    let stranger = Genesis { founders: vec![founder(5)], ..Genesis::default() };
    world.nodes[1] = Node::found(identity(5, 1), &stranger);
    let wire = world.connect(0, 1);
    // Only what one of them thinks is looked at: the other is in a world of its own.
    world.wires[wire].ends[1].queue.clear();
    world.pass(2 * STEP_MS);
    assert_eq!(world.error(wire, 0), Some(&SyncError::UnknownMember(id(5))));
    let Some(SyncError::Refused { reason, text }) = world.error(wire, 1) else { panic!("not told") };
    assert_eq!(
        (*reason, text.as_str()),
        (Reason::UnknownMember, "6 is no member of the cluster as far as this replica knows")
    );
}

#[test]
fn a_newer_protocol_other_rules_and_the_wrong_member_are_refused() {
    let mut world = World::wired(3);
    let wire = world.connect(0, 1);
    let Ok(Message::Hello(mut hello)) =
        Message::decode(world.wires[wire].ends[0].queue.pop_front().expect("a greeting"))
    else {
        panic!("no greeting")
    };
    hello.protocol = PROTOCOL + 1;
    world.send(wire, 1, &Message::Hello(hello));
    world.step();
    assert_eq!(world.error(wire, 0), Some(&SyncError::Protocol { theirs: PROTOCOL + 1 }));

    let wire = world.connect(0, 2);
    let Ok(Message::Hello(mut hello)) =
        Message::decode(world.wires[wire].ends[0].queue.pop_front().expect("a greeting"))
    else {
        panic!("no greeting")
    };
    (hello.rules.number, hello.rules.engine) = (7, ENGINE + 1);
    let unknown = UnknownRules::Engine { number: 7, engine: ENGINE + 1, newest: ENGINE };
    world.send(wire, 1, &Message::Hello(hello));
    world.step();
    assert_eq!(world.error(wire, 0), Some(&SyncError::Rules(unknown)));
    assert_eq!(
        SyncError::Rules(unknown).to_string(),
        format!(
            "the peer cannot be joined: the cluster merges by rules number 7, which need merge engine {}; this build has \
             engine {ENGINE}: use a build that has both",
            ENGINE + 1
        )
    );

    let node = &world.nodes[0];
    let (mut session, _) = eddy_crdt::sync::Session::start(&node.exchange, &node.replica, &node.durable, Some(id(2)));
    let other = &world.nodes[1];
    let (_, hello) = eddy_crdt::sync::Session::start(&other.exchange, &other.replica, &other.durable, None);
    let met = session.receive(&node.replica, &node.durable, Now::default(), hello);
    assert_eq!(met.err(), Some(SyncError::AnotherMember { wanted: id(2), theirs: id(1) }));
}

#[test]
fn a_removed_member_is_refused_also_in_the_middle_of_a_session() {
    let mut world = World::wired(3);
    let wire = world.connect(0, 1);
    world.pass(200);
    assert_eq!(world.report(wire, 0).stage, Stage::Open);
    let effects = world.handle(0, Input::Client(Command::MemberRemove(id(1))));
    assert!(effects.reply.is_some_and(|reply| reply.is_ok()));
    world.pass(2 * STEP_MS);
    assert_eq!(world.error(wire, 0), Some(&SyncError::RemovedMember(id(1))));
    assert!(matches!(world.error(wire, 1), Some(SyncError::Refused { reason: Reason::RemovedMember, .. })));
    let again = world.connect(0, 1);
    world.pass(2 * STEP_MS);
    assert_eq!(world.error(again, 0), Some(&SyncError::RemovedMember(id(1))));
}

#[test]
fn a_member_whose_removal_is_not_on_disk_yet_is_asked_for_nothing_again() {
    let mut world = World::wired(3);
    let wire = world.connect(0, 1);
    world.pass(200);
    let asks = |world: &mut World| {
        let (node, session) = (&world.nodes[0], &mut world.wires[wire].ends[0].session);
        session.refused(&node.replica, node.now(300)).is_some()
    };
    assert!(asks(&mut world));
    world.nodes[0].flushes = false;
    world.handle(0, Input::Client(Command::MemberRemove(id(1))));
    assert!(!asks(&mut world));
}

/// Replica 0 wrote `total` entries, of which a restored disk has only `kept`; then it wrote `more`.
fn restored(total: usize, kept: usize, more: usize) -> World {
    let mut world = World::wired(3);
    world.connect(0, 1);
    for n in 0..total {
        world.put(0, &format!("k{n}"), format!("{n}"));
    }
    world.pass(500);
    world.cut();
    world.nodes[0] = Node::found(identity(0, 1), &genesis(3));
    let ms = std::mem::take(&mut world.ms);
    for n in 0..kept {
        world.put(0, &format!("k{n}"), format!("{n}"));
    }
    world.ms = ms;
    for n in 0..more {
        world.put(0, &format!("m{n}"), "new");
    }
    world
}

fn lost(mut world: World) -> (Option<SessionEvent>, World) {
    let wire = world.connect(0, 1);
    world.pass(500);
    assert!(world.events(wire, 1).contains(&SessionEvent::PeerLostTail(id(0))));
    assert_eq!(world.report(wire, 1).stage, Stage::PeerLostTail);
    assert_eq!(world.report(wire, 0).stage, Stage::LostTail);
    assert_eq!(world.report(wire, 0).tally.sent_entries, 0, "nothing is sent under the old birth");
    (world.events(wire, 0).last().cloned(), world)
}

#[test]
fn a_restored_disk_learns_what_it_lost() {
    let (event, world) = lost(restored(10, 4, 0));
    let agreed = Some(Dot { origin: world.nodes[0].replica.identity().origin(), seq: 4 });
    assert_eq!(event, Some(SessionEvent::LostTail { member: id(1), agreed, theirs: 10 }));
}

#[test]
fn a_restored_disk_that_wrote_on_learns_where_it_parted() {
    for (kept, more) in [(4, 3), (0, 2), (4, 6), (4, 20), (9, 1)] {
        let (event, world) = lost(restored(10, kept, more));
        let origin = world.nodes[0].replica.identity().origin();
        let agreed = (kept > 0).then_some(Dot { origin, seq: kept as u64 });
        assert_eq!(event, Some(SessionEvent::LostTail { member: id(1), agreed, theirs: 10 }), "{kept} {more}");
    }
}

#[test]
fn the_parting_of_long_histories_is_found() {
    let (event, _) = lost(restored(5_000, 1_234, 4_321));
    let Some(SessionEvent::LostTail { agreed, theirs, .. }) = event else { panic!("{event:?}") };
    assert_eq!((agreed.map(|dot| dot.seq), theirs), (Some(1_234), 5_000));
}

#[test]
fn a_lost_tail_that_turns_up_later_is_noticed_too() {
    let mut world = restored(10, 4, 0);
    // Replica 2 knows nothing of it, so that all looks well ...
    let wire = world.connect(0, 2);
    world.pass(100);
    assert_eq!(world.report(wire, 0).stage, Stage::Open);
    // ... until it hears of the rest.
    world.connect(1, 2);
    world.pass(3_000);
    // All members, this one too before it was restored, were known to have these: they are in nobody's log any more.
    let lost = |event: &SessionEvent| matches!(event, SessionEvent::LostTail { agreed, theirs: 5..=10, .. } if agreed.is_none_or(|dot| dot.seq <= 4));
    assert!(world.events(wire, 0).iter().any(lost), "{:?}", world.events(wire, 0));
}

#[test]
fn two_histories_of_a_third_replica_end_the_session() {
    let mut world = restored(10, 4, 3);
    world.connect(0, 2);
    world.pass(500);
    world.cut();
    let wire = world.connect(1, 2);
    world.pass(100);
    let forks = [world.error(wire, 0), world.error(wire, 1)];
    assert!(
        forks.iter().any(|error| matches!(error, Some(SyncError::Fork(dot)) if dot.origin.replica == id(0))),
        "{forks:?}"
    );
    assert!(forks.iter().all(Option::is_some));
}
