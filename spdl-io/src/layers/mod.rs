//! Fetchers that wrap another fetcher.
//!
//! | folder | what it holds |
//! |---|---|
//! | `resilient` | [`Resilient`]: retries, hedged requests, stall timeouts, range coalescing |
//! | `pinned` | `Pinned`: one version of each object |
//! | `cache` | [`CachedFetcher`]: a cache in memory and on disk (feature `cache`) |
//!
//! Imports: `fetch`, `files`.

#[cfg(feature = "cache")]
mod cache;
mod pinned;
mod resilient;

#[cfg(feature = "cache")]
pub(crate) use self::cache::local_version;
#[cfg(feature = "cache")]
pub use self::cache::{Cache, CacheBuilder, CachePolicy, CacheStatistics, CachedFetcher};
pub(crate) use self::pinned::{Pinned, PinnedVersions};
pub use self::resilient::{Attempt, Attempts, Resilient, ResilientOptions, ResilientStatistics};
