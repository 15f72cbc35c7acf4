//! What augmentations work on, and the memory that they work in.

use std::fmt;

use spdl_core::{Error, ErrorKind, Result};

use crate::image::{CHANNELS, Image, Size};

/// An image that is changed in place: interleaved RGB, 8 bits a channel, rows without gaps.
///
/// ```
/// use spdl_media::Size;
/// use spdl_media::augment::{ImageMut, functional};
/// let mut pixels = vec![10; 4 * 2 * 3];
/// let mut image = ImageMut::new(&mut pixels, Size::new(4, 2))?;
/// functional::invert(&mut image);
/// assert_eq!(pixels[0], 245);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct ImageMut<'a> {
    pixels: &'a mut [u8],
    size: Size,
}

impl<'a> ImageMut<'a> {
    /// An image in the caller's memory: `height` × `width` × 3 bytes.
    ///
    /// # Errors
    /// `InvalidArgument` where a side is 0, or `pixels` has another length.
    pub fn new(pixels: &'a mut [u8], size: Size) -> Result<Self> {
        let expected = usize::try_from(size.pixels())
            .ok()
            .and_then(|pixels| pixels.checked_mul(CHANNELS))
            .filter(|&bytes| bytes > 0);
        if expected != Some(pixels.len()) {
            let message = format!("{size} RGB pixels are not {} bytes", pixels.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(ImageMut { pixels, size })
    }

    /// The pixels of a decoded image.
    ///
    /// # Errors
    /// As [`new`](ImageMut::new).
    pub fn of(image: &'a mut Image) -> Result<Self> {
        ImageMut::new(&mut image.pixels, image.size)
    }

    /// Its width and height.
    pub fn size(&self) -> Size {
        self.size
    }

    /// `height` × `width` × 3 bytes: red, green, blue, from left to right, from top to bottom.
    pub fn pixels(&self) -> &[u8] {
        self.pixels
    }

    /// The same, to be written.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        self.pixels
    }
}

impl fmt::Debug for ImageMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageMut({})", self.size)
    }
}

/// Memory that is kept from image to image, so that augmentations allocate nothing once images of
/// their size have gone through.
///
/// What is taken is given back when it is done with, the last first; what is not is only lost.
#[derive(Debug, Default)]
pub struct Scratch {
    bytes: Vec<Vec<u8>>,
    floats: Vec<Vec<f32>>,
}

impl Scratch {
    /// Without memory.
    pub fn new() -> Self {
        Scratch::default()
    }

    /// `len` bytes that hold anything.
    pub fn take_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.bytes.pop().unwrap_or_default();
        bytes.resize(len, 0);
        bytes
    }

    /// Keeps the memory for the next.
    pub fn give_bytes(&mut self, bytes: Vec<u8>) {
        self.bytes.push(bytes);
    }

    /// `len` numbers that may be anything.
    pub fn take_floats(&mut self, len: usize) -> Vec<f32> {
        let mut floats = self.floats.pop().unwrap_or_default();
        floats.resize(len, 0.0);
        floats
    }

    /// Keeps the memory for the next.
    pub fn give_floats(&mut self, floats: Vec<f32>) {
        self.floats.push(floats);
    }
}
