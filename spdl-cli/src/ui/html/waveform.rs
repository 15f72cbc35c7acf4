//! Waveforms of audio as inline SVG.

use std::fmt::Write as _;

use super::document::Escaped;

/// Width and height of a waveform in SVG units.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 60.0;

/// A waveform from the minimum and maximum of each column, −1 to 1. Screen readers read `title`.
pub(crate) fn waveform(columns: &[(f32, f32)], title: &str) -> String {
    let x = |at: usize| at as f64 * WIDTH / columns.len().max(1) as f64;
    let y = |sample: f32| {
        let sample = if sample.is_finite() { f64::from(sample).clamp(-1.0, 1.0) } else { 0.0 };
        HEIGHT / 2.0 * (1.0 - sample)
    };
    let mut path = String::new();
    // Along the maxima, and back along the minima.
    for (at, (_, high)) in columns.iter().enumerate() {
        let command = if at == 0 { 'M' } else { 'L' };
        // Writing to a `String` cannot fail.
        let _ = write!(path, "{command}{:.1} {:.1}H{:.1}", x(at), y(*high), x(at + 1));
    }
    for (at, (low, _)) in columns.iter().enumerate().rev() {
        let _ = write!(path, "L{:.1} {:.1}H{:.1}", x(at + 1), y(*low), x(at));
    }
    if !columns.is_empty() {
        path.push('Z');
    }
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" \
         preserveAspectRatio=\"none\" class=\"wave\">\n<title>{}</title>\n\
         <path d=\"M0 {middle}H{WIDTH}\" class=\"base\" />\n<path d=\"{path}\" class=\"c1\" />\n</svg>",
        Escaped(title),
        middle = HEIGHT / 2.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_runs_along_maxima_and_minima() {
        let svg = waveform(&[(-1.0, 0.5), (-0.5, 2.0)], "a & b");
        let document = roxmltree::Document::parse(&svg).unwrap();
        let mut paths = document
            .descendants()
            .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "path")));
        let path = paths.nth(1).and_then(|path| path.attribute("d"));
        let expected = "M0.0 15.0H200.0L200.0 0.0H400.0L400.0 45.0H200.0L200.0 60.0H0.0Z";
        assert_eq!(path, Some(expected));
        let silent = waveform(&[(f32::NAN, f32::INFINITY)], "x");
        assert!(silent.contains("M0.0 30.0H400.0") && !silent.contains("NaN"), "{silent}");
        assert!(waveform(&[], "x").contains("d=\"\""));
    }
}
