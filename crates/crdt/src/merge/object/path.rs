//! Where a leaf lies in an object, written as server-side apply writes it: `.status.conditions[type="Ready"].status`.

use std::fmt;

use super::json;
use super::schema::catalogue::Together;

/// One step from a value to a part of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// A field of a map.
    Field(String),
    /// An element of a keyed list or a set, named by its key: `type="Ready"`, or `="value"` in a set.
    Element(String),
    /// The order of the elements of a keyed list.
    Order,
    /// All of an element that is one value.
    Whole,
    /// Fields that come from one side.
    Together(&'static Together),
}

/// A way from the root of an object to a part of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Path {
    steps: Vec<Step>,
}

impl Path {
    /// The steps from the root.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Goes one step further.
    pub fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Goes one step back.
    pub fn pop(&mut self) {
        self.steps.pop();
    }

    /// The name of the last step, if that is a field.
    pub fn last_field(&self) -> Option<&str> {
        field(self.steps.last()?)
    }

    /// The last step but one.
    pub fn parent(&self) -> Option<&Step> {
        self.steps.iter().rev().nth(1)
    }

    /// Whether it leads through these fields from the root and no further.
    pub fn is(&self, fields: &[&str]) -> bool {
        self.steps.len() == fields.len() && self.begins_with(fields)
    }

    /// Whether it leads into what lies at that place, or to it.
    pub fn lies_in(&self, place: &Self) -> bool {
        self.steps.starts_with(&place.steps)
    }

    /// Whether it leads through these fields from the root.
    pub fn begins_with(&self, fields: &[&str]) -> bool {
        self.steps.len() >= fields.len() && self.steps.iter().zip(fields).all(|(step, name)| field(step) == Some(name))
    }
}

/// The name of a field step.
pub fn field(step: &Step) -> Option<&str> {
    match step {
        Step::Field(name) => Some(name),
        Step::Element(_) | Step::Order | Step::Whole | Step::Together(_) => None,
    }
}

impl Step {
    /// Writes it behind the steps before it.
    pub fn write(&self, out: &mut String) {
        match self {
            Self::Field(name) if is_plain(name) => {
                out.push('.');
                out.push_str(name);
            }
            Self::Field(name) => {
                out.push('[');
                json::write_string(name, out);
                out.push(']');
            }
            Self::Element(key) => {
                out.push('[');
                out.push_str(key);
                out.push(']');
            }
            Self::Order => out.push_str("[]"),
            Self::Whole => out.push('='),
            Self::Together(together) => {
                out.push('{');
                for (at, name) in together.fields.iter().enumerate() {
                    out.push_str(if at > 0 { "," } else { "" });
                    out.push_str(name);
                }
                out.push('}');
            }
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = String::new();
        self.steps.iter().for_each(|step| step.write(&mut written));
        f.write_str(&written)
    }
}

/// Whether a path leads through the fields of `written` and no further, as in `.spec.template`.
pub fn is_written(path: &Path, written: &str) -> bool {
    let mut fields = written.split('.').skip(1);
    path.steps.iter().all(|step| field(step).is_some() && field(step) == fields.next()) && fields.next().is_none()
}

/// Whether a field is written without quotes.
pub fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_like_those_of_server_side_apply() {
        let mut path = Path::default();
        for step in [
            Step::Field("metadata".to_owned()),
            Step::Field("a.b/c".to_owned()),
            Step::Element("type=\"Ready\"".to_owned()),
            Step::Order,
        ] {
            path.push(step);
        }
        assert_eq!(path.to_string(), ".metadata[\"a.b/c\"][type=\"Ready\"][]");
        path.steps.truncate(1);
        path.push(Step::Field("labels".to_owned()));
        assert!(is_written(&path, ".metadata.labels"));
        for other in [".metadata", ".metadata.labels.a", ".metadata.name", ""] {
            assert!(!is_written(&path, other), "{other}");
        }
    }
}
