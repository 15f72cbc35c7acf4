//! Fetchers that wrap another fetcher.
//!
//! | folder | what it holds |
//! |---|---|
//! | `resilient` | [`Resilient`]: retries, hedged requests, stall timeouts, range coalescing |
//! | `cache` | [`CachedFetcher`]: a cache in memory and on disk (feature `cache`) |
//!
//! Imports: `fetch`, `files`.

#[cfg(feature = "cache")]
mod cache;
mod resilient;

#[cfg(feature = "cache")]
pub(crate) use self::cache::local_version;
#[cfg(feature = "cache")]
pub use self::cache::{Cache, CacheBuilder, CachePolicy, CacheStatistics, CachedFetcher};
pub use self::resilient::{Attempt, Attempts, Resilient, ResilientOptions, ResilientStatistics};
