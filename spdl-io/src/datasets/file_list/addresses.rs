//! Rows of a list that are addresses, and not paths.

use spdl_core::{Error, ErrorKind, Result};

use super::{FileList, ListFormat, located};
use crate::fetch::Key;
use crate::stores::{Address, StoreRegistry};

/// What rows mean that are addresses.
pub(super) enum RowAddresses {
    /// Keys, for fetchers that know what to do with them.
    AsTheyStand,
    /// Objects of the stores that they name; those of the list's own store, which has this address, by
    /// their keys there. A list of this machine has none.
    InStores(Option<Box<str>>),
}

impl RowAddresses {
    /// The key of a row that is an address; `None` for a path.
    ///
    /// # Errors
    /// `InvalidArgument` where it makes no sense.
    pub(super) fn key_of(&self, path: &[u8]) -> Option<Result<Key>> {
        let RowAddresses::InStores(own) = self else { return None };
        Some(address_of(path)?.map(|address| key_of(&address, path, own.as_deref())))
    }
}

/// The address that a row is; `None` for a path.
fn address_of(path: &[u8]) -> Option<Result<Address>> {
    let text = std::str::from_utf8(path).ok().filter(|text| text.contains("://"))?;
    match Address::parse(text) {
        // What stands before the colon is no scheme.
        Ok(address) if address.scheme() == "file" && address.key().as_bytes() == path => None,
        parsed => Some(parsed),
    }
}

/// What a row is read by: its key, where that alone leads there from the list, or else its whole address,
/// which [`RowStores`](super::RowStores) knows what to do with.
fn key_of(address: &Address, path: &[u8], own: Option<&str>) -> Key {
    let is_file = address.scheme() == "file";
    let is_of_list = own == Some(&*address.store()) && address.query().is_none();
    match is_file || is_of_list {
        true => address.key().clone(),
        false => Key::from_bytes(path),
    }
}

/// Refuses a row that cannot be read, or must not be.
fn check(address: &Address, own: Option<&str>, stores: &StoreRegistry) -> Result<()> {
    let refused = |kind: ErrorKind, fault: &str| {
        let message = format!("the file {address} of a row cannot be read: {fault}");
        Err(Error::new(kind, message))
    };
    if address.scheme() == "file" {
        let fault = "files of this machine are read by lists of this machine alone";
        return if own.is_none() { Ok(()) } else { refused(ErrorKind::InvalidArgument, fault) };
    }
    if address.user().is_some() {
        let fault = "it holds a name and a password; say how its store is reached where stores are opened, \
            and not in a list";
        return refused(ErrorKind::InvalidArgument, fault);
    }
    if let Err(error) = stores.check_scheme(address.scheme()) {
        return refused(error.kind(), error.message());
    }
    if address.query().is_some() && !stores.reads_addresses(address.scheme()) {
        let fault = "its store knows no queries";
        return refused(ErrorKind::InvalidArgument, fault);
    }
    Ok(())
}

impl FileList {
    /// The same list where rows that are addresses are those of `stores`; and whether there are any that
    /// its own store, `own`, does not read by their keys. Without an own store, it is one of this machine.
    ///
    /// # Errors
    /// `InvalidArgument` for the first row that makes no sense, holds a password, or names a file of this
    /// machine in a list from elsewhere; `Unsupported` where its store is not compiled in.
    pub(crate) fn in_stores(
        mut self,
        own: Option<&str>,
        stores: &StoreRegistry,
    ) -> Result<(Self, bool)> {
        self.addresses = RowAddresses::InStores(own.map(Into::into));
        // JSON may write a slash in several ways.
        let is_odd = |pair: &[u8]| {
            pair == b":/" || (self.format == ListFormat::JsonLines && pair.contains(&b'\\'))
        };
        if !self.text.windows(2).any(is_odd) {
            return Ok((self, false));
        }
        let mut leads_elsewhere = false;
        for &start in &self.starts {
            let start = start as usize;
            let (row, end) = self.row(&self.text, start)?;
            let Some(address) = address_of(&row.path) else { continue };
            let checked = address.and_then(|address| {
                check(&address, own, stores)?;
                Ok(key_of(&address, &row.path, own).as_bytes() == &*row.path)
            });
            match checked {
                Ok(is_elsewhere) => leads_elsewhere |= is_elsewhere,
                Err(error) => {
                    // Where it is written otherwise, the row is where it is.
                    let written = self.text[start..end].windows(row.path.len());
                    let at = written.into_iter().position(|text| text == &*row.path).unwrap_or(0);
                    return Err(self.in_this_list(error.with_offset((start + at) as u64)));
                }
            }
        }
        let is_address = |folder: &[u8]| address_of(folder).is_some();
        if leads_elsewhere && is_address(&self.folder) {
            let message = "the folder of this list looks like an address, and so files beside it cannot be \
                told from those elsewhere that its rows name";
            return Err(self.in_this_list(Error::new(ErrorKind::InvalidArgument, message)));
        }
        Ok((self, leads_elsewhere))
    }

    /// An error with the name of the list, and with the place in it as people count.
    fn in_this_list(&self, error: Error) -> Error {
        let error = located(error, &self.text);
        match &self.shown {
            Some(shown) => error.with_key(shown.clone()),
            None => error,
        }
    }
}
