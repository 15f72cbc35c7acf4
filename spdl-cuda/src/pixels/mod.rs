//! Decoded images in device memory: pixel formats, planes and colour matrices.
//!
//! | file | content |
//! |---|---|
//! | `image.rs` | [`SourceImage`]: format, size, planes and chroma siting of an image |
//! | `color.rs` | [`ColorMatrix`]: from Y'CbCr to RGB |
//!
//! Decoders in `jpeg` and `video` write such images, and `kernels` read them. Imports no other
//! module of this crate.

mod color;
mod image;

use spdl_core::{Error, ErrorKind};

pub use self::color::{ColorMatrix, ColorRange, ColorStandard};
pub(crate) use self::image::MAX_SIDE;
pub use self::image::{ChromaSiting, DevicePlane, PixelFormat, SourceImage};

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
