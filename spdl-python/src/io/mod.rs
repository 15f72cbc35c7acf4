//! Parsing of files in memory for `spdl_rs.io`: tar, zip, npy and WAV.
//!
//! Rust reads the headers, and Python makes views of the data. Data is copied only if it is
//! compressed, read from a file object, or consists of 24-bit WAV samples. Rust holds no reference
//! to bytes that Python may change.

pub(crate) mod buffer;
mod npy;
mod tar;
mod wav;
mod zip;

pub(crate) use npy::NpyHeader;
pub(crate) use tar::TarFiles;
pub(crate) use wav::WavHeader;
pub(crate) use zip::ZipDirectory;
