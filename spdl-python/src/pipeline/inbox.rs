//! Coroutines: submission to the event loop, and replies.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::intern;
use pyo3::prelude::*;
use spdl_core::{Error, ErrorKind, block_on};

use super::Item;
use crate::interop::fork::OwnerProcess;
use crate::interop::wait::with_python;
use crate::statistics::ThreadTimes;

/// The jobs for an event loop. Submitting needs no GIL: a pipe wakes the loop.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
#[derive(Clone)]
pub(crate) struct Inbox {
    shared: Arc<InboxShared>,
}

struct InboxShared {
    state: Mutex<InboxState>,
    /// Contains one byte while there are jobs or cancellations.
    reader: PipeReader,
    writer: PipeWriter,
    next: AtomicU64,
    /// The times of the thread that runs the loop.
    times: Arc<ThreadTimes>,
}

#[derive(Default)]
struct InboxState {
    jobs: VecDeque<Job>,
    /// IDs of jobs to cancel.
    cancelled: Vec<u64>,
    signalled: bool,
    closed: bool,
}

#[pymethods]
impl Inbox {
    #[new]
    fn new() -> PyResult<Self> {
        let (reader, writer) = std::io::pipe()?;
        let state = Mutex::default();
        let (next, times) = (AtomicU64::new(0), Arc::default());
        let shared = InboxShared { state, reader, writer, next, times };
        Ok(Inbox { shared: Arc::new(shared) })
    }

    /// Calls the main function of the event loop, and counts the CPU time of this thread.
    fn run_loop(&self, main: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut result = Ok(());
        self.shared.times.count(|| result = main.call0().map(drop));
        result
    }

    /// The file descriptor that becomes readable when `take` has a result.
    fn fileno(&self) -> i32 {
        self.shared.reader.as_raw_fd()
    }

    /// Removes and returns the new jobs and the IDs of jobs to cancel. Also returns whether the inbox is
    /// closed.
    fn take(&self, py: Python<'_>) -> PyResult<(Vec<Job>, Vec<u64>, bool)> {
        let (jobs, cancelled, closed) = py.detach(|| {
            let mut state = self.state();
            if std::mem::take(&mut state.signalled) {
                // The pipe holds one byte, so this read does not block.
                (&self.shared.reader).read_exact(&mut [0])?;
            }
            let jobs = std::mem::take(&mut state.jobs);
            Ok::<_, PyErr>((jobs, std::mem::take(&mut state.cancelled), state.closed))
        })?;
        Ok((jobs.into(), cancelled, closed))
    }

    /// Accepts no more jobs, and fails the jobs in the queue.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.close_queue());
    }
}

impl Inbox {
    pub(super) fn times(&self) -> Arc<ThreadTimes> {
        Arc::clone(&self.shared.times)
    }

    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a coroutine function, which the event loop calls with `argument` and awaits.
    pub(super) fn submit(
        &self,
        function: &Arc<Py<PyAny>>,
        argument: Option<Arc<Item>>,
    ) -> PendingReply {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::<ReplySlot>::default();
        let function = Arc::clone(function);
        let job = Job {
            id,
            function,
            argument,
            slot: Arc::clone(&slot),
            filled: false.into(),
            owner: OwnerProcess::current(),
        };
        let mut state = self.state();
        if state.closed {
            drop(state);
            drop(job);
        } else {
            state.jobs.push_back(job);
            self.signal(state);
        }
        PendingReply { id, slot, inbox: self.clone(), replied: false }
    }

    pub(super) fn close_queue(&self) {
        let mut state = self.state();
        state.closed = true;
        let refused = std::mem::take(&mut state.jobs);
        self.signal(state);
        drop(refused);
    }

    fn signal(&self, mut state: MutexGuard<'_, InboxState>) {
        if !state.signalled {
            // The pipe is empty, so this write does not block.
            state.signalled = (&self.shared.writer).write_all(&[0]).is_ok();
        }
    }
}

/// A coroutine to await on the event loop.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Job {
    #[pyo3(get)]
    id: u64,
    function: Arc<Py<PyAny>>,
    argument: Option<Arc<Item>>,
    slot: Arc<ReplySlot>,
    filled: std::sync::atomic::AtomicBool,
    owner: OwnerProcess,
}

#[pymethods]
impl Job {
    /// Calls the function and returns its awaitable.
    fn start<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.argument {
            Some(argument) => self.function.bind(py).call1((&**argument,)),
            None => self.function.bind(py).call0(),
        }
    }

    /// Stores the result.
    fn done(&self, py: Python<'_>, result: Py<PyAny>) {
        self.owner.end_forked_child(py);
        let result = (!result.is_none(py)).then_some(result);
        self.fill(Ok(result));
    }

    /// Reports that the pipeline ended before the job.
    fn cancel(&self) {
        self.fill(Err(stopped()));
    }

    /// Stores the exception.
    fn fail(&self, exception: Bound<'_, PyAny>) {
        self.owner.end_forked_child(exception.py());
        self.fill(Err(JobError::Raised(PyErr::from_value(exception))));
    }
}

impl Job {
    fn fill(&self, reply: Reply) {
        if !self.filled.swap(true, Ordering::SeqCst) {
            self.slot.fill(reply);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.fill(Err(stopped()));
    }
}

fn stopped() -> JobError {
    let message = "the event loop ended before the coroutine finished";
    JobError::Stopped(Error::new(ErrorKind::Stopped, message))
}

/// The result of a job: `None` for Python's `None`.
type Reply = Result<Option<Item>, JobError>;

/// Why a job has no result.
pub(super) enum JobError {
    Raised(PyErr),
    Stopped(Error),
}

impl JobError {
    pub(super) fn into_error(self, of_exception: impl FnOnce(Python<'_>, PyErr) -> Error) -> Error {
        match self {
            JobError::Stopped(error) => error,
            JobError::Raised(exception) => {
                with_python(|py| of_exception(py, exception)).unwrap_or_else(|stopped| stopped)
            }
        }
    }
}

#[derive(Default)]
struct ReplySlot(Mutex<(Option<Reply>, Option<Waker>)>);

impl ReplySlot {
    fn state(&self) -> MutexGuard<'_, (Option<Reply>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, reply: Reply) {
        let mut state = self.state();
        state.0 = Some(reply);
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A future of a job's result. Dropping it cancels the job.
pub(super) struct PendingReply {
    id: u64,
    slot: Arc<ReplySlot>,
    inbox: Inbox,
    replied: bool,
}

impl Future for PendingReply {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        let mut state = self.slot.state();
        let Some(reply) = state.0.take() else {
            state.1 = Some(cx.waker().clone());
            return Poll::Pending;
        };
        drop(state);
        self.replied = true;
        Poll::Ready(reply)
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if !self.replied {
            let mut state = self.inbox.state();
            if !state.closed {
                state.cancelled.push(self.id);
                self.inbox.signal(state);
            }
        }
    }
}

/// An async iterator, advanced one item at a time.
pub(super) struct AsyncIteration {
    inbox: Inbox,
    iterator: Py<PyAny>,
    next: Arc<Py<PyAny>>,
}

impl AsyncIteration {
    pub(super) fn new(
        py: Python<'_>,
        inbox: &Inbox,
        iterable: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let iterator = iterable.call_method0(intern!(py, "__aiter__"))?;
        let next = Arc::new(iterator.getattr(intern!(py, "__anext__"))?.unbind());
        Ok(AsyncIteration { inbox: inbox.clone(), iterator: iterator.unbind(), next })
    }

    /// Waits without the GIL for the next item. Returns `None` at the end.
    pub(super) fn next(&mut self) -> Reply {
        let reply = block_on(self.inbox.submit(&self.next, None));
        let ended = |error: &PyErr| {
            with_python(|py| error.is_instance_of::<PyStopAsyncIteration>(py)).unwrap_or(false)
        };
        match reply {
            Err(JobError::Raised(error)) if ended(&error) => Ok(None),
            Ok(None) => with_python(|py| Ok(Some(py.None()))).unwrap_or_else(|stopped| {
                // Python is shutting down.
                Err(JobError::Stopped(stopped))
            }),
            reply => reply,
        }
    }

    /// Closes an unfinished async generator, without the GIL, so that its cleanup code runs.
    pub(super) fn close(&mut self) {
        let close =
            with_python(|py| self.iterator.getattr(py, intern!(py, "aclose")).ok().map(Arc::new));
        if let Ok(Some(close)) = close
            && let Err(JobError::Raised(error)) = block_on(self.inbox.submit(&close, None))
        {
            // Fails only during finalization.
            drop(with_python(|py| error.write_unraisable(py, Some(self.iterator.bind(py)))));
        }
    }
}
