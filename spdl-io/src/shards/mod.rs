//! Writing data sets as tar shards: [`ShardWriter`], and the files it writes.
//!
//! ```text
//! photos-000000.tar        samples: adjacent members with the same key, `KEY.FIELD`
//! photos-000000.tar.idx    offsets of the members; readers rebuild it if it is missing
//! photos-000000.tar.sums   a checksum for each member
//! photos-000001.tar …
//! manifest.json            written last: the shards, their sizes, and the plan
//! ```
//!
//! | file | what |
//! |---|---|
//! | `plan` | [`ShardPlan`]: the settings that determine the bytes |
//! | `writer` | [`ShardWriter`] |
//! | `shard_file`, `header` | one shard while it is written, and its tar headers |
//! | `index_parts` | [`IndexParts`]: where the parts of members are |
//! | `manifest`, `journal` | [`Manifest`], and the journal of an incomplete data set |
//! | `sums` | [`Sums`]: checksums of members |
//! | `files` | atomic file writes |
//!
//! The archives have the layout of [WebDataset](https://github.com/webdataset/webdataset), which
//! any tar program can read. `docs/pack.md` documents the formats.
//!
//! The output is reproducible: the same samples and options give the same bytes. Times and owners
//! are 0, and the shard boundaries depend only on the plan and the sizes of the samples. Only the
//! index files differ between runs, as they contain the modification time of the archive.
//!
//! ```
//! use spdl_io::shards::{Opened, ShardPlan, ShardWriter};
//! # let place = tempfile::tempdir()?;
//! # let folder = place.path().join("shards");
//! let plan = ShardPlan::new("words").shard_samples(2).recipe("language", "English");
//! let Opened::Writing(mut writer) = ShardWriter::open(&folder, &plan)? else {
//!     return Ok(()); // The data set is already complete.
//! };
//! // After an interruption, the writer continues after the last finished shard.
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
mod index_parts;
mod journal;
mod manifest;
mod plan;
mod shard_file;
pub(crate) mod sums;
mod writer;

pub use index_parts::IndexParts;
pub use journal::JOURNAL;
pub use manifest::{FieldSummary, MANIFEST, Manifest, ShardRecord, Skipped};
pub use plan::ShardPlan;
pub use sums::{Sum, Sums};
pub use writer::{Opened, ShardWriter};
