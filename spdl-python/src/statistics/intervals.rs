//! Statistics per interval, read by a reporting thread of Python.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use spdl_core::observe::Interval;

use super::dict;

/// A duration longer than any run.
const WHOLE_RUN: Duration = Duration::from_secs(1 << 30);

/// The intervals of one run. With length 0, one interval spans the whole run.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Intervals {
    length: Duration,
    /// The run takes the sender to report its intervals.
    sender: Mutex<Option<Sender<Interval>>>,
    receiver: Mutex<Receiver<Interval>>,
}

#[pymethods]
impl Intervals {
    #[new]
    fn new(seconds: f64) -> Self {
        let length = Duration::try_from_secs_f64(seconds).unwrap_or(WHOLE_RUN);
        let length = if length.is_zero() { WHOLE_RUN } else { length.min(WHOLE_RUN) };
        let (sender, receiver) = mpsc::channel();
        Intervals { length, sender: Mutex::new(Some(sender)), receiver: Mutex::new(receiver) }
    }

    /// Waits without the GIL for the end of the next interval. Returns `None` after the run has ended.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let interval = py.detach(|| {
            let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
            receiver.recv().ok()
        });
        interval.map(|interval| dict::interval_to_dict(py, &interval)).transpose()
    }
}

impl Intervals {
    /// The interval length and the callback for each interval; `None` after the first call.
    pub(crate) fn listener(&self) -> Option<(Duration, impl FnMut(&Interval) + Send + use<>)> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        // Sending fails only after the receiver is dropped.
        let listener = move |interval: &Interval| drop(sender.send(interval.clone()));
        Some((self.length, listener))
    }
}
