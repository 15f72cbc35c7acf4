//! The image that augmentations change, and their scratch memory.

use std::fmt;

use spdl_core::{Error, ErrorKind, Result};

use super::functional::Warp;
use crate::image::{CHANNELS, Image, Size};

/// A mutable image: interleaved RGB, 8 bits per channel, no padding between rows.
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
    /// A view of the caller's memory: `height` × `width` × 3 bytes.
    ///
    /// # Errors
    /// `InvalidArgument` if width or height is 0, or `pixels` has another length.
    pub fn new(pixels: &'a mut [u8], size: Size) -> Result<Self> {
        let expected = usize::try_from(size.pixels())
            .ok()
            .and_then(|pixels| pixels.checked_mul(CHANNELS))
            .filter(|&bytes| bytes > 0);
        if expected != Some(pixels.len()) {
            let message = format!(
                "buffer of {} bytes for {size} RGB pixels: expected width × height × 3 bytes",
                pixels.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(ImageMut { pixels, size })
    }

    /// A view of a decoded image.
    ///
    /// # Errors
    /// The errors of [`new`](ImageMut::new).
    pub fn of(image: &'a mut Image) -> Result<Self> {
        ImageMut::new(&mut image.pixels, image.size)
    }

    /// Width and height.
    pub fn size(&self) -> Size {
        self.size
    }

    /// The pixels: `height` × `width` × 3 bytes, row by row.
    pub fn pixels(&self) -> &[u8] {
        self.pixels
    }

    /// The pixels, mutable.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        self.pixels
    }
}

impl fmt::Debug for ImageMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageMut({})", self.size)
    }
}

/// Scratch memory that is reused from image to image, so that augmentations stop allocating after
/// the first images.
///
/// Return each buffer after use, in reverse order. A buffer that is not returned is simply freed.
#[derive(Debug, Default)]
pub struct Scratch {
    bytes: Vec<Vec<u8>>,
    floats: Vec<Vec<f32>>,
    /// The geometric operations on the current image, if they are recorded.
    warps: Option<Vec<Warp>>,
}

impl Scratch {
    /// Scratch memory that holds no buffers yet.
    pub fn new() -> Self {
        Scratch::default()
    }

    /// A buffer of `len` bytes with unspecified content.
    pub fn take_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.bytes.pop().unwrap_or_default();
        bytes.resize(len, 0);
        bytes
    }

    /// Returns a buffer for reuse.
    pub fn give_bytes(&mut self, bytes: Vec<u8>) {
        self.bytes.push(bytes);
    }

    /// A buffer of `len` numbers with unspecified content.
    pub fn take_floats(&mut self, len: usize) -> Vec<f32> {
        let mut floats = self.floats.pop().unwrap_or_default();
        floats.resize(len, 0.0);
        floats
    }

    /// Returns a buffer for reuse.
    pub fn give_floats(&mut self, floats: Vec<f32>) {
        self.floats.push(floats);
    }

    /// Starts to record the geometric operations on an image.
    pub(super) fn start_record(&mut self) {
        self.warps.get_or_insert_default().clear();
    }

    /// Adds a geometric operation, if they are recorded.
    pub(super) fn record(&mut self, warp: impl FnOnce() -> Warp) {
        if let Some(warps) = &mut self.warps {
            warps.push(warp());
        }
    }

    /// The geometric operations since [`start_record`](Self::start_record), in order.
    #[cfg(feature = "records")]
    pub(super) fn warps(&self) -> &[Warp] {
        self.warps.as_deref().unwrap_or_default()
    }
}
