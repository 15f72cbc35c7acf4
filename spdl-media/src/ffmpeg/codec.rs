//! The encoding of a stream.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use ffmpeg_next::ffi;
use spdl_core::Result;

use super::memory::{Parameters, text};
use super::names::{self, number_of};

/// What a stream contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    /// Sound.
    Audio,
    /// Pictures in the order of time.
    Video,
    /// One picture. FFmpeg treats it as a video of one frame.
    Image,
}

impl MediaKind {
    /// `audio`, `video` or `image`.
    pub fn name(self) -> &'static str {
        match self {
            MediaKind::Audio => "audio",
            MediaKind::Video => "video",
            MediaKind::Image => "image",
        }
    }

    pub(super) fn stream_type(self) -> ffi::AVMediaType {
        match self {
            MediaKind::Audio => ffi::AVMediaType::AVMEDIA_TYPE_AUDIO,
            MediaKind::Video | MediaKind::Image => ffi::AVMediaType::AVMEDIA_TYPE_VIDEO,
        }
    }
}

/// A fraction, such as the unit of time stamps in seconds, or a frame rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rational {
    /// The numerator.
    pub numerator: i32,
    /// The denominator, 0 if the value is unknown.
    pub denominator: i32,
}

impl Rational {
    /// `numerator` / `denominator`.
    pub const fn new(numerator: i32, denominator: i32) -> Self {
        Rational { numerator, denominator }
    }

    /// The number; 0 if it is unknown.
    pub fn to_f64(self) -> f64 {
        match self.denominator {
            0 => 0.0,
            denominator => f64::from(self.numerator) / f64::from(denominator),
        }
    }

    pub(super) fn to_ffi(self) -> ffi::AVRational {
        ffi::AVRational { num: self.numerator, den: self.denominator }
    }
}

impl From<ffi::AVRational> for Rational {
    fn from(value: ffi::AVRational) -> Self {
        Rational::new(value.num, value.den)
    }
}

/// Names channels that have no names, as the program `ffmpeg` does: one channel is mono, two are stereo.
pub(super) fn name_channels(layout: &mut ffi::AVChannelLayout) {
    if layout.order == ffi::AVChannelOrder::AV_CHANNEL_ORDER_UNSPEC && layout.nb_channels > 0 {
        // SAFETY: the layout is valid, and has no memory.
        unsafe { ffi::av_channel_layout_default(layout, layout.nb_channels) };
    }
}

/// The encoding of a stream, as its container describes it: all that a decoder needs.
#[derive(Clone, Debug)]
pub struct StreamCodec {
    kind: MediaKind,
    parameters: Arc<Parameters>,
    time_base: Rational,
    frame_rate: Rational,
}

impl StreamCodec {
    pub(super) fn new(
        kind: MediaKind,
        parameters: Parameters,
        time_base: Rational,
        frame_rate: Rational,
    ) -> Self {
        StreamCodec { kind, parameters: Arc::new(parameters), time_base, frame_rate }
    }

    /// The codec of a stream of an open file.
    pub(super) fn of_stream(kind: MediaKind, stream: &ffi::AVStream) -> Result<Self> {
        // SAFETY: a stream has parameters as long as it lives.
        let mut parameters = Parameters::of(unsafe { &*stream.codecpar })?;
        name_channels(&mut parameters.fields_mut().ch_layout);
        let frame_rate = match stream.avg_frame_rate {
            rate if rate.num > 0 && rate.den > 0 => rate,
            _ => stream.r_frame_rate,
        };
        Ok(StreamCodec::new(kind, parameters, stream.time_base.into(), frame_rate.into()))
    }

    pub(super) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Whether the stream is audio, video or an image.
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// FFmpeg's name of the codec, such as `h264`.
    pub fn name(&self) -> String {
        names::of_codec(self.parameters.fields())
    }

    /// The unit of time stamps, in seconds.
    pub fn time_base(&self) -> Rational {
        self.time_base
    }

    /// Frames per second of a video; the denominator is 0 if it is unknown.
    pub fn frame_rate(&self) -> Rational {
        self.frame_rate
    }

    /// Pixels per row of a video or image; 0 for audio.
    pub fn width(&self) -> u32 {
        positive(self.parameters.fields().width)
    }

    /// Rows of a video or image; 0 for audio.
    pub fn height(&self) -> u32 {
        positive(self.parameters.fields().height)
    }

    /// The name of the pixel format, such as `yuv420p`; empty if it is unknown.
    pub fn pixel_format(&self) -> String {
        match self.kind {
            MediaKind::Audio => String::new(),
            _ => names::of_pixel_format(self.parameters.fields().format),
        }
    }

    /// The colour primaries, transfer characteristics and matrix coefficients of a video: numbers of ITU-T H.273;
    /// 2 if they are unspecified.
    pub fn color_numbers(&self) -> [u64; 3] {
        names::of_colors(self.parameters.fields())
    }

    /// Width / height of a pixel; the numerator is 0 if it is unknown.
    pub fn sample_aspect_ratio(&self) -> Rational {
        self.parameters.fields().sample_aspect_ratio.into()
    }

    /// Samples per second and channel of audio; 0 for video.
    pub fn sample_rate(&self) -> u32 {
        positive(self.parameters.fields().sample_rate)
    }

    /// The number of audio channels; 0 for video.
    pub fn channels(&self) -> u32 {
        positive(self.parameters.fields().ch_layout.nb_channels)
    }

    /// The name of the sample format, such as `fltp`; empty if it is unknown.
    pub fn sample_format(&self) -> String {
        match self.kind {
            MediaKind::Audio => names::of_sample_format(self.parameters.fields().format),
            _ => String::new(),
        }
    }

    /// FFmpeg's description of the channels, such as `stereo`.
    pub fn channel_layout(&self) -> String {
        layout_name(&self.parameters.fields().ch_layout)
    }
}

/// FFmpeg's description of channels.
pub(super) fn layout_name(layout: &ffi::AVChannelLayout) -> String {
    if layout.nb_channels <= 0 {
        return String::new();
    }
    // Descriptions of filters have no spaces.
    let unordered = format!("{}C", layout.nb_channels);
    if number_of!(layout.order) == ffi::AVChannelOrder::AV_CHANNEL_ORDER_UNSPEC as c_int {
        return unordered;
    }
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the pointer and the length describe `name`, which the function terminates with 0.
    let code = unsafe { ffi::av_channel_layout_describe(layout, name.as_mut_ptr(), name.len()) };
    if usize::try_from(code).map_or(true, |needed| needed > name.len()) {
        return unordered;
    }
    // SAFETY: the function has terminated `name` with 0.
    unsafe { text(name.as_ptr()) }
}

/// A number that is 0 if it is unknown.
pub(super) fn positive(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
