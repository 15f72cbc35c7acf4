//! Tar archives in a store that are read whole: by their addresses, or by that of their folder.

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

/// What is said of a set whose journal is there.
pub(super) const NOT_COMPLETE: &str =
    "this set is not complete; the same `spdl pack` again goes on with it";

/// So many objects of a folder are looked at to see whether it holds archives.
const LOOKED_AT: usize = 1000;

/// The archives that addresses lead to; `None` where they lead to something else.
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
            archives.extend(named(&place(address, &stores).map_err(failed)?).map_err(failed)?);
        }
        return Ok(Some(DataSet::of_archives(archives)));
    }
    match (addresses, &kinds[..]) {
        ([address], [None]) => folder(&place(address, &stores).map_err(failed)?, addresses),
        _ => Ok(None),
    }
}

fn place(address: &Path, stores: &Arc<StoreRegistry>) -> spdl_core::Result<RemoteLocation> {
    // What is not UTF-8 is no address.
    let text = address.to_str().unwrap_or_default();
    let is_signed = Address::parse(text)?.query().is_some();
    let location = stores.open(text)?;
    // What is secret is asterisks, and no part of a name.
    let address = location.address.strip_suffix("?***").unwrap_or(&location.address).to_owned();
    let (fetcher, key) = (location.fetcher, location.key);
    Ok(RemoteLocation { fetcher, key, address, is_signed, _stores: Arc::clone(stores) })
}

/// The archives that a name with braces and stars means.
fn named(place: &RemoteLocation) -> spdl_core::Result<Vec<Archive>> {
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

/// The archives of a folder: those that its manifest names, or all; `None` where there are none.
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
        // Others call files so, too.
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

/// Whether there is an archive among the first objects of a folder: one of a million images is not listed
/// to its end for that.
fn begins_with_archives(folder: &RemoteLocation) -> bool {
    let Ok(mut listing) = block_on(folder.fetcher.list(&folder.key)) else { return false };
    let objects =
        (0..LOOKED_AT).map_while(|_| block_on(poll_fn(|cx| listing.as_mut().poll_next(cx))));
    let is_archive = |key: Key| {
        let name = key.as_bytes().strip_prefix(folder.key.as_bytes());
        name.is_some_and(|name| !name.contains(&b'/') && name.ends_with(b".tar"))
    };
    objects.map_while(Result::ok).any(|object| is_archive(object.key))
}
