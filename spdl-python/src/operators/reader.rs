//! Files of this machine and objects of stores, read as a whole.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use spdl_core::{Result, Runtime, block_on};
use spdl_io::stores::Address;
use spdl_io::{Fetcher, Key, LocalFetcher, StoreRegistry};

use super::{array_of, kind_of};
use crate::interop::array::Array;
use crate::interop::error::to_exception;
use crate::interop::fork::Home;
use crate::interop::wait::interruptible;

/// Reads whole files and objects, one by one. Keeps the connections of stores for the next.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Reader {
    max_bytes: u64,
    /// Of this process: a fork has not the threads of another one.
    stores: Mutex<(Home, Stores)>,
}

#[pymethods]
impl Reader {
    /// Refuses what has more than `max_bytes`.
    #[new]
    fn new(max_bytes: u64) -> Self {
        Reader { max_bytes, stores: Mutex::new((Home::here(), Stores::default())) }
    }

    /// The bytes of a file or an object.
    fn read(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Array> {
        let (name, place) = place_of(path)?;
        let (stores, max_bytes) = (self.stores(py), self.max_bytes);
        let read = interruptible(py, move || {
            let bytes = block_on(async {
                match place {
                    Place::File(key) => {
                        LocalFetcher::with_threads(1).read_at_most(&key, max_bytes).await
                    }
                    Place::Object(address) => stores.read(&address, max_bytes).await,
                }
            });
            array_of(&bytes.map_err(|error| error.renamed(name))?)
        });
        read?.map_err(|error| to_exception(py, &error))
    }
}

impl Reader {
    fn stores(&self, py: Python<'_>) -> Stores {
        py.detach(|| {
            let mut kept = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.0.is_elsewhere() {
                let before = std::mem::replace(&mut *kept, (Home::here(), Stores::default()));
                // There are no threads to join, and what they had locked stays locked.
                std::mem::forget(before);
            }
            kept.1.clone()
        })
    }
}

/// Where bytes lie.
pub(crate) enum Place {
    /// In a file of this machine.
    File(Key),
    /// At this address, which may hold what is secret.
    Object(String),
}

/// What a path or an address names, and how it may be shown.
///
/// # Errors
/// `TypeError` for what is neither, `InvalidArgumentError` for an address that makes no sense.
pub(crate) fn place_of(path: &Bound<'_, PyAny>) -> PyResult<(Arc<str>, Place)> {
    let file = |key: Key| (key.display_name(), Place::File(key));
    if let Ok(bytes) = path.cast::<PyBytes>() {
        return Ok(file(Key::from_bytes(bytes.as_bytes())));
    }
    // What is made of a path by others has lost the two slashes of an address.
    if let Ok(text) = path.extract::<String>()
        && text.contains("://")
    {
        let address = Address::parse(&text).map_err(|error| to_exception(path.py(), &error))?;
        return Ok(match address.scheme() {
            "file" => file(address.key().clone()),
            _ => (address.to_string().into(), Place::Object(text)),
        });
    }
    let path: PathBuf = path.extract().map_err(|_| {
        let message = format!(
            "Fetch takes a path (str, bytes or os.PathLike) or an address, or a pair of one and a \
             label, not {}",
            kind_of(path)
        );
        PyTypeError::new_err(message)
    })?;
    Ok(file(Key::from_path(OsString::from(path))))
}

/// The stores that addresses lead to. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Stores(Arc<StoreRegistry>);

impl Stores {
    /// The bytes of an object.
    pub(crate) async fn read(&self, address: &str, max_bytes: u64) -> Result<Bytes> {
        let location = self.0.open(address)?;
        location.fetcher.read_at_most(&location.key, max_bytes).await
    }

    /// What a pipeline runs on that reads from them.
    pub(crate) fn runtime(&self) -> Result<Arc<dyn Runtime>> {
        self.0.runtime()
    }
}
