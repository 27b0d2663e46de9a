//! Fetches a snapshot of a member's state, for a replica that begins.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use eddy_crdt::sync::{Exchange, Message, Reason, Session, SessionEvent, SyncError, Tuning};
use eddy_crdt::{
    Identity, InstallError, Installed, Installer, Now, Place, Replica, ReplicaId, SnapshotChunk, VersionVector,
};
use eddy_proto::peer::Frame;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::dial::{DialError, Dialer};

/// How long the giver may take for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a snapshot is fetched again because the giver's state moved on meanwhile.
const ATTEMPTS: usize = 10;

/// Messages that wait for the network: one request for a chunk, and answers to pings.
const WAITING: usize = 16;

/// A member that can give a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The member.
    pub member: ReplicaId,
    /// Its peer URLs.
    pub peer_urls: Vec<String>,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The giver is not reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The stream ended.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The giver refused, or violated the protocol.
    #[error(transparent)]
    Protocol(#[from] SyncError),
    /// The chunks do not make a replica.
    #[error(transparent)]
    Install(#[from] InstallError),
}

impl FetchError {
    /// Whether the giver says that this member was removed from the cluster.
    pub(crate) fn is_removal(&self) -> bool {
        matches!(self, Self::Protocol(SyncError::Refused { reason: Reason::RemovedMember, .. }))
    }
}

/// The stream on which chunks are requested. The replica of its session is empty, and stays empty.
struct Giver {
    session: Session,
    replica: Replica,
    inbound: Streaming<Frame>,
    outbound: mpsc::Sender<Bytes>,
    started: Instant,
}

/// Fetches a snapshot and makes a replica of it. `identity` has a birth that was never used, `engine` is the newest
/// merge engine that counts as known. `old` is this member's state before: its own writes that the giver lacks are written
/// again.
///
/// # Errors
/// When the giver cannot be reached or gives nothing usable; another may.
pub(crate) async fn fetch(
    dialer: &Dialer,
    source: &Source,
    identity: Identity,
    engine: u32,
    old: Option<&Replica>,
) -> Result<Installed, FetchError> {
    let mut attempt = 1;
    loop {
        let mut giver = Giver::open(dialer, source, identity, engine).await?;
        let installed = match giver.all().await {
            Ok(installer) => installer.finish(giver.now(), identity, old).map_err(FetchError::Install),
            Err(error) => Err(error),
        };
        match installed {
            Err(FetchError::Install(InstallError::Moved)) if attempt < ATTEMPTS => attempt += 1,
            installed => return installed,
        }
    }
}

impl Giver {
    async fn open(dialer: &Dialer, source: &Source, identity: Identity, engine: u32) -> Result<Giver, FetchError> {
        let mut client = dialer.dial(&source.peer_urls).await?;
        let (outbound, receiver) = mpsc::channel(WAITING);
        let frames = ReceiverStream::new(receiver).map(|message| Frame { message });
        let answer = timeout(ANSWER_TIMEOUT, client.sync(frames)).await;
        let answer = answer.map_err(|_| FetchError::Lost("timed out".to_owned()))?;
        let inbound = answer.map_err(|status| FetchError::Lost(status.message().to_owned()))?.into_inner();
        let (exchange, replica) = (Exchange::new(Tuning::default()), Replica::of_engine(identity, engine));
        let (session, hello) = Session::start(&exchange, &replica, &VersionVector::default(), Some(source.member));
        let mut giver = Giver { session, replica, inbound, outbound, started: Instant::now() };
        giver.send(&hello).await?;
        Ok(giver)
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Now { wall_ms: wall.as_millis() as u64, mono_ms: self.started.elapsed().as_millis() as u64 }
    }

    async fn send(&mut self, message: &Message) -> Result<(), FetchError> {
        let sent = timeout(ANSWER_TIMEOUT, self.outbound.send(message.encode())).await;
        sent.ok().and_then(Result::ok).ok_or_else(|| FetchError::Lost("nothing can be sent".to_owned()))
    }

    async fn all(&mut self) -> Result<Installer, FetchError> {
        let (mut installer, mut after) = (Installer::of_engine(self.replica.engine()), None);
        loop {
            let chunk = self.chunk(after).await?;
            after = installer.chunk(chunk)?;
            if after.is_none() {
                return Ok(installer);
            }
        }
    }

    async fn chunk(&mut self, after: Option<Place>) -> Result<SnapshotChunk, FetchError> {
        // The giver answers requests only after both sides have greeted.
        while self.session.peer().is_none() {
            self.receive().await?;
        }
        let wish = self.session.request_snapshot(after);
        self.send(&wish).await?;
        loop {
            if let Some(chunk) = self.receive().await? {
                return Ok(SnapshotChunk::decode(&chunk).map_err(InstallError::Codec)?);
            }
        }
    }

    /// Receives one message. Returns its chunk, if it carries one.
    async fn receive(&mut self) -> Result<Option<Bytes>, FetchError> {
        let frame = timeout(ANSWER_TIMEOUT, self.inbound.message()).await;
        let frame = frame.map_err(|_| FetchError::Lost("the peer does not answer".to_owned()))?;
        let frame = frame.map_err(|status| FetchError::Lost(status.message().to_owned()))?;
        let frame = frame.ok_or_else(|| FetchError::Lost("the peer closed it".to_owned()))?;
        let message = Message::decode(frame.message).map_err(SyncError::Garbage)?;
        let now = self.now();
        let turn = self.session.receive(&self.replica, &VersionVector::default(), now, message)?;
        for message in &turn.messages {
            self.send(message).await?;
        }
        Ok(turn.events.into_iter().find_map(|event| match event {
            SessionEvent::SnapshotChunk(chunk) => Some(chunk),
            _ => None,
        }))
    }
}
