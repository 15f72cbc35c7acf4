//! JPEG: a decoder of our own, sequential and progressive, 8 bits, Huffman- or arithmetic-coded.
//!
//! ```text
//! header ──► entropy-coded data ──► coefficients ──► inverse DCT ──► planes of the caller's, or
//! markers    without stuffing,      of one block     8, 4, 2 or 1    two rows of units ──► RGB,
//! tables     a window at a time     (or of the       samples a side  row by row, upsampled and
//!                                   image, where it                  converted
//!                                   has many scans)
//! ```
//!
//! One look at the data tells of two coefficients, and of as many as fit where a block is not wanted;
//! nothing depends on which way a branch goes but the end of a block.
//!
//! Where the file ends with its marker, so that nothing can be missing, not all is read: not what
//! lies below the wanted region, nor above it before the last restart marker there, nor, of a
//! component of a progressive file whose blocks become one sample each, more than their means.
//! Without an end marker all is read, and a file that is cut is an error whatever the region.
//!
//! Arithmetic-coded files are rare: their coefficients are always kept, and then drawn.
//!
//! The decoder's own arithmetic is that of libjpeg's accurate integer DCT, triangle ("fancy")
//! upsampling and 16-bit fixed-point colour conversion, so that results are equal to what
//! libjpeg-turbo, and with it Pillow, OpenCV and torchvision, give.
//!
//! The header is read by one parser, whichever decoder of JPEG was built.

#[cfg(feature = "jpeg")]
mod arithmetic;
#[cfg(feature = "jpeg")]
mod bits;
#[cfg(feature = "jpeg")]
mod color;
#[cfg(feature = "jpeg")]
mod decoder;
#[cfg_attr(
    not(all(feature = "jpeg", feature = "turbojpeg", feature = "zune-jpeg")),
    allow(dead_code, reason = "no decoder but these needs all of it")
)]
mod header;
#[cfg(feature = "jpeg")]
mod huffman;
#[cfg(feature = "jpeg")]
mod idct;
#[cfg(feature = "jpeg")]
mod inspect;
#[cfg(feature = "jpeg")]
mod rgb;
#[cfg(feature = "jpeg")]
mod scan;
#[cfg(feature = "jpeg")]
mod stored;
#[cfg(feature = "jpeg")]
mod surface;
#[cfg(feature = "jpeg")]
mod tables;

use spdl_core::{Error, ErrorKind};

#[cfg(feature = "jpeg")]
pub use self::inspect::{JpegColor, JpegComponent, JpegHeader, JpegProcess};

#[cfg(feature = "jpeg")]
pub(super) use self::decoder::JpegCodec;
#[cfg(all(feature = "jpeg", feature = "tiff"))]
pub(super) use self::decoder::decoder_of_tiff_parts;
#[cfg(any(feature = "turbojpeg", feature = "zune-jpeg"))]
pub(super) use self::header::Header;
#[cfg(feature = "turbojpeg")]
pub(super) use self::header::max_block_visits;

fn corrupt(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}

fn truncated(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Truncated, message).with_offset(offset as u64)
}

fn unsupported(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Unsupported, message).with_offset(offset as u64)
}
