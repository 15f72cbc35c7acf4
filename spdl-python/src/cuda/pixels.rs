//! Pixel formats and colour matrices by their names in SPDL.

use spdl_core::{Error, ErrorKind, Result};
use spdl_cuda::pixels::{ColorMatrix, ColorRange, ColorStandard};
use spdl_cuda::video::VideoColor;
use spdl_media::transform::TensorSpec;
use spdl_media::{Layout, SampleColor, Size};

/// From this number of rows on, a video with an unspecified matrix uses BT.709.
const HIGH_DEFINITION: u32 = 720;
/// The code "unspecified" of `matrix_coefficients` (ITU-T H.273).
const UNSPECIFIED: u8 = 2;

/// Samples of bytes with this width and height: planar `rgb` and `bgr`, interleaved `rgbi` and `bgri`, grey
/// `y`.
///
/// # Errors
/// `InvalidArgument` for other names.
pub(super) fn format_of(pix_fmt: &str, (width, height): (u32, u32)) -> Result<TensorSpec> {
    let (layout, color) = match pix_fmt {
        "rgb" => (Layout::Nchw, SampleColor::Rgb),
        "bgr" => (Layout::Nchw, SampleColor::Bgr),
        "rgbi" => (Layout::Nhwc, SampleColor::Rgb),
        "bgri" => (Layout::Nhwc, SampleColor::Bgr),
        "y" => (Layout::Nchw, SampleColor::Grey),
        other => {
            let message =
                format!("unknown pixel format {other:?}: expected rgb, bgr, rgbi, bgri or y");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
    };
    let mut format = TensorSpec { color, ..TensorSpec::new(Size::new(width, height)) };
    format.format.layout = layout;
    Ok(format)
}

/// The shape of a batch of `len` samples.
pub(super) fn shape_of(len: usize, format: &TensorSpec) -> Vec<usize> {
    [&[len][..], &format.shape()].concat()
}

/// The colour matrix of a video with `rows` rows. If unspecified, BT.709 from 720 rows on, else BT.601.
///
/// # Errors
/// The errors of [`ColorStandard::of_video`] and [`ColorMatrix::new`].
pub(super) fn matrix_of(color: VideoColor, rows: u32, bits: u32) -> Result<ColorMatrix> {
    let standard = match color.matrix {
        UNSPECIFIED if rows >= HIGH_DEFINITION => ColorStandard::BT709,
        UNSPECIFIED => ColorStandard::BT601,
        matrix => ColorStandard::of_video(matrix)?,
    };
    let range = if color.full_range { ColorRange::Full } else { ColorRange::Limited };
    ColorMatrix::new(standard, range, bits)
}
