//! The documents: the README stays short; every link, picture, path, module and recipe that a page names exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The README says what eddy is on one page.
const README_LINES_MAX: usize = 130;

/// Folders that hold no documents of ours.
const SKIPPED: &[&str] = &[".git", "target", "node_modules"];

/// A path that begins so is one in this repository, wherever a page names it.
const ROOTS: &[&str] = &[".ci/", ".github/", "crates/", "docker/", "docs/", "examples/", "fuzz/", "proto/", "tools/"];

/// Named in the documents, and made only when they are used.
const MADE_LATER: &[&str] = &[".ci/logs", "docker/certs", "fuzz/artifacts", "fuzz/target/"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// All Markdown pages, as paths from the root.
fn pages() -> Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                if !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    ensure!(pages.len() > 5, "only {} pages were found", pages.len());
    Ok(pages)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| path.display().to_string())
}

/// A page in two parts: prose without code, and all code, in lines and in blocks.
fn split(page: &str) -> (String, String) {
    let (mut prose, mut code) = (String::new(), String::new());
    let mut in_block = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            code.push_str(line);
        } else {
            for (i, part) in line.split('`').enumerate() {
                let target = if i % 2 == 0 { &mut prose } else { &mut code };
                target.push_str(part);
                target.push(' ');
            }
        }
        prose.push('\n');
        code.push('\n');
    }
    (prose, code)
}

/// Where the links and pictures of a page lead.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// `folder/../name` as `name`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// The headings of a page, as links name them.
fn anchors(page: &str) -> BTreeSet<String> {
    let heading = |line: &str| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
    };
    page.lines().filter(|line| line.starts_with('#')).map(heading).collect()
}

#[test]
fn the_readme_fits_one_page() -> Result<()> {
    let lines = read(Path::new("README.md"))?.lines().count();
    ensure!(
        lines <= README_LINES_MAX,
        "README.md has {lines} lines; move what is more than {README_LINES_MAX} to docs/"
    );
    Ok(())
}

#[test]
fn every_link_and_picture_leads_somewhere() -> Result<()> {
    let mut broken = Vec::new();
    let mut found = 0;
    for page in pages()? {
        let (prose, _) = split(&read(&page)?);
        for link in links(&prose).filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            found += 1;
            let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
            let target = match path {
                "" => page.clone(),
                path => normal(&page.parent().unwrap_or(Path::new("")).join(path)),
            };
            let exists = root().join(&target).exists();
            if !exists || anchor.is_some_and(|anchor| !read(&target).is_ok_and(|page| anchors(&page).contains(anchor)))
            {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    ensure!(found > 20, "only {found} links were found");
    ensure!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    Ok(())
}

#[test]
fn every_path_that_a_page_names_exists() -> Result<()> {
    let mut gone = Vec::new();
    let mut found = 0;
    for page in pages()? {
        let (_, code) = split(&read(&page)?);
        for word in code.split(|c: char| c.is_whitespace() || "(),;:'\"=".contains(c)) {
            // A pattern or a placeholder in capitals names no single file.
            if !ROOTS.iter().any(|root| word.starts_with(root)) || word.contains(['*', '{', '<', '$']) {
                continue;
            }
            let path = word.trim_end_matches(['.', '/']);
            let placeholder =
                path.split(['/', '.', '-']).any(|part| !part.is_empty() && part.chars().all(char::is_uppercase));
            if placeholder || MADE_LATER.iter().any(|made| path.starts_with(made)) {
                continue;
            }
            found += 1;
            if !root().join(path).exists() {
                gone.push(format!("{}: {path}", page.display()));
            }
        }
    }
    ensure!(found > 20, "only {found} paths were found");
    ensure!(gone.is_empty(), "pages name what is gone:\n{}", gone.join("\n"));
    Ok(())
}

#[test]
fn every_module_that_the_map_names_exists() -> Result<()> {
    let (_, code) = split(&read(Path::new("ARCHITECTURE.md"))?);
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut found = 0;
    for name in code.split(|c| !is_word(c)).filter(|name| name.contains("::")) {
        found += 1;
        // What follows the modules is a type or one of its methods.
        let modules: Vec<&str> =
            name.split("::").take_while(|part| part.starts_with(|c: char| c.is_ascii_lowercase())).collect();
        let module = modules.join("/");
        let exists = ["crdt", "server", "bench"].iter().any(|name| {
            let source = root().join("crates").join(name).join("src");
            source.join(format!("{module}.rs")).exists() || source.join(&module).is_dir()
        });
        ensure!(modules.is_empty() || exists, "ARCHITECTURE.md names the module of {name}, which is not there");
    }
    ensure!(found > 10, "only {found} names were found");
    Ok(())
}

#[test]
fn every_committed_picture_is_shown() -> Result<()> {
    let mut shown = BTreeSet::new();
    for page in pages()? {
        let (prose, _) = split(&read(&page)?);
        shown.extend(links(&prose).map(|link| normal(&page.parent().unwrap_or(Path::new("")).join(link))));
    }
    for entry in std::fs::read_dir(root().join("docs/results"))? {
        let path = Path::new("docs/results").join(entry?.file_name());
        ensure!(shown.contains(&path), "no page shows {}", path.display());
    }
    Ok(())
}

#[test]
fn every_recipe_that_is_called_is_in_the_justfile() -> Result<()> {
    let justfile = read(Path::new("justfile"))?;
    let recipes: BTreeSet<&str> = justfile
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|line| line.split_once(':').map(|(head, _)| head.split(' ').next().unwrap_or(head)))
        .collect();
    let mut called: BTreeMap<String, PathBuf> = BTreeMap::new();
    let workflow = PathBuf::from(".github/workflows/ci.yml");
    for page in pages()?.into_iter().chain([workflow.clone()]) {
        let text = read(&page)?;
        let code = if page == workflow { text } else { split(&text).1 };
        for line in code.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            for pair in words.windows(2).filter(|pair| pair[0] == "just") {
                if pair[1].chars().all(|c| c.is_ascii_lowercase()) {
                    called.insert(pair[1].to_owned(), page.clone());
                }
            }
        }
    }
    ensure!(called.len() > 3, "only {called:?} are called");
    for (recipe, page) in called {
        ensure!(recipes.contains(recipe.as_str()), "{} calls the recipe {recipe}, which is not there", page.display());
    }
    Ok(())
}
