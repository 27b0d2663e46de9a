//! What a user of Kubernetes sees after sites that could not hear each other meet again.

use eddy_crdt::merge::{self, CounterRule, Json, MergeOutcome, RuleBook, Rules, Version};
use eddy_crdt::{AnnouncedBirth, Birth, Keyspace, LeaseId, ReplicaId, Rule, SystemKey, lease_ttl, lease_value};

use super::edits::{get, number, parse, set, string, unset};
use super::numbers::is_needless;
use super::objects::{DEPLOYMENT, LEASE, NODE, POD, SERVICE};
use super::sites::{Place, Sites};

/// Sites that all hold an object.
fn sites_with(text: &str, count: usize) -> Sites {
    let mut sites = Sites::new(Place::client("/registry/things/default/a"), count);
    sites.put(0, text.to_owned());
    sites.sync_all();
    sites
}

fn object(sites: &Sites, site: usize) -> Json {
    let live = sites.live(site).expect("the object is there");
    parse(std::str::from_utf8(&live.value).expect("text"))
}

/// A site changes its object.
fn change(sites: &mut Sites, site: usize, edit: impl FnOnce(&mut Json)) {
    let mut object = object(sites, site);
    edit(&mut object);
    sites.put(site, object.canonical());
}

fn field<'a>(object: &'a Json, path: &[&str]) -> Option<&'a str> {
    get(object, path).and_then(Json::as_str)
}

/// Everybody meets; all see the same.
fn meet(sites: &mut Sites) -> (MergeOutcome, Json) {
    sites.sync_all();
    let outcome = sites.outcome(0);
    assert_eq!(sites.outcome(1), outcome);
    let value = outcome.live.as_ref().map_or(Json::Null, |live| Json::parse(&live.value).unwrap_or(Json::Null));
    (outcome, value)
}

fn given_up(outcome: &MergeOutcome) -> Vec<String> {
    outcome.given_up.iter().map(|given_up| given_up.part.to_string()).collect()
}

fn condition(kind: &str, status: &str) -> Json {
    parse(&format!(r#"{{"type":"{kind}","status":"{status}"}}"#))
}

/// Replaces the condition of that type, or adds it.
fn set_condition(object: &mut Json, kind: &str, status: &str) {
    let mut conditions = match get(object, &["status", "conditions"]) {
        Some(Json::List(list)) => list.clone(),
        _ => vec![],
    };
    conditions.retain(|condition| field(condition, &["type"]) != Some(kind));
    conditions.push(condition(kind, status));
    set(object, &["status", "conditions"], Json::List(conditions));
}

fn status_of(object: &Json, kind: &str) -> Option<String> {
    let Some(Json::List(list)) = get(object, &["status", "conditions"]) else { return None };
    let found = list.iter().find(|condition| field(condition, &["type"]) == Some(kind))?;
    field(found, &["status"]).map(str::to_owned)
}

#[test]
fn of_two_objects_of_one_name_the_one_created_first_stays_and_nothing_of_the_other() {
    let mut sites = Sites::new(Place::client("/registry/deployments/default/web"), 2);
    sites.put(0, DEPLOYMENT);
    sites.put(1, DEPLOYMENT.replace("5f0f5ad4", "eeeeeeee").replace("1.2.3", "9.9.9"));
    let before = sites.live(1).expect("there");
    let (outcome, _) = meet(&mut sites);
    let after = outcome.live.clone().expect("there");
    assert_eq!((outcome.rule, &after.value[..]), (Some(Rule::CreatedFirst), DEPLOYMENT.as_bytes()));
    assert_eq!(given_up(&outcome), ["its whole value"]);
    // The site whose object went shows its clients a delete and then a create.
    let Place { rules, keyspace, key } = &sites.place;
    assert!(merge::replaces(rules.current(), *keyspace, key, &before, &after));
}

#[test]
fn elsewhere_the_one_created_last_stays() {
    let mut sites = Sites::new(Place::client("my/key"), 2);
    sites.put(0, "first");
    sites.put(1, "second");
    let (outcome, _) = meet(&mut sites);
    assert_eq!(outcome.rule, Some(Rule::CreatedLast));
    assert_eq!(&outcome.live.expect("there").value[..], b"second");
}

#[test]
fn a_pod_bound_by_two_schedulers_stays_where_it_was_bound_first_with_that_status() {
    let mut sites = sites_with(POD, 3);
    let zone = ["metadata", "labels", "topology.kubernetes.io/zone"];
    for (site, node, of_node) in [(0, "edge-1", "east"), (1, "edge-2", "west")] {
        change(&mut sites, site, |pod| {
            set(pod, &["spec", "nodeName"], string(node));
            set(pod, &zone, string(of_node));
        });
    }
    change(&mut sites, 1, |pod| {
        set(pod, &["status", "phase"], string("Running"));
        set(pod, &["status", "hostIP"], string("10.0.0.2"));
        set_condition(pod, "Ready", "True");
    });
    change(&mut sites, 0, |pod| {
        set(pod, &["status", "hostIP"], string("10.0.0.1"));
        set_condition(pod, "PodScheduled", "True");
    });
    change(&mut sites, 2, |pod| set(pod, &["metadata", "labels", "zone"], string("north")));
    let before = sites.live(1).expect("there");
    let (outcome, pod) = meet(&mut sites);
    assert_eq!(field(&pod, &["spec", "nodeName"]), Some("edge-1"));
    assert_eq!(field(&pod, &["status", "phase"]), Some("Pending"));
    assert_eq!(field(&pod, &["status", "hostIP"]), Some("10.0.0.1"));
    assert_eq!((status_of(&pod, "PodScheduled").as_deref(), status_of(&pod, "Ready")), (Some("True"), None));
    assert_eq!(field(&pod, &["metadata", "labels", "zone"]), Some("north"));
    assert_eq!(field(&pod, &zone), Some("east"), "the binding copies it from the node");
    assert!(outcome.replaced);
    let after = outcome.live.clone().expect("there");
    let Place { rules, keyspace, key } = &sites.place;
    assert!(merge::replaces(rules.current(), *keyspace, key, &before, &after), "edge-2's scheduler must see it go");
    assert!(given_up(&outcome).iter().any(|what| what.contains(".spec.nodeName")), "{:?}", outcome.given_up);
}

/// Seen with three real control planes. A third site heard of both bindings, but not yet of the status from the first
/// node. Its scheduler wrote another condition on top of that. This write must not carry the status that the scheduler
/// merely saw: the pod stayed `Pending` for ever while it ran.
#[test]
fn a_third_site_that_saw_both_bindings_does_not_undo_the_status_of_the_node_that_the_pod_stays_on() {
    let mut sites = sites_with(POD, 3);
    change(&mut sites, 0, |pod| set(pod, &["spec", "nodeName"], string("edge-1")));
    sites.sync(0, 2);
    change(&mut sites, 0, |pod| {
        set(pod, &["status", "phase"], string("Running"));
        set(pod, &["status", "podIP"], string("10.0.1.1"));
        set_condition(pod, "Ready", "True");
    });
    change(&mut sites, 1, |pod| set(pod, &["spec", "nodeName"], string("edge-2")));
    change(&mut sites, 1, |pod| {
        set(pod, &["status", "phase"], string("Failed"));
        set(pod, &["status", "podIP"], string("10.0.2.2"));
    });
    sites.sync(1, 2);
    assert_eq!(field(&object(&sites, 2), &["status", "phase"]), Some("Pending"));
    change(&mut sites, 2, |pod| set_condition(pod, "Noted", "True"));
    change(&mut sites, 2, |pod| set(pod, &["metadata", "labels", "zone"], string("north")));
    let (outcome, pod) = meet(&mut sites);
    assert_eq!(field(&pod, &["spec", "nodeName"]), Some("edge-1"));
    assert_eq!(field(&pod, &["status", "phase"]), Some("Running"));
    assert_eq!(field(&pod, &["status", "podIP"]), Some("10.0.1.1"));
    assert_eq!(status_of(&pod, "Ready").as_deref(), Some("True"));
    assert_eq!(status_of(&pod, "Noted").as_deref(), Some("True"));
    assert_eq!(field(&pod, &["metadata", "labels", "zone"]), Some("north"));
    // Nothing that the third site wrote itself was given up.
    let third = sites.known(2).last().expect("written").dot.origin.replica;
    assert!(outcome.given_up.iter().all(|given| given.dot.origin.replica != third), "{:?}", outcome.given_up);
}

#[test]
fn the_first_binding_wins_although_its_site_wrote_last() {
    let mut sites = sites_with(POD, 2);
    change(&mut sites, 0, |pod| set(pod, &["spec", "nodeName"], string("edge-1")));
    change(&mut sites, 1, |pod| set(pod, &["spec", "nodeName"], string("edge-2")));
    for phase in ["Running", "Failed", "Running"] {
        change(&mut sites, 0, |pod| set(pod, &["status", "phase"], string(phase)));
    }
    let versions = sites.history.clone();
    let (_, pod) = meet(&mut sites);
    assert_eq!(field(&pod, &["spec", "nodeName"]), Some("edge-1"));
    // Also when the site has forgotten the middle of what it wrote.
    let place = &sites.place;
    let mut window = place.window(&versions);
    let dropped = window.drop_middles(&place.rules, 1, place.keyspace, place.key, |_, _| true);
    assert_eq!(dropped.len(), 2, "the binding is kept");
    assert_eq!(place.outcome(&window).live, sites.live(0));
}

#[test]
fn a_pod_bound_at_one_site_and_labelled_at_another_is_both_and_no_new_life() {
    let mut sites = sites_with(POD, 2);
    change(&mut sites, 0, |pod| {
        set(pod, &["spec", "nodeName"], string("edge-1"));
        set(pod, &["status", "phase"], string("Running"));
    });
    change(&mut sites, 1, |pod| set(pod, &["metadata", "labels", "zone"], string("north")));
    let before = sites.live(1).expect("there");
    let (outcome, pod) = meet(&mut sites);
    assert_eq!(field(&pod, &["spec", "nodeName"]), Some("edge-1"));
    assert_eq!(field(&pod, &["status", "phase"]), Some("Running"));
    assert_eq!(field(&pod, &["metadata", "labels", "zone"]), Some("north"));
    assert!(!outcome.replaced && outcome.given_up.is_empty(), "{outcome:?}");
    let after = outcome.live.expect("there");
    assert!(!merge::replaces(sites.place.rules.current(), Keyspace::Client, sites.place.key, &before, &after));
}

#[test]
fn a_deployment_scaled_twice_has_the_last_number_and_a_generation_above_both() {
    let mut sites = sites_with(DEPLOYMENT, 2);
    for (site, replicas) in [(0, 5), (1, 7)] {
        change(&mut sites, site, |deployment| {
            set(deployment, &["spec", "replicas"], number(replicas));
            set(deployment, &["metadata", "generation"], number(5));
            set(deployment, &["status", "observedGeneration"], number(5));
        });
    }
    let (outcome, deployment) = meet(&mut sites);
    assert_eq!(outcome.rule, Some(Rule::FieldMerge));
    assert_eq!(get(&deployment, &["spec", "replicas"]), Some(&number(7)));
    assert_eq!(get(&deployment, &["metadata", "generation"]), Some(&number(6)), "no controller has seen this one");
    assert_eq!(given_up(&outcome), [".spec.replicas"]);
}

#[test]
fn replicas_that_are_declared_a_counter_add_up_but_never_below_the_minimum() {
    let counter = CounterRule {
        api_version: "apps/v1".to_owned(),
        kind: "Deployment".to_owned(),
        path: ".spec.replicas".to_owned(),
        minimum: Some(0),
    };
    let rules = Rules { counters: vec![counter], ..Rules::default() };
    for (first, second, sum) in [(5, 4, 6), (2, 1, 0), (0, 0, 0)] {
        let mut sites = Sites::new(Place { rules: rules.clone().into(), ..Place::client("/registry/d/x/a") }, 3);
        sites.put(0, DEPLOYMENT);
        sites.sync_all();
        change(&mut sites, 0, |deployment| set(deployment, &["spec", "replicas"], number(first)));
        change(&mut sites, 1, |deployment| set(deployment, &["spec", "replicas"], number(second)));
        sites.sync(0, 2);
        sites.sync(1, 2);
        assert_eq!(get(&object(&sites, 2), &["spec", "replicas"]), Some(&number(sum)));
        // Who has seen the clamped sum and adds to it gets what it asked for.
        change(&mut sites, 2, |deployment| set(deployment, &["spec", "replicas"], number(sum + 2)));
        change(&mut sites, 0, |deployment| set(deployment, &["metadata", "labels", "x"], string("y")));
        let (_, deployment) = meet(&mut sites);
        assert_eq!(get(&deployment, &["spec", "replicas"]), Some(&number(sum + 2)));
    }
}

#[test]
fn a_counter_below_its_minimum_is_raised_by_what_is_added_and_by_nothing_else() {
    let counters = merge::counters("apps/v1/Deployment:.spec.replicas:min=5").unwrap();
    // What the first site makes of 3, one after the other.
    for (steps, shown) in [(&[4, 3][..], 3), (&[3], 3), (&[2, 4], 5), (&[9], 9)] {
        let rules = Rules { counters: counters.clone(), ..Rules::default() };
        let mut sites = Sites::new(Place { rules: rules.into(), ..Place::client("/registry/d/x/a") }, 2);
        sites.put(0, DEPLOYMENT);
        sites.sync_all();
        for step in steps {
            change(&mut sites, 0, |deployment| set(deployment, &["spec", "replicas"], number(*step)));
        }
        change(&mut sites, 1, |deployment| set(deployment, &["metadata", "labels", "x"], string("y")));
        let (_, deployment) = meet(&mut sites);
        assert_eq!(get(&deployment, &["spec", "replicas"]), Some(&number(shown)), "{steps:?}");
        // With the last of these steps alone, which stands for the others.
        let (place, mut window) = (&sites.place, sites.place.window(&sites.history));
        window.drop_middles(&place.rules, 1, place.keyspace, place.key, |_, _| true);
        let left = place.outcome(&window).live.and_then(|live| Json::parse(&live.value));
        assert_eq!(left, Some(deployment), "{steps:?}");
    }
}

/// What two versions stand on may be no object when a third one has left. Then they cannot be merged field by field on that.
#[test]
fn what_is_no_object_is_not_left_alone_for_objects_to_stand_on() {
    let pod = |spec: &str| format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"x","uid":"u"}}{spec}}}"#);
    let mut sites = sites_with(&pod(r#","spec":{"hostname":"a"}"#), 2);
    sites.put(1, pod(r#","spec":{"hostname":"a"},"weight":2"#));
    sites.put(0, "no object");
    sites.sync(0, 1);
    sites.put(1, pod(r#","spec":{"hostname":"a"},"weight":4"#));
    sites.put(0, pod(r#","weight":1"#));
    let (outcome, _) = meet(&mut sites);
    let (place, mut window) = (&sites.place, sites.place.window(&sites.history));
    let droppable = |version: &Version, stands: &Version| is_needless(&sites.history, version, stands);
    window.drop_middles(&place.rules, 1, place.keyspace, place.key, droppable);
    assert_eq!(place.outcome(&window).live, outcome.live);
}

#[test]
fn what_is_declared_one_value_comes_from_one_side() {
    let rules = Rules { atomic: merge::atomic("apps/v1/Deployment:.spec.template", &[]).unwrap(), ..Rules::default() };
    for (rules, is_mixed) in [(rules, false), (Rules::default(), true)] {
        let mut sites = Sites::new(Place { rules: rules.into(), ..Place::client("/registry/d/x/a") }, 2);
        sites.put(0, DEPLOYMENT);
        sites.sync_all();
        let (labels, pod) = (["spec", "template", "metadata", "labels", "x"], ["spec", "template", "spec", "hostname"]);
        change(&mut sites, 0, |deployment| set(deployment, &labels, string("y")));
        change(&mut sites, 0, |deployment| set(deployment, &["spec", "replicas"], number(9)));
        change(&mut sites, 1, |deployment| set(deployment, &pod, string("h")));
        let (outcome, deployment) = meet(&mut sites);
        assert_eq!(get(&deployment, &["spec", "replicas"]), Some(&number(9)), "not in the template");
        assert_eq!(get(&deployment, &pod), Some(&string("h")));
        assert_eq!(get(&deployment, &labels), is_mixed.then(|| string("y")).as_ref());
        assert_eq!(given_up(&outcome), if is_mixed { &[][..] } else { &[".spec.template"] });
    }
}

#[test]
fn different_conditions_are_all_kept_and_of_the_same_one_the_last() {
    let mut sites = sites_with(NODE, 3);
    change(&mut sites, 0, |node| set_condition(node, "NetworkUnavailable", "False"));
    change(&mut sites, 1, |node| {
        set_condition(node, "DiskPressure", "True");
        set_condition(node, "Ready", "Unknown");
    });
    change(&mut sites, 2, |node| set_condition(node, "Ready", "False"));
    let (outcome, node) = meet(&mut sites);
    for (kind, status) in
        [("NetworkUnavailable", "False"), ("DiskPressure", "True"), ("Ready", "False"), ("MemoryPressure", "False")]
    {
        assert_eq!(status_of(&node, kind).as_deref(), Some(status), "{kind}");
    }
    assert_eq!(given_up(&outcome), [r#".status.conditions[type="Ready"]"#]);
}

#[test]
fn a_condition_that_one_site_removed_is_gone_although_another_edited_it() {
    let mut sites = sites_with(NODE, 2);
    change(&mut sites, 0, |node| set(node, &["status", "conditions"], Json::List(vec![condition("Ready", "True")])));
    change(&mut sites, 1, |node| set_condition(node, "DiskPressure", "True"));
    let (outcome, node) = meet(&mut sites);
    assert_eq!((status_of(&node, "Ready").as_deref(), status_of(&node, "DiskPressure")), (Some("True"), None));
    assert_eq!(given_up(&outcome), [r#".status.conditions[type="DiskPressure"]"#]);
}

#[test]
fn finalizers_are_a_set() {
    let mut sites = sites_with(NODE, 2);
    let list = |names: &[&str]| Json::List(names.iter().map(|name| string(*name)).collect());
    change(&mut sites, 0, |node| set(node, &["metadata", "finalizers"], list(&["example.com/b"])));
    change(&mut sites, 1, |node| {
        set(node, &["metadata", "finalizers"], list(&["example.com/b", "example.com/a", "example.com/c"]));
    });
    let (outcome, node) = meet(&mut sites);
    assert_eq!(get(&node, &["metadata", "finalizers"]), Some(&list(&["example.com/b", "example.com/c"])));
    assert_eq!(outcome.given_up, []);
}

#[test]
fn what_one_site_deletes_and_another_edits_is_deleted() {
    let mut sites = sites_with(DEPLOYMENT, 2);
    change(&mut sites, 0, |deployment| set(deployment, &["spec", "replicas"], number(9)));
    sites.delete(1);
    let (outcome, _) = meet(&mut sites);
    assert_eq!((outcome.live.clone(), outcome.rule), (None, Some(Rule::DeletedIncarnation)));
    assert_eq!(given_up(&outcome), ["its whole value"]);
}

#[test]
fn what_one_site_deletes_and_creates_again_is_the_new_one() {
    let mut sites = sites_with(DEPLOYMENT, 2);
    let created_again = DEPLOYMENT.replace("5f0f5ad4", "eeeeeeee");
    sites.delete(0);
    sites.put(0, created_again.clone());
    change(&mut sites, 1, |deployment| set(deployment, &["spec", "replicas"], number(9)));
    let (outcome, _) = meet(&mut sites);
    assert_eq!(&outcome.live.expect("there").value[..], created_again.as_bytes());
    assert_eq!(outcome.rule, Some(Rule::DeletedIncarnation));
}

#[test]
fn a_delete_takes_every_object_of_that_name_that_it_saw() {
    let mut sites = Sites::new(Place::client("/registry/deployments/default/web"), 3);
    sites.put(0, DEPLOYMENT);
    sites.put(1, DEPLOYMENT.replace("5f0f5ad4", "eeeeeeee"));
    // One site sees both, of which the first stays, and deletes it; meanwhile the second is changed where it was made.
    sites.sync(0, 2);
    sites.sync(1, 2);
    sites.delete(2);
    change(&mut sites, 1, |deployment| set(deployment, &["spec", "replicas"], number(9)));
    let (outcome, _) = meet(&mut sites);
    assert_eq!((outcome.live, outcome.rule), (None, Some(Rule::DeletedIncarnation)));
}

#[test]
fn a_create_that_a_delete_did_not_see_lives() {
    let mut sites = sites_with(DEPLOYMENT, 2);
    sites.delete(0);
    sites.sync_all();
    sites.put(0, DEPLOYMENT.replace("5f0f5ad4", "eeeeeeee"));
    sites.delete(1);
    let (outcome, deployment) = meet(&mut sites);
    assert_eq!(outcome.rule, Some(Rule::OutlivedDelete));
    assert!(field(&deployment, &["metadata", "uid"]).is_some_and(|uid| uid.starts_with("eeeeeeee")));
}

#[test]
fn an_expiry_takes_nothing_that_was_written_at_the_same_time() {
    for key in ["/registry/things/default/a", "elsewhere"] {
        let mut sites = Sites::new(Place::client(key), 2);
        sites.put_with(0, "alive", Some(LeaseId::new(3)));
        sites.sync_all();
        sites.expire(0);
        sites.put_with(1, "renewed", Some(LeaseId::new(4)));
        let (outcome, _) = meet(&mut sites);
        let live = outcome.live.clone().expect("there");
        assert_eq!((&live.value[..], live.lease, live.version), (&b"renewed"[..], Some(LeaseId::new(4)), 2));
        assert_eq!((outcome.rule, given_up(&outcome)), (Some(Rule::OutlivedDelete), vec!["its expiry".to_owned()]));
    }
}

#[test]
fn an_object_that_nobody_understands_is_the_last_writers() {
    let mut sites = sites_with("k8s\0\n\x0b\n\x02v1\x12\x03Pod", 2);
    sites.put(1, "k8s\0 first");
    sites.put(0, "k8s\0 last");
    let (outcome, _) = meet(&mut sites);
    assert_eq!(outcome.rule, Some(Rule::LastWriter));
    let live = outcome.live.clone().expect("there");
    assert_eq!((&live.value[..], live.version), (&b"k8s\0 last"[..], 3));
}

/// A claim to lead, as client-go writes it.
fn claim(lease: &mut Json, holder: &str, transitions: i64, acquired: &str, renewed: &str) {
    set(lease, &["spec", "holderIdentity"], string(holder));
    set(lease, &["spec", "leaseTransitions"], number(transitions));
    set(lease, &["spec", "acquireTime"], string(format!("2026-01-02T{acquired}.000000Z")));
    set(lease, &["spec", "renewTime"], string(format!("2026-01-02T{renewed}.000000Z")));
}

#[test]
fn of_two_leaders_the_one_that_took_over_more_often_leads() {
    let mut sites = sites_with(LEASE, 2);
    change(&mut sites, 1, |lease| claim(lease, "b_1", 2, "03:11:00", "03:11:00"));
    change(&mut sites, 0, |lease| claim(lease, "a_1", 1, "03:04:05", "03:12:00"));
    let (outcome, lease) = meet(&mut sites);
    assert_eq!(field(&lease, &["spec", "holderIdentity"]), Some("b_1"), "although a_1 renewed later");
    assert_eq!(field(&lease, &["spec", "renewTime"]), Some("2026-01-02T03:11:00.000000Z"), "nothing of a_1's");
    assert_eq!(given_up(&outcome), [".spec"]);
}

#[test]
fn of_two_leaders_that_took_over_at_once_the_earlier_leads() {
    let mut sites = sites_with(LEASE, 3);
    change(&mut sites, 0, |lease| claim(lease, "c_1", 2, "03:11:01", "03:11:05"));
    change(&mut sites, 1, |lease| claim(lease, "b_1", 2, "03:11:00", "03:11:00"));
    change(&mut sites, 2, |lease| claim(lease, "a_2", 2, "03:11:01", "03:11:09"));
    let (_, lease) = meet(&mut sites);
    assert_eq!(field(&lease, &["spec", "holderIdentity"]), Some("b_1"));
}

#[test]
fn of_one_leader_the_last_renewal_counts_although_another_site_wrote_later() {
    let mut sites = sites_with(LEASE, 2);
    change(&mut sites, 0, |lease| claim(lease, "a_1", 1, "03:04:05", "03:15:00"));
    change(&mut sites, 1, |lease| {
        claim(lease, "a_1", 1, "03:04:05", "03:12:00");
        set(lease, &["metadata", "labels", "seen"], string("yes"));
    });
    let (_, lease) = meet(&mut sites);
    assert_eq!(field(&lease, &["spec", "renewTime"]), Some("2026-01-02T03:15:00.000000Z"));
    assert_eq!(field(&lease, &["metadata", "labels", "seen"]), Some("yes"));
}

#[test]
fn what_kubernetes_sets_once_is_what_was_set_first() {
    let place = |kind: &str, path: &[&str]| {
        let mut object = parse(r#"{"apiVersion":"v1","metadata":{"name":"a","uid":"u"},"spec":{"x":1}}"#);
        set(&mut object, &["kind"], string(kind));
        let mut sites = sites_with(&object.canonical(), 2);
        let value = |n: i64| parse(&format!(r#"{{"name":"{n}","uid":"{n}"}}"#));
        change(&mut sites, 1, |object| set(object, path, value(1)));
        change(&mut sites, 0, |object| set(object, path, value(2)));
        let (outcome, object) = meet(&mut sites);
        (get(&object, path).cloned(), value(1), value(2), outcome.given_up.len())
    };
    for (kind, path) in [
        ("PersistentVolumeClaim", ["spec", "volumeName"]),
        ("PersistentVolume", ["spec", "claimRef"]),
        ("Node", ["spec", "podCIDR"]),
        ("Node", ["spec", "podCIDRs"]),
        ("Node", ["spec", "providerID"]),
    ] {
        let (got, first, _, given_up) = place(kind, &path);
        assert_eq!((got, given_up), (Some(first), 1), "{kind} {path:?}");
    }
    let (got, _, last, _) = place("ConfigMap", &["spec", "volumeName"]);
    assert_eq!(got, Some(last));
}

#[test]
fn ports_of_one_number_and_two_protocols_are_two() {
    let mut sites = sites_with(SERVICE, 2);
    change(&mut sites, 0, |service| {
        let text = service
            .canonical()
            .replace(r#""port":53,"protocol":"UDP","targetPort":5353"#, r#""port":53,"protocol":"UDP","targetPort":1"#);
        *service = parse(&text);
    });
    change(&mut sites, 1, |service| {
        let text = service
            .canonical()
            .replace(r#""port":53,"protocol":"TCP","targetPort":5353"#, r#""port":53,"protocol":"TCP","targetPort":2"#);
        *service = parse(&text);
    });
    let (outcome, service) = meet(&mut sites);
    let text = service.canonical();
    assert!(text.contains(r#""protocol":"UDP","targetPort":1"#) && text.contains(r#""protocol":"TCP","targetPort":2"#));
    assert_eq!(outcome.given_up, []);
}

#[test]
fn two_replicas_that_both_create_status_lose_nothing() {
    let mut bare = parse(DEPLOYMENT);
    unset(&mut bare, &["status"]);
    let mut sites = sites_with(&bare.canonical(), 2);
    change(&mut sites, 0, |object| set(object, &["status", "replicas"], number(3)));
    change(&mut sites, 1, |object| set(object, &["status", "collisionCount"], number(2)));
    let (_, object) = meet(&mut sites);
    assert_eq!(get(&object, &["status", "replicas"]), Some(&number(3)));
    assert_eq!(get(&object, &["status", "collisionCount"]), Some(&number(2)));
}

#[test]
fn a_merged_value_is_above_its_heads_and_hangs_on_the_last_writers_lease() {
    let mut sites = sites_with(DEPLOYMENT, 3);
    for n in 0..3 {
        change(&mut sites, 0, |object| set(object, &["metadata", "labels", "n"], number(n)));
    }
    let mut other = object(&sites, 1);
    set(&mut other, &["metadata", "labels", "m"], number(1));
    sites.put_with(1, other.canonical(), Some(LeaseId::new(9)));
    let (outcome, _) = meet(&mut sites);
    let live = outcome.live.expect("there");
    assert_eq!((live.version, live.lease), (5, Some(LeaseId::new(9))));
}

#[test]
fn one_lease_granted_twice_is_the_longer_one_and_a_renewal_outlives_an_expiry() {
    let key: &'static [u8] = Box::leak(SystemKey::Lease(LeaseId::new(5)).encode().to_vec().into());
    let place = Place { rules: RuleBook::default(), keyspace: Keyspace::System, key };
    let mut sites = Sites::new(place, 2);
    sites.put(0, lease_value(60, ReplicaId::new(1)));
    sites.put(1, lease_value(10, ReplicaId::new(1)));
    let (outcome, _) = meet(&mut sites);
    assert_eq!(outcome.rule, Some(Rule::LongestLease));
    assert_eq!(lease_ttl(&outcome.live.expect("there").value), Some(60));
    sites.expire(0);
    sites.put(1, lease_value(60, ReplicaId::new(1)));
    assert!(meet(&mut sites).0.live.is_some());
    sites.put(0, lease_value(60, ReplicaId::new(1)));
    sites.delete(1);
    assert_eq!(meet(&mut sites).0.live, None, "revoked");
}

#[test]
fn of_two_births_announced_apart_none_counts_until_one_is_announced_again() {
    let key: &'static [u8] = Box::leak(SystemKey::Birth(ReplicaId::new(5)).encode().to_vec().into());
    let place = Place { rules: RuleBook::default(), keyspace: Keyspace::System, key };
    let mut sites = Sites::new(place, 3);
    let announced = |birth| AnnouncedBirth::One(Birth::new(birth)).encode();
    let contested = AnnouncedBirth::Contested.encode();
    for (births, value, rule) in [([7, 8], contested, Rule::ContestedBirth), ([8, 8], announced(8), Rule::LastWriter)] {
        sites.put(0, announced(births[0]));
        sites.put(1, announced(births[1]));
        let (outcome, _) = meet(&mut sites);
        assert_eq!((outcome.live.map(|live| live.value), outcome.rule), (Some(value), Some(rule)));
        sites.put(2, announced(8));
        assert_eq!(meet(&mut sites).0.live.map(|live| live.value), Some(announced(8)));
    }
}

#[test]
fn many_writes_of_one_site_are_as_few_as_their_last() {
    let mut sites = Sites::new(Place::client("elsewhere"), 1);
    let place = sites.place.clone();
    let mut window = place.window([]);
    for n in 0..2_000 {
        sites.put(0, n.to_string());
        if n % 50 == 49 {
            sites.delete(0);
        }
    }
    sites.history.iter().for_each(|version| window.add(version.clone()));
    assert!(window.is_chain());
    let expected = place.outcome(&window);
    window.drop_middles(&place.rules, 1, place.keyspace, place.key, |_, _| true);
    assert_eq!((window.versions().len(), place.outcome(&window)), (1, expected));
}
