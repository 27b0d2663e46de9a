//! Objects in namespaces that do not exist: one site created them while another deleted the namespace. No controller looks for
//! them, so an operator is told how many there are.

use std::ops::Bound;

use crate::merge::object::peek_namespace;
use crate::replica::Replica;
use crate::words::key::Key;

/// What one look found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Strays {
    /// How many of the keys hold an object whose namespace does not exist.
    pub count: u64,
    /// The last key that was looked at; `None` when there are no more.
    pub next: Option<Key>,
}

impl Replica {
    /// Counts among at most `max` keys behind one (`None`: from the first) those that hold an object whose namespace does not
    /// exist.
    pub fn strays(&self, after: Option<&Key>, max: usize) -> Strays {
        let prefix = &self.rules.current().prefix;
        let first = Key::from(prefix.clone());
        let from = after.map_or(Bound::Included(&first), Bound::Excluded);
        let mut found = Strays::default();
        let under = self.state.index.iter_from(from).take_while(|(key, _)| key.starts_with(prefix));
        let mut namespace: (&[u8], bool) = (b"", true);
        for (looked, (key, versions)) in under.enumerate() {
            if looked == max {
                return found;
            }
            found.next = Some(key.clone());
            // Of an object in a namespace the key names it: /registry/pods/NAMESPACE/NAME.
            let Some(name) = key.rsplit(|byte| *byte == b'/').nth(1) else { continue };
            let Some(content) = versions.last().and_then(|version| version.content.as_ref()) else { continue };
            if namespace.0 != name {
                namespace = (name, self.is_namespace(prefix, name));
            }
            found.count += u64::from(!namespace.1 && peek_namespace(content.value.here()) == Some(name));
        }
        found.next = None;
        found
    }

    fn is_namespace(&self, prefix: &[u8], name: &[u8]) -> bool {
        let key = [prefix, b"namespaces/", name].concat();
        self.state.index.newest(&key).is_some_and(|(_, version)| version.is_live())
    }
}
