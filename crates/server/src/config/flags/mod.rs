//! What a flag is, and what giving it a value does. The flags themselves are in [`FLAGS`].

mod table;

use std::path::PathBuf;

use super::value::{ValueError, parse_bool, parse_list};
use super::{Config, TlsFiles};

pub use table::FLAGS;

/// What giving a flag does. Every flag of etcd is in exactly one of these classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// What its help says.
    Works,
    /// Nothing, for this reason. A line at start names the flag and the reason.
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
    /// What giving it does.
    pub effect: Effect,
    /// Whether it is a top-level key of the configuration file.
    pub in_file: bool,
    set: fn(&mut Config, &str) -> Result<(), ValueError>,
}

impl Flag {
    /// Looks a flag up by its name.
    pub fn by_name(name: &str) -> Option<&'static Flag> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// Its environment variable: `ETCD_`, or `EDDY_` where etcd has no such flag, and the name in capitals.
    pub fn env(&self) -> String {
        let owner = if self.section == table::REPLICATION { "EDDY" } else { "ETCD" };
        format!("{owner}_{}", self.name.to_ascii_uppercase().replace('-', "_"))
    }

    /// Whether the help shows it. etcd takes some flags of old releases and does not list them.
    pub fn is_listed(&self) -> bool {
        self.section != table::REMOVED
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

fn to_bool(target: &mut bool, value: &str) -> Result<(), ValueError> {
    *target = parse_bool(value)?;
    Ok(())
}

fn to_path(target: &mut PathBuf, value: &str) -> Result<(), ValueError> {
    *target = PathBuf::from(value);
    Ok(())
}

/// The keys of `client-transport-security` and `peer-transport-security` in the configuration file.
pub(crate) fn set_security(tls: &mut TlsFiles, key: &str, value: &str) -> Result<bool, ValueError> {
    match key {
        "cert-file" => to_path(&mut tls.cert_file, value)?,
        "key-file" => to_path(&mut tls.key_file, value)?,
        "client-cert-file" => to_path(&mut tls.client_cert_file, value)?,
        "client-key-file" => to_path(&mut tls.client_key_file, value)?,
        "client-cert-auth" => to_bool(&mut tls.client_cert_auth, value)?,
        "trusted-ca-file" => to_path(&mut tls.trusted_ca_file, value)?,
        "auto-tls" => to_bool(&mut tls.auto_tls, value)?,
        "allowed-cn" => tls.allowed_cns = parse_list(value),
        "allowed-hostname" => tls.allowed_hostnames = parse_list(value),
        "skip-client-san-verification" => to_bool(&mut tls.skip_client_san_verify, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}
