//! What a pass over a data set yields: samples, members, damage, and the ends of archives.

use std::mem;

use bytes::Bytes;
use spdl_io::Key;

use super::defect::Defect;

/// What a pass comes upon.
#[derive(Debug)]
pub(crate) enum ScanItem {
    /// A sample begins, whether it can be read or not.
    Sample,
    Member(Member),
    /// Something is wrong with an archive, or with what lies beside it.
    Defect(Defect),
    End(ArchiveEnd),
}

/// An archive is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArchiveEnd {
    pub(crate) archive: usize,
    /// Whether it could be opened.
    pub(crate) was_read: bool,
    /// Whether its own checksum was wrong.
    pub(crate) wrong_sum: bool,
    /// Whether a manifest tells its size and its checksum.
    pub(crate) by_manifest: bool,
    /// Whether there are no checksums to compare, and nobody says that there should be some.
    pub(crate) sums_missing: bool,
    /// How many members it has, as far as anybody knows,
    pub(crate) members: u64,
    /// and how many of them were not come upon, as the archive ends before them, or is damaged.
    pub(crate) unseen: u64,
    /// Whether its end was not come upon, and nobody knows how many members there were.
    pub(crate) end_missing: bool,
}

/// A file, with its bytes.
#[derive(Debug)]
pub(crate) struct Member {
    /// The number of its archive; 0 for files of a folder.
    pub(crate) archive: usize,
    /// What it is in its sample.
    pub(crate) field: String,
    /// Whether it should be an image.
    pub(crate) is_image: bool,
    pub(crate) name: Key,
    /// Where in the archive its data lie.
    pub(crate) offset: Option<u64>,
    pub(crate) data: Bytes,
    /// The checksum that it should have.
    pub(crate) sum: Option<u128>,
    /// What is wrong with it, whatever its bytes are.
    pub(crate) defect: Option<Defect>,
    /// The number of its sample's class, by one of its members.
    pub(crate) label: Option<i64>,
}

impl Member {
    /// Takes the bytes out.
    pub(crate) fn take_data(&mut self) -> Bytes {
        mem::take(&mut self.data)
    }
}
