//! The committed code in `src/gen` is what the `.proto` files generate.
//!
//! After a change of a `.proto` file: `EDDY_REGENERATE=1 cargo test -p eddy-proto --test generated`.

use std::collections::BTreeMap;
use std::path::Path;

mod common;

/// Packages of etcd's API that eddy does not serve: their files are compared with etcd's, and no code is made of them.
const NOT_SERVED: [&str; 2] = ["v3electionpb", "v3lockpb"];

const GEN_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gen");

/// Contents of all files of a directory, by file name.
fn files(dir: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(dir).expect("the directory is readable");
    entries
        .map(|entry| {
            let entry = entry.expect("the directory is readable");
            let text = std::fs::read_to_string(entry.path()).expect("the file is readable");
            (entry.file_name().to_string_lossy().into_owned(), text)
        })
        .collect()
}

#[test]
fn committed_code_is_what_the_proto_files_generate() {
    let fresh_dir = tempfile::tempdir().expect("a scratch directory");
    let mut protos = common::compile().file_descriptor_set();
    let all = protos.file.len();
    protos.file.retain(|file| !NOT_SERVED.contains(&file.package()));
    assert_eq!(protos.file.len() + NOT_SERVED.len(), all, "each package that is not served has a file");
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::SmallCodec")
        .out_dir(fresh_dir.path())
        .emit_rerun_if_changed(false)
        .compile_fds(protos)
        .expect("the code is generated");
    let fresh = files(fresh_dir.path());

    let gen_dir = Path::new(GEN_DIR);
    if std::env::var_os("EDDY_REGENERATE").is_some_and(|v| v == "1") {
        std::fs::create_dir_all(gen_dir).expect("src/gen exists");
        for name in files(gen_dir).keys().filter(|name| !fresh.contains_key(*name)) {
            std::fs::remove_file(gen_dir.join(name)).expect("an outdated file is removed");
        }
        for (name, text) in &fresh {
            std::fs::write(gen_dir.join(name), text).expect("a generated file is written");
        }
    }

    let committed = files(gen_dir);
    let names = fresh.keys().chain(committed.keys());
    let mut stale: Vec<&String> = names.filter(|name| fresh.get(*name) != committed.get(*name)).collect();
    stale.sort();
    stale.dedup();
    assert!(
        stale.is_empty(),
        "crates/proto/src/gen is out of date: {stale:?}\n\
         run: EDDY_REGENERATE=1 cargo test -p eddy-proto --test generated"
    );
}
