//! What is refused before anything is read or written.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::arguments::{Format, PackArguments};
use crate::arguments::name_of;
use crate::failure::Failure;
use crate::format::printable;
use crate::opened::{is_address, shown};

/// Refuses a command line that makes no sense.
pub(super) fn command_line(arguments: &PackArguments) -> Result<(), Failure> {
    if arguments.quality.is_some() {
        if !arguments.may_encode() {
            let reason = "--quality without --max-side or --format: no image is encoded";
            return Err(Failure::usage(reason));
        }
        if let Some(format @ (Format::Png | Format::Webp)) = arguments.format {
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
