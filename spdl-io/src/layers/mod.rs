//! Fetchers that wrap another fetcher.
//!
//! | file | what it holds |
//! |---|---|
//! | `resilient` | [`Resilient`]: retries, hedged requests, stall timeouts, range coalescing |
//! | `pinned` | `Pinned`: one version of each object |
//! | `parts` | [`PartFetcher`]: large parts of objects, which many reads share |
//! | `part_cache` | the cache of these parts, of decoded columns and of decompressed shards |
//! | `cache` | [`CachedFetcher`]: a cache in memory and on disk (feature `cache`) |
//!
//! Imports: `fetch`, `files`.

#[cfg(feature = "cache")]
mod cache;
mod part_cache;
mod parts;
mod pinned;
mod resilient;

#[cfg(feature = "cache")]
pub(crate) use self::cache::local_version;
#[cfg(feature = "cache")]
pub use self::cache::{Cache, CacheBuilder, CachePolicy, CacheStatistics, CachedFetcher};
pub(crate) use self::part_cache::{CachedBytes, PartCache, default_part_cache_bytes};
pub use self::parts::PartFetcher;
pub(crate) use self::parts::Unpack;
pub(crate) use self::pinned::{Pinned, PinnedVersions};
pub use self::resilient::{Attempt, Attempts, Resilient, ResilientOptions, ResilientStatistics};
