//! Timelines of a program, for a trace viewer such as Perfetto.
//!
//! ```text
//! StageHook: each item of each stage ──┐
//! consumer and source wait times ──────┼──► Session: JSON events ──► Python writer thread ──► file
//! Trace: spans and counters of Python ─┘    (bounded in bytes)
//! ```
//!
//! A process has at most one session. Without a session, recording costs one atomic load.

mod event;
mod hook;
mod session;
mod thread;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use event::{Span, Value, timestamp};
pub(crate) use hook::StageHook;
pub(crate) use thread::name_python_thread;

/// Maximum time between two writes of buffered events.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Whether a session is active.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether a session is active.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The current time, if a session is active.
pub(crate) fn began() -> Option<Instant> {
    is_on().then(Instant::now)
}

/// Records a span of this thread.
pub(crate) fn span(name: &str, kind: &str, began: Instant, ended: Instant) {
    if is_on() {
        session::write(|events| events.span(Span { name, kind, began, ended, details: &[] }));
    }
}

/// Records how long the consumer's thread waits, until the guard is dropped.
pub(crate) fn waiting(py: Python<'_>) -> Option<Waiting> {
    let began = began()?;
    name_python_thread(py);
    Some(Waiting { began })
}

/// Guard of a wait of the consumer.
pub(crate) struct Waiting {
    began: Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        span("wait", "consumer", self.began, Instant::now());
    }
}

/// A trace session, whose events are written as a file in the trace event format.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Trace {
    number: u64,
}

#[pymethods]
impl Trace {
    /// Starts a session that buffers at most `capacity` bytes. In a worker process, `elapsed` is the time in
    /// nanoseconds since the zero of its parent's timestamps.
    #[new]
    #[pyo3(signature = (process_name, capacity, elapsed=None))]
    fn new(process_name: &str, capacity: usize, elapsed: Option<u64>) -> PyResult<Self> {
        if let Some(elapsed) = elapsed {
            event::start_before(Duration::from_nanos(elapsed));
        }
        match session::begin(process_name, capacity) {
            Ok(number) => {
                ON.store(true, Ordering::SeqCst);
                Ok(Trace { number })
            }
            Err(why) => Err(PyRuntimeError::new_err(why)),
        }
    }

    /// Waits without the GIL for bytes to write. Returns `None` after the last bytes of a stopped
    /// session.
    fn next<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let lines = py.detach(|| session::take(self.number, FLUSH_INTERVAL));
        lines.map(|lines| PyBytes::new(py, lines.as_bytes()))
    }

    /// Stops recording. `next` still returns the buffered events.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| {
            if session::stop(self.number) {
                ON.store(false, Ordering::SeqCst);
            }
        });
    }

    /// Ends the session. Returns how many events were dropped because the buffer was full.
    fn close(&self, py: Python<'_>) -> u64 {
        self.stop(py);
        py.detach(|| session::end(self.number))
    }

    /// Stops recording in a forked child process.
    #[staticmethod]
    fn forget() {
        ON.store(false, Ordering::SeqCst);
    }

    /// The timestamp in nanoseconds, if a session is active.
    #[staticmethod]
    fn now() -> Option<u64> {
        began().map(|now| u64::try_from(timestamp(now).as_nanos()).unwrap_or(u64::MAX))
    }

    /// Records a span of this thread, from the timestamp `began` until now.
    ///
    /// Pass `nested=False` for a span that may overlap other spans of the thread.
    #[staticmethod]
    fn span(py: Python<'_>, name: &str, began: u64, nested: bool, details: Vec<(String, i64)>) {
        let Some(ended) = self::began() else { return };
        name_python_thread(py);
        let began = event::start().checked_add(Duration::from_nanos(began)).unwrap_or(ended);
        let numbers = details.iter().map(|(key, value)| (&**key, Value::Number((*value).into())));
        let details: Vec<_> = numbers.collect();
        let span = Span { name, kind: "python", began, ended, details: &details };
        session::write(|events| if nested { events.span(span) } else { events.async_span(span) });
    }

    /// Records the value of a counter.
    #[staticmethod]
    fn counter(name: &str, value: f64) {
        // JSON has no infinity and no NaN.
        if is_on() && value.is_finite() {
            session::write(|events| events.counter(name, value, Instant::now()));
        }
    }
}
