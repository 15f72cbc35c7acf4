//! Bar charts as SVG, without a plotting library.

use std::fmt::Write as _;

/// One bar.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// The smallest and the largest value of all runs.
    pub(crate) range: (f64, f64),
    /// Whether the bar has the highlight colour.
    pub(crate) ours: bool,
}

const WIDTH: f64 = 860.0;
const LABELS: f64 = 300.0;
const RIGHT: f64 = 70.0;
const TOP: f64 = 56.0;
const STEP: f64 = 30.0;
const BAR: f64 = 20.0;
const BOTTOM: f64 = 44.0;

/// Draws horizontal bars that start at zero, longest first; a line shows the range of the runs.
pub(crate) fn bars(title: &str, unit: &str, mut bars: Vec<Bar>) -> String {
    bars.sort_by(|a, b| b.value.total_cmp(&a.value));
    bars_in_order(title, unit, &bars, 0)
}

/// Like [`bars`], but in the given order; values are printed with `decimals` decimal places.
pub(crate) fn bars_in_order(title: &str, unit: &str, bars: &[Bar], decimals: usize) -> String {
    let longest = bars.iter().map(|bar| bar.range.1.max(bar.value)).fold(0.0, f64::max);
    let tick = tick(longest);
    let end = (longest / tick).ceil().max(1.0) * tick;
    let x = |value: f64| LABELS + value / end * (WIDTH - LABELS - RIGHT);
    let height = TOP + STEP * bars.len() as f64 + BOTTOM;
    let floor = TOP + STEP * bars.len() as f64;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"26\" font-size=\"16\" fill=\"#222222\">{}</text>\n",
        escaped(title)
    );
    for number in 0..=(end / tick).round() as u32 {
        let value = f64::from(number) * tick;
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<line x1=\"{0:.1}\" y1=\"{TOP}\" x2=\"{0:.1}\" y2=\"{floor}\" stroke=\"#dddddd\"/>\
             <text x=\"{0:.1}\" y=\"{1}\" text-anchor=\"middle\" fill=\"#555555\">{value}</text>",
            x(value),
            floor + 16.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>",
        x(end / 2.0),
        floor + 34.0,
        escaped(unit)
    );
    for (row, bar) in bars.iter().enumerate() {
        let top = TOP + STEP * row as f64 + (STEP - BAR) / 2.0;
        let (middle, text) = (top + BAR / 2.0, top + BAR / 2.0 + 4.5);
        let (fill, weight) = if bar.ours { ("#c8501e", "bold") } else { ("#8fa3b8", "normal") };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text}\" text-anchor=\"end\" font-weight=\"{weight}\" \
             fill=\"#222222\">{}</text>\
             <rect x=\"{LABELS}\" y=\"{top}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>\
             <line x1=\"{:.1}\" y1=\"{middle}\" x2=\"{:.1}\" y2=\"{middle}\" stroke=\"#222222\"/>\
             <text x=\"{:.1}\" y=\"{text}\" font-weight=\"{weight}\" fill=\"#222222\">{:.decimals$}</text>",
            LABELS - 8.0,
            escaped(&bar.label),
            x(bar.value) - LABELS,
            x(bar.range.0),
            x(bar.range.1),
            x(bar.range.1.max(bar.value)) + 6.0,
            bar.value
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The distance between axis labels: 1, 2 or 5 times a power of ten, usually for four to six labels.
fn tick(longest: f64) -> f64 {
    let rough = (longest / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|&step| step >= rough * 0.999).unwrap_or(rough)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, value: f64, ours: bool) -> Bar {
        Bar { label: label.to_owned(), value, range: (value * 0.9, value * 1.1), ours }
    }

    #[test]
    fn the_axis_starts_at_zero_and_bars_are_as_long_as_their_values() {
        let svg =
            bars("a & b", "images/s", vec![bar("x", 500.0, false), bar("<us>", 1000.0, true)]);
        let widths: Vec<f64> = svg
            .split("<rect x=\"300\"")
            .skip(1)
            .map(|rest| rest.split("width=\"").nth(1).unwrap().split('"').next().unwrap())
            .map(|width| width.parse().unwrap())
            .collect();
        assert_eq!(widths.len(), 2);
        // Bars are in descending order, and their lengths are proportional to the values.
        assert!((widths[0] / widths[1] - 2.0).abs() < 0.01, "{widths:?}");
        assert!(svg.contains(&format!("<line x1=\"{LABELS:.1}\"")), "the axis begins at zero");
        assert!(svg.contains("&lt;us&gt;") && svg.contains("a &amp; b"));
        assert_eq!(svg.matches("#c8501e").count(), 1);
    }

    #[test]
    fn ticks_are_round_numbers() {
        for (longest, expected) in [(1000.0, 200.0), (1505.0, 500.0), (90.0, 20.0), (7.0, 2.0)] {
            assert_eq!(tick(longest), expected);
        }
    }
}
