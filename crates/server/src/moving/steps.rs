//! The changes of another etcd as whole revisions, in order.

use std::time::Duration;

use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::mvccpb::Event;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::error::MoveError;
use super::remote::Session;

/// How long a source that compacted nothing is waited for to say so. It never says it.
const PROBE: Duration = Duration::from_millis(200);

/// All that happened at one revision, in its order.
pub(super) struct Step {
    pub(super) revision: i64,
    pub(super) events: Vec<Event>,
}

/// A watch of all keys.
pub(super) struct Steps {
    url: String,
    answers: Streaming<pb::WatchResponse>,
    // A watch ends when nobody can ask more of it.
    _asks: mpsc::Sender<pb::WatchRequest>,
    /// The newest revision that came.
    last: i64,
}

impl Steps {
    /// Watches from behind a revision on.
    pub(super) async fn behind(session: &Session, revision: i64) -> Result<Self, MoveError> {
        Self::watch(session, "\0", revision).await
    }

    async fn watch(session: &Session, range_end: &'static str, revision: i64) -> Result<Self, MoveError> {
        let (asks, asked) = mpsc::channel(1);
        let create = pb::WatchCreateRequest {
            key: "\0".into(),
            range_end: range_end.into(),
            start_revision: revision + 1,
            ..Default::default()
        };
        let create = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        if asks.send(create).await.is_err() {
            return Err(MoveError::Strange("a watch ends before it begins".to_owned()));
        }
        let mut client = WatchClient::new(session.channel.clone()).max_decoding_message_size(usize::MAX);
        let answers = session.call(client.watch(session.request(ReceiverStream::new(asked)))).await?;
        Ok(Self { url: session.url.clone(), answers, _asks: asks, last: revision })
    }

    /// The next revisions: all that one answer brings. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Result<Vec<Step>, MoveError> {
        let answer = self.answers.message().await.map_err(|status| MoveError::call(&self.url, &status))?;
        let answer = answer.ok_or_else(|| MoveError::call(&self.url, &Status::unavailable("the watch ended")))?;
        if answer.compact_revision > 0 {
            return Err(MoveError::Compacted(answer.compact_revision));
        }
        if answer.canceled {
            return Err(MoveError::call(&self.url, &Status::unavailable(answer.cancel_reason)));
        }
        whole(answer.events, &mut self.last)
    }
}

/// Parts events by revision. Each must be above the last one: etcd never parts a revision unless it is asked to.
fn whole(events: Vec<Event>, last: &mut i64) -> Result<Vec<Step>, MoveError> {
    let mut steps: Vec<Step> = vec![];
    for event in events {
        let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        match steps.last_mut() {
            Some(step) if step.revision == revision => step.events.push(event),
            _ if revision <= *last => {
                return Err(MoveError::Strange(format!("revision {revision} comes after {last}")));
            }
            _ => {
                *last = revision;
                steps.push(Step { revision, events: vec![event] });
            }
        }
    }
    Ok(steps)
}

/// How far the source is compacted, as a watch from its beginning is told; `None` when it is not.
pub(super) async fn compacted(session: &Session) -> Result<Option<i64>, MoveError> {
    let mut watch = Steps::watch(session, "", 0).await?;
    let asked = async {
        loop {
            match watch.next().await {
                Ok(_) => {}
                Err(MoveError::Compacted(at)) => return Ok(Some(at)),
                Err(error) => return Err(error),
            }
        }
    };
    tokio::time::timeout(PROBE, asked).await.unwrap_or(Ok(None))
}

#[cfg(test)]
mod tests {
    use eddy_proto::mvccpb::KeyValue;

    use super::*;

    fn event(key: &'static str, mod_revision: i64) -> Event {
        Event { kv: Some(KeyValue { key: key.into(), mod_revision, ..Default::default() }), ..Default::default() }
    }

    #[test]
    fn what_happened_at_one_revision_stays_one_step() {
        let mut last = 4;
        let steps = whole(vec![event("a", 5), event("b", 5), event("a", 6)], &mut last).unwrap();
        let lens: Vec<_> = steps.iter().map(|step| (step.revision, step.events.len())).collect();
        assert_eq!((lens, last), (vec![(5, 2), (6, 1)], 6));
        assert!(whole(vec![], &mut last).unwrap().is_empty());
        assert!(whole(vec![event("c", 6)], &mut last).is_err(), "the rest of a revision that was taken for whole");
        assert!(whole(vec![Event::default()], &mut last).is_err());
    }
}
