//! What the founders of a cluster declare about merges, read and checked: the prefix of Kubernetes objects, counters, and fields
//! that merge as one value.

use std::collections::BTreeSet;

use crate::command::counter::{AtomicRule, CounterRule};
use crate::merge::object::path::{self, Path, Step};
use crate::merge::object::replay::COUNTER_MAX;
use crate::merge::object::schema::{Resolution, Schema, Shape, set_once};
use crate::merge::rules::Rules;

/// Most counters, and most other fields, that can be declared: every greeting names them.
const DECLARED_MAX: usize = 64;

/// Longest declaration, bytes.
const LENGTH_MAX: usize = 256;

/// Why a declaration was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadDeclaration {
    /// Not a prefix.
    #[error("a prefix begins and ends with '/', as in /registry/")]
    Prefix,
    /// Too long.
    #[error("at most {LENGTH_MAX} bytes are allowed")]
    TooLong,
    /// Too many of one sort.
    #[error("at most {DECLARED_MAX} fields can be declared")]
    TooMany,
    /// Not of the form of a field that is one value.
    #[error("{0:?} is not apiVersion/Kind:.path, as in apps/v1/Deployment:.spec.template")]
    AtomicForm(String),
    /// The field is merged in another way.
    #[error("{0} cannot be one value: the rules say how that field, or what lies in it or around it, is merged")]
    AtomicDecided(String),
    /// A counter lies in a field that is one value.
    #[error("the counter {0} lies in {1}, which is one value")]
    CounterInside(String, String),
    /// Not of the form of a counter.
    #[error("{0:?} is not apiVersion/Kind:.path[:min=number], as in apps/v1/Deployment:.spec.replicas:min=0")]
    Form(String),
    /// The kind is not one.
    #[error("{0:?} is no kind with its apiVersion, as in apps/v1/Deployment or v1/ReplicationController")]
    Kind(String),
    /// The path is not one.
    #[error("{0:?} is no path of fields, as in .spec.replicas; what is declared does not lie in a list")]
    Path(String),
    /// The field is merged in another way.
    #[error("{0} cannot be a counter: the rules say how that field, or what it lies in, is merged")]
    Decided(String),
    /// The minimum is not a number that a counter can hold.
    #[error("{0:?} is no minimum: a whole number of at most 47 bits is wanted")]
    Minimum(String),
    /// A field is declared twice.
    #[error("{0} is declared twice")]
    Twice(String),
}

/// Reads the prefix of Kubernetes objects.
///
/// # Errors
/// When no apiserver would keep its objects there.
pub fn prefix(text: &str) -> Result<String, BadDeclaration> {
    if text.len() > LENGTH_MAX {
        return Err(BadDeclaration::TooLong);
    }
    let whole = text.starts_with('/') && text.ends_with('/') && !text.contains("//");
    let readable = text.chars().all(|c| !c.is_control() && !c.is_whitespace());
    if whole && readable { Ok(text.to_owned()) } else { Err(BadDeclaration::Prefix) }
}

/// Reads counters, parted by commas. Their order does not matter: all founders must begin with the same bytes.
///
/// # Errors
/// When one of them is malformed, or is no field that could be a counter.
pub fn counters(text: &str) -> Result<Vec<CounterRule>, BadDeclaration> {
    let mut counters = each(text, counter)?;
    counters.sort_unstable();
    let mut seen = BTreeSet::new();
    let twice = counters.iter().find(|c| !seen.insert((&c.api_version, &c.kind, &c.path)));
    twice.map_or(Ok(()), |twice| Err(BadDeclaration::Twice(twice.to_string())))?;
    Ok(counters)
}

/// Reads fields that merge as one value, parted by commas, beside counters that are read already. Their order does not matter.
///
/// # Errors
/// When one of them is malformed, is merged in a way of its own, or has a counter in it.
pub fn atomic(text: &str, counters: &[CounterRule]) -> Result<Vec<AtomicRule>, BadDeclaration> {
    let mut all = each(text, one_value)?;
    all.sort_unstable();
    if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(BadDeclaration::Twice(pair[0].to_string()));
    }
    for rule in &all {
        let of_kind = counters.iter().filter(|c| (&c.api_version, &c.kind) == (&rule.api_version, &rule.kind));
        let inside = |c: &&CounterRule| format!("{}.", c.path).starts_with(&format!("{}.", rule.path));
        if let Some(counter) = of_kind.clone().find(inside) {
            return Err(BadDeclaration::CounterInside(counter.to_string(), rule.to_string()));
        }
    }
    Ok(all)
}

/// Reads declarations of one sort, parted by commas.
fn each<T>(text: &str, read: fn(&str) -> Result<T, BadDeclaration>) -> Result<Vec<T>, BadDeclaration> {
    let declared = text.split(',').map(str::trim).filter(|declared| !declared.is_empty());
    let all = declared.map(|one| if one.len() > LENGTH_MAX { Err(BadDeclaration::TooLong) } else { read(one) });
    let all = all.collect::<Result<Vec<_>, _>>()?;
    if all.len() > DECLARED_MAX { Err(BadDeclaration::TooMany) } else { Ok(all) }
}

/// The parts of a kind with its API version.
fn kind_of(of: &str) -> Result<(&str, &str), BadDeclaration> {
    let parts = of.rsplit_once('/').filter(|(api_version, kind)| is_api_version(api_version) && is_name(kind));
    parts.ok_or_else(|| BadDeclaration::Kind(of.to_owned()))
}

/// What of an object's metadata may be declared to be one value: no merge means anything else by it.
const FREE_METADATA: &[&str] = &["labels", "annotations"];

fn one_value(text: &str) -> Result<AtomicRule, BadDeclaration> {
    let form = || BadDeclaration::AtomicForm(text.to_owned());
    let (of, path) = text.split_once(':').filter(|(_, path)| !path.contains(':')).ok_or_else(form)?;
    let (api_version, kind) = kind_of(of)?;
    let fields = fields(path).ok_or_else(|| BadDeclaration::Path(path.to_owned()))?;
    let decided = || BadDeclaration::AtomicDecided(text.to_owned());
    match fields[..] {
        ["apiVersion" | "kind" | "metadata"] => return Err(decided()),
        ["metadata", field, ..] if !FREE_METADATA.contains(&field) => return Err(decided()),
        _ => {}
    }
    if set_once(api_version, kind).iter().any(|once| once.starts_with(&fields) || fields.starts_with(once)) {
        return Err(decided());
    }
    let rules = Rules::default();
    let schema = Schema::new(api_version, kind, &rules);
    let mut way = Path::default();
    for field in fields {
        let around = schema.shape(&way);
        let is_one_of_several = schema.together(&way).iter().any(|one| one.fields.contains(&field));
        way.push(Step::Field(field.to_owned()));
        if is_one_of_several
            || !matches!(around, Shape::Plain | Shape::Optional)
            || schema.resolution(&way) != Resolution::LastWriter
        {
            return Err(decided());
        }
    }
    Ok(AtomicRule { api_version: api_version.to_owned(), kind: kind.to_owned(), path: way.to_string() })
}

fn counter(text: &str) -> Result<CounterRule, BadDeclaration> {
    let form = || BadDeclaration::Form(text.to_owned());
    let mut parts = text.split(':');
    let (Some(of), Some(path), minimum, None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(form());
    };
    let minimum = minimum.map(|minimum| minimum.strip_prefix("min=").ok_or_else(form)).transpose()?;
    let (api_version, kind) = kind_of(of)?;
    let fields = fields(path).ok_or_else(|| BadDeclaration::Path(path.to_owned()))?;
    let rules = Rules::default();
    let schema = Schema::new(api_version, kind, &rules);
    let mut way = Path::default();
    for field in fields {
        let is_one_of_several = schema.together(&way).iter().any(|one| one.fields.contains(&field));
        way.push(Step::Field(field.to_owned()));
        if is_one_of_several
            || !matches!(schema.shape(&way), Shape::Plain | Shape::Optional)
            || schema.resolution(&way) != Resolution::LastWriter
        {
            return Err(BadDeclaration::Decided(text.to_owned()));
        }
    }
    let number = |text: &str| text.parse().ok().filter(|number| (-COUNTER_MAX..=COUNTER_MAX).contains(number));
    let minimum = minimum.map(|text| number(text).ok_or_else(|| BadDeclaration::Minimum(text.to_owned())));
    Ok(CounterRule {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        path: way.to_string(),
        minimum: minimum.transpose()?,
    })
}

/// The fields of a path, if it leads through fields alone.
fn fields(path: &str) -> Option<Vec<&str>> {
    let fields: Vec<&str> = path.strip_prefix('.')?.split('.').collect();
    fields.iter().all(|field| path::is_plain(field)).then_some(fields)
}

/// Whether that is a version, or a group with a version.
fn is_api_version(text: &str) -> bool {
    let (group, version) = text.split_once('/').map_or((None, text), |(group, version)| (Some(group), version));
    let is_group = |group: &str| {
        !group.is_empty() && group.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
    };
    is_name(version) && group.is_none_or(is_group)
}

/// Whether that is a word of letters and digits.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_read_as_they_are_written_in_any_order() {
        let text = "apps/v1/Deployment:.spec.replicas:min=0,v1/ReplicationController:.spec.replicas";
        let read = counters(text).unwrap();
        let written: Vec<String> = read.iter().map(CounterRule::to_string).collect();
        assert_eq!(written.join(","), text);
        let other = "v1/ReplicationController:.spec.replicas, apps/v1/Deployment:.spec.replicas:min=0,";
        assert_eq!(counters(other), Ok(read));
        assert_eq!(counters(""), Ok(vec![]));
        assert_eq!(counters("a.b-c/v1beta1/Thing:.n:min=-3").unwrap()[0].minimum, Some(-3));
    }

    #[test]
    fn what_cannot_be_a_counter_is_refused_with_the_reason() {
        for (text, part) in [
            ("Deployment:.spec.replicas", "no kind with its apiVersion"),
            ("apps/v1/:.spec.replicas", "no kind with its apiVersion"),
            ("apps/b/v1/Deployment:.spec.replicas", "no kind with its apiVersion"),
            ("apps/v1/Deployment", "apiVersion/Kind:.path"),
            ("apps/v1/Deployment:.spec.replicas:0", "apiVersion/Kind:.path"),
            ("apps/v1/Deployment:.spec.replicas:min=0:x", "apiVersion/Kind:.path"),
            ("apps/v1/Deployment:spec.replicas", "no path of fields"),
            ("apps/v1/Deployment:.spec..replicas", "no path of fields"),
            ("apps/v1/Deployment:.spec.containers[0].x", "no path of fields"),
            ("apps/v1/Deployment:.", "no path of fields"),
            ("apps/v1/Deployment:.metadata.generation", "cannot be a counter"),
            ("v1/Pod:.spec.nodeName", "cannot be a counter"),
            ("v1/Pod:.spec.nodeSelector.x", "cannot be a counter"),
            ("apps/v1/Deployment:.status.conditions", "cannot be a counter"),
            ("coordination.k8s.io/v1/Lease:.spec.leaseTransitions", "cannot be a counter"),
            ("apps/v1/Deployment:.spec.replicas:min=many", "no minimum"),
            ("apps/v1/Deployment:.spec.replicas:min=999999999999999999", "no minimum"),
            ("a/v1/A:.n,a/v1/A:.n:min=0", "declared twice"),
        ] {
            let error = counters(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let many: Vec<String> = (0..65).map(|n| format!("a/v1/A:.n{n}")).collect();
        assert_eq!(counters(&many.join(",")), Err(BadDeclaration::TooMany));
        assert_eq!(counters(&format!("a/v1/A:.{}", "n".repeat(300))), Err(BadDeclaration::TooLong));
    }

    #[test]
    fn fields_that_are_one_value_read_as_they_are_written_and_what_cannot_be_one_is_refused() {
        let text = "apps/v1/Deployment:.spec.template,v1/ConfigMap:.data,v1/Thing:.spec";
        let read = atomic("v1/Thing:.spec, v1/ConfigMap:.data,apps/v1/Deployment:.spec.template,", &[]).unwrap();
        assert_eq!(read.iter().map(AtomicRule::to_string).collect::<Vec<_>>().join(","), text);
        assert!(atomic("v1/Service:.metadata.labels,v1/Pod:.spec.containers", &[]).is_ok());
        for (text, part) in [
            ("Deployment:.spec", "no kind with its apiVersion"),
            ("apps/v1/Deployment", "is not apiVersion/Kind:.path"),
            ("apps/v1/Deployment:.spec:min=0", "is not apiVersion/Kind:.path"),
            ("apps/v1/Deployment:.spec.containers[0]", "no path of fields"),
            ("apps/v1/Deployment:.metadata", "cannot be one value"),
            ("apps/v1/Deployment:.metadata.finalizers", "cannot be one value"),
            ("v1/Pod:.spec", "cannot be one value"),
            ("v1/PersistentVolume:.spec.claimRef.name", "cannot be one value"),
            ("coordination.k8s.io/v1/Lease:.spec", "cannot be one value"),
            ("v1/Service:.spec.type", "cannot be one value"),
            ("apps/v1/Deployment:.spec.selector.matchLabels", "cannot be one value"),
            ("v1/A:.n,v1/A:.n", "declared twice"),
        ] {
            let error = atomic(text, &[]).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let counters = counters("apps/v1/Deployment:.spec.replicas:min=0").unwrap();
        let error = atomic("apps/v1/Deployment:.spec", &counters).unwrap_err().to_string();
        assert!(error.contains("lies in apps/v1/Deployment:.spec, which is one value"), "{error}");
        assert!(atomic("apps/v1/ReplicaSet:.spec,apps/v1/Deployment:.spec.rep", &counters).is_ok());
    }

    #[test]
    fn a_prefix_is_a_whole_folder() {
        for good in ["/registry/", "/a/b/", "/"] {
            assert_eq!(prefix(good).as_deref(), Ok(good));
        }
        for bad in ["", "registry/", "/registry", "//", "/a//b/", "/a b/", "/a\n/"] {
            assert_eq!(prefix(bad), Err(BadDeclaration::Prefix), "{bad:?}");
        }
        assert_eq!(prefix(&format!("/{}/", "a".repeat(300))), Err(BadDeclaration::TooLong));
    }
}
