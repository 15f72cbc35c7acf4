//! Images in a device's memory.

use spdl_core::Result;

use super::color::ColorMatrix;
use super::invalid;

/// The largest side of an image: positions and sums of them fit 32 bits.
pub(crate) const MAX_SIDE: u32 = 1 << 24;

/// What the planes of an image hold. Samples of more than 8 bits are two bytes, the lower first, with
/// their bits at the top, as decoders of video on the device write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PixelFormat {
    /// One plane: red, green, blue, one byte each.
    Rgb8,
    /// Two planes: luma; Cb and Cr side by side, half as many on both axes.
    Nv12,
    /// The same with two bytes for each sample: P010, P012 and P016.
    P016,
    /// Three planes: luma, Cb and Cr, the latter half as many on both axes.
    Yuv420,
    /// Three planes: luma, Cb and Cr, as many of each.
    Yuv444,
    /// The same with two bytes for each sample.
    Yuv444P16,
}

impl PixelFormat {
    /// How many planes there are.
    pub fn planes(self) -> usize {
        match self {
            PixelFormat::Rgb8 => 1,
            PixelFormat::Nv12 | PixelFormat::P016 => 2,
            PixelFormat::Yuv420 | PixelFormat::Yuv444 | PixelFormat::Yuv444P16 => 3,
        }
    }

    /// How many bytes a sample takes.
    pub fn sample_bytes(self) -> u64 {
        match self {
            PixelFormat::P016 | PixelFormat::Yuv444P16 => 2,
            PixelFormat::Rgb8 | PixelFormat::Nv12 | PixelFormat::Yuv420 | PixelFormat::Yuv444 => 1,
        }
    }

    /// Whether there are half as many samples of chroma on both axes; where the image has an odd
    /// number of columns or rows, the last one has its own.
    pub fn is_subsampled(self) -> bool {
        matches!(self, PixelFormat::Nv12 | PixelFormat::P016 | PixelFormat::Yuv420)
    }

    /// In which plane a component is, at which sample, and how far it is to the next one.
    pub(crate) fn place(self, component: usize) -> (usize, u64, u64) {
        match self {
            PixelFormat::Rgb8 => (0, component as u64, 3),
            PixelFormat::Nv12 | PixelFormat::P016 if component > 0 => (1, component as u64 - 1, 2),
            _ => (component, 0, 1),
        }
    }

    /// How many samples a row of a plane has.
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

/// A plane in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePlane {
    /// The address of its first sample.
    pub address: u64,
    /// From a row to the next one, in bytes.
    pub pitch: u64,
}

/// Where the samples of chroma lie, if there are fewer of them than of luma.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChromaSiting {
    /// Across, on every second sample of luma; down, in the middle between two. What H.264, HEVC and
    /// VP9 say where they say nothing (H.273's type 0). The default for NV12 and P016.
    #[default]
    Left,
    /// In the middle of four samples of luma: JPEG (H.273's type 1). The default for
    /// [`PixelFormat::Yuv420`].
    Center,
    /// On every second sample of luma on both axes (H.273's type 2): most HDR video.
    TopLeft,
}

impl ChromaSiting {
    /// How far chroma lies from the middle of its samples of luma on each axis, in samples of chroma
    /// by which positions grow.
    pub(crate) fn shifts(self) -> (f64, f64) {
        match self {
            ChromaSiting::Center => (0.0, 0.0),
            ChromaSiting::Left => (0.25, 0.0),
            ChromaSiting::TopLeft => (0.25, 0.25),
        }
    }
}

/// An image in a device's memory, as it was decoded.
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
    /// Interleaved red, green and blue bytes.
    ///
    /// # Errors
    /// `InvalidArgument` where a side is not in 1 to 16,777,216, rows overlap, or there can be no such
    /// memory.
    pub fn rgb8(width: u32, height: u32, plane: DevicePlane) -> Result<Self> {
        SourceImage::new(PixelFormat::Rgb8, width, height, &[plane], None)
    }

    /// Luma and chroma, with their matrix. [`siting`](Self::siting) is the format's default.
    ///
    /// # Errors
    /// `InvalidArgument` where a side is not in 1 to 16,777,216, the format has another number of
    /// planes or is RGB, rows overlap, there can be no such memory, samples of two bytes begin at odd
    /// addresses, or the matrix is for samples of another size: 8 bits for formats of one byte, 9 to 16
    /// for those of two.
    pub fn yuv(
        format: PixelFormat,
        width: u32,
        height: u32,
        planes: &[DevicePlane],
        color: ColorMatrix,
    ) -> Result<Self> {
        if format == PixelFormat::Rgb8 {
            return Err(invalid("Rgb8 has no luma and chroma; use `SourceImage::rgb8`".to_owned()));
        }
        let is_wide = format.sample_bytes() > 1;
        if is_wide != (color.bits() > 8) {
            return Err(invalid(format!(
                "{format:?} has {} bits, but the colour matrix is for {}",
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
                "the image has {width} x {height} pixels; expected 1 to {MAX_SIDE} for each side"
            )));
        }
        if planes.len() != format.planes() {
            return Err(invalid(format!(
                "{format:?} has {} planes, found {}",
                format.planes(),
                planes.len()
            )));
        }
        let bytes = format.sample_bytes();
        for (at, plane) in planes.iter().enumerate() {
            let least = format.row(at, width) * bytes;
            let DevicePlane { address, pitch } = *plane;
            if pitch < least || i64::try_from(pitch).is_err() {
                return Err(invalid(format!(
                    "plane {at} of {format:?}: rows are {pitch} bytes apart, but take {least}"
                )));
            }
            let rows = u64::from(height);
            let end = pitch.checked_mul(rows).and_then(|bytes| address.checked_add(bytes));
            if end.is_none() {
                return Err(invalid(format!(
                    "plane {at} of {format:?}: {rows} rows that are {pitch} bytes apart do not fit \
                     into the memory behind {address:#x}"
                )));
            }
            if address == 0 || address % bytes != 0 || pitch % bytes != 0 {
                return Err(invalid(format!(
                    "plane {at} of {format:?}: expected an address and a pitch that are multiples \
                     of {bytes}, found {address:#x} and {pitch}"
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

    /// The memory that it lies in: where each plane begins, and how many bytes it takes.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.format.planes()).map(|at| {
            let is_halved = at > 0 && self.format.is_subsampled();
            let rows = if is_halved { self.height.div_ceil(2) } else { self.height };
            let row = self.format.row(at, self.width) * self.format.sample_bytes();
            let DevicePlane { address, pitch } = self.planes[at];
            (address, pitch * (u64::from(rows) - 1) + row)
        })
    }

    /// Where the samples of chroma lie; of no influence where there are as many as of luma.
    #[must_use]
    pub fn siting(mut self, siting: ChromaSiting) -> Self {
        self.siting = siting;
        self
    }
}
