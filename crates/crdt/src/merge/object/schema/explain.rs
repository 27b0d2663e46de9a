//! How each field of a kind merges, for people.

use crate::command::counter::CounterRule;
use crate::merge::object::meaning::counts::is_counted;
use crate::merge::object::path::{Path, Step};
use crate::merge::rules::Rules;

use super::catalogue::{Base, Field, Many, Stays, TypeId, catalogue};
use super::custom::{How, Node};
use super::{Resolution, Schema, Shape};

/// How what is one value merges.
const ONE_VALUE: &str = "one value; the last edit stays";

/// A field of a kind, and how concurrent edits of it merge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explained {
    /// Its path; a `*` stands for any key.
    pub path: String,
    /// How it merges, in a few words.
    pub how: String,
}

/// The built-in kinds of that name: `Deployment`, or `apps/v1/Deployment`. Each as an API version and a name.
pub fn kinds(wanted: &str) -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<_> = catalogue()
        .kinds()
        .filter(|(api_version, kind)| {
            kind.eq_ignore_ascii_case(wanted) || format!("{api_version}/{kind}").eq_ignore_ascii_case(wanted)
        })
        .collect();
    found.sort_unstable();
    found
}

/// How the fields of a built-in kind merge by these rules, in the order of its type; `None` for another kind.
pub fn explain(api_version: &str, kind: &str, rules: &Rules) -> Option<Vec<Explained>> {
    let of = catalogue().kind(api_version, kind)?;
    let schema = Schema::new(api_version, kind, rules);
    let mut walk = Walk { schema: &schema, path: Path::default(), around: vec![], explained: vec![] };
    walk.fields(of);
    Some(walk.explained)
}

/// How the fields of custom resources of that name merge by these rules, as far as something is declared of them: of each version
/// its API version with the kind, and the fields.
pub fn explain_custom(wanted: &str, rules: &Rules) -> Vec<(String, Vec<Explained>)> {
    let mut found = vec![];
    for kind in rules.custom.kinds() {
        for (versions, root) in &kind.versions {
            for version in versions {
                let name = format!("{}/{version}/{}", kind.group, kind.name);
                if kind.name.eq_ignore_ascii_case(wanted) || name.eq_ignore_ascii_case(wanted) {
                    let mut explained = vec![];
                    explain_node(root, &mut Path::default(), &mut explained);
                    explain_policy(&format!("{}/{version}", kind.group), &kind.name, rules, &mut explained);
                    found.push((name, explained));
                }
            }
        }
    }
    found
}

/// What the policy says of a custom resource comes last, and instead of what its schema says.
fn explain_policy(api_version: &str, kind: &str, rules: &Rules, explained: &mut Vec<Explained>) {
    let is_of = |counter: &&CounterRule| counter.api_version == api_version && counter.kind == kind;
    let counters = rules.counters.iter().filter(is_of).map(|counter| (&counter.path, adds_up(counter.minimum)));
    let atomic = rules.atomic_of(api_version, kind).iter().map(|one| (&one.path, ONE_VALUE.to_owned()));
    for (path, how) in counters.chain(atomic) {
        let lies_in = |place: &str| {
            place.strip_prefix(&**path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        explained.retain(|known| !lies_in(&known.path));
        explained.push(Explained { path: path.clone(), how });
    }
}

fn adds_up(minimum: Option<i64>) -> String {
    match minimum {
        None => "what is added to it adds up".to_owned(),
        Some(minimum) => format!("what is added to it adds up, and never below {minimum}"),
    }
}

fn explain_node(node: &Node, path: &mut Path, explained: &mut Vec<Explained>) {
    let how = match &node.how {
        How::Plain => None,
        How::Atomic => Some(ONE_VALUE.to_owned()),
        How::Struct => Some("field by field; gone where one side removes it".to_owned()),
        How::Set => Some("a set".to_owned()),
        How::Keyed(keys) => {
            let keys: Vec<&str> = keys.iter().map(|key| &*key.name).collect();
            Some(format!("elements by {}", keys.join(" and ")))
        }
    };
    explained.extend(how.map(|how| Explained { path: path.to_string(), how }));
    for (name, field) in &node.fields {
        path.push(Step::Field(name.clone()));
        explain_node(field, path, explained);
        path.pop();
    }
    if let Some(each) = &node.each {
        let is_list = matches!(node.how, How::Keyed(_));
        path.push(if is_list { Step::Element("*".to_owned()) } else { Step::Field("*".to_owned()) });
        explain_node(each, path, explained);
        path.pop();
    }
}

struct Walk<'a> {
    schema: &'a Schema<'a>,
    path: Path,
    /// The types in which the place lies: some hold themselves.
    around: Vec<TypeId>,
    explained: Vec<Explained>,
}

impl Walk<'_> {
    fn fields(&mut self, of: TypeId) {
        self.around.push(of);
        for field in &catalogue().of(of).fields {
            match (field.name, field.form.base) {
                (Some(name), _) => {
                    self.path.push(Step::Field(name.to_owned()));
                    self.field(field);
                    self.path.pop();
                }
                (None, Base::Struct(inner)) => self.fields(inner),
                (None, _) => {}
            }
        }
        self.around.pop();
    }

    fn field(&mut self, field: &Field) {
        let shape = self.schema.shape(&self.path);
        let inner = match field.form.base {
            Base::Struct(id) => Some(id),
            _ => None,
        };
        let together = self.together();
        if let Some(how) = together {
            self.explained.push(Explained { path: self.path.to_string(), how });
            return;
        }
        let how = match (self.schema.resolution(&self.path), shape, field.form.many) {
            (Resolution::FirstWriter, ..) => "one value; the first to set it stays".to_owned(),
            (Resolution::Earliest | Resolution::Bits, ..) => "comes with others".to_owned(),
            (Resolution::LeaderElection, ..) => "one value; the claim that one etcd would have let stand".to_owned(),
            (Resolution::Counter { minimum }, ..) => adds_up(minimum),
            (_, Shape::Keyed(keys), _) => {
                let keys: Vec<&str> = keys.iter().map(|key| &*key.name).collect();
                format!("elements by {}", keys.join(" and "))
            }
            (_, Shape::Set, _) => "a set".to_owned(),
            (_, Shape::Atomic, _) => ONE_VALUE.to_owned(),
            (_, Shape::Optional, _) => "field by field; gone where one side removes it".to_owned(),
            (_, Shape::Plain, Many::Map) => "by key".to_owned(),
            (_, Shape::Plain, Many::List) => ONE_VALUE.to_owned(),
            (_, Shape::Plain, _) if field.form.base == Base::Fields => "path by path".to_owned(),
            (_, Shape::Plain, _) if inner.is_some() => "field by field".to_owned(),
            (_, Shape::Plain, _) => "the last edit stays".to_owned(),
        };
        let is_divided = matches!(shape, Shape::Keyed(_) | Shape::Optional)
            || (shape == Shape::Plain && field.form.many != Many::List);
        let again = inner.filter(|id| self.around.contains(id)).is_some();
        let how = if again { format!("{how}, as above") } else { how };
        self.explained.push(Explained { path: self.path.to_string(), how });
        let Some(inner) = inner.filter(|_| is_divided && !again) else { return };
        match field.form.many {
            Many::One | Many::Optional => self.fields(inner),
            Many::List => self.under(Step::Element("*".to_owned()), inner),
            Many::Map => self.under(Step::Field("*".to_owned()), inner),
        }
    }

    /// How that field merges if it is one of several that come from one side.
    fn together(&mut self) -> Option<String> {
        let name = self.path.last_field()?.to_owned();
        let all = self.schema.together(&self.parent());
        let one = all.iter().find(|one| one.fields.contains(&name.as_str()))?;
        let others: Vec<&str> = one.fields.iter().copied().filter(|other| *other != name).collect();
        let others = others.join(", ");
        if self.schema.counted_together(&self.parent()).is_some() && is_counted(&name) {
            let how = match &*name {
                "completedIndexes" => "the indexes that any side completed",
                "failedIndexes" => "the indexes that failed at any side, without those that any side completed",
                "uncountedTerminatedPods" => "the pods that any side noted and none counted",
                _ => "each pod that any side counted, once",
            };
            return Some(format!(
                "{how}; where that cannot be told it comes with {others}, the last edit of any stays"
            ));
        }
        Some(match one.stays {
            Stays::Last => format!("comes with {others}; the last edit of any stays"),
            Stays::Earliest => format!("comes with {others}; the deletion that began first stays"),
            Stays::Bits => format!("comes with {others}; bits of one range add up"),
        })
    }

    /// The path of the struct in which the field lies.
    fn parent(&self) -> Path {
        let mut parent = self.path.clone();
        parent.pop();
        parent
    }

    /// The elements of a list or map.
    fn under(&mut self, step: Step, inner: TypeId) {
        self.path.push(step);
        if self.schema.shape(&self.path) == Shape::Atomic {
            let (path, how) = (self.path.to_string(), ONE_VALUE.to_owned());
            self.explained.push(Explained { path, how });
        } else {
            self.fields(inner);
        }
        self.path.pop();
    }
}

#[cfg(test)]
mod tests {
    use crate::command::counter::AtomicRule;

    use std::sync::Arc;

    use super::super::custom::{Customs, Kind};
    use super::*;

    fn how(kind: (&str, &str), path: &str) -> String {
        let explained = explain(kind.0, kind.1, &Rules::default()).expect("a kind");
        let found = explained.into_iter().find(|explained| explained.path == path);
        found.map(|explained| explained.how).unwrap_or_default()
    }

    #[test]
    fn every_kind_can_be_explained_and_names_its_ways() {
        for (api_version, kind) in catalogue().kinds() {
            assert!(explain(api_version, kind, &Rules::default()).is_some_and(|all| all.len() > 10), "{kind}");
        }
        assert_eq!(how(("v1", "Pod"), ".spec.containers"), "elements by name");
        assert_eq!(how(("v1", "Pod"), ".spec.containers[*].image"), "the last edit stays");
        assert_eq!(how(("v1", "Pod"), ".spec.nodeName"), "one value; the first to set it stays");
        assert_eq!(how(("v1", "Pod"), ".status.conditions[*]"), "one value; the last edit stays");
        assert_eq!(how(("v1", "Pod"), ".metadata.finalizers"), "a set");
        assert_eq!(how(("v1", "Pod"), ".metadata.generation"), "what is added to it adds up");
        assert_eq!(how(("v1", "Pod"), ".metadata.managedFields[*].fieldsV1"), "path by path");
        assert_eq!(how(("v1", "ConfigMap"), ".data"), "by key");
        assert_eq!(
            how(("v1", "Pod"), ".metadata.deletionTimestamp"),
            "comes with deletionGracePeriodSeconds; the deletion that began first stays"
        );
        assert_eq!(
            how(("v1", "Pod"), ".spec.containers[*].livenessProbe.exec"),
            "comes with grpc, httpGet, tcpSocket; the last edit of any stays"
        );
        let counted = how(("batch/v1", "Job"), ".status.succeeded");
        assert!(counted.starts_with("each pod that any side counted, once; where that cannot be told"), "{counted}");
        assert!(how(("batch/v1", "Job"), ".status.active").starts_with("comes with completedIndexes, failed,"));
        let template = AtomicRule {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            path: ".spec.template".to_owned(),
        };
        let declared = Rules { atomic: vec![template], ..Rules::default() };
        let explained = explain("apps/v1", "Deployment", &declared).expect("a kind");
        let template: Vec<_> = explained.iter().filter(|one| one.path.starts_with(".spec.template")).collect();
        assert_eq!((template.len(), template[0].how.as_str()), (1, "one value; the last edit stays"));
        assert_eq!(kinds("deployment").len(), 4);
        assert_eq!(kinds("apps/v1/Deployment"), [("apps/v1", "Deployment")]);
    }
    #[test]
    fn the_policy_of_a_custom_kind_stands_behind_its_schema_and_above_it() {
        let set = Node { how: How::Set, ..Node::default() };
        let spec = Node { how: How::Struct, fields: [("tags".to_owned(), set)].into(), ..Node::default() };
        let root = Node { fields: [("spec".to_owned(), spec)].into(), ..Node::default() };
        let versions = vec![(vec!["v1".to_owned()], root)];
        let kind = Kind { group: "e.com".to_owned(), name: "Thing".to_owned(), versions };
        let counter = |kind: &str| CounterRule {
            api_version: "e.com/v1".to_owned(),
            kind: kind.to_owned(),
            path: ".spec.size".to_owned(),
            minimum: Some(0),
        };
        let counters = vec![counter("Other"), counter("Thing")];
        let tags =
            AtomicRule { api_version: "e.com/v1".to_owned(), kind: "Thing".to_owned(), path: ".spec.tags".to_owned() };
        let rules = Rules { custom: Customs::new([Arc::new(kind)]), counters, atomic: vec![tags], ..Rules::default() };
        let explained = explain_custom("thing", &rules).remove(0).1;
        let told: Vec<_> = explained.iter().map(|one| (one.path.as_str(), one.how.as_str())).collect();
        let expected = [
            (".spec", "field by field; gone where one side removes it"),
            (".spec.size", "what is added to it adds up, and never below 0"),
            (".spec.tags", ONE_VALUE),
        ];
        assert_eq!(told, expected);
    }
}
