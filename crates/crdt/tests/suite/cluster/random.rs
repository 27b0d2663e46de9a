//! Random histories.

use bytes::Bytes;
use eddy_crdt::{AuthCommand, Command, Input, LeaseId, Op, Permission, PermissionRange, Right, Txn};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::support::build::{delete, delete_op, put_leased, put_op};
use crate::support::checks::shared_keys;
use crate::support::seeds::{caught, env, lines, shrink};
use crate::support::world::World;

#[derive(Clone, Debug)]
enum Step {
    Command(usize, Command),
    Sync(usize, usize, usize),
    Acks(usize, usize),
    Restart(usize),
    Tidy(usize, usize, usize),
    Pass(u64),
    Tick(usize),
}

const KEYS: [&str; 6] = ["a", "b", "c", "/registry/pods/x", "/registry/configmaps/y", "compact_rev_key"];

fn value(rng: &mut SmallRng, key: &str) -> String {
    let n = rng.random_range(0..100);
    if key.starts_with("/registry/") && rng.random_bool(0.7) {
        let uid = rng.random_range(0..2);
        let field = rng.random_range(0..3);
        return format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"y","uid":"{uid}"}},"data":{{"f{field}":"{n}"}}}}"#
        );
    }
    n.to_string()
}

fn auth_command(rng: &mut SmallRng) -> AuthCommand {
    let user = ["root", "u"][rng.random_range(0..2)].to_owned();
    let role = ["root", "r"][rng.random_range(0..2)].to_owned();
    let range = PermissionRange { key: "a".into(), range_end: "b".into() };
    let password = || format!("p{}", user.len()).into();
    match rng.random_range(0..12) {
        0 | 1 => AuthCommand::UserAdd { password: Some(password()), name: user },
        2 => AuthCommand::UserDelete(user),
        3 => AuthCommand::UserChangePassword { password: password(), name: user },
        4 | 5 => AuthCommand::UserGrantRole { user, role },
        6 => AuthCommand::UserRevokeRole { user, role },
        7 => AuthCommand::RoleAdd(role),
        8 => AuthCommand::RoleDelete(role),
        9 => {
            let right = [Right::Read, Right::Write, Right::ReadWrite][rng.random_range(0..3)];
            AuthCommand::RoleGrantPermission { role, permission: Some(Permission { range, right }) }
        }
        10 => AuthCommand::Enable,
        _ => AuthCommand::Disable,
    }
}

fn command(rng: &mut SmallRng) -> Command {
    let key = |rng: &mut SmallRng| KEYS[rng.random_range(0..KEYS.len())];
    let lease = |rng: &mut SmallRng| rng.random_bool(0.3).then(|| rng.random_range(1..4));
    match rng.random_range(0..100) {
        0..50 => {
            let key = key(rng);
            put_leased(key, value(rng, key), lease(rng))
        }
        50..65 => delete(key(rng)),
        65..78 => {
            let mut success = vec![];
            for _ in 0..rng.random_range(1..4) {
                let key = key(rng);
                let is_put = rng.random_bool(0.7);
                success.push(match is_put {
                    true => Op::Put(put_op(key, value(rng, key), None)),
                    false => Op::Delete(delete_op(key)),
                });
            }
            Command::Txn(Txn { success, ..Txn::default() })
        }
        78..81 => Command::Auth(auth_command(rng)),
        81..84 => Command::LeaseGrant { id: LeaseId::new(rng.random_range(1..4)), ttl: rng.random_range(1..20) },
        84..87 => Command::LeaseRevoke(LeaseId::new(rng.random_range(1..4))),
        87..91 => Command::LeaseRenew(LeaseId::new(rng.random_range(1..4))),
        91..96 => Command::Compact(rng.random_range(1..40)),
        96..98 => Command::Leap,
        _ => Command::MemberPublish {
            name: format!("n{}", rng.random_range(0..3)),
            client_urls: vec!["http://c".to_owned()],
        },
    }
}

fn steps(seed: u64) -> (usize, Vec<Step>) {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let nodes = rng.random_range(1..5u64);
    let count = nodes as usize;
    let steps = (0..rng.random_range(5..90)).map(|_| {
        let (one, two) = (rng.random_range(0..count), rng.random_range(0..count));
        match rng.random_range(0..100) {
            0..45 => Step::Command(one, command(rng)),
            45..65 => Step::Sync(one, two, rng.random_range(1..1500)),
            65..82 => Step::Acks(one, two),
            82..90 => Step::Restart(one),
            90..95 => Step::Tidy(one, rng.random_range(0..20), rng.random_range(0..20)),
            95..98 => Step::Pass(rng.random_range(0..8000)),
            _ => Step::Tick(one),
        }
    });
    (count, steps.collect())
}

fn run_steps(nodes: usize, steps: &[Step]) -> Result<(), String> {
    let mut world = World::new(nodes);
    for step in steps {
        match step {
            Step::Command(node, command) => {
                let command = match command {
                    // Revisions are counted from the replica's own first one.
                    Command::Compact(at) => {
                        let revision = world.nodes[*node].replica.revision();
                        Command::Compact(revision.get() - revision.counter() as i64 + at)
                    }
                    command => command.clone(),
                };
                drop(world.run(*node, command));
            }
            Step::Sync(from, to, bytes) if from != to => {
                world.tell(*from, *to, *bytes)?;
            }
            Step::Acks(from, to) if from != to => world.tell_acks(*from, *to),
            Step::Sync(..) | Step::Acks(..) => {}
            Step::Restart(node) => world.restart(*node)?,
            Step::Tidy(node, sweep, trim) => world.nodes[*node].tidy(*sweep, *trim),
            Step::Pass(ms) => world.ms += ms,
            Step::Tick(node) => drop(world.handle(*node, Input::Tick)),
        }
    }
    world.tell_all()?;
    if nodes > 1 {
        world.check_equal()?;
    }
    // What is left on disk gives the same again, also after everything dead is gone.
    let now = world.now();
    for node in &mut world.nodes {
        node.restart(now)?;
        let revision = node.replica.revision();
        node.handle(now, Input::Client(Command::Compact(revision.get())));
        node.tidy(usize::MAX, usize::MAX);
        node.restart(now)?;
        let entries = node.disk.durable.records.len();
        let needed = node.replica.live_keys() + 40;
        if entries > needed {
            return Err(format!("{entries} records are left on disk for {} keys", node.replica.live_keys()));
        }
    }
    let refused = world
        .nodes
        .iter()
        .flat_map(|node| &node.notices)
        .find(|notice| !matches!(notice, eddy_crdt::Notice::Merged(_)));
    match refused {
        None => Ok(()),
        Some(notice) => Err(format!("a notice: {notice:?}")),
    }
}

fn run(nodes: usize, steps: &[Step]) -> Result<(), String> {
    caught(|| run_steps(nodes, steps))
}

#[test]
fn replicas_that_heard_the_same_are_the_same_whatever_the_order_restarts_included() {
    let first = env("EDDY_CLUSTER_SEED", 1);
    for seed in first..first + env("EDDY_CLUSTER_CASES", 1500) {
        let (nodes, steps) = steps(seed);
        if run(nodes, &steps).is_err() {
            let steps = shrink(steps, |steps| run(nodes, steps).is_err());
            let error = run(nodes, &steps).expect_err("shrinking keeps the failure");
            panic!("seed {seed}, {nodes} replicas: {error}\nafter{}", lines(&steps));
        }
    }
}

#[test]
fn no_keys_are_lost_between_two() {
    let mut world = World::new(2);
    for n in 0..50 {
        drop(world.run(n % 2, put_leased(&format!("k{n}"), "v", None)));
    }
    world.tell_all().unwrap();
    world.check_equal().unwrap();
    assert_eq!(shared_keys(&world.nodes[0].replica).len(), 50);
    assert_eq!(shared_keys(&world.nodes[0].replica)[0].0, Bytes::from_static(b"k0"));
}
