//! JPEG decoding on the device, with nvJPEG.
//!
//! | file | content |
//! |---|---|
//! | `decoder.rs` | [`NvJpeg`]: batches of JPEGs to pixels in device memory |
//! | `header.rs` | [`JpegHeader`]: frame header, components and EXIF orientation |
//! | `load_balance.rs` | which backend decodes which image |
//! | `backends.rs` | the hardware and the hybrid backend, and their states |
//! | `image.rs` | the backend and the output address of each image of a batch |
//! | `timings.rs` | throughput of the backends, measured with CUDA events |
//! | `library.rs` | `libnvjpeg`, opened at run time |
//! | `error.rs` | [`NvJpegError`]: `nvjpegStatus_t` codes |
//!
//! Imports `runtime`, `driver` and `libraries`.

mod backends;
mod decoder;
mod error;
mod header;
mod image;
mod library;
mod load_balance;
mod timings;

pub use decoder::{DecodedJpeg, DecodedJpegs, NvJpeg};
pub use error::NvJpegError;
pub use header::{JpegCoding, JpegColor, JpegHeader, Subsampling};
pub(crate) use library::NvJpegLibrary;
pub(crate) use load_balance::BackendSet;
pub use load_balance::JpegBackend;
