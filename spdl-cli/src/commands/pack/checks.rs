//! What is refused before anything is written.

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use spdl_core::Dataset;
use spdl_io::Key;
use spdl_io::datasets::OpenedDataset;
use spdl_io::records::StoredField;

use super::arguments::{OutputFormat, PackArguments};
use super::members::no_image;
use crate::commands::options::name_of;
use crate::datasets::address::{is_address, shown};
use crate::ui::failure::Failure;
use crate::ui::format::printable;

/// Refuses a command line that makes no sense.
pub(super) fn command_line(arguments: &PackArguments) -> Result<(), Failure> {
    if arguments.quality.is_some() {
        if !arguments.may_encode() {
            let reason = "--quality without --max-side or --format: no image is encoded";
            return Err(Failure::usage(reason));
        }
        if let Some(format @ (OutputFormat::Png | OutputFormat::Webp)) = arguments.format {
            let format = name_of(format);
            let reason =
                format!("--quality is that of JPEG, and --format {format} is without loss");
            return Err(Failure::usage(reason));
        }
    }
    arguments.plan().validate().map_err(|error| Failure::usage(error.reason()))?;
    let PackArguments { sources, destination, .. } = arguments;
    let as_shown = |path: &Path| printable(&shown(&[path.to_owned()]).display().to_string());
    if is_address(destination) {
        let address = as_shown(destination);
        let reason =
            format!("pack writes to a folder of this machine, and {address} is an address");
        return Err(Failure::usage(reason));
    }
    for source in sources.iter().filter(|source| !is_address(source)) {
        let [from, to] = [source, destination].map(|path| as_shown(path));
        if lies_in(destination, source) {
            let reason = format!("{to} lies in {from}: shards do not go among the images");
            return Err(Failure::usage(reason));
        }
        // What is there may be written anew.
        let folder = source.parent().filter(|folder| !folder.as_os_str().is_empty());
        if !source.is_dir() && lies_in(folder.unwrap_or(Path::new(".")), destination) {
            let reason = format!("{from} lies in {to}: shards do not go where they come from");
            return Err(Failure::usage(reason));
        }
    }
    Ok(())
}

/// Refuses a data set of which no sample has a field that is known to be its image.
pub(super) fn an_image_is_known(
    arguments: &PackArguments,
    set: &OpenedDataset,
) -> Result<(), Failure> {
    if arguments.image_field.is_some() {
        return Ok(());
    }
    let usual = set.fetch_labeled();
    let mut first = None;
    for number in 0..set.samples.len() {
        // What cannot be read is told in its turn.
        let Ok(record) = set.samples.item(number) else { continue };
        if usual.fields_of(&record).0.is_some() {
            return Ok(());
        }
        first.get_or_insert(record);
    }
    first.map_or(Ok(()), |record| Err(Failure::usage(no_image(record.names()))))
}

/// Refuses a data set of which a file lies in the folder that is written to, whatever links or braces
/// led there: it may be one of those that are written anew.
pub(super) fn nothing_is_read_from(destination: &Path, set: &OpenedDataset) -> Result<(), Failure> {
    // What is not there holds nothing.
    let Ok(folder) = fs::canonicalize(destination) else { return Ok(()) };
    if !set.is_local {
        return Ok(());
    }
    let mut folders = RealFolders::default();
    for number in 0..set.samples.len() {
        // What cannot be read is told by whoever reads it.
        let Ok(record) = set.samples.item(number) else { continue };
        let objects = record.fields.iter().filter_map(|(_, field)| match field {
            StoredField::At(extent, _) => Some(&extent.object),
            _ => None,
        });
        let of_row = record.row.as_ref().and_then(|row| row.group.object());
        if let Some(object) = objects.chain(of_row).find(|object| folders.hold(&folder, object)) {
            let [from, to] = [&*object.to_path(), destination]
                .map(|path| printable(&path.display().to_string()));
            let reason = format!("{from} lies in {to}: shards do not go where they come from");
            return Err(Failure::usage(reason));
        }
    }
    Ok(())
}

/// Where folders really lie, each looked up once.
#[derive(Default)]
struct RealFolders {
    known: HashMap<PathBuf, Option<PathBuf>>,
    /// Samples of a shard come one behind the other.
    last: Option<(Key, bool)>,
}

impl RealFolders {
    /// Whether a file lies in that folder, or leads into it.
    fn hold(&mut self, folder: &Path, file: &Key) -> bool {
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

/// Whether a path is that of a folder, or leads into it, wherever links lead. It need not be there.
fn lies_in(path: &Path, folder: &Path) -> bool {
    match (fs::canonicalize(folder), std::path::absolute(path)) {
        (Ok(folder), Ok(path)) => without_links(&path).starts_with(folder),
        // What is wrong with them is told by whoever opens them.
        _ => false,
    }
}

/// An absolute path, with links followed as far as it is there.
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
    fn a_path_into_a_folder_is_known_wherever_it_leads_through() {
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
