//! The caller's memory that a decoder writes RGB pixels into.

use std::fmt;

use spdl_core::{Error, ErrorKind, Result};

use super::geometry::{Rect, Size};

/// Bytes of one interleaved RGB pixel.
pub(crate) const CHANNELS: usize = 3;

/// A mutable view of interleaved RGB pixels, 8 bits per channel: rows of `width` × 3 bytes,
/// `stride` bytes apart.
///
/// ```
/// use spdl_media::image::PixelsMut;
/// use spdl_media::Size;
/// let mut memory = vec![0; 4 * 2 * 3];
/// let mut pixels = PixelsMut::new(&mut memory, Size::new(4, 2))?;
/// pixels.row_mut(1).fill(255);
/// assert_eq!(memory[11..13], [0, 255]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct PixelsMut<'a> {
    bytes: &'a mut [u8],
    size: Size,
    stride: usize,
}

impl<'a> PixelsMut<'a> {
    /// A view without padding between rows.
    ///
    /// # Errors
    /// `InvalidArgument` if `bytes` is too short, or width or height is 0.
    pub fn new(bytes: &'a mut [u8], size: Size) -> Result<Self> {
        let stride = (size.width as usize).saturating_mul(CHANNELS);
        PixelsMut::with_stride(bytes, size, stride)
    }

    /// A view whose rows start `stride` bytes apart.
    ///
    /// # Errors
    /// `InvalidArgument` if `bytes` is too short, rows overlap, or width or height is 0.
    pub fn with_stride(bytes: &'a mut [u8], size: Size, stride: usize) -> Result<Self> {
        let row = (size.width as usize).saturating_mul(CHANNELS);
        let needed = (size.height as usize)
            .checked_sub(1)
            .and_then(|rows| rows.checked_mul(stride))
            .and_then(|bytes| bytes.checked_add(row))
            .filter(|&needed| row > 0 && stride >= row && needed <= bytes.len());
        match needed {
            Some(_) => Ok(PixelsMut { bytes, size, stride }),
            None => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "buffer of {} bytes does not hold {size} RGB pixels with a stride of {stride} bytes",
                    bytes.len()
                ),
            )),
        }
    }

    /// Width and height.
    pub fn size(&self) -> Size {
        self.size
    }

    /// The distance between the starts of two rows, in bytes.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The `width` × 3 bytes of a row.
    ///
    /// # Panics
    /// If `row` is not less than the height.
    pub fn row_mut(&mut self, row: u32) -> &mut [u8] {
        assert!(row < self.size.height, "row {row} of {}", self.size);
        let start = row as usize * self.stride;
        &mut self.bytes[start..start + self.size.width as usize * CHANNELS]
    }

    /// All rows as one slice; `None` if there is padding between rows.
    pub fn as_contiguous_mut(&mut self) -> Option<&mut [u8]> {
        let row = self.size.width as usize * CHANNELS;
        (self.stride == row).then(|| &mut self.bytes[..row * self.size.height as usize])
    }

    /// A view of a rectangle inside this view.
    #[cfg_attr(
        not(all(feature = "tiff", feature = "jpeg")),
        allow(dead_code, reason = "for JPEG in TIFF")
    )]
    pub(crate) fn part_mut(&mut self, part: Rect) -> Result<PixelsMut<'_>> {
        let start = part.top as usize * self.stride + part.left as usize * CHANNELS;
        if !part.is_within(self.size) {
            let message =
                format!("rectangle {part:?} is not inside the image of {} pixels", self.size);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        PixelsMut::with_stride(&mut self.bytes[start..], part.size(), self.stride)
    }

    /// The same view with a shorter lifetime.
    pub fn reborrow(&mut self) -> PixelsMut<'_> {
        PixelsMut { bytes: self.bytes, size: self.size, stride: self.stride }
    }
}

impl fmt::Debug for PixelsMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PixelsMut({}, stride {})", self.size, self.stride)
    }
}
