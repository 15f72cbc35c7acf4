//! From pixels to the bytes of a file, for writers of data sets and for tools.
//!
//! ```
//! # #[cfg(feature = "jpeg")] {
//! use spdl_media::encode::{ImageEncoder, JpegEncoder, PngEncoder};
//! use spdl_media::{Image, Size, decode_rgb};
//! let image = Image { size: Size::new(40, 30), pixels: vec![128; 40 * 30 * 3] };
//! let small = JpegEncoder::new().quality(80).encode_image(&image)?;
//! assert_eq!(decode_rgb(&small)?.size, image.size);
//! # #[cfg(feature = "png")]
//! assert_eq!(decode_rgb(&PngEncoder::new().encode_image(&image)?)?, image);
//! # }
//! # Ok::<(), spdl_core::Error>(())
//! ```

mod bmp;
mod jpeg;
mod png;
mod webp;
#[cfg(feature = "webp-lossy")]
mod webp_lossy;

use std::fmt::{Debug, Display};

use spdl_core::{Error, ErrorKind, Result};

pub use self::bmp::BmpEncoder;
pub use self::jpeg::{JpegEncoder, Subsampling};
pub use self::png::{PngCompression, PngEncoder};
pub use self::webp::WebpEncoder;
#[cfg(feature = "webp-lossy")]
pub use self::webp_lossy::LossyWebpEncoder;
use crate::image::{CHANNELS, Image, Size};

/// Writes images of one format. The same pixels and options always give the same bytes.
pub trait ImageEncoder: Debug + Send + Sync + 'static {
    /// The short name of the format, and the ending of its files: `jpeg`.
    fn name(&self) -> &'static str;

    /// Encodes RGB pixels: `height` × `width` × 3 bytes, interleaved, rows without gaps.
    ///
    /// # Errors
    /// `InvalidArgument` where the number of bytes is not that of the size, a side is 0 or larger
    /// than the format allows, or an option is out of its range; `Unsupported` as the encoder says.
    fn encode(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>>;

    /// Encodes an image.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    fn encode_image(&self, image: &Image) -> Result<Vec<u8>> {
        self.encode(&image.pixels, image.size)
    }
}

/// Checks what is to be encoded. `largest` is the most that a side may be.
fn check(name: &str, pixels: &[u8], size: Size, largest: u32) -> Result<()> {
    check_channels(name, pixels, size, largest, CHANNELS as u64)
}

/// The same, of pixels with so many channels.
fn check_channels(
    name: &str,
    pixels: &[u8],
    size: Size,
    largest: u32,
    channels: u64,
) -> Result<()> {
    if size.pixels() == 0 || size.width.max(size.height) > largest {
        return Err(invalid(format!("{name} pictures have sides of 1 to {largest}, not {size}")));
    }
    let expected = size.pixels().saturating_mul(channels);
    if pixels.len() as u64 != expected {
        let found = pixels.len();
        return Err(invalid(format!("expected {expected} bytes for {size} pixels, found {found}")));
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// An error of a crate that encodes. What it was given is sound: it is
/// something that the crate cannot do.
fn failed(name: &str, error: impl Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the {name} encoder failed: {error}"))
}
