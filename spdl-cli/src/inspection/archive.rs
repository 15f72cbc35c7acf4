//! A tar archive with its manifest record.

use std::fs;
use std::path::{Path, PathBuf};

use spdl_io::archive::{ArchiveStamp, TarIndex, TarOptions};
use spdl_io::shards::ShardRecord;

use super::location::Location;
use crate::ui::failure::Failure;

/// A tar archive.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    /// The name in messages.
    pub(crate) name: String,
    pub(crate) location: Location,
    /// The entry in a manifest.
    pub(crate) record: Option<ShardRecord>,
}

impl Archive {
    /// The size in bytes, if it is known before the archive is read.
    pub(crate) fn size(&self) -> Option<u64> {
        match (&self.record, &self.location) {
            (Some(record), _) => Some(record.bytes),
            (None, Location::Local(path)) => fs::metadata(path).map(|found| found.len()).ok(),
            (None, Location::Remote(_)) => None,
        }
    }

    /// The index of the members: loaded from the index file, or built by reading the headers.
    ///
    /// This method writes no file.
    pub(crate) fn index(&self) -> Result<TarIndex, Failure> {
        let options = TarOptions::default();
        let index = match &self.location {
            Location::Local(path) => ArchiveStamp::of_file(path).and_then(|stamp| {
                TarIndex::load(path, &stamp, options).or_else(|_| TarIndex::build(path, options))
            }),
            Location::Remote(place) => place.index(options),
        };
        index.map_err(|error| Failure::of("cannot read an archive", &error, &self.location.shown()))
    }
}

/// Makes archives without manifest records. If they are in several folders, their names are their
/// paths.
pub(super) fn unlisted_archives(paths: Vec<PathBuf>) -> Vec<Archive> {
    let folder = paths.first().and_then(|path| path.parent());
    let in_one = paths.iter().all(|path| path.parent() == folder);
    let name = |path: &Path| match path.file_name() {
        Some(name) if in_one => name.to_string_lossy().into_owned(),
        _ => path.to_string_lossy().into_owned(),
    };
    let archive = |path: &PathBuf| Archive {
        name: name(path),
        location: Location::Local(path.clone()),
        record: None,
    };
    paths.iter().map(archive).collect()
}
