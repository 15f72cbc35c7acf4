//! One tar archive, with what its manifest records of it.

use std::fs;
use std::path::{Path, PathBuf};

use spdl_io::archive::{ArchiveStamp, TarIndex, TarOptions};
use spdl_io::shards::ShardRecord;

use super::location::Location;
use crate::ui::failure::Failure;

/// A tar archive.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    /// As it is shown.
    pub(crate) name: String,
    pub(crate) location: Location,
    /// What a manifest says of it.
    pub(crate) record: Option<ShardRecord>,
}

impl Archive {
    /// Its size, where that is known before it is read.
    pub(crate) fn size(&self) -> Option<u64> {
        match (&self.record, &self.location) {
            (Some(record), _) => Some(record.bytes),
            (None, Location::Local(path)) => fs::metadata(path).map(|found| found.len()).ok(),
            (None, Location::Remote(_)) => None,
        }
    }

    /// Where its members lie: by the index beside it, or by a walk over it. Nothing is written.
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

/// Archives of which no manifest says anything. Where they lie in several folders, they are named by
/// their paths.
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
