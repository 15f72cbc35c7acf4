//! Waiting without holding up Python: the GIL is free, and Ctrl-C is heard.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::home::Home;

/// How long a wait lasts before it looks up for a signal.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// How long threads may take to end before Python goes on without them.
pub(crate) const WIND_DOWN: Duration = Duration::from_millis(500);

/// The thread that ends Python, once it does.
static ENDER: OnceLock<ThreadId> = OnceLock::new();

/// How many threads are on their way into Python, or there for a moment.
static ENTERED: AtomicUsize = AtomicUsize::new(0);

/// The process whose threads are counted: of a fork, the others are not there.
static COUNTED: OnceLock<Home> = OnceLock::new();

/// A way into Python that was open when this was made, and is until this is dropped: up to version
/// 3.13, Python unwinds threads that ask for the GIL when it has ended, and Rust ends the process for
/// that.
pub(crate) struct Entered(());

impl Entered {
    /// `None` where another thread ends Python, or has.
    pub(crate) fn try_new() -> Option<Self> {
        COUNTED.get_or_init(Home::here);
        // Whoever ends Python says so first and then looks at the count.
        ENTERED.fetch_add(1, Ordering::SeqCst);
        let entered = Entered(());
        let others = ENDER.get().is_some_and(|&ender| ender != thread::current().id());
        (!others).then_some(entered)
    }

    /// Stays here for ever instead.
    fn or_stay() -> Self {
        loop {
            match Entered::try_new() {
                Some(entered) => return entered,
                None => thread::park(),
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Keeps all threads but this one from asking for the GIL from now on, and waits for those that have
/// asked for it, or hold it. They are daemons by then, which nobody else waits for.
pub(crate) fn end_python(py: Python<'_>) {
    if ENDER.set(thread::current().id()).is_err() {
        return;
    }
    if COUNTED.get().is_none_or(|home| home.is_elsewhere()) {
        return;
    }
    let deadline = Instant::now() + WIND_DOWN;
    py.detach(|| {
        while ENTERED.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Waits without the GIL. Does not come back where another thread ends Python meanwhile.
pub(crate) fn without_python<T: Send>(py: Python<'_>, wait: impl Send + FnOnce() -> T) -> T {
    let (result, _entered) = py.detach(|| {
        let result = wait();
        (result, Entered::or_stay())
    });
    result
}

/// Calls `work` where no signal is heard: what it begins, it ends. To be used for what is done in a
/// moment, as nobody can interrupt it.
///
/// Python hears signals on its main thread alone; so another one calls it, and this one waits.
///
/// # Errors
/// What `work` raises; `OSError` where there is no thread to be had.
#[pyfunction]
pub(crate) fn uninterrupted(py: Python<'_>, work: Py<PyAny>) -> PyResult<Py<PyAny>> {
    let (send, receive) = mpsc::sync_channel(1);
    let call = move || {
        let entered = Entered::try_new();
        let called = entered.as_ref().and_then(|_| Python::try_attach(move |py| work.call0(py)));
        // Whoever waits for this stays until it comes.
        let _ = send.send(called);
    };
    thread::Builder::new().name("spdl-start".into()).spawn(call)?;
    let received = without_python(py, move || receive.recv());
    let ended = || Err(PyRuntimeError::new_err("Python is shutting down"));
    received.ok().flatten().unwrap_or_else(ended)
}

/// Runs `work` on a thread of its own and waits for it with the GIL free.
///
/// # Errors
/// What a signal handler raises, mostly `KeyboardInterrupt`; `work` is then left to its fate.
/// `RuntimeError` where `work` panics, `OSError` where there is no thread to be had.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    interruptible_with(py, work, |_| Ok(()))
}

/// The same, and calls `meanwhile` in each slice of the wait, and behind it.
///
/// # Errors
/// As [`interruptible`], and those of `meanwhile`.
pub(crate) fn interruptible_with<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    mut meanwhile: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let (send, receive) = mpsc::sync_channel(1);
    // The thread ends with `work`. Nobody is there to join it where a signal came first.
    thread::Builder::new().name("spdl-open".into()).spawn(move || send.send(work()))?;
    // A receiver may not be shared between threads, but lent to the one that waits.
    let mut receive = receive;
    loop {
        let lent = &mut receive;
        let received = without_python(py, move || lent.recv_timeout(SLICE));
        meanwhile(py)?;
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let message = "a thread of spdl_rs panicked; its message is on standard error";
                return Err(PyRuntimeError::new_err(message));
            }
        }
    }
}

/// Drops `value` on a thread of its own, and waits for that, but not longer than `at_most`.
///
/// What is dropped joins threads, and one of those may sit in a read that the operating system
/// does not give back, or in the decoding of a huge image. Python must not hang there.
pub(crate) fn drop_within<T: Send + 'static>(value: T, at_most: Duration) {
    let (done, dropped) = mpsc::channel::<()>();
    let work = move || {
        drop(value);
        drop(done);
    };
    // Where no thread is to be had, `work` is dropped here, and `value` with it.
    if let Ok(thread) = thread::Builder::new().name("spdl-wind-down".into()).spawn(work)
        && dropped.recv_timeout(at_most) == Err(RecvTimeoutError::Disconnected)
    {
        // A panic has been printed, and there is nothing left to save.
        let _ = thread.join();
    }
}
