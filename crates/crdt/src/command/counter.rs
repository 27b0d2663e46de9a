//! Counters, and fields that merge as one value, as they are declared.

use std::fmt;

/// An integer field of a Kubernetes kind that is a counter: concurrent changes of it add up.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CounterRule {
    /// The object's `apiVersion`.
    pub api_version: String,
    /// The object's `kind`.
    pub kind: String,
    /// The field, as in `.spec.replicas`.
    pub path: String,
    /// A sum below this is raised to it.
    pub minimum: Option<i64>,
}

/// As it is declared: `apps/v1/Deployment:.spec.replicas:min=0`.
impl fmt::Display for CounterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.api_version, self.kind, self.path)?;
        self.minimum.map_or(Ok(()), |minimum| write!(f, ":min={minimum}"))
    }
}

/// A field of a Kubernetes kind that merges as one value, whatever is in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AtomicRule {
    /// The object's `apiVersion`.
    pub api_version: String,
    /// The object's `kind`.
    pub kind: String,
    /// The field, as in `.spec.template`.
    pub path: String,
}

/// As it is declared: `apps/v1/Deployment:.spec.template`.
impl fmt::Display for AtomicRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.api_version, self.kind, self.path)
    }
}
