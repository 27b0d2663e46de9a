//! `--merge-policy`: a YAML file that says which fields of Kubernetes objects are counters, and which merge as one value.

use std::path::{Path, PathBuf};

use eddy_crdt::merge::{self, AtomicRule, BadDeclaration, CounterRule};
use serde::Deserialize;

/// What the file says, checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MergePolicy {
    /// Integers that add up.
    pub counters: Vec<CounterRule>,
    /// Fields that merge as one value.
    pub atomic: Vec<AtomicRule>,
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    counters: Vec<String>,
    #[serde(default)]
    atomic: Vec<String>,
}

/// Why a policy was refused.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It could not be read.
    #[error("open {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no YAML with these two lists.
    #[error("{path}: {source}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_yaml_ng::Error,
    },
    /// A field cannot merge so.
    #[error("{path}: {source}")]
    Declaration {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: BadDeclaration,
    },
}

impl MergePolicy {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// When it cannot be read, or one of its fields cannot merge so.
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let at = || path.to_owned();
        let text = std::fs::read_to_string(path).map_err(|source| PolicyError::Read { path: at(), source })?;
        let written = if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            Written { counters: vec![], atomic: vec![] }
        } else {
            serde_yaml_ng::from_str(&text).map_err(|source| PolicyError::Yaml { path: at(), source })?
        };
        Self::check(&written).map_err(|source| PolicyError::Declaration { path: at(), source })
    }

    fn check(written: &Written) -> Result<Self, BadDeclaration> {
        let counters = merge::counters(&written.counters.join(","))?;
        let atomic = merge::atomic(&written.atomic.join(","), &counters)?;
        Ok(Self { counters, atomic })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<MergePolicy, String> {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("policy.yaml");
        std::fs::write(&path, text).expect("it can be written");
        MergePolicy::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_policy_names_counters_and_fields_that_are_one_value() {
        let policy =
            read("# ours\ncounters:\n- apps/v1/Deployment:.spec.replicas:min=0\natomic:\n  - v1/ConfigMap:.data\n");
        let policy = policy.expect("it is right");
        assert_eq!(policy.counters[0].to_string(), "apps/v1/Deployment:.spec.replicas:min=0");
        assert_eq!(policy.atomic[0].to_string(), "v1/ConfigMap:.data");
        assert_eq!(read("# nothing\n\n"), Ok(MergePolicy::default()));
    }

    #[test]
    fn a_policy_that_cannot_be_meant_is_refused_with_the_reason() {
        for (text, part) in [
            ("counter:\n- v1/Thing:.size\n", "unknown field `counter`"),
            ("counters:\n- v1/Thing\n", "apiVersion/Kind:.path"),
            ("atomic:\n- v1/Pod:.spec\n", "cannot be one value"),
            ("counters:\n- v1/Thing:.a.b\natomic:\n- v1/Thing:.a\n", "lies in v1/Thing:.a"),
            ("- v1/Thing:.size\n", "policy.yaml"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = MergePolicy::read(Path::new("/nowhere/policy.yaml")).expect_err("there is none");
        assert!(error.to_string().starts_with("open /nowhere/policy.yaml: "), "{error}");
    }
}
