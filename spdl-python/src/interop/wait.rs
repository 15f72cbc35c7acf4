//! Blocking waits that release the GIL and handle Ctrl-C.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use spdl_core::{Error, ErrorKind, Result};

use super::fork::end_forked_child;

/// Interval at which a wait checks for signals.
pub(crate) const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// How long shutdown waits for threads to end.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// The thread that finalizes Python, once finalization has started.
static FINALIZER: OnceLock<ThreadId> = OnceLock::new();

/// The number of forks between the process that imported this module and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The number of threads that hold or wait for the GIL, in the lower 32 bits.
///
/// The upper 32 bits hold the fork count, because a forked child has none of its parent's threads
/// and starts from zero. The count is split over cache lines, because threads change it per item.
static GIL_THREADS: [AlignedCount; 64] = [const { AlignedCount(AtomicU64::new(0)) }; 64];

#[repr(align(64))]
struct AlignedCount(AtomicU64);

thread_local! {
    /// Counts this thread's requests for the GIL.
    static GIL_REQUESTS: RefCell<Option<Arc<GilRequests>>> = const { RefCell::new(None) };
    /// How many requests for the GIL this thread has made.
    static GIL_REQUEST: Cell<u32> = const { Cell::new(0) };
    /// The index of this thread in `GIL_THREADS`.
    static COUNT_INDEX: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % GIL_THREADS.len()
    };
}

/// Counts a fork. The forked child calls this function.
pub(crate) fn has_forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of forks between the start of the first process and this one.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// The value of `GIL_THREADS` that means zero threads after `forks` forks.
fn zero_after(forks: u32) -> u64 {
    u64::from(forks) << u32::BITS
}

/// The number of threads in a value of `GIL_THREADS`, or 0 if the value predates the last fork.
fn threads_after(forks: u32, entered: u64) -> u64 {
    entered.checked_sub(zero_after(forks)).filter(|&n| n <= u32::MAX.into()).unwrap_or(0)
}

/// Guard that delays finalization while this thread holds or waits for the GIL.
///
/// After finalization, PyO3 parks threads that request the GIL forever. But Python up to 3.13
/// unwinds threads that reacquire the GIL in its own code, and unwinding through Rust frames aborts
/// the process. So finalization waits for these guards.
pub(crate) struct GilGuard {
    forks: u32,
    index: usize,
}

impl GilGuard {
    /// Returns `None` if another thread finalizes Python, or has done so.
    pub(crate) fn try_new() -> Option<Self> {
        let forks = forks();
        // First count, then check: the finalizing thread sets `FINALIZER` first and then reads the count.
        let entered = GilGuard { forks, index: COUNT_INDEX.with(|index| *index) };
        entered.count(|entered| Some(zero_after(forks) + threads_after(forks, entered) + 1));
        let others = FINALIZER.get().is_some_and(|&finalizer| finalizer != thread::current().id());
        (!others).then_some(entered)
    }

    fn count(&self, change: impl FnMut(u64) -> Option<u64>) {
        // `Err` means that `change` returned `None`: the count stays as it is.
        let _ = GIL_THREADS[self.index].0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
    }

    /// Like `try_new`, but parks the thread forever if another thread finalizes Python.
    fn or_park() -> Self {
        loop {
            match GilGuard::try_new() {
                Some(entered) => return entered,
                None => thread::park(),
            }
        }
    }
}

impl Drop for GilGuard {
    fn drop(&mut self) {
        // The count of a forked child does not include guards of the parent.
        self.count(|entered| (threads_after(self.forks, entered) > 0).then(|| entered - 1));
    }
}

/// Stops all other threads from requesting the GIL, and waits for threads that hold or request it.
///
/// Returns whether any of these threads still holds or requests the GIL after the timeout. With
/// Python up to 3.13, the process crashes if such a thread continues during finalization. The
/// threads are daemons, so Python does not join them.
pub(crate) fn end_python(py: Python<'_>, timeout: Duration) -> bool {
    let forks = forks();
    let has_threads =
        |count: &AlignedCount| threads_after(forks, count.0.load(Ordering::SeqCst)) > 0;
    let any_left = || GIL_THREADS.iter().any(has_threads);
    if FINALIZER.set(thread::current().id()).is_ok() {
        let deadline = Instant::now() + timeout;
        py.detach(|| {
            while any_left() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
        });
    }
    any_left()
}

/// A request for the GIL that takes longer than this time had to wait for another thread.
const CONTENDED: Duration = Duration::from_micros(100);

/// Each thread measures its first requests for the GIL, and then one in `SAMPLED`. Measuring all
/// requests took 0.1 to 0.25 µs per call. A prime interval samples all kinds of requests of an item.
const MEASURED_FIRST: u32 = 64;
const SAMPLED: u32 = 13;

/// How often some threads requested the GIL, how often another thread held it, and how long they
/// waited: estimates from a sample.
#[derive(Debug, Default)]
pub(crate) struct GilRequests {
    all: AtomicU64,
    contended: AtomicU64,
    waited_nanos: AtomicU64,
}

impl GilRequests {
    /// Counts the requests of this thread from now on.
    pub(crate) fn count_on_this_thread(self: &Arc<Self>) {
        GIL_REQUESTS.with(|mine| {
            let mut mine = mine.borrow_mut();
            if !mine.as_ref().is_some_and(|counted| Arc::ptr_eq(counted, self)) {
                *mine = Some(Arc::clone(self));
                GIL_REQUEST.set(0);
            }
        });
    }

    /// The requests so far, as the engine counts them.
    pub(crate) fn total(&self) -> spdl_core::observe::GilRequests {
        let mut total = spdl_core::observe::GilRequests::default();
        total.all = self.all.load(Ordering::Relaxed);
        total.contended = self.contended.load(Ordering::Relaxed);
        total.waited = Duration::from_nanos(self.waited_nanos.load(Ordering::Relaxed));
        total
    }

    /// Adds a request that represents `weight` requests.
    fn add(&self, waited: Duration, weight: u32) {
        let weight = u64::from(weight);
        self.all.fetch_add(weight, Ordering::Relaxed);
        if waited > CONTENDED {
            self.contended.fetch_add(weight, Ordering::Relaxed);
            let nanos = weight.saturating_mul(waited.as_nanos() as u64);
            self.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }
}

/// How many requests the next request of this thread represents; 0 if the request is not measured.
fn weight_of_next_request() -> u32 {
    let number = GIL_REQUEST.get();
    GIL_REQUEST.set(number.checked_add(1).unwrap_or(MEASURED_FIRST));
    match number.checked_sub(MEASURED_FIRST) {
        None => 1,
        Some(later) if later % SAMPLED == SAMPLED - 1 => SAMPLED,
        Some(_) => 0,
    }
}

/// Runs `work` with the GIL. If `work` forks this process and returns in the child, the child ends.
///
/// # Errors
/// `Stopped` during finalization of Python.
pub(crate) fn with_python<R>(work: impl FnOnce(Python<'_>) -> R) -> Result<R> {
    let entered = GilGuard::try_new();
    let requested = match weight_of_next_request() {
        0 => None,
        weight => {
            let counted = GIL_REQUESTS.with(|mine| mine.borrow().clone());
            counted.map(|counted| (counted, Instant::now(), weight))
        }
    };
    let done = entered.as_ref().and_then(|entered| {
        Python::try_attach(|py| {
            if let Some((counted, since, weight)) = requested {
                counted.add(since.elapsed(), weight);
            }
            let done = work(py);
            if entered.forks != forks() {
                end_forked_child(py);
            }
            done
        })
    });
    done.ok_or_else(|| Error::new(ErrorKind::Stopped, "Python is shutting down"))
}

/// Like [`with_python`], for work that may fail.
pub(crate) fn try_python<R>(work: impl FnOnce(Python<'_>) -> Result<R>) -> Result<R> {
    with_python(work)?
}

/// Waits without the GIL. Does not return if another thread starts to finalize Python.
pub(crate) fn without_python<T: Send>(py: Python<'_>, wait: impl Send + FnOnce() -> T) -> T {
    let (result, _entered) = py.detach(|| {
        let result = wait();
        (result, GilGuard::or_park())
    });
    result
}

/// Sleeps without the GIL. Returns how many seconds this thread then waited for the GIL.
#[pyfunction]
pub(crate) fn gil_wait(py: Python<'_>, seconds: f64) -> f64 {
    let length = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let requested = py.detach(|| {
        thread::sleep(length);
        Instant::now()
    });
    requested.elapsed().as_secs_f64()
}

/// Calls `work` on another thread, so that no signal handler interrupts it.
///
/// Python runs signal handlers on the main thread only. `work` must be short, because Ctrl-C has
/// no effect until it returns.
///
/// # Errors
/// The exception that `work` raises. `OSError` if no thread can be started.
#[pyfunction]
pub(crate) fn uninterrupted(py: Python<'_>, work: Py<PyAny>) -> PyResult<Py<PyAny>> {
    let (send, receive) = mpsc::sync_channel(1);
    let call = move || {
        let entered = GilGuard::try_new();
        let called = entered.as_ref().and_then(|_| Python::try_attach(move |py| work.call0(py)));
        // The receiver waits until the result arrives, so sending does not fail.
        let _ = send.send(called);
    };
    thread::Builder::new().name("spdl-start".into()).spawn(call)?;
    let received = without_python(py, move || receive.recv());
    let ended = || Err(PyRuntimeError::new_err("Python is shutting down"));
    received.ok().flatten().unwrap_or_else(ended)
}

/// Runs `work` on a new thread and waits for the result without the GIL.
///
/// # Errors
/// The exception that a signal handler raises, usually `KeyboardInterrupt`; `work` then continues detached.
/// `RuntimeError` if `work` panics. `OSError` if no thread can be started.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    interruptible_with(py, work, |_| Ok(()))
}

/// Like [`interruptible`], and calls `meanwhile` in each interval of the wait and at the end.
///
/// # Errors
/// The errors of [`interruptible`] and of `meanwhile`.
pub(crate) fn interruptible_with<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    mut meanwhile: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let (send, receive) = mpsc::sync_channel(1);
    // The thread ends with `work`. After a signal no thread joins it.
    thread::Builder::new().name("spdl-open".into()).spawn(move || send.send(work()))?;
    // `Receiver` is not `Sync`, so the waiting closure borrows it mutably.
    let mut receive = receive;
    loop {
        let lent = &mut receive;
        let received = without_python(py, move || lent.recv_timeout(SIGNAL_CHECK_INTERVAL));
        meanwhile(py)?;
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let message =
                    "a worker thread of spdl_rs panicked; see standard error for the message";
                return Err(PyRuntimeError::new_err(message));
            }
        }
    }
}

/// Drops `value` on a new thread, and waits at most `at_most`.
///
/// The drop joins threads, one of which may block in a system call or in a long decode. The timeout
/// keeps Python from hanging.
pub(crate) fn drop_within<T: Send + 'static>(value: T, at_most: Duration) {
    let (done, dropped) = mpsc::channel::<()>();
    let work = move || {
        drop(value);
        drop(done);
    };
    // If no thread can be started, `spawn` drops `work`, and `value` with it, on this thread.
    if let Ok(thread) = thread::Builder::new().name("spdl-wind-down".into()).spawn(work)
        && dropped.recv_timeout(at_most) == Err(RecvTimeoutError::Disconnected)
    {
        // The panic message has already been printed.
        let _ = thread.join();
    }
}
