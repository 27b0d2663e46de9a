//! `--config-file`: etcd's YAML, with its key names. Keys that etcd does not know are ignored, as etcd ignores them.

use std::path::{Path, PathBuf};

use serde_yaml_ng::Value;

use super::flags::{self, Kind, set_security};
use super::value::ValueError;
use super::{Config, TlsFiles};

/// Why a configuration file was refused.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It could not be read.
    #[error("open {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not YAML.
    #[error("error parsing {path}: {source}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_yaml_ng::Error,
    },
    /// It is YAML, but not a map of settings.
    #[error("error parsing {0}: expected a map of settings")]
    NotAMap(PathBuf),
    /// One setting has a value that it cannot have.
    #[error("invalid value {value:?} for {key} in the configuration file: {source}")]
    Value {
        /// The setting.
        key: String,
        /// The value as text.
        value: String,
        /// Why not.
        source: ValueError,
    },
    /// A section that must be a map is not.
    #[error("invalid {0}")]
    Section(String),
}

/// Reads a file into a [`Config`] that is not validated yet.
///
/// # Errors
/// See [`FileError`].
pub fn load(path: &Path) -> Result<Config, FileError> {
    let text = std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

/// Reads the text of a file; `path` is for messages.
///
/// # Errors
/// See [`FileError`].
pub fn parse(text: &str, path: &Path) -> Result<Config, FileError> {
    let yaml: Value =
        serde_yaml_ng::from_str(text).map_err(|source| FileError::Yaml { path: path.to_owned(), source })?;
    let mut config = Config::default();
    let entries = match yaml {
        Value::Null => return Ok(config),
        Value::Mapping(entries) => entries,
        _ => return Err(FileError::NotAMap(path.to_owned())),
    };
    for (key, value) in &entries {
        let Some(key) = key.as_str() else { continue };
        match key {
            "client-transport-security" => security(&mut config.client_tls, key, value)?,
            "peer-transport-security" => security(&mut config.peer_tls, key, value)?,
            "socket-options" => socket_options(&mut config, value)?,
            _ => top_level(&mut config, key, value)?,
        }
    }
    if config.self_signed_cert_validity == 0 {
        config.self_signed_cert_validity = 1;
    }
    if config.initial_cluster_state.is_empty() {
        "new".clone_into(&mut config.initial_cluster_state);
    }
    Ok(config)
}

fn top_level(config: &mut Config, key: &str, value: &Value) -> Result<(), FileError> {
    let Some(flag) = flags::by_name(key).filter(|flag| flag.in_file) else { return Ok(()) };
    let Some(mut text) = scalar(key, value)? else { return Ok(()) };
    if flag.kind == Kind::Duration {
        // etcd's file holds durations as numbers of nanoseconds only.
        if text.parse::<i64>().is_err() {
            let source = ValueError::new("durations are numbers of nanoseconds here (600000000000 for 10m)");
            return Err(FileError::Value { key: key.to_owned(), value: text, source });
        }
        text.push_str("ns");
    }
    let empty_means_unset = text.is_empty() && matches!(key, "cors" | "host-whitelist" | "initial-cluster-state");
    if empty_means_unset {
        return Ok(());
    }
    flag.set(config, &text).map_err(|source| FileError::Value { key: key.to_owned(), value: text, source })
}

fn security(tls: &mut TlsFiles, section: &str, value: &Value) -> Result<(), FileError> {
    let entries = match value {
        Value::Null => return Ok(()),
        Value::Mapping(entries) => entries,
        _ => return Err(FileError::Section(section.to_owned())),
    };
    for (key, value) in entries {
        let Some(key) = key.as_str() else { continue };
        let name = format!("{section}.{key}");
        if let Some(text) = scalar(&name, value)? {
            // Unknown keys are ignored, like at the top level.
            let _known =
                set_security(tls, key, &text).map_err(|source| FileError::Value { key: name, value: text, source })?;
        }
    }
    Ok(())
}

fn socket_options(config: &mut Config, value: &Value) -> Result<(), FileError> {
    let Value::Mapping(entries) = value else { return Ok(()) };
    for name in ["reuse-port", "reuse-address"] {
        if let Some(value) = entries.get(name) {
            let wrong = || FileError::Section(format!("socket-options.{name}"));
            let on = value.as_bool().ok_or_else(wrong)?;
            let flag = flags::by_name(&format!("socket-{name}")).ok_or_else(wrong)?;
            flag.set(config, &on.to_string()).map_err(|_| wrong())?;
        }
    }
    Ok(())
}

/// A setting's value in flag syntax; `None` for null, which leaves the default.
fn scalar(key: &str, value: &Value) -> Result<Option<String>, FileError> {
    Ok(Some(match value {
        Value::Null => return Ok(None),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(value) => value.clone(),
        Value::Sequence(items) => {
            let items = items.iter().map(|item| scalar(key, item)).collect::<Result<Vec<_>, _>>()?;
            items.into_iter().flatten().collect::<Vec<_>>().join(",")
        }
        Value::Mapping(_) | Value::Tagged(_) => return Err(FileError::Section(key.to_owned())),
    }))
}
