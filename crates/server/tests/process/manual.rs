//! Man pages and completions, against the table of flags.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use eddy_server::config::flags::FLAGS;

/// The commands besides serving.
const COMMANDS: &[&str] = &[
    "completions",
    "declare",
    "doctor",
    "explain",
    "explain-merge",
    "export",
    "import",
    "leap",
    "man",
    "merges",
    "rescue",
    "restore",
    "status",
];

fn eddy(args: &[&str]) -> Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_eddy")).args(args).output()?;
    ensure!(output.status.success(), "eddy {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// What follows one of the marks, up to where a flag's name ends.
fn flags_after<'a>(text: &'a str, marks: &[&str]) -> BTreeSet<&'a str> {
    let name = |rest: &'a str| rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).next().unwrap_or("");
    marks.iter().flat_map(|mark| text.match_indices(mark).map(|(at, mark)| name(&text[at + mark.len()..]))).collect()
}

fn missing(found: &BTreeSet<&str>, listed: bool) -> Vec<&'static str> {
    FLAGS
        .iter()
        .filter(|flag| flag.is_listed() == listed)
        .map(|flag| flag.name)
        .filter(|name| !found.contains(name))
        .collect()
}

#[test]
fn the_man_page_has_every_flag_with_its_variable_and_default() -> Result<()> {
    let page = eddy(&["man"])?.replace("\\-", "-");
    let entries: Vec<&str> = page.split(".TP\n").collect();
    let mut found = BTreeSet::new();
    for flag in FLAGS.iter().filter(|flag| flag.is_listed()) {
        let begins = format!("\\fB--{}\\fR", flag.name);
        let entry = entries.iter().find(|entry| entry.starts_with(&begins)).with_context(|| format!("no {begins}"))?;
        // A quote in text is written as the quote that it is.
        let said = flag.said().replace('\'', "\\*(Aq");
        ensure!(entry.replace('\'', "\\*(Aq").contains(&said), "{} is not said of {begins}: {entry}", said);
        ensure!(entry.contains(&flag.env()), "{begins} lacks its variable: {entry}");
        ensure!(flag.default.is_empty() || entry.contains(&format!("[default: {}]", flag.default)), "{entry}");
        found.insert(flag.name);
    }
    ensure!(found.len() > 100, "only {} flags", found.len());
    Ok(())
}

#[test]
fn each_command_has_a_page() -> Result<()> {
    let folder = tempfile::tempdir()?;
    eddy(&["man", "--dir", folder.path().to_str().context("a path")?])?;
    let mut wanted: Vec<String> = COMMANDS.iter().map(|command| format!("eddy-{command}.1")).collect();
    wanted.push("eddy.1".to_owned());
    wanted.sort();
    let mut made = Vec::new();
    for entry in std::fs::read_dir(folder.path())? {
        made.push(entry?.file_name().into_string().map_err(|name| anyhow::anyhow!("{name:?}"))?);
    }
    made.sort();
    assert_eq!(made, wanted);
    let page = std::fs::read_to_string(folder.path().join("eddy-restore.1"))?.replace("\\-", "-");
    ensure!(page.contains("\\fB--skip-hash-check\\fR"), "{page}");
    Ok(())
}

#[test]
fn the_completions_have_every_flag_that_the_help_lists() -> Result<()> {
    for (shell, marks) in [("bash", &[" --", "\"--"][..]), ("zsh", &["'--"]), ("fish", &[" -l "])] {
        let script = eddy(&["completions", shell])?;
        let found = flags_after(&script, marks);
        let lacking = missing(&found, true);
        ensure!(lacking.is_empty(), "{shell} lacks {lacking:?}");
        // Names of old releases are taken, and offered to nobody.
        let removed = FLAGS.iter().filter(|flag| !flag.is_listed()).count();
        assert_eq!(missing(&found, false).len(), removed, "{shell} offers a flag of an old release");
    }
    Ok(())
}

/// What bash offers for the last of these words.
fn offered(line: &[&str]) -> Result<BTreeSet<String>> {
    let words = line.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("eddy.bash");
    std::fs::write(&script, eddy(&["completions", "bash"])?)?;
    std::fs::create_dir(folder.path().join("certificates"))?;
    // As readline calls it: the function that was registered for the command, with the words in its variables. Only
    // readline's own `compopt` is missing outside of it.
    let ask = format!(
        "set -eu; . {}; compopt() {{ [ \"$*\" != '-o plusdirs' ] || COMPREPLY=($(compgen -d -- \"${{COMP_WORDS[-1]}}\")); }}; \
         COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE=\"${{COMP_WORDS[*]}}\"; \
         COMP_POINT=${{#COMP_LINE}}; registered=$(complete -p eddy); [[ $registered =~ -F\\ ([^ ]+) ]]; set +eu; \
         \"${{BASH_REMATCH[1]}}\" eddy \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display()
    );
    let output =
        Command::new("bash").args(["--norc", "-c", &ask]).current_dir(folder.path()).output().context("bash")?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success() && told.is_empty(), "bash: {told}");
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect())
}

#[test]
fn bash_completes_flags_commands_and_paths() -> Result<()> {
    let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(offered(&["eddy", "--quota"])?, set(&["--quota-backend-bytes"]));
    assert_eq!(offered(&["eddy", "--name", "a", "--sync-i"])?, set(&["--sync-interval"]));
    assert_eq!(offered(&["eddy", "sta"])?, set(&["status"]));
    assert_eq!(offered(&["eddy", "status", "--endp"])?, set(&["--endpoints"]));
    assert_eq!(offered(&["eddy", "explain", "m"])?, set(&["merge"]));
    assert_eq!(offered(&["eddy", "completions", "fi"])?, set(&["fish"]));
    assert_eq!(offered(&["eddy", "--data-dir", "cert"])?, set(&["certificates"]));
    // All of them, each once.
    let all = offered(&["eddy", "--"])?;
    let lacking: Vec<_> = FLAGS.iter().filter(|f| f.is_listed() && !all.contains(&format!("--{}", f.name))).collect();
    ensure!(lacking.is_empty(), "{:?}", lacking.iter().map(|flag| flag.name).collect::<Vec<_>>());
    Ok(())
}
