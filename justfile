# What a contributor runs. `just --list` shows all; the workflow in .github runs the same recipes.

# List the recipes.
default:
    @just --list

# Build eddy: target/release/eddy.
build:
    cargo build --release --locked -p eddy-server

# Run the tests that need only Rust.
test:
    cargo test --workspace --locked

# Check formatting, and let clippy look at everything.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    cargo clippy --workspace --test backup --test differential --test kubernetes --locked -- -D warnings

# Fuzz what comes from outside, each target a minute. Needs a C++ compiler.
fuzz *arguments:
    fuzz/run {{ arguments }}

# Compare eddy with a real etcd, and run a real kube-apiserver on it. Needs Go.
peers: build
    tools/peers/build etcd kubernetes
    EDDY_BIN={{ justfile_directory() }}/target/release/eddy cargo test --workspace --locked --test differential
    EDDY_BIN={{ justfile_directory() }}/target/release/eddy cargo test --workspace --locked --test backup
    EDDY_BIN={{ justfile_directory() }}/target/release/eddy cargo test --workspace --locked --test kubernetes

# Run every check there is; installs what it needs on a Debian machine, as root.
ci:
    .ci/run

# Measure the pure parts, and puts beside etcd at 1 to 21 nodes. Needs Go.
bench: build
    tools/peers/build etcd
    cargo bench --locked
