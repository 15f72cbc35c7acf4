//! Data sets of samples with several fields, as other programs write them.
//!
//! | what | type | how many there are is known by |
//! |---|---|---|
//! | tar shards, as of the Python library `webdataset` | [`WebDataset`] | an index beside each, or one walk over its headers |
//! | lists of files: lines, CSV, lines of JSON | [`FileList`] | the list |
//!
//! Each is a [`Dataset`](spdl_core::Dataset) of [`StoredRecord`](crate::StoredRecord)s: opening one
//! finds out where its samples are, and [`FetchRecord`](crate::FetchRecord) or
//! [`FetchLabeled`](crate::FetchLabeled) reads them.

mod braces;
mod file_list;
mod webdataset;

pub use braces::expand_braces;
pub use file_list::{FileList, FileListOptions, ListFormat};
pub use webdataset::{WebDataset, WebDatasetOptions};
