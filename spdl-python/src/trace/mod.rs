//! Traces: what ran when, on which thread, for a viewer such as Perfetto.
//!
//! ```text
//! StageHook: each item of each stage ──┐
//! waiting: the consumer, a source ─────┼──► Session: lines of JSON ──► a thread of Python's ──► file
//! Trace: spans and counters of Python ─┘    (as many bytes as allowed)
//! ```
//!
//! There is one session in a process. Where there is none, whoever could tell it something looks at
//! one atomic flag and goes on.

mod hook;
mod line;
mod session;
mod thread;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub(crate) use hook::StageHook;
use line::{Span, Value, since_start};
pub(crate) use thread::name_python_thread;

/// For how long lines wait for others before they are written.
const FLUSH: Duration = Duration::from_secs(1);

/// Whether there is a session.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether anybody wants to know.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The time, where anybody wants to know.
pub(crate) fn began() -> Option<Instant> {
    is_on().then(Instant::now)
}

/// Tells of something that this thread did from `began` until `ended`.
pub(crate) fn span(name: &str, kind: &str, began: Instant, ended: Instant) {
    if is_on() {
        session::write(|line| line.span(Span { name, kind, began, ended, details: &[] }));
    }
}

/// Tells how long a thread of Python's waits, until this is dropped.
pub(crate) fn waiting(py: Python<'_>) -> Option<Waiting> {
    let began = began()?;
    name_python_thread(py);
    Some(Waiting { began })
}

/// A wait of the consumer's.
pub(crate) struct Waiting {
    began: Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        span("wait", "consumer", self.began, Instant::now());
    }
}

/// A session: what happens until it is stopped, as bytes of a file in the trace event format.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Trace {
    number: u64,
}

#[pymethods]
impl Trace {
    /// Begins a session, of which at most `capacity` bytes wait to be written.
    #[new]
    fn new(process_name: &str, capacity: usize) -> PyResult<Self> {
        match session::begin(process_name, capacity) {
            Ok(number) => {
                ON.store(true, Ordering::SeqCst);
                Ok(Trace { number })
            }
            Err(why) => Err(PyRuntimeError::new_err(why)),
        }
    }

    /// Waits, without the GIL, until something is to be written. `None` once that was the last.
    fn next<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let lines = py.detach(|| session::take(self.number, FLUSH));
        lines.map(|lines| PyBytes::new(py, lines.as_bytes()))
    }

    /// Ends the recording. What was recorded is still to be written.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| {
            if session::stop(self.number) {
                ON.store(false, Ordering::SeqCst);
            }
        });
    }

    /// Ends the session, so that there may be another one. Says how many events found no room.
    fn close(&self, py: Python<'_>) -> u64 {
        self.stop(py);
        py.detach(|| session::end(self.number))
    }

    /// Records nothing any more in a process that was forked while there was a session.
    #[staticmethod]
    fn forget() {
        ON.store(false, Ordering::SeqCst);
    }

    /// The time in nanoseconds, where there is a session.
    #[staticmethod]
    fn now() -> Option<u64> {
        began().map(|now| u64::try_from(since_start(now).as_nanos()).unwrap_or(u64::MAX))
    }

    /// Tells of something that this thread has done since a time of `now`; or that ran beside other
    /// things on it, where it is not `nested` in what surrounds it.
    #[staticmethod]
    fn span(py: Python<'_>, name: &str, began: u64, nested: bool, details: Vec<(String, i64)>) {
        let Some(ended) = self::began() else { return };
        name_python_thread(py);
        let began = line::start().checked_add(Duration::from_nanos(began)).unwrap_or(ended);
        let numbers = details.iter().map(|(key, value)| (&**key, Value::Number((*value).into())));
        let details: Vec<_> = numbers.collect();
        let span = Span { name, kind: "python", began, ended, details: &details };
        session::write(|line| if nested { line.span(span) } else { line.span_beside(span) });
    }

    /// Tells the value of a counter.
    #[staticmethod]
    fn counter(name: &str, value: f64) {
        // JSON has no other numbers.
        if is_on() && value.is_finite() {
            session::write(|line| line.counter(name, value, Instant::now()));
        }
    }
}
