//! Tests of archives: results equal those of other programs, all readers agree, damage is an error.
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]
#![expect(clippy::print_stdout, reason = "reports skipped tests and the number of comparisons")]

mod arrays;
#[cfg(all(feature = "gzip", feature = "zstd"))]
mod compressed;
mod corpus;
mod tar_files;
mod tar_index;
mod tar_members;
#[cfg(feature = "zip")]
mod zip_files;
