//! The format of a video: codec, size, chroma format, bit depth and colour.

use std::ffi::c_int;
use std::fmt;

use spdl_core::{Error, ErrorKind, Result};

use super::bindings::{CuVideoFormat, codec};
use crate::pixels::PixelFormat;

/// A video codec.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VideoCodec {
    /// MPEG-1, part 2.
    Mpeg1,
    /// MPEG-2, part 2 (H.262).
    Mpeg2,
    /// MPEG-4, part 2.
    Mpeg4,
    /// H.264 (AVC), as an Annex B byte stream.
    H264,
    /// H.265 (HEVC), as an Annex B byte stream.
    Hevc,
    /// VP8.
    Vp8,
    /// VP9.
    Vp9,
    /// AV1, as open bitstream units (OBUs).
    Av1,
}

/// The chroma subsampling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChromaFormat {
    /// 4:0:0: luma only.
    Monochrome,
    /// 4:2:0: half resolution on both axes.
    Yuv420,
    /// 4:2:2: half horizontal resolution.
    Yuv422,
    /// 4:4:4: full resolution.
    Yuv444,
}

/// The colour description of a stream, in codes of ITU-T H.273.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoColor {
    /// `colour_primaries`.
    pub primaries: u8,
    /// `transfer_characteristics`.
    pub transfer: u8,
    /// `matrix_coefficients`, for
    /// [`ColorStandard::of_video`](crate::pixels::ColorStandard::of_video).
    pub matrix: u8,
    /// Whether the values use the full range, as in JPEG.
    pub full_range: bool,
}

/// The format that a sequence header describes.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoFormat {
    /// The codec.
    pub codec: VideoCodec,
    /// The chroma subsampling.
    pub chroma: ChromaFormat,
    /// Bits per sample.
    pub bits: u32,
    /// Width and height of the display area in pixels.
    pub size: (u32, u32),
    /// Column and row of the coded picture at which the display area begins.
    pub origin: (u32, u32),
    /// Width and height of the coded picture in pixels.
    pub coded_size: (u32, u32),
    /// Frames per second, as a fraction, if known.
    pub frame_rate: Option<(u32, u32)>,
    /// The colour description.
    pub color: VideoColor,
    /// Minimum number of decode surfaces.
    pub(crate) min_surfaces: u32,
}

impl VideoCodec {
    /// All codecs.
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

    /// The `cudaVideoCodec`.
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
    /// The `cudaVideoChromaFormat`.
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
    /// Converts and validates the format from the parser.
    ///
    /// # Errors
    /// `Corrupt` for inconsistent values; `Unsupported` for valid values that this crate does not
    /// support.
    pub(crate) fn read(codec: VideoCodec, raw: &CuVideoFormat) -> Result<VideoFormat> {
        if raw.codec != codec.code() {
            let code = raw.codec;
            return Err(corrupt(codec, format!("sequence header has codec {code}")));
        }
        let Some(chroma) = ChromaFormat::of(raw.chroma_format) else {
            let code = raw.chroma_format;
            return Err(corrupt(codec, format!("chroma format {code}")));
        };
        let bits = 8 + u32::from(raw.bit_depth_luma_minus_8);
        let chroma_bits = 8 + u32::from(raw.bit_depth_chroma_minus_8);
        if bits > 16 {
            return Err(corrupt(codec, format!("{bits} bits per sample")));
        }
        if chroma != ChromaFormat::Monochrome && bits != chroma_bits {
            let message = format!(
                "unsupported {codec} video: luma has {bits} bits per sample, but chroma has \
             {chroma_bits}"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let coded_size = (raw.coded_width, raw.coded_height);
        let area = raw.display_area;
        let across = visible(area.left, area.right, coded_size.0);
        let down = visible(area.top, area.bottom, coded_size.1);
        let (Some((left, width)), Some((top, height))) = (across, down) else {
            let message = format!(
                "invalid display area (columns {} to {}, rows {} to {}) for the coded size {}x{}",
                area.left, area.right, area.top, area.bottom, coded_size.0, coded_size.1
            );
            return Err(corrupt(codec, message));
        };
        if chroma != ChromaFormat::Yuv444 && (left % 2 == 1 || top % 2 == 1) {
            let message = format!(
                "unsupported {codec} video: the display area starts at column {left} and row {top}, inside \
                 a chroma sample"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let rate = (raw.frame_rate_numerator, raw.frame_rate_denominator);
        Ok(VideoFormat {
            codec,
            chroma,
            bits,
            size: (width, height),
            origin: (left, top),
            coded_size,
            frame_rate: Some(rate).filter(|rate| rate.0 > 0 && rate.1 > 0),
            color: VideoColor {
                primaries: raw.color_primaries,
                transfer: raw.transfer_characteristics,
                matrix: raw.matrix_coefficients,
                full_range: raw.signal_flags & 8 != 0,
            },
            min_surfaces: u32::from(raw.min_decode_surfaces).max(1),
        })
    }

    /// The output format of the decoder; `None` for 4:2:2. Monochrome video is output with neutral
    /// chroma.
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

/// Start and length of the display area on an axis.
fn visible(first: c_int, end: c_int, coded: u32) -> Option<(u32, u32)> {
    let (first, end) = (u32::try_from(first).ok()?, u32::try_from(end).ok()?);
    (first < end && end <= coded).then(|| (first, end - first))
}

fn corrupt(codec: VideoCodec, what: String) -> Error {
    Error::new(ErrorKind::Corrupt, format!("corrupt {codec} video: {what}"))
}

#[cfg(test)]
mod tests {
    use super::super::bindings::Rectangle;
    use super::*;

    fn raw() -> CuVideoFormat {
        CuVideoFormat {
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
            ..CuVideoFormat::default()
        }
    }

    #[test]
    fn the_format_has_size_bits_chroma_and_colours() {
        let format = VideoFormat::read(VideoCodec::Hevc, &raw()).unwrap();
        assert_eq!((format.size, format.coded_size), ((1920, 1080), (1920, 1088)));
        assert_eq!(format.frame_rate, Some((30_000, 1001)));
        assert_eq!((format.color.matrix, format.color.full_range), (9, true));
        assert_eq!(format.pixel_format(), Some(PixelFormat::Nv12));
        let limited = CuVideoFormat { signal_flags: 7, ..raw() };
        assert!(!VideoFormat::read(VideoCodec::Hevc, &limited).unwrap().color.full_range);
        for (bits, chroma, expected) in [
            (2, 1, PixelFormat::P016),
            (4, 1, PixelFormat::P016),
            (0, 3, PixelFormat::Yuv444),
            (2, 3, PixelFormat::Yuv444P16),
            (0, 0, PixelFormat::Nv12),
        ] {
            let raw = CuVideoFormat {
                bit_depth_luma_minus_8: bits,
                bit_depth_chroma_minus_8: bits,
                chroma_format: chroma,
                ..raw()
            };
            let format = VideoFormat::read(VideoCodec::Hevc, &raw).unwrap();
            assert_eq!((format.bits, format.pixel_format()), (u32::from(bits) + 8, Some(expected)));
        }
    }

    #[test]
    fn inconsistent_values_are_errors() {
        let area = |left, top, right, bottom| CuVideoFormat {
            display_area: Rectangle { left, top, right, bottom },
            ..raw()
        };
        let wrong = [
            (ErrorKind::Corrupt, CuVideoFormat { codec: -7, ..raw() }),
            (ErrorKind::Corrupt, CuVideoFormat { chroma_format: 4, ..raw() }),
            (ErrorKind::Corrupt, CuVideoFormat { bit_depth_luma_minus_8: 255, ..raw() }),
            (ErrorKind::Unsupported, CuVideoFormat { bit_depth_chroma_minus_8: 2, ..raw() }),
            (ErrorKind::Corrupt, CuVideoFormat { coded_width: 0, ..raw() }),
            (ErrorKind::Corrupt, area(-2, 0, 1920, 1080)),
            (ErrorKind::Corrupt, area(0, 0, 1921, 1080)),
            (ErrorKind::Corrupt, area(0, 1080, 1920, 0)),
            (ErrorKind::Corrupt, area(8, 0, 8, 1080)),
            (ErrorKind::Corrupt, area(i32::MIN, 0, i32::MAX, 1080)),
            (ErrorKind::Unsupported, area(1, 0, 1920, 1080)),
        ];
        for (kind, raw) in wrong {
            let error = VideoFormat::read(VideoCodec::Hevc, &raw).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}
