//! Fetchers for each kind of storage, and the registry that opens them by address.
//!
//! | file or folder | what it holds |
//! |---|---|
//! | `address` | [`Address`]: a path or a URL, split into its parts |
//! | `options`, `secret` | [`SourceOptions`]: endpoint, credentials, headers, timeouts; [`Secret`] |
//! | `memory` | [`MemoryFetcher`]: objects in memory |
//! | `local` | `LocalFetcher`: files of this machine (feature `local`) |
//! | `network` | HTTP client, runtime thread and error mapping that network stores share |
//! | `http` | `HttpFetcher`: web servers (feature `http`) |
//! | `hugging_face` | `hf:` addresses, whose files a web server holds |
//! | `object_store` | `ObjectStoreFetcher`: S3, Google Cloud Storage, Azure |
//! | `registry` | [`StoreRegistry`]: opens the fetcher for an [`Address`], wrapped in its layers |
//!
//! Imports: `fetch`, `files`, `layers`.

mod address;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod hugging_face;
#[cfg(feature = "local")]
mod local;
mod memory;
#[cfg(feature = "http")]
mod network;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
mod object_store;
mod options;
mod registry;
mod secret;

pub use self::address::Address;
#[cfg(feature = "testing")]
pub(crate) use self::address::percent_decoded;
#[cfg(feature = "http")]
pub use self::http::HttpFetcher;
#[cfg(feature = "local")]
pub use self::local::LocalFetcher;
pub use self::memory::MemoryFetcher;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub use self::object_store::ObjectStoreFetcher;
pub use self::options::SourceOptions;
pub use self::registry::{Location, StoreFactory, StoreRegistry};
pub use self::secret::Secret;
