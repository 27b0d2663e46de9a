//! A Kubernetes object as one flat map from path to scalar, and back.
//!
//! Flat, because two replicas that both create `.status` must not make two different maps: one of them would be lost.
//! An empty map or list, an element of a keyed list, and a struct that may be absent have no scalar of their own. Each has a
//! leaf that says it is there. What lies under an absent element or struct is dropped: nobody wrote what would be left of it.
//! The order of a keyed list or set is one leaf. So is all of an element that is one value, and so are fields of a struct that
//! come from one side.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use smol_str::SmolStr;

use super::json::{Fields, Json};
use super::path::{Path, Step};
use super::schema::catalogue::{Key, Together};
use super::schema::{Schema, Shape, Spot};

/// Says that an element of a keyed list, or a struct that may be absent, is there. No JSON text is like it.
const PRESENT: &str = "+";

/// Takes an object apart: tells each leaf's written path, its path, and its value: a canonical JSON text, or [`PRESENT`].
pub fn flatten(object: &Json, schema: &Schema<'_>, tell: &mut impl FnMut(&str, &Path, String)) {
    let mut flat = Flattening { schema, path: Path::default(), written: String::new(), tell };
    if let Json::Map(map) = object {
        flat.fields(map, schema.root());
    }
}

struct Flattening<'a, F> {
    schema: &'a Schema<'a>,
    path: Path,
    /// The path as it is written.
    written: String,
    tell: &'a mut F,
}

impl<'a, F: FnMut(&str, &Path, String)> Flattening<'a, F> {
    fn leaf(&mut self, text: String) {
        (self.tell)(&self.written, &self.path, text);
    }

    /// One step down and back.
    fn under(&mut self, step: Step, act: impl FnOnce(&mut Self)) {
        let length = self.written.len();
        step.write(&mut self.written);
        self.path.push(step);
        act(self);
        self.path.pop();
        self.written.truncate(length);
    }

    fn fields(&mut self, map: &Fields, spot: Spot<'a>) {
        let together = spot.together();
        for one in together {
            let there = one.fields.iter().filter_map(|name| Some((SmolStr::from(*name), map.get(*name)?.clone())));
            let there: Fields = there.collect();
            if !there.is_empty() {
                self.under(Step::Together(one), |flat| flat.leaf(Json::Map(there).canonical()));
            }
        }
        for (name, value) in map {
            if together.iter().any(|one| one.fields.contains(&name.as_str())) {
                continue;
            }
            self.under(Step::Field(name.to_string()), |flat| flat.value(value, spot));
        }
    }

    /// A value that lies in what is at `around`.
    fn value(&mut self, value: &Json, around: Spot<'a>) {
        let (Json::Map(_) | Json::List(_), Some(last)) = (value, self.path.steps().last()) else {
            return self.leaf(value.canonical());
        };
        let spot = around.next(last);
        match (value, self.schema.shape_at(&self.path, spot)) {
            (Json::Map(map), Shape::Optional) => {
                self.leaf(PRESENT.to_owned());
                self.fields(map, spot);
            }
            (Json::Map(map), Shape::Plain | Shape::Keyed(_) | Shape::Set) if !map.is_empty() => {
                self.fields(map, spot);
            }
            (Json::List(list), Shape::Keyed(fields)) if !list.is_empty() => {
                let keys: Option<Vec<String>> = list.iter().map(|item| element_key(item, fields)).collect();
                self.elements(value, list, keys, spot);
            }
            (Json::List(list), Shape::Set) if !list.is_empty() => {
                let inner = spot.next(&Step::Element(String::new()));
                let is_one = inner.is_one_value();
                let keys = list.iter().map(|item| match item {
                    Json::Map(_) | Json::List(_) if !is_one => None,
                    whole => Some(format!("={}", whole.canonical())),
                });
                let keys = keys.collect();
                self.elements(value, list, keys, spot);
            }
            _ => self.leaf(value.canonical()),
        }
    }

    /// The elements under their keys; as one value when some have no key.
    fn elements(&mut self, whole: &Json, list: &[Json], keys: Option<Vec<String>>, spot: Spot<'a>) {
        let Some(mut keys) = keys else { return self.leaf(whole.canonical()) };
        tell_apart(&mut keys);
        for (item, key) in list.iter().zip(&keys) {
            self.under(Step::Element(key.clone()), |flat| match item {
                Json::Map(map) => {
                    flat.leaf(PRESENT.to_owned());
                    let spot = flat.path.steps().last().map_or(Spot::Unknown, |last| spot.next(last));
                    if flat.schema.shape_at(&flat.path, spot) == Shape::Atomic {
                        flat.under(Step::Whole, |flat| flat.leaf(item.canonical()));
                    } else {
                        flat.fields(map, spot);
                    }
                }
                scalar => flat.leaf(scalar.canonical()),
            });
        }
        let order = Json::List(keys.into_iter().map(|key| Json::String(key.into())).collect()).canonical();
        self.under(Step::Order, |flat| flat.leaf(order));
    }
}

/// The key of an element: those of its key fields that it has or that have a default, as `name="a",port=80`.
fn element_key(item: &Json, keys: &[Key]) -> Option<String> {
    if !matches!(item, Json::Map(_)) {
        return None;
    }
    let mut written = String::new();
    for key in keys {
        let mut write = |scalar: &dyn Fn(&mut String)| {
            if !written.is_empty() {
                written.push(',');
            }
            written.push_str(&key.name);
            written.push('=');
            scalar(&mut written);
        };
        match (item.get(&key.name), &key.default) {
            (Some(Json::Map(_) | Json::List(_)), _) => return None,
            (Some(scalar), _) => write(&|out| scalar.write(out)),
            (None, Some(default)) => write(&|out| out.push_str(default)),
            (None, None) => {}
        }
    }
    (!written.is_empty()).then_some(written)
}

/// Numbers the keys that occur again: an object with two elements of one key is kept as it is.
fn tell_apart(keys: &mut [String]) {
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(keys.len());
    for key in keys {
        let times = seen.entry(key.clone()).or_insert(0);
        *times += 1;
        if *times > 1 {
            // No key field has this name.
            *key = format!("{key},#={times}");
        }
    }
}

/// Puts an object together. Leaves can contradict each other: one replica made a list of what another made a map. They
/// are sorted out in a fixed way: a scalar stands over fields, fields over elements, any of them over "empty".
pub fn assemble<'a>(schema: &Schema<'_>, leaves: impl Iterator<Item = (&'a Path, Cow<'a, str>)>) -> Json {
    let mut root = Node::default();
    for (path, text) in leaves {
        let mut node = &mut root;
        for step in path.steps() {
            node = match step {
                Step::Field(name) => node.fields.entry(name).or_default(),
                Step::Element(key) => node.elements.entry(key).or_default(),
                Step::Order => node.order.get_or_insert_default(),
                Step::Whole => node.whole.get_or_insert_default(),
                Step::Together(together) => node.together.entry(together).or_default(),
            };
        }
        node.text = Some(text);
    }
    let mut path = Path::default();
    Json::Map(root.build_fields(schema, &mut path, schema.root()))
}

/// A value that is being put together.
#[derive(Default)]
struct Node<'a> {
    text: Option<Cow<'a, str>>,
    fields: BTreeMap<&'a str, Node<'a>>,
    elements: BTreeMap<&'a str, Node<'a>>,
    order: Option<Box<Node<'a>>>,
    whole: Option<Box<Node<'a>>>,
    together: BTreeMap<&'a Together, Node<'a>>,
}

impl Node<'_> {
    /// What lies in what is at `around`.
    fn build<'s>(&self, schema: &Schema<'s>, path: &mut Path, around: Spot<'s>) -> Option<Json> {
        let is_present = self.text.as_deref() == Some(PRESENT);
        let own = self.text.as_ref().and_then(|text| Json::parse(text.as_bytes()));
        let empty = match &own {
            None | Some(Json::Null) => true,
            Some(Json::Map(map)) => map.is_empty(),
            Some(Json::List(list)) => list.is_empty(),
            Some(_) => false,
        };
        if !empty {
            return own;
        }
        let spot = path.steps().last().map_or(Spot::Unknown, |last| around.next(last));
        if self.text.is_none() && schema.shape_at(path, spot) == Shape::Optional {
            return None;
        }
        if let Some(whole) = self.whole.as_ref().and_then(|whole| Json::parse(whole.text.as_ref()?.as_bytes())) {
            return Some(whole);
        }
        let fields = self.build_fields(schema, path, spot);
        if !fields.is_empty() || is_present {
            return Some(Json::Map(fields));
        }
        let elements = self.build_elements(schema, path, spot);
        if elements.is_empty() { own } else { Some(Json::List(elements)) }
    }

    fn build_fields<'s>(&self, schema: &Schema<'s>, path: &mut Path, spot: Spot<'s>) -> Fields {
        let mut fields = Fields::new();
        for (name, node) in &self.fields {
            path.push(Step::Field((*name).to_owned()));
            let built = node.build(schema, path, spot);
            path.pop();
            fields.extend(built.map(|built| (SmolStr::from(*name), built)));
        }
        for node in self.together.values() {
            if let Some(Json::Map(map)) = node.text.as_ref().and_then(|text| Json::parse(text.as_bytes())) {
                fields.extend(map);
            }
        }
        fields
    }

    fn build_elements<'s>(&self, schema: &Schema<'s>, path: &mut Path, spot: Spot<'s>) -> Vec<Json> {
        let order = self.order.as_ref().and_then(|order| Json::parse(order.text.as_ref()?.as_bytes()));
        let order = match &order {
            Some(Json::List(list)) => list.iter().filter_map(Json::as_str).collect::<Vec<_>>(),
            _ => vec![],
        };
        let mut ranks: HashMap<&str, usize> = HashMap::with_capacity(order.len());
        for (rank, key) in order.iter().enumerate() {
            ranks.entry(key).or_insert(rank);
        }
        let mut present: Vec<_> = self.elements.iter().filter(|(_, node)| node.text.is_some()).collect();
        // Elements that the order does not know come last, by their keys.
        present.sort_by_key(|(key, _)| (ranks.get(*key).copied().unwrap_or(order.len()), **key));
        let mut elements = Vec::with_capacity(present.len());
        for (key, node) in present {
            path.push(Step::Element((*key).to_owned()));
            elements.extend(node.build(schema, path, spot));
            path.pop();
        }
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::rules::Rules;

    type Leaves = BTreeMap<String, (Path, String)>;

    fn leaves(text: &str) -> (Json, Leaves) {
        let object = Json::parse(text.as_bytes()).expect("JSON");
        let rules = Rules::default();
        let mut flat = Leaves::new();
        flatten(&object, &Schema::new("v1", "Pod", &rules), &mut |written, path, text| {
            assert_eq!(path.to_string(), written);
            flat.insert(written.to_owned(), (path.clone(), text));
        });
        (object, flat)
    }

    fn assembled(leaves: &Leaves) -> Json {
        let rules = Rules::default();
        assemble(
            &Schema::new("v1", "Pod", &rules),
            leaves.values().map(|(path, text)| (path, Cow::Borrowed(text.as_str()))),
        )
    }

    fn back(text: &str) -> Vec<(String, String)> {
        let (object, flat) = leaves(text);
        assert_eq!(assembled(&flat), object);
        flat.into_iter().map(|(written, (_, text))| (written, text)).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn lists_are_keyed_where_kubernetes_says_so() {
        assert_eq!(
            back(
                r#"{"status":{"conditions":[{"type":"Ready","n":1},{"type":"A"}]},"metadata":{"finalizers":["b","a"]}}"#
            ),
            pairs(&[
                (r#".metadata.finalizers[="a"]"#, r#""a""#),
                (r#".metadata.finalizers[="b"]"#, r#""b""#),
                (r#".metadata.finalizers[]"#, r#"["=\"b\"","=\"a\""]"#),
                (r#".status.conditions[]"#, r#"["type=\"Ready\"","type=\"A\""]"#),
                (r#".status.conditions[type="A"]"#, "+"),
                (r#".status.conditions[type="A"]="#, r#"{"type":"A"}"#),
                (r#".status.conditions[type="Ready"]"#, "+"),
                (r#".status.conditions[type="Ready"]="#, r#"{"n":1,"type":"Ready"}"#),
            ])
        );
        assert_eq!(
            back(r#"{"spec":{"containers":[{"name":"a","image":"b"}]}}"#),
            pairs(&[
                (".spec.containers[]", r#"["name=\"a\""]"#),
                (r#".spec.containers[name="a"]"#, "+"),
                (r#".spec.containers[name="a"].image"#, r#""b""#),
                (r#".spec.containers[name="a"].name"#, r#""a""#),
            ])
        );
    }

    #[test]
    fn empty_and_null_are_kept_apart_and_other_lists_are_one_value() {
        assert_eq!(
            back(r#"{"a":{},"b":[],"c":null,"d":[{"z":1,"y":[]}],"e":""}"#),
            pairs(&[(".a", "{}"), (".b", "[]"), (".c", "null"), (".d", r#"[{"y":[],"z":1}]"#), (".e", r#""""#)])
        );
    }

    #[test]
    fn a_list_whose_elements_can_have_no_keys_is_one_value() {
        for conditions in ["[1]", r#"[{"type":{}}]"#] {
            let flat = back(&format!(r#"{{"status":{{"conditions":{conditions}}}}}"#));
            assert_eq!(flat, pairs(&[(".status.conditions", conditions)]));
        }
    }

    #[test]
    fn elements_of_one_key_are_all_kept() {
        let flat = back(r#"{"status":{"conditions":[{"type":"A"},{"x":1},{"type":"A","x":2}]}}"#);
        let elements: Vec<_> = flat.iter().filter(|(_, text)| text == "+").map(|(path, _)| path.as_str()).collect();
        let conditions = [r#"[type=""]"#, r#"[type="A",#=2]"#, r#"[type="A"]"#];
        assert_eq!(elements, conditions.map(|key| format!(".status.conditions{key}")));
    }

    #[test]
    fn a_struct_that_may_be_absent_says_that_it_is_there() {
        let flat = back(r#"{"spec":{"securityContext":{},"affinity":{"nodeAffinity":{}}}}"#);
        let there = [".spec.affinity", ".spec.affinity.nodeAffinity", ".spec.securityContext"];
        assert_eq!(flat, pairs(&there.map(|path| (path, "+"))));
        let (_, mut flat) = leaves(r#"{"spec":{"securityContext":{"runAsUser":1},"affinity":{}}}"#);
        flat.remove(".spec.securityContext");
        assert_eq!(assembled(&flat).canonical(), r#"{"spec":{"affinity":{}}}"#);
    }

    #[test]
    fn what_lies_under_an_absent_element_is_dropped() {
        let (_, mut flat) = leaves(r#"{"status":{"conditions":[{"type":"A","n":1},{"type":"B","n":2}]}}"#);
        flat.remove(r#".status.conditions[type="A"]"#);
        let merged = assembled(&flat).canonical();
        assert_eq!(merged, r#"{"status":{"conditions":[{"n":2,"type":"B"}]}}"#);
    }

    #[test]
    fn a_list_as_long_as_a_request_may_be_is_put_together_in_no_time() {
        let names: Vec<String> = (0..100_000).rev().map(|n| format!("\"f{n}\"")).collect();
        let text = format!(r#"{{"metadata":{{"finalizers":[{}]}}}}"#, names.join(","));
        let (object, flat) = leaves(&text);
        let began = std::time::Instant::now();
        assert_eq!(assembled(&flat), object);
        // Under a second; minutes when each comparison searches the order.
        assert!(began.elapsed().as_secs() < 30, "it took {:?}", began.elapsed());
    }

    #[test]
    fn an_element_that_the_order_does_not_know_comes_last() {
        let (_, mut flat) = leaves(r#"{"status":{"conditions":[{"type":"Z"},{"type":"B"}]}}"#);
        let (_, more) = leaves(r#"{"status":{"conditions":[{"type":"A"}]}}"#);
        let order = flat[".status.conditions[]"].clone();
        flat.extend(more);
        flat.insert(".status.conditions[]".to_owned(), order);
        let merged = assembled(&flat).canonical();
        assert_eq!(merged, r#"{"status":{"conditions":[{"type":"Z"},{"type":"B"},{"type":"A"}]}}"#);
    }
}
