//! What a pipeline does in each interval, for a thread of Python's that tells of it.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use spdl_core::observe::Interval;

use super::dict;

/// Longer than any run.
const ALL_OF_IT: Duration = Duration::from_secs(1 << 30);

/// The intervals of one run. Where they have no length, there is one: from start to end.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Intervals {
    length: Duration,
    /// For the run that takes it.
    sender: Mutex<Option<Sender<Interval>>>,
    receiver: Mutex<Receiver<Interval>>,
}

#[pymethods]
impl Intervals {
    #[new]
    fn new(seconds: f64) -> Self {
        let length = Duration::try_from_secs_f64(seconds).unwrap_or(ALL_OF_IT);
        let length = if length.is_zero() { ALL_OF_IT } else { length.min(ALL_OF_IT) };
        let (sender, receiver) = mpsc::channel();
        Intervals { length, sender: Mutex::new(Some(sender)), receiver: Mutex::new(receiver) }
    }

    /// Waits, without the GIL, until the next interval is over. `None` once the run has ended.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let interval = py.detach(|| {
            let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
            receiver.recv().ok()
        });
        interval.map(|interval| dict::interval_to_dict(py, &interval)).transpose()
    }
}

impl Intervals {
    /// Their length, and what to call at the end of each; the first time it is asked.
    pub(crate) fn listener(&self) -> Option<(Duration, impl FnMut(&Interval) + Send + use<>)> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        // Where nobody listens any more, nobody wants to know.
        let listener = move |interval: &Interval| drop(sender.send(interval.clone()));
        Some((self.length, listener))
    }
}
