//! SVG charts: axes, curves, bars and scales. The style sheet of the page defines the colours.
//!
//! Charts are 420 units wide, about the width of a phone, and scale up to twice that, so that their
//! labels stay readable.

use std::fmt::Write as _;
use std::time::Duration;

use super::document::Escaped;
use crate::ui::format::{measured, percent};

const WIDTH: f64 = 420.0;
/// Space for the labels of the vertical axis.
const LEFT: f64 = 52.0;
/// Space to the right, for half of the last label of the horizontal axis.
const RIGHT: f64 = 26.0;
/// Space for the labels and the title of the horizontal axis.
pub(crate) const BOTTOM: f64 = 34.0;
/// Number of curve colours in the style sheet: `c0` to `c4`.
const COLOURS: usize = 5;

/// A chart with title and caption; screen readers read `summary`.
pub(crate) fn figure(id: &str, title: &str, caption: &str, summary: &str, svg: Svg) -> String {
    format!(
        "<figure>\n<figcaption><h2>{title}</h2><p>{caption}</p></figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" \
         aria-labelledby=\"{id}-title {id}-summary\">\n\
         <title id=\"{id}-title\">{title}</title>\n<desc id=\"{id}-summary\">{summary}</desc>\n\
         {body}</svg>\n</figure>",
        title = Escaped(title),
        caption = Escaped(caption),
        summary = Escaped(summary),
        height = svg.height,
        body = svg.body,
    )
}

/// Values over time: `values[i]` belongs to the i-th of equally long intervals.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) values: Vec<f64>,
}

/// The plot area, in SVG coordinates; y coordinates grow downwards.
pub(crate) struct Area {
    pub(crate) top: f64,
    pub(crate) height: f64,
}

impl Area {
    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// The y coordinate of a position on the vertical scale, from 0 (bottom) to 1 (top).
    pub(crate) fn y(&self, part: f64) -> f64 {
        self.bottom() - part.clamp(0.0, 1.0) * self.height
    }
}

/// An SVG drawing under construction.
pub(crate) struct Svg {
    height: f64,
    pub(crate) left: f64,
    body: String,
}

impl Svg {
    pub(crate) fn new(height: f64) -> Self {
        Svg { height, left: LEFT, body: String::new() }
    }

    pub(crate) fn right(&self) -> f64 {
        WIDTH - RIGHT
    }

    pub(crate) fn middle(&self) -> f64 {
        self.x(0.5)
    }

    /// The x coordinate of a position on the horizontal axis, from 0 to 1.
    pub(crate) fn x(&self, part: f64) -> f64 {
        self.left + part.clamp(0.0, 1.0) * (self.right() - self.left)
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" class="{class}">{}</text>"#,
            Escaped(text)
        ));
    }

    /// A horizontal grid line with its label.
    pub(crate) fn horizontal(&mut self, y: f64, label: &str) {
        let (left, right) = (self.left, self.right());
        self.add(format_args!(
            r#"<line x1="{left:.1}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}" class="grid" />"#
        ));
        self.text(left - 6.0, y + 4.0, "end", "tick", label);
    }

    pub(crate) fn vertical(&mut self, area: &Area, x: f64) {
        self.add(format_args!(
            r#"<line x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}" class="grid" />"#,
            area.top,
            area.bottom()
        ));
    }

    /// A vertical line that marks an event.
    pub(crate) fn vertical_mark(&mut self, area: &Area, x: f64) {
        self.add(format_args!(
            r#"<line x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}" class="mark" />"#,
            area.top,
            area.bottom()
        ));
    }

    pub(crate) fn mean_line(&mut self, area: &Area, part: f64) {
        let (left, right, y) = (self.left, self.right(), area.y(part));
        self.add(format_args!(
            r#"<line x1="{left:.1}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}" class="mean" />"#
        ));
    }

    pub(crate) fn time_axis(&mut self, area: &Area, length: f64) {
        let scale = Linear::up_to(length);
        for &tick in scale.ticks.iter().filter(|&&tick| tick <= length * 1.001) {
            let x = self.x(tick / length.max(f64::MIN_POSITIVE));
            self.add(format_args!(
                r#"<line x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}" class="tick" />"#,
                area.bottom(),
                area.bottom() + 4.0
            ));
            self.text(x, area.bottom() + 15.0, "middle", "tick", &measured_tick(tick));
        }
        self.text(self.middle(), area.bottom() + 30.0, "middle", "axis", "seconds since the start");
    }

    pub(crate) fn percent_axis(&mut self, area: &Area) {
        for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let x = self.x(part);
            self.vertical(area, x);
            let anchor = if part == 0.0 { "start" } else { "middle" };
            let anchor = if part == 1.0 { "end" } else { anchor };
            self.text(x, area.bottom() + 14.0, anchor, "tick", &percent(part));
        }
        self.text(self.middle(), area.bottom() + 29.0, "middle", "axis", "busy");
    }

    pub(crate) fn bar(&mut self, y: f64, height: f64, part: f64, colour: usize) {
        let (left, width) = (self.left, self.x(part) - self.left);
        let (full, colour) = (self.right() - left, colour % COLOURS);
        self.add(format_args!(
            r#"<rect x="{left:.1}" y="{y:.1}" width="{full:.1}" height="{height:.1}" class="track" />"#
        ));
        self.add(format_args!(
            r#"<rect x="{left:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" class="c{colour}" />"#
        ));
    }

    /// A step curve; the area below it is filled.
    pub(crate) fn steps(&mut self, area: &Area, series: &Series, end: f64, colour: usize) {
        let bins = series.values.len().max(1) as f64;
        let mut path = String::new();
        for (bin, value) in series.values.iter().enumerate() {
            let command = if bin == 0 { 'M' } else { 'L' };
            let y = area.y(value / end);
            let (from, to) = (self.x(bin as f64 / bins), self.x((bin + 1) as f64 / bins));
            let _ = write!(path, "{command}{from:.1} {y:.1}H{to:.1}");
        }
        let (left, right, bottom) = (self.left, self.right(), area.bottom());
        let colour = colour % COLOURS;
        self.add(format_args!(
            r#"<path d="{path}V{bottom:.1}H{left:.1}Z" class="under c{colour}" />"#
        ));
        self.add(format_args!(r#"<path d="{path}" class="curve s{colour}" />"#));
        self.add(format_args!(
            r#"<line x1="{left:.1}" x2="{right:.1}" y1="{bottom:.1}" y2="{bottom:.1}" class="base" />"#
        ));
    }

    /// Draws quantiles on a line: a dot (p50), a ring (p90) and a bar (p99), which differ in shape,
    /// not only in colour.
    pub(crate) fn quantiles(&mut self, [p50, p90, p99]: [f64; 3], y: f64, colour: usize) {
        let colour = colour % COLOURS;
        self.add(format_args!(r#"<path d="M{p50:.1} {y:.1}H{p99:.1}" class="curve s{colour}" />"#));
        self.add(format_args!(
            r#"<path d="M{p99:.1} {:.1}V{:.1}" class="curve thick s{colour}" />"#,
            y - 7.0,
            y + 7.0
        ));
        self.add(format_args!(
            r#"<circle cx="{p90:.1}" cy="{y:.1}" r="4.5" class="ring s{colour}" />"#
        ));
        self.add(format_args!(r#"<circle cx="{p50:.1}" cy="{y:.1}" r="5.5" class="c{colour}" />"#));
    }

    /// The legend of [`quantiles`](Self::quantiles).
    pub(crate) fn legend(&mut self, entries: &[(&str, &str); 3]) {
        let shapes = [
            r#"<circle cx="5" cy="8" r="5.5" class="key" />"#,
            r#"<circle cx="5" cy="8" r="4.5" class="key-ring" />"#,
            r#"<path d="M5 1V15" class="key-bar" />"#,
        ];
        let mut x = self.left;
        for ((name, meaning), shape) in entries.iter().zip(shapes) {
            let text = format!("{name}: {meaning}");
            self.add(format_args!(r#"<g transform="translate({x:.1} 0)">{shape}</g>"#));
            self.text(x + 16.0, 12.0, "start", "tick", &text);
            x += 30.0 + 6.9 * text.chars().count() as f64;
        }
    }
}

/// A linear scale from 0 with round ticks.
pub(crate) struct Linear {
    pub(crate) ticks: Vec<f64>,
    pub(crate) end: f64,
}

impl Linear {
    /// Ticks at multiples of 1, 2 or 5 times a power of ten; the last is at or above `most`.
    pub(crate) fn up_to(most: f64) -> Self {
        if !(most.is_finite() && most > 0.0) {
            return Linear { ticks: vec![0.0, 1.0], end: 1.0 };
        }
        let rough = most / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * power)
            .find(|step| *step >= rough)
            .unwrap_or(10.0 * power);
        // The tolerance prevents an additional step due to a rounding error.
        let steps = (most / step - 1e-9).ceil().max(1.0);
        let ticks = (0..=steps as u32).map(|tick| f64::from(tick) * step).collect();
        Linear { ticks, end: steps * step }
    }
}

pub(crate) fn measured_tick(value: f64) -> String {
    match value {
        value if value >= 1000.0 => measured(value),
        // Multiples of 1, 2 or 5 times a power of ten have few digits.
        value => format!("{}", (value * 1e6).round() / 1e6),
    }
}

/// A logarithmic scale of durations in nanoseconds, from one power of ten to another.
pub(crate) struct Decades {
    first: i32,
    last: i32,
}

impl Decades {
    pub(crate) fn around(times: impl Iterator<Item = Duration>) -> Self {
        let logs = times.map(|time| (time.as_nanos().max(1) as f64).log10());
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| {
            (low.min(log), high.max(log))
        });
        if low > high {
            return Decades { first: 3, last: 6 };
        }
        let first = low.floor() as i32;
        Decades { first, last: (high.ceil() as i32).max(first + 1) }
    }

    /// The position of a duration in nanoseconds on the scale, from 0 to 1.
    pub(crate) fn position(&self, nanos: f64) -> f64 {
        (nanos.max(1.0).log10() - f64::from(self.first)) / f64::from(self.last - self.first)
    }

    /// The powers of ten with their labels; if there are more than eight, every second power.
    pub(crate) fn ticks(&self) -> Vec<(i32, String)> {
        let step = if self.last - self.first > 7 { 2 } else { 1 };
        let label = |power: i32| {
            let (power, unit) = match power {
                0..3 => (power, "ns"),
                3..6 => (power - 3, "µs"),
                6..9 => (power - 6, "ms"),
                _ => (power - 9, "s"),
            };
            format!("{} {unit}", 10f64.powi(power))
        };
        (self.first..=self.last).step_by(step).map(|power| (power, label(power))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_a_round_number_at_or_above_the_value() {
        for (most, end, ticks) in
            [(1.0, 1.0, 6), (1234.0, 1500.0, 4), (0.37, 0.4, 5), (60.0, 60.0, 4), (1.01, 1.5, 4)]
        {
            let scale = Linear::up_to(most);
            assert!((scale.end - end).abs() < 1e-9, "{most}: {}", scale.end);
            assert_eq!(scale.ticks.len(), ticks, "{most}: {:?}", scale.ticks);
        }
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Linear::up_to(odd).end, 1.0);
        }
    }

    #[test]
    fn decades_hold_all_times() {
        let scale = Decades::around([150, 2_000_000].map(Duration::from_nanos).into_iter());
        assert_eq!((scale.first, scale.last), (2, 7));
        let labels: Vec<_> = scale.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["100 ns", "1 µs", "10 µs", "100 µs", "1 ms", "10 ms"]);
        assert!((scale.position(1e4) - 0.4).abs() < 1e-9);
        assert_eq!(Decades::around([].into_iter()).ticks().len(), 4);
        let same = Decades::around([Duration::from_nanos(1000)].into_iter());
        assert!(same.position(1000.0).is_finite());
    }
}
