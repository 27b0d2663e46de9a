//! Merges objects that it is given, for an oracle that knows better: `tools/schema` asks it and compares.
//!
//! Each line of the input is a name and values in base64: the value that all versions descend from, then concurrent ones, each
//! written later than the one before. The line that answers has the name and the merged value. With one value alone the answer
//! is that value as it is read and written again: as JSON, as protobuf, and taken apart into leaves, through Automerge and put
//! together. `-` stands for nothing. A line named `definition` is not answered: by that definition of custom resources all later
//! lines are merged.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use eddy_crdt::merge::{
    Customs, Document, Edit, Encoding, Object, Path, RuleBook, Rules, Scalar, Version, Window, assemble, flatten,
    read_definition,
};
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

/// An object taken apart into its leaves, all of them through Automerge, and put together again. Every second leaf was there
/// before; a version writes the others.
fn through_leaves(value: &[u8], book: &RuleBook) -> Option<Bytes> {
    let object = Object::parse(value)?;
    let schema = object.schema(book.newest());
    let mut leaves: BTreeMap<String, (Path, Edit)> = BTreeMap::new();
    flatten(&object.json, &schema, &mut |key, path, text| {
        leaves.insert(key.to_owned(), (path.clone(), Edit::Put(Scalar::Text(text))));
    });
    let (before, after): (Vec<_>, Vec<_>) = leaves.iter().enumerate().partition(|(at, _)| at % 2 == 0);
    let put = |edit: &Edit| if let Edit::Put(scalar) = edit { Some(scalar.clone()) } else { None };
    let before = before.into_iter().filter_map(|(_, (key, (_, edit)))| Some((key.clone(), put(edit)?)));
    let after = after.into_iter().map(|(_, (key, (_, edit)))| (key.as_str(), edit));
    let (mut document, base) = Document::new(before).ok()?;
    let end = document.commit(0, Dot { origin: origin(1), seq: 1 }, &base, after).ok()?;
    let read: Option<Vec<(&Path, Cow<'_, str>)>> = leaves
        .iter()
        .map(|(key, (path, _))| match &document.values(key, &end).ok()?[..] {
            [(_, Scalar::Text(text))] => Some((path, text.clone().into())),
            _ => None,
        })
        .collect();
    object.write(&assemble(&schema, read?.into_iter()))
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
