//! How large an image may be before its decoder refuses it.

use spdl_core::{Error, ErrorKind, Result};

use super::geometry::Size;
use super::pixels::CHANNELS;

/// Bounds that a decoder checks from the header, before it allocates.
///
/// They decide which images are decoded and which fail, and so which a failure policy drops, but not
/// what a sample looks like, nor where it comes. So they are no part of what a resumed run must
/// share, and may be raised for the rest of a run that failed on them.
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
    /// What buffers that exist already take of `max_bytes`.
    used_bytes: u64,
    max_frames: u64,
    max_ratio: u64,
    max_depth: u32,
    strict: bool,
}

/// What an image may always decode to, however few bytes it is stored in: a picture of one colour
/// is small in any format.
const RATIO_FREE_BYTES: u64 = 1 << 20;

impl Default for Limits {
    /// 178,956,970 pixels (where Pillow, too, speaks of a bomb), 1 GiB of working memory, 100,000
    /// frames, 100,000 decoded bytes for each encoded one, 4 files inside one another, strict.
    fn default() -> Self {
        Limits {
            max_pixels: 178_956_970,
            max_bytes: 1 << 30,
            used_bytes: 0,
            max_frames: 100_000,
            max_ratio: 100_000,
            max_depth: 4,
            strict: true,
        }
    }
}

impl Limits {
    /// The most pixels of one image. Default: 178,956,970.
    #[must_use]
    pub fn max_pixels(mut self, max_pixels: u64) -> Self {
        self.max_pixels = max_pixels;
        self
    }

    /// The most bytes that decoding one image may use: the pixels that are asked for, as RGB or in
    /// planes, and all that a decoder allocates beside them, together. Default: 1 GiB.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The most frames of an animation (APNG, GIF, WebP), though only the first is decoded: what
    /// has more is refused. Default: 100,000.
    #[must_use]
    pub fn max_frames(mut self, max_frames: u64) -> Self {
        self.max_frames = max_frames;
        self
    }

    /// The most bytes of RGB pixels that one encoded byte may stand for, on average over the file.
    /// Images of up to 1 MiB of pixels are let through whatever their ratio. Default: 100,000, as
    /// sound files of one colour come near to that: an empty mask of 1 bit as PNG has 25,000, an
    /// empty page as TIFF 97,000.
    #[must_use]
    pub fn max_ratio(mut self, max_ratio: u64) -> Self {
        self.max_ratio = max_ratio;
        self
    }

    /// How many files may lie inside one another: a PNG inside an icon makes 2. Default: 4.
    #[must_use]
    pub fn max_depth(mut self, max_depth: u32) -> Self {
        self.max_depth = max_depth;
        self
    }

    /// Whether damage is an error that other readers only warn of. Default: yes. If not:
    ///
    /// - PNG: wrong checksums are let through;
    /// - JPEG: a progressive file may lack the scan of a component's DC values, which are then 0;
    /// - `TurboJpegCodec` and `ZuneJpegCodec` let through what their libraries warn of, and those
    ///   make up what is missing.
    ///
    /// All other damage is an error in either case, and so are data that end early.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Whether damage is an error that other readers only warn of.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The bytes that one image may use, less those that [`after`](Self::after) counted.
    pub fn bytes(&self) -> u64 {
        self.max_bytes.saturating_sub(self.used_bytes)
    }

    /// The limits for what else is allocated beside a buffer of so many bytes: how a decode keeps
    /// account of all its buffers. Each is checked by [`check_bytes`](Self::check_bytes) against
    /// what those before it left.
    ///
    /// ```
    /// use spdl_media::{Limits, Size};
    /// let (limits, size) = (Limits::default().max_bytes(100), Size::new(4, 4));
    /// let beside_the_result = limits.after(48, size)?;
    /// assert!(beside_the_result.check_bytes(52, size).is_ok());
    /// assert!(beside_the_result.check_bytes(53, size).is_err());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `LimitExceeded` where the buffer itself is too much.
    pub fn after(&self, bytes: u64, size: Size) -> Result<Limits> {
        self.check_bytes(bytes, size)?;
        Ok(Limits { used_bytes: self.used_bytes.saturating_add(bytes), ..self.clone() })
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
        self.check_pixels(size.pixels(), size)?;
        // Whatever else there is: a part of it may be all that is asked for.
        let bytes = size.pixels().saturating_mul(CHANNELS as u64);
        if bytes > self.max_bytes { Err(self.too_much_memory(size, bytes)) } else { Ok(()) }
    }

    /// Checks how many pixels are decoded in all for an image of this size, where it consists of
    /// others.
    ///
    /// # Errors
    /// `LimitExceeded` where those are too many.
    pub fn check_pixels(&self, pixels: u64, size: Size) -> Result<()> {
        if pixels > self.max_pixels {
            return Err(self.exceeded(size, format!("{} pixels", self.max_pixels)));
        }
        Ok(())
    }

    /// Checks how many frames an animation has.
    ///
    /// # Errors
    /// `LimitExceeded` where those are too many.
    pub fn check_frames(&self, frames: u64) -> Result<()> {
        if frames > self.max_frames {
            let message = format!("an animation exceeds {} frames", self.max_frames);
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        Ok(())
    }

    /// Checks an image's size against that of its file.
    ///
    /// # Errors
    /// `LimitExceeded` where the file is too small for so many pixels.
    pub fn check_ratio(&self, encoded_bytes: usize, size: Size) -> Result<()> {
        let decoded = size.pixels().saturating_mul(CHANNELS as u64);
        let allowed = (encoded_bytes as u64).saturating_mul(self.max_ratio);
        if decoded > allowed.max(RATIO_FREE_BYTES) {
            let limit = format!(
                "{} times the size of its file ({decoded} bytes from {encoded_bytes})",
                self.max_ratio
            );
            return Err(self.exceeded(size, limit));
        }
        Ok(())
    }

    /// Checks how deep files are nested: 1 is the file itself.
    ///
    /// # Errors
    /// `LimitExceeded` where that is too deep.
    pub fn check_depth(&self, depth: u32) -> Result<()> {
        if depth > self.max_depth {
            let message = format!("more than {} files lie inside one another", self.max_depth);
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        Ok(())
    }

    /// Checks the working memory that an image of this size needs, beside what
    /// [`after`](Self::after) counted.
    ///
    /// # Errors
    /// `LimitExceeded` where that is too much.
    pub fn check_bytes(&self, bytes: u64, size: Size) -> Result<()> {
        let sum = self.used_bytes.saturating_add(bytes);
        if sum > self.max_bytes { Err(self.too_much_memory(size, sum)) } else { Ok(()) }
    }

    fn too_much_memory(&self, size: Size, needed: u64) -> Error {
        self.exceeded(size, format!("{} bytes of memory (it needs {needed})", self.max_bytes))
    }

    fn exceeded(&self, size: Size, limit: String) -> Error {
        Error::new(ErrorKind::LimitExceeded, format!("an image of {size} pixels exceeds {limit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(outcome: Result<()>) -> Option<ErrorKind> {
        outcome.err().map(|error| error.kind())
    }

    #[test]
    fn each_limit_allows_what_it_names_and_nothing_more() {
        let limits =
            Limits::default().max_pixels(1_000_000).max_bytes(3_000_000).max_frames(7).max_depth(2);
        let refused = Some(ErrorKind::LimitExceeded);
        assert_eq!(kind(limits.check_size(Size::new(1000, 1000))), None);
        assert_eq!(kind(limits.check_size(Size::new(1000, 1001))), refused);
        assert_eq!(kind(limits.check_bytes(3_000_000, Size::new(1, 1))), None);
        assert_eq!(kind(limits.check_bytes(3_000_001, Size::new(1, 1))), refused);
        assert_eq!(kind(limits.check_frames(7)), None);
        assert_eq!(kind(limits.check_frames(8)), refused);
        assert_eq!(kind(limits.check_depth(2)), None);
        assert_eq!(kind(limits.check_depth(3)), refused);
        assert_eq!(kind(limits.check_size(Size::new(0, 9))), Some(ErrorKind::Corrupt));
    }

    #[test]
    fn the_ratio_holds_above_a_mebibyte() {
        let limits = Limits::default().max_ratio(100);
        // 1024 × 1024 × 3 bytes are 3 MiB.
        let size = Size::new(1024, 1024);
        assert_eq!(kind(limits.check_ratio(31_458, size)), None);
        assert_eq!(kind(limits.check_ratio(31_457, size)), Some(ErrorKind::LimitExceeded));
        assert_eq!(kind(limits.check_ratio(1, Size::new(591, 591))), None);
        assert_eq!(
            kind(limits.check_ratio(1, Size::new(592, 592))),
            Some(ErrorKind::LimitExceeded)
        );
        let huge = Size::new(u32::MAX, u32::MAX);
        assert_eq!(kind(limits.check_ratio(usize::MAX, huge)), None);
    }
}
