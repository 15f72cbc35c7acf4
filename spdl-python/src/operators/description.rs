//! Descriptions of Python objects as JSON values, which `spdl_media::fill` reads.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Map, Number, Value};

/// The name of a Python class, and its parameters.
pub(crate) type Described<'py> = (String, Bound<'py, PyDict>);

/// A JSON object with the name of the class as `type`.
pub(crate) fn description((kind, settings): Described<'_>) -> PyResult<Value> {
    let mut members = members(&settings)?;
    members.insert("type".to_owned(), kind.into());
    Ok(Value::Object(members))
}

/// The parameters of an object.
pub(super) fn members(settings: &Bound<'_, PyDict>) -> PyResult<Map<String, Value>> {
    settings.iter().map(|(name, value)| Ok((name.extract()?, value_of(&value)?))).collect()
}

/// Numbers that are not finite, which JSON does not have, become text.
fn value_of(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if value.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(flag.is_true().into());
    }
    if value.is_instance_of::<PyInt>()
        && let Ok(whole) = value.extract::<i64>()
    {
        return Ok(whole.into());
    }
    if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyFloat>() {
        let number: f64 = value.extract()?;
        let name = if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        };
        return Ok(Number::from_f64(number).map_or_else(|| name.into(), Value::Number));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(value.extract::<String>()?.into());
    }
    if let Ok(described) = value.extract::<Described<'_>>() {
        return description(described);
    }
    if let Ok(numbers) = value.cast::<PyDict>() {
        return members(numbers).map(Value::Object);
    }
    if value.is_instance_of::<PyTuple>() || value.is_instance_of::<PyList>() {
        let values = value.try_iter()?.map(|value| value_of(&value?));
        return values.collect::<PyResult<Vec<_>>>().map(Value::Array);
    }
    Err(PyTypeError::new_err(format!("unsupported parameter {value}")))
}
