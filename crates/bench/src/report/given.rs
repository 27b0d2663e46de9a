//! Figures of what another program measured: `lab draw`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::figures::point;
use super::svg::{self, Colour, Frame, Line};

/// What `lab draw` reads, as JSON.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// Words for the horizontal axis of all figures.
    pub x: String,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// One figure of several lines.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Words for the vertical axis.
    pub y: String,
    /// For each line its measurements, in any order; of several at one place the median is drawn, and their spread.
    pub lines: BTreeMap<String, Vec<(f64, f64)>>,
}

/// Draws each figure as SVG.
///
/// # Errors
/// When the text is not what [`Given`] says, or a figure has nothing to draw.
pub fn draw(json: &str) -> Result<Vec<String>> {
    let given: Given = serde_json::from_str(json)?;
    let frame = |y: &str| Frame { x: given.x.clone(), y: y.to_owned(), marks: true, ..Frame::default() };
    let drawn = given.figures.iter().map(|figure| {
        let lines: Vec<Line> =
            figure.lines.iter().enumerate().map(|(n, (name, points))| line(n, name, points)).collect();
        svg::lines(&frame(&figure.y), &lines).with_context(|| figure.y.clone())
    });
    drawn.collect()
}

fn line(number: usize, name: &str, measured: &[(f64, f64)]) -> Line {
    let colour = match name {
        _ if name.starts_with("eddy") => Colour::Cool(0),
        _ if name.starts_with("etcd") => Colour::Warm(0),
        _ => Colour::Cool(number + 1),
    };
    let mut places: Vec<f64> = measured.iter().map(|(x, _)| *x).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let values = |x: f64| -> Vec<f64> { measured.iter().filter(|(at, _)| *at == x).map(|(_, y)| *y).collect() };
    let points = places.into_iter().filter_map(|x| point(x, &values(x))).collect();
    Line { name: name.to_owned(), colour, points }
}

#[cfg(test)]
mod tests {
    use super::super::svg::Point;
    use super::*;

    #[test]
    fn of_several_measurements_at_one_place_the_median_is_drawn_with_their_spread() -> Result<()> {
        let line = line(0, "etcd", &[(8.0, 3.0), (4.0, 1.0), (8.0, 9.0), (8.0, 4.0)]);
        let point = |x, y, least, most| Point { x, y, least, most };
        assert_eq!(line.points, [point(4.0, 1.0, 1.0, 1.0), point(8.0, 4.0, 3.0, 9.0)]);
        assert_eq!(line.colour, Colour::Warm(0));
        let json =
            r#"{"x": "asked", "figures": [{"y": "done", "lines": {"eddy": [[1, 2], [2, 3]], "etcd": [[1, 1]]}}]}"#;
        let drawn = draw(json)?;
        assert!(drawn.len() == 1 && ["asked", "done", "eddy", "etcd"].iter().all(|word| drawn[0].contains(word)));
        Ok(())
    }

    #[test]
    fn what_cannot_be_drawn_is_said() {
        assert!(draw("{}").is_err());
        assert!(
            draw(r#"{"x": "", "figures": [{"y": "nothing", "lines": {}}]}"#).is_err_and(|e| e.to_string() == "nothing")
        );
        assert!(draw(r#"{"x": "", "figures": [], "colour": "red"}"#).is_err());
    }
}
