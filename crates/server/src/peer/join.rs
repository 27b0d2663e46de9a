//! How a new data dir begins: with the first entry of its cluster, or with a snapshot of another member's state.

use std::time::Duration;

use anyhow::{Context, bail};
use eddy_crdt::merge::Rules;
use eddy_crdt::{ClusterId, Founder, Genesis, Identity, Installed, Keyspace, Member, Replica, ReplicaId};
use eddy_proto::peer::{self as wire, MeetRequest, MeetResponse};
use futures::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::declarations::{asks_for_others, declared_apart};
use super::dial::{Backoff, Dialer};
use super::fetch::{Source, fetch};
use super::troubles::Troubles;
use crate::config::Config;
use crate::node::identity::{self, Founded};

/// How long one attempt to meet a peer may take.
const MEET_TIMEOUT: Duration = Duration::from_secs(3);

/// What a new data dir begins with.
pub enum Beginning {
    /// The first entry of a cluster; all its members make the same one.
    Genesis(Genesis),
    /// The state of another member.
    Snapshot(Box<Installed>),
    /// What is on disk, although others knew more of this member once: nobody does any more.
    Old,
}

/// This member was removed from the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the member has been permanently removed from the cluster")]
pub struct Removed;

/// The member that asks: by its id or, if it gives none, by its peer URLs.
pub(crate) fn find_asker(members: &[Member], request: &MeetRequest) -> Option<ReplicaId> {
    if request.member_id != 0 {
        return Some(ReplicaId::new(request.member_id));
    }
    let same = |member: &&Member| !member.removed && same_urls(&member.peer_urls, &request.peer_urls);
    members.iter().find(same).map(|member| member.id)
}

fn same_urls(a: &[String], b: &[String]) -> bool {
    let sorted = |urls: &[String]| {
        let mut urls = urls.to_vec();
        urls.sort_unstable();
        urls
    };
    sorted(a) == sorted(b)
}

/// Encodes a member for [`MeetResponse`].
pub(crate) fn to_wire(member: &Member) -> wire::Member {
    wire::Member {
        id: member.id.get(),
        name: member.name.clone(),
        peer_urls: member.peer_urls.clone(),
        client_urls: member.client_urls.clone(),
        ordinal: member.ordinal.map(u32::from),
        is_learner: member.learner,
    }
}

/// The cluster that `--initial-cluster` lists.
///
/// # Errors
/// When the list is malformed or lacks this member.
pub fn founded(config: &Config) -> anyhow::Result<Founded> {
    identity::derive(&config.name, &config.initial_cluster, &config.initial_cluster_token)
        .context("derive the member id")
}

/// The answer to [`MeetRequest`] before this member has begun.
pub fn starting(config: &Config, founded: &Founded) -> MeetResponse {
    let member = |founder: &Founder| wire::Member {
        id: founder.id.get(),
        name: founder.name.clone(),
        peer_urls: founder.peer_urls.clone(),
        ..wire::Member::default()
    };
    MeetResponse {
        cluster_id: founded.identity.cluster.get(),
        member_id: founded.identity.replica.get(),
        starting: true,
        rules: config.rules().encode(),
        members: founded.founders.iter().map(member).collect(),
        ..MeetResponse::default()
    }
}

/// Finds out with what a new data dir begins. A single member begins at once. One of several looks for the others first:
/// where they have gone on, their state must come before any write here. `asked` is what new members asked of this one.
///
/// # Errors
/// When this member was removed, a running cluster that is to be joined does not know it, or the cluster or another founder
/// was given other declarations about merges.
pub async fn begin(
    config: &Config,
    founded: &Founded,
    dialer: &Dialer,
    mut asked: watch::Receiver<MeetRequest>,
) -> anyhow::Result<Beginning> {
    let others: Vec<&Founder> =
        founded.founders.iter().filter(|founder| founder.id != founded.identity.replica).collect();
    let deadline = Instant::now() + config.join_timeout;
    let ours = config.rules();
    let engine = config.merge_engine;
    let genesis = |rules| Beginning::Genesis(Genesis { founders: founded.founders.clone(), rules, engine });
    if config.initial_cluster_state == "existing" {
        return join(config, founded, &others, dialer, deadline).await;
    }
    if others.is_empty() {
        return Ok(genesis(ours));
    }
    let request = MeetRequest {
        cluster_id: founded.identity.cluster.get(),
        member_id: founded.identity.replica.get(),
        peer_urls: own_urls(founded),
        rules: ours.encode(),
    };
    let mut backoff = Backoff::new();
    tracing::info!(peers = others.len(), "looking for the other members");
    // Whether the others have gone on. If so, this member waits for a snapshot, even after the timeout.
    let mut gone_on = false;
    let mut troubles = Troubles::default();
    loop {
        let answers = ask(dialer, &others, &request).await;
        // The rules of a member that has founded the cluster count, if there is one.
        let mut met: Option<Rules> = None;
        for (founder, answer) in &answers {
            let Ok(answer) = answer else { continue };
            match weigh(founded, founder, answer, &mut troubles)? {
                Weighed::Stranger => continue,
                Weighed::New => {
                    if let Some(apart) = declared_apart(founded, &ours, answer.member_id, &answer.rules) {
                        return Err(apart.told().await);
                    }
                    met.get_or_insert_with(|| ours.clone());
                    continue;
                }
                Weighed::Founded => {
                    asks_for_others(config, founder, answer)?;
                    met = Some(
                        Rules::decode(&answer.rules, config.merge_engine)
                            .with_context(|| format!("join {}", founder.name))?,
                    );
                    continue;
                }
                Weighed::GoneOn => {
                    asks_for_others(config, founder, answer)?;
                    gone_on = true;
                }
            }
            let source = Source { member: ReplicaId::new(answer.member_id), peer_urls: founder.peer_urls.clone() };
            if let Some(installed) = take(dialer, &source, founded.identity, engine, None, &mut troubles).await? {
                return Ok(Beginning::Snapshot(installed));
            }
        }
        let request = asked.borrow_and_update().clone();
        if let Some(apart) = declared_apart(founded, &ours, request.member_id, &request.rules) {
            return Err(apart.told().await);
        }
        if let Some(rules) = met.filter(|_| !gone_on) {
            return Ok(genesis(rules));
        }
        if Instant::now() >= deadline && !gone_on {
            tracing::warn!(
                "join-timeout" = ?config.join_timeout,
                reasons = reasons(&answers).join("; "),
                "met none of the other members in time; starting without them"
            );
            return Ok(genesis(ours));
        }
        let _asked_or_time_is_up = timeout(backoff.pause(), asked.changed()).await;
    }
}

/// What an answer to [`MeetRequest`] means to a new member of a static cluster.
enum Weighed {
    /// It comes from a member of another cluster.
    Stranger,
    /// The member is as new as this one.
    New,
    /// The member has founded the cluster, and all of its entries are there from the first on.
    Founded,
    /// The member has gone on, perhaps without this one, so its state must come first.
    GoneOn,
}

fn weigh(
    founded: &Founded,
    founder: &Founder,
    answer: &MeetResponse,
    troubles: &mut Troubles,
) -> Result<Weighed, Removed> {
    let ours = founded.identity.cluster;
    if answer.cluster_id != ours.get() {
        if troubles.is_news(founder.name.clone()) {
            let theirs = ClusterId::new(answer.cluster_id);
            tracing::warn!(peer = founder.name, %theirs, %ours, "the peer belongs to another cluster");
        }
        return Ok(Weighed::Stranger);
    }
    if answer.removed_asker {
        return Err(Removed);
    }
    let gone_on = !answer.starting && (answer.knows_asker || answer.has_settled);
    Ok(match (gone_on, answer.starting) {
        (true, _) => Weighed::GoneOn,
        (false, true) => Weighed::New,
        (false, false) => Weighed::Founded,
    })
}

/// Fetches a snapshot; logs why there is none, once for each reason.
async fn take(
    dialer: &Dialer,
    source: &Source,
    identity: Identity,
    engine: u32,
    old: Option<&Replica>,
    troubles: &mut Troubles,
) -> anyhow::Result<Option<Box<Installed>>> {
    match fetch(dialer, source, identity, engine, old).await {
        Ok(installed) => {
            tracing::info!(
                peer = %source.member,
                keys = installed.replica.live_keys(),
                records = installed.records.len(),
                revision = installed.replica.revision().get(),
                "fetched what the peer has"
            );
            for merge in &installed.given_up {
                tracing::warn!(
                    key = %String::from_utf8_lossy(&merge.key),
                    rule = ?merge.rule,
                    "given-up" = ?merge.given_up,
                    "a write from before the loss gave something up"
                );
            }
            for entry in &installed.forsaken {
                for change in entry.changes.iter().filter(|change| change.keyspace == Keyspace::Client) {
                    tracing::warn!(
                        key = %String::from_utf8_lossy(&change.key),
                        member = %entry.head.dot.origin.replica,
                        "a write of a member that was removed, or lost that disk, is not taken along; the others may not have it"
                    );
                }
            }
            Ok(Some(Box::new(installed)))
        }
        Err(error) if error.is_removal() => bail!(Removed),
        Err(error) => {
            if troubles.is_news(format!("{} {error}", source.member)) {
                tracing::warn!(peer = %source.member, %error, "could not fetch what the peer has; trying on");
            }
            Ok(None)
        }
    }
}

/// How many times as long is waited while some members do not answer. They may have more; they may also never come back.
const SILENT_PATIENCE: u32 = 3;

/// Begins anew, under a new birth, from another member's state. Asks until one of them gives it. Returns `None` when all
/// others have answered for `patience` that they have nothing themselves: then no one has more than this disk. Where some or all
/// do not answer, it waits `SILENT_PATIENCE` times as long. The replica is in doubt then: it begins anew later from a member
/// that turns out to have more. `first` is asked before the others: it has what is wanted.
///
/// # Errors
/// When there is no other member, or no randomness for a birth.
pub async fn anew(
    old: &Replica,
    first: Option<ReplicaId>,
    dialer: &Dialer,
    patience: Duration,
) -> anyhow::Result<Option<Box<Installed>>> {
    let before = old.identity();
    let identity = Identity { birth: identity::draw_birth()?, ..before };
    let mut sources: Vec<Source> = old
        .members()
        .filter(|member| !member.removed && member.id != before.replica)
        .map(|member| Source { member: member.id, peer_urls: member.peer_urls.clone() })
        .collect();
    if sources.is_empty() {
        bail!("there is no other member to begin anew from");
    }
    sources.sort_by_key(|source| Some(source.member) != first);
    let founder =
        |member: &Member| Founder { id: member.id, name: member.name.clone(), peer_urls: member.peer_urls.clone() };
    let others: Vec<Founder> =
        old.members().filter(|member| !member.removed && member.id != before.replica).map(founder).collect();
    let others: Vec<&Founder> = others.iter().collect();
    let request =
        MeetRequest { cluster_id: before.cluster.get(), member_id: before.replica.get(), ..MeetRequest::default() };
    let mut empty_since = None;
    tracing::warn!(birth = %identity.birth, "beginning anew from what the others have; what only this member had is written again");
    let (mut backoff, mut troubles) = (Backoff::new(), Troubles::default());
    loop {
        for source in &sources {
            if let Some(installed) = take(dialer, source, identity, old.engine(), Some(old), &mut troubles).await? {
                return Ok(Some(installed));
            }
        }
        // One that joins does not know the id of the cluster before it has begun.
        let answers = ask(dialer, &others, &request).await;
        let answered = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
        let has_nothing = |(_, answer): &(&Founder, Result<MeetResponse, String>)| {
            answer.as_ref().map_or(true, |answer| answer.starting)
        };
        if !answers.iter().all(has_nothing) {
            empty_since = None;
        } else {
            let waited = empty_since.get_or_insert_with(Instant::now).elapsed();
            let enough = if answered == others.len() { patience } else { patience.saturating_mul(SILENT_PATIENCE) };
            if waited >= enough {
                tracing::warn!(
                    answered,
                    "no other member answers that it has anything: going on with what is on this disk"
                );
                return Ok(None);
            }
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Joins a running cluster, which must know this member.
async fn join(
    config: &Config,
    founded: &Founded,
    others: &[&Founder],
    dialer: &Dialer,
    deadline: Instant,
) -> anyhow::Result<Beginning> {
    let peer_urls = own_urls(founded);
    let request = MeetRequest { peer_urls: peer_urls.clone(), ..MeetRequest::default() };
    let (mut backoff, mut troubles) = (Backoff::new(), Troubles::default());
    loop {
        let answers = ask(dialer, others, &request).await;
        for (founder, answer) in &answers {
            let Ok(answer) = answer else { continue };
            if answer.starting {
                continue;
            }
            let own = answer.members.iter().find(|member| same_urls(&member.peer_urls, &peer_urls));
            let Some(own) = own else { continue };
            asks_for_others(config, founder, answer)?;
            let identity = Identity {
                cluster: ClusterId::new(answer.cluster_id),
                replica: ReplicaId::new(own.id),
                birth: founded.identity.birth,
                ordinal: own.ordinal.and_then(|ordinal| u16::try_from(ordinal).ok()).unwrap_or_default(),
            };
            let source = Source { member: ReplicaId::new(answer.member_id), peer_urls: founder.peer_urls.clone() };
            if let Some(installed) = take(dialer, &source, identity, config.merge_engine, None, &mut troubles).await? {
                return Ok(Beginning::Snapshot(installed));
            }
        }
        if Instant::now() >= deadline {
            let known = |answer: &MeetResponse| answer.members.iter().any(|m| same_urls(&m.peer_urls, &peer_urls));
            if answers.iter().any(|(_, answer)| answer.as_ref().is_ok_and(known)) {
                bail!("no member of {:?} gives a snapshot", config.initial_cluster);
            }
            if answers.iter().any(|(_, answer)| answer.is_ok()) {
                bail!(
                    "the members of {:?} do not know a member at {}: add it first (etcdctl member add)",
                    config.initial_cluster,
                    peer_urls.join(",")
                );
            }
            bail!(
                "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs ({})",
                reasons(&answers).join("; ")
            );
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Another member of one of these clusters that runs, by its name.
pub async fn find_running(dialer: &Dialer, founded: &Founded, clusters: &[ClusterId]) -> Option<String> {
    let others: Vec<&Founder> =
        founded.founders.iter().filter(|founder| founder.id != founded.identity.replica).collect();
    let is_of = |answer: &MeetResponse| clusters.contains(&ClusterId::new(answer.cluster_id)) && !answer.starting;
    let answers = ask(dialer, &others, &MeetRequest::default()).await;
    let running = answers.into_iter().find(|(_, answer)| answer.as_ref().is_ok_and(is_of));
    running.map(|(founder, _)| founder.name.clone())
}

fn own_urls(founded: &Founded) -> Vec<String> {
    let own = founded.founders.iter().find(|founder| founder.id == founded.identity.replica);
    own.map(|own| own.peer_urls.clone()).unwrap_or_default()
}

type Answers<'a> = Vec<(&'a Founder, Result<MeetResponse, String>)>;

fn reasons(answers: &Answers<'_>) -> Vec<String> {
    let failed = |(founder, answer): &(&Founder, Result<MeetResponse, String>)| {
        answer.as_ref().err().map(|reason| format!("{}: {reason}", founder.name))
    };
    answers.iter().filter_map(failed).collect()
}

/// Asks all of them at once.
async fn ask<'a>(dialer: &Dialer, others: &[&'a Founder], request: &MeetRequest) -> Answers<'a> {
    join_all(others.iter().map(|founder| async move {
        let meet = async {
            let mut client = dialer.dial(&founder.peer_urls).await.map_err(|error| error.to_string())?;
            let answer = client.meet(request.clone()).await;
            answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
        };
        (*founder, timeout(MEET_TIMEOUT, meet).await.unwrap_or_else(|_| Err("timed out".to_owned())))
    }))
    .await
}
