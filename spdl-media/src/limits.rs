//! How large an image may be before its decoder refuses it.

use spdl_core::{Error, ErrorKind, Result};

use crate::Size;
use crate::pixels::CHANNELS;

/// Bounds that a decoder checks from the header, before it allocates.
///
/// ```
/// use spdl_media::Limits;
/// let limits = Limits::default().max_pixels(50_000_000);
/// assert!(limits.check_size(spdl_media::Size::new(65_500, 65_500)).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    max_pixels: u64,
    max_bytes: u64,
    strict: bool,
}

impl Default for Limits {
    /// 178,956,970 pixels (where Pillow, too, speaks of a bomb), 1 GiB of working memory, strict.
    fn default() -> Self {
        Limits { max_pixels: 178_956_970, max_bytes: 1 << 30, strict: true }
    }
}

impl Limits {
    /// The most pixels of one image. Default: 178,956,970.
    #[must_use]
    pub fn max_pixels(mut self, max_pixels: u64) -> Self {
        self.max_pixels = max_pixels;
        self
    }

    /// The most bytes that decoding one image may use: its pixels as RGB, or what a decoder
    /// allocates beside them. Default: 1 GiB.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Whether damage is an error where a decoder could also go on with made-up pixels: wrong
    /// checksums, impossible codes, missing parts. Default: yes. Data that end early are an error
    /// in either case.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Whether damage is an error wherever it is noticed.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The bytes that one image may use.
    pub fn bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Checks an image's size.
    ///
    /// # Errors
    /// `Corrupt` where a side is 0, `LimitExceeded` where the image is too large.
    pub fn check_size(&self, size: Size) -> Result<()> {
        if size.pixels() == 0 {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("the header says {size} pixels; an image has at least one"),
            ));
        }
        if size.pixels() > self.max_pixels {
            return Err(self.exceeded(size, format!("{} pixels", self.max_pixels)));
        }
        self.check_bytes(size.pixels().saturating_mul(CHANNELS as u64), size)
    }

    /// Checks the working memory that an image of this size needs.
    ///
    /// # Errors
    /// `LimitExceeded` where that is too much.
    pub fn check_bytes(&self, bytes: u64, size: Size) -> Result<()> {
        if bytes > self.max_bytes {
            return Err(self
                .exceeded(size, format!("{} bytes of memory (it needs {bytes})", self.max_bytes)));
        }
        Ok(())
    }

    fn exceeded(&self, size: Size, limit: String) -> Error {
        Error::new(ErrorKind::LimitExceeded, format!("an image of {size} pixels exceeds {limit}"))
    }
}
