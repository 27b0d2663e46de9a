use super::*;
use crate::load::recorder::{Step, histogram};
use crate::results::{Measured, Origin};

const SCENARIO: &str = "
name = 's'
about = 'What it asks.'
[cluster]
nodes = [1, 3]
[[network.event]]
at_s = 2
isolate = [0]
[[network.event]]
at_s = 4
heal = true
[load]
kind = 'closed'
clients = [4]
mix = { put = 1 }
measure_s = 6
[[figure]]
kind = 'line'
x = 'nodes'
y = 'throughput'
[[figure]]
kind = 'distribution'
of = 'put'
[[figure]]
kind = 'timeline'
[[figure]]
kind = 'bars'
y = 'throughput'
[[figure]]
kind = 'bars'
y = 'nothing'
";

/// Results in which eddy does 100 operations per second and node, and etcd 40, and none where it is cut off.
fn results(runs: u32) -> Result<Results> {
    let mut results = Results::open(Path::new(":memory:"))?;
    results.scenario("s", SCENARIO)?;
    for cell in Scenario::parse("s", SCENARIO)?.cells() {
        let rate = if cell.system == System::Eddy { 100 } else { 40 };
        for run in 0..runs {
            let mut put = histogram();
            for us in 1..=1000 {
                put.record(us * if cell.system == System::Eddy { 1 } else { 10 })?;
            }
            let step = |node, number| {
                let cut = cell.system == System::Etcd && node == 0 && (8..16).contains(&number);
                Step { done: if cut { 0 } else { rate / 4 }, ..Step::default() }
            };
            let steps = (0..cell.nodes).map(|node| (0..24).map(|number| step(node, number)).collect()).collect();
            let throughput = (rate * cell.nodes as u64) as f64 + f64::from(run);
            let metrics = [("throughput", throughput), ("p50_ms", 0.5), ("p99_ms", 1.0)];
            let metrics = metrics.map(|(name, value)| (name.to_owned(), None, value)).to_vec();
            let origin = Origin { scenario: "s".into(), load: 0.5, version: "v1".into(), ..Origin::default() };
            results.keep(&cell, &origin, Ok(&Measured { metrics, latencies: vec![("put".into(), put)], steps }))?;
        }
    }
    Ok(results)
}

#[test]
fn the_point_of_each_figure_is_said_above_it() -> Result<()> {
    let blocks = blocks(&results(3)?)?;
    let points: Vec<_> =
        blocks.iter().filter_map(|b| if let Block::Figure { point, .. } = b { Some(point) } else { None }).collect();
    assert_eq!(points[0], "At 3 nodes, 4 clients, operations per second: eddy 301, etcd 121, 2.49 times more");
    assert!(points[1].contains("eddy, 1 node 0.99 ms; etcd, 1 node 9.9"), "{}", points[1]);
    assert!(points[2].contains("eddy cut off 100 /s") && points[2].contains("etcd cut off 0 /s"), "{}", points[2]);
    assert!(points[2].contains("etcd others 40 /s"), "{}", points[2]);
    assert!(points[3].contains("etcd, 3 nodes 121"), "{}", points[3]);
    assert!(blocks.contains(&Block::Text("Figure 4 is not drawn: there is nothing to draw.".to_owned())));
    Ok(())
}

#[test]
fn differences_are_said_only_where_there_are_some() -> Result<()> {
    let blocks = blocks(&results(3)?)?;
    let list = blocks.iter().rev().find_map(|b| if let Block::List(items) = b { Some(items) } else { None });
    let list = list.context("comparisons")?;
    assert_eq!(
        list[1],
        "3 nodes, 4 clients: done /s 2.49 x etcd's (p = 0.0495); p50 no difference (p = 1); p99 no difference (p = 1)"
    );
    assert!(verdict(&[2.0], &[1.0]).contains("2 x etcd's (too few runs to test)"));
    Ok(())
}

#[test]
fn a_report_is_written_with_its_figures() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut results = results(1)?;
    let cell = Scenario::parse("s", SCENARIO)?.cells()[0].clone();
    results.keep(&cell, &Origin { scenario: "s".into(), ..Origin::default() }, Err("it did not start"))?;
    write(&results, dir.path())?;
    let markdown = std::fs::read_to_string(dir.path().join("report.md"))?;
    assert!(markdown.contains("| eddy 3 nodes, 4 clients | 1 | 300 | 0.5 | 1 |"), "{markdown}");
    assert!(markdown.contains("failed: eddy 1 node, 4 clients: it did not start"));
    for n in 0..4 {
        let svg = std::fs::read_to_string(dir.path().join(format!("s-{n}.svg")))?;
        assert!(svg.contains("eddy") && svg.contains("etcd"), "figure {n}");
    }
    assert!(std::fs::read_to_string(dir.path().join("report.html"))?.contains("<svg"));
    Ok(())
}
