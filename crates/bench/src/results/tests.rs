use super::*;
use crate::scenario::{Disk, System};

fn cell(nodes: usize) -> Cell {
    Cell {
        system: System::Eddy,
        nodes,
        disk: Disk::Real,
        flush_delay_ms: 0,
        round_trip_ms: 0.5,
        clients: 4,
        rate: 0.0,
        watchers: 0,
    }
}

fn measured() -> Measured {
    let mut put = histogram();
    for us in [100, 100, 2_000, 3_600_000_000] {
        put.record(us).expect("in bounds");
    }
    Measured {
        metrics: vec![
            ("throughput".into(), None, 12.5),
            ("cpu_s".into(), Some(2), 0.25),
            ("bad".into(), None, f64::NAN),
        ],
        latencies: vec![("put".into(), put)],
        steps: vec![vec![], vec![Step { done: 3, failed: 1, latency_us_sum: 700, latency_us_max: 400 }]],
    }
}

#[test]
fn an_experiment_comes_back_as_it_was_kept() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("results.db");
    let origin = Origin { scenario: "s".into(), seed: u64::MAX - 3, began: "today".into(), ..Origin::default() };
    let mut results = Results::open(&path)?;
    results.scenario("s", "text")?;
    let id = results.keep(&cell(3), &origin, Ok(&measured()))?;
    drop(results);

    let results = Results::open(&path)?;
    assert_eq!(results.scenarios()?, [("s".to_owned(), "text".to_owned())]);
    let experiments = results.experiments("s")?;
    let [kept] = &experiments[..] else { panic!("{} experiments", experiments.len()) };
    assert_eq!((kept.id, &kept.cell, &kept.origin), (id, &cell(3), &origin));
    // What is not a number is not kept.
    assert_eq!(kept.measured.metrics, &measured().metrics[..2]);
    assert_eq!((kept.metric("throughput"), kept.metric("cpu_s")), (Some(12.5), None));
    assert_eq!(kept.measured.latencies, measured().latencies);
    assert_eq!(kept.measured.steps, measured().steps);
    Ok(())
}

#[test]
fn finished_and_failed_are_counted_apart() -> Result<()> {
    let mut results = Results::open(Path::new(":memory:"))?;
    results.scenario("s", "text")?;
    let origin = Origin { scenario: "s".into(), ..Origin::default() };
    results.keep(&cell(3), &origin, Ok(&measured()))?;
    results.keep(&cell(3), &origin, Err("it did not start"))?;
    results.keep(&cell(3), &origin, Ok(&measured()))?;
    assert_eq!((results.finished("s", &cell(3))?, results.finished("s", &cell(5))?), ((2, 1), (0, 0)));
    assert_eq!(results.experiments("s")?.len(), 2);
    assert_eq!(results.failures("s")?, [(cell(3), "it did not start".to_owned())]);
    Ok(())
}

#[test]
fn a_changed_scenario_does_not_mix_with_what_it_was() -> Result<()> {
    let mut results = Results::open(Path::new(":memory:"))?;
    results.scenario("s", "first")?;
    results.scenario("s", "changed before anything ran")?;
    results.keep(&cell(1), &Origin { scenario: "s".into(), ..Origin::default() }, Ok(&measured()))?;
    results.scenario("s", "changed before anything ran")?;
    let error = results.scenario("s", "changed later").expect_err("mixed").to_string();
    assert!(error.contains("another scenario 's'"), "{error}");
    Ok(())
}

#[test]
fn other_files_are_left_alone() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("file");
    std::fs::write(&path, "no database, but long enough to be looked at as one")?;
    assert!(Results::open(&path).is_err());
    let other = dir.path().join("other.db");
    Connection::open(&other)?.execute_batch("CREATE TABLE mine (x)")?;
    let error = Results::open(&other).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("of something else"), "{error}");
    Ok(())
}
