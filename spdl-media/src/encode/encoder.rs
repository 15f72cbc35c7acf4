//! The trait of an encoder, and checks of its input.

use std::fmt::{Debug, Display};

use spdl_core::{Error, ErrorKind, Result};

use crate::image::{CHANNELS, Image, Size};

/// Encodes images of one format. Equal pixels and options always give equal bytes.
pub trait ImageEncoder: Debug + Send + Sync + 'static {
    /// The short name of the format, which is also the file extension: `jpeg`.
    fn name(&self) -> &'static str;

    /// Encodes RGB pixels: `height` × `width` × 3 bytes, interleaved, no padding between rows.
    ///
    /// # Errors
    /// `InvalidArgument` if the number of bytes does not match the size, width or height is 0 or
    /// exceeds the format's maximum, a BMP file would exceed 4 GiB, or an option is out of range;
    /// `Unsupported` if the encoder library fails.
    fn encode(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>>;

    /// Encodes an image.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    fn encode_image(&self, image: &Image) -> Result<Vec<u8>> {
        self.encode(&image.pixels, image.size)
    }
}

/// Checks RGB pixels. `largest` is the maximum width and height.
pub(super) fn check(name: &str, pixels: &[u8], size: Size, largest: u32) -> Result<()> {
    check_channels(name, pixels, size, largest, CHANNELS as u64)
}

/// Checks pixels with this number of channels.
pub(super) fn check_channels(
    name: &str,
    pixels: &[u8],
    size: Size,
    largest: u32,
    channels: u64,
) -> Result<()> {
    if size.pixels() == 0 || size.width.max(size.height) > largest {
        return Err(invalid(format!(
            "cannot encode {size} pixels as {name}: expected width and height from 1 to {largest}"
        )));
    }
    let expected = size.pixels().saturating_mul(channels);
    if pixels.len() as u64 != expected {
        let found = pixels.len();
        return Err(invalid(format!(
            "buffer of {found} bytes for {size} pixels: expected {expected} bytes"
        )));
    }
    Ok(())
}

pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// The error if an encoder library fails for valid input: `Unsupported`.
pub(super) fn failed(name: &str, error: impl Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("cannot encode as {name}: {error}"))
}
