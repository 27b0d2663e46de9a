//! As much of Prometheus' language as it takes to find the series and labels that an expression names.

use std::collections::BTreeSet;

/// A series with the labels it is chosen by: name, operator, value.
#[derive(Debug, Default, PartialEq)]
pub struct Selector {
    pub series: String,
    pub matchers: Vec<(String, String, String)>,
}

/// What an expression names.
#[derive(Debug, Default)]
pub struct Named {
    pub selectors: Vec<Selector>,
    /// Labels that it adds up by.
    pub labels: BTreeSet<String>,
}

/// Words before a list of labels in parentheses.
const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Words that are no series.
const WORDS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// The text up to a closing character outside of quotes, and what follows it.
fn up_to(text: &str, close: char) -> (&str, &str) {
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            c if c == close && !quoted => return (&text[..at], &text[at + c.len_utf8()..]),
            _ => {}
        }
    }
    (text, "")
}

fn matchers(mut text: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    while let Some((left, rest)) = text.split_once('"') {
        let (value, rest) = rest.split_once('"').unwrap_or((rest, ""));
        let left = left.trim_matches([',', ' ', '\n']);
        let name = left.trim_end_matches(['=', '!', '~', ' ']);
        found.push((name.to_owned(), left[name.len()..].trim().to_owned(), value.to_owned()));
        text = rest;
    }
    found
}

/// Finds the series and labels of an expression, or of a line of `/metrics` without its value.
pub fn parse(mut text: &str) -> Named {
    let mut named = Named::default();
    while let Some(first) = text.chars().next() {
        if first == '[' {
            text = up_to(text, ']').1;
        } else if first == '"' {
            text = text[1..].split_once('"').map_or("", |(_, rest)| rest);
        } else if !is_name(first) {
            text = &text[first.len_utf8()..];
        } else {
            let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
            let (word, rest) = text.split_at(end);
            text = rest;
            let rest = rest.trim_start();
            if first.is_ascii_digit() || WORDS.contains(&word) {
                continue;
            }
            if GROUPING.contains(&word) {
                let (labels, rest) = up_to(rest.trim_start_matches('('), ')');
                named.labels.extend(labels.split(',').map(|label| label.trim().to_owned()));
                text = rest;
            } else if let Some(inside) = rest.strip_prefix('{') {
                let (inside, rest) = up_to(inside, '}');
                named.selectors.push(Selector { series: word.to_owned(), matchers: matchers(inside) });
                text = rest;
            } else if !rest.starts_with('(') && !is_grouped(rest) {
                named.selectors.push(Selector { series: word.to_owned(), matchers: Vec::new() });
            }
        }
    }
    named
}

/// Whether what follows a word says that it adds up: `sum by (...) (...)`.
fn is_grouped(rest: &str) -> bool {
    rest.split(|c| !is_name(c)).next().is_some_and(|word| GROUPING[..2].contains(&word))
}

/// The labels that a text shows between `{{` and `}}`, after `prefix`.
pub fn labels_in_text(text: &str, prefix: &str) -> BTreeSet<String> {
    let inside = text.split("{{").skip(1).filter_map(|rest| rest.split_once("}}")).map(|(inside, _)| inside.trim());
    inside.filter_map(|inside| inside.strip_prefix(prefix)).map(str::to_owned).collect()
}

#[test]
fn series_and_labels_are_found() {
    let found = parse(
        "100 * sum by (job, le) (rate(a_b:c{x=~\"1|}\", y!=\"2\"}[5m])) / d > bool 5 and on (z) e{} unless f == 1e3",
    );
    let selector = |series: &str, matchers: &[(&str, &str, &str)]| Selector {
        series: series.to_owned(),
        matchers: matchers.iter().map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())).collect(),
    };
    let expected = [
        selector("a_b:c", &[("x", "=~", "1|}"), ("y", "!=", "2")]),
        selector("d", &[]),
        selector("e", &[]),
        selector("f", &[]),
    ];
    assert_eq!(found.selectors, expected);
    assert_eq!(found.labels, ["job", "le", "z"].map(str::to_owned).into());
    assert_eq!(labels_in_text("{{ $labels.a }} of {{$value}}", "$labels."), ["a".to_owned()].into());
}
