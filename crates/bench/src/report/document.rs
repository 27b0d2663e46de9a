//! A report's blocks, and how they are written as Markdown and as HTML.

use std::fmt::Write;

/// A part of a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// A heading, and how deep.
    Heading(usize, String),
    /// Text.
    Text(String),
    /// Items.
    List(Vec<String>),
    /// A table with its head.
    Table(Vec<String>, Vec<Vec<String>>),
    /// A figure: the file's name, what it shows, what to know besides, and the drawing.
    Figure {
        /// Name of its file.
        file: String,
        /// The point, as a sentence.
        point: String,
        /// How it was measured.
        note: String,
        /// The drawing.
        svg: String,
    },
}

/// The blocks as Markdown; figures are files beside it.
pub fn markdown(blocks: &[Block]) -> String {
    let mut text = String::new();
    for block in blocks {
        // Writing to a String cannot fail.
        let _infallible = match block {
            Block::Heading(depth, heading) => write!(text, "{} {heading}\n\n", "#".repeat(*depth)),
            Block::Text(paragraph) => write!(text, "{paragraph}\n\n"),
            Block::List(items) => writeln!(text, "{}", items.iter().map(|i| format!("- {i}\n")).collect::<String>()),
            Block::Table(head, rows) => {
                let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
                let rule = row(&vec!["---".to_owned(); head.len()]);
                writeln!(text, "{}{rule}{}", row(head), rows.iter().map(|r| row(r)).collect::<String>())
            }
            Block::Figure { file, point, note, .. } => write!(text, "**{point}**\n\n![{point}]({file})\n\n{note}\n\n"),
        };
    }
    text
}

/// The blocks as one HTML page, figures included.
pub fn html(title: &str, blocks: &[Block]) -> String {
    let mut body = String::new();
    for block in blocks {
        let _infallible = match block {
            Block::Heading(depth, heading) => writeln!(body, "<h{depth}>{}</h{depth}>", escape(heading)),
            Block::Text(paragraph) => writeln!(body, "<p>{}</p>", escape(paragraph)),
            Block::List(items) => {
                let items: String = items.iter().map(|item| format!("<li>{}</li>", escape(item))).collect();
                writeln!(body, "<ul>{items}</ul>")
            }
            Block::Table(head, rows) => {
                let row = |cells: &[String], tag: &str| {
                    let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
                    format!("<tr>{cells}</tr>")
                };
                let rows: String = rows.iter().map(|cells| row(cells, "td")).collect();
                writeln!(body, "<table>{}{rows}</table>", row(head, "th"))
            }
            Block::Figure { point, note, svg, .. } => writeln!(
                body,
                "<figure><figcaption><b>{}</b></figcaption>{svg}<figcaption>{}</figcaption></figure>",
                escape(point),
                escape(note)
            ),
        };
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title><style>\
         body{{font:16px/1.5 sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}}\
         table{{border-collapse:collapse;margin:1rem 0;font-size:14px}}td,th{{border-bottom:1px solid #ddd;padding:.25rem .6rem;\
         text-align:right}}td:first-child,th:first-child{{text-align:left}}figure{{margin:2rem 0}}svg{{max-width:100%;height:auto}}\
         figcaption{{color:#444}}</style></head>\n<body>\n{body}</body></html>\n",
        escape(title)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks() -> Vec<Block> {
        vec![
            Block::Heading(2, "a < b".to_owned()),
            Block::Table(vec!["x".to_owned(), "y".to_owned()], vec![vec!["1".to_owned(), "2".to_owned()]]),
            Block::Figure {
                file: "f.svg".to_owned(),
                point: "It is so".to_owned(),
                note: "Measured".to_owned(),
                svg: "<svg>drawing</svg>".to_owned(),
            },
        ]
    }

    #[test]
    fn markdown_points_to_the_figures() {
        let text = markdown(&blocks());
        assert_eq!(
            text,
            "## a < b\n\n| x | y |\n| --- | --- |\n| 1 | 2 |\n\n**It is so**\n\n![It is so](f.svg)\n\nMeasured\n\n"
        );
    }

    #[test]
    fn html_has_the_figures_in_it_and_text_cannot_break_it() {
        let page = html("t & u", &blocks());
        assert!(page.contains("<title>t &amp; u</title>") && page.contains("<h2>a &lt; b</h2>"));
        assert!(page.contains("<svg>drawing</svg>") && page.contains("<td>1</td><td>2</td>"));
    }
}
