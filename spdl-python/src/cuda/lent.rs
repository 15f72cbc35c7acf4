//! What a driver has lent to objects of Python.

use std::ops::Deref;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::interop::fork::OwnerProcess;
use crate::interop::wait::without_python;

/// Something of a driver. Its last holder lets go of it with the GIL free, as a call of the driver may take
/// long; in a fork nobody does, as the driver does nothing there, and what threads had locked stays locked.
pub(crate) struct Lent<T: Send + Sync> {
    /// `None` only while this is dropped.
    held: Option<Arc<T>>,
    owner: OwnerProcess,
}

impl<T: Send + Sync> Lent<T> {
    pub(crate) fn new(value: T) -> Self {
        Lent { held: Some(Arc::new(value)), owner: OwnerProcess::current() }
    }
}

impl<T: Send + Sync> Clone for Lent<T> {
    fn clone(&self) -> Self {
        Lent { held: self.held.clone(), owner: self.owner }
    }
}

impl<T: Send + Sync> Deref for Lent<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        // Only `drop` takes it out, and nobody has this by then.
        self.held.as_ref().expect("it is held until it is dropped")
    }
}

impl<T: Send + Sync> Drop for Lent<T> {
    fn drop(&mut self) {
        let held = self.held.take();
        if self.owner.is_forked_child() {
            std::mem::forget(held);
            return;
        }
        // Where others hold it, there is nothing to be done, and no need to let go of the GIL.
        let mut last = held.and_then(Arc::into_inner);
        if last.is_none() {
            return;
        }
        let let_go = || drop(last.take());
        // Where Python is shutting down, nobody is held up.
        if Python::try_attach(|py| without_python(py, let_go)).is_none() {
            drop(last);
        }
    }
}
