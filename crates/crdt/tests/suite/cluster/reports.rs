//! What merges gave up is told once at each replica, with all that an operator asks then.

use eddy_crdt::{GivenUp, Notice, Part, Rule, Said};

use crate::support::build::put;
use crate::support::world::World;

const OPAQUE: &str = "opaque";
const OBJECT: &str = "/registry/configmaps/default/a";

fn object(kind: &str, fields: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"{kind}","metadata":{{"uid":"u"}}{fields}}}"#)
}

/// The losses that a replica has told since this was last asked, and how many merges it told of.
fn told(world: &mut World, node: usize) -> (Vec<(String, Rule, GivenUp)>, usize) {
    let notices = std::mem::take(&mut world.nodes[node].notices);
    let merges = || {
        notices.iter().filter_map(|notice| match notice {
            Notice::Merged(merge) => Some(merge),
            _ => None,
        })
    };
    let losses = merges().flat_map(|merge| {
        let key = String::from_utf8_lossy(&merge.key).into_owned();
        merge.given_up.told.iter().map(move |given| (key.clone(), merge.rule, given.clone()))
    });
    (losses.collect(), merges().count())
}

#[test]
fn a_thousand_merges_in_one_window_tell_each_loss_once_also_after_a_restart() {
    // The third hears of nothing, so nothing settles.
    let mut world = World::new(3);
    world.run(0, put(OPAQUE, "base")).unwrap();
    world.run(0, put(OBJECT, object("ConfigMap", r#","data":{"a":"0","b":"0"}"#))).unwrap();
    world.tell(0, 1, usize::MAX).unwrap();
    let edited = world.now().wall_ms;
    world.run(0, put(OPAQUE, "first")).unwrap();
    world.run(0, put(OBJECT, object("ConfigMap", r#","data":{"a":"1","b":"1"}"#))).unwrap();
    let beat = |world: &mut World, n: usize, b: &str| {
        world.run(1, put(OPAQUE, format!("beat {n}"))).unwrap();
        // Fewer of these, because a merge of objects reads all versions.
        if n.is_multiple_of(9) {
            let fields = format!(r#","data":{{"a":"2","b":"{b}","n":"{n}"}}"#);
            world.run(1, put(OBJECT, object("ConfigMap", &fields))).unwrap();
        }
        world.tell(1, 0, usize::MAX).unwrap();
    };
    told(&mut world, 0);
    for n in 0..900 {
        beat(&mut world, n, "0");
    }
    let (losses, merges) = told(&mut world, 0);
    assert_eq!(merges, 1000);
    let parts: Vec<_> = losses.iter().map(|(key, rule, given)| (key.as_str(), *rule, given.part.clone())).collect();
    let field = |path: &str| Part::Field(path.to_owned());
    assert_eq!(
        parts,
        [(OPAQUE, Rule::LastWriter, Part::Value), (OBJECT, Rule::FieldMerge, field(".data.a"))],
        "{losses:?}"
    );
    let (own, other) = (world.nodes[0].replica.identity().origin(), world.nodes[1].replica.identity().origin());
    for (_, _, given) in &losses {
        let stands = given.stands.as_ref().unwrap();
        assert_eq!((given.dot.origin, stands.dot.origin), (own, other));
        assert!(edited < given.stamp.wall_ms() && given.stamp < stands.stamp);
    }
    let [(_, _, opaque), (_, _, object)] = &losses[..] else { unreachable!() };
    assert_eq!((&opaque.said, &opaque.stands.as_ref().unwrap().said), (&Said::Untold, &Said::Untold));
    let text = |text: &str| Said::Text(format!("\"{text}\""));
    assert_eq!((&object.said, &object.stands.as_ref().unwrap().said), (&text("1"), &text("2")));

    world.restart(0).unwrap();
    beat(&mut world, 900, "0");
    assert_eq!(told(&mut world, 0), (vec![], 2), "told before the restart");
    beat(&mut world, 909, "2");
    let (losses, _) = told(&mut world, 0);
    assert_eq!(losses.iter().map(|loss| loss.2.part.clone()).collect::<Vec<_>>(), [field(".data.b")]);
    // The other one merges as well, and tells the same once.
    told(&mut world, 1);
    world.tell(0, 1, usize::MAX).unwrap();
    assert_eq!(told(&mut world, 1).0.len(), 3);
}

#[test]
fn long_values_are_cut_secrets_are_not_told_and_a_report_has_an_end() {
    let long = "ä".repeat(500);
    for (kind, is_secret) in [("ConfigMap", false), ("Secret", true)] {
        let mut world = World::new(2);
        let fields = |value: &str| {
            let data: Vec<String> = (0..50).map(|n| format!(r#""k{n:02}":"{value}{n}""#)).collect();
            object(kind, &format!(r#","data":{{{}}}"#, data.join(",")))
        };
        world.run(0, put(OBJECT, fields("base"))).unwrap();
        world.tell(0, 1, usize::MAX).unwrap();
        world.run(0, put(OBJECT, fields(&format!("one{long}")))).unwrap();
        world.run(1, put(OBJECT, fields("two"))).unwrap();
        world.tell(1, 0, usize::MAX).unwrap();
        let notices = std::mem::take(&mut world.nodes[0].notices);
        let [Notice::Merged(merge)] = &notices[..] else { panic!("{notices:?}") };
        assert_eq!((merge.given_up.told.len(), merge.given_up.more), (20, 30));
        let first = &merge.given_up.told[0];
        assert_eq!(first.part, Part::Field(".data.k00".to_owned()));
        let report = format!("{merge:?}");
        if is_secret {
            assert!(!report.contains("one") && !report.contains("two"), "{report}");
            assert_eq!((&first.said, &first.stands.as_ref().unwrap().said), (&Said::Untold, &Said::Untold));
        } else {
            let Said::Text(text) = &first.said else { panic!("{first:?}") };
            assert!(text.starts_with("\"one\u{e4}") && text.ends_with("... (1006 bytes)") && text.len() < 90, "{text}");
            assert_eq!(first.stands.as_ref().unwrap().said, Said::Text("\"two0\"".to_owned()));
        }
        assert!(report.len() < 20_000);
    }
}

#[test]
fn a_field_that_went_with_what_it_lay_in_says_who_took_that_away() {
    let mut world = World::new(2);
    let conditions = |all: &str| object("Thing", &format!(r#","status":{{"conditions":[{all}]}}"#));
    let kept = r#"{"type":"Kept","status":"True"}"#;
    world.run(0, put(OBJECT, conditions(&format!(r#"{kept},{{"type":"Ready","status":"True"}}"#)))).unwrap();
    world.tell(0, 1, usize::MAX).unwrap();
    world.run(0, put(OBJECT, conditions(&format!(r#"{kept},{{"type":"Ready","status":"False"}}"#)))).unwrap();
    world.run(1, put(OBJECT, conditions(kept))).unwrap();
    world.tell(1, 0, usize::MAX).unwrap();
    let (losses, _) = told(&mut world, 0);
    let [(_, _, given)] = &losses[..] else { panic!("{losses:?}") };
    let part = Part::Field(r#".status.conditions[type="Ready"].status"#.to_owned());
    assert_eq!((&given.part, &given.said), (&part, &Said::Text(r#""False""#.to_owned())));
    let stands = given.stands.as_ref().unwrap();
    assert_eq!((stands.dot.origin, &stands.said), (world.nodes[1].replica.identity().origin(), &Said::Nothing));
}
