//! [`SelectParts`]: which parts of a file a sample needs.

use std::fmt;
use std::ops::Range;

use spdl_core::Result;
use spdl_core::source::StageRng;

use crate::records::PartialFile;

/// Selects the parts of a file that a sample needs, such as the packets of a clip.
///
/// [`FetchFields::select_parts`](super::FetchFields::select_parts) reads the parts. A selector does no I/O: if
/// it needs further headers or tables, it returns their position, and is called again when they are in
/// memory. A later stage decodes the sample from the same [`PartialFile`]; if that stage needs other bytes
/// than the selected ones, they are read then, so that a selector may be wrong about them.
pub trait SelectParts: fmt::Debug + Send + Sync + 'static {
    /// The number of bytes at the start of a file to read before the first call of
    /// [`select`](Self::select). Default: 64 KiB.
    fn first_bytes(&self) -> u64 {
        64 << 10
    }

    /// Whether files with this extension (lower case, without the dot, empty if there is none) may be
    /// read in parts. Others are read whole, without a request for their start. Default: yes.
    fn may_select(&self, extension: &str) -> bool {
        let _ = extension;
        true
    }

    /// Whether the selector uses the [part indexes](PartialFile::part_index) of files. With a part index, no bytes are read before
    /// the first call of [`select`](Self::select). Default: no.
    fn uses_part_index(&self) -> bool {
        false
    }

    /// Compares the bytes that are in memory with the part index, after the selected ones have been read.
    /// If they differ, the file is read whole, and compared with its checksum. Default: no comparison.
    ///
    /// # Errors
    /// `Corrupt` if they differ.
    fn check(&self, file: &PartialFile) -> Result<()> {
        let _ = file;
        Ok(())
    }

    /// Selects what to read next. `rng` has the random numbers of the stage that decodes the sample.
    ///
    /// # Errors
    /// Any error ends the selection. The stage that decodes the sample finds and reports the fault.
    fn select(&self, file: &PartialFile, rng: &StageRng) -> Result<PartSelection>;
}

/// What to read next of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartSelection {
    /// These headers or tables, before [`SelectParts::select`] is called again. More bytes after them may
    /// be read.
    Index(Vec<Range<u64>>),
    /// These bytes, with which the sample is complete. Those that are in memory are not read again.
    Sample(Vec<Range<u64>>),
    /// The whole file.
    Whole,
}
