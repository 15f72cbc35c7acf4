//! What was packed, and how it is looked at: `spdl ls`, `cat`, `verify` and `stat`.
//!
//! ```text
//! addresses ──► DataSet (tar archives, each at its Place, or samples of any other kind)
//!                 ├── indexes, or where samples lie ──► ls, cat
//!                 └── members, one pass over all bytes ──► verify, stat
//! ```
//!
//! `ls` and `cat` take archives in a store as samples, so that only their headers are read.

pub(crate) mod arguments;
mod bad;
pub(crate) mod cat;
mod damaged;
pub(crate) mod ls;
mod members;
mod place;
mod rescue;
mod samples;
pub(crate) mod stat;
pub(crate) mod statistics;
mod stored;
pub(crate) mod verify;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use spdl_core::ErrorKind;
use spdl_io::archive::{ArchiveStamp, TarIndex, TarOptions};
use spdl_io::datasets::{DatasetKind, local_files};
use spdl_io::shards::{JOURNAL, MANIFEST, Manifest, ShardRecord};

use self::place::Place;
use self::samples::Samples;
use crate::failure::Failure;
use crate::format::printable;
use crate::opened::{Opened, image_extensions, is_address};
use crate::output;

/// What is said of a set whose journal is there.
const NOT_COMPLETE: &str = "this set is not complete; the same `spdl pack` again goes on with it";

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

/// A tar archive.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    /// As it is shown.
    pub(crate) name: String,
    pub(crate) place: Place,
    /// What a manifest says of it.
    pub(crate) record: Option<ShardRecord>,
}

impl DataSet {
    /// The same as [`open`](DataSet::open), to be read whole: archives in a store are archives, too.
    pub(crate) fn open_whole(paths: &[PathBuf]) -> Result<Self, Failure> {
        match stored::archives(paths)? {
            Some(set) => Ok(set),
            None => DataSet::open(paths),
        }
    }

    fn of_archives(archives: Vec<Archive>) -> Self {
        DataSet::Archives { archives, unlisted: Vec::new(), manifest: None }
    }

    /// A folder that was packed, a folder of tar archives, tar archives, or any other data set.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, Failure> {
        let tars = |paths: Vec<PathBuf>| DataSet::of_archives(of_others(paths));
        if let [folder] = paths
            && folder.is_dir()
        {
            if let Some(set) = packed(folder)? {
                return Ok(set);
            }
            let found = archives_in(folder)?;
            return if found.is_empty() { samples(paths) } else { Ok(tars(found)) };
        }
        if !paths.iter().all(|path| is_archive(path)) {
            return samples(paths);
        }
        let mut archives = Vec::new();
        for path in paths {
            match path.to_str() {
                Some(pattern) if !path.exists() => {
                    let failed = |error| Failure::of("cannot open", &error, path);
                    archives.extend(local_files(pattern).map_err(failed)?);
                }
                _ => archives.push(path.clone()),
            }
        }
        for path in &archives {
            let metadata = fs::metadata(path)
                .map_err(|error| Failure::new("cannot open", path.display(), error))?;
            if !metadata.is_file() {
                let reason = "of several paths, each is a tar archive";
                return Err(Failure::new("cannot open", path.display(), reason));
            }
        }
        Ok(tars(archives))
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
    pub(crate) fn look_for_manifests(&mut self) -> Result<(), Failure> {
        let DataSet::Archives { archives, unlisted, manifest } = self else { return Ok(()) };
        if manifest.is_some() {
            let Some(first) = archives.first() else { return Ok(()) };
            let listed: HashSet<&str> = archives.iter().map(|archive| &*archive.name).collect();
            let found = first.place.archives_beside()?.into_iter();
            let found = found.map(|place| Archive { name: place.file_name(), place, record: None });
            *unlisted = found.filter(|archive| !listed.contains(&*archive.name)).collect();
            return Ok(());
        }
        let mut found: HashMap<_, Option<Manifest>> = HashMap::new();
        for archive in archives {
            let folder = archive.place.shown().parent().map(Path::to_owned);
            let of_folder = match found.entry(folder) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(manifest_beside(archive)?),
            };
            let name = archive.place.file_name();
            let mut records = of_folder.iter().flat_map(|manifest| &manifest.shards);
            archive.record = records.find(|record| record.name == name).cloned();
        }
        Ok(())
    }

    /// Archives of which it is known from the beginning that their ends cannot be read.
    pub(crate) fn cut_shards(&self) -> u64 {
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
fn manifest_beside(archive: &Archive) -> Result<Option<Manifest>, Failure> {
    match archive.place.manifest() {
        Ok(manifest) => Ok(Some(manifest)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind().is_transient() => {
            Err(Failure::of("cannot open", &error, &archive.place.shown()))
        }
        Err(error) => {
            // Others call files so, too.
            let shown = archive.place.shown().with_file_name(MANIFEST);
            let told = format!("{} is not compared: {}", shown.display(), error.reason());
            output::note(&format!("spdl: warning: {}", printable(&told)));
            Ok(None)
        }
    }
}

fn samples(addresses: &[PathBuf]) -> Result<DataSet, Failure> {
    let opened = Opened::open_silently(addresses, "cannot open")?;
    // What is damaged in archives is told where it is come upon.
    if opened.set.kind != DatasetKind::TarShards {
        opened.warn();
    }
    Ok(DataSet::Samples(Box::new(Samples { opened })))
}

/// Whether it is a tar archive of this machine, by its name; a file of which the name says nothing is
/// taken for one.
fn is_archive(path: &Path) -> bool {
    if is_address(path) {
        return false;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let others = [".parquet", ".tfrecord", ".tfrecords", ".txt", ".csv", ".jsonl"];
    let is_other = name == "index.json" || others.iter().any(|ending| name.ends_with(ending));
    !is_other && (path.is_file() || name.ends_with(".tar"))
}

/// What `spdl pack` has written; `None` where it has not.
fn packed(folder: &Path) -> Result<Option<DataSet>, Failure> {
    if folder.join(JOURNAL).exists() {
        return Err(Failure::new("cannot open", folder.display(), NOT_COMPLETE));
    }
    let manifest = match Manifest::read(folder) {
        Ok(manifest) => manifest,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::of("cannot open", &error, &folder.join(MANIFEST))),
    };
    Ok(Some(stored::of_manifest(manifest, |name| Place::Here(folder.join(name)))))
}

/// The tar archives directly in a folder, by their names.
fn archives_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error| Failure::new("cannot list", folder.display(), error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_tar = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tar"));
        if is_tar && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Archives of which no manifest says anything. Where they lie in several folders, they are named by
/// their paths.
fn of_others(paths: Vec<PathBuf>) -> Vec<Archive> {
    let folder = paths.first().and_then(|path| path.parent());
    let in_one = paths.iter().all(|path| path.parent() == folder);
    let name = |path: &Path| match path.file_name() {
        Some(name) if in_one => name.to_string_lossy().into_owned(),
        _ => path.to_string_lossy().into_owned(),
    };
    let archive = |path: &PathBuf| Archive {
        name: name(path),
        place: Place::Here(path.clone()),
        record: None,
    };
    paths.iter().map(archive).collect()
}

impl Archive {
    /// Its size, where that is known before it is read.
    pub(crate) fn size(&self) -> Option<u64> {
        match (&self.record, &self.place) {
            (Some(record), _) => Some(record.bytes),
            (None, Place::Here(path)) => fs::metadata(path).map(|found| found.len()).ok(),
            (None, Place::There(_)) => None,
        }
    }

    /// Where its members lie: by the index beside it, or by a walk over it. Nothing is written.
    pub(crate) fn index(&self) -> Result<TarIndex, Failure> {
        let options = TarOptions::default();
        let index = match &self.place {
            Place::Here(path) => ArchiveStamp::of_file(path).and_then(|stamp| {
                TarIndex::load(path, &stamp, options).or_else(|_| TarIndex::build(path, options))
            }),
            Place::There(place) => place.index(options),
        };
        index.map_err(|error| Failure::of("cannot read an archive", &error, &self.place.shown()))
    }
}

/// The key of a member's sample and the name of its field, as WebDataset divides a name: at the first
/// dot of its last part. `None` where it has none, or begins with it.
pub(crate) fn key_and_field(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let file = name.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let dot = name[file..].iter().position(|&byte| byte == b'.').filter(|&dot| dot > 0)?;
    Some((&name[..file + dot], &name[file + dot + 1..]))
}

/// Whether a member is an image, by its name.
pub(crate) fn is_image(name: &[u8]) -> bool {
    let ending = name.rsplit(|&byte| byte == b'.').next().unwrap_or_default();
    image_extensions().any(|known| ending.eq_ignore_ascii_case(known.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_divided_as_webdataset_divides_them() {
        for (name, divided) in [
            ("a.jpg", Some(("a", "jpg"))),
            ("d.x/a.seg.png", Some(("d.x/a", "seg.png"))),
            ("d/a", None),
            ("d/.hidden", None),
            ("a.", Some(("a", ""))),
        ] {
            let divided = divided.map(|(key, field)| (key.as_bytes(), field.as_bytes()));
            assert_eq!(key_and_field(name.as_bytes()), divided, "{name}");
        }
        assert!(is_image(b"a/b.seg.PNG") && !is_image(b"a/png") && !is_image(b"a.cls"));
    }
}
