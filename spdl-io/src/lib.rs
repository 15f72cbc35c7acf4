//! Stores, archives and data sets for SPDL: from the key of a sample to its bytes.
//!
//! ```text
//! data set ──► record ──► fetcher layers ──► store
//! positions    keys,      retries, cache     files, HTTP, S3,
//!              ranges                        GCS, Azure, memory
//! ```
//!
//! - A [`Fetcher`] reads objects, or byte ranges of them, from one store. Layers such as [`Resilient`] wrap
//!   a fetcher and add retries or a cache.
//! - A data set of [`datasets`] maps a position to the objects or byte ranges of a sample.
//! - The stages [`Fetch`], [`FetchRecord`] and [`FetchLabeled`] read the bytes in a pipeline of `spdl-core`.
//!
//! This crate decodes no images; `spdl-media` does. Terms are defined in the [glossary].
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
//! let images = ImageFolder::open(path)?; // one folder per class
//! assert_eq!(images.classes(), ["cat"]);
//!
//! let pipeline = PipelineBuilder::new(DatasetSource::new(images).shuffled(7))
//!     .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
//!     .build()?;
//! for sample in pipeline {
//!     let sample = sample?;
//!     println!("class {}: {} bytes", sample.label, sample.value.len());
//! }
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! # Tasks
//!
//! | task | API |
//! |---|---|
//! | open a data set of any kind by its path or address | [`OpenedDataset`](datasets::OpenedDataset) |
//! | open a folder of images with one folder per class | [`ImageFolder`] |
//! | open tar shards, zip archives, TFRecord, MDS, LitData, RecordIO, LMDB or Parquet files, or a list of files | [`datasets`] |
//! | read whole files in a pipeline | [`Fetch`] |
//! | read samples with several fields in a pipeline | [`FetchRecord`]; [`FetchLabeled`] for one field and a label |
//! | open a store by its address: a path, `https:`, `s3:`, `gs:`, `az:` | [`StoreRegistry`] |
//! | read local files, or objects in memory | `LocalFetcher` (feature `local`), [`MemoryFetcher`] |
//! | read an object by position, as a file | [`BlockReader`](fetch::BlockReader) |
//! | read the size and version of an object, its bytes as a stream, or ranges | [`Fetcher`] |
//! | add retries, hedged requests and stall timeouts | [`Resilient`] |
//! | cache samples or objects in memory or on disk | `FetchLabeled::with_cache`, `CachedFetcher` (feature `cache`) |
//! | read members of tar and zip archives, and NumPy arrays | [`archive`] |
//! | write a data set as tar shards | [`shards`] |
//! | implement a store | [`Fetcher`], tested by `testing::fetcher_contract` (feature `testing`) |
//!
//! [glossary]: https://github.com/spdl-rs/spdl/blob/main/docs/glossary.md
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

/// Reference-counted bytes, from the crate `bytes`.
pub use bytes::Bytes;
pub use datasets::ImageFolder;
pub use fetch::{Body, Capability, Fetch, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest};
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

// Re-exported, so that an implementation of `Fetcher` needs only this crate.
pub use spdl_core::{BoxStream, Error, ErrorKind, Result, async_trait, block_on};

#[cfg(doctest)]
#[doc = include_str!("../../docs/datasets.md")]
struct GuideExamples;
