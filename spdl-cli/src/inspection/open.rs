//! Opens the paths and URLs of the command line as a [`DataSet`].

use std::fs;
use std::path::{Path, PathBuf};

use spdl_core::ErrorKind;
use spdl_io::datasets::{DatasetKind, local_files};
use spdl_io::shards::{JOURNAL, MANIFEST, Manifest};

use super::archive::unlisted_archives;
use super::data_set::DataSet;
use super::location::{Location, archives_in};
use super::remote::{self, NOT_COMPLETE};
use super::samples::Samples;
use crate::datasets::address::is_address;
use crate::datasets::input::{InputDataset, is_media_file};
use crate::ui::failure::Failure;

/// Like [`open`], but opens archives in a store as archives instead of samples.
pub(crate) fn open_archives(paths: &[PathBuf]) -> Result<DataSet, Failure> {
    if paths.iter().all(|path| is_media_file(path)) {
        return open(paths);
    }
    match remote::archives(paths)? {
        Some(set) => Ok(set),
        None => open(paths),
    }
}

/// Opens a packed folder, a folder of tar archives, tar archives, media files, or any other data set.
pub(crate) fn open(paths: &[PathBuf]) -> Result<DataSet, Failure> {
    let tars = |paths: Vec<PathBuf>| DataSet::of_archives(unlisted_archives(paths));
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
            let reason = "not a tar archive; several paths must all be tar archives";
            return Err(Failure::new("cannot open", path.display(), reason));
        }
    }
    Ok(tars(archives))
}

fn samples(addresses: &[PathBuf]) -> Result<DataSet, Failure> {
    let opened = InputDataset::open_media_silently(addresses, "cannot open")?;
    // Damage to archives is reported later, when the samples are read.
    if opened.set.kind != DatasetKind::TarShards {
        opened.warn();
    }
    Ok(DataSet::Samples(Box::new(Samples { opened })))
}

/// Whether a path names a local tar archive; files with an unknown extension count as archives.
fn is_archive(path: &Path) -> bool {
    if is_address(path) || is_media_file(path) {
        return false;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    match DatasetKind::of_name(&name) {
        Some(kind) => kind == DatasetKind::TarShards && (path.is_file() || name.ends_with(".tar")),
        None => path.is_file(),
    }
}

/// The set that `spdl pack` wrote to a folder; `None` for other folders.
fn packed(folder: &Path) -> Result<Option<DataSet>, Failure> {
    if folder.join(JOURNAL).exists() {
        return Err(Failure::new("cannot open", folder.display(), NOT_COMPLETE));
    }
    let manifest = match Manifest::read(folder) {
        Ok(manifest) => manifest,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::of("cannot open", &error, &folder.join(MANIFEST))),
    };
    Ok(Some(DataSet::of_manifest(manifest, |name| Location::Local(folder.join(name)))))
}
