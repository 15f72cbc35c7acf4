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
//! Files inside archives are read by [`archive`]: tar with an index, zip, and arrays of NumPy.
//!
//! Storage of your own is one implementation of [`Fetcher`] and one call of
//! `spdl_io::testing::fetcher_contract` (feature `testing`) in a test.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod archive;
#[cfg(feature = "cache")]
mod cache;
mod fetch;
mod fetcher;
mod image_folder;
#[cfg(feature = "local")]
mod io_threads;
mod key;
#[cfg(feature = "local")]
mod local;
#[cfg(feature = "testing")]
pub mod testing;
mod walk;

/// What is read: shared bytes, of the crate `bytes`.
pub use bytes::Bytes;
#[cfg(feature = "cache")]
pub use cache::{Cache, CacheBuilder, CachePolicy, CacheStatistics, CachedFetcher};
pub use fetch::Fetch;
pub use fetcher::{Capability, Fetcher, ObjectMeta};
pub use image_folder::{IMAGE_EXTENSIONS, ImageFolder};
pub use key::Key;
#[cfg(feature = "local")]
pub use local::LocalFetcher;
