//! Reading of whole local files and store objects.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
#[cfg(feature = "ffmpeg")]
use spdl_core::runtime::block_on_in_stage;
use spdl_core::{Result, Runtime, block_on};
#[cfg(feature = "ffmpeg")]
use spdl_io::fetch::BlockReader;
use spdl_io::stores::Address;
use spdl_io::{Fetcher, Key, LocalFetcher, StoreRegistry};

use super::{array_of, type_name};
use crate::interop::array::Array;
use crate::interop::error::to_exception;
use crate::interop::fork::OwnerProcess;
use crate::interop::wait::interruptible;

/// Reads whole files and objects, and reuses the connections to stores.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Reader {
    max_bytes: u64,
    stores: SharedStores,
}

#[pymethods]
impl Reader {
    /// Creates a reader that rejects files larger than `max_bytes`.
    #[new]
    fn new(max_bytes: u64) -> Self {
        Reader { max_bytes, stores: SharedStores::default() }
    }

    /// Reads a file or an object.
    fn read(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Array> {
        let (name, location) = location_of(path)?;
        let (stores, max_bytes) = (self.stores.get(py), self.max_bytes);
        let read = interruptible(py, move || {
            let bytes = block_on(async {
                match location {
                    Location::File(key) => {
                        LocalFetcher::with_threads(1).read_whole(&key, &max_bytes).await
                    }
                    Location::Object(address) => stores.read(&address, max_bytes).await,
                }
            });
            array_of(&bytes.map_err(|error| error.renamed(name))?)
        });
        read?.map_err(|error| to_exception(py, &error))
    }
}

/// Connections to stores, and the process that opened them. A forked child has none of their threads.
pub(crate) struct SharedStores(Mutex<(OwnerProcess, Stores)>);

impl Default for SharedStores {
    fn default() -> Self {
        SharedStores(Mutex::new((OwnerProcess::current(), Stores::default())))
    }
}

impl SharedStores {
    /// The connections of this process.
    pub(crate) fn get(&self, py: Python<'_>) -> Stores {
        py.detach(|| {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.0.is_forked_child() {
                let before =
                    std::mem::replace(&mut *kept, (OwnerProcess::current(), Stores::default()));
                // A forked child has no threads to join, and locks of the parent may stay held.
                std::mem::forget(before);
            }
            kept.1.clone()
        })
    }
}

/// The location of a file or object.
pub(crate) enum Location {
    /// A local file.
    File(Key),
    /// An address in a store; may contain credentials.
    Object(String),
}

/// Parses a path or an address. Also returns the text for messages, without credentials.
///
/// # Errors
/// `TypeError` for another type, `InvalidArgumentError` for an invalid address.
pub(crate) fn location_of(path: &Bound<'_, PyAny>) -> PyResult<(Arc<str>, Location)> {
    let file = |key: Key| (key.display_name(), Location::File(key));
    if let Ok(bytes) = path.cast::<PyBytes>() {
        return Ok(file(Key::from_bytes(bytes.as_bytes())));
    }
    // Only strings can be addresses: `os.PathLike` objects collapse the `//` of an address.
    if let Ok(text) = path.extract::<String>()
        && text.contains("://")
    {
        let address = Address::parse(&text).map_err(|error| to_exception(path.py(), &error))?;
        return Ok(match address.scheme() {
            "file" => file(address.key().clone()),
            _ => (address.to_string().into(), Location::Object(text)),
        });
    }
    let path: PathBuf = path.extract().map_err(|_| {
        let message = format!(
            "Fetch takes a path (str, bytes or os.PathLike), an address, or a pair of one of \
             these and a label, not {}",
            type_name(path)
        );
        PyTypeError::new_err(message)
    })?;
    Ok(file(Key::from_path(OsString::from(path))))
}

/// Connections to stores. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Stores(Arc<StoreRegistry>);

impl Stores {
    /// Reads an object.
    pub(crate) async fn read(&self, address: &str, max_bytes: u64) -> Result<Bytes> {
        let location = self.0.open(address)?;
        location.fetcher.read_whole(&location.key, &max_bytes).await
    }

    /// Opens an object to read parts of it.
    #[cfg(feature = "ffmpeg")]
    pub(crate) fn open(&self, address: &str) -> Result<BlockReader> {
        let location = self.0.open(address)?;
        block_on_in_stage(BlockReader::open(location.fetcher, location.key))
            .and_then(|opened| opened)
            .map_err(|error| error.renamed(location.address))
    }

    /// The async runtime of the stores, on which the pipeline runs as well.
    pub(crate) fn runtime(&self) -> Result<Arc<dyn Runtime>> {
        self.0.runtime()
    }
}
