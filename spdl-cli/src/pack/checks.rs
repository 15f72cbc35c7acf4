//! What is refused before anything is read or written.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::arguments::{Format, PackArguments};
use crate::arguments::name_of;
use crate::failure::Failure;
use crate::format::printable;
use crate::source::shown;

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
    let PackArguments { source, destination, .. } = arguments;
    if is_address(destination) {
        let address = printable(&shown(std::slice::from_ref(destination)).display().to_string());
        let reason =
            format!("pack writes to a folder of this machine, and {address} is an address");
        return Err(Failure::usage(reason));
    }
    if lies_in(destination, source) {
        let [source, destination] =
            [source, destination].map(|path| printable(&path.display().to_string()));
        let reason = format!("{destination} lies in {source}: shards do not go among the images");
        return Err(Failure::usage(reason));
    }
    Ok(())
}

/// Whether it begins as `s3://` does.
fn is_address(path: &Path) -> bool {
    let path = path.to_string_lossy();
    path.split_once("://").is_some_and(|(scheme, _)| {
        let letters =
            scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        letters && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
    })
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
    fn addresses_are_told_from_paths() {
        for address in ["s3://b/x", "gs://b", "https://u:p@h/x", "file:///x", "a+b.c-1://x"] {
            assert!(is_address(address.as_ref()), "{address}");
        }
        for path in ["shards", "/a/b", "./s3:/x", "a b://c", "://x", "1a://x", "C:\\x"] {
            assert!(!is_address(path.as_ref()), "{path}");
        }
    }

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
