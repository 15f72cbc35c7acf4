//! Data sets of samples with several fields, as other programs write them.
//!
//! | what | type | how many there are is known by |
//! |---|---|---|
//! | tar shards, as of the Python library `webdataset` | [`WebDataset`] | an index beside each, or one walk over its headers |
//! | lists of files: lines, CSV, lines of JSON | [`FileList`] | the list |
//! | TFRecord files of `tf.train.Example` | [`TfRecordDataset`] | one walk over the lengths, or an index file |
//! | MDS shards of MosaicML Streaming | [`MdsDataset`] | `index.json` |
//! | Parquet files, as Hugging Face writes them (feature `parquet`) | `ParquetDataset` | the end of each file |
//!
//! Each is a [`Dataset`](spdl_core::Dataset) of [`StoredRecord`](crate::StoredRecord)s: opening one
//! finds out where its samples are, and [`FetchRecord`](crate::FetchRecord) or
//! [`FetchLabeled`](crate::FetchLabeled) reads them later, as a stage. How many samples each file has
//! goes to a [`ShardWindow`](spdl_core::source::sampler::ShardWindow), so that a shuffled run reads a few
//! files, or row groups, at a time.
//!
//! [`OpenedDataset`] opens whichever of them lies at an address, and folders of images too.
//!
//! Nothing here runs code that a file brings along: pickles are `Unsupported`.

mod braces;
mod common;
mod file_list;
mod image_folder;
mod mds;
mod opening;
#[cfg(feature = "parquet")]
mod parquet;
mod part_cache;
mod patterns;
mod sharded;
mod tfrecord;
mod webdataset;

pub use braces::expand_braces;
pub use file_list::{FileList, FileListOptions, ListFormat};
pub use image_folder::ImageFolder;
pub use mds::{MdsDataset, MdsOptions};
pub use opening::{DatasetKind, OpenOptions, OpenedDataset};
#[cfg(feature = "parquet")]
pub use parquet::{ParquetDataset, ParquetOptions};
pub use patterns::{local_files, stored_files};
pub use tfrecord::{TfRecordDataset, TfRecordOptions, parse_example};
pub use webdataset::{WebDataset, WebDatasetOptions};
