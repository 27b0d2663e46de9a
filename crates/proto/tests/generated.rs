//! The committed code in `src/gen` is what the `.proto` files generate.
//!
//! After a change of a `.proto` file: `EDDY_REGENERATE=1 cargo test -p eddy-proto --test generated`.

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message;

mod common;

/// The packages of etcd's API that its JSON gateway reads and writes.
const IN_JSON: [&str; 5] = ["etcdserverpb", "mvccpb", "authpb", "v3electionpb", "v3lockpb"];

/// What their messages are called and made of, for the gateway.
const DESCRIPTORS: &str = "etcd.bin";

const GEN_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gen");

/// Contents of all files of a directory, by file name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("the directory is readable");
    entries
        .map(|entry| {
            let entry = entry.expect("the directory is readable");
            let bytes = std::fs::read(entry.path()).expect("the file is readable");
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect()
}

#[test]
fn committed_code_is_what_the_proto_files_generate() {
    let fresh_dir = tempfile::tempdir().expect("a scratch directory");
    let protos = common::compile().file_descriptor_set();
    let mut in_json = protos.clone();
    in_json.file.retain(|file| IN_JSON.contains(&file.package()));
    in_json.file.iter_mut().for_each(|file| file.source_code_info = None);
    std::fs::write(fresh_dir.path().join(DESCRIPTORS), in_json.encode_to_vec()).expect("the descriptors are written");
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
        for (name, bytes) in &fresh {
            std::fs::write(gen_dir.join(name), bytes).expect("a generated file is written");
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
