//! What is told where something is not there: how much of it is, and what lies nearby.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Error, ErrorKind};

use super::folder::local_names;
use super::kinds::Opener;
use super::{DatasetKind, address_in, kind_of_name};
use crate::fetch::Key;

/// So many files are looked for to say how many are there.
const MOST_FILES: usize = 10_000;
/// How many are looked for at once.
const CONCURRENCY: usize = 16;
/// So many folders inside one, or objects of a store, are looked at.
const MOST_INSIDE: usize = 1000;
/// So many of the folders found are named.
const NAMED: usize = 3;

impl Opener<'_> {
    /// An error of several files, of which one is not there: how many are not, and which is the first.
    pub(super) async fn tell_missing(&self, error: Error, keys: &[Key]) -> Error {
        if error.kind() != ErrorKind::NotFound || !(2..=MOST_FILES).contains(&keys.len()) {
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
        // A store that is in trouble now is not asked for more.
        let missing = missing.await.unwrap_or_default();
        let Some(first) = missing.first() else { return error };
        let (all, count) = (keys.len(), missing.len());
        let mut message = match count {
            1 => format!("this one of {all} files is not there, and the others are"),
            count if count == all => format!("none of the {all} files that were named is there"),
            count => format!("{count} of {all} files are not there, this one first"),
        };
        if count < all {
            message += "; where the data set is complete without, name those alone that are there, as in \
                `{000..003}`";
        }
        Error::new(ErrorKind::NotFound, message).with_key(first.display_name())
    }

    /// An error of a folder without images: which folders inside it hold another data set.
    pub(super) async fn tell_inside(&self, error: Error, folder: &Key) -> Error {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        let found = match self.is_local {
            true => inside_of_local(folder),
            false => self.inside_of_stored(folder).await,
        };
        let Some((first, kind)) = found.first_key_value() else { return error };
        let mut names: Vec<_> = found.keys().take(NAMED).map(|name| format!("`{name}`")).collect();
        if found.len() > NAMED {
            names.push(format!("{} more", found.len() - NAMED));
        }
        let folder = match &*folder.to_string() {
            "" => address_in(self.store, ""),
            folder => format!("{}/", address_in(self.store, folder.trim_end_matches('/'))),
        };
        let mut message = format!(
            "{}; but there are {kind} in the folders {} of it: open `{folder}{first}`",
            error.message(),
            names.join(", "),
        );
        let ending = match kind {
            DatasetKind::TarShards => Some("*.tar"),
            DatasetKind::Parquet => Some("*.parquet"),
            DatasetKind::TfRecord => Some("*.tfrecord"),
            _ => None,
        };
        let is_one_kind = found.values().all(|other| other == kind);
        if let Some(ending) = ending.filter(|_| is_one_kind && (2..=NAMED).contains(&found.len())) {
            let folders = found.keys().cloned().collect::<Vec<_>>().join(",");
            message += &format!(", or all by `{folder}{{{folders}}}/{ending}`");
        }
        let told = Error::new(error.kind(), message);
        match error.key() {
            Some(key) => told.with_key(key),
            None => told,
        }
    }

    /// The folders directly inside one of a store that hold a data set, as far as the first objects tell.
    async fn inside_of_stored(&self, folder: &Key) -> BTreeMap<String, DatasetKind> {
        let mut found = BTreeMap::new();
        let Ok(listing) = self.fetcher.list(folder).await else { return found };
        let mut listing = listing.take(MOST_INSIDE);
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

/// The folders directly inside one of this machine that hold a data set.
fn inside_of_local(folder: &Key) -> BTreeMap<String, DatasetKind> {
    let mut found = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(folder.to_path()) else { return found };
    for entry in entries.flatten().take(MOST_INSIDE).filter(|entry| entry.path().is_dir()) {
        let names = local_names(&Key::from_path(entry.path())).unwrap_or_default();
        if let Some(kind) = names.iter().find_map(of_shards) {
            found.insert(Key::from_path(entry.file_name()).to_string(), kind);
        }
    }
    found
}

/// What a file of this name is of, where that is no list, which may be anything.
fn of_shards(name: &Key) -> Option<DatasetKind> {
    kind_of_name(name).filter(|kind| *kind != DatasetKind::FileList)
}
