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
pub mod datasets;
pub mod fetch;
mod files;
pub mod layers;
pub mod records;
pub mod shards;
pub mod stores;
#[cfg(feature = "testing")]
pub mod testing;

/// Reference-counted bytes, of the crate `bytes`.
pub use bytes::Bytes;
pub use datasets::ImageFolder;
pub use fetch::{Body, Capability, Fetch, Fetcher, Key, ObjectMeta, ReadRequest};
#[cfg(feature = "cache")]
pub use layers::{Cache, CachedFetcher};
pub use layers::{Resilient, ResilientOptions};
pub use records::{FetchLabeled, FetchRecord, FieldValue, Record, StoredRecord};
#[cfg(feature = "http")]
pub use stores::HttpFetcher;
#[cfg(feature = "local")]
pub use stores::LocalFetcher;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub use stores::ObjectStoreFetcher;
pub use stores::{MemoryFetcher, SourceOptions, StoreRegistry};

// What a fetcher of another crate needs, so that it can be written against this one alone.
pub use spdl_core::{BoxStream, Error, ErrorKind, Result, async_trait, block_on};

#[cfg(doctest)]
#[doc = include_str!("../../docs/datasets.md")]
struct ProgramsOfTheGuide;
