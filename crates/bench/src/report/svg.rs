//! Drawing: lines with their spread, bars, and time lines, as SVG.

use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Size of a figure, pixels.
const SIZE: (u32, u32) = (860, 420);
/// Room at the right for the names of the lines.
const NAMES: u32 = 190;
/// Colours that people with any colour vision tell apart: eddy's are cool, etcd's are warm.
const COOL: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(86, 180, 233), RGBColor(0, 158, 115), RGBColor(70, 70, 150)];
const WARM: [RGBColor; 4] =
    [RGBColor(213, 94, 0), RGBColor(230, 159, 0), RGBColor(204, 121, 167), RGBColor(130, 50, 20)];

/// The colour of a line or bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// eddy's first, second and so on.
    Cool(usize),
    /// etcd's first, second and so on.
    Warm(usize),
}

/// A value with the spread of its measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where on the horizontal axis.
    pub x: f64,
    /// The middle.
    pub y: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Said at its end.
    pub name: String,
    /// Its colour.
    pub colour: Colour,
    /// From left to right.
    pub points: Vec<Point>,
}

/// What is around the lines.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// Words for the horizontal axis.
    pub x: String,
    /// Words for the vertical axis.
    pub y: String,
    /// Whether the vertical axis is logarithmic.
    pub log: bool,
    /// Whether points are marked.
    pub marks: bool,
    /// Parts of the horizontal axis that are shaded, and what happens there.
    pub shaded: Vec<(f64, f64, String)>,
    /// Names of places on the horizontal axis; none: numbers.
    pub places: Vec<(f64, String)>,
}

fn rgb(colour: Colour) -> RGBColor {
    match colour {
        Colour::Cool(n) => COOL[n % COOL.len()],
        Colour::Warm(n) => WARM[n % WARM.len()],
    }
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("draw: {error}")
}

/// A number as a reader wants it: three digits that matter, thousands apart.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    if size < 1e-9 {
        return "0".to_owned();
    }
    let digits = if size >= 100.0 { 0 } else { (2.0 - size.log10().floor()).clamp(0.0, 6.0) as usize };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), String::new()), |(w, r)| (w, format!(".{r}")));
    let rest = rest.trim_end_matches('0').trim_end_matches('.');
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |w| ("-", w));
    let mut grouped = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(c);
    }
    format!("{sign}{grouped}{rest}")
}

/// Places for numbers on a logarithmic axis: 1, 2 and 5 of each decade, of many decades only 1.
fn ticks(least: f64, most: f64) -> Vec<f64> {
    let decades = (most / least).log10();
    let steps: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = (least.log10().floor() as i32)..=(most.log10().ceil() as i32);
    let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    all.filter(|tick| (least..=most).contains(tick)).collect()
}

/// Draws lines.
///
/// # Errors
/// When there is nothing to draw.
pub fn lines(frame: &Frame, lines: &[Line]) -> Result<String> {
    let points: Vec<_> = lines.iter().flat_map(|line| &line.points).filter(|p| p.y.is_finite()).collect();
    let most = points.iter().map(|p| p.most).fold(f64::NEG_INFINITY, f64::max);
    let ends = points.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), p| (a.min(p.x), b.max(p.x)));
    if points.is_empty() {
        return Err(anyhow!("there is nothing to draw"));
    }
    let wide = if ends.1 > ends.0 { (ends.1 - ends.0) * 0.03 } else { 0.5 };
    let x = (ends.0 - wide)..(ends.1 + wide);
    let above_zero = points.iter().map(|p| p.least).filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
    if frame.log && above_zero.is_finite() {
        let y = (above_zero * 0.7, most * 1.5);
        plot(frame, lines, x, (y.0..y.1).log_scale(), y)
    } else {
        let y = (0.0, (most * 1.08).max(1e-6));
        plot(frame, lines, x, y.0..y.1, y)
    }
}

fn plot<Y>(frame: &Frame, lines: &[Line], x: Range<f64>, y: Y, (floor, ceiling): (f64, f64)) -> Result<String>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .margin_right(NAMES)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(x.clone(), y)
            .map_err(failed)?;
        let place = |at: &f64| {
            let near = frame.places.iter().find(|(x, _)| (x - at).abs() < 1e-6);
            if frame.places.is_empty() { number(*at) } else { near.map(|(_, name)| name.clone()).unwrap_or_default() }
        };
        let grid = RGBColor(225, 225, 225);
        let mut mesh = chart.configure_mesh();
        if frame.log {
            // Powers of ten alone leave an axis of one decade without numbers: ours follow below.
            mesh.disable_y_mesh().y_labels(0);
        }
        mesh.disable_x_mesh()
            .light_line_style(WHITE)
            .bold_line_style(grid)
            .x_desc(&frame.x)
            .y_desc(&frame.y)
            .x_labels(12)
            .x_label_formatter(&place)
            .y_label_formatter(&|v| if frame.log { String::new() } else { number(*v) })
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 15))
            .draw()
            .map_err(failed)?;
        for tick in if frame.log { ticks(floor, ceiling) } else { vec![] } {
            let across = PathElement::new([(x.start, tick), (x.end, tick)], grid);
            chart.draw_series([across]).map_err(failed)?;
            let (left, at) = chart.backend_coord(&(x.start, tick));
            let anchor = Pos::new(HPos::Right, VPos::Center);
            let style = ("sans-serif", 14).into_font().color(&BLACK).pos(anchor);
            root.draw(&Text::new(number(tick), (left - 8, at), style)).map_err(failed)?;
        }
        for (from, to, what) in &frame.shaded {
            let area = [(from.max(x.start), floor), (to.min(x.end), ceiling)];
            chart.draw_series([Rectangle::new(area, RGBColor(240, 228, 180).mix(0.6).filled())]).map_err(failed)?;
            let style = ("sans-serif", 14).into_font().color(&RGBColor(110, 90, 20));
            chart.draw_series([Text::new(what.clone(), (from.max(x.start), ceiling), style)]).map_err(failed)?;
        }
        let mut names = Vec::new();
        for line in lines {
            let colour = rgb(line.colour);
            let drawn: Vec<_> = line.points.iter().filter(|p| p.y.is_finite()).map(|p| (p.x, p.y.max(floor))).collect();
            chart.draw_series(LineSeries::new(drawn.clone(), colour.stroke_width(2))).map_err(failed)?;
            if frame.marks {
                chart.draw_series(drawn.iter().map(|at| Circle::new(*at, 4, colour.filled()))).map_err(failed)?;
                let spread = line.points.iter().filter(|p| p.most > p.least);
                let spread = spread.map(|p| PathElement::new([(p.x, p.least.max(floor)), (p.x, p.most)], colour));
                chart.draw_series(spread).map_err(failed)?;
            }
            if let Some(last) = drawn.last() {
                names.push((chart.backend_coord(last), line.name.clone(), colour));
            }
        }
        // At the end of each line its name, pushed apart where lines end close to each other.
        names.sort_by_key(|((_, y), _, _)| *y);
        let mut lowest = i32::MIN;
        let right = i32::try_from(SIZE.0 - NAMES).unwrap_or(0) + 6;
        for ((_, y), name, colour) in names {
            let y = y.max(lowest.saturating_add(17));
            lowest = y;
            let style = ("sans-serif", 15).into_font().color(&colour);
            root.draw(&Text::new(name, (right, y - 8), style)).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Draws a bar for each name.
///
/// # Errors
/// When there is nothing to draw.
pub fn bars(y: &str, bars: &[(String, Colour, Point)]) -> Result<String> {
    if bars.is_empty() {
        return Err(anyhow!("there is nothing to draw"));
    }
    let most = bars.iter().map(|(_, _, p)| p.most).fold(0.0, f64::max).max(1e-6);
    let mut svg = String::new();
    {
        let height = 70 + 34 * bars.len() as u32;
        let root = SVGBackend::with_string(&mut svg, (SIZE.0, height)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .margin_left(270)
            .margin_right(90)
            .x_label_area_size(40)
            .build_cartesian_2d(0.0..most * 1.05, 0.0..bars.len() as f64)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_desc(y)
            .x_label_formatter(&|v| number(*v))
            .label_style(("sans-serif", 14))
            .draw()
            .map_err(failed)?;
        for (i, (name, colour_of, point)) in bars.iter().enumerate() {
            let (low, high) = ((bars.len() - 1 - i) as f64 + 0.2, (bars.len() - i) as f64 - 0.2);
            let middle = f64::midpoint(low, high);
            let colour = rgb(*colour_of);
            chart.draw_series([Rectangle::new([(0.0, low), (point.y, high)], colour.filled())]).map_err(failed)?;
            let spread = PathElement::new([(point.least, middle), (point.most, middle)], BLACK);
            chart.draw_series([spread]).map_err(failed)?;
            let (x, at) = chart.backend_coord(&(point.most, middle));
            let style = ("sans-serif", 15).into_font().transform(FontTransform::None);
            root.draw(&Text::new(number(point.y), (x + 8, at - 8), style.clone())).map_err(failed)?;
            root.draw(&Text::new(name.clone(), (8, at - 8), style)).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_matter() {
        let wanted = [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (1.0, "1"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (999.6, "1,000"),
            (26_712.3, "26,712"),
            (-1_234_567.0, "-1,234,567"),
            (f64::NAN, "-"),
        ];
        for (value, text) in wanted {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_logarithmic_axis_has_numbers_however_short_it_is() {
        assert_eq!(ticks(1.5, 12.0), [2.0, 5.0, 10.0]);
        assert_eq!(ticks(0.5, 50_000.0), [1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
    }

    fn line(name: &str, values: &[(f64, f64)]) -> Line {
        let points = values.iter().map(|(x, y)| Point { x: *x, y: *y, least: y * 0.9, most: y * 1.1 });
        Line { name: name.to_owned(), colour: Colour::Cool(0), points: points.collect() }
    }

    #[test]
    fn a_figure_has_its_lines_their_names_and_what_happened() -> Result<()> {
        let shaded = vec![(1.0, 2.0, "cut off".to_owned())];
        for log in [false, true] {
            let frame = Frame {
                x: "nodes".into(),
                y: "per second".into(),
                log,
                marks: true,
                shaded: shaded.clone(),
                places: vec![],
            };
            let svg =
                lines(&frame, &[line("eddy", &[(1.0, 10.0), (3.0, 20.0)]), line("etcd", &[(1.0, 9.0), (3.0, 0.0)])])?;
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            for text in ["eddy", "etcd", "nodes", "per second", "cut off"] {
                assert!(svg.contains(text), "{text} is not in the figure, log {log}");
            }
            assert_eq!(svg.matches("<circle").count(), 4);
        }
        assert!(lines(&Frame::default(), &[]).is_err());
        Ok(())
    }

    #[test]
    fn bars_are_as_long_as_their_values() -> Result<()> {
        let point = |y: f64| Point { x: 0.0, y, least: y, most: y };
        let svg = bars(
            "per second",
            &[("one".into(), Colour::Cool(0), point(100.0)), ("two".into(), Colour::Warm(0), point(50.0))],
        )?;
        let width = |fill: &str| -> Option<f64> {
            let line = svg.lines().find(|line| line.contains("<rect") && line.contains(fill))?;
            line.split("width=\"").nth(1)?.split('"').next()?.parse().ok()
        };
        let (one, two) = (width("#0072B2"), width("#D55E00"));
        assert!(one.zip(two).is_some_and(|(a, b)| (a / b - 2.0).abs() < 0.02), "{one:?} {two:?}");
        Ok(())
    }
}
