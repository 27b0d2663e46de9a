//! What Kubernetes declares about the fields of its kinds, as far as a merge needs it. Part of the rules number.
//!
//! The lists are recognised by where they lie, in every kind: a custom resource that has `containers` or `conditions`
//! means the same by them. A list whose elements do not have the keys, or have them twice, is one atomic value instead.

use crate::merge::rules::Rules;

use super::path::{Path, Step};

/// How the parts of a value merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A map field by field; a list as one value.
    Plain,
    /// A list of maps that are told apart by these fields.
    Keyed(&'static [&'static str]),
    /// A list of scalars in which each occurs once.
    Set,
    /// One value, whatever is in it.
    Atomic,
}

/// How concurrent values of one leaf become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// The last writer wins.
    LastWriter,
    /// The first writer wins: Kubernetes sets such a field once.
    FirstWriter,
    /// What was added to it is added up.
    Counter {
        /// A sum below this is raised to it.
        minimum: Option<i64>,
    },
    /// The claim to be leader that etcd would have let stand.
    LeaderElection,
}

/// The fields of a kind that are set once.
pub fn set_once(api_version: &str, kind: &str) -> &'static [&'static [&'static str]] {
    match (api_version, kind) {
        ("v1", "Pod") => &[&["spec", "nodeName"]],
        ("v1", "PersistentVolumeClaim") => &[&["spec", "volumeName"]],
        ("v1", "PersistentVolume") => &[&["spec", "claimRef"]],
        ("v1", "Node") => &[&["spec", "podCIDR"], &["spec", "podCIDRs"], &["spec", "providerID"]],
        ("v1", "Service") => &[&["spec", "clusterIP"], &["spec", "clusterIPs"]],
        _ => &[],
    }
}

/// The declarations for one kind.
#[derive(Clone, Copy, Debug)]
pub struct Schema<'a> {
    api_version: &'a str,
    kind: &'a str,
    rules: &'a Rules,
}

impl<'a> Schema<'a> {
    /// What is declared for that kind.
    pub fn new(api_version: &'a str, kind: &'a str, rules: &'a Rules) -> Self {
        Self { api_version, kind, rules }
    }

    fn is_core(&self, kind: &str) -> bool {
        self.api_version == "v1" && self.kind == kind
    }

    /// Whether it is the Pod of Kubernetes.
    pub fn is_pod(&self) -> bool {
        self.is_core("Pod")
    }

    /// Whether its values are secrets, whatever they lie in: an annotation may repeat them all.
    pub fn is_secret(&self) -> bool {
        self.kind == "Secret"
    }

    fn is_lease(&self) -> bool {
        self.kind == "Lease" && self.api_version.starts_with("coordination.k8s.io/")
    }

    /// How the parts of the value at that path merge.
    pub fn shape(&self, path: &Path) -> Shape {
        let Some(field) = path.last_field() else { return Shape::Plain };
        if set_once(self.api_version, self.kind).iter().any(|once| path.is(once))
            || (self.is_lease() && path.is(&["spec"]))
        {
            return Shape::Atomic;
        }
        let parent = match path.parent() {
            Some(Step::Field(name)) => name.as_str(),
            _ => "",
        };
        let in_element = matches!(path.parent(), Some(Step::Element(_)));
        match (parent, field) {
            ("metadata", "ownerReferences") => Shape::Keyed(&["uid"]),
            ("metadata", "finalizers") => Shape::Set,
            // An entry says which fields its manager wrote in one write: it is replaced as a whole.
            ("metadata", "managedFields") => Shape::Keyed(&["manager", "operation", "apiVersion", "subresource"]),
            (_, "fieldsV1") if in_element => Shape::Atomic,
            ("spec" | "status", "conditions") => Shape::Keyed(&["type"]),
            ("spec", "containers" | "initContainers" | "ephemeralContainers") => Shape::Keyed(&["name"]),
            ("spec", "volumes" | "imagePullSecrets" | "resourceClaims" | "schedulingGates") => Shape::Keyed(&["name"]),
            ("spec", "hostAliases") => Shape::Keyed(&["ip"]),
            ("spec", "topologySpreadConstraints") => Shape::Keyed(&["topologyKey", "whenUnsatisfiable"]),
            ("spec", "nodeSelector") => Shape::Atomic,
            (_, "ports") if in_element => Shape::Keyed(&["containerPort", "protocol"]),
            (_, "env") if in_element => Shape::Keyed(&["name"]),
            (_, "volumeMounts") if in_element => Shape::Keyed(&["mountPath"]),
            (_, "volumeDevices") if in_element => Shape::Keyed(&["devicePath"]),
            ("spec", "ports") if self.is_core("Service") => Shape::Keyed(&["port", "protocol"]),
            ("spec", "selector") if self.is_core("Service") => Shape::Atomic,
            ("status", "addresses") if self.is_core("Node") => Shape::Keyed(&["type"]),
            ("status", "podIPs") if self.is_pod() => Shape::Keyed(&["ip"]),
            ("", "secrets") if self.is_core("ServiceAccount") => Shape::Keyed(&["name"]),
            ("", "webhooks") if self.kind.ends_with("WebhookConfiguration") => Shape::Keyed(&["name"]),
            _ => Shape::Plain,
        }
    }

    /// How concurrent values of the leaf at that path become one.
    pub fn resolution(&self, path: &Path) -> Resolution {
        if path.is(&["metadata", "generation"]) {
            return Resolution::Counter { minimum: None };
        }
        if set_once(self.api_version, self.kind).iter().any(|once| path.is(once)) {
            return Resolution::FirstWriter;
        }
        if self.is_lease() && path.is(&["spec"]) {
            return Resolution::LeaderElection;
        }
        if self.rules.counters.is_empty() {
            return Resolution::LastWriter;
        }
        let written = path.to_string();
        let counter = self
            .rules
            .counters
            .iter()
            .find(|c| c.kind == self.kind && c.api_version == self.api_version && c.path == written);
        counter.map_or(Resolution::LastWriter, |counter| Resolution::Counter { minimum: counter.minimum })
    }
}
