//! Users and roles that are changed at several replicas at once. All pairs and triples of changes, in all orders.

use eddy_crdt::{AuthCommand, AuthRefusal, Command, Permission, PermissionRange, ROOT, Refusal, Right, Users};

use crate::support::world::World;

fn range(key: &'static str, range_end: &'static str) -> PermissionRange {
    PermissionRange { key: key.into(), range_end: range_end.into() }
}

fn add(name: &str, password: &'static str) -> AuthCommand {
    AuthCommand::UserAdd { name: name.to_owned(), password: Some(password.into()) }
}

fn give(user: &str, role: &str) -> AuthCommand {
    AuthCommand::UserGrantRole { user: user.to_owned(), role: role.to_owned() }
}

fn take(user: &str, role: &str) -> AuthCommand {
    AuthCommand::UserRevokeRole { user: user.to_owned(), role: role.to_owned() }
}

fn permit(role: &str, range: PermissionRange, right: Right) -> AuthCommand {
    let permission = Some(Permission { range, right });
    AuthCommand::RoleGrantPermission { role: role.to_owned(), permission }
}

fn forbid(role: &str, range: PermissionRange) -> AuthCommand {
    AuthCommand::RoleRevokePermission { role: role.to_owned(), range }
}

/// What all know before they are apart: root, a user with a role, and a role that the user does not have.
fn before() -> Vec<AuthCommand> {
    vec![
        add(ROOT, "r"),
        give(ROOT, ROOT),
        add("u", "p"),
        AuthCommand::RoleAdd("had".to_owned()),
        AuthCommand::RoleAdd("other".to_owned()),
        permit("had", range("a", ""), Right::ReadWrite),
        permit("other", range("b", "c"), Right::ReadWrite),
        give("u", "had"),
    ]
}

/// What is done apart, each by one who knows nothing of the others.
fn changes() -> Vec<Vec<AuthCommand>> {
    let delete_user = || AuthCommand::UserDelete("u".to_owned());
    let delete_role = || AuthCommand::RoleDelete("had".to_owned());
    let password =
        |password: &'static str| AuthCommand::UserChangePassword { name: "u".to_owned(), password: password.into() };
    vec![
        vec![AuthCommand::Enable],
        vec![AuthCommand::Enable, AuthCommand::Disable],
        vec![password("q")],
        vec![delete_user()],
        vec![delete_user(), add("u", "next")],
        vec![delete_user(), add("u", "next"), give("u", "other")],
        vec![take("u", "had")],
        vec![take("u", "had"), give("u", "had")],
        vec![give("u", "other")],
        vec![delete_role()],
        vec![delete_role(), AuthCommand::RoleAdd("had".to_owned())],
        vec![permit("had", range("a", ""), Right::Read)],
        vec![permit("had", range("a", ""), Right::Write)],
        vec![permit("had", range("x", "\0"), Right::ReadWrite)],
        vec![forbid("had", range("a", ""))],
        vec![AuthCommand::UserDelete(ROOT.to_owned())],
        vec![take(ROOT, ROOT)],
    ]
}

fn run(world: &mut World, node: usize, commands: &[AuthCommand]) {
    for command in commands {
        world.run(node, Command::Auth(command.clone())).unwrap();
    }
}

fn users(world: &World, node: usize) -> Users {
    (**world.nodes[node].replica.users()).clone()
}

/// What the user may do, key by key.
fn rights(users: &Users, name: &str) -> Vec<bool> {
    let may = |writes, key: &str| users.check(name, writes, key.as_bytes(), b"").is_ok();
    ["a", "b", "x"].iter().flat_map(|key| [may(false, key), may(true, key)]).collect()
}

/// Whatever one of them took away is not there when all have heard of all, in whatever order.
fn check_apart(apart: &[&Vec<AuthCommand>], order: &[usize]) {
    let count = apart.len() + 1;
    let mut world = World::new(count);
    run(&mut world, 0, &before());
    world.tell_all().unwrap();
    let common = users(&world, 0);
    for (node, commands) in apart.iter().enumerate() {
        run(&mut world, node, commands);
    }
    let alone: Vec<Users> = (0..apart.len()).map(|node| users(&world, node)).collect();
    for from in order {
        world.tell(*from, count - 1, usize::MAX).unwrap();
    }
    let heard = users(&world, count - 1);
    world.tell_all().unwrap();
    world.check_equal().unwrap();
    for node in 0..count {
        assert_eq!(users(&world, node), heard, "{apart:?}");
        world.restart(node).unwrap();
        assert_eq!(users(&world, node), heard, "after a restart: {apart:?}");
    }
    let enables = |users: &Users| users.enabled;
    assert_eq!(heard.enabled, alone.iter().any(enables), "{apart:?}");
    assert!(heard.revision > common.revision || apart.iter().all(|commands| commands[..] == [AuthCommand::Enable]));
    for one in &alone {
        assert!(one.revision <= heard.revision, "the revision went back: {apart:?}");
        if common.user("u").is_some() && one.user("u").is_none() {
            assert!(heard.user("u").is_none(), "a deleted user came back: {apart:?}");
        }
        let (was, is, then) = (rights(&common, "u"), rights(one, "u"), rights(&heard, "u"));
        for place in 0..was.len() {
            assert!(!was[place] || is[place] || !then[place], "right {place} came back: {apart:?}");
        }
        assert!(common.role("had").is_none() || one.role("had").is_some() || heard.role("had").is_none(), "{apart:?}");
    }
    // Nobody may do what nobody gave.
    let most: Vec<bool> =
        (0..6).map(|place| rights(&common, "u")[place] || alone.iter().any(|one| rights(one, "u")[place])).collect();
    assert!(rights(&heard, "u").iter().zip(&most).all(|(is, may)| !is || *may), "{apart:?}");
    let root = heard.user(ROOT);
    if heard.enabled {
        assert!(root.is_some_and(|root| root.is_root() && root.password.is_some()), "nobody manages users: {apart:?}");
    }
}

#[test]
fn what_takes_rights_away_wins_over_what_is_done_apart() {
    let changes = changes();
    for first in &changes {
        for second in &changes {
            check_apart(&[first, second], &[0, 1]);
            check_apart(&[first, second], &[1, 0]);
        }
    }
}

#[test]
fn three_apart_are_equal_in_every_order() {
    let changes = changes();
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for (a, first) in changes.iter().enumerate() {
        for (b, second) in changes.iter().enumerate().skip(a) {
            for (c, third) in changes.iter().enumerate().skip(b) {
                check_apart(&[first, second, third], &orders[(a + b + c) % orders.len()]);
            }
        }
    }
}

#[test]
fn a_user_who_is_added_again_has_nothing_of_the_one_before() {
    let mut world = World::new(2);
    run(&mut world, 0, &before());
    world.tell_all().unwrap();
    run(&mut world, 0, &[AuthCommand::UserDelete("u".to_owned())]);
    run(&mut world, 1, &[give("u", "other")]);
    world.tell_all().unwrap();
    assert_eq!(users(&world, 0).user("u"), None);
    run(&mut world, 0, &[add("u", "new")]);
    world.tell_all().unwrap();
    let users = users(&world, 1);
    let user = users.user("u").unwrap();
    assert_eq!((user.roles.len(), user.password.as_deref()), (0, Some(&b"new"[..])));
    // The same of a role.
    run(&mut world, 0, &[give("u", "had"), AuthCommand::RoleDelete("had".to_owned())]);
    run(&mut world, 0, &[AuthCommand::RoleAdd("had".to_owned())]);
    let users = self::users(&world, 0);
    assert_eq!((users.role("had"), users.user("u").unwrap().roles.len()), (Some(&[][..]), 0));
}

/// The revision counts as etcd's does.
#[test]
fn changes_are_counted_and_refused_as_in_etcd() {
    let mut world = World::new(1);
    let mut did = |command: AuthCommand| {
        let done = world.run(0, Command::Auth(command)).map(drop);
        (done, users(&world, 0).revision)
    };
    let no = |refusal| Err(Refusal::Auth(refusal));
    assert_eq!(did(AuthCommand::Disable), (Ok(()), 1));
    assert_eq!(did(AuthCommand::Enable), (no(AuthRefusal::RootUserNotExist), 1));
    assert_eq!(did(add("", "")), (no(AuthRefusal::UserEmpty), 1));
    assert_eq!(did(add(ROOT, "r")), (Ok(()), 2));
    assert_eq!(did(add(ROOT, "r")), (no(AuthRefusal::UserExists), 2));
    assert_eq!(did(AuthCommand::Enable), (no(AuthRefusal::RootRoleNotExist), 2));
    assert_eq!(did(give("nobody", ROOT)), (no(AuthRefusal::UserNotFound), 2));
    assert_eq!(did(give(ROOT, "nothing")), (no(AuthRefusal::RoleNotFound), 2));
    assert_eq!(did(give(ROOT, ROOT)), (Ok(()), 3));
    assert_eq!(did(give(ROOT, ROOT)), (Ok(()), 3));
    assert_eq!(did(AuthCommand::RoleAdd(ROOT.to_owned())), (Ok(()), 4));
    assert_eq!(did(AuthCommand::RoleAdd(String::new())), (no(AuthRefusal::RoleEmpty), 4));
    assert_eq!(did(AuthCommand::RoleAdd(ROOT.to_owned())), (no(AuthRefusal::RoleExists), 4));
    assert_eq!(did(AuthCommand::Enable), (Ok(()), 4));
    assert_eq!(did(AuthCommand::UserDelete(ROOT.to_owned())), (no(AuthRefusal::InvalidManagement), 4));
    assert_eq!(did(AuthCommand::RoleDelete(ROOT.to_owned())), (no(AuthRefusal::InvalidManagement), 4));
    assert_eq!(did(take(ROOT, ROOT)), (no(AuthRefusal::InvalidManagement), 4));
    assert_eq!(did(take(ROOT, "nothing")), (no(AuthRefusal::RoleNotGranted), 4));
    assert_eq!(did(AuthCommand::RoleAdd("r".to_owned())), (Ok(()), 5));
    assert_eq!(did(permit("r", range("b", "a"), Right::Read)), (no(AuthRefusal::InvalidManagement), 5));
    assert_eq!(did(permit("none", range("a", ""), Right::Read)), (no(AuthRefusal::RoleNotFound), 5));
    assert_eq!(did(permit("r", range("a", "b"), Right::Read)), (Ok(()), 6));
    assert_eq!(did(permit("r", range("a", "b"), Right::Read)), (Ok(()), 7));
    assert_eq!(did(forbid("r", range("a", ""))), (no(AuthRefusal::PermissionNotGranted), 7));
    assert_eq!(did(forbid("r", range("a", "b"))), (Ok(()), 8));
    assert_eq!(did(AuthCommand::Disable), (Ok(()), 9));
    // Root loses its role with it, also one that was never added.
    assert_eq!(did(AuthCommand::RoleDelete(ROOT.to_owned())), (Ok(()), 10));
    assert_eq!(did(AuthCommand::Enable), (no(AuthRefusal::RootRoleNotExist), 10));
    assert_eq!(did(give(ROOT, ROOT)), (Ok(()), 11));
    assert_eq!(did(AuthCommand::Enable), (Ok(()), 11));
}
