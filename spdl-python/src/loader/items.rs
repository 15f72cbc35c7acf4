//! Map-style Python data sets: objects whose `__getitem__` returns a sample as a `dict`.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMemoryView, PyString, PyTuple,
};
use spdl_core::{
    Dataset, Error, ErrorKind, PipelineBuilder, Result, Stage, StageContext, StageOptions,
};
use spdl_io::archive::{NpyArray, NpyType};
use spdl_io::records::{Encoding, Extent, StoredField};
use spdl_io::{FieldValue, Key, StoredRecord};

use super::functions::add_counted;
use crate::interop::error::{Raised, exception_in_words};
use crate::interop::wait::{GilRequests, try_python};

/// The positions of a map-style data set. The stage [`add`] reads the samples.
#[derive(Debug)]
pub(super) struct Items {
    pub(super) name: String,
    pub(super) len: u64,
    /// The position of the first item for the stage, which may read several data sets.
    pub(super) first: u64,
}

impl Dataset for Items {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.len
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let position = i64::try_from(self.first.saturating_add(index)).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, "index out of range").with_source(error)
        })?;
        let key = format!("{}:{index}", self.name);
        // The only field until the stage has read the sample.
        Ok(StoredRecord::new(key.as_str()).with_known("", FieldValue::Integer(position)))
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        Some(item.key.display_name())
    }
}

/// Adds the stage that calls `__getitem__`.
pub(super) fn add(
    source: PipelineBuilder<StoredRecord>,
    function: &Arc<Py<PyAny>>,
    gil: &Arc<GilRequests>,
) -> PipelineBuilder<StoredRecord> {
    let function = Arc::clone(function);
    let options = StageOptions::new("getitem").holds_gil(true);
    add_counted(source, options, gil, move || Ok(ReadItem(Arc::clone(&function))))
}

/// Calls `__getitem__` with the position of each sample.
struct ReadItem(Arc<Py<PyAny>>);

impl Stage<StoredRecord> for ReadItem {
    type Out = StoredRecord;

    fn process(
        &mut self,
        mut record: StoredRecord,
        cx: &mut StageContext<'_, StoredRecord>,
    ) -> Result<()> {
        // Samples of other data sets pass through.
        let position = match &record.fields[..] {
            [(name, StoredField::Known(FieldValue::Integer(position)))] if name.is_empty() => {
                *position
            }
            _ => return cx.emit(record),
        };
        record.fields = try_python(|py| {
            // One stage, which needs no random numbers.
            let item = self.0.bind(py).call1((position, [PyList::empty(py)]));
            let item = item.map_err(|exception| Raised::into_error(py, exception))?;
            fields_of(&item)
        })?;
        cx.emit(record)
    }
}

/// The fields of a `dict`.
pub(super) fn fields_of(item: &Bound<'_, PyAny>) -> Result<Vec<(Arc<str>, StoredField)>> {
    let py = item.py();
    let invalid = |message: String| Error::new(ErrorKind::InvalidArgument, message);
    let words = |exception: PyErr| exception_in_words(py, &exception);
    let item = item.cast::<PyDict>().map_err(|error| invalid(words(error.into())))?;
    let field = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name: String = name
            .extract()
            .map_err(|error| invalid(format!("a name of a field is no str: {}", words(error))))?;
        let stored = stored_field(&value);
        let stored =
            stored.map_err(|error| invalid(format!("field {name:?}: {}", words(error))))?;
        Ok((name.into(), stored))
    };
    item.iter().map(field).collect()
}

/// The value of a field. A `pathlib.Path` is a local file.
fn stored_field(value: &Bound<'_, PyAny>) -> PyResult<StoredField> {
    if !value.is_instance_of::<PyString>() && value.hasattr("__fspath__")? {
        return local_file(value);
    }
    if let Ok(members) = value.cast::<PyDict>()
        && let Some(file) = media_file(members)?
    {
        return Ok(file);
    }
    field_value(value).map(StoredField::Known)
}

fn local_file(path: &Bound<'_, PyAny>) -> PyResult<StoredField> {
    let path: PathBuf = path.extract()?;
    Ok(StoredField::At(Extent::whole(Key::from_path(path)), Encoding::Bytes))
}

/// The content of a file as Hugging Face's `datasets` stores images and audio: `{"bytes": …, "path": …}`.
fn media_file(members: &Bound<'_, PyDict>) -> PyResult<Option<StoredField>> {
    let (Some(bytes), Some(path), 2) =
        (members.get_item("bytes")?, members.get_item("path")?, members.len())
    else {
        return Ok(None);
    };
    if let Ok(bytes) = bytes.cast::<PyBytes>() {
        return Ok(Some(StoredField::Known(FieldValue::Bytes(shared(bytes)))));
    }
    match bytes.is_none() && path.is_instance_of::<PyString>() {
        true => local_file(&path).map(Some),
        false => Ok(None),
    }
}

fn field_value(value: &Bound<'_, PyAny>) -> PyResult<FieldValue> {
    let py = value.py();
    if value.is_none() {
        return Ok(FieldValue::Null);
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(FieldValue::Bytes(shared(bytes)));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(FieldValue::Text(text.extract::<String>()?.into()));
    }
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(FieldValue::Bool(value.is_true()));
    }
    if value.is_instance_of::<PyInt>() {
        return value.extract().map(FieldValue::Integer);
    }
    if value.is_instance_of::<PyFloat>() {
        return value.extract().map(FieldValue::Float);
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let values = value.try_iter()?.map(|value| field_value(&value?));
        return Ok(list(values.collect::<PyResult<_>>()?));
    }
    if let Ok(members) = value.cast::<PyDict>() {
        let member = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            let value = field_value(&value)?;
            let json = value.to_json().ok_or_else(|| unsupported(value.kind(), "inside a dict"))?;
            Ok((name.extract::<String>()?, json))
        };
        let members = members.iter().map(member).collect::<PyResult<_>>()?;
        return Ok(FieldValue::Json(serde_json::Value::Object(members)));
    }
    if value.is_instance_of::<PyByteArray>() || value.is_instance_of::<PyMemoryView>() {
        let bytes = py.get_type::<PyBytes>().call1((value,))?;
        return Ok(FieldValue::Bytes(shared(bytes.cast()?)));
    }
    // Arrays and scalars of NumPy, and tensors of PyTorch.
    if value.hasattr("__array__")? {
        return array(value);
    }
    let class = value.get_type();
    let what = format!("a value of type {}", class.name()?);
    let is_decoded = class.module()?.to_string_lossy().starts_with("PIL");
    let advice = match is_decoded {
        true => {
            "as the value of a field; pass the bytes of the file, as datasets.Image(decode=False) does; in place of \
             torchvision's ImageFolder, pass its folder as the source"
        }
        false => "as the value of a field",
    };
    Err(unsupported(&what, advice))
}

fn unsupported(what: &str, place: &str) -> PyErr {
    let message = format!("{what} is not supported {place}");
    pyo3::exceptions::PyTypeError::new_err(message)
}

/// The bytes of an object, which it shares.
fn shared(bytes: &Bound<'_, PyBytes>) -> Bytes {
    Bytes::from_owner(PyBackedBytes::from(bytes.clone()))
}

fn list(values: Vec<FieldValue>) -> FieldValue {
    let integers = values.iter().map(|value| match value {
        FieldValue::Integer(number) => Some(*number),
        _ => None,
    });
    if let Some(integers) = integers.collect() {
        return FieldValue::Integers(integers);
    }
    let floats = values.iter().map(|value| match value {
        FieldValue::Integer(_) | FieldValue::Float(_) => value.as_f64(),
        _ => None,
    });
    match floats.collect() {
        Some(floats) => FieldValue::Floats(floats),
        None => FieldValue::List(values),
    }
}

fn array(value: &Bound<'_, PyAny>) -> PyResult<FieldValue> {
    let py = value.py();
    let mut array = py.import("numpy")?.call_method1("asarray", (value,))?;
    let mut dtype = array.getattr("dtype")?;
    if !dtype.getattr("isnative")?.is_truthy()? {
        dtype = dtype.call_method1("newbyteorder", ("=",))?;
        array = array.call_method1("astype", (&dtype,))?;
    }
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    if shape.is_empty() {
        let value = array.call_method0("item")?;
        // An array of an object contains any object, also an array.
        return match value.hasattr("__array__")? {
            false => field_value(&value),
            true => Err(unsupported("an array of objects", "as the value of a field")),
        };
    }
    let (kind, size): (String, u8) =
        (dtype.getattr("kind")?.extract()?, dtype.getattr("itemsize")?.extract()?);
    let element = match (kind.as_str(), size) {
        ("b", 1) => NpyType::Bool,
        ("i", 1..=8) => NpyType::Int(size),
        ("u", 1..=8) => NpyType::UInt(size),
        ("f", 2 | 4 | 8) => NpyType::Float(size),
        _ => {
            let what = format!("an array of {}", dtype.str()?);
            return Err(unsupported(&what, "as the value of a field"));
        }
    };
    // In C order.
    let data = array.call_method0("tobytes")?;
    let array = NpyArray::new(element, shape, shared(data.cast()?));
    array.map(FieldValue::Array).map_err(|error| crate::interop::error::to_exception(py, &error))
}
