//! The members of a zip archive, such as a `.npz` file.

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use spdl_io::Key;
use spdl_io::archive::{self, ZipEntry, ZipKind, ZipMethod, ZipOptions};

use super::buffer::Buffer;
use crate::interop::array::Array;
use crate::interop::error::to_exception;

/// The central directory of a zip archive in memory.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct ZipDirectory {
    archive: Buffer,
    directory: archive::ZipDirectory,
}

#[pymethods]
impl ZipDirectory {
    #[new]
    fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = data.py();
        let archive = Buffer::of(data)?;
        // Stored members are views of memory that exists, so they need no limit. Python limits the
        // total size of compressed members.
        let options = ZipOptions::default().max_file_bytes(u64::MAX);
        let read = |range| archive.read(py, range);
        let directory = archive::ZipDirectory::read(archive.len(), options, read)
            .map_err(|error| to_exception(py, &error))?;
        Ok(ZipDirectory { archive, directory })
    }

    /// The names of the members that are files, in the order of the central directory.
    fn names(&self) -> Vec<String> {
        let files = self.directory.entries().iter().filter(|entry| entry.kind == ZipKind::File);
        files.map(|entry| String::from_utf8_lossy(entry.key.as_bytes()).into_owned()).collect()
    }

    /// The total uncompressed size of all compressed members, in bytes; saturates at `u64::MAX`.
    fn inflated_bytes(&self) -> u64 {
        let compressed =
            self.directory.entries().iter().filter(|entry| entry.method != ZipMethod::Stored);
        compressed.fold(0, |bytes, entry| bytes.saturating_add(entry.size))
    }

    /// The start, end and expected CRC-32 of a stored member; `None` if it is compressed.
    fn stored(&self, py: Python<'_>, name: &str) -> PyResult<Option<(u64, u64, u32)>> {
        let entry = self.entry(name)?;
        if entry.method != ZipMethod::Stored {
            return Ok(None);
        }
        let range = self.directory.stored_range(entry, |range| self.archive.read(py, range));
        let range = range.map_err(|error| to_exception(py, &error))?;
        Ok(Some((range.start, range.end, entry.crc32())))
    }

    /// Decompresses a member into a new array and checks its CRC-32.
    fn inflated(&self, py: Python<'_>, name: &str) -> PyResult<Array> {
        let entry = self.entry(name)?;
        // Reading needs the GIL only to copy from a mutable object.
        let inflate = || {
            let read = |range| Python::attach(|py| self.archive.read(py, range));
            let bytes = self.directory.data(entry, read)?;
            Array::of_bytes(bytes.len(), |array| {
                array.copy_from_slice(&bytes);
                Ok(())
            })
        };
        py.detach(inflate).map_err(|error| to_exception(py, &error))
    }
}

impl ZipDirectory {
    fn entry(&self, name: &str) -> PyResult<&ZipEntry> {
        self.directory.find(&Key::from(name)).ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }
}
