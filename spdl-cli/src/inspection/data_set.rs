//! A data set as `spdl ls`, `cat`, `verify` and `stat` read it: tar archives, or samples of any other kind.

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

/// What is looked at.
#[derive(Debug)]
pub(crate) enum DataSet {
    Archives {
        archives: Vec<Archive>,
        /// Others beside them that the manifest does not name, where they were looked for.
        unlisted: Vec<Archive>,
        manifest: Option<Box<Manifest>>,
    },
    Samples(Box<Samples>),
}

impl DataSet {
    pub(super) fn of_archives(archives: Vec<Archive>) -> Self {
        DataSet::Archives { archives, unlisted: Vec::new(), manifest: None }
    }

    /// A set that was packed, by its manifest.
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

    /// Looks for what a manifest says of each archive: of a folder that was packed, whether there are
    /// archives that it does not name; of others, whether a manifest beside them does.
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

    /// Archives of which it is known from the beginning that their ends cannot be read.
    pub(crate) fn truncated_shards(&self) -> u64 {
        match self {
            DataSet::Archives { .. } => 0,
            DataSet::Samples(samples) => samples.opened.set.cut_shards,
        }
    }

    /// The name of an archive; those that are not listed are counted behind the others.
    pub(crate) fn archive_name(&self, number: usize) -> Option<&str> {
        let DataSet::Archives { archives, unlisted, .. } = self else { return None };
        archives.iter().chain(unlisted).nth(number).map(|archive| &*archive.name)
    }
}

/// The manifest beside an archive, if it is one.
fn manifest_of_folder(archive: &Archive) -> Result<Option<Manifest>, Failure> {
    match archive.location.manifest() {
        Ok(manifest) => Ok(Some(manifest)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind().is_transient() => {
            Err(Failure::of("cannot open", &error, &archive.location.shown()))
        }
        Err(error) => {
            // Others call files so, too.
            let shown = archive.location.shown().with_file_name(MANIFEST);
            let told = format!("{} is not compared: {}", shown.display(), error.reason());
            stderr::note(&format!("spdl: warning: {}", printable(&told)));
            Ok(None)
        }
    }
}
