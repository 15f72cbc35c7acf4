//! JPEG decoding on the device, with nvJPEG.
//!
//! | file | content |
//! |---|---|
//! | `decoder.rs` | [`NvJpeg`]: batches of JPEGs to pixels in device memory |
//! | `decoded.rs` | [`DecodedJpegs`]: the outcome of each image of a batch |
//! | `header.rs` | [`parse_header`], and which backends decode an image |
//! | `backends.rs` | the hardware and the hybrid backend, and their states |
//! | `image.rs` | the backend and the output address of each image of a batch |
//! | `library.rs` | `libnvjpeg`, opened at run time |
//! | `error.rs` | [`NvJpegError`]: `nvjpegStatus_t` codes |
//!
//! Imports `runtime`, `driver` and `libraries`; headers are parsed by `spdl-media`.

mod backends;
mod decoded;
mod decoder;
mod error;
mod header;
mod image;
mod library;

pub use self::decoded::{DecodedJpeg, DecodedJpegs};
pub use self::decoder::NvJpeg;
pub use self::error::NvJpegError;
pub(crate) use self::header::{BackendSet, is_grey_or_ycbcr, rgb_bytes};
pub use self::header::{JpegBackend, parse_header};
pub(crate) use self::library::NvJpegLibrary;
