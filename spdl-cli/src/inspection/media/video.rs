//! Video files: facts from the tables of the container, and decoding of frames.

use spdl_core::{Error, ErrorKind, Result, SampleId, SampleRng};
use spdl_media::image::Picture;
use spdl_media::video::{
    VIDEO_SNIFF_BYTES, VideoColor, VideoIndex, VideoLimits, VideoReader, VideoRegistry,
};
use spdl_media::{
    CodecRegistry, Crop, FillImage, Image, ImageTransform, Limits, OnTruncated, Sample, Size,
};

use super::audio::{AudioFacts, AudioInspector};
use super::container::name_of;
use super::{HAS_FFMPEG, with_feature};

/// Durations of frames that differ by less, in seconds, are equal: containers round time stamps to
/// milliseconds.
const SAME_DURATION: f64 = 0.0011;

/// Format, size, length and structure of a video file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VideoFacts {
    pub(crate) container: String,
    pub(crate) codec: String,
    /// The size after rotation.
    pub(crate) size: Size,
    /// The clockwise rotation that makes the coded frames upright, in degrees: 0, 90, 180 or 270.
    pub(crate) rotation: u32,
    /// The colours that the container names.
    pub(crate) color: VideoColor,
    /// The mean number of frames per second; 0 if the stream has no duration.
    pub(crate) frame_rate: f64,
    /// Whether frames last unequally long.
    pub(crate) is_variable: bool,
    pub(crate) frames: u64,
    pub(crate) seconds: f64,
    pub(crate) key_distance: KeyDistance,
    /// The share of frames that no other frame refers to, 0 to 1; `None` if it is unknown.
    pub(crate) disposable: Option<f64>,
    /// The audio stream; `None` if there is none, or if it is unknown.
    pub(crate) audio: Option<AudioFacts>,
    /// The size of the file.
    pub(crate) bytes: u64,
}

/// The distance from one key frame to the next, in frames. If there is only one key frame, the
/// distance to the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KeyDistance {
    pub(crate) min: u64,
    pub(crate) mean: f64,
    pub(crate) max: u64,
}

impl KeyDistance {
    fn of(index: &VideoIndex) -> Self {
        let frames = index.frames();
        let is_key = |at: &usize| index.packets()[frames[*at].packet as usize].is_key;
        let keys: Vec<usize> = (0..frames.len()).filter(is_key).collect();
        let mut distances: Vec<u64> =
            keys.windows(2).map(|pair| (pair[1] - pair[0]) as u64).collect();
        if distances.is_empty() {
            let first = keys.first().copied().unwrap_or(0);
            distances.push((frames.len() - first) as u64);
        }
        let sum: u64 = distances.iter().sum();
        KeyDistance {
            min: distances.iter().copied().min().unwrap_or(0),
            mean: sum as f64 / distances.len() as f64,
            max: distances.iter().copied().max().unwrap_or(0),
        }
    }
}

/// Reads video files.
#[derive(Debug)]
pub(crate) struct VideoInspector {
    registry: VideoRegistry,
    /// Fails at the first damaged frame.
    strict: VideoReader,
    /// Skips damaged frames.
    tolerant: VideoReader,
    audio: AudioInspector,
}

impl VideoInspector {
    pub(crate) fn new() -> Self {
        let (registry, limits) = (VideoRegistry::with_defaults(), VideoLimits::default());
        let reader = || VideoReader::new(&registry, &limits);
        VideoInspector {
            strict: reader(),
            tolerant: reader().on_truncated(OnTruncated::Partial),
            audio: AudioInspector::new(),
            registry,
        }
    }

    /// Reads the tables of the container.
    ///
    /// # Errors
    /// `Unsupported`, `Corrupt`, `Truncated` or `LimitExceeded`.
    pub(crate) fn index(&mut self, file: &[u8]) -> Result<VideoIndex> {
        self.strict.index(&file).map_err(|error| with_feature(without_advice(error)))
    }

    /// Reads the tables of the container, and the headers of packets.
    ///
    /// # Errors
    /// The errors of [`index`](Self::index).
    pub(crate) fn facts(&mut self, file: &[u8]) -> Result<VideoFacts> {
        let index = self.index(file)?;
        let head = &file[..file.len().min(VIDEO_SNIFF_BYTES)];
        let reader = self.registry.container(head)?.name();
        let stream = index.stream();
        let packets = index.packets().len().max(1) as f64;
        let disposable = index.disposable_packets(file)?.map(|found| found as f64 / packets);
        Ok(VideoFacts {
            container: name_of(reader, file),
            codec: stream.codec.clone(),
            size: stream.orientation.apply(stream.size),
            rotation: rotation(stream.orientation.exif()),
            color: stream.color,
            frame_rate: index.frames_per_second(),
            is_variable: is_variable(&index),
            frames: index.frames().len() as u64,
            seconds: index.end_seconds() - index.start_seconds(),
            key_distance: KeyDistance::of(&index),
            disposable,
            audio: self.audio_stream(file),
            bytes: file.len() as u64,
        })
    }

    /// The audio stream of a video; `None` if there is none, or without FFmpeg.
    fn audio_stream(&mut self, file: &[u8]) -> Option<AudioFacts> {
        HAS_FFMPEG.then(|| self.audio.facts(file).ok())?
    }

    /// Checks the tables of the container, and that the file holds all packets.
    ///
    /// # Errors
    /// The errors of [`index`](Self::index); `Truncated` if packets are missing.
    pub(crate) fn check_tables(&mut self, file: &[u8]) -> Result<VideoIndex> {
        let index = self.index(file)?;
        let size = file.len() as u64;
        let is_missing = |end: u64| index.packet_bytes().is_none() && end > size;
        let ends = index.packets().iter();
        let ends = ends.map(|packet| packet.offset.saturating_add(u64::from(packet.bytes)));
        let missing = ends.filter(|end| is_missing(*end)).count();
        if missing == 0 {
            return Ok(index);
        }
        let message = format!(
            "truncated video: {missing} of {} packets are beyond the end of the file of {size} bytes",
            index.packets().len()
        );
        Err(Error::new(ErrorKind::Truncated, message).with_offset(size))
    }

    /// Decodes all frames, and the audio stream if this build can read it.
    ///
    /// # Errors
    /// `Corrupt` or `Truncated` if frames are damaged or missing: the message has their number, and the
    /// time of the first one. `Unsupported` if there is no decoder; `LimitExceeded`.
    pub(crate) fn check(&mut self, file: &[u8]) -> Result<()> {
        let index = match self.check_tables(file) {
            Err(error) if error.kind() == ErrorKind::Truncated && HAS_FFMPEG => self.index(file)?,
            checked => checked?,
        };
        let frames: Vec<usize> = (0..index.frames().len()).collect();
        let decoded = self.tolerant.decode(&file, &index, &frames, &mut |_, _| Ok(()))?;
        if let Some(&first) = decoded.missing.iter().min() {
            return Err(self.damage(file, &index, first, decoded.missing.len()));
        }
        match self.audio_stream(file) {
            Some(_) => self.audio.check(file),
            None => Ok(()),
        }
    }

    /// The error for `missing` frames, the first of which is `first`.
    fn damage(&mut self, file: &[u8], index: &VideoIndex, first: usize, missing: usize) -> Error {
        let seconds = index.seconds(first).unwrap_or(0.0) - index.start_seconds();
        let total = index.frames().len();
        let what =
            format!("{missing} of {total} frames cannot be decoded, the first at {seconds:.3} s");
        let decoded = self.strict.decode(&file, index, &[first], &mut |_, _| Ok(()));
        let Err(error) = decoded else {
            let reason = "frames that it refers to are damaged";
            return Error::new(ErrorKind::Corrupt, format!("{what}: {reason}"));
        };
        // The reader names the frame.
        let error = without_advice(error);
        let reason = error.message();
        let reason = reason.split_once("cannot be decoded: ").map_or(reason, |(_, reason)| reason);
        let shown = Error::new(error.kind(), format!("{what}: {reason}"));
        match error.offset() {
            Some(offset) => shown.with_offset(offset),
            None => shown,
        }
    }

    /// Decodes frames, by their numbers in order of presentation, as upright images. `size` computes
    /// the size of the images from that of the upright frames.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check); `InvalidArgument` if there is no such frame.
    pub(crate) fn images(
        &mut self,
        file: &[u8],
        index: &VideoIndex,
        frames: &[usize],
        size: impl Fn(Size) -> Size,
    ) -> Result<Vec<Image>> {
        let mut images: Vec<Option<Image>> = vec![None; frames.len()];
        let orientation = index.stream().orientation;
        let mut each = |place: usize, picture: &Picture| -> Result<()> {
            let size = size(orientation.apply(picture.image()));
            let transform = ImageTransform::with_size(size).crop(Crop::Stretch);
            let mut fill = FillImage::new(&CodecRegistry::new(), &transform, &Limits::default())?;
            let mut pixels = vec![0; size.pixels() as usize * 3];
            let rng = || SampleRng::new(0, SampleId { epoch: 0, index: 0 }, "frame");
            fill.write_picture(picture, orientation, Sample::U8(&mut pixels), rng)?;
            images[place] = Some(Image { size, pixels });
            Ok(())
        };
        self.strict.decode(&file, index, frames, &mut each)?;
        Ok(images.into_iter().flatten().collect())
    }
}

/// The error without the advice to choose an option that this program lacks.
fn without_advice(error: Error) -> Error {
    let Some((message, _)) = error.message().split_once("; accept partial samples") else {
        return error;
    };
    let shown = Error::new(error.kind(), message.to_owned());
    match error.offset() {
        Some(offset) => shown.with_offset(offset),
        None => shown,
    }
}

/// The clockwise rotation in degrees of an EXIF orientation.
fn rotation(exif: u16) -> u32 {
    match exif {
        3 | 4 => 180,
        6 | 7 => 90,
        5 | 8 => 270,
        _ => 0,
    }
}

/// Whether the distances between frames differ by more than the rounding of time stamps.
fn is_variable(index: &VideoIndex) -> bool {
    let stream = index.stream();
    let times: Vec<f64> =
        index.frames().iter().map(|frame| stream.seconds(frame.timestamp)).collect();
    let distances = || times.windows(2).map(|pair| pair[1] - pair[0]);
    let (shortest, longest) =
        (distances().fold(f64::INFINITY, f64::min), distances().fold(0.0, f64::max));
    times.len() > 2 && longest - shortest > SAME_DURATION
}
