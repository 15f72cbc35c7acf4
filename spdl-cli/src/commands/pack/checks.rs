//! Checks of options, source and output folder, before any file is written.

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use spdl_core::Dataset;
use spdl_io::Key;
use spdl_io::datasets::{DatasetKind, OpenedDataset};
use spdl_io::records::StoredField;

use super::arguments::{OutputFormat, PackArguments};
use super::members::no_image;
use crate::commands::options::name_of;
use crate::datasets::address::{is_address, shown};
use crate::datasets::sample_files::timed_media;
use crate::ui::failure::Failure;
use crate::ui::format::printable;

/// Fails on inconsistent options.
pub(super) fn command_line(arguments: &PackArguments) -> Result<(), Failure> {
    if arguments.quality.is_some() {
        if !arguments.may_encode() {
            let reason = "--quality requires --max-side or --format: without these options, no image is encoded";
            return Err(Failure::usage(reason));
        }
        if let Some(format @ (OutputFormat::Png | OutputFormat::Webp)) = arguments.format {
            let format = name_of(format);
            let reason =
                format!("--quality applies to JPEG only, and --format {format} is lossless");
            return Err(Failure::usage(reason));
        }
    }
    arguments.plan().validate().map_err(|error| Failure::usage(error.reason()))?;
    let PackArguments { sources, destination, .. } = arguments;
    let as_shown = |path: &Path| printable(&shown(&[path.to_owned()]).display().to_string());
    if is_address(destination) {
        let address = as_shown(destination);
        let reason = format!("the output must be a local folder, but \"{address}\" is a URL");
        return Err(Failure::usage(reason));
    }
    for source in sources.iter().filter(|source| !is_address(source)) {
        let [from, to] = [source, destination].map(|path| as_shown(path));
        if lies_in(destination, source) {
            let reason = format!("the output folder \"{to}\" is inside the source \"{from}\"");
            return Err(Failure::usage(reason));
        }
        // Without this check, writing the shards might replace files of the source.
        let folder = source.parent().filter(|folder| !folder.as_os_str().is_empty());
        if !source.is_dir() && lies_in(folder.unwrap_or(Path::new(".")), destination) {
            let reason = format!("the source \"{from}\" is inside the output folder \"{to}\"");
            return Err(Failure::usage(reason));
        }
    }
    Ok(())
}

/// Fails if no sample has a field that is recognized as an image, audio or video.
pub(super) fn an_image_is_known(
    arguments: &PackArguments,
    set: &OpenedDataset,
) -> Result<(), Failure> {
    if arguments.fields_of_sample.image_field.is_some() {
        return Ok(());
    }
    let default_fields = set.fetch_labeled();
    let mut first = None;
    for number in 0..set.samples.len() {
        // The pipeline reports samples that cannot be read.
        let Ok(record) = set.samples.item(number) else { continue };
        let is_timed = |name: &str| timed_media(set.kind, &record.key, name, false).is_some();
        if default_fields.fields_of(&record).0.is_some() || record.names().any(is_timed) {
            return Ok(());
        }
        first.get_or_insert(record);
    }
    first.map_or(Ok(()), |record| Err(Failure::usage(no_image(record.names()))))
}

/// Fails if `--file-fields` is given for a data set that is no list.
pub(super) fn file_fields_apply(
    arguments: &PackArguments,
    set: &OpenedDataset,
) -> Result<(), Failure> {
    if arguments.file_fields.is_none() || set.kind == DatasetKind::FileList {
        return Ok(());
    }
    let reason = format!(
        "--file-fields applies to lists only (.csv, .jsonl), and the data set has the kind {}",
        set.kind
    );
    Err(Failure::usage(reason))
}

/// Fails if a file of the data set is inside the output folder, where `pack` might replace it.
///
/// Follows symbolic links.
pub(super) fn nothing_is_read_from(destination: &Path, set: &OpenedDataset) -> Result<(), Failure> {
    // If the folder does not exist yet, no file is inside it.
    let Ok(folder) = fs::canonicalize(destination) else { return Ok(()) };
    if !set.is_local {
        return Ok(());
    }
    let mut folders = CanonicalFolders::default();
    for number in 0..set.samples.len() {
        // The pipeline reports samples that cannot be read.
        let Ok(record) = set.samples.item(number) else { continue };
        let objects = record.fields.iter().filter_map(|(_, field)| match field {
            StoredField::At(extent, _) => Some(&extent.object),
            _ => None,
        });
        let of_row = record.row.as_ref().and_then(|row| row.group.object());
        if let Some(object) = objects.chain(of_row).find(|object| folders.contains(&folder, object))
        {
            let [from, to] = [&*object.to_path(), destination]
                .map(|path| printable(&path.display().to_string()));
            let reason = format!("the source \"{from}\" is inside the output folder \"{to}\"");
            return Err(Failure::usage(reason));
        }
    }
    Ok(())
}

/// A cache of canonical paths of folders.
#[derive(Default)]
struct CanonicalFolders {
    known: HashMap<PathBuf, Option<PathBuf>>,
    /// The last file and its result, because consecutive samples often have the same file.
    last: Option<(Key, bool)>,
}

impl CanonicalFolders {
    /// Whether a file, or the target of a symbolic link, is inside the folder.
    fn contains(&mut self, folder: &Path, file: &Key) -> bool {
        if let Some((last, held)) = &self.last
            && last == file
        {
            return *held;
        }
        let path = file.to_path();
        let is_link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
        let held = match (is_link, path.parent()) {
            (false, Some(parent)) => {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                if !self.known.contains_key(parent) {
                    self.known.insert(parent.to_owned(), fs::canonicalize(parent).ok());
                }
                let real = self.known.get(parent).and_then(Option::as_ref);
                real.is_some_and(|real| real.starts_with(folder))
            }
            _ => fs::canonicalize(&path).is_ok_and(|real| real.starts_with(folder)),
        };
        self.last = Some((file.clone(), held));
        held
    }
}

/// Whether a path, after resolving symbolic links, is the folder or inside it. The path need not
/// exist.
fn lies_in(path: &Path, folder: &Path) -> bool {
    match (fs::canonicalize(folder), std::path::absolute(path)) {
        (Ok(folder), Ok(path)) => without_links(&path).starts_with(folder),
        // If this fails, opening the path reports the error later.
        _ => false,
    }
}

/// An absolute path with the symbolic links of its existing part resolved.
fn without_links(path: &Path) -> PathBuf {
    let mut real = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                real.pop();
            }
            part => real.push(part),
        }
        if let Ok(found) = fs::canonicalize(&real) {
            real = found;
        }
    }
    real
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_in_resolves_links_and_parent_components() {
        let place = tempfile::tempdir().unwrap();
        let photos = place.path().join("photos");
        fs::create_dir_all(photos.join("cat")).unwrap();
        for inside in ["", "shards", "new/deeper", "cat/../shards", "new/../shards"] {
            assert!(lies_in(&photos.join(inside), &photos), "{inside}");
        }
        for outside in ["../shards", "../photos-2", "..", "cat/../../shards", "new/../../shards"] {
            assert!(!lies_in(&photos.join(outside), &photos), "{outside}");
        }
        assert!(!lies_in(&photos.join("shards"), &photos.join("missing")));
        #[cfg(unix)]
        {
            let link = place.path().join("link");
            std::os::unix::fs::symlink(&photos, &link).unwrap();
            assert!(lies_in(&link.join("shards"), &photos) && lies_in(&photos.join("s"), &link));
        }
    }
}
