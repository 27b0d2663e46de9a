//! The rooms of a crate stand in an order: each knows only those above it in the list.
//!
//! The test reads the source text. It takes every `crate::` path, in a `use` or in the middle of code, as knowledge of the
//! room that it names. A path that climbs out of its own room with `super::` counts too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// A crate whose rooms have an order.
struct Order {
    /// Its source folder, seen from the workspace.
    sources: &'static str,
    /// Its rooms: the modules at its root. Each may know those before it.
    rooms: &'static [&'static str],
    /// The most circles of files that there may be: files that know each other, directly or through others.
    circles_max: usize,
}

const ORDERS: &[Order] = &[
    Order {
        sources: "crates/crdt/src",
        rooms: &["words", "command", "entry", "store", "merge", "replica", "boot", "sync"],
        circles_max: 0,
    },
    Order {
        sources: "crates/server/src",
        rooms: &[
            "version", "limits", "program", "config", "tls", "cli", "logging", "metrics", "storage", "node", "auth",
            "backup", "api", "peer", "moving", "admin", "http", "grpc", "gateway", "listen", "command", "assemble",
            "run",
        ],
        circles_max: 0,
    },
];

/// A source file.
struct Source {
    /// Its path inside the source folder.
    path: PathBuf,
    /// The module that it holds; empty for the root of the crate.
    module: Vec<String>,
    /// The absolute paths that it names, without `crate`.
    names: BTreeSet<Vec<String>>,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads all sources below a folder.
fn read(root: &Path, folder: &Path, sources: &mut Vec<Source>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(root, &path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
            let path = path.strip_prefix(root)?.to_owned();
            let module = module_of(&path);
            let names = names_in(&text, &module);
            sources.push(Source { path, module, names });
        }
    }
    Ok(())
}

fn module_of(path: &Path) -> Vec<String> {
    let mut module: Vec<String> =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// The paths that a file names, from the root of its crate. A `use` in braces names each of its parts.
fn names_in(text: &str, module: &[String]) -> BTreeSet<Vec<String>> {
    let code = code_of(text);
    let children: BTreeSet<&str> =
        code.split("mod ").skip(1).filter_map(|rest| rest.split_once(';')).map(|(c, _)| c).collect();
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("::") {
        let before = &code[..at];
        let head = before.rfind(|c: char| !is_word(c)).map_or(0, |end| end + 1);
        // Only at the beginning of a path.
        if before[..head].ends_with("::") {
            continue;
        }
        let base = match &before[head..] {
            "crate" => Some(vec![]),
            "self" => Some(module.to_vec()),
            "super" => module.split_last().map(|(_, parent)| parent.to_vec()),
            child if children.contains(child) => Some([module, &[child.to_owned()]].concat()),
            _ => None,
        };
        if let Some(base) = base {
            read_tree(&code[at + 2..], base, &mut names);
        }
    }
    names
}

/// The text without comments. Inside a module in braces, `super` is the file itself.
fn code_of(text: &str) -> String {
    let (mut code, mut inside) = (String::new(), false);
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        inside = match line {
            "}" => false,
            _ => inside || (line.ends_with('{') && line.split_whitespace().any(|word| word == "mod")),
        };
        code.push_str(&if inside { line.replace("super::", "self::") } else { line.to_owned() });
        code.push('\n');
    }
    code
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Reads what follows a path: a name, a deeper path, or several in braces. Returns the rest of the text.
fn read_tree<'a>(mut text: &'a str, mut path: Vec<String>, names: &mut BTreeSet<Vec<String>>) -> &'a str {
    text = text.trim_start();
    if let Some(inside) = text.strip_prefix('{') {
        text = inside;
        loop {
            text = text.trim_start();
            if let Some(rest) = text.strip_prefix('}') {
                return rest;
            }
            if text.is_empty() {
                return text;
            }
            let rest = read_tree(text, path.clone(), names).trim_start();
            // Whatever is no path here is skipped, so that the loop ends.
            let next = rest.find([',', '}']).unwrap_or(rest.len());
            text = rest[next..].strip_prefix(',').unwrap_or(&rest[next..]);
        }
    }
    let end = text.find(|c: char| !is_word(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match name {
        "" | "self" => {}
        "super" => drop(path.pop()),
        name => path.push(name.to_owned()),
    }
    match rest.strip_prefix("::") {
        Some(rest) if !name.is_empty() => read_tree(rest, path, names),
        _ => {
            names.insert(path);
            rest
        }
    }
}

/// The imports that go up: file, what it names.
fn upward<'a>(order: &Order, sources: &'a [Source]) -> Vec<(&'a Path, &'a Vec<String>)> {
    let rank =
        |module: &[String]| order.rooms.iter().position(|room| module.first().is_some_and(|first| first == room));
    let mut upward = vec![];
    for source in sources {
        let Some(own) = rank(&source.module) else { continue };
        let above = source.names.iter().filter(|name| rank(name).is_some_and(|named| named > own));
        upward.extend(above.map(|name| (source.path.as_path(), name)));
    }
    upward
}

/// Groups of files that know each other, directly or through others.
fn circles(sources: &[Source]) -> Vec<Vec<&Path>> {
    let by_module: BTreeMap<&[String], usize> =
        sources.iter().enumerate().map(|(at, source)| (source.module.as_slice(), at)).collect();
    // A name lies in the file of the longest module that it begins with.
    let file_of = |name: &[String]| (0..=name.len()).rev().find_map(|len| by_module.get(&name[..len]).copied());
    let knows: Vec<BTreeSet<usize>> = sources
        .iter()
        .enumerate()
        .map(|(at, source)| source.names.iter().filter_map(|name| file_of(name)).filter(|to| *to != at).collect())
        .collect();
    let reach = |from: usize| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            open.extend(knows[at].iter().copied().filter(|to| seen.insert(*to)));
        }
        seen
    };
    let reached: Vec<BTreeSet<usize>> = (0..sources.len()).map(reach).collect();
    let mut circles: BTreeSet<Vec<&Path>> = BTreeSet::new();
    for at in (0..sources.len()).filter(|at| reached[*at].contains(at)) {
        let circle = (0..sources.len()).filter(|to| reached[at].contains(to) && reached[*to].contains(&at));
        circles.insert(circle.map(|file| sources[file].path.as_path()).collect());
    }
    circles.into_iter().collect()
}

#[test]
fn each_room_knows_only_those_above_it() -> Result<()> {
    for order in ORDERS {
        let root = workspace().join(order.sources);
        let mut sources = vec![];
        read(&root, &root, &mut sources)?;
        for source in &sources {
            let homeless = source.module.first().filter(|room| !order.rooms.contains(&room.as_str()));
            ensure!(homeless.is_none(), "{}: {} is in none of the rooms", order.sources, source.path.display());
        }
        let upward = upward(order, &sources);
        let told: Vec<String> =
            upward.iter().map(|(path, name)| format!("{} knows crate::{}", path.display(), name.join("::"))).collect();
        ensure!(told.is_empty(), "{}: imports that go up:\n{}", order.sources, told.join("\n"));
        let circles = circles(&sources);
        let (rooms, files) = (order.rooms.len(), sources.len());
        println!("{}: {rooms} rooms, {files} files, {} circles: {circles:?}", order.sources, circles.len());
        ensure!(circles.len() <= order.circles_max, "{}: circles of files: {circles:#?}", order.sources);
    }
    Ok(())
}

/// The reader itself: what it misses, it would let pass.
#[test]
fn paths_are_read_however_they_are_written() {
    let text = "mod k;\nuse crate::a::{B, c::{D, self}, e as f};\n// crate::no\nlet x = crate::g::h();\n\
                use super::super::i::J;\npub use k::L;\nlet y: std::fmt::Result = m::n();\n\
                mod tests {\n    use super::*;\n}\n";
    let module = ["q".to_owned(), "r".to_owned()];
    let names: Vec<String> = names_in(text, &module).iter().map(|name| name.join("::")).collect();
    assert_eq!(names, ["a::B", "a::c", "a::c::D", "a::e", "g::h", "i::J", "q::r", "q::r::k::L"]);
}
