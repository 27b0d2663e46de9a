//! Where leaves can contradict what they mean together, and what was therefore put right.

use super::super::path::Path;
use super::super::schema::Schema;
use super::place::Place;
use super::refused;

/// Something that is not what the leaves say.
pub struct Mended {
    /// Where it lies.
    pub path: Path,
    /// The head from which all of it comes, if it is one.
    pub from: Option<usize>,
}

impl Mended {
    /// Whether that path leads into it.
    pub fn holds(&self, path: &Path) -> bool {
        path.lies_in(&self.path)
    }
}

/// The places of a kind where leaves can contradict what they mean together.
pub fn watched(schema: &Schema<'_>) -> Vec<Path> {
    let (api_version, kind) = schema.kind();
    let mut places = refused::watched(api_version, kind);
    places.push(Place::of(&["metadata", "ownerReferences"]));
    if schema.is_service() {
        places.push(Place::of(&["spec"]));
    } else if schema.is_crd() {
        places.extend([Place::of(&["status", "storedVersions"]), Place::of(&["spec", "versions"])]);
    }
    places.iter().map(Place::path).collect()
}
