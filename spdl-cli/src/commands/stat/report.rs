//! The HTML page of `spdl stat`: statistics, histograms, contact sheets and waveforms.

use std::fmt::Write as _;

use super::previews::{Frames, Preview, Waveform};
use super::statistics::{Histogram, Spread, Summary, measures};
use super::thumbnails::Thumbnail;
use super::timed::{self, Timed, TimedFile};
use crate::inspection::media::HAS_FFMPEG;
use crate::ui::format::{bytes, count, counted, seconds};
use crate::ui::html::document::{Escaped, definitions, document, section, table};
use crate::ui::html::svg::{Area, Linear, Series, Svg, figure, measured_tick};
use crate::ui::html::waveform::waveform;

/// Number of bins of a histogram.
const BINS: usize = 40;
/// Maximum number of bars for classes.
const CLASSES_SHOWN: usize = 30;
/// Maximum number of rows in the table of classes.
const CLASSES_LISTED: usize = 2000;
/// Maximum number of rows in the tables of audio and video files.
const FILES_LISTED: usize = 200;

/// What the page shows of the content of media files.
#[derive(Debug)]
pub(crate) struct Sheets {
    thumbnails: Vec<Thumbnail>,
    waveforms: Vec<Preview<Waveform>>,
    videos: Vec<Preview<Frames>>,
}

impl Sheets {
    pub(super) fn new(
        thumbnails: Vec<Thumbnail>,
        (waveforms, videos): (Vec<Preview<Waveform>>, Vec<Preview<Frames>>),
    ) -> Self {
        Sheets { thumbnails, waveforms, videos }
    }

    fn html(&self, summary: &Summary) -> String {
        let mut sections = Vec::new();
        // A set without any media has an empty sheet.
        if !summary.images.is_empty() || summary.audio.is_empty() && summary.videos.is_empty() {
            sections.push(contact_sheet(&self.thumbnails));
        }
        if !self.videos.is_empty() {
            let clips = self.videos.iter().map(|clip| captioned(clip, &frames(&clip.content)));
            sections.push(clips_section("Frames of videos", clips));
        } else if !summary.videos.is_empty() && !HAS_FFMPEG {
            let reason = "<p>Frames are not shown: this build lacks the cargo feature <code>ffmpeg</code>.</p>";
            sections.push(section("Frames of videos", reason));
        }
        if !self.waveforms.is_empty() {
            let drawn = |clip: &Preview<Waveform>| {
                captioned(clip, &waveform(&clip.content, &format!("Waveform of {}", clip.name)))
            };
            sections.push(clips_section("Waveforms", self.waveforms.iter().map(drawn)));
        }
        sections.join("\n")
    }
}

/// The HTML page.
pub(crate) fn data_set(
    name: &str,
    summary: &Summary,
    classes: &[(i64, Option<String>, u64)],
    unreadable: Vec<[String; 2]>,
    sheets: &Sheets,
) -> String {
    let cards = overview(summary).into_iter().map(|(name, value)| {
        format!("<div><dt>{}</dt><dd>{}</dd></div>\n", Escaped(name), Escaped(&value))
    });
    let fields = summary
        .fields
        .iter()
        .map(|(name, (members, size))| vec![name.clone(), count(*members), bytes(*size)]);
    let formats: Vec<_> =
        summary.formats.iter().map(|(name, images)| (name.as_str(), count(*images))).collect();
    let listed = classes.iter().take(CLASSES_LISTED).map(|(class, name, samples)| {
        vec![class.to_string(), name.clone().unwrap_or_default(), count(*samples)]
    });
    let mut sections = vec![table("Fields", "numbers", &["field", "members", "bytes"], 1, fields)];
    if !formats.is_empty() || summary.audio.is_empty() && summary.videos.is_empty() {
        sections.push(section("Formats", &definitions(&formats)));
    }
    sections.extend(timed_table("Audio", &summary.audio));
    sections.extend(timed_table("Video", &summary.videos));
    if !classes.is_empty() {
        let title = counted(classes.len() as u64, "class", "classes");
        sections.push(table(&title, "numbers", &["class", "name", "samples"], 2, listed));
    }
    if !unreadable.is_empty() {
        let title = match summary.unreadable as usize - unreadable.len() {
            0 => "Unreadable".to_owned(),
            more => format!("Unreadable ({} more not listed)", count(more as u64)),
        };
        let rows = unreadable.into_iter().map(Vec::from);
        sections.push(table(&title, "dropped", &["member", "reason"], 2, rows));
    }
    let content = format!(
        r#"<dl class="figures">
{cards}</dl>
{sheet}
<div class="charts">
{charts}
</div>
{sections}
"#,
        cards = cards.collect::<String>(),
        sheet = sheets.html(summary),
        charts = charts(summary, classes).join("\n"),
        sections = sections.join("\n"),
    );
    document("spdl stat", name, name, &content)
}

/// The names and values of the key figures.
pub(crate) fn overview(summary: &Summary) -> Vec<(&'static str, String)> {
    let mut figures = vec![
        ("samples", count(summary.samples)),
        ("members", count(summary.members)),
        ("bytes", bytes(summary.bytes)),
        ("images", count(summary.images.len() as u64)),
    ];
    figures.extend(timed_figure("audio", &summary.audio));
    figures.extend(timed_figure("videos", &summary.videos));
    figures.push(("unreadable", count(summary.unreadable)));
    if !summary.classes.is_empty() {
        figures.push(("classes", count(summary.classes.len() as u64)));
    }
    figures
}

/// The number of files and their total duration; `None` without files.
fn timed_figure<F: Timed>(
    name: &'static str,
    files: &[TimedFile<F>],
) -> Option<(&'static str, String)> {
    let number = count(files.len() as u64);
    let value = format!("{number} ({})", seconds(timed::total_seconds(files)));
    (!files.is_empty()).then_some((name, value))
}

/// A table of the files; `None` without files.
fn timed_table<F: Timed>(title: &str, files: &[TimedFile<F>]) -> Option<String> {
    let first = files.first()?;
    let names = first.facts.lines().into_iter().map(|(name, _)| name);
    let header: Vec<&str> = std::iter::once("file").chain(names).collect();
    let rows = files.iter().take(FILES_LISTED).map(|file| {
        let values = file.facts.lines().into_iter().map(|(_, value)| value);
        std::iter::once(file.name.clone()).chain(values).collect()
    });
    let title = match files.len().saturating_sub(FILES_LISTED) {
        0 => title.to_owned(),
        more => format!("{title} ({} more not listed)", count(more as u64)),
    };
    Some(table(&title, "numbers", &header, header.len(), rows))
}

fn charts(summary: &Summary, classes: &[(i64, Option<String>, u64)]) -> Vec<String> {
    let mut charts = Vec::new();
    for (name, values, show) in measures(summary) {
        let Some(spread) = Spread::of(&values) else { continue };
        let (title, unit) = match name {
            "width" => ("Width", "pixels"),
            "height" => ("Height", "pixels"),
            _ => ("Image size", "bytes"),
        };
        let [min, p50, max] = [spread.min, spread.p50, spread.max].map(show);
        let words = format!("Median {p50}, minimum {min}, maximum {max}.");
        charts.push(histogram(name, title, unit, "images", &words, &values));
    }
    charts.extend(duration_chart("audio-duration", "Duration of audio", &summary.audio));
    charts.extend(duration_chart("video-duration", "Duration of videos", &summary.videos));
    if !classes.is_empty() {
        charts.push(class_bars(classes));
    }
    charts
}

/// The histogram of durations; `None` for fewer than two files.
fn duration_chart<F: Timed>(id: &str, title: &str, files: &[TimedFile<F>]) -> Option<String> {
    let durations: Vec<f64> = files.iter().filter_map(|file| file.facts.duration()).collect();
    let spread = Spread::of(&durations).filter(|_| durations.len() > 1)?;
    let [min, p50, max] = [spread.min, spread.p50, spread.max].map(seconds);
    let words = format!("Median {p50}, minimum {min}, maximum {max}.");
    Some(histogram(id, title, "seconds", F::NOUN[1], &words, &durations))
}

fn histogram(id: &str, title: &str, unit: &str, noun: &str, words: &str, values: &[f64]) -> String {
    let area = Area { top: 14.0, height: 170.0 };
    let across = Linear::up_to(values.iter().copied().fold(0.0, f64::max));
    let histogram = Histogram::new(values, across.end, BINS);
    let highest = histogram.counts.iter().copied().max().unwrap_or(0);
    let scale = Linear::up_to(highest as f64);
    let mut svg = Svg::new(area.bottom() + 34.0);
    for &tick in &scale.ticks {
        svg.horizontal(area.y(tick / scale.end), &measured_tick(tick));
    }
    let values = histogram.counts.iter().map(|&count| count as f64).collect();
    svg.steps(&area, &Series { values }, scale.end, 1);
    for &tick in &across.ticks {
        let x = svg.x(tick / across.end);
        let label = if unit == "bytes" { bytes(tick as u64) } else { measured_tick(tick) };
        svg.text(x, area.bottom() + 15.0, "middle", "tick", &label);
    }
    svg.text(svg.middle(), area.bottom() + 30.0, "middle", "axis", unit);
    let caption = format!("Number of {noun} in each of {BINS} bins. {words}");
    figure(id, title, &caption, words, svg)
}

/// A bar chart of the largest classes.
fn class_bars(classes: &[(i64, Option<String>, u64)]) -> String {
    const ROW: f64 = 36.0;
    let mut largest: Vec<_> = classes.iter().collect();
    largest.sort_by_key(|(class, _, samples)| (std::cmp::Reverse(*samples), *class));
    largest.truncate(CLASSES_SHOWN);
    let most = largest.first().map_or(1, |(_, _, samples)| *samples).max(1);
    let mut svg = Svg::new(ROW * largest.len() as f64 + 4.0);
    svg.left = 10.0;
    for (row, (class, name, samples)) in largest.iter().enumerate() {
        let top = ROW * row as f64;
        let name =
            name.as_deref().map_or_else(|| class.to_string(), |name| format!("{class} {name}"));
        svg.text(svg.left, top + 14.0, "start", "name", &name);
        svg.text(svg.right(), top + 14.0, "end", "value", &count(*samples));
        svg.bar(top + 18.0, 10.0, *samples as f64 / most as f64, 1);
    }
    let words =
        format!("Number of samples in the largest {} of {} classes.", largest.len(), classes.len());
    figure("classes", "Classes", &words, &words, svg)
}

fn contact_sheet(thumbnails: &[Thumbnail]) -> String {
    let mut html = String::from("<div class=\"sheet\">\n");
    for thumbnail in thumbnails {
        let _ = writeln!(
            html,
            "<img src=\"data:image/jpeg;base64,{}\" alt=\"{name}\" title=\"{name}\" />",
            base64(&thumbnail.bytes),
            name = Escaped(&thumbnail.name)
        );
    }
    html.push_str("</div>");
    section("Contact sheet", &html)
}

/// The frames of a video side by side.
fn frames(files: &[Vec<u8>]) -> String {
    let mut html = String::from("<div class=\"frames\">\n");
    for file in files {
        let _ = writeln!(html, "<img src=\"data:image/jpeg;base64,{}\" alt=\"\" />", base64(file));
    }
    html.push_str("</div>");
    html
}

/// A preview with the name and the facts of its file.
fn captioned<T>(preview: &Preview<T>, content: &str) -> String {
    format!(
        "<figure>\n<figcaption>{}<p>{}</p></figcaption>\n{content}\n</figure>",
        Escaped(&preview.name),
        Escaped(&preview.caption)
    )
}

fn clips_section(title: &str, clips: impl Iterator<Item = String>) -> String {
    let clips: Vec<_> = clips.collect();
    section(title, &format!("<div class=\"clips\">\n{}\n</div>", clips.join("\n")))
}

/// Base64 encoding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { digit.into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64_is_that_of_the_standard() {
        // Test vectors of RFC 4648, section 10.
        for (text, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }
}
