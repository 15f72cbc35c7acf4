//! JPEGs decoded by the device, with nvJPEG.

mod decoder;
mod header;
mod library;
mod paths;

pub use decoder::{DecodedJpeg, DecodedJpegs, NvJpeg};
pub use header::{JpegCoding, JpegColor, JpegHeader, Subsampling};
pub use library::NvJpegError;
pub use paths::JpegPath;
