//! The members of a tar archive, in sequence.

use bytes::Bytes;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};
use spdl_core::{Error, ErrorKind};
use spdl_io::Key;
use spdl_io::archive::{TarEntry, TarEvent, TarOptions, TarParser};

use super::buffer::Buffer;
use crate::interop::error::to_exception;

/// Maximum bytes per `read` call for data. Limits the memory that a corrupt header can make us allocate.
const MOST_AT_ONCE: u64 = 16 << 20;
/// Maximum bytes per `read` call for skipped data.
const SKIPPED_AT_ONCE: u64 = 1 << 20;

/// Iterator over the files of a tar archive, as pairs of name and contents.
#[pyclass(module = "spdl_rs._spdl_rs")]
pub(crate) struct TarFiles {
    archive: Archive,
    parser: TarParser,
}

/// Where an archive is read from.
enum Archive {
    /// Memory; contents are views of it.
    Memory(Buffer),
    /// An object with a method `read`.
    File(File),
}

struct File {
    read: Py<PyAny>,
    /// The number of bytes read.
    position: u64,
}

#[pymethods]
impl TarFiles {
    #[new]
    #[pyo3(signature = (source, accept_missing_end))]
    fn new(source: &Bound<'_, PyAny>, accept_missing_end: bool) -> PyResult<Self> {
        let archive = match Buffer::of(source) {
            Ok(buffer) => Archive::Memory(buffer),
            Err(error) if error.is_instance_of::<PyTypeError>(source.py()) => {
                let read = source.getattr_opt("read")?.ok_or_else(|| {
                    let kind = source.get_type().name().map(|name| name.to_string());
                    let kind = kind.unwrap_or_default();
                    let message =
                        format!("src must be bytes-like or have a read method, not {kind}");
                    PyTypeError::new_err(message)
                })?;
                Archive::File(File { read: read.unbind(), position: 0 })
            }
            Err(error) => return Err(error),
        };
        let options = TarOptions::default().accept_missing_end(accept_missing_end);
        Ok(TarFiles { archive, parser: TarParser::new(options) })
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(this: &Bound<'py, Self>) -> PyResult<Option<NameAndContents<'py>>> {
        // Another thread may be between two reads of one member.
        let Ok(mut files) = this.try_borrow_mut() else {
            let message = "another thread is reading this archive; open one archive per thread, or \
                           protect it with a lock";
            return Err(PyRuntimeError::new_err(message));
        };
        files.next(this.py())
    }
}

/// The name of a file, and its contents.
type NameAndContents<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

impl TarFiles {
    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<NameAndContents<'py>>> {
        while let Some(entry) = self.entry(py)? {
            if entry.is_not_a_file() {
                continue;
            }
            entry.check_readable().map_err(|error| to_exception(py, &error))?;
            let data = self.data(py, &entry)?;
            return Ok(Some((name(py, &entry.key)?, data)));
        }
        Ok(None)
    }

    /// The next member of any type.
    fn entry(&mut self, py: Python<'_>) -> PyResult<Option<TarEntry>> {
        let fault = |error: Error| to_exception(py, &error);
        loop {
            let wanted = self.parser.wants();
            let (piece, end) = match &mut self.archive {
                Archive::Memory(buffer) => {
                    let end = wanted.end.min(buffer.len());
                    let start = wanted.start.min(end);
                    (buffer.read(py, start..end).map_err(fault)?, buffer.len())
                }
                Archive::File(file) => {
                    file.skip_to(py, wanted.start)?;
                    let piece = file.read(py, wanted.end - wanted.start)?;
                    (Bytes::from_owner(PyBackedBytes::from(piece)), file.position)
                }
            };
            if (piece.len() as u64) < wanted.end - wanted.start {
                let finished = self.parser.finish(&piece);
                self.end();
                return finished.map(|()| None).map_err(|error| match error.kind() {
                    // Report the actual end of the archive, even inside the padding.
                    ErrorKind::Truncated => fault(error.with_offset(end)),
                    _ => fault(error),
                });
            }
            match self.parser.supply(&piece).map_err(fault)? {
                TarEvent::More => {}
                TarEvent::Entry(entry) => return Ok(Some(entry)),
                TarEvent::End => {
                    if let Archive::File(file) = &mut self.archive {
                        // A compressed stream has its checksum after the end of the archive.
                        file.skip_to(py, u64::MAX)?;
                    }
                    return Ok(None);
                }
            }
        }
    }

    fn data<'py>(&mut self, py: Python<'py>, entry: &TarEntry) -> PyResult<Bound<'py, PyAny>> {
        let range = entry.data_range();
        let (data, there) = match &mut self.archive {
            Archive::Memory(buffer) => {
                let end = range.end.min(buffer.len());
                let start = range.start.min(end);
                let view = buffer.view(py, start..end).map_err(|error| to_exception(py, &error))?;
                (view?, buffer.len())
            }
            Archive::File(file) => {
                // The file position is at the data, directly after the header.
                let data = file.read(py, entry.size)?;
                (data.into_any(), file.position)
            }
        };
        if there < range.end {
            self.end();
            return Err(to_exception(py, &entry.truncated(there)));
        }
        Ok(data)
    }

    /// Ends the iteration.
    fn end(&mut self) {
        // The short input ends the parser. Its error does not matter here.
        let _ = self.parser.finish(&[]);
    }
}

impl File {
    /// Reads `len` bytes, or up to the end of the file.
    fn read<'py>(&mut self, py: Python<'py>, len: u64) -> PyResult<Bound<'py, PyBytes>> {
        let mut pieces = Vec::new();
        let mut missing = len;
        while missing > 0 {
            let piece = self.piece(py, missing.min(MOST_AT_ONCE))?;
            let piece_len = piece.as_bytes().len() as u64;
            if piece_len == len {
                return Ok(piece);
            }
            if piece_len == 0 {
                break;
            }
            missing -= piece_len;
            pieces.push(piece);
        }
        let joined = PyBytes::new(py, b"").call_method1("join", (pieces,))?;
        Ok(joined.cast_into()?)
    }

    /// Reads and discards bytes up to `offset`, or up to the end of the file.
    fn skip_to(&mut self, py: Python<'_>, offset: u64) -> PyResult<()> {
        while self.position < offset {
            let piece = self.piece(py, (offset - self.position).min(SKIPPED_AT_ONCE))?;
            if piece.as_bytes().is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Calls `read` once: returns at most `most` bytes, and no bytes at the end of the file.
    fn piece<'py>(&mut self, py: Python<'py>, most: u64) -> PyResult<Bound<'py, PyBytes>> {
        let piece = self.read.bind(py).call1((most,))?;
        let piece = piece.cast_into::<PyBytes>().map_err(|error| {
            let kind = error.into_inner().get_type().name().map(|name| name.to_string());
            let kind = kind.unwrap_or_default();
            PyTypeError::new_err(format!("src.read must return bytes, not {kind}"))
        })?;
        let len = piece.as_bytes().len() as u64;
        if len > most {
            let message = format!("src.read({most}) returned {len} bytes, more than requested");
            return Err(PyValueError::new_err(message));
        }
        self.position += len;
        Ok(piece)
    }
}

/// Decodes a member name as UTF-8; invalid bytes become lone surrogates, as in `os.fsdecode`.
fn name<'py>(py: Python<'py>, key: &Key) -> PyResult<Bound<'py, PyAny>> {
    match std::str::from_utf8(key.as_bytes()) {
        Ok(text) => Ok(PyString::new(py, text).into_any()),
        Err(_) => {
            PyBytes::new(py, key.as_bytes()).call_method1("decode", ("utf-8", "surrogateescape"))
        }
    }
}
