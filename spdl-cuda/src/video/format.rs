//! What a video is: its codec, its size, how its pixels are coded.

use std::ffi::c_int;
use std::fmt;

use spdl_core::{Error, ErrorKind, Result};

use super::bindings::{self, codec};
use crate::pixels::PixelFormat;

/// How a video is coded.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VideoCodec {
    /// MPEG-1, part 2.
    Mpeg1,
    /// MPEG-2, part 2 (H.262).
    Mpeg2,
    /// MPEG-4, part 2.
    Mpeg4,
    /// H.264 (AVC), with start codes (annex B).
    H264,
    /// H.265 (HEVC), with start codes (annex B).
    Hevc,
    /// VP8.
    Vp8,
    /// VP9.
    Vp9,
    /// AV1, as open bitstream units.
    Av1,
}

/// How many samples of chroma there are.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChromaFormat {
    /// None: grey.
    Monochrome,
    /// Half as many as of luma on both axes.
    Yuv420,
    /// Half as many across.
    Yuv422,
    /// As many.
    Yuv444,
}

/// What a stream says of its colours, in codes of ITU-T H.273.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoColor {
    /// Which red, green and blue are meant.
    pub primaries: u8,
    /// From light to numbers.
    pub transfer: u8,
    /// From red, green and blue to luma and chroma; for
    /// [`ColorStandard::of_video`](crate::kernels::ColorStandard::of_video).
    pub matrix: u8,
    /// Whether every code is used, as JPEG does.
    pub full_range: bool,
}

/// What the stream says of itself, from some frame on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoFormat {
    /// How it is coded.
    pub codec: VideoCodec,
    /// How many samples of chroma there are.
    pub chroma: ChromaFormat,
    /// Bits of a sample.
    pub bits: u32,
    /// What is to be seen, in pixels: width and height.
    pub size: (u32, u32),
    /// Where that begins in what is coded: columns and rows to be cut off before it.
    pub origin: (u32, u32),
    /// What is coded, in pixels: width and height.
    pub coded_size: (u32, u32),
    /// Frames in so many seconds, where the stream says so.
    pub frame_rate: Option<(u32, u32)>,
    /// Its colours.
    pub color: VideoColor,
    /// How many pictures the decoder has to hold at the least.
    pub(crate) least_surfaces: u32,
}

impl VideoCodec {
    /// All of them.
    pub const ALL: [VideoCodec; 8] = [
        VideoCodec::Mpeg1,
        VideoCodec::Mpeg2,
        VideoCodec::Mpeg4,
        VideoCodec::H264,
        VideoCodec::Hevc,
        VideoCodec::Vp8,
        VideoCodec::Vp9,
        VideoCodec::Av1,
    ];

    /// The library's number for it.
    pub(crate) fn code(self) -> c_int {
        match self {
            VideoCodec::Mpeg1 => codec::MPEG1,
            VideoCodec::Mpeg2 => codec::MPEG2,
            VideoCodec::Mpeg4 => codec::MPEG4,
            VideoCodec::H264 => codec::H264,
            VideoCodec::Hevc => codec::HEVC,
            VideoCodec::Vp8 => codec::VP8,
            VideoCodec::Vp9 => codec::VP9,
            VideoCodec::Av1 => codec::AV1,
        }
    }
}

impl fmt::Display for VideoCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VideoCodec::Mpeg1 => "MPEG-1",
            VideoCodec::Mpeg2 => "MPEG-2",
            VideoCodec::Mpeg4 => "MPEG-4",
            VideoCodec::H264 => "H.264",
            VideoCodec::Hevc => "HEVC",
            VideoCodec::Vp8 => "VP8",
            VideoCodec::Vp9 => "VP9",
            VideoCodec::Av1 => "AV1",
        })
    }
}

impl ChromaFormat {
    /// The library's number for it.
    pub(crate) fn code(self) -> c_int {
        match self {
            ChromaFormat::Monochrome => 0,
            ChromaFormat::Yuv420 => 1,
            ChromaFormat::Yuv422 => 2,
            ChromaFormat::Yuv444 => 3,
        }
    }

    fn of(code: c_int) -> Option<ChromaFormat> {
        use ChromaFormat::{Monochrome, Yuv420, Yuv422, Yuv444};
        [Monochrome, Yuv420, Yuv422, Yuv444].into_iter().find(|chroma| chroma.code() == code)
    }
}

impl fmt::Display for ChromaFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChromaFormat::Monochrome => "4:0:0",
            ChromaFormat::Yuv420 => "4:2:0",
            ChromaFormat::Yuv422 => "4:2:2",
            ChromaFormat::Yuv444 => "4:4:4",
        })
    }
}

impl VideoFormat {
    /// What the parser tells, checked.
    ///
    /// # Errors
    /// `Corrupt` for what no stream can be, `Unsupported` for what this crate does not know.
    pub(crate) fn read(codec: VideoCodec, told: &bindings::VideoFormat) -> Result<VideoFormat> {
        if told.codec != codec.code() {
            let code = told.codec;
            return Err(corrupt(codec, format!("its headers are those of another codec ({code})")));
        }
        let Some(chroma) = ChromaFormat::of(told.chroma_format) else {
            let code = told.chroma_format;
            return Err(corrupt(codec, format!("there is no chroma format {code}")));
        };
        let bits = 8 + u32::from(told.bit_depth_luma_minus_8);
        let chroma_bits = 8 + u32::from(told.bit_depth_chroma_minus_8);
        if bits > 16 {
            return Err(corrupt(codec, format!("its samples have {bits} bits")));
        }
        if chroma != ChromaFormat::Monochrome && bits != chroma_bits {
            let message = format!(
                "cannot decode this {codec} video on the device: luma has {bits} bits and chroma \
                 {chroma_bits}"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let coded_size = (told.coded_width, told.coded_height);
        let area = told.display_area;
        let across = visible(area.left, area.right, coded_size.0);
        let down = visible(area.top, area.bottom, coded_size.1);
        let (Some((left, width)), Some((top, height))) = (across, down) else {
            let message = format!(
                "of {} x {} pixels, columns {} to {} and rows {} to {} are to be seen",
                coded_size.0, coded_size.1, area.left, area.right, area.top, area.bottom
            );
            return Err(corrupt(codec, message));
        };
        if chroma != ChromaFormat::Yuv444 && (left % 2 == 1 || top % 2 == 1) {
            let message = format!(
                "cannot decode this {codec} video on the device: it is cut at column {left} and row \
                 {top}, in the middle of a sample of chroma"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let rate = (told.frame_rate_numerator, told.frame_rate_denominator);
        Ok(VideoFormat {
            codec,
            chroma,
            bits,
            size: (width, height),
            origin: (left, top),
            coded_size,
            frame_rate: Some(rate).filter(|rate| rate.0 > 0 && rate.1 > 0),
            color: VideoColor {
                primaries: told.color_primaries,
                transfer: told.transfer_characteristics,
                matrix: told.matrix_coefficients,
                full_range: told.signal_flags & 8 != 0,
            },
            least_surfaces: u32::from(told.min_decode_surfaces).max(1),
        })
    }

    /// How its pixels come out of the decoder; `None` for 4:2:2. Grey comes with chroma that is neutral.
    pub fn pixel_format(&self) -> Option<PixelFormat> {
        match (self.chroma, self.bits > 8) {
            (ChromaFormat::Monochrome | ChromaFormat::Yuv420, false) => Some(PixelFormat::Nv12),
            (ChromaFormat::Monochrome | ChromaFormat::Yuv420, true) => Some(PixelFormat::P016),
            (ChromaFormat::Yuv444, false) => Some(PixelFormat::Yuv444),
            (ChromaFormat::Yuv444, true) => Some(PixelFormat::Yuv444P16),
            (ChromaFormat::Yuv422, _) => None,
        }
    }
}

/// Where the visible part begins on an axis, and how long it is.
fn visible(first: c_int, end: c_int, coded: u32) -> Option<(u32, u32)> {
    let (first, end) = (u32::try_from(first).ok()?, u32::try_from(end).ok()?);
    (first < end && end <= coded).then(|| (first, end - first))
}

fn corrupt(codec: VideoCodec, what: String) -> Error {
    Error::new(ErrorKind::Corrupt, format!("this {codec} video contradicts itself: {what}"))
}

#[cfg(test)]
mod tests {
    use super::bindings::Rectangle;
    use super::*;

    fn told() -> bindings::VideoFormat {
        bindings::VideoFormat {
            codec: codec::HEVC,
            coded_width: 1920,
            coded_height: 1088,
            display_area: Rectangle { left: 0, top: 0, right: 1920, bottom: 1080 },
            chroma_format: 1,
            frame_rate_numerator: 30_000,
            frame_rate_denominator: 1001,
            signal_flags: 5 | 8,
            matrix_coefficients: 9,
            min_decode_surfaces: 6,
            ..bindings::VideoFormat::default()
        }
    }

    #[test]
    fn a_sequence_header_says_size_bits_chroma_and_colours() {
        let format = VideoFormat::read(VideoCodec::Hevc, &told()).unwrap();
        assert_eq!((format.size, format.coded_size), ((1920, 1080), (1920, 1088)));
        assert_eq!(format.frame_rate, Some((30_000, 1001)));
        assert_eq!((format.color.matrix, format.color.full_range), (9, true));
        assert_eq!(format.pixel_format(), Some(PixelFormat::Nv12));
        let limited = bindings::VideoFormat { signal_flags: 7, ..told() };
        assert!(!VideoFormat::read(VideoCodec::Hevc, &limited).unwrap().color.full_range);
        for (bits, chroma, expected) in [
            (2, 1, PixelFormat::P016),
            (4, 1, PixelFormat::P016),
            (0, 3, PixelFormat::Yuv444),
            (2, 3, PixelFormat::Yuv444P16),
            (0, 0, PixelFormat::Nv12),
        ] {
            let told = bindings::VideoFormat {
                bit_depth_luma_minus_8: bits,
                bit_depth_chroma_minus_8: bits,
                chroma_format: chroma,
                ..told()
            };
            let format = VideoFormat::read(VideoCodec::Hevc, &told).unwrap();
            assert_eq!((format.bits, format.pixel_format()), (u32::from(bits) + 8, Some(expected)));
        }
    }

    #[test]
    fn what_no_stream_can_be_is_an_error() {
        let area = |left, top, right, bottom| bindings::VideoFormat {
            display_area: Rectangle { left, top, right, bottom },
            ..told()
        };
        let wrong = [
            (ErrorKind::Corrupt, bindings::VideoFormat { codec: -7, ..told() }),
            (ErrorKind::Corrupt, bindings::VideoFormat { chroma_format: 4, ..told() }),
            (ErrorKind::Corrupt, bindings::VideoFormat { bit_depth_luma_minus_8: 255, ..told() }),
            (
                ErrorKind::Unsupported,
                bindings::VideoFormat { bit_depth_chroma_minus_8: 2, ..told() },
            ),
            (ErrorKind::Corrupt, bindings::VideoFormat { coded_width: 0, ..told() }),
            (ErrorKind::Corrupt, area(-2, 0, 1920, 1080)),
            (ErrorKind::Corrupt, area(0, 0, 1921, 1080)),
            (ErrorKind::Corrupt, area(0, 1080, 1920, 0)),
            (ErrorKind::Corrupt, area(8, 0, 8, 1080)),
            (ErrorKind::Corrupt, area(i32::MIN, 0, i32::MAX, 1080)),
            (ErrorKind::Unsupported, area(1, 0, 1920, 1080)),
        ];
        for (kind, told) in wrong {
            let error = VideoFormat::read(VideoCodec::Hevc, &told).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}
