//! An import that has its copy follows the source.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::compare::{compare, compare_at_end};
use super::copy::Copy;
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

/// How a copy follows its source.
struct Following<'a> {
    data_dir: &'a Path,
    copy: Copy,
    /// The newest revision at which both were found equal.
    equal_at: Option<i64>,
    lag: Lag,
    asked_compaction: Instant,
}

/// Follows the source until it is told to stop, and then to the source's end.
pub(super) async fn follow(
    source: &Remote,
    data_dir: &Path,
    copy: Copy,
    session: Session,
    stop: &CancellationToken,
    tell: Tell<'_>,
) -> Result<Ended, MoveError> {
    let mut following = Following { data_dir, copy, equal_at: None, lag: Lag::new(), asked_compaction: Instant::now() };
    let mut session = Some(session);
    let mut stopped: Option<Instant> = None;
    loop {
        let connected = match session.take() {
            Some(session) => Ok(session),
            None => source.connect().await,
        };
        let followed = match connected {
            Ok(session) => following.along(&session, stop, tell).await,
            Err(error) => Err(error),
        };
        match followed {
            Err(error) if error.passes() => {
                if stop.is_cancelled() && stopped.get_or_insert_with(Instant::now).elapsed() > STOP_WITHIN {
                    return Err(MoveError::Refused(format!(
                        "was told to stop, and the source cannot be asked whether it has more than revision {}: \
                         {error}. Begin again, or remove {} to start eddy at that revision",
                        following.copy.revision(),
                        data_dir.join("eddy.import").display()
                    )));
                }
                tell(format!("waits for the source: {error}"));
                tokio::time::sleep(LOOK_EVERY).await;
            }
            ended => return ended,
        }
    }
}

impl Following<'_> {
    /// Follows over one connection.
    async fn along(&mut self, session: &Session, stop: &CancellationToken, tell: Tell<'_>) -> Result<Ended, MoveError> {
        self.copy.settle().await?;
        let mut steps = Steps::behind(session, self.copy.revision()).await?;
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                next = steps.next() => {
                    self.take(session, next?).await?;
                    self.lag.reached(self.copy.node.revision().get());
                }
                _ = look.tick() => self.look(session, tell).await?,
                () = stop.cancelled() => return self.end(session, &mut steps, tell).await,
            }
        }
    }

    async fn take(&mut self, session: &Session, steps: Vec<Step>) -> Result<(), MoveError> {
        for step in steps {
            for id in self.copy.lacks(&step) {
                let ttl = session.lease_ttl(id).await?;
                self.copy.grant(id, ttl).await?;
            }
            self.copy.take(step).await?;
        }
        Ok(())
    }

    /// Looks how far the source is.
    async fn look(&mut self, session: &Session, tell: Tell<'_>) -> Result<(), MoveError> {
        let standing = session.standing().await?;
        self.leases(session).await?;
        if standing.revision < self.copy.revision() {
            return Err(MoveError::call(&session.url, &tonic::Status::unavailable("it is behind the copy")));
        }
        self.lag.seen(standing.revision);
        self.lag.reached(self.copy.node.revision().get());
        if self.equal_at.is_none() && self.lag.is_near() {
            self.copy.settle().await?;
            let (at, keys) = self.compare(session).await?;
            tell(format!("equal at revision {at}: {keys} keys; follows until it is told to stop"));
            self.lag.begin();
        }
        if self.asked_compaction.elapsed() >= COMPACTION_EVERY {
            self.asked_compaction = Instant::now();
            self.compact(session).await?;
        }
        if let Some(longest) = self.lag.due_to_tell() {
            let (at, behind) = (self.copy.revision(), standing.revision - self.copy.node.revision().get());
            tell(format!("at revision {at}, {} behind, at most {} ms late", behind.max(0), longest.as_millis()));
        }
        Ok(())
    }

    /// Compares all, or what was written since both were last found equal.
    async fn compare(&mut self, session: &Session) -> Result<(i64, i64), MoveError> {
        let at = self.copy.revision();
        let found = match self.equal_at {
            Some(since) => compare_at_end(session, &self.copy.node, at, since + 1).await?,
            None => compare(session, &self.copy.node, at, 0).await?,
        };
        if found.other_versions > 0 {
            let what = format!("{} keys were written another number of times", found.other_versions);
            return Err(MoveError::Differs { at, what });
        }
        self.equal_at = Some(at);
        Ok((at, found.keys))
    }

    /// Has the leases that the source has.
    async fn leases(&mut self, session: &Session) -> Result<(), MoveError> {
        let theirs: BTreeSet<i64> = session.lease_ids().await?.into_iter().collect();
        for id in &theirs {
            if !self.copy.leases().contains(id)
                && let Some(ttl) = session.lease_ttl(*id).await?
            {
                self.copy.grant(*id, Some(ttl)).await?;
            }
        }
        let gone: Vec<i64> = self.copy.leases().difference(&theirs).copied().collect();
        for id in gone {
            self.copy.drop_lease(id).await?;
        }
        Ok(())
    }

    /// Compacts as far as the source is compacted.
    async fn compact(&mut self, session: &Session) -> Result<(), MoveError> {
        let Some(at) = compacted(session).await? else { return Ok(()) };
        self.copy.settle().await?;
        let own = self.copy.node.status().compacted.map_or(0, eddy_crdt::Revision::get);
        if at > own && at <= self.copy.revision() {
            self.copy.node.compact(at, false).await?;
        }
        Ok(())
    }

    /// Goes to the end of the source, and compares.
    async fn end(&mut self, session: &Session, steps: &mut Steps, tell: Tell<'_>) -> Result<Ended, MoveError> {
        let last = session.standing().await?.revision;
        let late = || MoveError::Refused(format!("does not reach revision {last} of the source in time: begin again"));
        let reached = async {
            while self.copy.revision() < last {
                let next = steps.next().await?;
                self.take(session, next).await?;
            }
            self.copy.settle().await
        };
        tokio::time::timeout(STOP_WITHIN, reached).await.unwrap_or_else(|_| Err(late()))?;
        self.leases(session).await?;
        self.compact(session).await?;
        let (at, keys) = self.compare(session).await?;
        if at > last {
            tell(format!("somebody still writes to the source: it was at revision {last} when this was told to stop"));
        }
        tell(format!("equal at revision {at}: stops, for {}", self.data_dir.display()));
        Ok(Ended { revision: at, keys, leases: self.copy.leases().len() })
    }
}
