//! What merges gave up, as lines of the log: one for each loss, and no flood of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use eddy_crdt::{GivenUp, MergeReport, ReplicaId, Rule, Said};

use crate::metrics::Metrics;

/// The name of a rule of merging, in metrics and in the admin API.
pub(crate) fn rule_name(rule: &Rule) -> &'static str {
    match rule {
        Rule::DeletedIncarnation => "deleted-incarnation",
        Rule::OutlivedDelete => "outlived-delete",
        Rule::CreatedFirst => "created-first",
        Rule::CreatedLast => "created-last",
        Rule::FieldMerge => "field-merge",
        Rule::LastWriter => "last-writer",
        Rule::LongestLease => "longest-lease",
        Rule::ContestedBirth => "contested-birth",
        Rule::FewerRights => "fewer-rights",
    }
}

/// All rules, as [`rule_name`] has them.
const RULES: [Rule; 9] = [
    Rule::DeletedIncarnation,
    Rule::OutlivedDelete,
    Rule::CreatedFirst,
    Rule::CreatedLast,
    Rule::FieldMerge,
    Rule::LastWriter,
    Rule::LongestLease,
    Rule::ContestedBirth,
    Rule::FewerRights,
];

/// Shows the counters of all rules at zero. A counter that begins with its first loss shows no increase, so no alert
/// sees that one.
pub(super) fn show_rules(metrics: &Metrics) {
    for rule in RULES {
        for counter in [&metrics.merges, &metrics.merge_losses] {
            let _at_least_zero = counter.with_label_values(&[rule_name(&rule)]);
        }
    }
}

/// How many lines there may be in a [`PERIOD`]. A site that comes back after a month can lose a million fields.
const LINES_MAX: usize = 100;

/// How long a count of lines lasts.
const PERIOD: Duration = Duration::from_secs(60);

/// How many lines were written of late.
#[derive(Debug, Default)]
pub(super) struct LossLog {
    since: Option<Instant>,
    lines: usize,
    left_out: usize,
}

impl LossLog {
    /// How many of so many losses may be logged now, and how many were left out in the period that is over.
    fn take(&mut self, now: Instant, losses: usize) -> (usize, usize) {
        let mut over = 0;
        if self.since.is_none_or(|since| now.duration_since(since) >= PERIOD) {
            over = self.left_out;
            *self = Self { since: Some(now), ..Self::default() };
        }
        let granted = losses.min(LINES_MAX - self.lines);
        self.lines += granted;
        self.left_out += losses - granted;
        (granted, over)
    }

    /// Logs what a merge gave up, as far as it may. `names` gives the names of members, where something is logged.
    pub(super) fn log(&mut self, merge: &MergeReport, names: impl FnOnce() -> BTreeMap<ReplicaId, String>) {
        let losses = merge.given_up.told.len();
        if losses == 0 {
            return;
        }
        let full = self.lines == LINES_MAX;
        let (granted, left_out) = self.take(Instant::now(), losses);
        if left_out > 0 {
            tracing::warn!("left-out" = left_out, "merges gave up more than was logged; the metrics count all of it");
        }
        if granted > 0 {
            let names = names();
            merge.given_up.told[..granted].iter().for_each(|given| log(merge, given, &names));
        }
        if granted < losses && !full {
            tracing::warn!(
                "merges give up so much that not all of it is logged for a minute; /eddy/v1/merges has the newest"
            );
        } else if granted == losses && merge.given_up.more > 0 {
            tracing::info!(key = %String::from_utf8_lossy(&merge.key), more = merge.given_up.more, "and more of this key");
        }
    }
}

fn log(merge: &MergeReport, given: &GivenUp, names: &BTreeMap<ReplicaId, String>) {
    let name = |member: ReplicaId| names.get(&member).cloned().unwrap_or_else(|| member.to_string());
    let said = |said: &Said| match said {
        Said::Text(text) => text.clone(),
        Said::Nothing => "nothing".to_owned(),
        Said::Untold => "-".to_owned(),
    };
    let stands = given.stands.as_ref();
    tracing::info!(
        key = %String::from_utf8_lossy(&merge.key),
        what = %given.part,
        rule = rule_name(&merge.rule),
        member = name(given.dot.origin.replica),
        "written-ms" = given.stamp.wall_ms(),
        value = said(&given.said),
        "stands-member" = stands.map_or_else(|| "-".to_owned(), |stands| name(stands.dot.origin.replica)),
        "stands-written-ms" = stands.map_or(0, |stands| stands.stamp.wall_ms()),
        "stands-value" = stands.map_or_else(|| "-".to_owned(), |stands| said(&stands.said)),
        "a merge gave something up"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_losses_is_some_lines_and_a_count() {
        let (mut log, start) = (LossLog::default(), Instant::now());
        assert_eq!([log.take(start, 60), log.take(start, 60), log.take(start, 5)], [(60, 0), (40, 0), (0, 0)]);
        assert_eq!(log.take(start + PERIOD, 1), (1, 25));
        assert_eq!(log.take(start + PERIOD + PERIOD, 1), (1, 0));
    }
}
