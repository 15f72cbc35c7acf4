//! From keys to bytes: where a pipeline's data lie, and how they are read.
//!
//! A [`Fetcher`] reads whole objects, or ranges of them, from one kind of storage. [`Fetch`] is the
//! pipeline stage that calls it. An [`ImageFolder`] names the images below a folder, and their
//! classes, as a [`Dataset`](spdl_core::Dataset).
//!
//! ```
//! use std::sync::Arc;
//! use spdl_core::{DatasetSource, PipelineBuilder};
//! use spdl_io::{Fetch, ImageFolder, LocalFetcher};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # std::fs::create_dir(folder.path().join("cat")).unwrap();
//! # std::fs::write(folder.path().join("cat/1.jpg"), b"not really").unwrap();
//! # let path = folder.path();
//! let images = ImageFolder::open(path)?;
//! assert_eq!(images.classes(), ["cat"]);
//!
//! let pipeline = PipelineBuilder::new(DatasetSource::new(images))
//!     .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
//!     .build()?;
//! for sample in pipeline {
//!     let sample = sample?;
//!     println!("class {}: {} bytes", sample.label, sample.value.len());
//! }
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! | you want | see |
//! |---|---|
//! | reads that survive a store's failures | [`Resilient`] |
//! | web servers, S3, Google Cloud Storage, Azure, by address | [`StoreRegistry`] |
//! | objects in memory | [`MemoryFetcher`] |
//! | sizes and versions, bodies piece by piece, several ranges | [`Fetcher`] |
//! | files inside tar and zip archives, and arrays of NumPy | [`archive`] |
//! | samples of several fields: shards as of WebDataset, lists of files | [`datasets`] |
//! | to read such samples | [`FetchRecord`], [`FetchLabeled`] |
//! | a data set written as tar shards | [`shards`] |
//!
//! Storage of your own is one implementation of [`Fetcher`] and one call of
//! `spdl_io::testing::fetcher_contract` (feature `testing`) in a test.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod archive;
mod body;
#[cfg(feature = "cache")]
mod cache;
pub mod datasets;
mod fetch;
mod fetch_record;
mod fetcher;
#[cfg(feature = "http")]
mod http;
mod image_folder;
mod io_threads;
mod key;
mod label_text;
#[cfg(feature = "local")]
mod local;
mod memory;
#[cfg(feature = "http")]
mod network;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
mod object_store;
mod open_files;
mod option_names;
#[cfg(feature = "local")]
mod read_at_once;
#[cfg(feature = "local")]
mod read_buffers;
mod record;
mod resilient;
pub mod shards;
mod stores;
#[cfg(feature = "testing")]
pub mod testing;
mod walk;

pub use body::{Body, ReadRequest};
/// What is read: shared bytes, of the crate `bytes`.
pub use bytes::Bytes;
#[cfg(feature = "cache")]
pub use cache::{Cache, CacheBuilder, CachePolicy, CacheStatistics, CachedFetcher};
pub use fetch::Fetch;
pub use fetch_record::{FetchLabeled, FetchRecord};
pub use fetcher::{Capability, Fetcher, ObjectMeta};
#[cfg(feature = "http")]
pub use http::HttpFetcher;
pub use image_folder::{AUDIO_EXTENSIONS, IMAGE_EXTENSIONS, ImageFolder, VIDEO_EXTENSIONS};
pub use key::Key;
#[cfg(feature = "local")]
pub use local::LocalFetcher;
pub use memory::MemoryFetcher;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub use object_store::ObjectStoreFetcher;
pub use option_names::OptionNames;
pub use record::{
    Encoding, Extent, FieldRequest, FieldValue, PackedRows, Record, StoredField, StoredRecord,
    StoredRow,
};
pub use resilient::{Attempt, Attempts, Resilient, ResilientOptions, ResilientStatistics};
pub use stores::{Address, Location, Secret, SourceOptions, StoreFactory, StoreRegistry};

// What a fetcher of another crate needs, so that it can be written against this one alone.
pub use spdl_core::{BoxStream, Error, ErrorKind, Result, async_trait, block_on};

#[cfg(doctest)]
#[doc = include_str!("../../docs/datasets.md")]
struct ProgramsOfTheGuide;
