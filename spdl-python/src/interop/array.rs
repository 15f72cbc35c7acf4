//! Arrays that NumPy reads and writes in place.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use spdl_core::memory::BufferPool;
use spdl_core::{DType, Error, ErrorKind};

use crate::interop::error::to_exception;

/// The types that there are arrays of.
const DTYPES: [DType; 5] = [DType::U8, DType::I64, DType::F16, DType::BF16, DType::F32];

/// An array in memory of this machine: `Array(shape, dtype)` is one of zeros, of `uint8`, `int64`,
/// `float16`, `bfloat16` or `float32`.
///
/// `numpy.asarray` reads and writes it in place, and so do `spdl_rs.io.to_torch` and the like, and
/// what takes DLPack. Each keeps it alive; with the last of them the memory goes back to the pool
/// that it came from. It is aligned to 64 bytes, its last index changes fastest, and Python may
/// write to it: nothing in Rust reads or writes it until it is back in the pool.
///
/// `memoryview(numpy.asarray(array))` shows its bytes. There is no `bfloat16` in NumPy, nor in its
/// DLPack: `spdl_rs.io.to_torch` and `to_jax` hand such arrays over.
#[pyclass(frozen, module = "spdl_rs.io")]
pub(crate) struct Array {
    array: spdl_core::Array,
    /// Of its first byte, taken from the only reference there was, so that it may be written to.
    address: usize,
}

impl From<spdl_core::Array> for Array {
    fn from(mut array: spdl_core::Array) -> Self {
        let address = array.as_bytes_mut().as_mut_ptr().expose_provenance();
        Array { array, address }
    }
}

impl Array {
    /// One of bytes, with memory of its own that `write` is given.
    pub(crate) fn of_bytes(
        len: usize,
        write: impl FnOnce(&mut [u8]) -> spdl_core::Result<()>,
    ) -> spdl_core::Result<Self> {
        let mut array = zeros(DType::U8, vec![len])?;
        write(array.as_bytes_mut())?;
        Ok(array.into())
    }
}

#[pymethods]
impl Array {
    /// An array of zeros.
    #[new]
    fn new(py: Python<'_>, shape: Vec<usize>, dtype: &str) -> PyResult<Self> {
        let array = named(dtype).and_then(|dtype| py.detach(|| zeros(dtype, shape)));
        array.map(Array::from).map_err(|error| to_exception(py, &error))
    }

    /// The extent of each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.array.shape())
    }

    /// The name of the type of the elements.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.array.dtype().name()
    }

    /// The array interface, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        const READ_ONLY: bool = false;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        let type_string = match self.array.dtype() {
            // Two bytes, which `ml_dtypes` can make numbers of.
            DType::BF16 => "|V2".to_owned(),
            other => type_string(other)?,
        };
        interface.set_item("typestr", type_string)?;
        interface.set_item("data", (self.address, READ_ONLY))?;
        Ok(interface)
    }

    /// A capsule of DLPack, made by NumPy: it keeps a NumPy array, and with it this one.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<Bound<'py, PyAny>>,
        copy: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let keywords = PyDict::new(py);
        // Before 2.1 NumPy knows `stream` alone: then whoever asks for more is told so, by the
        // `TypeError` that DLPack has for this, and asks for less.
        let given = [
            ("stream", stream),
            ("max_version", max_version),
            ("dl_device", dl_device),
            ("copy", copy),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                keywords.set_item(name, value)?;
            }
        }
        let array = py.import("numpy")?.call_method1("asarray", (slf,))?;
        array.call_method("__dlpack__", (), Some(&keywords))
    }

    /// Where the memory is, for DLPack: the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        const CPU: i32 = 1;
        (CPU, 0)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.array)
    }
}

/// New memory, in no pool that anybody else uses.
fn zeros(dtype: DType, shape: Vec<usize>) -> spdl_core::Result<spdl_core::Array> {
    let bytes = shape.iter().try_fold(dtype.size(), |bytes, &extent| bytes.checked_mul(extent));
    let bytes = bytes.ok_or_else(|| {
        let message = format!("an array of {dtype} {shape:?} is larger than any memory");
        Error::new(ErrorKind::LimitExceeded, message)
    })?;
    spdl_core::Array::new(dtype, shape, BufferPool::new().take(bytes)?)
}

fn named(dtype: &str) -> spdl_core::Result<DType> {
    DTYPES.into_iter().find(|known| known.name() == dtype).ok_or_else(|| {
        let names = DTYPES.map(DType::name).join(", ");
        let message = format!("there are arrays of {names}, and not of {dtype}");
        Error::new(ErrorKind::InvalidArgument, message)
    })
}

/// NumPy's code for an element: byte order, kind, bytes.
pub(crate) fn type_string(dtype: DType) -> PyResult<String> {
    let kind = match dtype {
        DType::U8 => "|u",
        DType::I64 if cfg!(target_endian = "big") => ">i",
        DType::I64 => "<i",
        DType::F32 | DType::F16 if cfg!(target_endian = "big") => ">f",
        DType::F32 | DType::F16 => "<f",
        other => {
            let message = format!("arrays of {other} cannot be handed to NumPy yet");
            return Err(pyo3::exceptions::PyNotImplementedError::new_err(message));
        }
    };
    Ok(format!("{kind}{}", dtype.size()))
}
