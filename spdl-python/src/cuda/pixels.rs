//! What SPDL calls the formats of pixels, and matrices of colours.

use spdl_core::{Error, ErrorKind, Result};
use spdl_cuda::pixels::{ColorMatrix, ColorRange, ColorStandard};
use spdl_cuda::video::VideoColor;
use spdl_media::transform::TensorSpec;
use spdl_media::{Layout, SampleColor, Size};

/// From how many rows on a video that does not say so has the colours of high definition.
const HIGH_DEFINITION: u32 = 720;
/// A video says that its matrix is not known.
const UNKNOWN_MATRIX: u8 = 2;

/// Bytes of so many columns and rows: `rgb` and `bgr` are planes, `rgbi` and `bgri` pixels, `y` is grey.
///
/// # Errors
/// `InvalidArgument` for another one.
pub(super) fn format_of(pix_fmt: &str, (width, height): (u32, u32)) -> Result<TensorSpec> {
    let (layout, color) = match pix_fmt {
        "rgb" => (Layout::Nchw, SampleColor::Rgb),
        "bgr" => (Layout::Nchw, SampleColor::Bgr),
        "rgbi" => (Layout::Nhwc, SampleColor::Rgb),
        "bgri" => (Layout::Nhwc, SampleColor::Bgr),
        "y" => (Layout::Nchw, SampleColor::Grey),
        other => {
            let message = format!("there is no format of pixels called {other:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
    };
    let mut format = TensorSpec { color, ..TensorSpec::new(Size::new(width, height)) };
    format.format.layout = layout;
    Ok(format)
}

/// The shape of a batch of so many samples.
pub(super) fn shape_of(len: usize, format: &TensorSpec) -> Vec<usize> {
    [&[len][..], &format.shape()].concat()
}

/// The matrix of a video of so many rows. Where it says none, that of its definition.
///
/// # Errors
/// `Unsupported` where there is none of this kind.
pub(super) fn matrix_of(color: VideoColor, rows: u32, bits: u32) -> Result<ColorMatrix> {
    let standard = match color.matrix {
        UNKNOWN_MATRIX if rows >= HIGH_DEFINITION => ColorStandard::BT709,
        UNKNOWN_MATRIX => ColorStandard::BT601,
        matrix => ColorStandard::of_video(matrix)?,
    };
    let range = if color.full_range { ColorRange::Full } else { ColorRange::Limited };
    ColorMatrix::new(standard, range, bits)
}
