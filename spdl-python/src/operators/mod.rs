//! The operators of `spdl_rs.io`, for single items, and their argument conversion.
//!
//! ```text
//! Reader: a path or an address ──► bytes ──► ImageDecoder ──► pixels ──► ImageAugmenter ──► pixels
//!                                        ──► FieldDecoder ──► the value of a field, such as a clip
//! ```

mod augmenter;
mod decoder;
mod description;
mod draws;
mod field_decoder;
mod reader;

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::{DType, Result};

pub(crate) use augmenter::{AUGMENT, ImageAugmenter, augment_pixels, size_of};
pub(crate) use decoder::{BYTES, DECODE, ImageDecoder};
pub(crate) use description::{Described, description};
pub(crate) use draws::{Draws, ItemDraws};
pub(crate) use field_decoder::{FieldDecoder, FieldWorker, file_bytes};
#[cfg(feature = "ffmpeg")]
pub(crate) use reader::SharedStores;
pub(crate) use reader::{Location, Reader, Stores, location_of};

use crate::interop::array::Array;
use crate::interop::error::to_exception;
use crate::io::buffer::Buffer;

/// The number of channels of augmented images.
const CHANNELS: usize = 3;

/// Copies bytes to an array for NumPy.
pub(crate) fn array_of(bytes: &[u8]) -> Result<Array> {
    Array::of_bytes(bytes.len(), |array| {
        array.copy_from_slice(bytes);
        Ok(())
    })
}

/// The bytes of an image file: shared if the object is immutable, otherwise copied.
///
/// # Errors
/// `TypeError` if the object does not support the buffer protocol.
pub(crate) fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    const WANTED: &str =
        "DecodeImage takes the bytes of an image file, or a pair of bytes and label";
    bytes_with_message(data, WANTED).map_err(|error| {
        let py = data.py();
        match error.is_instance_of::<PyTypeError>(py) {
            true => {
                let message = format!("{}; to read files, add Fetch before it", error.value(py));
                PyTypeError::new_err(message)
            }
            false => error,
        }
    })
}

/// Like [`bytes_of`], with another description of the expected argument.
///
/// # Errors
/// The errors of [`bytes_of`].
pub(crate) fn bytes_with_message(data: &Bound<'_, PyAny>, wanted: &str) -> PyResult<Bytes> {
    let py = data.py();
    let shown = match data.cast::<Array>() {
        Ok(array) => py.import("numpy")?.call_method1("asarray", (array,))?,
        Err(_) => data.clone(),
    };
    let buffer = Buffer::of(&shown).map_err(|error| {
        if !error.is_instance_of::<PyTypeError>(py) {
            return error;
        }
        PyTypeError::new_err(format!("{wanted}, not {}", type_name(data)))
    })?;
    buffer.read(py, 0..buffer.len()).map_err(|error| to_exception(py, &error))
}

/// Copies pixels of dtype `uint8` and shape `[height, width, 3]`.
///
/// # Errors
/// `TypeError` for another dtype, `ValueError` for another shape.
pub(crate) fn pixels_of(data: &Bound<'_, PyAny>, pool: &BufferPool) -> PyResult<spdl_core::Array> {
    const WANTED: &str = "AugmentImage takes pixels, uint8 [height, width, 3], or a pair of pixels \
                          and label, not";
    let py = data.py();
    let numpy = py.import("numpy")?;
    let array = numpy.call_method1("asarray", (data,))?;
    if array.getattr("dtype")?.getattr("str")?.extract::<String>()? != "|u1" {
        let found = match data.hasattr("dtype")? {
            true => data.getattr("dtype")?.str()?.to_string(),
            false => type_name(data),
        };
        return Err(PyTypeError::new_err(format!("{WANTED} {found}")));
    }
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    if !matches!(shape[..], [height, width, CHANNELS] if height > 0 && width > 0) {
        return Err(PyValueError::new_err(format!("{WANTED} {shape:?}")));
    }
    let buffer = Buffer::of(&numpy.call_method1("ascontiguousarray", (array,))?)?;
    let copy = || {
        let bytes = buffer.read(py, 0..buffer.len())?;
        let mut copy = spdl_core::Array::new(DType::U8, shape, pool.take(bytes.len())?)?;
        copy.as_bytes_mut().copy_from_slice(&bytes);
        Ok(copy)
    };
    copy().map_err(|error| to_exception(py, &error))
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map(|name| name.to_string()).unwrap_or_default()
}
