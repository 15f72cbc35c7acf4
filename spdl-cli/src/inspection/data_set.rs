//! A data set as tar archives, or as samples of another kind.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use spdl_core::ErrorKind;
use spdl_io::shards::{MANIFEST, Manifest};

use super::archive::Archive;
use super::location::Location;
use super::samples::Samples;
use crate::ui::failure::Failure;
use crate::ui::format::printable;
use crate::ui::stderr;

/// A data set to inspect.
#[derive(Debug)]
pub(crate) enum DataSet {
    Archives {
        archives: Vec<Archive>,
        /// Archives that are in the folder of the data set, but not in its manifest.
        unlisted: Vec<Archive>,
        manifest: Option<Box<Manifest>>,
    },
    Samples(Box<Samples>),
}

impl DataSet {
    pub(super) fn of_archives(archives: Vec<Archive>) -> Self {
        DataSet::Archives { archives, unlisted: Vec::new(), manifest: None }
    }

    /// A packed set, from its manifest.
    pub(super) fn of_manifest(manifest: Manifest, inside: impl Fn(&str) -> Location) -> Self {
        let archives = manifest.shards.iter().map(|record| Archive {
            name: record.name.clone(),
            location: inside(&record.name),
            record: Some(record.clone()),
        });
        DataSet::Archives {
            archives: archives.collect(),
            unlisted: Vec::new(),
            manifest: Some(Box::new(manifest)),
        }
    }

    pub(crate) fn classes(&self) -> &[String] {
        match self {
            DataSet::Archives { manifest: Some(manifest), .. } => manifest.classes(),
            DataSet::Archives { manifest: None, .. } => &[],
            DataSet::Samples(samples) => samples.classes(),
        }
    }

    /// Attaches manifest records to archives, and finds unlisted archives of a packed set.
    ///
    /// For archives that are not from a packed set, reads the manifest in their folder, if there is one.
    pub(crate) fn attach_manifests(&mut self) -> Result<(), Failure> {
        let DataSet::Archives { archives, unlisted, manifest } = self else { return Ok(()) };
        if manifest.is_some() {
            let Some(first) = archives.first() else { return Ok(()) };
            let listed: HashSet<&str> = archives.iter().map(|archive| &*archive.name).collect();
            let found = first.location.archives_in_folder()?.into_iter();
            let found = found.map(|place| Archive {
                name: place.file_name(),
                location: place,
                record: None,
            });
            *unlisted = found.filter(|archive| !listed.contains(&*archive.name)).collect();
            return Ok(());
        }
        let mut found: HashMap<_, Option<Manifest>> = HashMap::new();
        for archive in archives {
            let folder = archive.location.shown().parent().map(Path::to_owned);
            let of_folder = match found.entry(folder) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(manifest_of_folder(archive)?),
            };
            let name = archive.location.file_name();
            let mut records = of_folder.iter().flat_map(|manifest| &manifest.shards);
            archive.record = records.find(|record| record.name == name).cloned();
        }
        Ok(())
    }

    /// The number of archives that were already found truncated when the data set was opened.
    pub(crate) fn truncated_shards(&self) -> u64 {
        match self {
            DataSet::Archives { .. } => 0,
            DataSet::Samples(samples) => samples.opened.set.truncated_shards,
        }
    }

    /// The name of the archive with this index. Unlisted archives have the highest indices.
    pub(crate) fn archive_name(&self, number: usize) -> Option<&str> {
        let DataSet::Archives { archives, unlisted, .. } = self else { return None };
        archives.iter().chain(unlisted).nth(number).map(|archive| &*archive.name)
    }
}

/// The manifest in the folder of an archive, if there is a valid one.
fn manifest_of_folder(archive: &Archive) -> Result<Option<Manifest>, Failure> {
    match archive.location.manifest() {
        Ok(manifest) => Ok(Some(manifest)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind().is_transient() => {
            Err(Failure::of("cannot open", &error, &archive.location.shown()))
        }
        Err(error) => {
            // A file of another program may have this name.
            let shown = archive.location.shown().with_file_name(MANIFEST);
            let warning = format!("ignoring \"{}\": {}", shown.display(), error.reason());
            stderr::note(&format!("spdl: warning: {}", printable(&warning)));
            Ok(None)
        }
    }
}
