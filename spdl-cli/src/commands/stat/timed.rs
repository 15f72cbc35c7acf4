//! Statistics of audio and video files.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use spdl_media::video::VideoColor;

use super::statistics::Spread;
use crate::inspection::media::{AudioFacts, HAS_FFMPEG, VideoFacts};
use crate::ui::format::{bytes, count, counted, measured, percent, printable, seconds};
use crate::ui::table::Table;

/// The text for a video without a known audio stream.
const NO_AUDIO: &str = if HAS_FFMPEG { "none" } else { "unknown" };
/// Maximum number of files in JSON.
const LISTED: usize = 1000;

/// Formats a value of a measure.
type Show = fn(f64) -> String;

/// A file with its name and its facts.
#[derive(Clone, Debug)]
pub(crate) struct TimedFile<F> {
    pub(crate) name: String,
    pub(crate) facts: F,
}

/// What the statistics of audio and of video have in common.
pub(crate) trait Timed {
    /// The noun for a file, and its plural.
    const NOUN: [&'static str; 2];

    /// The duration in seconds, if it is known.
    fn duration(&self) -> Option<f64>;

    /// The size of the file.
    fn bytes(&self) -> u64;

    /// The names and values whose number of files is counted, such as the codec.
    fn categories(&self) -> Vec<(&'static str, String)>;

    /// Further numbers, with a function that formats them.
    fn numbers(&self) -> Vec<(&'static str, f64, Show)>;

    fn as_json(&self) -> Value;

    /// The facts of a single file as lines of text.
    fn lines(&self) -> Vec<(&'static str, String)>;

    /// The facts in a few words.
    fn caption(&self) -> String;
}

fn whole(value: f64) -> String {
    count(value.round() as u64)
}

fn size(value: f64) -> String {
    bytes(value.round() as u64)
}

fn length_of(duration: Option<f64>) -> String {
    duration.map_or_else(|| "unknown".to_owned(), seconds)
}

impl Timed for AudioFacts {
    const NOUN: [&'static str; 2] = ["audio file", "audio files"];

    fn duration(&self) -> Option<f64> {
        self.seconds()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn categories(&self) -> Vec<(&'static str, String)> {
        vec![
            ("formats", self.format.clone()),
            ("codecs", self.codec.clone()),
            ("sample_rates", self.sample_rate.to_string()),
            ("channels", self.channels.to_string()),
        ]
    }

    fn numbers(&self) -> Vec<(&'static str, f64, Show)> {
        Vec::new()
    }

    fn as_json(&self) -> Value {
        json!({
            "format": self.format,
            "codec": self.codec,
            "seconds": self.seconds(),
            "sample_rate": self.sample_rate,
            "channels": self.channels,
            "frames": self.frames,
            "bytes": self.bytes,
        })
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("format", self.format.clone()),
            ("codec", self.codec.clone()),
            ("duration", length_of(self.seconds())),
            ("sample rate", format!("{} Hz", self.sample_rate)),
            ("channels", self.channels.to_string()),
            ("frames", self.frames.map_or_else(|| "unknown".to_owned(), count)),
        ]
    }

    fn caption(&self) -> String {
        let channels = counted(self.channels.into(), "channel", "channels");
        format!(
            "{}, {} Hz, {channels}, {}",
            self.codec,
            self.sample_rate,
            length_of(self.seconds())
        )
    }
}

impl Timed for VideoFacts {
    const NOUN: [&'static str; 2] = ["video", "videos"];

    fn duration(&self) -> Option<f64> {
        Some(self.seconds)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn categories(&self) -> Vec<(&'static str, String)> {
        let audio = self.audio.as_ref().map_or(NO_AUDIO, |audio| &audio.codec);
        vec![
            ("containers", self.container.clone()),
            ("codecs", self.codec.clone()),
            ("rates", rate_kind(self.is_variable).to_owned()),
            ("audio_codecs", audio.to_owned()),
        ]
    }

    fn numbers(&self) -> Vec<(&'static str, f64, Show)> {
        let numbers: [(&'static str, f64, Show); 5] = [
            ("width", self.size.width.into(), whole),
            ("height", self.size.height.into(), whole),
            ("frame_rate", self.frame_rate, measured),
            ("frames", self.frames as f64, whole),
            ("key_distance", self.key_distance.mean, measured),
        ];
        numbers.to_vec()
    }

    fn as_json(&self) -> Value {
        json!({
            "container": self.container,
            "codec": self.codec,
            "width": self.size.width,
            "height": self.size.height,
            "rotation": self.rotation,
            "color": {
                "primaries": self.color.primaries,
                "transfer": self.color.transfer,
                "matrix": self.color.matrix,
                "hdr": self.color.is_hdr(),
            },
            "frame_rate": self.frame_rate,
            "variable_rate": self.is_variable,
            "frames": self.frames,
            "seconds": self.seconds,
            "key_distance": {
                "min": self.key_distance.min,
                "mean": self.key_distance.mean,
                "max": self.key_distance.max,
            },
            "disposable": self.disposable,
            "audio": self.audio.as_ref().map(|audio| json!({
                "codec": audio.codec,
                "seconds": audio.seconds(),
                "sample_rate": audio.sample_rate,
                "channels": audio.channels,
            })),
            "bytes": self.bytes,
        })
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let rotation = match self.rotation {
            0 => String::new(),
            degrees => format!(", rotated by {degrees}°"),
        };
        let (rate, key) = (measured(self.frame_rate), &self.key_distance);
        vec![
            ("container", self.container.clone()),
            ("codec", self.codec.clone()),
            ("size", format!("{} pixels{rotation}", self.size)),
            ("colours", colors(&self.color)),
            ("frame rate", format!("{rate} per second, {}", rate_kind(self.is_variable))),
            ("frames", count(self.frames)),
            ("duration", seconds(self.seconds)),
            (
                "key frames",
                format!(
                    "every {} frames (mean), {} to {}",
                    measured(key.mean),
                    count(key.min),
                    count(key.max)
                ),
            ),
            ("disposable", self.disposable.map_or_else(|| "unknown".to_owned(), percent)),
            ("audio", self.audio.as_ref().map_or(NO_AUDIO.to_owned(), Timed::caption)),
        ]
    }

    fn caption(&self) -> String {
        let rate = measured(self.frame_rate);
        format!("{}, {}, {rate} frames/s, {}", self.codec, self.size, seconds(self.seconds))
    }
}

/// The colours that a container names, as numbers of ITU-T H.273.
fn colors(color: &VideoColor) -> String {
    let numbers =
        [("primaries", color.primaries), ("transfer", color.transfer), ("matrix", color.matrix)];
    let named = numbers.iter().filter_map(|(name, number)| Some(format!("{name} {}", (*number)?)));
    let named = named.collect::<Vec<_>>().join(", ");
    match (color.is_hdr(), named.is_empty()) {
        (true, _) => format!("{named} (HDR)"),
        (false, true) => "not named by the container".to_owned(),
        (false, false) => named,
    }
}

fn rate_kind(is_variable: bool) -> &'static str {
    if is_variable { "variable" } else { "constant" }
}

/// Counts of files by the value of each category, in the order of the categories.
fn categories<F: Timed>(files: &[TimedFile<F>]) -> Vec<(&'static str, BTreeMap<String, u64>)> {
    let mut all: Vec<(&'static str, BTreeMap<String, u64>)> = Vec::new();
    for file in files {
        for (at, (name, value)) in file.facts.categories().into_iter().enumerate() {
            if all.len() == at {
                all.push((name, BTreeMap::new()));
            }
            *all[at].1.entry(value).or_default() += 1;
        }
    }
    all
}

/// The measures of the files: name, values, and a function that formats a value.
pub(super) fn measures<F: Timed>(files: &[TimedFile<F>]) -> Vec<(&'static str, Vec<f64>, Show)> {
    let durations = files.iter().filter_map(|file| file.facts.duration()).collect();
    let sizes = files.iter().map(|file| file.facts.bytes() as f64).collect();
    let mut measures: Vec<(&'static str, Vec<f64>, Show)> =
        vec![("duration", durations, seconds as Show), ("bytes", sizes, size as Show)];
    for file in files {
        for (at, (name, value, show)) in file.facts.numbers().into_iter().enumerate() {
            if measures.len() == at + 2 {
                measures.push((name, Vec::new(), show));
            }
            measures[at + 2].1.push(value);
        }
    }
    measures
}

/// The files with the least and the largest value of `key`.
fn extremes<F>(
    files: &[TimedFile<F>],
    key: impl Fn(&F) -> Option<f64>,
) -> Option<[(&str, f64); 2]> {
    let mut known = files.iter().filter_map(|file| Some((file.name.as_str(), key(&file.facts)?)));
    let first = known.next()?;
    Some(known.fold([first, first], |[least, most], file| {
        [if file.1 < least.1 { file } else { least }, if file.1 > most.1 { file } else { most }]
    }))
}

/// The total of the known durations in seconds.
pub(super) fn total_seconds<F: Timed>(files: &[TimedFile<F>]) -> f64 {
    files.iter().filter_map(|file| file.facts.duration()).sum()
}

/// The statistics as a JSON object; null without files.
pub(super) fn as_json<F: Timed>(files: &[TimedFile<F>]) -> Value {
    if files.is_empty() {
        return Value::Null;
    }
    let mut object = json!({
        "files": files.len(),
        "seconds": total_seconds(files),
        "without_duration": files.iter().filter(|it| it.facts.duration().is_none()).count(),
    });
    for (name, counts) in categories(files) {
        object[name] = json!(counts);
    }
    for (name, values, _) in measures(files) {
        object[name] = Spread::of(&values).map_or(Value::Null, |spread| spread.as_json());
    }
    let by_size = |facts: &F| Some(facts.bytes() as f64);
    for (names, found) in [
        (["shortest", "longest"], extremes(files, Timed::duration)),
        (["smallest", "largest"], extremes(files, by_size)),
    ] {
        for (at, name) in names.into_iter().enumerate() {
            object[name] = found.map_or(Value::Null, |both| both[at].0.into());
        }
    }
    let listed = files.iter().take(LISTED).map(|file| {
        let mut entry = Map::from_iter([("key".to_owned(), Value::from(file.name.as_str()))]);
        if let Value::Object(facts) = file.facts.as_json() {
            entry.extend(facts);
        }
        Value::Object(entry)
    });
    object["listed"] = listed.collect();
    object
}

/// The statistics as text: the facts of one file, or tables of several files. Empty without files.
pub(super) fn as_text<F: Timed>(files: &[TimedFile<F>]) -> Vec<String> {
    let [noun, plural] = F::NOUN;
    match files {
        [] => Vec::new(),
        [file] => {
            let lines = file.facts.lines();
            let lines = lines.iter().map(|(name, value)| format!("{name:<14}{value}"));
            let title = format!("{noun:<14}{}", printable(&file.name));
            vec![std::iter::once(title).chain(lines).collect::<Vec<_>>().join("\n")]
        }
        files => {
            let mut parts = Vec::new();
            for (name, counts) in categories(files) {
                let title = name.replace('_', " ");
                let mut table = Table::new(&[&title, plural, "share"], 1);
                for (value, number) in counts {
                    let share = number as f64 / files.len() as f64;
                    table.add([printable(&value), count(number), percent(share)]);
                }
                parts.push(table.draw());
            }
            let mut spreads = Table::new(&[plural, "min", "p10", "p50", "p90", "max", "mean"], 1);
            for (name, values, show) in measures(files) {
                if let Some(spread) = Spread::of(&values) {
                    let mut row = vec![name.replace('_', " ")];
                    row.extend(spread.values().map(show));
                    spreads.add(row);
                }
            }
            parts.push(spreads.draw());
            let by_size = |facts: &F| Some(facts.bytes() as f64);
            let mut lines = vec![format!("{:<14}{}", "total", seconds(total_seconds(files)))];
            for (names, found, show) in [
                (["shortest", "longest"], extremes(files, Timed::duration), seconds as Show),
                (["smallest", "largest"], extremes(files, by_size), size as Show),
            ] {
                for ((name, value), title) in found.into_iter().flatten().zip(names) {
                    lines.push(format!("{title:<14}{}  {}", show(value), printable(name)));
                }
            }
            parts.push(lines.join("\n"));
            parts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audio(name: &str, frames: Option<u64>, bytes: u64) -> TimedFile<AudioFacts> {
        let facts = AudioFacts {
            format: "wav".to_owned(),
            codec: "pcm-int16".to_owned(),
            sample_rate: 8000,
            channels: 1,
            frames,
            bytes,
        };
        TimedFile { name: name.to_owned(), facts }
    }

    #[test]
    fn totals_and_extremes_use_known_durations_only() {
        let files = [audio("a", Some(8000), 10), audio("b", None, 5), audio("c", Some(4000), 20)];
        let json = as_json(&files);
        assert_eq!((&json["files"], &json["seconds"]), (&3.into(), &1.5.into()));
        assert_eq!(json["without_duration"], 1);
        let extremes = ["shortest", "longest", "smallest", "largest"].map(|name| &json[name]);
        assert_eq!(extremes, ["c", "a", "b", "c"]);
        assert_eq!(
            (&json["codecs"]["pcm-int16"], &json["duration"]["max"]),
            (&3.into(), &1.0.into())
        );
        assert_eq!(json["listed"][1]["seconds"], Value::Null);
        assert_eq!(as_json::<AudioFacts>(&[]), Value::Null);
    }

    #[test]
    fn a_single_file_is_described_and_several_are_tabulated() {
        let files = [audio("a", Some(8000), 10), audio("b", None, 5)];
        let one = as_text(&files[..1]).join("\n");
        assert!(
            one.contains("sample rate   8000 Hz") && one.contains("duration      1.00 s"),
            "{one}"
        );
        let all = as_text(&files).join("\n");
        assert!(all.contains("longest       1.00 s  a") && all.contains("100 %"), "{all}");
        assert!(as_text::<AudioFacts>(&[]).is_empty());
    }
}
