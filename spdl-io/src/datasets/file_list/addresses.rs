//! Rows of a file list that are addresses instead of paths.

use spdl_core::{Error, ErrorKind, Result};

use super::{FileList, ListFormat, with_line};
use crate::fetch::Key;
use crate::stores::{Address, StoreRegistry};

/// How rows that are addresses are converted to keys.
pub(super) enum RowAddresses {
    /// The address is the key.
    Unchanged,
    /// An address without a query in the store of the list becomes a key of that store, and a
    /// `file:` address becomes a path. Other addresses stay keys. Holds the address of the list's
    /// store; `None` for a local list.
    InStores(Option<Box<str>>),
}

impl RowAddresses {
    /// The key of a row that is an address; `None` for a path.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid address.
    pub(super) fn key_of(&self, path: &[u8]) -> Option<Result<Key>> {
        let RowAddresses::InStores(own) = self else { return None };
        Some(address_of(path)?.map(|address| key_of(&address, path, own.as_deref())))
    }
}

/// The address of a row; `None` for a path.
fn address_of(path: &[u8]) -> Option<Result<Address>> {
    let text = std::str::from_utf8(path).ok().filter(|text| text.contains("://"))?;
    match Address::parse(text) {
        // The text before the colon is not a scheme.
        Ok(address) if address.scheme() == "file" && address.key().as_bytes() == path => None,
        parsed => Some(parsed),
    }
}

/// The key of a row: a key of the list's store if the row lies in that store and has no query, or a
/// local path for a `file:` address. Otherwise the key is the whole address, which
/// [`RowStores`](super::RowStores) resolves.
fn key_of(address: &Address, path: &[u8], own: Option<&str>) -> Key {
    let is_file = address.scheme() == "file";
    let is_of_list = own == Some(&*address.store()) && address.query().is_none();
    match is_file || is_of_list {
        true => address.key().clone(),
        false => Key::from_bytes(path),
    }
}

/// Checks that a row may be read.
fn check(address: &Address, own: Option<&str>, stores: &StoreRegistry) -> Result<()> {
    let refused = |kind: ErrorKind, reason: &str| {
        let message = format!("cannot read {:?}: {reason}", address.to_string());
        Err(Error::new(kind, message))
    };
    if address.scheme() == "file" {
        let reason = "only a local list may name local files";
        return if own.is_none() { Ok(()) } else { refused(ErrorKind::InvalidArgument, reason) };
    }
    if address.user().is_some() {
        let reason = "a list must not contain user names and passwords; configure the credentials \
            of the store instead";
        return refused(ErrorKind::InvalidArgument, reason);
    }
    if let Err(error) = stores.check_scheme(address.scheme()) {
        return refused(error.kind(), error.message());
    }
    if address.query().is_some() && !stores.reads_addresses(address.scheme()) {
        let reason = "this store does not support queries in addresses";
        return refused(ErrorKind::InvalidArgument, reason);
    }
    Ok(())
}

impl FileList {
    /// Resolves the rows that are addresses with `stores`. `own` is the address of the list's
    /// store; `None` for a local list. The second value of the result is true if at least one row
    /// is in another store or has a query.
    ///
    /// # Errors
    /// - `InvalidArgument` for the first row that is invalid, holds a user name, has an unknown
    ///   scheme or a query that its store does not support, or names a local file in a list of a
    ///   store.
    /// - `InvalidArgument` if a row is in another store, and the folder of the list looks like an
    ///   address.
    /// - `Unsupported` if the store of a row is not compiled in.
    pub(crate) fn in_stores(
        mut self,
        own: Option<&str>,
        stores: &StoreRegistry,
    ) -> Result<(Self, bool)> {
        self.addresses = RowAddresses::InStores(own.map(Into::into));
        // JSON may escape a slash.
        let may_be_address = |pair: &[u8]| {
            pair == b":/" || (self.format == ListFormat::JsonLines && pair.contains(&b'\\'))
        };
        if !self.text.windows(2).any(may_be_address) {
            return Ok((self, false));
        }
        let mut has_other_stores = false;
        for &start in &self.starts {
            let start = start as usize;
            let (row, end) = self.row(&self.text, start)?;
            for path in row.paths() {
                let Some(address) = address_of(path) else { continue };
                let checked = address.and_then(|address| {
                    check(&address, own, stores)?;
                    Ok(key_of(&address, path, own).as_bytes() == path)
                });
                match checked {
                    Ok(is_elsewhere) => has_other_stores |= is_elsewhere,
                    Err(error) if self.has_image_ids => {
                        let id = row.others.iter().find(|(name, _)| &**name == "image_id");
                        let id = id.and_then(|(_, id)| id.to_json()).unwrap_or_default();
                        let message = format!("image {id}: {}", error.message());
                        return Err(Error::new(error.kind(), message).with_cause_of(error));
                    }
                    Err(error) => {
                        // If the address is escaped, use the offset of the row.
                        let written = self.text[start..end].windows(path.len());
                        let at = written.into_iter().position(|text| text == path).unwrap_or(0);
                        return Err(self.in_this_list(error.with_offset((start + at) as u64)));
                    }
                }
            }
        }
        let is_address = |folder: &[u8]| address_of(folder).is_some();
        if has_other_stores && is_address(&self.folder) {
            let message = "the folder of this list looks like an address, so relative paths and \
                addresses of other stores are ambiguous; move the list to another folder";
            return Err(self.in_this_list(Error::new(ErrorKind::InvalidArgument, message)));
        }
        Ok((self, has_other_stores))
    }

    /// Adds the name of the list, the line and the column to an error.
    fn in_this_list(&self, error: Error) -> Error {
        let error = with_line(error, &self.text);
        match &self.name {
            Some(name) => error.with_key(name.clone()),
            None => error,
        }
    }
}
