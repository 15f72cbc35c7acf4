//! Waiting without holding up Python: the GIL is free, and Ctrl-C is heard.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use spdl_core::{Error, ErrorKind, Result};

/// How long a wait lasts before it looks up for a signal.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// How long threads may take to end before Python goes on without them.
pub(crate) const WIND_DOWN: Duration = Duration::from_millis(500);

/// The thread that ends Python, once it does.
static ENDER: OnceLock<ThreadId> = OnceLock::new();

/// How often the process was forked since it imported this module, as a child: Python tells.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many threads are on their way into Python, or there, behind the number of forks: a fork has none
/// of its parent's threads, and begins a count of its own.
///
/// There are several counts, each on a cache line of its own, since threads count at every item.
static ENTERED: [Count; 64] = [const { Count(AtomicU64::new(0)) }; 64];

#[repr(align(64))]
struct Count(AtomicU64);

thread_local! {
    /// Where this thread counts itself.
    static PLACE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % ENTERED.len()
    };
}

/// To be called in the child of a fork.
pub(crate) fn has_forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// `ENTERED` where no thread is there behind so many forks.
fn none_behind(forks: u32) -> u64 {
    u64::from(forks) << u32::BITS
}

/// How many threads are there behind so many forks.
fn entered_behind(forks: u32, entered: u64) -> u64 {
    entered.checked_sub(none_behind(forks)).filter(|&n| n <= u32::MAX.into()).unwrap_or(0)
}

/// A way into Python that was open when this was made, and is until this is dropped.
///
/// Threads that ask for the GIL through PyO3 when Python has ended stay there for ever. But up to
/// version 3.13, Python unwinds those that its own code brings back: they run Python's functions, or
/// wait in them. Rust frames are below these, and that ends the process. So they are waited for.
pub(crate) struct Entered {
    forks: u32,
    place: usize,
}

impl Entered {
    /// `None` where another thread ends Python, or has.
    pub(crate) fn try_new() -> Option<Self> {
        let forks = FORKS.load(Ordering::Relaxed);
        // Whoever ends Python says so first and then looks at the count.
        let entered = Entered { forks, place: PLACE.with(|place| *place) };
        entered.count(|entered| Some(none_behind(forks) + entered_behind(forks, entered) + 1));
        let others = ENDER.get().is_some_and(|&ender| ender != thread::current().id());
        (!others).then_some(entered)
    }

    fn count(&self, change: impl FnMut(u64) -> Option<u64>) {
        // Where nothing is to be changed, nothing is.
        let _ = ENTERED[self.place].0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
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
        // A fork that counts anew has not counted what was made before it.
        self.count(|entered| (entered_behind(self.forks, entered) > 0).then(|| entered - 1));
    }
}

/// Keeps all threads but this one from asking for the GIL from now on, and waits for those that have
/// asked for it, or hold it. They are daemons by then, which nobody else waits for.
///
/// Whether some are in Python still. Up to version 3.13, the process crashes if one of them goes on
/// before it is over.
pub(crate) fn end_python(py: Python<'_>) -> bool {
    let forks = FORKS.load(Ordering::Relaxed);
    let is_within = |count: &Count| entered_behind(forks, count.0.load(Ordering::SeqCst)) > 0;
    let any_within = || ENTERED.iter().any(is_within);
    if ENDER.set(thread::current().id()).is_ok() {
        let deadline = Instant::now() + WIND_DOWN;
        py.detach(|| {
            while any_within() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
        });
    }
    any_within()
}

/// Runs `work` with the GIL.
///
/// # Errors
/// `Stopped` while Python ends.
pub(crate) fn with_python<R>(work: impl FnOnce(Python<'_>) -> R) -> Result<R> {
    let entered = Entered::try_new();
    let done = entered.as_ref().and_then(|_| Python::try_attach(work));
    done.ok_or_else(|| Error::new(ErrorKind::Stopped, "Python is shutting down"))
}

/// The same for work that may fail.
pub(crate) fn try_python<R>(work: impl FnOnce(Python<'_>) -> Result<R>) -> Result<R> {
    with_python(work)?
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
