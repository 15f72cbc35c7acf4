//! A decoded image, or a part of one, as its decoder has it: planes that may differ in resolution.

use spdl_core::{Error, ErrorKind, Result};

use super::geometry::{Rect, Size};
use super::pixels::{CHANNELS, PixelsMut};

/// What the planes of a [`Picture`] stand for.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ColorModel {
    /// One plane: interleaved red, green and blue.
    #[default]
    Rgb,
    /// One plane: grey.
    Grey,
    /// Three planes: luma, blue and red difference (ITU-R BT.601, full range, 128 is none), of
    /// which the last two may have fewer samples.
    YCbCr,
}

/// Samples of one component, or of several that are interleaved.
#[derive(Clone, Debug, Default)]
pub struct Plane {
    samples: Vec<u8>,
    shape: PlaneShape,
}

/// How a [`Plane`] lies in memory and in the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneShape {
    /// Bytes of a position: 3 for interleaved RGB, else 1.
    pub channels: usize,
    /// Which positions of the component are here, counted from the component's upper left corner.
    pub area: Rect,
    /// Image pixels that a position covers: side by side, and on top of each other.
    pub across: u32,
    /// See [`across`](Self::across).
    pub down: u32,
    /// Bytes from the start of one row to the start of the next.
    pub stride: usize,
}

impl Plane {
    /// How it lies in memory and in the image.
    pub fn shape(&self) -> PlaneShape {
        self.shape
    }

    /// A row of the plane: 0 is the first of [`PlaneShape::area`].
    ///
    /// # Panics
    /// Where there is no such row.
    pub fn row(&self, row: u32) -> &[u8] {
        let width = self.shape.area.width as usize * self.shape.channels;
        &self.samples[row as usize * self.shape.stride..][..width]
    }

    /// All samples, rows [`PlaneShape::stride`] bytes apart; what lies between rows means nothing.
    pub fn samples(&self) -> &[u8] {
        &self.samples
    }

    /// The same, to be written.
    pub fn samples_mut(&mut self) -> &mut [u8] {
        &mut self.samples
    }

    /// Takes another shape. The samples are those of before, or zeros: they are to be written.
    fn reshape(&mut self, shape: PlaneShape) -> Result<()> {
        let area = shape.area;
        let row = (area.width as usize).saturating_mul(shape.channels);
        let bytes = (area.height as usize).checked_mul(shape.stride);
        let sound = row > 0 && shape.stride >= row && shape.across > 0 && shape.down > 0;
        let Some(bytes) = bytes.filter(|&bytes| sound && bytes > 0) else {
            let message = format!("impossible plane of a picture: {shape:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        if self.samples.capacity() < bytes {
            // Nothing of what is there is needed, so it is not carried along.
            self.samples = Vec::new();
            self.samples.try_reserve_exact(bytes).map_err(|_| {
                let message = format!("the system has no {bytes} bytes of memory for a picture");
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

/// A part of an image as its decoder has it, before it is resized: RGB, or planes that may differ
/// in resolution. Its memory is kept from image to image.
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
    image: Size,
    planes: [Plane; 3],
}

impl Picture {
    /// Without memory.
    pub fn new() -> Self {
        Picture::default()
    }

    /// Prepares for `region` of an image of the size `image`, as interleaved RGB at full size.
    ///
    /// # Errors
    /// `LimitExceeded` where the system has no such memory.
    pub fn start_rgb(&mut self, image: Size, region: Rect) -> Result<()> {
        let stride = region.width as usize * CHANNELS;
        let shape = PlaneShape { channels: CHANNELS, area: region, across: 1, down: 1, stride };
        self.start(image, ColorModel::Rgb, &[shape])
    }

    /// Prepares for planes of these shapes, one for [`ColorModel::Rgb`] and [`ColorModel::Grey`],
    /// three for [`ColorModel::YCbCr`].
    ///
    /// # Errors
    /// `InvalidArgument` for another number of planes, or an impossible shape; `LimitExceeded` where
    /// the system has no such memory.
    pub fn start(&mut self, image: Size, color: ColorModel, shapes: &[PlaneShape]) -> Result<()> {
        if shapes.len() != color.planes() {
            let message =
                format!("expected {} planes for {color:?}, found {}", color.planes(), shapes.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.color = color;
        self.image = image;
        self.planes.iter_mut().zip(shapes).try_for_each(|(plane, shape)| plane.reshape(*shape))
    }

    /// What the planes stand for.
    pub fn color(&self) -> ColorModel {
        self.color
    }

    /// The size of the whole image as stored.
    pub fn image(&self) -> Size {
        self.image
    }

    /// Whether all of its planes have all samples of a part of the image.
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

    /// One or three planes.
    pub fn planes(&self) -> &[Plane] {
        &self.planes[..self.color.planes()]
    }

    /// The same, to be written.
    pub fn planes_mut(&mut self) -> &mut [Plane] {
        &mut self.planes[..self.color.planes()]
    }

    /// How many bytes its planes take.
    pub(crate) fn needed_bytes(&self) -> usize {
        let bytes = |plane: &Plane| plane.shape.area.height as usize * plane.shape.stride;
        self.planes().iter().map(bytes).sum()
    }

    /// How many bytes it holds, for these planes and for earlier ones.
    pub(crate) fn held_bytes(&self) -> usize {
        self.planes.iter().map(|plane| plane.samples.capacity()).sum()
    }

    /// The interleaved RGB pixels, to be written.
    ///
    /// # Errors
    /// `InvalidArgument` where it has other planes.
    pub fn rgb_mut(&mut self) -> Result<PixelsMut<'_>> {
        if self.color != ColorModel::Rgb {
            let message = format!("expected RGB pixels, found {:?}", self.color);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let plane = &mut self.planes[0];
        let PlaneShape { area, stride, .. } = plane.shape;
        PixelsMut::with_stride(&mut plane.samples, area.size(), stride)
    }
}

impl ColorModel {
    /// How many planes there are.
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
    fn planes_are_as_many_as_the_color_model_has() {
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
