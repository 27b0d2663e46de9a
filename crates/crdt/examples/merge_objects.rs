//! Merges objects that it is given, for an oracle that knows better: `tools/schema` asks it and compares.
//!
//! Each line of the input is a name and values in base64: the value that all versions descend from, then concurrent ones, each
//! written later than the one before. The line that answers has the name and the merged value. With one value alone the answer
//! is that value as it is read and written again: as JSON, as protobuf, and taken apart into leaves, through Automerge and put
//! together. `-` stands for nothing. A line named `definition` is not answered: by that definition of custom resources all later
//! lines are merged.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use eddy_crdt::merge::{Customs, Encoding, Json, Object, RuleBook, Rules, Version, Window, read_definition};
use eddy_crdt::{Birth, ChangeKind, Dot, Incarnation, Keyspace, Origin, ReplicaId, Stamp, VersionVector};

fn main() -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut kinds = vec![];
    let mut book = RuleBook::default();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let values: Result<Vec<Bytes>, _> = words.map(|word| BASE64.decode(word).map(Bytes::from)).collect();
        let values = values.map_err(io::Error::other)?;
        if let ("definition", [definition]) = (name, &values[..]) {
            kinds.push(Arc::new(read_definition(definition).map_err(io::Error::other)?));
            book = RuleBook::from(Rules { custom: Customs::new(kinds.clone()), ..Rules::default() });
            continue;
        }
        let answers = match &values[..] {
            [value] => again(value).into_iter().chain([through_leaves(value, &book)]).collect(),
            [base, heads @ ..] => vec![merged(base, heads, &book)],
            [] => vec![],
        };
        write!(out, "{name}")?;
        for answer in answers {
            write!(out, " {}", answer.map_or_else(|| "-".to_owned(), |answer| BASE64.encode(answer)))?;
        }
        writeln!(out)?;
    }
    out.flush()
}

/// An object as it is read and written, in both encodings.
fn again(value: &[u8]) -> Vec<Option<Bytes>> {
    let write = |encoding| {
        let object = Object { encoding, ..Object::parse(value)? };
        object.write(&object.json)
    };
    vec![write(Encoding::Json), write(Encoding::Protobuf)]
}

/// An object as it is after a merge in which every leaf of it is an edit of two at the same time, so that Automerge decides all of
/// them. It holds one of them, since the same two write all. One of the two has set an annotation besides; that is taken away again.
fn through_leaves(value: &Bytes, book: &RuleBook) -> Option<Bytes> {
    const ANNOTATION: &str = "eddy/again";
    let object = Object::parse(value)?;
    let Json::Map(whole) = &object.json else { return None };
    let only = |of: &BTreeMap<String, Json>, names: &[&str]| -> BTreeMap<String, Json> {
        of.iter()
            .filter(|(name, _)| names.contains(&name.as_str()))
            .map(|(name, one)| (name.clone(), one.clone()))
            .collect()
    };
    let about = only(whole, &["apiVersion", "kind", "type"]);
    let metadata = match whole.get("metadata") {
        Some(Json::Map(metadata)) => only(metadata, &["name", "namespace", "uid"]),
        _ => BTreeMap::new(),
    };
    let mut before = about;
    before.insert("metadata".to_owned(), Json::Map(metadata));
    let mut annotated = whole.clone();
    let within = |map: &mut BTreeMap<String, Json>, name: &str, act: &dyn Fn(&mut BTreeMap<String, Json>)| {
        if let Json::Map(inner) = map.entry(name.to_owned()).or_insert_with(|| Json::Map(BTreeMap::new())) {
            act(inner);
        }
    };
    within(&mut annotated, "metadata", &|metadata| {
        within(metadata, "annotations", &|annotations| {
            annotations.insert(ANNOTATION.to_owned(), Json::String("x".to_owned()));
        });
    });
    let (base, beside) = (object.write(&Json::Map(before))?, object.write(&Json::Map(annotated))?);
    let mut merged = Object::parse(&merged(&base, &[value.clone(), beside], book)?)?;
    let Json::Map(whole) = &mut merged.json else { return None };
    let Some(Json::Map(metadata)) = whole.get_mut("metadata") else { return None };
    let Some(Json::Map(annotations)) = metadata.get_mut("annotations") else { return None };
    annotations.remove(ANNOTATION)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    if metadata.is_empty() {
        whole.remove("metadata");
    }
    merged.write(&merged.json)
}

/// What a site sees that has learned of all.
fn merged(base: &Bytes, heads: &[Bytes], book: &RuleBook) -> Option<Bytes> {
    let put = |at: u64, value: &Bytes| {
        let first = Dot { origin: origin(0), seq: 1 };
        let dot = Dot { origin: origin(at), seq: 1 };
        let mut deps = VersionVector::default();
        if at > 0 {
            deps.advance(first);
        }
        Version {
            dot,
            stamp: Stamp::new(100 + at),
            rules: 1,
            deps: Arc::new(deps),
            kind: ChangeKind::Put { value: value.clone(), lease: None, version: 1 + i64::from(at > 0) },
            incarnation: Incarnation { stamp: Stamp::new(100), dot: first },
        }
    };
    let mut window = Window::new(None);
    window.add(put(0, base));
    heads.iter().zip(1..).for_each(|(head, at)| window.add(put(at, head)));
    window.outcome(book, Keyspace::Client, b"/registry/objects/of/the/oracle").live.map(|live| live.value)
}

fn origin(at: u64) -> Origin {
    Origin { replica: ReplicaId::new(1 + at), birth: Birth::new(1) }
}
