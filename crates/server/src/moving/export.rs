//! An etcd that follows an eddy.
//!
//! Nobody can tell an etcd which revision to give. But an etcd that was made of a backup of eddy counts on where the backup
//! ends, and eddy leaves no revision out. So each later revision is done again as one transaction, in order, and the
//! answer must bear the same number. If anybody else writes there, it does not, and the export stops.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::mvccpb::Event;
use eddy_proto::mvccpb::event::EventType;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::compare::{Compared, compare, compare_at_end};
use super::error::MoveError;
use super::lag::Lag;
use super::remote::{Remote, Session};
use super::steps::{Step, Steps, compacted};
use super::told::{Ended, Tell};

/// How often the source is asked how far it is, and for its leases.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often it is asked how far it is compacted.
const COMPACTION_EVERY: Duration = Duration::from_secs(30);

/// How long after it was told to stop it tries to reach the source's last revision.
const STOP_WITHIN: Duration = Duration::from_secs(60);

/// The time to live of a lease that is gone where it was granted, seconds. Its keys go, too, and then it does.
const GONE_TTL_S: i64 = 3600;

/// What to export, and where to.
pub struct Export {
    /// Where from.
    pub source: Remote,
    /// Where to.
    pub target: Remote,
}

/// How the target follows.
struct Following {
    /// The newest revision that the target has; `None` before it was asked.
    revision: Option<i64>,
    /// The newest revision at which both were found equal.
    equal_at: Option<i64>,
    /// The leases that the target has: their times to live, and when they were renewed.
    leases: BTreeMap<i64, (Duration, Instant)>,
    other_versions: u64,
    lag: Lag,
    asked_compaction: Instant,
}

/// Both sides.
struct Sides {
    source: Session,
    target: Session,
}

impl Export {
    /// Exports until `stop`, and then to the end of the source.
    ///
    /// # Errors
    /// When one of them cannot be reached at first, or the target is no copy of the source.
    pub async fn run(&self, stop: &CancellationToken, tell: Tell<'_>) -> Result<Ended, MoveError> {
        let mut following = Following {
            revision: None,
            equal_at: None,
            leases: BTreeMap::new(),
            other_versions: 0,
            lag: Lag::new(),
            asked_compaction: Instant::now(),
        };
        let mut stopped: Option<Instant> = None;
        loop {
            let followed = match self.connect().await {
                Ok(sides) => following.along(&sides, stop, tell).await,
                Err(error) => Err(error),
            };
            match followed {
                Err(error) if error.passes() && following.revision.is_some() => {
                    if stop.is_cancelled() && stopped.get_or_insert_with(Instant::now).elapsed() > STOP_WITHIN {
                        return Err(error);
                    }
                    tell(format!("waits for both sides: {error}"));
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                ended => return ended,
            }
        }
    }

    async fn connect(&self) -> Result<Sides, MoveError> {
        Ok(Sides { source: self.source.connect().await?, target: self.target.connect().await? })
    }
}

impl Following {
    /// Follows over one connection to each.
    async fn along(&mut self, sides: &Sides, stop: &CancellationToken, tell: Tell<'_>) -> Result<Ended, MoveError> {
        let mut at = self.begin(sides, tell).await?;
        let mut steps = Steps::behind(&sides.source, at).await?;
        let (mut look, mut renewed) = (tokio::time::interval(LOOK_EVERY), Instant::now());
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                next = steps.next() => {
                    for step in next.map_err(advise)? {
                        at = self.take(sides, step, at).await?;
                        if renewed.elapsed() >= LOOK_EVERY {
                            // Many steps must not keep leases from being renewed.
                            renewed = Instant::now();
                            self.renew(sides).await?;
                        }
                    }
                    self.lag.reached(at);
                }
                _ = look.tick() => self.look(sides, at, tell).await?,
                () = stop.cancelled() => return self.end(sides, &mut steps, at, tell).await,
            }
        }
    }

    /// Looks where the target is, at first key by key.
    async fn begin(&mut self, sides: &Sides, tell: Tell<'_>) -> Result<i64, MoveError> {
        let (theirs, ours) = (sides.source.standing().await?, sides.target.standing().await?);
        if theirs.cluster == ours.cluster {
            return Err(MoveError::Refused("the source and the target are one cluster".to_owned()));
        }
        match self.revision {
            // What was under way when the connection was lost may have been done.
            Some(revision) if ours.revision == revision || ours.revision == revision + 1 => {}
            Some(revision) => return Err(MoveError::Apart { expected: revision, found: ours.revision }),
            None => {
                if ours.revision > theirs.revision {
                    return Err(MoveError::Apart { expected: theirs.revision, found: ours.revision });
                }
                for id in sides.target.lease_ids().await? {
                    if let Some(ttl) = sides.target.lease_ttl(id).await? {
                        self.note_lease(id, ttl);
                    }
                }
                self.renew_all(sides).await?;
                let found = compare(&sides.source, &sides.target, ours.revision, 0).await.map_err(advise)?;
                self.other_versions = found.other_versions;
                tell(format!("the target has revision {}, where {} keys are equal", ours.revision, found.keys));
            }
        }
        self.revision = Some(ours.revision);
        Ok(ours.revision)
    }

    /// Does a step again.
    async fn take(&mut self, sides: &Sides, step: Step, at: i64) -> Result<i64, MoveError> {
        let Step { revision, events } = step;
        if revision != at + 1 {
            return Err(advise(MoveError::Compacted(revision)));
        }
        let ids = events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.lease);
        for id in ids.filter(|id| *id != 0 && !self.leases.contains_key(id)).collect::<Vec<_>>() {
            let ttl = sides.source.lease_ttl(id).await?.unwrap_or(GONE_TTL_S);
            self.grant(sides, id, ttl).await?;
        }
        let (count, bytes) = (events.len(), events.iter().map(prost::Message::encoded_len).sum::<usize>());
        let request = pb::TxnRequest { success: events.into_iter().filter_map(op).collect(), ..Default::default() };
        let answer = sides.target.txn(request).await.map_err(|error| match error {
            MoveError::Call { code: Code::InvalidArgument, message, .. } => MoveError::Refused(format!(
                "revision {revision} has {count} changes of {bytes} bytes, and the target refuses it: {message}. Start \
                 etcd with a larger --max-txn-ops and --max-request-bytes, and begin again"
            )),
            error => error,
        })?;
        let found = answer.header.map_or(0, |header| header.revision);
        if found != revision {
            return Err(MoveError::Apart { expected: revision, found });
        }
        self.revision = Some(revision);
        Ok(revision)
    }

    /// Looks how far the source is.
    async fn look(&mut self, sides: &Sides, at: i64, tell: Tell<'_>) -> Result<(), MoveError> {
        let standing = sides.source.standing().await?;
        self.leases(sides).await?;
        self.lag.seen(standing.revision);
        self.lag.reached(at);
        if self.equal_at.is_none() && self.lag.is_near() {
            let found = self.compare(sides, at).await?;
            tell(format!("equal at revision {at}: {} keys; follows until it is told to stop", found.keys));
            self.lag.begin();
        }
        if self.asked_compaction.elapsed() >= COMPACTION_EVERY {
            self.asked_compaction = Instant::now();
            self.compact(sides, at).await?;
        }
        if let Some(longest) = self.lag.due_to_tell() {
            let behind = (standing.revision - at).max(0);
            tell(format!("at revision {at}, {behind} behind, at most {} ms late", longest.as_millis()));
        }
        Ok(())
    }

    /// Compares all, or what was written since both were last found equal.
    async fn compare(&mut self, sides: &Sides, at: i64) -> Result<Compared, MoveError> {
        let found = match self.equal_at {
            Some(since) => compare_at_end(&sides.source, &sides.target, at, since + 1).await?,
            None => compare(&sides.source, &sides.target, at, 0).await?,
        };
        self.other_versions += found.other_versions;
        self.equal_at = Some(at);
        Ok(found)
    }

    /// Compacts the target as far as the source is compacted.
    async fn compact(&mut self, sides: &Sides, at: i64) -> Result<(), MoveError> {
        let Some(compacted) = compacted(&sides.source).await?.filter(|compacted| *compacted <= at) else {
            return Ok(());
        };
        match sides.target.compact(compacted).await {
            // It is compacted further already.
            Ok(()) | Err(MoveError::Call { code: Code::OutOfRange, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Has the target keep the leases that the source has, and no others.
    async fn leases(&mut self, sides: &Sides) -> Result<(), MoveError> {
        let theirs: BTreeSet<i64> = sides.source.lease_ids().await?.into_iter().collect();
        for id in &theirs {
            if !self.leases.contains_key(id)
                && let Some(ttl) = sides.source.lease_ttl(*id).await?
            {
                self.grant(sides, *id, ttl).await?;
            }
        }
        let gone: Vec<i64> = self.leases.keys().filter(|id| !theirs.contains(id)).copied().collect();
        for id in gone {
            // Its keys go when the source tells of it.
            if sides.target.lease_keys(id).await? == 0 {
                match sides.target.lease_revoke(id).await {
                    Ok(()) | Err(MoveError::Call { code: Code::NotFound, .. }) => drop(self.leases.remove(&id)),
                    Err(error) => return Err(error),
                }
            }
        }
        self.renew(sides).await
    }

    fn note_lease(&mut self, id: i64, ttl_s: i64) {
        let ttl = Duration::from_secs(u64::try_from(ttl_s).unwrap_or_default());
        self.leases.insert(id, (ttl, Instant::now()));
    }

    async fn grant(&mut self, sides: &Sides, id: i64, ttl_s: i64) -> Result<(), MoveError> {
        match sides.target.lease_grant(id, ttl_s).await {
            // It is there.
            Ok(()) | Err(MoveError::Call { code: Code::FailedPrecondition, .. }) => {
                self.note_lease(id, ttl_s);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Renews leases that have lived a third of their time: nothing may run out at the target.
    async fn renew(&mut self, sides: &Sides) -> Result<(), MoveError> {
        let is_due = |(ttl, renewed): &(Duration, Instant)| renewed.elapsed() * 3 >= *ttl;
        let due = self.leases.iter().filter(|(_, lease)| is_due(lease)).map(|(id, _)| *id).collect();
        self.renew_these(sides, due).await
    }

    async fn renew_all(&mut self, sides: &Sides) -> Result<(), MoveError> {
        let all = self.leases.keys().copied().collect();
        self.renew_these(sides, all).await
    }

    async fn renew_these(&mut self, sides: &Sides, ids: Vec<i64>) -> Result<(), MoveError> {
        for some in ids.chunks(256) {
            sides.target.lease_renew(some.to_vec()).await?;
            for id in some {
                if let Some((_, renewed)) = self.leases.get_mut(id) {
                    *renewed = Instant::now();
                }
            }
        }
        Ok(())
    }

    /// Goes to the end of the source, and compares.
    async fn end(&mut self, sides: &Sides, steps: &mut Steps, from: i64, tell: Tell<'_>) -> Result<Ended, MoveError> {
        let last = sides.source.standing().await?.revision;
        let late = || MoveError::Refused(format!("does not reach revision {last} of the source in time: begin again"));
        let mut at = from;
        let reached = async {
            while at < last {
                for step in steps.next().await.map_err(advise)? {
                    at = self.take(sides, step, at).await?;
                }
            }
            Ok(())
        };
        tokio::time::timeout(STOP_WITHIN, reached).await.unwrap_or_else(|_| Err(late()))?;
        self.leases(sides).await?;
        self.renew_all(sides).await?;
        self.compact(sides, at).await?;
        let found = self.compare(sides, at).await?;
        if at > last {
            tell(format!("somebody still writes to the source: it was at revision {last} when this was told to stop"));
        }
        if self.other_versions > 0 {
            tell(format!("{} keys count their writes otherwise, as eddy merged them", self.other_versions));
        }
        Ok(Ended { revision: at, keys: found.keys, leases: self.leases.len() })
    }
}

/// What to do where the source has no history to follow.
fn advise(error: MoveError) -> MoveError {
    match error {
        MoveError::Compacted(at) => MoveError::Refused(format!(
            "the source has no history from the target's revision on (it begins at {at}): make the target of a new \
             backup (`etcdctl snapshot save`, `etcdutl snapshot restore`), and begin again"
        )),
        error => error,
    }
}

/// What an event did. A step without a key is none.
fn op(event: Event) -> Option<pb::RequestOp> {
    let deletes = event.r#type() == EventType::Delete;
    let kv = event.kv?;
    let request = if deletes {
        Request::RequestDeleteRange(pb::DeleteRangeRequest { key: kv.key, ..Default::default() })
    } else {
        let put = pb::PutRequest { key: kv.key, value: kv.value, lease: kv.lease, ..Default::default() };
        Request::RequestPut(put)
    };
    Some(pb::RequestOp { request: Some(request) })
}
