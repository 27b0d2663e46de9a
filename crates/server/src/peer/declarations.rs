//! What a new member would have its cluster merge by must be what the others would, or what the cluster has.

use std::time::Duration;

use eddy_crdt::Founder;
use eddy_crdt::merge::Rules;
use eddy_proto::peer::MeetResponse;

use crate::config::Config;
use crate::node::identity::Founded;

/// How long a founder that refuses to begin still answers others. Otherwise one of them could miss it and begin alone.
const LINGER: Duration = Duration::from_secs(2);

/// Two new members would found one cluster with different declarations about merges.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "member {name} would found the cluster with {theirs}, this one with {ours}: \
     give all founders the same --kubernetes-prefix, and the same --counters or --merge-policy"
)]
pub struct DeclaredApart {
    /// The other member.
    name: String,
    ours: String,
    theirs: String,
}

impl DeclaredApart {
    /// The error, once the other founders that start now had the time to ask and to see it, too.
    pub(super) async fn told(self) -> anyhow::Error {
        tokio::time::sleep(LINGER).await;
        self.into()
    }
}

/// Whether a member would found the cluster with something else than this one. One that says nothing would not.
pub(super) fn declared_apart(founded: &Founded, ours: &Rules, member_id: u64, theirs: &[u8]) -> Option<DeclaredApart> {
    let founder = founded.founders.iter().find(|founder| founder.id.get() == member_id)?;
    let theirs = Rules::read(theirs).filter(|theirs| !theirs.counters.is_empty() || !theirs.prefix.is_empty())?;
    let described = |rules: &Rules| match theirs.engine == ours.engine {
        true => rules.to_string(),
        false => format!("merge engine {}, {rules}", rules.engine),
    };
    let (name, ours_text, theirs_text) = (founder.name.clone(), described(ours), described(&theirs));
    (theirs != *ours).then_some(DeclaredApart { name, ours: ours_text, theirs: theirs_text })
}

/// A new member's flags ask for other declarations about merges than its cluster has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the cluster of member {name} merges by {theirs}, and the flags of this one ask for {ours}: \
     give what `eddy status` shows there, or leave --kubernetes-prefix, --counters and --merge-policy out"
)]
pub struct AsksForOthers {
    /// A member of that cluster.
    name: String,
    ours: String,
    theirs: String,
}

/// Whether this member would come to a cluster with other declarations than those it has, or will have.
pub(super) fn asks_for_others(config: &Config, founder: &Founder, answer: &MeetResponse) -> Result<(), AsksForOthers> {
    let rules: Vec<Rules> = answer.rules_now.iter().filter_map(|rules| Rules::read(rules)).collect();
    let Some(theirs) = rules.first() else { return Ok(()) };
    match config.asks_for_other_rules(theirs) {
        Some(ours) if rules.iter().all(|rules| config.asks_for_other_rules(rules).is_some()) => {
            let (ours, theirs) = (ours.to_string(), theirs.to_string());
            Err(AsksForOthers { name: founder.name.clone(), ours, theirs })
        }
        _ => Ok(()),
    }
}
