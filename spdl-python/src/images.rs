//! Which images there are.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::Dataset;

use crate::error::to_exception;
use crate::wait::interruptible;

/// The images of a folder or of a list, with their labels.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct ImageFolder {
    pub(crate) images: Arc<spdl_io::ImageFolder>,
}

#[pymethods]
impl ImageFolder {
    /// Lists the images below a folder.
    #[staticmethod]
    fn open(py: Python<'_>, root: PathBuf) -> PyResult<Self> {
        let opened = interruptible(py, move || spdl_io::ImageFolder::open(root))?;
        ImageFolder::new(py, opened)
    }

    /// Takes these files in this order.
    #[staticmethod]
    #[pyo3(signature = (paths, labels=None))]
    fn from_paths(py: Python<'_>, paths: Vec<PathBuf>, labels: Option<Vec<i64>>) -> PyResult<Self> {
        let taken = py.detach(move || spdl_io::ImageFolder::from_paths(paths, labels.as_deref()));
        ImageFolder::new(py, taken)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.images.len())?)
    }

    /// The names of the classes.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.images.classes().to_vec()
    }

    /// What was left out, and why: a sentence each.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.images.warnings().iter().map(|warning| warning.report()).collect()
    }
}

impl ImageFolder {
    fn new(py: Python<'_>, images: spdl_core::Result<spdl_io::ImageFolder>) -> PyResult<Self> {
        let images = images.map_err(|error| to_exception(py, &error))?;
        Ok(ImageFolder { images: Arc::new(images) })
    }
}
