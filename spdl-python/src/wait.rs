//! Waiting without holding up Python: the GIL is free, and Ctrl-C is heard.

use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::prelude::*;

/// How long a wait lasts before it looks up for a signal.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// How long threads may take to end before Python goes on without them.
pub(crate) const WIND_DOWN: Duration = Duration::from_millis(500);

/// The thread that ends Python, once it does.
static ENDER: OnceLock<ThreadId> = OnceLock::new();

/// Whether Python is about to end. Whoever asks for the GIL then may never come back.
pub(crate) fn python_ends() -> bool {
    ENDER.get().is_some()
}

/// Says that this thread ends Python. The others are daemons by then, which nobody waits for.
pub(crate) fn end_python() {
    // Where Python is said to end twice, it is this thread both times.
    let _ = ENDER.set(thread::current().id());
}

/// Stays here for ever where another thread ends Python. To be called behind a wait without the GIL:
/// up to version 3.13, Python unwinds threads that come back too late, and Rust ends the process for
/// that.
pub(crate) fn stay_if_python_ends() {
    while ENDER.get().is_some_and(|&ender| ender != thread::current().id()) {
        thread::park();
    }
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
        let received = py.detach(move || {
            let received = lent.recv_timeout(SLICE);
            stay_if_python_ends();
            received
        });
        meanwhile(py)?;
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let message = "a thread of spdl_rs panicked; its message is on standard error";
                return Err(pyo3::exceptions::PyRuntimeError::new_err(message));
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
