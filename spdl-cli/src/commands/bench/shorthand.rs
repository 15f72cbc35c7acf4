//! Fields of video and audio by options: a shorthand for a file of `--spec`.

use clap::Args;
use serde_json::{Value, json};

use super::arguments::{BenchArguments, Mode, OnTruncated};
use crate::commands::options::{count, positive};
use crate::ui::format::counted;

/// The sample rate of Whisper in Hz, and the default.
const RATE: u32 = 16_000;
/// The duration of a sample of Whisper in seconds, and the default.
const SECONDS: f64 = 30.0;
/// The largest number of frames (samples per channel) of audio.
const MAX_AUDIO_FRAMES: f64 = (1_u64 << 32) as f64;

/// The options for video and audio.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MediaOptions {
    /// Load clips of this many frames from videos, instead of images; needs the cargo feature
    /// `ffmpeg`
    ///
    /// Frames have the height and width --size, and the layout --layout. By default, they are spread
    /// evenly over the video. If a video has fewer frames, its last frame is repeated. In train mode,
    /// the position of the clip is random, and all its frames have the same random crop and flip.
    #[arg(long, value_name = "FRAMES", value_parser = count::<u32>(1 << 20),
          conflicts_with_all = ["spec", "mel", "seconds", "rate", "cache_pixels"])]
    pub(crate) frames: Option<u32>,

    /// Distance from frame to frame of a clip: in seconds, such as 0.5s, or in frames, such as 4
    #[arg(long, value_name = "DISTANCE", requires = "frames", conflicts_with = "fps", value_parser = distance)]
    pub(crate) every: Option<Distance>,

    /// Frames per second of a clip, whatever the frame rate of the video
    #[arg(long, value_name = "RATE", requires = "frames", value_parser = positive)]
    pub(crate) fps: Option<f64>,

    /// Load log-mel spectrograms of audio with this many bins, as Whisper computes them, instead of
    /// images: 80, or 128 for large-v3
    ///
    /// Audio files with MP4, Matroska and other containers of FFmpeg need the cargo feature `ffmpeg`.
    #[arg(long, value_name = "BINS", value_parser = count::<u32>(1024),
          conflicts_with_all = ["spec", "size", "layout", "cache_pixels"])]
    pub(crate) mel: Option<u32>,

    /// Load this many seconds of each audio file, instead of images [default: 30]
    ///
    /// Shorter files are padded with zeros. In train mode, the position in longer files is random. The
    /// samples are mono, and float32 waveforms unless --mel is given.
    #[arg(long, value_name = "SECONDS", value_parser = positive,
          conflicts_with_all = ["spec", "size", "layout", "cache_pixels"])]
    pub(crate) seconds: Option<f64>,

    /// Sample rate of audio in Hz, to which files with other rates are converted [default: 16000]
    #[arg(long, value_name = "HZ", value_parser = count::<u32>(768_000),
          conflicts_with_all = ["spec", "size", "layout", "cache_pixels"])]
    pub(crate) rate: Option<u32>,
}

/// The distance of the frames of a clip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Distance {
    Seconds(f64),
    Frames(u32),
}

/// What a sample is in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleNoun {
    Image,
    /// A clip of a video.
    Clip,
    /// Audio, or the fields of `--spec`.
    Sample,
}

impl SampleNoun {
    pub(crate) fn one(self) -> &'static str {
        match self {
            SampleNoun::Image => "image",
            SampleNoun::Clip => "clip",
            SampleNoun::Sample => "sample",
        }
    }

    pub(crate) fn many(self) -> &'static str {
        match self {
            SampleNoun::Image => "images",
            SampleNoun::Clip => "clips",
            SampleNoun::Sample => "samples",
        }
    }

    /// The plural at the start of a sentence.
    pub(crate) fn title(self) -> &'static str {
        match self {
            SampleNoun::Image => "Images",
            SampleNoun::Clip => "Clips",
            SampleNoun::Sample => "Samples",
        }
    }

    /// A number with its noun.
    pub(crate) fn counted(self, number: u64) -> String {
        counted(number, self.one(), self.many())
    }
}

impl MediaOptions {
    fn is_audio(&self) -> bool {
        self.mel.is_some() || self.seconds.is_some() || self.rate.is_some()
    }

    /// The noun for a sample; `None` if the options request neither video nor audio.
    pub(crate) fn noun(&self) -> Option<SampleNoun> {
        match (self.frames.is_some(), self.is_audio()) {
            (true, _) => Some(SampleNoun::Clip),
            (false, true) => Some(SampleNoun::Sample),
            (false, false) => None,
        }
    }

    /// Duration and sample rate of audio.
    fn audio(&self) -> (f64, u32) {
        (self.seconds.unwrap_or(SECONDS), self.rate.unwrap_or(RATE))
    }

    /// The options in a few words.
    pub(crate) fn describe(&self, arguments: &BenchArguments) -> Option<String> {
        let (seconds, rate) = self.audio();
        Some(match (self.frames, self.mel) {
            (Some(frames), _) => {
                let spacing = match (self.every, self.fps) {
                    (Some(Distance::Seconds(seconds)), _) => format!("every {seconds} s"),
                    (Some(Distance::Frames(frames)), _) => format!("every {frames} frames"),
                    (None, Some(fps)) => format!("at {fps} per second"),
                    (None, None) => "spread evenly".to_owned(),
                };
                let (size, layout) = (arguments.size, arguments.layout);
                let frames = counted(frames.into(), "frame", "frames");
                format!("{frames} {spacing}, size {size}, {layout}")
            }
            (None, Some(bins)) => format!("log-mel of {bins} bins, {seconds} s at {rate} Hz"),
            (None, None) if self.is_audio() => format!("waveforms of {seconds} s at {rate} Hz"),
            (None, None) => return None,
        })
    }

    /// The content of the file of `--spec` that the options stand for; `None` for images.
    pub(crate) fn document(&self, arguments: &BenchArguments) -> Option<Value> {
        let is_random = arguments.mode == Mode::Train;
        let on_truncated = match arguments.on_truncated {
            OnTruncated::Error => "error",
            OnTruncated::Partial => "partial",
        };
        let (seconds, rate) = self.audio();
        let length = (seconds * f64::from(rate)).round().clamp(1.0, MAX_AUDIO_FRAMES) as u64;
        let (name, mut field) = match (self.frames, self.mel) {
            (Some(frames), _) => (
                "video",
                json!({
                    "type": "video", "frames": frames, "random": is_random, "train": is_random,
                    "short": "repeat", "size": arguments.size,
                    "layout": arguments.layout.to_string(),
                }),
            ),
            (None, Some(bins)) => ("mel", json!({"type": "mel", "bins": bins})),
            (None, None) if self.is_audio() => {
                ("audio", json!({"type": "audio", "channels": "mono"}))
            }
            (None, None) => return None,
        };
        field["on_truncated"] = on_truncated.into();
        if self.is_audio() {
            field["sample_rate"] = rate.into();
            field["frames"] = length.into();
            field["random"] = is_random.into();
        }
        match self.every {
            Some(Distance::Seconds(seconds)) => field["every"] = format!("{seconds}s").into(),
            Some(Distance::Frames(frames)) => field["every"] = frames.into(),
            None => {}
        }
        if let Some(fps) = self.fps {
            field["fps"] = fps.into();
        }
        if let Some(stored) = &arguments.fields_of_sample.image_field {
            // The column of a list becomes the field `file`.
            field["stored_as"] = json!([stored, "file"]);
        }
        let mut label = json!({"type": "label"});
        if let Some(stored) = &arguments.fields_of_sample.label_field {
            label["stored_as"] = stored.as_str().into();
        }
        let mut fields = serde_json::Map::new();
        fields.insert(name.to_owned(), field);
        fields.insert("label".to_owned(), label);
        Some(json!({ "fields": fields }))
    }
}

/// Parses the distance of frames.
fn distance(text: &str) -> Result<Distance, String> {
    match text.strip_suffix('s') {
        Some(seconds) => positive(seconds.trim_end()).map(Distance::Seconds),
        None => match text.parse() {
            Ok(frames @ 1..) => Ok(Distance::Frames(frames)),
            _ => Err("expected seconds, such as 0.5s, or a number of frames, such as 4".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::tests::parse;
    use super::*;

    fn document(options: &[&str]) -> Value {
        let arguments = parse(&[&["data"], options].concat()).unwrap();
        arguments.media.document(&arguments).unwrap_or_default()
    }

    #[test]
    fn options_of_video_become_a_field() {
        let fields = &document(&["--frames", "16", "--every", "0.5s", "--size", "112"])["fields"];
        let video = &fields["video"];
        assert_eq!((&video["frames"], &video["every"]), (&16.into(), &"0.5s".into()));
        assert_eq!((&video["size"], &video["random"]), (&112.into(), &false.into()));
        assert_eq!(fields["label"]["type"], "label");
        let options = ["--frames", "8", "--fps", "4", "--mode", "train", "--image-field", "clip"];
        let video = &document(&options)["fields"]["video"];
        assert_eq!((&video["fps"], &video["train"]), (&4.0.into(), &true.into()));
        assert_eq!(video["stored_as"], json!(["clip", "file"]));
        assert_eq!(document(&["--frames", "8", "--every", "3"])["fields"]["video"]["every"], 3);
    }

    #[test]
    fn options_of_audio_become_a_field() {
        let mel = &document(&["--mel", "80"])["fields"]["mel"];
        assert_eq!((&mel["bins"], &mel["frames"]), (&80.into(), &480_000.into()));
        let options = ["--seconds", "0.5", "--rate", "8000"];
        let audio = &document(&options)["fields"]["audio"];
        assert_eq!((&audio["frames"], &audio["sample_rate"]), (&4000.into(), &8000.into()));
        assert_eq!(document(&[]), Value::Null);
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for wrong in [
            &["--every", "0.5s"][..],
            &["--fps", "4"],
            &["--frames", "8", "--every", "1s", "--fps", "1"],
            &["--frames", "8", "--mel", "80"],
            &["--frames", "8", "--spec", "x.toml"],
            &["--mel", "80", "--size", "224"],
            &["--seconds", "0"],
            &["--frames", "8", "--every", "0"],
            &["--frames", "8", "--every", "-1s"],
            &["--frames", "8", "--every", "inf s"],
            &["--rate", "0"],
        ] {
            assert!(parse(&[&["data"], wrong].concat()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_description_names_what_is_loaded() {
        let describe = |options: &[&str]| {
            let arguments = parse(&[&["data"], options].concat()).unwrap();
            arguments.media.describe(&arguments)
        };
        let clip = describe(&["--frames", "16", "--every", "0.5s"]);
        assert_eq!(clip.as_deref(), Some("16 frames every 0.5 s, size 224, nhwc-u8"));
        let mel = describe(&["--mel", "80"]);
        assert_eq!(mel.as_deref(), Some("log-mel of 80 bins, 30 s at 16000 Hz"));
        let raw = describe(&["--rate", "8000"]);
        assert_eq!(raw.as_deref(), Some("waveforms of 30 s at 8000 Hz"));
        assert_eq!(describe(&[]), None);
    }
}
