//! Decoded planes of an image or a region, whose resolutions may differ.

use spdl_core::{Error, ErrorKind, Result};

use super::geometry::{Rect, Size};
use super::pixels::{CHANNELS, PixelsMut};

/// The colour model of the planes of a [`Picture`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ColorModel {
    /// One plane: interleaved red, green and blue.
    #[default]
    Rgb,
    /// One plane: grey.
    Grey,
    /// Three planes: luma Y, and the colour differences Cb and Cr, neutral at 128, in the
    /// [encoding](Picture::encoding) of the picture. Cb and Cr may be subsampled.
    YCbCr,
}

/// The matrix and the range of YCbCr. Default: ITU-R BT.601 with full range, as in JPEG.
///
/// ```
/// use spdl_media::image::YCbCrEncoding;
/// // Black and white of high-definition video.
/// let encoding = YCbCrEncoding::BT709.limited();
/// assert_eq!(encoding.rgb([16, 128, 128]), [0, 0, 0]);
/// assert_eq!(encoding.rgb([235, 128, 128]), [255, 255, 255]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YCbCrEncoding {
    /// The weights of red and blue in luma.
    red: f64,
    blue: f64,
    is_limited: bool,
}

impl Default for YCbCrEncoding {
    fn default() -> Self {
        YCbCrEncoding::BT601
    }
}

impl YCbCrEncoding {
    /// ITU-R BT.601, full range: JPEG, and with limited range standard-definition video.
    pub const BT601: YCbCrEncoding = YCbCrEncoding::full(0.299, 0.114);
    /// ITU-R BT.709, full range: high-definition video.
    pub const BT709: YCbCrEncoding = YCbCrEncoding::full(0.2126, 0.0722);
    /// ITU-R BT.2020, full range: ultra-high-definition video.
    pub const BT2020: YCbCrEncoding = YCbCrEncoding::full(0.2627, 0.0593);
    /// SMPTE 240M, full range.
    pub const SMPTE240M: YCbCrEncoding = YCbCrEncoding::full(0.212, 0.087);
    /// FCC, Title 47 of the Code of Federal Regulations, 73.682 (a)(20), full range.
    pub const FCC: YCbCrEncoding = YCbCrEncoding::full(0.30, 0.11);

    const fn full(red: f64, blue: f64) -> Self {
        YCbCrEncoding { red, blue, is_limited: false }
    }

    /// With limited range: luma from 16 to 235, colour differences from 16 to 240.
    #[must_use]
    pub const fn limited(mut self) -> Self {
        self.is_limited = true;
        self
    }

    /// The luma of black, the factor of luma, and the factors of the colour differences: red by Cr,
    /// green by Cb and Cr, blue by Cb (ITU-T H.273, section 8.3).
    pub(crate) fn factors(self) -> (u8, f64, [f64; 4]) {
        let YCbCrEncoding { red, blue, is_limited } = self;
        let green = 1.0 - red - blue;
        let (black, luma, chroma) =
            if is_limited { (16, 255.0 / 219.0, 255.0 / 224.0) } else { (0, 1.0, 1.0) };
        let (of_red, of_blue) = (2.0 * (1.0 - red) * chroma, 2.0 * (1.0 - blue) * chroma);
        (black, luma, [of_red, -of_blue * blue / green, -of_red * red / green, of_blue])
    }

    /// Red, green and blue of Y, Cb and Cr, rounded.
    pub fn rgb(self, [luma, blueness, redness]: [u8; 3]) -> [u8; 3] {
        let (black, factor, [red, green_blue, green_red, blue]) = self.factors();
        let luma = (f64::from(luma) - f64::from(black)) * factor;
        let (blueness, redness) = (f64::from(blueness) - 128.0, f64::from(redness) - 128.0);
        let values = [
            luma + red * redness,
            luma + green_blue * blueness + green_red * redness,
            luma + blue * blueness,
        ];
        // A cast to an integer saturates.
        values.map(|value| value.round() as u8)
    }
}

/// Where the samples of subsampled Cb and Cr are. Default: in the middle of their pixels, as in JPEG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChromaSiting {
    /// Horizontally.
    pub across: ChromaPosition,
    /// Vertically.
    pub down: ChromaPosition,
}

/// Where a sample of chroma is among the pixels that it covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChromaPosition {
    /// At the first pixel: on the left, or at the top.
    First,
    /// In the middle.
    #[default]
    Middle,
    /// At the last pixel.
    Last,
}

impl ChromaPosition {
    /// How far samples are before the middle of their `pixels` pixels, in samples.
    pub(crate) fn shift(self, pixels: u32) -> f64 {
        let to_first = 0.5 - 0.5 / f64::from(pixels);
        match self {
            ChromaPosition::First => to_first,
            ChromaPosition::Middle => 0.0,
            ChromaPosition::Last => -to_first,
        }
    }
}

/// The samples of one component, or of several interleaved components.
#[derive(Clone, Debug, Default)]
pub struct Plane {
    samples: Vec<u8>,
    shape: PlaneShape,
}

/// Memory layout, position and subsampling of a [`Plane`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneShape {
    /// Samples per position: 3 for interleaved RGB, otherwise 1.
    pub channels: usize,
    /// The positions that the plane holds, counted from the top left corner of the component.
    pub area: Rect,
    /// Image pixels per position, horizontally: 1, or more for a subsampled component.
    pub across: u32,
    /// Image pixels per position, vertically.
    pub down: u32,
    /// The distance between the starts of two rows, in bytes.
    pub stride: usize,
}

impl Plane {
    /// Memory layout, position and subsampling.
    pub fn shape(&self) -> PlaneShape {
        self.shape
    }

    /// A row of the plane: row 0 is the first row of [`PlaneShape::area`].
    ///
    /// # Panics
    /// If `row` is not less than the height of the area.
    pub fn row(&self, row: u32) -> &[u8] {
        let width = self.shape.area.width as usize * self.shape.channels;
        &self.samples[row as usize * self.shape.stride..][..width]
    }

    /// All samples. Rows start [`PlaneShape::stride`] bytes apart; the padding between rows has no
    /// meaning.
    pub fn samples(&self) -> &[u8] {
        &self.samples
    }

    /// All samples, mutable.
    pub fn samples_mut(&mut self) -> &mut [u8] {
        &mut self.samples
    }

    /// Changes the shape. The caller must write all samples; their values are unspecified.
    fn reshape(&mut self, shape: PlaneShape) -> Result<()> {
        let area = shape.area;
        let row = (area.width as usize).saturating_mul(shape.channels);
        let bytes = (area.height as usize).checked_mul(shape.stride);
        let is_valid = row > 0 && shape.stride >= row && shape.across > 0 && shape.down > 0;
        let Some(bytes) = bytes.filter(|&bytes| is_valid && bytes > 0) else {
            let message = format!(
                "invalid plane shape {shape:?}: expected non-empty rows that do not overlap, \
                 and subsampling factors above 0"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        if self.samples.capacity() < bytes {
            // Dropping the old buffer before the new one is allocated avoids copying its content.
            self.samples = Vec::new();
            self.samples.try_reserve_exact(bytes).map_err(|_| {
                let message = format!("cannot allocate {bytes} bytes for a decoded picture");
                Error::new(ErrorKind::LimitExceeded, message)
            })?;
        }
        if self.samples.len() < bytes {
            self.samples.resize(bytes, 0);
        }
        self.shape = shape;
        Ok(())
    }
}

/// Decoded planes of an image or a region, before resizing. If a picture is reused, its memory is
/// kept.
///
/// ```
/// use spdl_media::image::{ColorModel, Picture};
/// use spdl_media::{Rect, Size};
/// let mut picture = Picture::new();
/// picture.start_rgb(Size::new(40, 30), Rect { left: 8, top: 0, width: 16, height: 30 })?;
/// assert_eq!(picture.color(), ColorModel::Rgb);
/// assert_eq!(picture.planes()[0].row(29).len(), 16 * 3);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Picture {
    color: ColorModel,
    encoding: YCbCrEncoding,
    siting: ChromaSiting,
    image: Size,
    planes: [Plane; 3],
}

impl Picture {
    /// An empty picture; allocates nothing.
    pub fn new() -> Self {
        Picture::default()
    }

    /// Prepares one plane of interleaved RGB at full resolution, for `region` of an image of size
    /// `image`.
    ///
    /// # Errors
    /// `InvalidArgument` if `region` has no pixels; `LimitExceeded` if the allocation fails.
    pub fn start_rgb(&mut self, image: Size, region: Rect) -> Result<()> {
        let stride = region.width as usize * CHANNELS;
        let shape = PlaneShape { channels: CHANNELS, area: region, across: 1, down: 1, stride };
        self.start(image, ColorModel::Rgb, &[shape])
    }

    /// Prepares planes of these shapes: one for [`ColorModel::Rgb`] and [`ColorModel::Grey`], three
    /// for [`ColorModel::YCbCr`].
    ///
    /// # Errors
    /// `InvalidArgument` for another number of planes or an invalid shape; `LimitExceeded` if an
    /// allocation fails.
    pub fn start(&mut self, image: Size, color: ColorModel, shapes: &[PlaneShape]) -> Result<()> {
        if shapes.len() != color.planes() {
            let message = format!(
                "a {color:?} picture needs {} planes, got {}",
                color.planes(),
                shapes.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.color = color;
        self.encoding = YCbCrEncoding::default();
        self.siting = ChromaSiting::default();
        self.image = image;
        self.planes.iter_mut().zip(shapes).try_for_each(|(plane, shape)| plane.reshape(*shape))
    }

    /// The colour model of the planes.
    pub fn color(&self) -> ColorModel {
        self.color
    }

    /// The matrix and the range of [`ColorModel::YCbCr`].
    pub fn encoding(&self) -> YCbCrEncoding {
        self.encoding
    }

    /// Sets the matrix and the range of [`ColorModel::YCbCr`]; [`start`](Self::start) sets the
    /// default.
    pub fn set_encoding(&mut self, encoding: YCbCrEncoding) {
        self.encoding = encoding;
    }

    /// Where the samples of subsampled Cb and Cr are.
    pub fn siting(&self) -> ChromaSiting {
        self.siting
    }

    /// Sets where the samples of subsampled Cb and Cr are; [`start`](Self::start) sets the default.
    pub fn set_siting(&mut self, siting: ChromaSiting) {
        self.siting = siting;
    }

    /// The size of the whole image as stored.
    pub fn image(&self) -> Size {
        self.image
    }

    /// Whether every plane holds all samples of a region of the image.
    pub fn holds(&self, region: Rect) -> bool {
        let holds = |start: u32, count: u32, from: u32, have: u32, step: u32| {
            let end = u64::from(start) + u64::from(count);
            from <= start / step && u64::from(from) + u64::from(have) >= end.div_ceil(step.into())
        };
        self.planes().iter().all(|plane| {
            let PlaneShape { area, across, down, .. } = plane.shape;
            holds(region.left, region.width, area.left, area.width, across)
                && holds(region.top, region.height, area.top, area.height, down)
        })
    }

    /// The planes: one or three.
    pub fn planes(&self) -> &[Plane] {
        &self.planes[..self.color.planes()]
    }

    /// The planes, mutable.
    pub fn planes_mut(&mut self) -> &mut [Plane] {
        &mut self.planes[..self.color.planes()]
    }

    /// The number of bytes that the current planes need.
    pub(crate) fn needed_bytes(&self) -> usize {
        let bytes = |plane: &Plane| plane.shape.area.height as usize * plane.shape.stride;
        self.planes().iter().map(bytes).sum()
    }

    /// The number of bytes allocated, for these planes and for earlier planes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.planes.iter().map(|plane| plane.samples.capacity()).sum()
    }

    /// The interleaved RGB pixels, mutable.
    ///
    /// # Errors
    /// `InvalidArgument` if the picture is not RGB, or is empty.
    pub fn rgb_mut(&mut self) -> Result<PixelsMut<'_>> {
        if self.color != ColorModel::Rgb {
            let message = format!("cannot use a {:?} picture as interleaved RGB", self.color);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let plane = &mut self.planes[0];
        let PlaneShape { area, stride, .. } = plane.shape;
        PixelsMut::with_stride(&mut plane.samples, area.size(), stride)
    }
}

impl ColorModel {
    /// The number of planes.
    pub fn planes(self) -> usize {
        match self {
            ColorModel::Rgb | ColorModel::Grey => 1,
            ColorModel::YCbCr => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_color_model_decides_the_number_of_planes() {
        let mut picture = Picture::new();
        let area = Rect::full(Size::new(4, 4));
        let shape = PlaneShape { channels: 1, area, across: 1, down: 1, stride: 8 };
        let size = Size::new(4, 4);
        picture.start(size, ColorModel::YCbCr, &[shape; 3]).unwrap();
        assert_eq!(picture.planes().len(), 3);
        assert_eq!(picture.planes()[2].row(3).len(), 4);
        assert_eq!(picture.planes()[2].samples().len(), 32);
        assert_eq!(picture.rgb_mut().unwrap_err().kind(), ErrorKind::InvalidArgument);
        let error = picture.start(size, ColorModel::Grey, &[shape; 3]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let narrow = PlaneShape { stride: 3, ..shape };
        let error = picture.start(size, ColorModel::Grey, &[narrow]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn rgb_pixels_are_written_in_their_plane() {
        let mut picture = Picture::new();
        let region = Rect { left: 1, top: 2, width: 2, height: 2 };
        picture.start_rgb(Size::new(9, 9), region).unwrap();
        picture.rgb_mut().unwrap().row_mut(1).fill(7);
        assert_eq!(picture.planes()[0].row(1), [7; 6]);
        assert_eq!(picture.planes()[0].row(0), [0; 6]);
        assert_eq!((picture.image(), picture.planes()[0].shape().area), (Size::new(9, 9), region));
    }
}
