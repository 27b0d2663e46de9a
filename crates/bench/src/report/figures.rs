//! The figures of a scenario, each with the sentence that says its point.

use hdrhistogram::Histogram;

use super::document::Block;
use super::svg::{self, Colour, Frame, Line, Point, number};
use super::{Group, partner};
use crate::load::recorder::{STEP, histogram};
use crate::scenario::{Axis, Cell, FigureSpec, Scenario, System};
use crate::stats::{median, quantile};

/// Lines of a distribution that a reader can tell apart.
const LINES_MAX: usize = 8;
/// Quantiles at which distributions are drawn: `1 - 10^-n` for n in steps.
const NINES: std::ops::RangeInclusive<u32> = 0..=40;
/// Steps of a time line that a reader can follow.
const STEPS_SHOWN: usize = 60;
/// Steps between one nine and the next.
const STEPS_PER_NINE: f64 = 10.0;

/// Draws all figures of a scenario; one that cannot be drawn says why.
pub fn draw(scenario: &Scenario, groups: &[Group]) -> Vec<Block> {
    let figures = scenario.figures.iter().enumerate().map(|(n, spec)| {
        let drawn = match spec {
            FigureSpec::Line { x, y, log } => line(scenario, groups, *x, y, *log),
            FigureSpec::Distribution { of } => distribution(groups, of),
            FigureSpec::Timeline => timeline(scenario, groups),
            FigureSpec::Bars { y } => bars(groups, y),
        };
        match drawn {
            Ok((point, note, svg)) => Block::Figure { file: format!("{}-{n}.svg", scenario.name), point, note, svg },
            Err(error) => Block::Text(format!("Figure {n} is not drawn: {error}.")),
        }
    });
    figures.collect()
}

type Drawn = anyhow::Result<(String, String, String)>;

/// Words for a metric.
fn words(metric: &str) -> String {
    let (name, of) = metric.split_once(' ').unwrap_or((metric, ""));
    let of = if of.is_empty() { String::new() } else { format!(", {of}") };
    let name = match name {
        "throughput" => "operations per second",
        "p50_ms" => "median latency, ms",
        "p99_ms" => "99th percentile of the latency, ms",
        "p999_ms" => "99.9th percentile of the latency, ms",
        "mean_ms" => "mean latency, ms",
        "cpu_us_per_op" => "CPU of all nodes per operation, µs",
        "cpu_us_per_remote_entry" => "CPU of a node per entry of others, µs",
        "peer_bytes_per_op" => "bytes between peers per operation",
        "written_bytes_per_op" => "bytes written to disk per operation",
        "fsyncs_per_op" => "flushes per operation",
        "rss_mib" => "memory of the largest node, MiB",
        "catch_up_ms" => "until all nodes show the last write, ms",
        other => other,
    };
    format!("{name}{of}")
}

/// The median of some measurements, with their spread.
pub(super) fn point(x: f64, values: &[f64]) -> Option<Point> {
    let (least, most) = (quantile(values, 0.0)?, quantile(values, 1.0)?);
    Some(Point { x, y: median(values)?, least, most })
}

/// What tells the lines of a figure apart: the cell without what is on its axis.
fn series(cell: &Cell, axis: Axis) -> Cell {
    let mut cell = cell.clone();
    match axis {
        Axis::Nodes => cell.nodes = 0,
        Axis::Clients => cell.clients = 0,
        Axis::Rate => cell.rate = 0.0,
        Axis::RoundTripMs => cell.round_trip_ms = 0.0,
        Axis::FlushDelayMs => cell.flush_delay_ms = 0,
        Axis::Watchers => cell.watchers = 0,
    }
    cell
}

/// A line's name: the program, and what else differs between lines.
fn name(cell: &Cell, all: &[Cell]) -> String {
    let varies = |of: fn(&Cell) -> f64| all.iter().any(|other| of(other) != of(cell));
    let mut name = cell.system.name().to_owned();
    let mut add = |words: String| name = format!("{name}, {words}");
    if varies(|c| c.nodes as f64) {
        add(format!("{} node{}", cell.nodes, if cell.nodes == 1 { "" } else { "s" }));
    }
    if varies(|c| c.clients as f64) {
        add(format!("{} client{}", cell.clients, if cell.clients == 1 { "" } else { "s" }));
    }
    if varies(|c| c.rate) {
        add(format!("{} /s", number(cell.rate)));
    }
    if varies(|c| c.round_trip_ms) {
        add(format!("{} ms apart", number(cell.round_trip_ms)));
    }
    if varies(|c| f64::from(c.flush_delay_ms)) {
        add(format!("flush +{} ms", cell.flush_delay_ms));
    }
    if varies(|c| c.watchers as f64) {
        add(format!("{} watchers", cell.watchers));
    }
    if varies(|c| f64::from(c.disk as u8)) {
        add(format!("{:?}", cell.disk).to_lowercase());
    }
    name
}

/// The n-th line of a program has its n-th colour.
fn colour(cell: &Cell, all: &[Cell]) -> Colour {
    let n = all.iter().filter(|other| other.system == cell.system).position(|other| other == cell).unwrap_or(0);
    if cell.system == System::Eddy { Colour::Cool(n) } else { Colour::Warm(n) }
}

fn line(scenario: &Scenario, groups: &[Group], axis: Axis, metric: &str, log: bool) -> Drawn {
    let mut cells: Vec<Cell> = Vec::new();
    for group in groups {
        let key = series(&group.cell, axis);
        if !cells.contains(&key) {
            cells.push(key);
        }
    }
    let lines: Vec<_> = cells
        .iter()
        .map(|key| {
            let of_line = groups.iter().filter(|group| series(&group.cell, axis) == *key);
            let mut points: Vec<_> =
                of_line.filter_map(|group| point(group.cell.on(axis), &group.values(metric))).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            Line { name: name(key, &cells), colour: colour(key, &cells), points }
        })
        .collect();
    let mut places: Vec<f64> = groups.iter().map(|group| group.cell.on(axis)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let frame = Frame { x: axis.label().to_owned(), y: words(metric), log, marks: true, ..Frame::default() };
    let drawing = svg::lines(&frame, &lines)?;
    let list: Vec<_> = places.iter().map(|x| number(*x)).collect();
    let note = format!(
        "Medians, with the least and the most of up to {} runs; {} {}.",
        scenario.repeat,
        axis.label(),
        list.join(", ")
    );
    Ok((line_point(groups, axis, metric), note, drawing))
}

/// The point of a line figure: how the two differ where the setting is largest.
fn line_point(groups: &[Group], axis: Axis, metric: &str) -> String {
    let pairs = groups.iter().filter(|group| group.cell.system == System::Eddy).filter_map(|eddy| {
        let etcd = partner(groups, eddy)?;
        Some((&eddy.cell, median(&eddy.values(metric))?, median(&etcd.values(metric))?))
    });
    let Some((cell, eddy, etcd)) = pairs.max_by(|a, b| a.0.on(axis).total_cmp(&b.0.on(axis))) else {
        return format!("{} by {}", words(metric), axis.label());
    };
    let times = if eddy >= etcd { eddy / etcd } else { etcd / eddy };
    let more = if eddy >= etcd { "more" } else { "less" };
    let ratio =
        if times.is_finite() && times >= 1.05 { format!(", {} times {more}", number(times)) } else { String::new() };
    let setting = cell.to_string();
    let setting = setting.strip_prefix("eddy ").unwrap_or(&setting);
    format!("At {setting}, {}: eddy {}, etcd {}{ratio}", words(metric), number(eddy), number(etcd))
}

fn merged(group: &Group, operation: &str) -> Option<Histogram<u64>> {
    let mut all: Option<Histogram<u64>> = None;
    for (_, latencies) in
        group.experiments.iter().flat_map(|e| &e.measured.latencies).filter(|(name, _)| name == operation)
    {
        // All have the same bounds.
        all.get_or_insert_with(histogram).add(latencies).ok()?;
    }
    all
}

fn distribution(groups: &[Group], operation: &str) -> Drawn {
    let with: Vec<_> =
        groups.iter().filter_map(|group| Some((group, merged(group, operation)?))).take(LINES_MAX).collect();
    let cells: Vec<_> = with.iter().map(|(group, _)| group.cell.clone()).collect();
    let lines: Vec<_> = with
        .iter()
        .map(|(group, latencies)| {
            // As far as there are operations to tell: the last step is one operation of all.
            let known = (latencies.len() as f64).log10() * STEPS_PER_NINE;
            let points = NINES.filter(|step| f64::from(*step) <= known).map(|step| {
                let nines = f64::from(step) / STEPS_PER_NINE;
                let y = latencies.value_at_quantile(1.0 - 10f64.powf(-nines)) as f64 / 1000.0;
                Point { x: nines, y, least: y, most: y }
            });
            Line { name: name(&group.cell, &cells), colour: colour(&group.cell, &cells), points: points.collect() }
        })
        .collect();
    let places = [(0.0, "all"), (1.0, "90 %"), (2.0, "99 %"), (3.0, "99.9 %"), (4.0, "99.99 %")];
    let frame = Frame {
        x: "share of the operations that took at most".to_owned(),
        y: format!("latency of {operation}, ms"),
        log: true,
        places: places.map(|(x, text)| (x, if x == 0.0 { "fastest".to_owned() } else { text.to_owned() })).to_vec(),
        ..Frame::default()
    };
    let drawing = svg::lines(&frame, &lines)?;
    let said = with.iter().take(4).map(|(group, latencies)| {
        format!("{} {} ms", name(&group.cell, &cells), number(latencies.value_at_quantile(0.99) as f64 / 1000.0))
    });
    let point = format!("99 of 100 of {operation} take at most: {}", said.collect::<Vec<_>>().join("; "));
    let counted: u64 = with.iter().map(|(_, latencies)| latencies.len()).sum();
    Ok((point, format!("{} measurements of all runs together; lower is better.", number(counted as f64)), drawing))
}

fn timeline(scenario: &Scenario, groups: &[Group]) -> Drawn {
    let events = &scenario.network.events;
    let mut cut: Vec<usize> =
        events.iter().flat_map(|event| event.isolate.iter().chain(&event.silence)).copied().collect();
    cut.sort_unstable();
    cut.dedup();
    let mut shaded = Vec::new();
    let mut ordered: Vec<_> = events.iter().collect();
    ordered.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let mut began = None;
    for event in ordered {
        if !event.heal {
            began.get_or_insert(event.at_s);
        } else if let Some(from) = began.take() {
            shaded.push((from, event.at_s, "cut off".to_owned()));
        }
    }
    if let Some(from) = began {
        shaded.push((from, scenario.load.measure_s, "cut off".to_owned()));
    }
    let (mut lines, mut said) = (Vec::new(), Vec::new());
    for group in groups {
        for (n, side) in ["cut off", "others"].into_iter().enumerate() {
            let is_of = |node: usize| cut.contains(&node) == (n == 0);
            let of = (0..group.cell.nodes).filter(|node| is_of(*node)).count();
            if of == 0 {
                continue;
            }
            let rates = rates(group, &is_of, of);
            let during: Vec<_> = rates
                .iter()
                .filter(|p| shaded.iter().any(|(from, to, _)| p.x > *from + 1.0 && p.x < *to))
                .map(|p| p.y)
                .collect();
            if let Some(rate) = median(&during) {
                said.push(format!("{} {side} {} /s", group.cell.system.name(), number(rate)));
            }
            let colour = if group.cell.system == System::Eddy { Colour::Cool(n) } else { Colour::Warm(n) };
            lines.push(Line { name: format!("{}, {side}", group.cell.system.name()), colour, points: rates });
        }
    }
    let frame =
        Frame { x: "seconds".to_owned(), y: "operations per second and node".to_owned(), shaded, ..Frame::default() };
    let drawing = svg::lines(&frame, &lines)?;
    let point = if said.is_empty() {
        "Operations while links are cut".to_owned()
    } else {
        format!("While links are cut, each node does: {}", said.join(", "))
    };
    let note = "The median over the runs at each moment; clients of each node count for that node.";
    Ok((point, note.to_owned(), drawing))
}

/// Operations per second and node of one side, over the time; steps are taken together where there are very many.
fn rates(group: &Group, is_of: &dyn Fn(usize) -> bool, nodes: usize) -> Vec<Point> {
    let steps = group.experiments.iter().flat_map(|e| e.measured.steps.iter().map(Vec::len)).max().unwrap_or(0);
    let wide = steps.div_ceil(STEPS_SHOWN).max(1);
    let rates = (0..steps / wide).filter_map(|place| {
        let runs = group.experiments.iter().map(|experiment| {
            let of_side = experiment.measured.steps.iter().enumerate().filter(|(node, _)| is_of(*node));
            let here = of_side.flat_map(|(_, steps)| steps.iter().skip(place * wide).take(wide));
            let done: u64 = here.map(|step| step.done).sum();
            done as f64 / (STEP.as_secs_f64() * wide as f64) / nodes as f64
        });
        let middle = (place as f64 + 0.5) * STEP.as_secs_f64() * wide as f64;
        point(middle, &runs.collect::<Vec<_>>())
    });
    rates.collect()
}

fn bars(groups: &[Group], metric: &str) -> Drawn {
    let cells: Vec<_> = groups.iter().map(|group| group.cell.clone()).collect();
    let bars: Vec<_> = groups
        .iter()
        .filter_map(|group| {
            let bar = point(0.0, &group.values(metric))?;
            let colour = if group.cell.system == System::Eddy { Colour::Cool(0) } else { Colour::Warm(0) };
            Some((name(&group.cell, &cells), colour, bar))
        })
        .collect();
    let drawing = svg::bars(&words(metric), &bars)?;
    let said: Vec<_> = bars.iter().take(6).map(|(name, _, bar)| format!("{name} {}", number(bar.y))).collect();
    let note = "Medians, with the least and the most of the runs.".to_owned();
    Ok((format!("{}: {}", words(metric), said.join("; ")), note, drawing))
}
