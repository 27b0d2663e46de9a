//! A member that the test plays itself: it greets as a peer does, and then sends whatever it likes.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use eddy_crdt::sync::{Hello, Message, PROTOCOL, Reason};
use eddy_crdt::{
    Birth, Chain, Change, ChangeKind, Dot, Entry, EntryHead, Incarnation, Keyspace, Origin, ReplicaId, Revision, Stamp,
};
use eddy_proto::peer::Frame;
use eddy_proto::peer::peer_client::PeerClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::cluster::{PATIENCE, Replica};
use crate::support::free_ports;

/// A member without a process.
pub struct Fake {
    pub member: ReplicaId,
    pub birth: Birth,
    last: u64,
    chain: Chain,
}

/// A stream with a replica.
pub struct Line {
    outbound: mpsc::Sender<Frame>,
    inbound: Streaming<Frame>,
    /// What the replica said of itself.
    pub theirs: Hello,
    /// The run of entries that it waits for, and the last number in it.
    pub run: (u32, u32),
}

impl Fake {
    /// Has a member added that nobody will ever reach.
    pub async fn join(through: &Replica) -> Result<Fake> {
        let added = through.add(&format!("http://127.0.0.1:{}", free_ports()?[1])).await?;
        Ok(Fake { member: ReplicaId::new(added.id), birth: Birth::new(1), last: 0, chain: Chain::default() })
    }

    /// Begins a new data dir, as it were.
    pub fn reborn(&mut self) {
        (self.birth, self.last, self.chain) = (Birth::new(self.birth.get() + 1), 0, Chain::default());
    }

    fn origin(&self) -> Origin {
        Origin { replica: self.member, birth: self.birth }
    }

    /// Dials a replica and hears its greeting.
    pub async fn call_without_greeting(&self, replica: &Replica) -> Result<Line> {
        let url = format!("http://127.0.0.1:{}", replica.ports[1]);
        let channel = Endpoint::from_shared(url)?.connect().await?;
        let (outbound, receiver) = mpsc::channel(64);
        let mut inbound = PeerClient::new(channel).sync(ReceiverStream::new(receiver)).await?.into_inner();
        let Some(Message::Hello(theirs)) = next(&mut inbound).await? else { bail!("it does not greet first") };
        Ok(Line { outbound, inbound, theirs: *theirs, run: (0, 0) })
    }

    /// Dials a replica and greets it as one that has all that it has; `change` may say something else.
    pub async fn call(&self, replica: &Replica, change: impl FnOnce(&mut Hello)) -> Result<Line> {
        let line = self.call_without_greeting(replica).await?;
        let mut hello = Hello {
            protocol: PROTOCOL,
            replica: self.member,
            birth: self.birth,
            empty: false,
            revision: Revision::new(0),
            ..line.theirs.clone()
        };
        change(&mut hello);
        line.send(&Message::Hello(Box::new(hello))).await?;
        Ok(line)
    }

    /// The same, once the replica has asked for entries: what comes before that is not taken.
    pub async fn call_until_asked(&self, replica: &Replica) -> Result<Line> {
        let mut line = self.call(replica, |_| ()).await?;
        line.asked_again().await?;
        Ok(line)
    }

    /// Its next entry. The first one depends on all that the replica had when it was called.
    pub fn put(&mut self, line: &Line, key: &str, value: &str) -> Result<Entry> {
        let dot = Dot { origin: self.origin(), seq: self.last + 1 };
        let stamp = Stamp::new((SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64) << 16);
        let change = Change {
            keyspace: Keyspace::Client,
            local: false,
            key: key.to_owned().into(),
            kind: ChangeKind::Put { value: value.to_owned().into(), lease: None, version: 1 },
            incarnation: Incarnation { stamp, dot },
            applied: None,
        };
        let others = line.theirs.vector.iter().filter(|dot| dot.origin != self.origin());
        let depends = if self.last == 0 { others.collect() } else { Default::default() };
        let head =
            EntryHead { dot, first_seq: dot.seq, stamp, rules: 1, depends, previous: self.chain, resulting: None };
        self.chain = self.chain.extend(&head, std::slice::from_ref(&change));
        self.last += 1;
        Ok(Entry { head, changes: vec![change] })
    }
}

impl Line {
    pub async fn send(&self, message: &Message) -> Result<()> {
        self.send_bytes(message.encode()).await
    }

    pub async fn send_bytes(&self, message: Bytes) -> Result<()> {
        self.outbound.send(Frame { message }).await.context("the stream has ended")
    }

    /// Sends one message of entries.
    pub async fn send_entries(&mut self, entries: &[&Entry]) -> Result<()> {
        let entries = entries.iter().map(|entry| eddy_crdt::sync::encode_entry(entry, |_| None).bytes).collect();
        self.send_encoded(entries).await
    }

    pub async fn send_encoded(&mut self, entries: Vec<Bytes>) -> Result<()> {
        self.run.1 += 1;
        let (epoch, number) = self.run;
        self.send(&Message::Entries { epoch, number, entries, marks: 0, part: None }).await
    }

    /// The next message; none when the other side closed the stream.
    pub async fn next(&mut self) -> Result<Option<Message>> {
        next(&mut self.inbound).await
    }

    /// Waits until it is asked for everything again, and begins a new run.
    pub async fn asked_again(&mut self) -> Result<()> {
        loop {
            match self.next().await?.context("the stream ended")? {
                Message::Again { epoch, .. } => {
                    self.run = (epoch, 0);
                    return Ok(());
                }
                Message::Refuse { reason, text } => bail!("refused: {reason:?} {text}"),
                _ => {}
            }
        }
    }

    /// Waits until the other side says why it goes, and goes.
    pub async fn ends_refused(mut self) -> Result<(Reason, String)> {
        let mut refused = None;
        while let Some(message) = self.next().await? {
            if let Message::Refuse { reason, text } = message {
                refused = Some((reason, text));
                // It waits for this side to close the stream.
                break;
            }
        }
        refused.context("the stream ended without a word")
    }
}

async fn next(inbound: &mut Streaming<Frame>) -> Result<Option<Message>> {
    let frame = tokio::time::timeout(PATIENCE, inbound.message()).await.context("nothing came")??;
    Ok(frame.map(|frame| Message::decode(frame.message)).transpose()?)
}
