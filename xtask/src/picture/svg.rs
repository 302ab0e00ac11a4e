//! A screen as an SVG picture, which looks the same in every browser: each run of text has its place and its length, and bars are
//! rectangles, since fonts differ in how they draw blocks.

use vt100::{Cell, Color, Screen};

/// A character's size, and the margin around all of them, in pixels.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
const MARGIN: f64 = 18.0;
/// From the top of a row to the line that its letters stand on.
const BASELINE: f64 = 13.5;

const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d7dae0";
/// Black, red, green, yellow, blue, magenta, cyan, white.
const PALETTE: [&str; 8] =
    ["#5c6370", "#f06c75", "#8cc570", "#e6c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0"];

/// How something is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    shape: Shape,
    color: &'static str,
    is_bold: bool,
    is_dim: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Text,
    /// A filled part of a bar.
    Full,
    /// An empty one.
    Empty,
}

/// Characters beside each other that look the same.
struct Run {
    column: u16,
    length: u16,
    text: String,
    look: Look,
}

/// The rows that have something in them.
pub fn picture(screen: &Screen, title: &str) -> String {
    let (rows, columns) = screen.size();
    let is_used = |row: &u16| !runs(screen, *row).is_empty();
    let used = (0..rows).filter(is_used).max().map_or(0, |last| last + 1);
    let width = f64::from(columns) * WIDTH + 2.0 * MARGIN;
    let height = f64::from(used) * HEIGHT + 2.0 * MARGIN;
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.1} {height:.1}" width="{width:.1}" height="{height:.1}" role="img">
<title>{}</title>
<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>
<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14">
"#,
        escaped(title)
    );
    for row in 0..used {
        for run in runs(screen, row) {
            svg.push_str(&drawn(&run, row));
            svg.push('\n');
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

fn drawn(run: &Run, row: u16) -> String {
    let x = MARGIN + f64::from(run.column) * WIDTH;
    let y = MARGIN + f64::from(row) * HEIGHT;
    let length = f64::from(run.length) * WIDTH;
    let Look { shape, color, is_bold, is_dim } = run.look;
    let dim = if is_dim { r#" opacity="0.6""# } else { "" };
    let bar = |opacity: &str| {
        let (top, height) = (y + 2.0, HEIGHT - 4.0);
        format!(
            r#"<rect x="{x:.1}" y="{top:.1}" width="{length:.1}" height="{height:.1}" fill="{color}"{opacity}/>"#
        )
    };
    match shape {
        Shape::Full => bar(dim),
        Shape::Empty => bar(r#" opacity="0.15""#),
        Shape::Text => {
            let (y, bold) = (y + BASELINE, if is_bold { r#" font-weight="bold""# } else { "" });
            let text = escaped(&run.text);
            format!(
                r#"<text x="{x:.1}" y="{y:.1}" textLength="{length:.1}" lengthAdjust="spacingAndGlyphs" fill="{color}"{bold}{dim} xml:space="preserve">{text}</text>"#
            )
        }
    }
}

/// A row's characters, those together that look the same; spaces between words belong to them, others to nobody.
fn runs(screen: &Screen, row: u16) -> Vec<Run> {
    let mut runs = Vec::<Run>::new();
    for column in 0..screen.size().1 {
        let Some(cell) = screen.cell(row, column) else { continue };
        let text = if cell.has_contents() { cell.contents() } else { " " };
        let look = look(cell);
        match runs.last_mut() {
            Some(run) if run.look == look && run.column + run.length == column => {
                run.text.push_str(text);
                run.length += 1;
            }
            _ => runs.push(Run { column, length: 1, text: text.to_owned(), look }),
        }
    }
    runs.iter().filter_map(trimmed).collect()
}

/// Without spaces around it, if anything is left.
fn trimmed(run: &Run) -> Option<Run> {
    let text = run.text.trim_end();
    let before = text.len() - text.trim_start().len();
    let text = text.trim_start().to_owned();
    let length = u16::try_from(text.chars().count()).ok()?;
    let column = run.column + u16::try_from(before).ok()?;
    (length > 0).then_some(Run { column, length, text, look: run.look })
}

fn look(cell: &Cell) -> Look {
    let shape = match cell.contents() {
        "█" => Shape::Full,
        "░" => Shape::Empty,
        _ => Shape::Text,
    };
    let color = match cell.fgcolor() {
        Color::Idx(index) => PALETTE[usize::from(index % 8)],
        Color::Default | Color::Rgb(..) => FOREGROUND,
    };
    Look { shape, color, is_bold: cell.bold(), is_dim: cell.dim() }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_drawn_at_its_places_and_in_its_colours() {
        let mut parser = vt100::Parser::new(4, 20, 0);
        parser.process("\x1b[1ma <b>\x1b[0m\r\n  \x1b[32m██\x1b[33m█\x1b[0m\x1b[2m░\x1b[0m  7".as_bytes());
        let svg = picture(parser.screen(), "a & b");
        let drawn: Vec<_> = svg.lines().skip(4).collect();
        assert_eq!(
            drawn,
            [
                r##"<text x="18.0" y="31.5" textLength="42.0" lengthAdjust="spacingAndGlyphs" fill="#d7dae0" font-weight="bold" xml:space="preserve">a &lt;b&gt;</text>"##,
                r##"<rect x="34.8" y="38.0" width="16.8" height="14.0" fill="#8cc570"/>"##,
                r##"<rect x="51.6" y="38.0" width="8.4" height="14.0" fill="#e6c07b"/>"##,
                r##"<rect x="60.0" y="38.0" width="8.4" height="14.0" fill="#d7dae0" opacity="0.15"/>"##,
                r##"<text x="85.2" y="49.5" textLength="8.4" lengthAdjust="spacingAndGlyphs" fill="#d7dae0" xml:space="preserve">7</text>"##,
                "</g>",
                "</svg>",
            ]
        );
        // Two of four rows are used.
        assert!(
            svg.contains(r#"viewBox="0 0 204.0 72.0""#) && svg.contains("<title>a &amp; b</title>"),
            "{svg}"
        );
    }
}
