//! Arrow tables of Python libraries: polars, pyarrow, DuckDB, pandas, Hugging Face's `datasets`.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, DataType, FieldRef, Schema};
use pyo3::prelude::*;
use pyo3_arrow::input::AnyArray;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::Key;
use spdl_io::datasets::{ArrowDataset, local_files};

use crate::interop::error::to_exception;
use crate::interop::wait::interruptible;

/// The rows of a Python object with the Arrow PyCapsule interface.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct ArrowTable {
    pub(super) samples: Arc<ArrowDataset>,
    /// The name of the table in messages.
    pub(super) name: String,
    /// What the loader warns about.
    pub(super) warning: Option<Error>,
}

#[pymethods]
impl ArrowTable {
    /// Imports a table without copying its columns. `order` is a table whose first column has the positions of
    /// the rows that are samples.
    ///
    /// Returns `None` if the object is no table, but for example an array of texts.
    #[staticmethod]
    fn imported(
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        order: Option<&Bound<'_, PyAny>>,
        name: OsString,
    ) -> PyResult<Option<Self>> {
        let key = Key::from_path(name);
        let name = key.to_string();
        let fault = |error: Error| to_exception(py, &error.with_key(name.as_str()));
        let Some((schema, arrays)) = arrays_of(table, &name)? else { return Ok(None) };
        let schema = Arc::new(schema);
        let batches = arrays.map_err(fault)?.into_iter().map(|array| batch_of(&schema, &array));
        let batches = batches.collect::<Result<_>>().map_err(fault)?;
        let mut samples = ArrowDataset::new(key, &schema, batches).map_err(fault)?;
        if let Some((_, arrays)) = order.map(|order| arrays_of(order, &name)).transpose()?.flatten()
        {
            let rows = arrays.and_then(|arrays| positions_of(&arrays)).map_err(fault)?;
            samples = samples.select(rows).map_err(fault)?;
        }
        Ok(Some(ArrowTable { samples: Arc::new(samples), name, warning: None }))
    }

    /// Joins the tables of files, of which there is at least one.
    #[staticmethod]
    fn concatenated(
        py: Python<'_>,
        tables: Vec<PyRef<'_, Self>>,
        warning: Option<String>,
    ) -> PyResult<Self> {
        let samples = ArrowDataset::concatenated(tables.iter().map(|table| &*table.samples));
        let samples = samples.map_err(|error| to_exception(py, &error))?;
        let mut name = tables.first().map_or_else(String::new, |table| table.name.clone());
        let warning = warning
            .map(|message| Error::new(ErrorKind::Unsupported, message).with_key(name.as_str()));
        if tables.len() > 1 {
            name.push_str(&format!(" and {} more", tables.len() - 1));
        }
        Ok(ArrowTable { samples: Arc::new(samples), name, warning })
    }

    /// The local files that a path or pattern stands for.
    #[staticmethod]
    fn files(py: Python<'_>, pattern: OsString) -> PyResult<Vec<OsString>> {
        let text = pattern.to_str().filter(|text| !Path::new(text).exists());
        let Some(text) = text else { return Ok(vec![pattern]) };
        let files = py.detach(|| local_files(text)).map_err(|error| to_exception(py, &error))?;
        Ok(files.into_iter().map(PathBuf::into_os_string).collect())
    }
}

/// The schema of a table and its record batches as struct arrays; `None` for other arrays.
fn arrays_of(
    table: &Bound<'_, PyAny>,
    name: &str,
) -> PyResult<Option<(Schema, Result<Vec<ArrayRef>>)>> {
    let py = table.py();
    let reader = unwound(|| table.extract::<AnyArray>()?.into_reader());
    let reader = reader.map_err(|error| to_exception(py, &error.with_key(name)))??;
    let field: FieldRef = reader.field();
    let DataType::Struct(fields) = field.data_type() else { return Ok(None) };
    let schema = Schema::new_with_metadata(fields.clone(), field.metadata().clone());
    // A stream may compute its batches, and may need the GIL on other threads.
    let read = move || unwound(|| reader.collect::<std::result::Result<_, _>>());
    let arrays = interruptible(py, read)?;
    Ok(Some((schema, arrays.and_then(|arrays| arrays.map_err(failed)))))
}

/// The result of `import`.
///
/// # Errors
/// `Unsupported` if `import` panics, for example for an invalid table, or as the crate `arrow-data` does for structs in structs that have an offset.
fn unwound<T>(import: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(import)).map_err(|_| {
        let message = "cannot import this Arrow table: the table is invalid, or a part of a table whose structs \
                       contain structs, which must be copied first, for example by the method `take` of pyarrow";
        Error::new(ErrorKind::Unsupported, message)
    })
}

/// # Errors
/// `InvalidArgument` for an array of structs with nulls: the rows of record batches are never null.
fn batch_of(schema: &Arc<Schema>, array: &ArrayRef) -> Result<RecordBatch> {
    if array.null_count() > 0 {
        let message = format!(
            "an array of structs with {} null elements is no table; remove them, for example by the method `drop_null` of pyarrow",
            array.null_count()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let columns = array.as_struct_opt().map(|structs| structs.columns().to_vec());
    let options = RecordBatchOptions::new().with_row_count(Some(array.len()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns.unwrap_or_default(), &options)
        .map_err(failed)
}

/// The numbers of the first column.
fn positions_of(arrays: &[ArrayRef]) -> Result<Vec<u64>> {
    let mut positions = Vec::new();
    for array in arrays {
        let numbers = array.as_struct_opt().and_then(|structs| structs.columns().first());
        let numbers = numbers.and_then(|column| column.as_primitive_opt::<UInt64Type>());
        let Some(numbers) = numbers else {
            let message = "the positions of the rows are not 64-bit unsigned integers";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        positions.extend_from_slice(numbers.values());
    }
    Ok(positions)
}

fn failed(error: ArrowError) -> Error {
    Error::new(ErrorKind::Corrupt, "cannot read the Arrow table").with_source(error)
}
