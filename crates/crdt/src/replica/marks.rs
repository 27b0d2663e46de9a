//! How far entries may have been sent to each member: what this replica promises the others about what they do not get
//! from it.
//!
//! While entries are streamed to a member, no more is said than that: any may have been sent. When the stream ends, the
//! mark is what was on disk when something was sent last. Beyond its mark a member is sent nothing before the replica has noted, on disk, that it
//! streams again. What it is sent first then is one step: all that is here. So a version that stood here below another
//! one when the mark was made, and was above the mark, reaches the member only together with that other one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::words::id::{Origin, ReplicaId};
use crate::words::vector::VersionVector;

/// How far entries may have been sent to a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Any may have been sent.
    Streams {
        /// The numbers of the sessions that stream.
        sessions: BTreeSet<u64>,
        /// The number of the change of the marks that began it. Nothing may be sent before that is on disk.
        since: u64,
        /// What was here then. All of that is to be sent as one step.
        from: Arc<VersionVector>,
        /// How far entries may have been sent before, and by sessions that have stopped since.
        sent: VersionVector,
    },
    /// Nothing beyond this.
    Upto(Arc<VersionVector>),
}

/// For each of those members beyond what nothing was sent.
pub type Upto = BTreeMap<ReplicaId, Arc<VersionVector>>;

/// What a replica says of its marks, beside what it has on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statement {
    /// Counts the changes of its marks.
    pub version: u64,
    /// For the members that it names, beyond what nothing was sent. To others anything may have been sent. `None`: it is
    /// not known here what was said under that number.
    pub upto: Option<Arc<Upto>>,
}

impl Statement {
    /// Takes what was said later in the place of this. Tells whether it was.
    pub fn follow(&mut self, later: &Self) -> bool {
        let is_news = later.version > self.version
            || (later.version == self.version && self.upto.is_none() && later.upto.is_some());
        if is_news {
            self.clone_from(later);
        }
        is_news
    }
}

/// What a member has on disk, and what it says of its marks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ack {
    /// The member, under one birth.
    pub member: Origin,
    /// What it has on disk.
    pub vector: VersionVector,
    /// What it said of its marks with that, or later.
    pub said: Statement,
}

/// The marks of a replica.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Counts their changes.
    version: u64,
    /// How far entries may have been sent to members that are not named.
    rest: Arc<VersionVector>,
    members: BTreeMap<ReplicaId, Mark>,
}

impl Marks {
    /// Whatever is here may have been sent to anyone, and nothing beyond it.
    pub fn after(version: u64, vector: &VersionVector) -> Self {
        Self { version: version + 1, rest: Arc::new(vector.clone()), members: BTreeMap::new() }
    }

    /// Those that a head tells. A session that streamed has ended with what is here.
    pub fn restored(
        version: u64,
        rest: VersionVector,
        members: impl IntoIterator<Item = (ReplicaId, Option<VersionVector>)>,
        vector: &VersionVector,
    ) -> Self {
        let here = Arc::new(vector.clone());
        let mut streamed = false;
        let mut mark = |upto: Option<VersionVector>| {
            streamed |= upto.is_none();
            Mark::Upto(upto.map_or_else(|| Arc::clone(&here), Arc::new))
        };
        let members = members.into_iter().map(|(member, upto)| (member, mark(upto))).collect();
        Self { version: version + u64::from(streamed), rest: Arc::new(rest), members }
    }

    /// How often they have changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How far entries may have been sent to members that are not named.
    pub fn rest(&self) -> &VersionVector {
        &self.rest
    }

    /// The members that are named; `None` where entries are streamed.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaId, Option<&VersionVector>)> {
        self.members.iter().map(|(member, mark)| match mark {
            Mark::Streams { .. } => (*member, None),
            Mark::Upto(upto) => (*member, Some(&**upto)),
        })
    }

    /// How far entries may have been sent to that member.
    pub fn of(&self, member: ReplicaId) -> Mark {
        self.members.get(&member).cloned().unwrap_or_else(|| Mark::Upto(Arc::clone(&self.rest)))
    }

    /// Whether nothing is streamed to that member.
    pub fn is_cut_off(&self, member: ReplicaId) -> bool {
        !matches!(self.members.get(&member), Some(Mark::Streams { .. }))
    }

    /// Whether there is a member that is named and that nothing is streamed to.
    pub fn is_anyone_cut_off(&self) -> bool {
        self.members.values().any(|mark| matches!(mark, Mark::Upto(_)))
    }

    /// A session streams to a member from now on. Tells whether it is the first one.
    pub fn stream(&mut self, member: ReplicaId, session: u64, vector: &VersionVector) -> bool {
        if let Some(Mark::Streams { sessions, .. }) = self.members.get_mut(&member) {
            sessions.insert(session);
            return false;
        }
        self.version += 1;
        let sent = match self.of(member) {
            Mark::Upto(upto) => VersionVector::clone(&upto),
            Mark::Streams { sent, .. } => sent,
        };
        let (sessions, from) = (BTreeSet::from([session]), Arc::new(vector.clone()));
        self.members.insert(member, Mark::Streams { sessions, since: self.version, from, sent });
        true
    }

    /// A session does not stream any more; it has sent nothing beyond `upto`. Tells whether it was the last one.
    pub fn stop(&mut self, member: ReplicaId, session: u64, upto: &VersionVector) -> bool {
        let Some(Mark::Streams { sessions, sent, .. }) = self.members.get_mut(&member) else { return false };
        if !sessions.remove(&session) {
            return false;
        }
        sent.merge(upto);
        if !sessions.is_empty() {
            return false;
        }
        let upto = Mark::Upto(Arc::new(std::mem::take(sent)));
        self.version += 1;
        self.members.insert(member, upto);
        true
    }

    /// What is said of them to other members.
    pub fn said(&self, members: impl IntoIterator<Item = ReplicaId>) -> Statement {
        let upto = members.into_iter().filter_map(|member| match self.of(member) {
            Mark::Streams { .. } => None,
            Mark::Upto(upto) => Some((member, upto)),
        });
        Statement { version: self.version, upto: Some(Arc::new(upto.collect())) }
    }
}
