//! Images in device memory.

use spdl_core::Result;

use super::color::ColorMatrix;
use super::invalid;

/// Maximum width and height: positions and their sums fit in 32 bits.
pub(crate) const MAX_SIDE: u32 = 1 << 24;

/// The pixel format of an image.
///
/// Samples of more than 8 bits have 2 bytes, little-endian, with the value in the most significant
/// bits, as NVDEC writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PixelFormat {
    /// One plane of interleaved RGB, one byte per sample.
    Rgb8,
    /// Two planes: luma, and interleaved Cb and Cr in half resolution on both axes.
    Nv12,
    /// `Nv12` with 2 bytes per sample: P010, P012 and P016.
    P016,
    /// Three planes: luma, and Cb and Cr in half resolution on both axes.
    Yuv420,
    /// Three planes of full resolution: luma, Cb and Cr.
    Yuv444,
    /// `Yuv444` with 2 bytes per sample.
    Yuv444P16,
}

impl PixelFormat {
    /// The number of planes.
    pub fn planes(self) -> usize {
        match self {
            PixelFormat::Rgb8 => 1,
            PixelFormat::Nv12 | PixelFormat::P016 => 2,
            PixelFormat::Yuv420 | PixelFormat::Yuv444 | PixelFormat::Yuv444P16 => 3,
        }
    }

    /// Bytes per sample.
    pub fn sample_bytes(self) -> u64 {
        match self {
            PixelFormat::P016 | PixelFormat::Yuv444P16 => 2,
            PixelFormat::Rgb8 | PixelFormat::Nv12 | PixelFormat::Yuv420 | PixelFormat::Yuv444 => 1,
        }
    }

    /// Whether chroma has half the resolution on both axes, rounded up for odd sides.
    pub fn is_subsampled(self) -> bool {
        matches!(self, PixelFormat::Nv12 | PixelFormat::P016 | PixelFormat::Yuv420)
    }

    /// For a component: its plane, its first sample in a row, and the distance between its samples.
    pub(crate) fn component_layout(self, component: usize) -> (usize, u64, u64) {
        match self {
            PixelFormat::Rgb8 => (0, component as u64, 3),
            PixelFormat::Nv12 | PixelFormat::P016 if component > 0 => (1, component as u64 - 1, 2),
            _ => (component, 0, 1),
        }
    }

    /// Samples per row of a plane.
    fn row(self, plane: usize, width: u32) -> u64 {
        let width = u64::from(width);
        match self {
            PixelFormat::Rgb8 => 3 * width,
            PixelFormat::Nv12 | PixelFormat::P016 if plane > 0 => 2 * width.div_ceil(2),
            PixelFormat::Yuv420 if plane > 0 => width.div_ceil(2),
            _ => width,
        }
    }
}

/// A plane in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePlane {
    /// Address of the first sample.
    pub address: u64,
    /// Distance between rows in bytes.
    pub pitch: u64,
}

/// The position of subsampled chroma relative to luma (`chroma_sample_loc_type` of ITU-T H.273).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChromaSiting {
    /// Type 0: horizontally at every second luma sample, vertically halfway between two luma
    /// samples. This is the default of H.264, HEVC and VP9, and the default here for NV12 and P016.
    #[default]
    Left,
    /// Type 1: in the centre of four luma samples, as in JPEG. The default for
    /// [`PixelFormat::Yuv420`].
    Center,
    /// Type 2: at every second luma sample on both axes, as in most HDR video.
    TopLeft,
}

impl ChromaSiting {
    /// Distance to the right and down from a chroma position to the centre of the luma samples that
    /// share it, in chroma samples.
    pub(crate) fn shifts(self) -> (f64, f64) {
        match self {
            ChromaSiting::Center => (0.0, 0.0),
            ChromaSiting::Left => (0.25, 0.0),
            ChromaSiting::TopLeft => (0.25, 0.25),
        }
    }
}

/// A decoded image in device memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SourceImage {
    pub(crate) format: PixelFormat,
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) planes: [DevicePlane; 3],
    pub(crate) color: Option<ColorMatrix>,
    pub(crate) siting: ChromaSiting,
}

impl SourceImage {
    /// An image of interleaved RGB bytes.
    ///
    /// # Errors
    /// `InvalidArgument` if a side is not in 1 to 16,777,216, rows overlap, or the plane exceeds
    /// the address space.
    pub fn rgb8(width: u32, height: u32, plane: DevicePlane) -> Result<Self> {
        SourceImage::new(PixelFormat::Rgb8, width, height, &[plane], None)
    }

    /// An image of luma and chroma with a colour matrix; [`siting`](Self::siting) has its default
    /// value.
    ///
    /// # Errors
    /// `InvalidArgument` if a side is not in 1 to 16,777,216, the format is RGB or has another
    /// number of planes, rows overlap, a plane exceeds the address space, 2-byte samples are not
    /// aligned, or the bit depth of the matrix does not fit: 8 for formats with 1 byte per sample,
    /// 9 to 16 for 2 bytes.
    pub fn yuv(
        format: PixelFormat,
        width: u32,
        height: u32,
        planes: &[DevicePlane],
        color: ColorMatrix,
    ) -> Result<Self> {
        if format == PixelFormat::Rgb8 {
            return Err(invalid(
                "invalid format Rgb8: it has no luma and chroma; use `SourceImage::rgb8`"
                    .to_owned(),
            ));
        }
        let is_wide = format.sample_bytes() > 1;
        if is_wide != (color.bits() > 8) {
            return Err(invalid(format!(
                "invalid colour matrix: {format:?} has {} bits, and the matrix is for {} bits",
                if is_wide { "9 to 16" } else { "8" },
                color.bits()
            )));
        }
        SourceImage::new(format, width, height, planes, Some(color))
    }

    fn new(
        format: PixelFormat,
        width: u32,
        height: u32,
        planes: &[DevicePlane],
        color: Option<ColorMatrix>,
    ) -> Result<Self> {
        let sides = 1..=MAX_SIDE;
        if !sides.contains(&width) || !sides.contains(&height) {
            return Err(invalid(format!(
                "invalid image size {width}x{height}: expected sides from 1 to {MAX_SIDE}"
            )));
        }
        if planes.len() != format.planes() {
            return Err(invalid(format!(
                "invalid planes: {format:?} has {} planes, found {}",
                format.planes(),
                planes.len()
            )));
        }
        let bytes = format.sample_bytes();
        for (at, plane) in planes.iter().enumerate() {
            let min_pitch = format.row(at, width) * bytes;
            let DevicePlane { address, pitch } = *plane;
            if pitch < min_pitch || i64::try_from(pitch).is_err() {
                return Err(invalid(format!(
                    "invalid pitch {pitch} of plane {at} of {format:?}: a row has {min_pitch} bytes"
                )));
            }
            let rows = u64::from(height);
            let end = pitch.checked_mul(rows).and_then(|bytes| address.checked_add(bytes));
            if end.is_none() {
                return Err(invalid(format!(
                    "plane {at} of {format:?} with {rows} rows and pitch {pitch} at {address:#x} exceeds \
                     the address space"
                )));
            }
            if address == 0 || address % bytes != 0 || pitch % bytes != 0 {
                return Err(invalid(format!(
                    "invalid address {address:#x} or pitch {pitch} of plane {at} of {format:?}: expected \
                     multiples of {bytes}"
                )));
            }
        }
        let siting = match format {
            PixelFormat::Yuv420 => ChromaSiting::Center,
            _ => ChromaSiting::Left,
        };
        let first = planes[0];
        let planes = std::array::from_fn(|at| planes.get(at).copied().unwrap_or(first));
        Ok(SourceImage { format, width, height, planes, color, siting })
    }

    /// Address and size in bytes of each plane.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.format.planes()).map(|at| {
            let is_halved = at > 0 && self.format.is_subsampled();
            let rows = if is_halved { self.height.div_ceil(2) } else { self.height };
            let row = self.format.row(at, self.width) * self.format.sample_bytes();
            let DevicePlane { address, pitch } = self.planes[at];
            (address, pitch * (u64::from(rows) - 1) + row)
        })
    }

    /// Sets the chroma siting. No effect without chroma subsampling.
    #[must_use]
    pub fn siting(mut self, siting: ChromaSiting) -> Self {
        self.siting = siting;
        self
    }
}
