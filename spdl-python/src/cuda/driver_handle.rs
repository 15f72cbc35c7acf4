//! Driver objects that Python objects hold.

use std::ops::Deref;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::interop::fork::OwnerProcess;
use crate::interop::wait::without_python;

/// A shared driver object. The last handle drops the object without the GIL, because driver calls may block.
///
/// A forked child leaks the object: the driver does not work there, and locks that other threads of the
/// parent held stay locked.
pub(crate) struct DriverHandle<T: Send + Sync> {
    /// `None` only during `drop`.
    object: Option<Arc<T>>,
    owner: OwnerProcess,
}

impl<T: Send + Sync> DriverHandle<T> {
    pub(crate) fn new(value: T) -> Self {
        DriverHandle { object: Some(Arc::new(value)), owner: OwnerProcess::current() }
    }
}

impl<T: Send + Sync> Clone for DriverHandle<T> {
    fn clone(&self) -> Self {
        DriverHandle { object: self.object.clone(), owner: self.owner }
    }
}

impl<T: Send + Sync> Deref for DriverHandle<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        self.object.as_ref().expect("present until `drop`")
    }
}

impl<T: Send + Sync> Drop for DriverHandle<T> {
    fn drop(&mut self) {
        let object = self.object.take();
        if self.owner.is_forked_child() {
            std::mem::forget(object);
            return;
        }
        // If other handles exist, the GIL need not be released.
        let mut last = object.and_then(Arc::into_inner);
        if last.is_none() {
            return;
        }
        let drop_last = || drop(last.take());
        // During interpreter exit, no thread waits for the GIL.
        if Python::try_attach(|py| without_python(py, drop_last)).is_none() {
            drop(last);
        }
    }
}
