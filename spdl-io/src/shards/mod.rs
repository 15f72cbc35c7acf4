//! Data sets as tar shards: a [`ShardWriter`], and what it writes beside them.
//!
//! ```text
//! photos-000000.tar        samples: neighbouring members that share a key, `KEY.FIELD`
//! photos-000000.tar.idx    where the members lie; of use to readers, made anew where missing
//! photos-000000.tar.sums   a checksum for each member
//! photos-000001.tar …
//! manifest.json            written last: what there is, and how it was made
//! ```
//!
//! The layout of the archives is that of [WebDataset](https://github.com/webdataset/webdataset): any
//! program that reads tar reads them. `docs/pack.md` tells the formats.
//!
//! The same samples and options give the same bytes: times are 0, owners are 0, and a shard ends where
//! its size says, never where time or threads do. Only the indexes differ from run to run, as they
//! hold the time at which the archive was written.
//!
//! ```
//! use spdl_io::shards::{Opened, ShardPlan, ShardWriter};
//! # let place = tempfile::tempdir()?;
//! # let folder = place.path().join("shards");
//! let plan = ShardPlan::new("words").shard_samples(2).recipe("language", "English");
//! let Opened::Writing(mut writer) = ShardWriter::open(&folder, &plan)? else {
//!     return Ok(()); // All was there already.
//! };
//! // After a kill, what is there is not asked for again.
//! let words = ["one", "two", "three"];
//! for position in writer.position()..3 {
//!     let word = words[position as usize];
//!     writer.add(position, word.as_bytes(), &[("txt", word.as_bytes())])?;
//! }
//! let manifest = writer.finish(3)?;
//! assert_eq!((manifest.samples, manifest.shards.len()), (3, 2));
//! # Ok::<(), spdl_core::Error>(())
//! ```

mod files;
mod header;
mod journal;
mod manifest;
mod plan;
mod shard_file;
mod sums;
mod writer;

pub use journal::JOURNAL;
pub use manifest::{FieldSummary, MANIFEST, Manifest, ShardRecord, Skipped};
pub use plan::ShardPlan;
pub use sums::{Sum, Sums};
pub use writer::{Opened, ShardWriter};
