//! The faults that `tools/mutations/run` plants: each still fits the sources, so that it can be planted. That the simulation
//! finds them takes longer; the script tells.

use std::path::Path;

/// The lines before and after of each hunk of a diff, and the file that it changes.
fn hunks(patch: &str) -> (Option<&str>, Vec<(String, String)>) {
    let (mut path, mut hunks) = (None, Vec::<(String, String)>::new());
    for line in patch.split_inclusive('\n') {
        if let Some(name) = line.strip_prefix("+++ b/") {
            path = Some(name.trim());
        } else if line.starts_with("@@") {
            hunks.push(Default::default());
        } else if let Some((before, after)) = hunks.last_mut()
            && let Some(kind) = line.chars().next()
        {
            if kind != '+' {
                before.push_str(&line[1..]);
            }
            if kind != '-' {
                after.push_str(&line[1..]);
            }
        }
    }
    (path, hunks)
}

#[test]
fn the_faults_of_the_mutations_fit_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut count = 0;
    for file in std::fs::read_dir(root.join("tools/mutations")).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "patch") {
            continue;
        }
        let patch = std::fs::read_to_string(&file).unwrap();
        let sentence = patch.lines().next().unwrap_or_default();
        assert!(sentence.ends_with('.') && !sentence.starts_with("---"), "{file:?} does not say what it breaks");
        let (path, hunks) = hunks(&patch);
        let source = std::fs::read_to_string(root.join(path.expect("a diff names its file"))).unwrap();
        assert!(!hunks.is_empty(), "{file:?} changes nothing");
        for (before, after) in hunks {
            let places = source.matches(&before).count();
            assert_eq!(places, 1, "{file:?} does not fit {path:?} any more: plant its fault anew\n{before}");
            assert_ne!(before, after, "{file:?} changes nothing");
        }
        count += 1;
    }
    assert!(count >= 10, "{count} faults are too few");
}
