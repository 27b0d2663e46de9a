//! Users and roles at several replicas: what is taken away at one of two sites that hear nothing of each other is gone at
//! both afterwards.

use anyhow::{Result, ensure};
use eddy_proto::admin::StatusRequest;
use eddy_proto::admin::admin_client::AdminClient;
use eddy_proto::authpb::Permission;
use eddy_proto::authpb::permission::Type;
use eddy_proto::etcdserverpb::auth_client::AuthClient;
use eddy_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthStatusRequest, AuthStatusResponse,
    AuthUserAddRequest, AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest, AuthenticateRequest, PutRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::cluster::{Cluster, Replica, Setup, binary, eventually};

fn with<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty()
        && let Ok(token) = token.parse()
    {
        request.metadata_mut().insert("token", token);
    }
    request
}

async fn auth(replica: &Replica) -> Result<AuthClient<Channel>> {
    Ok(AuthClient::new(replica.server.connect().await?))
}

async fn log_in(replica: &Replica, name: &str) -> Result<String> {
    let request = AuthenticateRequest { name: name.to_owned(), password: "p".to_owned() };
    Ok(auth(replica).await?.authenticate(request).await?.into_inner().token)
}

async fn status(replica: &Replica) -> Result<AuthStatusResponse> {
    Ok(auth(replica).await?.auth_status(AuthStatusRequest {}).await?.into_inner())
}

/// How a put of that user is answered.
async fn put(replica: &Replica, token: &str, key: &str) -> Result<Code> {
    let request = PutRequest { key: key.to_owned().into(), ..Default::default() };
    let answer = replica.kv().await?.put(with(token, request)).await;
    Ok(answer.map_or_else(|status| status.code(), |_| Code::Ok))
}

async fn permit(replica: &Replica, token: &str, key: &'static str) -> Result<()> {
    let perm = Some(Permission { perm_type: Type::Readwrite.into(), key: key.into(), range_end: "".into() });
    let request = AuthRoleGrantPermissionRequest { name: "r".to_owned(), perm };
    auth(replica).await?.role_grant_permission(with(token, request)).await?;
    Ok(())
}

async fn set_up(replica: &Replica) -> Result<()> {
    let mut auth = auth(replica).await?;
    for name in ["root", "bob"] {
        let (name, password) = (name.to_owned(), "p".to_owned());
        auth.user_add(AuthUserAddRequest { name, password, ..Default::default() }).await?;
    }
    auth.role_add(AuthRoleAddRequest { name: "r".to_owned() }).await?;
    permit(replica, "", "a").await?;
    for (user, role) in [("root", "root"), ("bob", "r")] {
        let (user, role) = (user.to_owned(), role.to_owned());
        auth.user_grant_role(AuthUserGrantRoleRequest { user, role }).await?;
    }
    auth.auth_enable(AuthEnableRequest {}).await?;
    Ok(())
}

#[tokio::test]
async fn what_one_site_takes_away_is_gone_at_both_after_a_cut() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let key = dir.path().join("key");
    std::fs::write(&key, "a secret that both replicas know")?;
    // Every replica that has the key knows the tokens of all.
    let token = format!("--auth-token=jwt,sign-method=HS256,priv-key={},ttl=10m", key.display());
    let flags = |_: usize| vec![token.clone(), "--bcrypt-cost=4".to_owned()];
    let setup = Setup { relays: true, flags: Some(&flags), ..Setup::default() };
    let mut cluster = Cluster::with(2, setup).await?;
    let [one, other] = &cluster.replicas[..] else { anyhow::bail!("another number of replicas") };
    set_up(one).await?;
    eventually("the other one has the users", || async {
        ensure!(status(other).await?.enabled && status(other).await?.auth_revision == status(one).await?.auth_revision);
        Ok(())
    })
    .await?;
    let (root, bob) = (log_in(one, "root").await?, log_in(other, "bob").await?);
    for replica in [one, other] {
        ensure!(put(replica, &bob, "a").await? == Code::Ok && put(replica, &bob, "b").await? == Code::PermissionDenied);
        ensure!(put(replica, "", "a").await? == Code::InvalidArgument, "nobody wrote");
        let mut admin = AdminClient::new(replica.server.connect().await?);
        ensure!(admin.status(StatusRequest {}).await.is_err(), "nobody asked for the status");
        ensure!(admin.status(with(&root, StatusRequest {})).await.is_ok());
        ensure!(replica.server.get("/eddy/v1/merges").await?.starts_with("HTTP/1.1 401"), "nobody asked for merges");
    }
    for (user, works) in [(None, false), (Some("bob:p"), true), (Some("bob:q"), false)] {
        let mut command = tokio::process::Command::new(binary());
        command.args(["status", "--endpoints", &one.server.url()]);
        command.args(user.into_iter().flat_map(|user| ["--user", user]));
        ensure!(command.output().await?.status.success() == works, "eddy status of {user:?}");
    }

    cluster.relays()?.refuse();
    let (user, role) = ("bob".to_owned(), "r".to_owned());
    auth(one).await?.user_revoke_role(with(&root, AuthUserRevokeRoleRequest { name: user, role })).await?;
    permit(other, &log_in(other, "root").await?, "b").await?;
    // Here it is not known yet.
    let bob_there = log_in(other, "bob").await?;
    ensure!(put(other, &bob_there, "b").await? == Code::Ok && put(other, &bob_there, "a").await? == Code::Ok);
    ensure!(put(one, &log_in(one, "bob").await?, "a").await? == Code::PermissionDenied);
    cluster.relays()?.heal();
    for replica in [one, other] {
        eventually("bob may do nothing any more", || async {
            let bob = log_in(replica, "bob").await?;
            ensure!(put(replica, &bob, "a").await? == Code::PermissionDenied);
            ensure!(put(replica, &bob, "b").await? == Code::PermissionDenied);
            ensure!(status(one).await?.auth_revision == status(other).await?.auth_revision);
            Ok(())
        })
        .await?;
        // A token of before has an older revision.
        ensure!(put(replica, &bob, "a").await? == Code::InvalidArgument);
    }
    cluster.replicas[0].server.kill()?;
    cluster.replicas[0].server.respawn()?;
    let one = &cluster.replicas[0];
    eventually("a restart forgets nothing", || async {
        ensure!(status(one).await?.enabled && put(one, "", "a").await? == Code::InvalidArgument);
        Ok(())
    })
    .await
}
