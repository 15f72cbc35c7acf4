//! Archives are read as other programs read them, by every way of reading; damage is an error.
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]
#![expect(clippy::print_stdout, reason = "what is skipped, and how much was compared")]

mod arrays;
#[cfg(all(feature = "gzip", feature = "zstd"))]
mod compressed;
mod corpus;
mod tar_files;
mod tar_index;
mod tar_members;
#[cfg(feature = "zip")]
mod zip_files;
