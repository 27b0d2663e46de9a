//! Where replicas begin to count, and what they do when no space is left.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::genesis::{Founder, Genesis};
use super::snapshot::{Installed, Installer, SnapshotChunk};
use crate::command::notice::Notice;
use crate::command::op::{Command, DeleteOp, PutLease, PutOp, PutValue};
use crate::command::reply::{Refusal, Reply};
use crate::entry::Past;
use crate::merge::rules::Rules;
use crate::replica::Replica;
use crate::replica::prepared::Prepared;
use crate::replica::spaces::{CHOICES_ALONE, SPACES_MAX};
use crate::replica::turn::{Effects, Input, Turn};
use crate::store::system::{self, SystemKey};
use crate::words::clock::Now;
use crate::words::id::{Birth, ClusterId, Identity, LeaseId, ReplicaId};
use crate::words::key::{Key, KeyRange, Keyspace};
use crate::words::revision::{Revision, SPACES};

const OWN: ReplicaId = ReplicaId::new(1);
const OTHER: ReplicaId = ReplicaId::new(2);

fn founder(replica: ReplicaId, birth: u64) -> Replica {
    founder_among(&[OWN, OTHER], replica, birth)
}

fn founder_among(founders: &[ReplicaId], replica: ReplicaId, birth: u64) -> Replica {
    let founder = |id| Founder { id, name: String::new(), peer_urls: vec![] };
    let genesis = Genesis { founders: founders.iter().copied().map(founder).collect(), ..Genesis::default() };
    let identity = Identity { cluster: ClusterId::new(1), replica, birth: Birth::new(birth), ordinal: 0 };
    Replica::found(identity, &genesis).0
}

fn run(replica: &mut Replica, command: Command) -> Effects {
    replica.handle(Now::default(), Input::Client(command))
}

fn put(key: &'static str, lease: Option<i64>) -> Command {
    let (key, value) = (Key::from_static(key.as_bytes()), PutValue::Set(Bytes::from_static(b"v")));
    Command::Put(PutOp { key, value, lease: PutLease::Set(lease.map(LeaseId::new)), prev_kv: false })
}

/// What `other` has and the replica lacks, as it sends it.
fn entries(replica: &Replica, other: &Replica, together: Option<Prepared>) -> Input {
    let entries = other.entries_for(replica.vector(), other.vector(), usize::MAX).expect("a log");
    let entries = entries.iter().map(|entry| (**entry).clone()).collect();
    Input::Entries { from: OTHER, births: [other.identity().birth].into(), entries, together }
}

fn delete(key: &'static str) -> Command {
    Command::Delete(DeleteOp { range: KeyRange::Key(Key::from_static(key.as_bytes())), prev_kv: false })
}

/// A founder that knows that another member has used the last space of all.
fn at_the_end() -> Replica {
    let mut replica = founder(OWN, 1);
    let mut turn = Turn::new(Now::default());
    let last = system::space_value(SPACES_MAX - 1);
    replica.transact(&mut turn, |transaction| transaction.write_system(SystemKey::Space(OTHER), last));
    replica.read_members(&mut turn);
    replica
}

/// The space of a founder is no more than one generation in 1,024 of those that another life of it took.
#[test]
fn founders_that_know_nothing_of_each_other_share_no_space() {
    let spaces: BTreeSet<u64> = (0..CHOICES_ALONE).map(|birth| founder(OTHER, birth).revision().space()).collect();
    assert_eq!(spaces.len() as u64, CHOICES_ALONE);
    assert!(spaces.iter().all(|space| space % SPACES == 1 && *space > SPACES));
}

#[test]
fn what_a_founder_counts_in_is_announced_with_its_first_write() {
    let mut replica = founder(OTHER, 7);
    assert_eq!(replica.membership.members.announced_space(OTHER), None);
    run(&mut replica, put("k", None));
    assert_eq!(replica.membership.members.announced_space(OTHER), Some(replica.revision().space()));
    let entries = replica.vector().get(replica.identity().origin());
    run(&mut replica, put("k", None));
    assert_eq!(replica.vector().get(replica.identity().origin()), entries + 1);
}

#[test]
fn without_another_space_all_that_takes_a_revision_is_refused_when_the_last_is_full() {
    let mut replica = at_the_end();
    assert_eq!(run(&mut replica, Command::Leap).reply, Some(Err(Refusal::SpacesExhausted)));
    run(&mut replica, Command::LeaseGrant { id: LeaseId::new(5), ttl: 1 });
    assert!(run(&mut replica, put("leased", Some(5))).reply.is_some_and(|reply| reply.is_ok()));
    let space = replica.revision().space();
    replica.state.leap(Revision::new(Revision::last_in(space).get() - 20));
    let mut taken = BTreeSet::new();
    let refused = loop {
        assert!(!replica.is_out_of_spaces());
        let effects = run(&mut replica, put("k", None));
        match &effects.reply {
            Some(Ok(Reply::Put(_))) => assert!(taken.insert(replica.revision().get()) && taken.len() < 20),
            _ => break effects,
        }
        assert!(effects.notices.is_empty() || replica.is_out_of_spaces());
        if replica.is_out_of_spaces() {
            break run(&mut replica, put("k", None));
        }
    };
    assert_eq!((refused.reply, refused.notices), (Some(Err(Refusal::SpacesExhausted)), vec![Notice::SpacesExhausted]));
    assert!(taken.len() > 10 && replica.revision().space() == space);
    let last = replica.revision();
    for command in [delete("k"), put("leased", None), Command::LeaseRevoke(LeaseId::new(5)), Command::Leap] {
        let effects = run(&mut replica, command);
        assert_eq!(effects.reply, Some(Err(Refusal::SpacesExhausted)));
        assert!(effects.records.is_empty() && effects.commits.is_empty());
    }
    // What takes no revision goes on; a lease that ran out waits with its keys.
    assert!(replica.handle(Now { wall_ms: 0, mono_ms: 1 << 40 }, Input::Tick).commits.is_empty());
    assert!(run(&mut replica, Command::LeaseGrant { id: LeaseId::new(6), ttl: 1 }).reply.is_some_and(|r| r.is_ok()));
    assert!(run(&mut replica, Command::Compact(last.get())).reply.is_some_and(|reply| reply.is_ok()));
    assert_eq!((replica.revision(), replica.live_keys()), (last, 2));
}

#[test]
fn entries_of_others_are_refused_as_well_when_the_last_space_is_full() {
    let (mut replica, mut other) = (at_the_end(), founder(OTHER, 1));
    let space = replica.revision().space();
    replica.state.leap(Revision::last_in(space));
    run(&mut other, put("k", None));
    let (input, before) = (entries(&replica, &other, None), replica.vector().clone());
    let effects = replica.handle(Now::default(), input);
    assert_eq!(effects.notices, [Notice::SpacesExhausted]);
    assert_eq!((replica.vector(), replica.revision().space()), (&before, space));
}

/// Each key of a step takes a revision of its own, so a step is many of them at once.
#[test]
fn a_step_that_does_not_fit_into_a_space_is_shown_in_the_next_one() {
    const KEYS: usize = 40;
    for left in [1, 10, KEYS as i64, 2 * KEYS as i64, 2 * KEYS as i64 + 20] {
        let (mut replica, mut other) = (founder(OWN, 1), founder(OTHER, 1));
        for n in 0..KEYS {
            let value = PutValue::Set(Bytes::from_static(b"v"));
            let key = Key::from(format!("k{n}"));
            run(&mut other, Command::Put(PutOp { key, value, lease: PutLease::Set(None), prev_kv: false }));
        }
        let space = replica.revision().space();
        replica.state.leap(Revision::new(Revision::last_in(space).get() - left));
        let input = entries(&replica, &other, Some(Prepared::default()));
        let effects = replica.handle(Now::default(), input);
        let shown: Vec<i64> = effects.commits.iter().map(|commit| commit.revision.get()).collect();
        let last = replica.revision();
        assert_eq!(shown, (last.get() - KEYS as i64 + 1..=last.get()).collect::<Vec<_>>());
        assert_eq!(effects.leapt, last.space() != space);
        assert!(effects.leapt == (left < 2 * KEYS as i64 + 8), "{left} revisions were left");
        assert!(effects.commits.iter().all(|commit| commit.revision.space() == last.space()));
    }
}

/// It dropped the error of the leap, and went on in a space that another life of it, or another member, counts in.
#[test]
fn who_must_leave_its_space_and_has_no_other_stops() {
    for doubts in [true, false] {
        let mut replica = at_the_end();
        let mut turn = Turn::new(Now::default());
        match doubts {
            true => replica.doubt(&mut turn, Birth::new(9)),
            false => replica.take_ordinal(&mut turn, 7),
        }
        assert!(turn.effects.notices.contains(&Notice::SpacesExhausted) && replica.is_out_of_spaces());
        let refused = run(&mut replica, put("k", None));
        assert_eq!((refused.reply, refused.records.len()), (Some(Err(Refusal::SpacesExhausted)), 0));
    }
}

/// What an entry of a snapshot declared may be forgotten where it has settled, and later rules be in no entry any more. A book that
/// began with the forgotten ones would end at the hole behind them.
#[test]
fn rules_that_a_settled_change_declared_are_not_read_out_of_its_entry() {
    let declare = |replica: &mut Replica, number| {
        let value = Rules { number, ..Rules::default() }.encode();
        let mut turn = Turn::new(Now::default());
        replica.transact(&mut turn, |transaction| transaction.write_system(SystemKey::Rules(number), value));
    };
    let (mut giver, mut replica) = (founder(OTHER, 2), founder(OWN, 1));
    declare(&mut giver, 4);
    [7, 8].into_iter().for_each(|number| declare(&mut replica, number));
    let entries = giver.entries_for(replica.vector(), giver.vector(), usize::MAX).expect("a log");
    let entries: Vec<_> = entries.iter().map(|entry| (**entry).clone()).collect();
    for (are_settled, numbers) in [(true, vec![1, 7, 8]), (false, vec![1, 4])] {
        replica.foresee_rules(&entries, |_, _| are_settled).expect("known rules");
        assert_eq!(replica.rules().numbers().collect::<Vec<_>>(), numbers, "settled: {are_settled}");
    }
}

/// What a member begins with, under that birth, from what another has. `old` is what it had before.
fn begun_from(giver: &Replica, (replica, birth): (ReplicaId, u64), old: Option<&Replica>) -> Installed {
    let chunk = giver.snapshot_chunk(None, giver.vector(), usize::MAX).encode();
    let mut installer = Installer::new();
    assert_eq!(installer.chunk(SnapshotChunk::decode(&chunk).expect("a chunk")).expect("a first chunk"), None);
    let identity = Identity { cluster: ClusterId::new(1), replica, birth: Birth::new(birth), ordinal: 0 };
    installer.finish(Now::default(), identity, old).expect("a whole snapshot")
}

/// Another member that lost its disk began from a copy, was sure of it, and told what the copy had written to one that knew what the
/// copy lacks (seed 300006366).
#[test]
fn who_begins_from_a_copy_doubts_it_and_writes_again_what_the_copy_wrote() {
    let third = ReplicaId::new(3);
    let [mut copy, mut known] = [OTHER, third].map(|id| founder_among(&[OWN, OTHER, third], id, 2));
    run(&mut copy, put("before", None));
    let before = entries(&known, &copy, None);
    known.handle(Now::default(), before);
    copy.doubt(&mut Turn::new(Now::default()), Birth::new(9));
    run(&mut copy, put("k", None));
    let (of_copy, written) = (copy.identity().origin(), copy.vector().get(copy.identity().origin()));
    let doubtful = begun_from(&copy, (OWN, 5), None).replica;
    assert_eq!((doubtful.membership.past, doubtful.vector().get(of_copy)), (Past::Doubtful, written));
    for (old, birth) in [(doubtful, 6), (copy, 10)] {
        let sure = begun_from(&known, (old.identity().replica, birth), Some(&old)).replica;
        assert_eq!((sure.membership.past, sure.vector().get(of_copy)), (Past::Known, 0));
        let live = sure.state.recorded(Keyspace::Client, &Key::from_static(b"k")).expect("what the copy wrote").live;
        assert_eq!(live.incarnation.dot.origin, sure.identity().origin());
    }
}
