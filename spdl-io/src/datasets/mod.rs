//! Data sets in the formats of other programs.
//!
//! | format | type | opening reads |
//! |---|---|---|
//! | images, one folder per class | [`ImageFolder`] | the folders |
//! | tar shards of the Python library `webdataset` | [`WebDataset`] | an index next to each shard, or its headers |
//! | lists of files: lines, CSV, JSON Lines | [`FileList`] | the list |
//! | TFRecord files of `tf.train.Example` | [`TfRecordDataset`] | an index file or the record lengths; the first record |
//! | MDS shards of MosaicML Streaming | [`MdsDataset`] | `index.json` |
//! | chunks of Lightning's LitData | [`LitDataset`] | `index.json` |
//! | RecordIO files of MXNet | [`RecordIoDataset`] | an index file or the record headers |
//! | LMDB files with one value per file | [`LmdbDataset`] | the tree of keys |
//! | Parquet files, such as those of Hugging Face (feature `parquet`) | `ParquetDataset` | the footer of each file |
//! | Arrow tables in memory (feature `arrow`) | `ArrowDataset` | nothing |
//!
//! - [`OpenedDataset`] opens any of them by path or address, except Arrow tables: see
//!   [`of_samples`](OpenedDataset::of_samples).
//! - All but [`ImageFolder`] are a [`Dataset`](spdl_core::Dataset) of [`StoredRecord`](crate::StoredRecord)s.
//!   Opening finds the location of each sample. The stages [`FetchRecord`](crate::FetchRecord) and
//!   [`FetchLabeled`](crate::FetchLabeled) read the samples.
//! - Pass `shard_lens` to a [`ShardWindow`](spdl_core::source::sampler::ShardWindow). A shuffled
//!   epoch then reads from at most
//!   [`open_shards`](spdl_core::source::sampler::ShardWindow::open_shards) shards or row groups at
//!   a time.
//! - No code from files is executed: reading a pickle fails with `Unsupported`.
//!
//! | file or folder | what it holds |
//! |---|---|
//! | `opening/` | [`OpenedDataset`]: the kind of a data set, its classes and labels, missing files |
//! | `sharded` | the steps of opening that all data sets of shards share |
//! | `patterns`, `braces` | file name patterns, brace expansion |
//! | `common` | keys, content hashes, size checks |
//! | `webdataset/`, `tfrecord/`, `mds/`, `litdata`, `recordio`, `lmdb/`, `parquet/`, `arrow/`, `file_list/`, `image_folder` | the data sets |
//!
//! Imports: `fetch`, `files`, `layers`, `stores`, `archive`, `records`, `shards`.

#[cfg(feature = "arrow")]
mod arrow;
mod braces;
mod common;
mod file_list;
mod image_folder;
mod litdata;
mod lmdb;
mod mds;
mod opening;
#[cfg(feature = "parquet")]
mod parquet;
mod patterns;
mod recordio;
mod sharded;
mod tfrecord;
mod webdataset;

#[cfg(feature = "arrow")]
pub use arrow::ArrowDataset;
pub use braces::expand_braces;
pub use file_list::{FileList, FileListOptions, ListFormat};
pub use image_folder::ImageFolder;
pub use litdata::LitDataset;
pub use lmdb::{LmdbDataset, LmdbOptions};
pub use mds::{MdsDataset, MdsOptions};
pub use opening::{DatasetKind, OpenOptions, OpenedDataset};
#[cfg(feature = "parquet")]
pub use parquet::{ParquetDataset, ParquetOptions};
pub use patterns::{local_files, stored_files};
pub use recordio::{RecordIoDataset, RecordIoOptions};
pub use tfrecord::{TfRecordDataset, TfRecordOptions, parse_example};
pub use webdataset::{WebDataset, WebDatasetOptions};
