//! The fuzz targets without a fuzzer: what `fuzz/corpus` keeps, and a few alterations of it, through each of them.
//!
//! `EDDY_REGENERATE=1 cargo test -p eddy-server --test fuzz` writes the seeds of the corpus anew.
//! `EDDY_FUZZ_ALTERATIONS` is how many alterations of each input are tried (default 20).

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

mod seeds;
#[path = "../../../../fuzz/targets/mod.rs"]
mod targets;

/// The kept corpus of all targets together stays small enough to be read with the sources, bytes.
const CORPUS_MAX: u64 = 512 << 10;

fn corpus() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"))
}

/// The inputs of one target, by name.
fn inputs(target: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = corpus().join(target);
    let mut inputs = vec![];
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        inputs.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    inputs.sort();
    ensure!(inputs.len() >= 4, "only {} inputs for {target}", inputs.len());
    Ok(inputs)
}

#[test]
fn the_kept_corpus_passes() -> Result<()> {
    let mut bytes = 0;
    for (name, target) in targets::TARGETS {
        let inputs = inputs(name)?;
        for (input, data) in &inputs {
            println!("{name}/{input}");
            target(data);
            bytes += data.len() as u64;
        }
        println!("{name}: {} inputs passed", inputs.len());
    }
    ensure!(bytes <= CORPUS_MAX, "the corpus has {bytes} bytes, of which {CORPUS_MAX} are kept");
    Ok(())
}

#[test]
fn each_folder_of_the_corpus_is_a_target() -> Result<()> {
    for entry in fs::read_dir(corpus())? {
        let name = entry?.file_name();
        ensure!(targets::TARGETS.iter().any(|(target, _)| name == *target), "{name:?} is the corpus of no target");
    }
    Ok(())
}

/// What a fuzzer does first, for those who have none.
#[test]
fn alterations_of_the_corpus_pass() -> Result<()> {
    let count: u32 = std::env::var("EDDY_FUZZ_ALTERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    for (name, target) in targets::TARGETS {
        for (input, data) in inputs(name)? {
            for seed in 0..count {
                println!("{name}/{input}, alteration {seed}");
                target(&altered(data.clone(), u64::from(seed)));
            }
        }
    }
    Ok(())
}

fn altered(mut data: Vec<u8>, seed: u64) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=data.len());
        match rng.random_range(0..4) {
            0 => data.truncate(at),
            1 => data.insert(at, rng.random()),
            _ if at == data.len() => {}
            2 => data[at] = rng.random(),
            _ => data[at] ^= 1 << rng.random_range(0..8),
        }
    }
    data
}

/// Seeds are what this build itself sends and keeps. After a change of a format they are written anew.
#[test]
fn the_seeds_are_of_this_build() -> Result<()> {
    for (target, seeds) in seeds::all()? {
        let folder = corpus().join(target);
        for (number, data) in seeds.iter().enumerate() {
            let path = folder.join(format!("seed-{number:02}"));
            if std::env::var("EDDY_REGENERATE").is_ok_and(|value| value == "1") {
                fs::create_dir_all(&folder)?;
                fs::write(&path, data)?;
            }
            let kept = fs::read(&path).with_context(|| path.display().to_string())?;
            ensure!(kept == *data, "{} is not what this build makes: EDDY_REGENERATE=1 writes it anew", path.display());
        }
    }
    Ok(())
}
