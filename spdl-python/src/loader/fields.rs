//! The fields of a `Loader`: their specification, and their values as Python objects.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::vec::IntoIter;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};
use spdl_core::stage::{Collation, SequenceLayout};
use spdl_core::{Batch, DType};
use spdl_io::FieldValue;
use spdl_media::fill::{Grouping, SampleField, SampleSpec};

use crate::interop::array::Array;
use crate::interop::error::to_exception;
use crate::operators::{Described, description};

/// The fields of the samples of a loader.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct SampleFields {
    pub(crate) spec: SampleSpec,
    forms: Vec<(Py<PyString>, Form, NumpyView)>,
    /// Whether truncated images may have black rows.
    pub(crate) allows_partial: bool,
    /// How samples are grouped; `None` if each batch has the next samples.
    pub(crate) grouping: Option<Grouping>,
}

/// The Python object of a field of a batch.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// One array.
    Array,
    /// A list of arrays.
    Arrays,
    /// Values and offsets.
    Ragged,
    /// Values and sizes.
    Padded,
    /// Values of one size, and sizes, which are not used.
    SameSize,
    /// A list of `str`.
    Text,
    /// A list of `bytes`.
    Bytes,
    /// A list of the objects that JSON describes.
    Json,
}

/// How NumPy views the elements of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NumpyView {
    /// With their dtype.
    Own,
    /// As `bool`.
    Flags,
}

#[pymethods]
impl SampleFields {
    /// Validates the fields: their names, the names of their Python classes, and their parameters.
    /// Likewise the grouping.
    #[new]
    #[pyo3(signature = (fields, group=None))]
    fn new(
        py: Python<'_>,
        fields: Vec<(String, Described<'_>)>,
        group: Option<Described<'_>>,
    ) -> PyResult<Self> {
        let mut spec = SampleSpec::new();
        let (mut forms, mut allows_partial) = (Vec::new(), false);
        for (name, described) in fields {
            let (field, form, view, is_partial) = field_of(&name, described)?;
            forms.push((PyString::new(py, &name).unbind(), form, view));
            spec = spec.with(name, field);
            allows_partial |= is_partial;
        }
        let mut grouping = None;
        if let Some(group) = group {
            let grouped = spec.grouped_from_description(&description(group)?);
            let (limited, group) = grouped.map_err(|error| to_exception(py, &error))?;
            spec = limited;
            allows_partial |= group.truncates();
            if group.packs() {
                for (name, form, _) in &mut forms {
                    if group.contains(name.to_str(py)?) {
                        *form = Form::Array;
                    }
                }
                let added = SequenceLayout::ADDED.map(|name| PyString::new(py, name).unbind());
                forms.extend(added.map(|name| (name, Form::Array, NumpyView::Own)));
            }
            grouping = Some(group);
        }
        spec.validate().map_err(|error| to_exception(py, &error))?;
        if spec.layout(1).fields().iter().any(|field| field.dtype == DType::BF16) {
            // Now, because an import during finalization would unwind a daemon thread.
            bfloat16(py);
        }
        Ok(SampleFields { spec, forms, allows_partial, grouping })
    }

    /// For each field before it is grouped: its name, how samples are collated, its dtype, and the shape of a
    /// sample, in which 0 is any length.
    fn describe(&self) -> Vec<(Py<PyString>, &'static str, &'static str, Vec<usize>)> {
        let layout = self.spec.layout(1);
        let fields = self.forms.iter().zip(layout.fields());
        Python::attach(|py| {
            let described = fields.map(|((name, form, view), field)| {
                let dtype = match (form, view) {
                    (Form::Text, _) => "str",
                    (Form::Bytes, _) => "bytes",
                    (Form::Json, _) => "object",
                    (_, NumpyView::Flags) => "bool",
                    _ => field.dtype.name(),
                };
                // The form of packed sequences is that of the sequences.
                let collate = match (form, field.collation) {
                    (Form::Text | Form::Bytes | Form::Json, _) => {
                        return (name.clone_ref(py), "list", dtype, Vec::new());
                    }
                    (Form::SameSize, _) => "stack",
                    (_, Collation::List) => "list",
                    (_, Collation::Ragged) => "ragged",
                    (_, Collation::Padded) => "pad",
                    _ => "stack",
                };
                (name.clone_ref(py), collate, dtype, field.shape.clone())
            });
            described.collect()
        })
    }
}

/// The field, the form of its values, and whether it allows partial images.
fn field_of(
    name: &str,
    (kind, settings): Described<'_>,
) -> PyResult<(SampleField, Form, NumpyView, bool)> {
    let text = |key: &str| match settings.get_item(key)? {
        Some(value) if !value.is_none() => value.extract::<String>().map(Some),
        _ => PyResult::Ok(None),
    };
    let collate = text("collate")?;
    let form = match (kind.as_str(), collate.as_deref()) {
        ("Text" | "Key" | "Url", _) => Form::Text,
        ("Bytes", _) => Form::Bytes,
        ("Json", _) => Form::Json,
        (_, Some("list")) => Form::Arrays,
        (_, Some("ragged")) => Form::Ragged,
        (_, Some("pad")) => Form::Padded,
        (_, Some("same")) => Form::SameSize,
        _ => Form::Array,
    };
    let is_flag = text("dtype")?.as_deref() == Some("bool");
    let view = if is_flag { NumpyView::Flags } else { NumpyView::Own };
    let allows_partial = text("on_truncated")?.as_deref() == Some("partial");
    let described = settings.copy()?;
    let default = settings.get_item("default")?;
    if default.is_some() {
        described.del_item("default")?;
    }
    if matches!(form, Form::SameSize) {
        described.set_item("collate", "pad")?;
    }
    let fault = fault_of(&kind);
    let value = description((kind, described))?;
    // A field may read a tokenizer.
    let py = settings.py();
    let field = py.detach(|| SampleField::from_description(name, &value));
    let field = field.map_err(|error| to_exception(py, &error))?;
    let field = match default {
        Some(default) => field.or(value_of(&default).map_err(fault)?),
        None => field,
    };
    Ok((field, form, view, allows_partial))
}

fn fault_of(kind: &str) -> impl Fn(PyErr) -> PyErr + use<> {
    let message = format!("unsupported default of {kind}");
    move |_| PyValueError::new_err(message.clone())
}

/// A default value. Python passes text, bytes, or anything else as JSON.
fn value_of(value: &Bound<'_, PyAny>) -> PyResult<FieldValue> {
    let (kind, value): (String, Bound<'_, PyAny>) = value.extract()?;
    Ok(match kind.as_str() {
        "text" => FieldValue::Text(value.extract::<String>()?.into()),
        "bytes" => FieldValue::Bytes(value.extract::<Vec<u8>>()?.into()),
        _ => {
            let text: String = value.extract()?;
            let parsed = serde_json::from_str(&text);
            FieldValue::Json(parsed.map_err(|error| PyValueError::new_err(error.to_string()))?)
        }
    })
}

/// The arrays and the lists of a batch, in the order of its fields.
struct Parts<'a, 'py> {
    arrays: IntoIter<spdl_core::Array>,
    lists: IntoIter<Vec<spdl_core::Array>>,
    /// `numpy.asarray`.
    as_array: &'a Bound<'py, PyAny>,
}

impl SampleFields {
    /// The values of a batch by field. Runs no Python code.
    pub(crate) fn to_dict<'py>(
        &self,
        mut batch: Batch,
        as_array: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = as_array.py();
        let lists: Vec<_> = batch.take_lists().map(|(_, list)| list).collect();
        let arrays = batch.into_arrays().into_iter();
        let mut parts = Parts { arrays, lists: lists.into_iter(), as_array };
        let values = PyDict::new(py);
        for (name, form, view) in &self.forms {
            values.set_item(name, parts.take(*form, *view)?)?;
        }
        Ok(values)
    }
}

impl<'py> Parts<'_, 'py> {
    fn next(&mut self) -> PyResult<spdl_core::Array> {
        self.arrays.next().ok_or_else(|| PyRuntimeError::new_err("a batch lacks an array"))
    }

    /// The value of the next field.
    fn take(&mut self, form: Form, view: NumpyView) -> PyResult<Bound<'py, PyAny>> {
        let py = self.as_array.py();
        Ok(match form {
            Form::Array => {
                let array = self.next()?;
                self.convert(array, view)?
            }
            Form::SameSize => {
                let (array, _) = (self.next()?, self.next()?);
                self.convert(array, view)?
            }
            Form::Arrays => {
                let list = self.lists.next().unwrap_or_default();
                let arrays = list.into_iter().map(|array| self.convert(array, view));
                PyList::new(py, arrays.collect::<PyResult<Vec<_>>>()?)?.into_any()
            }
            Form::Ragged => self.pair(ragged_type(py)?, view)?,
            Form::Padded => self.pair(padded_type(py)?, view)?,
            Form::Text => self.texts(|text| {
                // Names of files need not be valid UTF-8.
                Ok(OsStr::from_bytes(text).into_pyobject(py)?.into_any())
            })?,
            Form::Bytes => self.texts(|bytes| Ok(PyBytes::new(py, bytes).into_any()))?,
            Form::Json => self.texts(|text| match text {
                // The sample has no value.
                [] => Ok(py.None().into_bound(py)),
                text => {
                    let parsed = serde_json::from_slice(text);
                    let fault = |error: serde_json::Error| PyValueError::new_err(error.to_string());
                    object_of(py, &parsed.map_err(fault)?)
                }
            })?,
        })
    }

    fn convert(&self, array: spdl_core::Array, view: NumpyView) -> PyResult<Bound<'py, PyAny>> {
        let py = self.as_array.py();
        let dtype = array.dtype();
        let array = self.as_array.call1((Array::from(array),))?;
        match (dtype, view) {
            // NumPy got two opaque bytes for each element, of which Python code makes tensors.
            (DType::BF16, _) => match bfloat16(py) {
                Some(dtype) => array.call_method1("view", (dtype,)),
                None => Ok(array),
            },
            (_, NumpyView::Flags) => array.call_method1("view", ("?",)),
            (_, NumpyView::Own) => Ok(array),
        }
    }

    /// The next two arrays, as a named tuple.
    fn pair(&mut self, class: &Bound<'py, PyType>, view: NumpyView) -> PyResult<Bound<'py, PyAny>> {
        let (first, second) = (self.next()?, self.next()?);
        let arrays = (self.convert(first, view)?, self.convert(second, NumpyView::Own)?);
        // The constructor of the class would run Python code.
        class.py().get_type::<PyTuple>().call_method1("__new__", (class, arrays))
    }

    /// One object for the bytes of each sample.
    fn texts(
        &mut self,
        object: impl Fn(&[u8]) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = self.as_array.py();
        let (values, offsets) = (self.next()?, self.next()?);
        let offsets = offsets.as_slice::<i64>().map_err(|error| to_exception(py, &error))?;
        let bytes = values.as_bytes();
        let objects =
            offsets.windows(2).map(|ends| object(&bytes[ends[0] as usize..ends[1] as usize]));
        Ok(PyList::new(py, objects.collect::<PyResult<Vec<_>>>()?)?.into_any())
    }
}

/// A JSON value as `json.loads` returns it.
fn object_of<'py>(py: Python<'py>, value: &serde_json::Value) -> PyResult<Bound<'py, PyAny>> {
    use serde_json::Value;
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => integer.into_pyobject(py)?.into_any(),
            (None, Some(integer)) => integer.into_pyobject(py)?.into_any(),
            (None, None) => number.as_f64().unwrap_or(f64::NAN).into_pyobject(py)?.into_any(),
        },
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Array(values) => {
            let objects = values.iter().map(|value| object_of(py, value));
            PyList::new(py, objects.collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Value::Object(members) => {
            let object = PyDict::new(py);
            for (name, value) in members {
                object.set_item(name, object_of(py, value)?)?;
            }
            object.into_any()
        }
    })
}

/// `bfloat16` of the package `ml_dtypes`; `None` if it cannot be imported.
fn bfloat16(py: Python<'_>) -> Option<&Bound<'_, PyAny>> {
    static BFLOAT16: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let import = || {
        let module = py.import("ml_dtypes").ok()?;
        Some(module.getattr("bfloat16").ok()?.unbind())
    };
    BFLOAT16.get_or_init(py, import).as_ref().map(|dtype| dtype.bind(py))
}

fn ragged_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static RAGGED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    RAGGED.import(py, "spdl_rs.fields", "Ragged")
}

fn padded_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static PADDED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    PADDED.import(py, "spdl_rs.fields", "Padded")
}

/// Imports the classes of values now: an import during finalization would unwind a daemon thread.
pub(crate) fn import_types(py: Python<'_>) -> PyResult<()> {
    ragged_type(py)?;
    padded_type(py).map(drop)
}
