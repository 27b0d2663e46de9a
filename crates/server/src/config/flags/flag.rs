//! A flag: its name, its help, and the effect of its value.

use crate::config::Config;
use crate::config::value::{ValueError, parse_bool};

// Sections of the help that say more than where a flag is listed.
pub(super) const REPLICATION: &str = "Replication (eddy's own)";
pub(super) const REMOVED: &str = "Removed from etcd";

/// How the text of a value reaches the configuration.
pub(super) type Set = fn(&mut Config, &str) -> Result<(), ValueError>;

/// The effect of a flag. Every flag of etcd is in exactly one of these classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// As its help says.
    Works,
    /// None, for this reason. A line at start names the flag and the reason.
    Warns(&'static str),
    /// The process does not start, unless the value is the default. The text says what to do instead.
    Refused(&'static str),
}

/// How a flag's value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// May stand alone.
    Bool,
    /// A duration: in the configuration file a number of nanoseconds.
    Duration,
    /// Anything else.
    Text,
}

/// One row.
pub struct Flag {
    /// Name without dashes.
    pub name: &'static str,
    /// Section of the help text.
    pub section: &'static str,
    /// Default as the help shows it.
    pub default: &'static str,
    /// One line for the help.
    pub help: &'static str,
    /// How the value is written.
    pub kind: Kind,
    /// Its effect.
    pub effect: Effect,
    /// Whether it is a top-level key of the configuration file.
    pub in_file: bool,
    pub(super) set: Set,
}

impl Flag {
    /// Its environment variable: `ETCD_`, or `EDDY_` where etcd has no such flag, and the name in capitals.
    pub fn env(&self) -> String {
        let owner = if self.section == REPLICATION { "EDDY" } else { "ETCD" };
        format!("{owner}_{}", self.name.to_ascii_uppercase().replace('-', "_"))
    }

    /// Whether the help shows it. etcd takes some flags of old releases and does not list them.
    pub fn is_listed(&self) -> bool {
        self.section != REMOVED
    }

    /// What the help says of it.
    pub fn said(&self) -> String {
        match self.effect {
            Effect::Works => self.help.to_owned(),
            Effect::Warns(reason) => format!("No effect: {reason}."),
            Effect::Refused(instead) => format!("Refused: {instead}."),
        }
    }

    /// Gives the flag a value, and notes that it was given.
    ///
    /// # Errors
    /// The value does not parse.
    pub fn set(&self, config: &mut Config, value: &str) -> Result<(), ValueError> {
        (self.set)(config, value)?;
        config.explicit.insert(self.name.to_owned());
        if matches!(self.effect, Effect::Refused(_)) && !self.is_default(value)? {
            config.refused.insert(self.name);
        }
        Ok(())
    }

    fn is_default(&self, value: &str) -> Result<bool, ValueError> {
        Ok(match self.kind {
            Kind::Bool => parse_bool(value)? == parse_bool(self.default)?,
            Kind::Duration | Kind::Text => value == self.default,
        })
    }
}

pub(super) const fn text(
    section: &'static str,
    name: &'static str,
    default: &'static str,
    help: &'static str,
    set: Set,
) -> Flag {
    Flag { name, section, default, help, kind: Kind::Text, effect: Effect::Works, in_file: true, set }
}

pub(super) const fn boolean(
    section: &'static str,
    name: &'static str,
    default: &'static str,
    help: &'static str,
    set: Set,
) -> Flag {
    Flag { kind: Kind::Bool, ..text(section, name, default, help, set) }
}

pub(super) const fn duration(
    section: &'static str,
    name: &'static str,
    default: &'static str,
    help: &'static str,
    set: Set,
) -> Flag {
    Flag { kind: Kind::Duration, ..text(section, name, default, help, set) }
}

impl Flag {
    /// Not a top-level key of the configuration file: nested there, or absent.
    pub(super) const fn flag_only(self) -> Flag {
        Flag { in_file: false, ..self }
    }

    /// Does nothing, for this reason.
    pub(super) const fn warns(self, reason: &'static str) -> Flag {
        Flag { effect: Effect::Warns(reason), ..self }
    }

    /// Keeps the process from starting, and tells this.
    pub(super) const fn refused(self, instead: &'static str) -> Flag {
        Flag { effect: Effect::Refused(instead), ..self }
    }
}
