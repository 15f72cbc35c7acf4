//! The items of a scan: samples, members, defects, and the ends of archives.

use std::mem;

use bytes::Bytes;
use spdl_io::Key;

use super::defect::Defect;
use crate::datasets::extensions::MediaType;

/// An item of a scan.
#[derive(Debug)]
pub(crate) enum ScanItem {
    /// The start of a sample; the sample may be unreadable.
    Sample,
    Member(Member),
    /// A defect of an archive or of its checksum file.
    Defect(Defect),
    End(ArchiveEnd),
}

/// The end of an archive's scan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArchiveEnd {
    pub(crate) archive: usize,
    /// Whether the archive could be opened.
    pub(crate) was_read: bool,
    /// Whether the checksum of the whole archive is wrong.
    pub(crate) wrong_sum: bool,
    /// Whether a manifest lists the size and checksum of the archive.
    pub(crate) by_manifest: bool,
    /// Whether the archive has no checksum file, and no manifest requires a checksum file.
    pub(crate) sums_missing: bool,
    /// Number of members, as far as it is known.
    pub(crate) members: u64,
    /// Number of members that were not read, because the archive is damaged or truncated.
    pub(crate) unseen: u64,
    /// Whether the end of the archive was not reached, and its number of members is unknown.
    pub(crate) end_missing: bool,
}

/// A member of an archive, or a field of a sample, with its data.
#[derive(Debug)]
pub(crate) struct Member {
    /// The index of the archive, counted from 0; 0 for data sets without archives.
    pub(crate) archive: usize,
    /// The name of the field.
    pub(crate) field: String,
    /// The type of the media file, by the name or role of the member.
    pub(crate) media: Option<MediaType>,
    pub(crate) name: Key,
    /// The offset of the data in the archive, in bytes.
    pub(crate) offset: Option<u64>,
    pub(crate) data: Bytes,
    /// The expected checksum.
    pub(crate) sum: Option<u128>,
    /// A defect that was found without reading the data.
    pub(crate) defect: Option<Defect>,
    /// The class of the sample; set on only one member of each sample.
    pub(crate) label: Option<i64>,
}

impl Member {
    /// Moves the data out.
    pub(crate) fn take_data(&mut self) -> Bytes {
        mem::take(&mut self.data)
    }
}
