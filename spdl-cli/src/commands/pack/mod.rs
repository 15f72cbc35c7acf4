//! `spdl pack`: writes a data set of images as tar shards.
//!
//! ```text
//! samples ──► read (fields as files) ──► encode (the image, if requested) ──► shards, in order
//! ```
//!
//! | file | content |
//! |---|---|
//! | `arguments` | the options |
//! | `run` | builds the pipeline and writes the shards |
//! | `checks` | rejects invalid options and paths before any file is written |
//! | `left_out` | warnings about files that are not packed |
//! | `source` | the samples, with their keys in the shards |
//! | `checksums` | checksums of the archives that are repacked |
//! | `recode` | resizes and encodes images |
//! | `members` | the files of one sample in the shard |
//! | `mismatch` | the error for a folder that holds another set |

pub(super) mod arguments;
mod checks;
mod checksums;
mod left_out;
mod members;
mod mismatch;
mod recode;
pub(super) mod run;
mod source;
