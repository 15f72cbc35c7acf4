//! Error messages for missing files, and for folders that hold other data sets.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Error, ErrorKind};

use super::folder::local_names;
use super::kinds::Opener;
use super::{DatasetKind, address_in, kind_of_name};
use crate::fetch::Key;
use crate::records::IMAGE_EXTENSIONS;

/// If there are more files, the missing ones are not counted.
const MAX_FILES: usize = 10_000;
/// The maximum number of concurrent lookups.
const CONCURRENCY: usize = 16;
/// The maximum number of subfolders, or of objects in a store, that are examined.
const MAX_EXAMINED: usize = 1000;
/// The maximum number of folders in a message.
const MAX_NAMED: usize = 3;

/// Whether a local path of a list of images is a folder. Paths with the extension of an image are not
/// accessed.
pub(super) fn is_folder(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    !IMAGE_EXTENSIONS.contains(&&*extension.to_ascii_lowercase()) && path.is_dir()
}

/// The error for a folder in a list of images.
pub(super) fn folder_in_list(path: &Path) -> Error {
    let message = "the list of images contains a folder; list the images of the folder, or pass the folder \
                   alone as the data set";
    Error::new(ErrorKind::InvalidArgument, message).with_key(path.display().to_string())
}

impl Opener<'_> {
    /// Extends a `NotFound` error of several files: how many are missing, and the first of them.
    pub(super) async fn count_missing(&self, error: Error, keys: &[Key]) -> Error {
        if error.kind() != ErrorKind::NotFound || !(2..=MAX_FILES).contains(&keys.len()) {
            return error;
        }
        let is_missing = |key: &Key| {
            let key = key.clone();
            async move {
                match self.fetcher.stat(&key).await {
                    Ok(_) => Ok(None),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(key)),
                    Err(error) => Err(error),
                }
            }
        };
        let missing = stream::iter(keys)
            .map(is_missing)
            .buffered(CONCURRENCY)
            .try_filter_map(|key| std::future::ready(Ok(key)))
            .try_collect::<Vec<Key>>();
        // If a lookup fails, return the original error.
        let missing = missing.await.unwrap_or_default();
        let Some(first) = missing.first() else { return error };
        let (all, count) = (keys.len(), missing.len());
        let mut message = match count {
            1 => format!("1 of {all} files is missing"),
            count if count == all => format!("all {all} files are missing; this is the first"),
            count => format!("{count} of {all} files are missing; this is the first"),
        };
        if count < all {
            message += "; if the data set is complete without them, name only existing files, as in \
                `{000..003}`";
        }
        Error::new(ErrorKind::NotFound, message).with_key(first.display_name())
    }

    /// Extends a `NotFound` error of a folder without images: which subfolders hold another data set.
    pub(super) async fn suggest_folders(&self, error: Error, folder: &Key) -> Error {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        let found = match self.is_local {
            true => local_subfolders(folder),
            false => self.stored_subfolders(folder).await,
        };
        let Some((first, kind)) = found.first_key_value() else { return error };
        let mut names: Vec<_> =
            found.keys().take(MAX_NAMED).map(|name| format!("`{name}`")).collect();
        if found.len() > MAX_NAMED {
            names.push(format!("{} more", found.len() - MAX_NAMED));
        }
        let folder = match &*folder.to_string() {
            "" => address_in(self.store, ""),
            folder => format!("{}/", address_in(self.store, folder.trim_end_matches('/'))),
        };
        // LitData uses the same file name.
        let found_kind = match kind {
            DatasetKind::Mds => "shards with `index.json`".to_owned(),
            kind => kind.to_string(),
        };
        let mut message = format!(
            "{}; found {found_kind} in its subfolders {}; open `{folder}{first}`",
            error.message(),
            names.join(", "),
        );
        let ending = match kind {
            DatasetKind::TarShards => Some("*.tar"),
            DatasetKind::ZipShards => Some("*.zip"),
            DatasetKind::Parquet => Some("*.parquet"),
            DatasetKind::TfRecord => Some("*.tfrecord"),
            DatasetKind::RecordIo => Some("*.rec"),
            DatasetKind::Lmdb => Some("data.mdb"),
            _ => None,
        };
        let is_one_kind = found.values().all(|other| other == kind);
        if let Some(ending) =
            ending.filter(|_| is_one_kind && (2..=MAX_NAMED).contains(&found.len()))
        {
            let folders = found.keys().cloned().collect::<Vec<_>>().join(",");
            message += &format!(", or all with `{folder}{{{folders}}}/{ending}`");
        }
        let extended = Error::new(error.kind(), message);
        match error.key() {
            Some(key) => extended.with_key(key),
            None => extended,
        }
    }

    /// The direct subfolders of a stored folder that hold shards, from the first objects of the listing.
    async fn stored_subfolders(&self, folder: &Key) -> BTreeMap<String, DatasetKind> {
        let mut found = BTreeMap::new();
        let Ok(listing) = self.fetcher.list(folder).await else { return found };
        let mut listing = listing.take(MAX_EXAMINED);
        while let Some(Ok(object)) = listing.next().await {
            let key = object.key.as_bytes();
            let below = key.strip_prefix(folder.as_bytes()).unwrap_or(key);
            let below = below.strip_prefix(b"/").unwrap_or(below);
            let mut parts = below.split(|&byte| byte == b'/');
            if let (Some(inside), Some(name), None) = (parts.next(), parts.next(), parts.next())
                && let Some(kind) = of_shards(&Key::from_bytes(name))
            {
                found.entry(Key::from_bytes(inside).to_string()).or_insert(kind);
            }
        }
        found
    }
}

/// The direct subfolders of a local folder that hold shards.
fn local_subfolders(folder: &Key) -> BTreeMap<String, DatasetKind> {
    let mut found = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(folder.to_path()) else { return found };
    for entry in entries.flatten().take(MAX_EXAMINED).filter(|entry| entry.path().is_dir()) {
        let names = local_names(&Key::from_path(entry.path())).unwrap_or_default();
        if let Some(kind) = names.iter().find_map(of_shards) {
            found.insert(Key::from_path(entry.file_name()).to_string(), kind);
        }
    }
    found
}

/// The kind by file name, except file lists, because a text file need not be a file list.
fn of_shards(name: &Key) -> Option<DatasetKind> {
    kind_of_name(name).filter(|kind| *kind != DatasetKind::FileList)
}
