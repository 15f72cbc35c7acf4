//! What `spdl_rs.io` reads from bytes in memory: archives, arrays of NumPy, and WAV.
//!
//! Rust reads headers, which it is given piece by piece; Python makes views of the rest. So nothing
//! is copied, whatever the bytes are a part of, and nothing in Rust relies on bytes that others may
//! change.

pub(crate) mod buffer;
mod npy;
mod tar;
mod wav;
mod zip;

pub(crate) use npy::NpyHeader;
pub(crate) use tar::TarFiles;
pub(crate) use wav::WavHeader;
pub(crate) use zip::ZipDirectory;
