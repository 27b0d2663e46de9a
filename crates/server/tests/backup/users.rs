//! Users and roles in backups: who restores them enforces the same rights, be it etcd or eddy.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::eddy;
use super::restore::restore;
use super::support::Server;
use super::tools::Tools;

const ROOT: [&str; 2] = ["--user", "root:secret"];

/// Users with and without a password, and roles with keys, prefixes and ranges.
fn prepare(tools: &Tools, server: &Server) -> Result<()> {
    for words in [
        &["put", "/a/1", "one"][..],
        &["put", "/b", "two"],
        &["role", "add", "reader"],
        &["role", "grant-permission", "reader", "read", "/a/", "--prefix"],
        &["role", "add", "writer"],
        &["role", "grant-permission", "writer", "write", "/b"],
        &["role", "grant-permission", "writer", "readwrite", "/c", "/d"],
        &["role", "add", "empty"],
        &["user", "add", "root:secret"],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "alice:wonder"],
        &["user", "grant-role", "alice", "reader"],
        &["user", "grant-role", "alice", "writer"],
        &["user", "add", "bob", "--no-password"],
        &["user", "grant-role", "bob", "reader"],
        &["auth", "enable"],
    ] {
        tools.control(server, words)?;
    }
    Ok(())
}

/// All that can be asked of users and roles, without what says who answered.
fn told(tools: &Tools, server: &Server) -> Result<Vec<Value>> {
    let questions: [&[&str]; 8] = [
        &["user", "list"],
        &["user", "get", "root"],
        &["user", "get", "alice"],
        &["user", "get", "bob"],
        &["role", "list"],
        &["role", "get", "reader"],
        &["role", "get", "writer"],
        &["role", "get", "empty"],
    ];
    let ask = |words: &[&str]| {
        let said = tools.control(server, &[&ROOT[..], words, &["-w", "json"]].concat())?;
        let mut answer: Value = serde_json::from_str(&said)?;
        answer.as_object_mut().context("no object")?.remove("header").context("no header")?;
        Ok(answer)
    };
    questions.into_iter().map(ask).collect()
}

/// Who may do what.
fn enforced(tools: &Tools, server: &Server) -> Result<()> {
    let alice = |words: &[&str]| tools.control(server, &[&["--user", "alice:wonder"], words].concat());
    ensure!(alice(&["get", "/a/1"])?.contains("one"));
    alice(&["put", "/b", "three"])?;
    alice(&["put", "/c1", "x"])?;
    for (user, words, why) in [
        ("alice:wonder", &["put", "/a/1", "x"][..], "permission denied"),
        ("alice:wonder", &["get", "/b"], "permission denied"),
        ("alice:wonder", &["put", "/d", "x"], "permission denied"),
        ("alice:wrong", &["get", "/a/1"], "authentication failed"),
        ("bob:guess", &["get", "/a/1"], "authentication failed"),
    ] {
        let refused = tools.control(server, &[&["--user", user], words].concat());
        let said = refused.err().with_context(|| format!("{user} may {words:?}"))?.to_string();
        ensure!(said.contains(why), "{user} {words:?}: {said}");
    }
    let said = tools.control(server, &["get", "/a/1"]).err().context("nobody may read")?.to_string();
    ensure!(said.contains("user name is empty"), "{said}");
    Ok(())
}

fn save(tools: &Tools, server: &Server, file: &Path) -> Result<()> {
    let file = file.to_str().context("a path that is no text")?;
    let refused = tools.control(server, &["--user", "alice:wonder", "snapshot", "save", file]);
    ensure!(refused.is_err(), "a user without the role root takes a backup");
    tools.control(server, &[&ROOT[..], &["snapshot", "save", file]].concat()).map(drop)
}

#[tokio::test]
async fn users_and_roles_of_eddy_hold_in_etcd_and_in_eddy() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let first = Server::start(&eddy(), &folder.path().join("first"), &[]).await?;
    prepare(&tools, &first)?;
    let (file, before) = (folder.path().join("a.db"), told(&tools, &first)?);
    save(&tools, &first, &file)?;
    let etcd = super::etcd_from(&tools, &file, folder.path(), None).await?;
    ensure!(told(&tools, &etcd)? == before, "etcd: {:?}", told(&tools, &etcd)?);
    enforced(&tools, &etcd)?;
    let data_dir = folder.path().join("again");
    restore(&file, &data_dir, &[])?;
    let again = Server::start(&eddy(), &data_dir, &[]).await?;
    ensure!(told(&tools, &again)? == before, "eddy: {:?}", told(&tools, &again)?);
    enforced(&tools, &again)
}

#[tokio::test]
async fn users_and_roles_of_etcd_hold_in_eddy() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let etcd = Server::start(&tools.etcd(), &folder.path().join("etcd"), &[]).await?;
    prepare(&tools, &etcd)?;
    let (file, before) = (folder.path().join("a.db"), told(&tools, &etcd)?);
    save(&tools, &etcd, &file)?;
    let data_dir = folder.path().join("eddy");
    restore(&file, &data_dir, &[])?;
    let restored = Server::start(&eddy(), &data_dir, &[]).await?;
    ensure!(told(&tools, &restored)? == before, "{:?}", told(&tools, &restored)?);
    enforced(&tools, &restored)?;
    let data_dir = folder.path().join("open");
    restore(&file, &data_dir, &["--without-users"])?;
    let open = Server::start(&eddy(), &data_dir, &[]).await?;
    ensure!(tools.control(&open, &["get", "/a/1"])?.contains("one"), "everybody may do everything");
    ensure!(tools.control(&open, &["user", "list"])?.trim().is_empty());
    Ok(())
}
