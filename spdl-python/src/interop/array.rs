//! Arrays that NumPy reads and writes in place.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use spdl_core::memory::BufferPool;
use spdl_core::{DType, Error, ErrorKind};

use crate::interop::error::to_exception;

/// The supported element types.
const DTYPES: [DType; 9] = [
    DType::U8,
    DType::U16,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// An array in host memory. `Array(shape, dtype)` is an array of zeros.
///
/// `dtype` is `uint8`, `uint16`, `int16`, `int32`, `int64`, `float16`, `bfloat16`, `float32` or
/// `float64`. The memory is contiguous in C order and aligned to 64 bytes.
///
/// `numpy.asarray`, DLPack consumers, and functions such as `spdl_rs.io.to_torch` share the memory
/// without a copy, and keep it alive. After the last user of the memory is dropped, the memory returns to
/// its pool. Until then only Python reads and writes the memory.
///
/// `memoryview(numpy.asarray(array))` shows the bytes. NumPy and its DLPack export have no
/// `bfloat16`: convert such arrays with `spdl_rs.io.to_torch` or `to_jax`.
#[pyclass(frozen, module = "spdl_rs.io")]
pub(crate) struct Array {
    array: spdl_core::Array,
    /// The address of the first byte, taken from a unique reference, which permits writes.
    address: usize,
}

impl From<spdl_core::Array> for Array {
    fn from(mut array: spdl_core::Array) -> Self {
        let address = array.as_bytes_mut().as_mut_ptr().expose_provenance();
        Array { array, address }
    }
}

impl Array {
    /// A byte array in newly allocated memory, filled by `write`.
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

    /// The length of each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.array.shape())
    }

    /// The name of the element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.array.dtype().name()
    }

    /// The NumPy array interface, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        const READ_ONLY: bool = false;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        let type_string = match self.array.dtype() {
            // Two opaque bytes, which `ml_dtypes` reinterprets as `bfloat16`.
            DType::BF16 => "|V2".to_owned(),
            other => type_string(other)?,
        };
        // The entries of NumPy's own arrays.
        interface.set_item("descr", vec![("", &type_string)])?;
        interface.set_item("strides", py.None())?;
        interface.set_item("typestr", type_string)?;
        interface.set_item("data", (self.address, READ_ONLY))?;
        Ok(interface)
    }

    /// A DLPack capsule, exported by NumPy. The capsule keeps a NumPy array alive, which keeps this array
    /// alive.
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
        // NumPy before 2.1 accepts `stream` alone. For the other arguments it raises `TypeError`, which
        // the DLPack protocol specifies, and the consumer retries without them.
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

    /// The DLPack device: the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        const CPU: i32 = 1;
        (CPU, 0)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.array)
    }
}

/// Allocates zeroed memory, in a pool that is not shared.
pub(crate) fn zeros(dtype: DType, shape: Vec<usize>) -> spdl_core::Result<spdl_core::Array> {
    let bytes = shape.iter().try_fold(dtype.size(), |bytes, &extent| bytes.checked_mul(extent));
    let bytes = bytes.ok_or_else(|| {
        let message = format!("cannot allocate a {dtype} array of shape {shape:?}: size overflow");
        Error::new(ErrorKind::LimitExceeded, message)
    })?;
    spdl_core::Array::new(dtype, shape, BufferPool::new().take(bytes)?)
}

pub(crate) fn named(dtype: &str) -> spdl_core::Result<DType> {
    DTYPES.into_iter().find(|known| known.name() == dtype).ok_or_else(|| {
        let names = DTYPES.map(DType::name).join(", ");
        let message = format!("unsupported dtype {dtype:?}; use one of: {names}");
        Error::new(ErrorKind::InvalidArgument, message)
    })
}

/// NumPy's type string: byte order, kind, size in bytes.
pub(crate) fn type_string(dtype: DType) -> PyResult<String> {
    let kind = match dtype {
        DType::U8 | DType::U16 => "u",
        DType::I16 | DType::I32 | DType::I64 => "i",
        DType::F16 | DType::F32 | DType::F64 => "f",
        other => {
            let message = format!("cannot convert a {other} array to NumPy: unsupported dtype");
            return Err(pyo3::exceptions::PyNotImplementedError::new_err(message));
        }
    };
    let order = match dtype.size() {
        1 => "|",
        _ if cfg!(target_endian = "big") => ">",
        _ => "<",
    };
    Ok(format!("{order}{kind}{}", dtype.size()))
}
