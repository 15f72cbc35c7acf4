//! Tar archives in a store, by their URLs or the URL of their folder.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, block_on};
use spdl_io::datasets::{DatasetKind, stored_files};
use spdl_io::shards::{JOURNAL, MANIFEST};
use spdl_io::stores::Address;
use spdl_io::{Key, StoreRegistry};

use super::archive::Archive;
use super::data_set::DataSet;
use super::location::{Location, RemoteLocation};
use crate::datasets::address::{is_address, shown};
use crate::ui::failure::Failure;
use crate::ui::stderr;

/// The error message if the folder contains the journal of an unfinished `spdl pack`.
pub(super) const NOT_COMPLETE: &str =
    "the set is incomplete; run the same `spdl pack` command again to complete it";

/// Maximum number of objects that are listed to find out whether a folder contains archives.
const MAX_LISTED: usize = 1000;

/// Opens the archives that the URLs name; `None` if the URLs name other data.
pub(super) fn archives(addresses: &[PathBuf]) -> Result<Option<DataSet>, Failure> {
    if addresses.is_empty() || !addresses.iter().all(|address| is_address(address)) {
        return Ok(None);
    }
    let failed = |error: Error| Failure::of("cannot open", &error, &shown(addresses));
    let stores = Arc::new(stderr::warn_if_unreachable(StoreRegistry::new()));
    let kinds: Vec<_> = addresses.iter().map(DatasetKind::of_name).collect();
    let is_tar = |kind: &Option<DatasetKind>| *kind == Some(DatasetKind::TarShards);
    if kinds.iter().all(is_tar) {
        let mut archives = Vec::new();
        for address in addresses {
            archives.extend(matching(&locate(address, &stores).map_err(failed)?).map_err(failed)?);
        }
        return Ok(Some(DataSet::of_archives(archives)));
    }
    match (addresses, &kinds[..]) {
        ([address], [None]) => folder(&locate(address, &stores).map_err(failed)?, addresses),
        _ => Ok(None),
    }
}

fn locate(address: &Path, stores: &Arc<StoreRegistry>) -> spdl_core::Result<RemoteLocation> {
    // URLs are UTF-8.
    let text = address.to_str().unwrap_or_default();
    let is_signed = Address::parse(text)?.query().is_some();
    let location = stores.open(text)?;
    // If the URL has a secret query, the store shows asterisks instead; they are not part of the
    // name.
    let address = location.address.strip_suffix("?***").unwrap_or(&location.address).to_owned();
    let (fetcher, key) = (location.fetcher, location.key);
    Ok(RemoteLocation { fetcher, key, address, is_signed, _stores: Arc::clone(stores) })
}

/// The archives that match a pattern with braces and wildcards.
fn matching(place: &RemoteLocation) -> spdl_core::Result<Vec<Archive>> {
    let keys = match place.key.as_str() {
        Some(pattern) => block_on(stored_files(&*place.fetcher, pattern))
            .map_err(|error| error.renamed(place.address.clone()))?,
        None => vec![place.key.clone()],
    };
    Ok(keys.into_iter().map(|key| archive(place.sibling(key))).collect())
}

fn archive(place: RemoteLocation) -> Archive {
    Archive { name: place.address.clone(), location: Location::Remote(place), record: None }
}

/// The archives of a folder: those in its manifest, or else all in the folder. `None` if there are
/// no archives.
fn folder(place: &RemoteLocation, addresses: &[PathBuf]) -> Result<Option<DataSet>, Failure> {
    let failed = |error: &Error| Failure::of("cannot open", error, &shown(addresses));
    let folder = match place.key.as_bytes() {
        [] | [.., b'/'] => place.key.clone(),
        bytes => Key::from_bytes(&[bytes, b"/"].concat()),
    };
    let slash = if place.key == folder { "" } else { "/" };
    let address = format!("{}{slash}", place.address);
    let place = RemoteLocation { key: folder.clone(), address, ..place.clone() };
    let inside = |name: &str| {
        let key = Key::from_bytes(&[folder.as_bytes(), name.as_bytes()].concat());
        Location::Remote(place.sibling(key))
    };
    let manifest = match inside(MANIFEST).manifest() {
        Ok(manifest) => Some(manifest),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        // A file of another program may have this name.
        Err(error) if !error.kind().is_transient() && !begins_with_archives(&place) => None,
        Err(error) => {
            let address = inside(MANIFEST).shown().display().to_string();
            return Err(failed(&error.renamed(address)));
        }
    };
    let archives = match manifest.is_none() && begins_with_archives(&place) {
        true => inside(MANIFEST).archives_in_folder()?,
        false => Vec::new(),
    };
    if manifest.is_none() && archives.is_empty() {
        return Ok(None);
    }
    if let Location::Remote(journal) = inside(JOURNAL)
        && journal.fetcher.capability().stat
        && block_on(journal.fetcher.stat(&journal.key)).is_ok()
    {
        return Err(Failure::new("cannot open", shown(addresses).display(), NOT_COMPLETE));
    }
    let Some(manifest) = manifest else {
        let archives = archives.into_iter().filter_map(|place| match place {
            Location::Remote(place) => Some(archive(place)),
            Location::Local(_) => None,
        });
        return Ok(Some(DataSet::of_archives(archives.collect())));
    };
    Ok(Some(DataSet::of_manifest(manifest, inside)))
}

/// Whether the first [`MAX_LISTED`] objects of a folder include an archive.
fn begins_with_archives(folder: &RemoteLocation) -> bool {
    let Ok(mut listing) = block_on(folder.fetcher.list(&folder.key)) else { return false };
    let objects =
        (0..MAX_LISTED).map_while(|_| block_on(poll_fn(|cx| listing.as_mut().poll_next(cx))));
    let is_archive = |key: Key| {
        let name = key.as_bytes().strip_prefix(folder.key.as_bytes());
        name.is_some_and(|name| !name.contains(&b'/') && name.ends_with(b".tar"))
    };
    objects.map_while(Result::ok).any(|object| is_archive(object.key))
}
