//! What Kubernetes declares about the fields of its kinds, as far as a merge needs it. Part of the rules number.
//!
//! - [`catalogue`]: the types of the built-in kinds; [`normal`]: what is left out of an object because it says nothing;
//! - [`custom`]: what the rules say of custom resources; [`definition`]: that read out of their definitions;
//! - [`explain`](mod@explain): the same for people.
//!
//! The lists of kinds of which nothing is declared are recognised by where they lie: a custom resource that has `containers` or
//! `conditions` most likely means the same by them.

pub mod catalogue;
pub mod custom;
pub mod definition;
pub mod explain;
pub mod normal;

use crate::command::counter::AtomicRule;
use crate::merge::rules::{COUNTS_PODS, Rules};

use super::json::{Fields, Json};
use super::path::{self, Path, Step};
use catalogue::{Base, Declared, Form, Key, Many, Stays, Together, TypeId, catalogue};
use custom::{How, Node};

/// How the parts of a value merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape<'a> {
    /// A map field by field; a list as one value.
    Plain,
    /// A struct that is there or not: what lies under one that is not there is dropped.
    Optional,
    /// A list of maps that are told apart by these fields.
    Keyed(&'a [Key]),
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
    /// The deletion that began first.
    Earliest,
    /// All bits that were set.
    Bits,
}

/// The fields of a kind that are set once.
pub fn set_once(api_version: &str, kind: &str) -> &'static [&'static [&'static str]] {
    match (api_version, kind) {
        ("v1", "Pod") => &[&["spec", "nodeName"]],
        ("v1", "PersistentVolumeClaim") => &[&["spec", "volumeName"]],
        ("v1", "PersistentVolume") => &[&["spec", "claimRef"]],
        ("v1", "Node") => &[&["spec", "podCIDR"], &["spec", "podCIDRs"], &["spec", "providerID"]],
        _ => &[],
    }
}

/// The declarations for one kind.
#[derive(Clone, Copy, Debug)]
pub struct Schema<'a> {
    api_version: &'a str,
    kind: &'a str,
    rules: &'a Rules,
    built_in: Option<TypeId>,
    /// What the rules say of a custom resource.
    custom: Option<&'a Node>,
    /// What is set once.
    once: &'static [&'static [&'static str]],
    /// What the cluster declares to be one value.
    atomic: &'a [AtomicRule],
    is_lease: bool,
    /// Whether `data` is one value.
    has_whole_data: bool,
}

impl<'a> Schema<'a> {
    /// What is declared for that kind.
    pub fn new(api_version: &'a str, kind: &'a str, rules: &'a Rules) -> Self {
        let (built_in, once) = (catalogue().kind(api_version, kind), set_once(api_version, kind));
        let custom = if built_in.is_none() { rules.custom.of(api_version, kind) } else { None };
        let is_lease = kind == "Lease" && api_version.starts_with("coordination.k8s.io/");
        let atomic = rules.atomic_of(api_version, kind);
        Self { api_version, kind, rules, built_in, custom, once, atomic, is_lease, has_whole_data: false }
    }

    /// The same for a Secret of that type: a pair or a file is only right as a whole.
    pub fn of_secret(self, secret_type: &str) -> Self {
        let has_whole_data = self.is_core("Secret") && WHOLE_SECRETS.contains(&secret_type);
        Self { has_whole_data, ..self }
    }

    /// Its API version and name.
    pub fn kind(&self) -> (&'a str, &'a str) {
        (self.api_version, self.kind)
    }

    /// Whether it is the Service of Kubernetes.
    pub fn is_service(&self) -> bool {
        self.is_core("Service")
    }

    /// Whether it is the definition of custom resources.
    pub fn is_crd(&self) -> bool {
        self.kind == "CustomResourceDefinition" && self.api_version.starts_with("apiextensions.k8s.io/")
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

    /// How the parts of the value at that path merge.
    pub fn shape(&self, path: &Path) -> Shape<'a> {
        self.shape_at(path, self.spot(path))
    }

    /// The same on a walk that is at that path.
    pub fn shape_at(&self, path: &Path, spot: Spot<'a>) -> Shape<'a> {
        let Some(field) = path.last_field() else { return declared(spot) };
        if self.once.iter().any(|once| path.is(once)) || (self.is_lease && path.is(&["spec"])) {
            return Shape::Atomic;
        }
        if self.has_whole_data && path.is(&["data"]) {
            return Shape::Atomic;
        }
        if self.atomic.iter().any(|atomic| path::is_written(path, &atomic.path)) {
            return Shape::Atomic;
        }
        if path.is(&["metadata", "managedFields"]) {
            return Shape::Keyed(MANAGED_FIELDS);
        }
        let is_declared = self.built_in.is_some() || self.custom.is_some() || path.begins_with(&["metadata"]);
        if is_declared { declared(spot) } else { by_place(path, field) }
    }

    /// The fields of the struct at that path that come from one side.
    pub fn together(&self, path: &Path) -> &'static [Together] {
        self.spot(path).together()
    }

    /// Where a walk through an object begins.
    pub fn root(&self) -> Spot<'a> {
        match (self.built_in, self.custom) {
            (Some(id), _) => Spot::Known(one(Base::Struct(id)), &NOTHING),
            (None, Some(root)) => Spot::Custom(root),
            (None, None) => Spot::Root,
        }
    }

    fn spot(&self, path: &Path) -> Spot<'a> {
        path.steps().iter().fold(self.root(), |spot, step| spot.next(step))
    }

    /// The fields of the struct at that path that come from one side and in which pods are counted one by one.
    pub fn counted_together(&self, path: &Path) -> Option<&'static Together> {
        let is_job = (self.api_version, self.kind) == ("batch/v1", "Job") && path.is(&["status"]);
        if !is_job || self.rules.engine < COUNTS_PODS || self.shape(path) == Shape::Atomic {
            return None;
        }
        self.together(path).iter().find(|one| one.fields.contains(&"succeeded"))
    }

    /// How concurrent values of the leaf at that path become one.
    pub fn resolution(&self, path: &Path) -> Resolution {
        if path.is(&["metadata", "generation"]) {
            return Resolution::Counter { minimum: None };
        }
        if let Some(Step::Together(together)) = path.steps().last() {
            return match together.stays {
                Stays::Last => Resolution::LastWriter,
                Stays::Earliest => Resolution::Earliest,
                Stays::Bits => Resolution::Bits,
            };
        }
        if self.once.iter().any(|once| path.is(once)) {
            return Resolution::FirstWriter;
        }
        if self.is_lease && path.is(&["spec"]) {
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

static NOTHING: Declared = Declared::Nothing;

const fn one(base: Base) -> Form {
    Form { many: Many::One, base }
}

/// Where a walk through an object is, as the catalogue says.
#[derive(Clone, Copy, Debug)]
pub enum Spot<'a> {
    /// At the root of a kind of which nothing is declared: only its metadata is known.
    Root,
    /// At a value of a custom resource of which that is declared.
    Custom(&'a Node),
    /// At a value of that form, of which that is declared.
    Known(Form, &'static Declared),
    /// Elsewhere.
    Unknown,
}

impl<'a> Spot<'a> {
    /// Where a step leads.
    pub fn next(self, step: &Step) -> Self {
        let (form, declared) = match (self, step) {
            (Self::Root, Step::Field(name)) if name == "metadata" => return Self::metadata(),
            (Self::Custom(node), Step::Field(name)) if node.is_object && name == "metadata" => return Self::metadata(),
            (Self::Custom(node), Step::Field(name)) => return node.field(name).map_or(Self::Unknown, Self::Custom),
            (Self::Custom(node), Step::Element(_)) => return node.each().map_or(Self::Unknown, Self::Custom),
            (Self::Known(form, declared), _) => (form, declared),
            (Self::Custom(_) | Self::Root | Self::Unknown, _) => return Self::Unknown,
        };
        match (form, step) {
            (Form { many: Many::List, base }, Step::Element(_)) => Self::Known(one(base), &NOTHING),
            (Form { many: Many::Map, base }, Step::Field(_)) => {
                Self::Known(Form { many: Many::Optional, base }, &NOTHING)
            }
            (Form { many: Many::One | Many::Optional, base: Base::Struct(id) }, Step::Field(name)) => {
                catalogue().field(id, name).map_or(Self::Unknown, |field| Self::Known(field.form, &field.declared))
            }
            // What a manager owns has the form of the object, with other names.
            (Form { many: Many::One | Many::Optional, base: Base::Fields }, _) => Self::Known(form, declared),
            _ => Self::Unknown,
        }
    }

    /// Whether what is there is one value.
    pub fn is_one_value(self) -> bool {
        self.shape() == Shape::Atomic
    }

    /// The fields of the struct there that come from one side with that one.
    pub fn together_with(self, field: &str) -> Option<&'static Together> {
        self.together().iter().find(|one| one.fields.contains(&field))
    }

    /// Whether another version of the kind has that field there, and this one has not or means otherwise by it.
    pub fn is_strange(self, field: &str) -> bool {
        matches!(self, Self::Custom(node) if node.strange.contains(field))
    }

    /// How the parts of what is there merge.
    pub fn shape(self) -> Shape<'a> {
        declared(self)
    }

    /// At the metadata of an object.
    fn metadata() -> Self {
        catalogue().metadata().map_or(Self::Unknown, |id| Self::Known(one(Base::Struct(id)), &NOTHING))
    }

    /// The fields of the struct there that come from one side.
    pub fn together(self) -> &'static [Together] {
        match self {
            Self::Known(Form { many: Many::One | Many::Optional, base: Base::Struct(id) }, _) => {
                &catalogue().of(id).together
            }
            _ => &[],
        }
    }
}

/// How the parts of a value merge as the catalogue says, or the schema of a custom resource.
fn declared(spot: Spot<'_>) -> Shape<'_> {
    let (form, declared) = match spot {
        Spot::Known(form, declared) => (form, declared),
        Spot::Custom(node) => {
            return match &node.how {
                How::Plain => Shape::Plain,
                How::Atomic => Shape::Atomic,
                How::Struct => Shape::Optional,
                How::Set => Shape::Set,
                How::Keyed(keys) => Shape::Keyed(keys),
            };
        }
        Spot::Root | Spot::Unknown => return Shape::Plain,
    };
    let is_one = matches!(form.many, Many::One | Many::Optional);
    match (declared, form.base) {
        (Declared::Keyed(keys), _) => Shape::Keyed(keys),
        (Declared::Set, _) => Shape::Set,
        (Declared::Atomic, _) => Shape::Atomic,
        (_, Base::Struct(id)) if is_one && catalogue().of(id).atomic => Shape::Atomic,
        (_, Base::Struct(_)) if form.many == Many::Optional => Shape::Optional,
        (_, Base::Raw | Base::AnyJson | Base::SchemaOrBool | Base::SchemaOrList | Base::SchemaOrStrings) if is_one => {
            Shape::Atomic
        }
        // The fields that a manager owns are a set of paths.
        _ => Shape::Plain,
    }
}

/// Leaves out of an object of that kind what says nothing.
pub fn normalise(api_version: &str, kind: &str, object: &mut Fields) {
    if let Some(id) = catalogue().kind(api_version, kind) {
        normal::fields(object, id);
    } else if let (Some(id), Some(Json::Map(metadata))) = (catalogue().metadata(), object.get_mut("metadata")) {
        normal::fields(metadata, id);
    }
}

/// The types of Secrets whose data is a pair or a file.
const WHOLE_SECRETS: &[&str] = &[
    "kubernetes.io/tls",
    "kubernetes.io/basic-auth",
    "kubernetes.io/ssh-auth",
    "kubernetes.io/dockercfg",
    "kubernetes.io/dockerconfigjson",
    "kubernetes.io/service-account-token",
    "bootstrap.kubernetes.io/token",
];

/// One manager has an entry for each of these.
const MANAGED_FIELDS: &[Key] = &[
    Key::or("manager", "\"\""),
    Key::or("operation", "\"\""),
    Key::or("apiVersion", "\"\""),
    Key::or("subresource", "\"\""),
];

const fn key(name: &'static str) -> Key {
    Key::new(name)
}

/// How the parts of a value of a kind that is not built in merge.
fn by_place(path: &Path, field: &str) -> Shape<'static> {
    let parent = match path.parent() {
        Some(Step::Field(name)) => name.as_str(),
        _ => "",
    };
    let in_element = matches!(path.parent(), Some(Step::Element(_)));
    let keys: &'static [Key] = match (parent, field) {
        ("spec" | "status", "conditions") => const { &[key("type")] },
        ("spec", "containers" | "initContainers" | "ephemeralContainers") => const { &[key("name")] },
        ("spec", "volumes" | "imagePullSecrets" | "resourceClaims" | "schedulingGates") => const { &[key("name")] },
        ("spec", "hostAliases") => const { &[key("ip")] },
        ("spec", "topologySpreadConstraints") => const { &[key("topologyKey"), key("whenUnsatisfiable")] },
        (_, "ports") if in_element => const { &[key("containerPort"), Key::or("protocol", "\"TCP\"")] },
        (_, "env") if in_element => const { &[key("name")] },
        (_, "volumeMounts") if in_element => const { &[key("mountPath")] },
        (_, "volumeDevices") if in_element => const { &[key("devicePath")] },
        _ => return Shape::Plain,
    };
    Shape::Keyed(keys)
}
