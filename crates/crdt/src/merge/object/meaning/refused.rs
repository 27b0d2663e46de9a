//! What kube-apiserver would refuse: fields that are each right by themselves and not beside each other.
//!
//! A merge of two sides can make such an object where each side's is right. [`check`] tells what is wrong in an object, and the
//! smallest part that puts it right when all of it comes from one side. Fields of one struct that are never right apart are no
//! matter of this table: they merge together, as the schema says.

use std::collections::BTreeSet;

use super::super::json::Json;
use super::place::{Place, int, is_true, list, text};
use super::quantity;

/// Something that would be refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// What is wrong.
    pub why: &'static str,
    /// What must come from one side.
    pub unit: Vec<Place>,
}

/// Where the pods of a kind are described.
fn pods(api_version: &str, kind: &str) -> Option<Place> {
    let way: &[&str] = match (api_version.split('/').next()?, kind) {
        ("v1", "Pod") => &["spec"],
        ("v1", "PodTemplate") => &["template", "spec"],
        ("v1", "ReplicationController")
        | ("apps" | "extensions", "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet")
        | ("batch", "Job") => &["spec", "template", "spec"],
        ("batch", "CronJob") => &["spec", "jobTemplate", "spec", "template", "spec"],
        _ => return None,
    };
    Some(Place::of(way))
}

/// The places whose fields are checked beside each other.
pub fn watched(api_version: &str, kind: &str) -> Vec<Place> {
    let mut places: Vec<Place> = pods(api_version, kind).into_iter().collect();
    let group = api_version.split('/').next().unwrap_or_default();
    let fields: &[&'static str] = match (group, kind) {
        ("autoscaling", "HorizontalPodAutoscaler") => &["minReplicas", "maxReplicas"],
        ("apps" | "extensions", "Deployment") => &["minReadySeconds", "progressDeadlineSeconds"],
        ("v1", "Service") => &["ports"],
        ("v1", "ResourceQuota") => &["scopes", "scopeSelector", "hard"],
        ("networking.k8s.io" | "extensions", "Ingress") => &["defaultBackend", "backend", "rules"],
        _ => &[],
    };
    places.extend(fields.iter().map(|name| Place::of(&["spec"]).field(name)));
    places
}

/// What is wrong in an object of that kind.
pub fn check(api_version: &str, kind: &str, object: &Json) -> Vec<Refused> {
    let mut refused = vec![];
    if let Some(place) = pods(api_version, kind)
        && let Some(pod) = place.get(object)
    {
        let claims = object.get("spec").map(|spec| list(spec, "volumeClaimTemplates")).unwrap_or_default();
        let claims = claims.iter().filter_map(|claim| Some(text(claim.get("metadata")?, "name"))).collect();
        of_pod(&place, pod, claims, &mut refused);
    }
    // One of which nothing is set is not written.
    let spec = object.get("spec").unwrap_or(&Json::Null);
    let unit = |fields: &[&'static str]| fields.iter().map(|name| Place::of(&["spec"]).field(name)).collect();
    let mut refuse = |why, fields: &[&'static str]| refused.push(Refused { why, unit: unit(fields) });
    let group = api_version.split('/').next().unwrap_or_default();
    match (group, kind) {
        ("autoscaling", "HorizontalPodAutoscaler") => {
            let most = int(spec, "maxReplicas");
            if int(spec, "minReplicas").zip(most).is_some_and(|(least, most)| least > most) {
                refuse("fewer replicas at most than at least", &["minReplicas", "maxReplicas"]);
            }
        }
        ("apps" | "extensions", "Deployment") => {
            let ready = int(spec, "minReadySeconds").unwrap_or(0);
            if int(spec, "progressDeadlineSeconds").is_some_and(|deadline| deadline <= ready) {
                refuse("a deadline before a pod can be ready", &["minReadySeconds", "progressDeadlineSeconds"]);
            }
        }
        ("v1", "Service") => {
            let ports = list(spec, "ports");
            let names = ports.iter().map(|port| text(port, "name"));
            if (ports.len() > 1 && names.clone().any(str::is_empty)) || has_twice(names.filter(|name| !name.is_empty()))
            {
                refuse("ports with the same name, or none", &["ports"]);
            }
            let protocol = |port| Some(text(port, "protocol")).filter(|name| !name.is_empty()).unwrap_or("TCP");
            let nodes =
                ports.iter().filter_map(|port| Some((int(port, "nodePort").filter(|at| *at != 0)?, protocol(port))));
            if has_twice(nodes) {
                refuse("two ports at one port of nodes", &["ports"]);
            }
        }
        ("v1", "ResourceQuota") if !are_scopes_right(spec) => {
            refuse("scopes that exclude each other, or what is counted", &["scopes", "scopeSelector", "hard"]);
        }
        ("networking.k8s.io" | "extensions", "Ingress")
            if list(spec, "rules").is_empty()
                && spec.get("defaultBackend").is_none()
                && spec.get("backend").is_none() =>
        {
            refuse("neither rules nor a backend", &["defaultBackend", "backend", "rules"]);
        }
        _ => {}
    }
    refused
}

/// Whether something occurs twice.
fn has_twice<T: Ord>(all: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    all.into_iter().any(|one| !seen.insert(one))
}

fn are_scopes_right(spec: &Json) -> bool {
    let has = |wanted: &str| list(spec, "scopes").iter().any(|scope| scope.as_str() == Some(wanted));
    let exclude = (has("BestEffort") && has("NotBestEffort")) || (has("Terminating") && has("NotTerminating"));
    let of_pods = ["pods", "count/pods"];
    let counts_other = match spec.get("hard") {
        Some(Json::Map(hard)) => hard.keys().any(|name| !of_pods.contains(&name.as_str())),
        _ => false,
    };
    let excludes_what_is_counted = has("BestEffort") && counts_other;
    !(exclude || excludes_what_is_counted)
}

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

fn of_pod(place: &Place, pod: &Json, claims: BTreeSet<&str>, refused: &mut Vec<Refused>) {
    let all = || CONTAINERS.iter().flat_map(|field| list(pod, field).iter().map(|container| (*field, container)));
    let mut refuse = |why, unit: Place| refused.push(Refused { why, unit: vec![unit] });
    if has_twice(all().map(|(_, container)| text(container, "name"))) {
        refuse("two containers of one name", place.clone());
    }
    let volumes: BTreeSet<&str> = list(pod, "volumes").iter().map(|volume| text(volume, "name")).collect();
    let is_there = |mount: &Json| volumes.contains(text(mount, "name")) || claims.contains(text(mount, "name"));
    let mounts = |container: &Json| {
        let mounts = list(container, "volumeMounts").iter().chain(list(container, "volumeDevices"));
        mounts.into_iter().all(is_there)
    };
    if !all().all(|(_, container)| mounts(container)) {
        refuse("a mount without its volume", place.clone());
    }
    let on_host = |port: &Json| int(port, "hostPort") == int(port, "containerPort");
    if is_true(pod, "hostNetwork") && !all().all(|(_, container)| list(container, "ports").iter().all(on_host)) {
        refuse("a port that is not the node's in its network", place.clone());
    }
    for (field, container) in all() {
        let here = place.field(field).element("name", text(container, "name"));
        let names = list(container, "ports").iter().map(|port| text(port, "name")).filter(|name| !name.is_empty());
        if has_twice(names) {
            refuse("two ports of one name", here.field("ports"));
        }
        if let Some(resources) = container.get("resources")
            && !quantity::are_within(resources)
        {
            refuse("more is requested than the limit", here.field("resources"));
        }
        if let Some(security) = container.get("securityContext") {
            let is_raised = is_true(security, "privileged");
            if security.get("allowPrivilegeEscalation") == Some(&Json::Bool(false)) && is_raised {
                refuse("privileged and not to become so", here.field("securityContext"));
            }
        }
    }
    if let Some(resources) = pod.get("resources")
        && !quantity::are_within(resources)
    {
        refuse("more is requested than the limit", place.field("resources"));
    }
}
