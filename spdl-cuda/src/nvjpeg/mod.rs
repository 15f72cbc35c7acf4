//! JPEGs decoded by the device, with nvJPEG.

mod backends;
mod decoder;
mod errors;
mod header;
mod image;
mod library;
mod paths;
mod timings;

pub use decoder::{DecodedJpeg, DecodedJpegs, NvJpeg};
pub use errors::NvJpegError;
pub use header::{JpegCoding, JpegColor, JpegHeader, Subsampling};
pub(crate) use library::NvJpegLibrary;
pub use paths::JpegPath;
pub(crate) use paths::Ways;
