//! Built-in kinds by Kubernetes' own schema, and objects in its protobuf.

use bytes::Bytes;
use eddy_crdt::Keyspace;
use eddy_crdt::Rule;
use eddy_crdt::merge::{Encoding, Json, Object, RuleBook, begins_anew, peek_node, peek_uid};

use super::edits::{get, parse, set, string, unset};
use super::objects::{DEPLOYMENT, LEASE, NODE, POD, SERVICE};
use super::sites::{Place, Sites};

fn read(value: &[u8]) -> Object {
    Object::parse(value).expect("an object")
}

fn written(json: &Json, encoding: Encoding) -> Bytes {
    Object { json: Json::Null, encoding }.write(json).expect("there is a place for all of it")
}

/// Sites that all hold the object in that encoding.
fn sites_with(text: &str, encoding: Encoding) -> Sites {
    let mut sites = Sites::new(Place::client("/registry/things/default/a"), 2);
    sites.put(0, written(&read(text.as_bytes()).json, encoding));
    sites.sync_all();
    sites
}

/// So many sites that all hold that object.
fn sites_of(object: &Json, encoding: Encoding, count: usize) -> Sites {
    let mut sites = Sites::new(Place::client("/registry/things/default/a"), count);
    sites.put(0, written(object, encoding));
    sites.sync_all();
    sites
}

/// A site changes its object, and writes it in that encoding.
fn change(sites: &mut Sites, site: usize, encoding: Encoding, edit: impl FnOnce(&mut Json)) {
    let mut json = read(&sites.live(site).expect("it is there").value).json;
    edit(&mut json);
    sites.put(site, written(&json, encoding));
}

/// What both see when they have met.
fn meet(sites: &mut Sites) -> Object {
    sites.sync_all();
    assert_eq!(sites.outcome(0), sites.outcome(1));
    assert_eq!(sites.outcome(0).rule, Some(Rule::FieldMerge));
    read(&sites.live(0).expect("it is there").value)
}

fn text<'a>(object: &'a Object, path: &[&str]) -> Option<&'a str> {
    get(&object.json, path).and_then(Json::as_str)
}

const LABEL: &[&str] = &["metadata", "labels", "site"];
const NOTE: &[&str] = &["metadata", "annotations", "note"];

#[test]
fn objects_in_protobuf_are_what_they_are_in_json() {
    for object in [POD, DEPLOYMENT, NODE, LEASE, SERVICE] {
        let json = read(object.as_bytes()).json;
        let raw = written(&json, Encoding::Protobuf);
        assert!(raw.starts_with(b"k8s\0"));
        assert_eq!(read(&raw), Object { json: json.clone(), encoding: Encoding::Protobuf });
        assert_eq!(written(&json, Encoding::Protobuf), raw);
        let (uid, node) =
            (read(object.as_bytes()).uid().map(str::to_owned), read(object.as_bytes()).node().map(str::to_owned));
        assert_eq!(peek_uid(&raw), Some(uid.as_deref().map(str::as_bytes)));
        assert_eq!(peek_node(&raw), node.as_deref().map(str::as_bytes));
        // Cut anywhere it is nothing that is understood, or a shorter object: nothing is made up.
        // The last four bytes say that there is no content encoding or type.
        for cut in 0..raw.len() - 4 {
            assert_ne!(Object::parse(&raw[..cut]).map(|object| object.json).as_ref(), Some(&json));
        }
    }
}

#[test]
fn two_edits_of_an_object_in_protobuf_both_survive_and_it_stays_protobuf() {
    for object in [POD, DEPLOYMENT, NODE, SERVICE] {
        let mut sites = sites_with(object, Encoding::Protobuf);
        change(&mut sites, 0, Encoding::Protobuf, |json| set(json, LABEL, string("a")));
        change(&mut sites, 1, Encoding::Protobuf, |json| set(json, NOTE, string("b")));
        let merged = meet(&mut sites);
        assert_eq!((text(&merged, LABEL), text(&merged, NOTE)), (Some("a"), Some("b")));
        assert_eq!(merged.encoding, Encoding::Protobuf);
    }
}

#[test]
fn a_field_that_nobody_knows_survives_byte_for_byte() {
    // Field 99 of a pod, and field 77 of its spec: 16-byte messages of a later Kubernetes.
    let unknown = |number: u32| {
        let mut raw = vec![];
        prost::encoding::bytes::encode(number, &vec![7u8; 16], &mut raw);
        string(base64(&raw))
    };
    let mut sites = Sites::new(Place::client("/registry/pods/default/a"), 2);
    let mut pod = read(POD.as_bytes()).json;
    set(&mut pod, &["#99"], unknown(99));
    set(&mut pod, &["spec", "#77"], unknown(77));
    let raw = written(&pod, Encoding::Protobuf);
    assert_eq!(read(&raw).json, pod);
    sites.put(0, raw);
    sites.sync_all();
    change(&mut sites, 0, Encoding::Protobuf, |json| set(json, LABEL, string("a")));
    change(&mut sites, 1, Encoding::Protobuf, |json| set(json, NOTE, string("b")));
    let merged = meet(&mut sites);
    assert_eq!((text(&merged, LABEL), text(&merged, NOTE)), (Some("a"), Some("b")));
    assert_eq!(get(&merged.json, &["#99"]), Some(&unknown(99)));
    assert_eq!(get(&merged.json, &["spec", "#77"]), Some(&unknown(77)));
}

fn base64(raw: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(raw)
}

#[test]
fn versions_in_json_and_in_protobuf_merge_and_are_written_as_the_last_one() {
    for (first, second) in [(Encoding::Json, Encoding::Protobuf), (Encoding::Protobuf, Encoding::Json)] {
        let mut sites = sites_with(POD, first);
        change(&mut sites, 0, first, |json| set(json, LABEL, string("a")));
        change(&mut sites, 1, second, |json| set(json, NOTE, string("b")));
        let merged = meet(&mut sites);
        assert_eq!((text(&merged, LABEL), text(&merged, NOTE)), (Some("a"), Some("b")));
        assert_eq!(merged.encoding, second);
    }
}

#[test]
fn what_protobuf_has_no_place_for_is_written_as_json() {
    let mut sites = sites_with(POD, Encoding::Json);
    change(&mut sites, 0, Encoding::Json, |json| set(json, &["spec", "ofALaterVersion"], string("x")));
    change(&mut sites, 1, Encoding::Protobuf, |json| set(json, NOTE, string("b")));
    let merged = meet(&mut sites);
    assert_eq!((text(&merged, &["spec", "ofALaterVersion"]), text(&merged, NOTE)), (Some("x"), Some("b")));
    assert_eq!(merged.encoding, Encoding::Json);
}

#[test]
fn protobuf_that_is_not_understood_whole_is_the_last_writers() {
    let mut sites = sites_with(POD, Encoding::Protobuf);
    change(&mut sites, 0, Encoding::Protobuf, |json| set(json, LABEL, string("a")));
    let mut broken = sites.live(1).expect("it is there").value.to_vec();
    broken.truncate(broken.len() - 40);
    sites.put(1, broken.clone());
    sites.sync_all();
    assert_eq!(sites.outcome(0).rule, Some(Rule::LastWriter));
    assert_eq!(sites.live(0).expect("it is there").value, broken);
}

#[test]
fn another_uid_begins_anew_in_whatever_encoding_and_the_same_does_not() {
    let pod = read(POD.as_bytes()).json;
    let mut other = pod.clone();
    set(&mut other, &["metadata", "uid"], string("another"));
    let (rules, key) = (RuleBook::default(), b"/registry/pods/default/a");
    for before in [Encoding::Json, Encoding::Protobuf] {
        for after in [Encoding::Json, Encoding::Protobuf] {
            let anew =
                |after: Bytes| begins_anew(rules.current(), Keyspace::Client, key, &written(&pod, before), &after);
            assert!(anew(written(&other, after)), "{before:?} to {after:?}");
            assert!(!anew(written(&pod, after)), "{before:?} to {after:?}");
        }
    }
}

#[test]
fn a_null_where_nothing_was_is_no_edit() {
    let mut sites = sites_with(POD, Encoding::Json);
    change(&mut sites, 0, Encoding::Json, |json| {
        set(json, &["spec", "activeDeadlineSeconds"], Json::Number("5".into()))
    });
    // Written later, and as Go writes what is unset.
    sites.put(1, POD.replacen("\"spec\":{", "\"spec\":{\"activeDeadlineSeconds\":null,\"hostNetwork\":false,", 1));
    let merged = meet(&mut sites);
    assert_eq!(get(&merged.json, &["spec", "activeDeadlineSeconds"]), Some(&Json::Number("5".into())));
}

#[test]
fn of_a_struct_that_one_site_removes_and_another_changes_nothing_is_left_over() {
    let security = |fields: &str| {
        parse(&format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a"}},"spec":{{"containers":[{{"name":"c"{fields}}}]}}}}"#
        ))
    };
    let both = r#","securityContext":{"runAsGroup":1,"runAsUser":1}"#;
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let mut sites = sites_with(&security(both).canonical(), encoding);
        sites.put(0, written(&security(""), encoding));
        sites.put(1, written(&security(r#","securityContext":{"runAsGroup":1,"runAsUser":2}"#), encoding));
        assert_eq!(meet(&mut sites).json, security(""));
        // Beside it, one that only loses a field is still there.
        let mut sites = sites_with(&security(both).canonical(), encoding);
        sites.put(0, written(&security(r#","securityContext":{"runAsUser":1}"#), encoding));
        sites.put(1, written(&security(r#","securityContext":{"runAsGroup":1,"runAsUser":2}"#), encoding));
        assert_eq!(meet(&mut sites).json, security(r#","securityContext":{"runAsUser":2}"#));
    }
}

#[test]
fn lists_merge_as_their_kind_declares_them() {
    let claims = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!(r#"{{"name":"{name}"}}"#)).collect();
        parse(&format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a"}},"spec":{{"containers":[{{"name":"c","resources":{{"claims":[{}]}}}}]}}}}"#,
            names.join(",")
        ))
    };
    let mut sites = sites_with(&claims(&["x"]).canonical(), Encoding::Protobuf);
    sites.put(0, written(&claims(&["x", "y"]), Encoding::Protobuf));
    sites.put(1, written(&claims(&["z", "x"]), Encoding::Protobuf));
    let merged = meet(&mut sites).json.canonical();
    assert!(["x", "y", "z"].iter().all(|name| merged.contains(&format!(r#"{{"name":"{name}"}}"#))), "{merged}");

    // A custom resource that has `nodeSelector` means by it what it likes: a map.
    let custom =
        |selector: &str| format!(r#"{{"apiVersion":"a.b/v1","kind":"X","spec":{{"nodeSelector":{selector}}}}}"#);
    let mut sites = sites_with(&custom(r#"{"a":"1"}"#), Encoding::Json);
    change(&mut sites, 0, Encoding::Json, |json| set(json, &["spec", "nodeSelector", "b"], string("2")));
    change(&mut sites, 1, Encoding::Json, |json| unset(json, &["spec", "nodeSelector", "a"]));
    assert_eq!(meet(&mut sites).json, parse(&custom(r#"{"b":"2"}"#)));
}

/// Two sites together finish an object; a third one has not heard of it.
fn done_by_two(encoding: Encoding) -> Sites {
    let pod = parse(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"old","finalizers":["x/f"]}}"#);
    let mut sites = Sites::new(Place::client("/registry/pods/default/a"), 3);
    sites.put(0, written(&pod, encoding));
    sites.sync_all();
    let time = || string("2026-01-01T00:00:00Z");
    change(&mut sites, 0, encoding, |json| set(json, &["metadata", "deletionTimestamp"], time()));
    change(&mut sites, 1, encoding, |json| unset(json, &["metadata", "finalizers"]));
    sites
}

#[test]
fn what_two_sites_finish_together_is_gone_and_what_is_created_after_it_stays() {
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let mut sites = done_by_two(encoding);
        change(&mut sites, 2, encoding, |json| set(json, LABEL, string("late")));
        sites.exchange();
        assert_eq!(sites.live(0), None);
        assert_eq!(sites.live(1), None);
        // Somebody creates it anew, and writes it again. The third one's edit is of what is gone.
        let anew = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"new"}}"#;
        sites.put(0, written(&parse(anew), encoding));
        change(&mut sites, 0, encoding, |json| set(json, NOTE, string("b")));
        sites.sync_all();
        for site in 0..3 {
            let live = read(&sites.live(site).expect("it is there").value);
            assert_eq!((live.uid(), text(&live, NOTE), text(&live, LABEL)), (Some("new"), Some("b"), None));
        }
        assert_eq!(sites.outcome(0).rule, Some(Rule::DeletedIncarnation));
    }
}

#[test]
fn what_a_third_site_has_still_to_finish_comes_back() {
    let mut sites = done_by_two(Encoding::Protobuf);
    change(&mut sites, 2, Encoding::Protobuf, |json| {
        set(json, &["metadata", "finalizers"], parse(r#"["x/f","y/g"]"#));
    });
    sites.exchange();
    assert_eq!(sites.live(0), None);
    sites.sync_all();
    let live = read(&sites.live(0).expect("it is there").value);
    assert_eq!(get(&live.json, &["metadata", "finalizers"]), Some(&parse(r#"["y/g"]"#)));
    assert_eq!(text(&live, &["metadata", "deletionTimestamp"]), Some("2026-01-01T00:00:00Z"));
}

#[test]
fn who_saw_that_something_was_done_is_not_forgotten() {
    let mut sites = done_by_two(Encoding::Json);
    sites.exchange();
    // Of what is no object the last version stands for those before it.
    sites.put(0, "anew");
    sites.put(0, "and again");
    let Place { rules, keyspace, key } = sites.place.clone();
    let known = sites.known(0).to_vec();
    let mut window = sites.place.window(&known);
    window.drop_middles(&rules, 1, keyspace, key, |_, _| true);
    // The third site has not heard of it.
    change(&mut sites, 2, Encoding::Json, |json| set(json, LABEL, string("late")));
    let late = sites.known(2).last().expect("it wrote").clone();
    window.add(late.clone());
    let mut whole = sites.place.window(&known);
    whole.add(late);
    assert_eq!(sites.place.outcome(&window).live, sites.place.outcome(&whole).live);
    assert_eq!(&sites.place.outcome(&window).live.expect("it is there").value[..], b"and again");
}

#[test]
fn who_edited_last_what_is_refused_decides_and_not_who_wrote_last() {
    let scaler = parse(
        r#"{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"a","uid":"u"},"spec":{"minReplicas":2,"maxReplicas":6}}"#,
    );
    let mut sites = sites_of(&scaler, Encoding::Json, 2);
    change(&mut sites, 0, Encoding::Json, |json| set(json, &["spec", "minReplicas"], Json::Number("5".into())));
    change(&mut sites, 1, Encoding::Json, |json| set(json, &["spec", "maxReplicas"], Json::Number("3".into())));
    change(&mut sites, 0, Encoding::Json, |json| set(json, LABEL, string("a")));
    let merged = meet(&mut sites);
    let bounds = ["minReplicas", "maxReplicas"].map(|name| get(&merged.json, &["spec", name]).cloned());
    assert_eq!(bounds, ["2", "3"].map(|n| Some(Json::Number(n.into()))));
    assert_eq!(text(&merged, LABEL), Some("a"));
}

/// Three sites edit what contradicts itself; one of them meets another before it meets the third, and edits again. However they
/// meet, what is refused is put right alike, and what a site only saw put right is no edit of it.
#[test]
fn what_would_be_refused_is_put_right_alike_in_every_order_and_is_nobodys_edit() {
    let scaler = parse(
        r#"{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"a","uid":"u"},"spec":{"minReplicas":2,"maxReplicas":6}}"#,
    );
    let number = |n: i64| Json::Number(n.to_string().into());
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let mut sites = sites_of(&scaler, encoding, 3);
        change(&mut sites, 0, encoding, |json| set(json, &["spec", "minReplicas"], number(5)));
        change(&mut sites, 1, encoding, |json| set(json, &["spec", "maxReplicas"], number(3)));
        change(&mut sites, 2, encoding, |json| set(json, &["spec", "minReplicas"], number(3)));
        sites.sync(0, 1);
        let seen = read(&sites.live(1).expect("it is there").value).json;
        let bounds = |json: &Json| ["minReplicas", "maxReplicas"].map(|name| get(json, &["spec", name]).cloned());
        assert_eq!(bounds(&seen), [Some(number(2)), Some(number(3))]);
        change(&mut sites, 1, encoding, |json| set(json, LABEL, string("b")));
        let versions: Vec<_> = sites.history.clone();
        sites.sync_all();
        let outcome = sites.outcome(0);
        let merged = read(&outcome.live.as_ref().expect("it is there").value).json;
        // The label's writer did not set the least back to 2: the third site's edit of it is newer.
        assert_eq!(bounds(&merged), [Some(number(3)), Some(number(3))]);
        // Every order in which the three edits and what stands on two of them can arrive.
        let [base, a, b, c, on_top] = &versions[..] else { panic!("{} versions", versions.len()) };
        for order in [[a, b, c], [a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
            for at in 2..=3 {
                let mut all: Vec<_> = [base].into_iter().chain(order).collect();
                if all[1..=at].iter().any(|v| v.dot == a.dot) && all[1..=at].iter().any(|v| v.dot == b.dot) {
                    all.insert(at + 1, on_top);
                } else {
                    all.push(on_top);
                }
                assert_eq!(sites.place.outcome(&sites.place.window(all)), outcome);
            }
        }
    }
}

#[test]
fn what_is_only_right_together_comes_from_the_side_that_edited_it_last() {
    let ready = |status: &str, reason: &str, message: &str| {
        parse(&format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a"}},"status":{{"conditions":[{{"type":"Ready","status":"{status}","reason":"{reason}","message":"{message}"}}]}}}}"#
        ))
    };
    let mut sites = sites_with(&ready("True", "a", "a").canonical(), Encoding::Protobuf);
    sites.put(0, written(&ready("False", "a", "b"), Encoding::Protobuf));
    sites.put(1, written(&ready("True", "c", "a"), Encoding::Protobuf));
    assert_eq!(meet(&mut sites).json, ready("True", "c", "a"));

    // One side has a value where the other says where it is from.
    let env = |variable: &str| {
        parse(&format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a"}},"spec":{{"containers":[{{"name":"c","env":[{{"name":"E"{variable}}}]}}]}}}}"#
        ))
    };
    let from = r#","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}"#;
    let mut sites = sites_with(&env("").canonical(), Encoding::Json);
    sites.put(0, env(from).canonical());
    sites.put(1, env(r#","value":"x""#).canonical());
    assert_eq!(meet(&mut sites).json, env(r#","value":"x""#));
}
