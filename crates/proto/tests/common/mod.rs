//! The `.proto` files, compiled without protoc.

use std::path::Path;

use protox::Compiler;

/// Root of all `.proto` files.
const PROTO_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto");

/// Every `.proto` file below [`PROTO_DIR`], compiled with its comments.
pub fn compile() -> Compiler {
    let root = Path::new(PROTO_DIR);
    let mut files = Vec::new();
    find_protos(root, &mut files);
    // A fixed order, so that the generated code does not depend on the file system's.
    files.sort();
    let mut compiler = Compiler::new([root]).expect("the proto directory opens");
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(files).expect("the .proto files compile");
    compiler
}

fn find_protos(dir: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("the proto directory is readable") {
        let path = entry.expect("the proto directory is readable").path();
        if path.is_dir() {
            find_protos(&path, files);
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
}
