//! Coroutines: how they get to the event loop, and their results back.

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
use crate::interop::wait::with_python;

/// What an event loop is to run. Nobody needs the GIL to put something in: the loop listens to a
/// pipe.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
#[derive(Clone)]
pub(crate) struct Inbox {
    shared: Arc<Shared>,
}

struct Shared {
    mail: Mutex<Mail>,
    /// Holds a byte while there is mail.
    reader: PipeReader,
    writer: PipeWriter,
    next: AtomicU64,
}

#[derive(Default)]
struct Mail {
    jobs: VecDeque<Job>,
    /// Jobs of which nobody wants the result any more.
    unwanted: Vec<u64>,
    signalled: bool,
    closed: bool,
}

#[pymethods]
impl Inbox {
    #[new]
    fn new() -> PyResult<Self> {
        let (reader, writer) = std::io::pipe()?;
        let mail = Mutex::default();
        let shared = Shared { mail, reader, writer, next: AtomicU64::new(0) };
        Ok(Inbox { shared: Arc::new(shared) })
    }

    /// What gets readable when `take` has something to give.
    fn fileno(&self) -> i32 {
        self.shared.reader.as_raw_fd()
    }

    /// New jobs, the numbers of those that are to be cancelled, and whether there will be no more.
    fn take(&self, py: Python<'_>) -> PyResult<(Vec<Job>, Vec<u64>, bool)> {
        let (jobs, unwanted, closed) = py.detach(|| {
            let mut mail = self.mail();
            if std::mem::take(&mut mail.signalled) {
                // One byte, which is there: this does not wait.
                (&self.shared.reader).read_exact(&mut [0])?;
            }
            let jobs = std::mem::take(&mut mail.jobs);
            Ok::<_, PyErr>((jobs, std::mem::take(&mut mail.unwanted), mail.closed))
        })?;
        Ok((jobs.into(), unwanted, closed))
    }

    /// Takes no more jobs; those that were not taken out are refused.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.shut());
    }
}

impl Inbox {
    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.shared.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the event loop await what `function` returns, called there with `argument`, if any.
    pub(super) fn submit(&self, function: &Arc<Py<PyAny>>, argument: Option<Arc<Item>>) -> Pending {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::<Slot>::default();
        let function = Arc::clone(function);
        let job = Job { id, function, argument, slot: Arc::clone(&slot), filled: false.into() };
        let mut mail = self.mail();
        if mail.closed {
            drop(mail);
            drop(job);
        } else {
            mail.jobs.push_back(job);
            self.signal(mail);
        }
        Pending { id, slot, inbox: self.clone(), replied: false }
    }

    pub(super) fn shut(&self) {
        let mut mail = self.mail();
        mail.closed = true;
        let refused = std::mem::take(&mut mail.jobs);
        self.signal(mail);
        drop(refused);
    }

    fn signal(&self, mut mail: MutexGuard<'_, Mail>) {
        if !mail.signalled {
            // The pipe is empty, so there is room for a byte.
            mail.signalled = (&self.shared.writer).write_all(&[0]).is_ok();
        }
    }
}

/// Something to be awaited on the event loop.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Job {
    #[pyo3(get)]
    id: u64,
    function: Arc<Py<PyAny>>,
    argument: Option<Arc<Item>>,
    slot: Arc<Slot>,
    filled: std::sync::atomic::AtomicBool,
}

#[pymethods]
impl Job {
    /// Calls the function: what it returns is to be awaited.
    fn start<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.argument {
            Some(argument) => self.function.bind(py).call1((&**argument,)),
            None => self.function.bind(py).call0(),
        }
    }

    /// Takes the result.
    fn done(&self, py: Python<'_>, result: Py<PyAny>) {
        let result = (!result.is_none(py)).then_some(result);
        self.fill(Ok(result));
    }

    /// Takes it that the pipeline has ended before this was done.
    fn cancel(&self) {
        self.fill(Err(stopped()));
    }

    /// Takes the exception.
    fn fail(&self, exception: Bound<'_, PyAny>) {
        self.fill(Err(NoReply::Raised(PyErr::from_value(exception))));
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

fn stopped() -> NoReply {
    let message = "the event loop ended before this was done";
    NoReply::Stopped(Error::new(ErrorKind::Stopped, message))
}

/// What comes of a job: `None` where it returned Python's.
type Reply = Result<Option<Item>, NoReply>;

/// Why nothing came of a job.
pub(super) enum NoReply {
    Raised(PyErr),
    Stopped(Error),
}

impl NoReply {
    pub(super) fn into_error(self, of_exception: impl FnOnce(Python<'_>, PyErr) -> Error) -> Error {
        match self {
            NoReply::Stopped(error) => error,
            NoReply::Raised(exception) => {
                with_python(|py| of_exception(py, exception)).unwrap_or_else(|stopped| stopped)
            }
        }
    }
}

#[derive(Default)]
struct Slot(Mutex<(Option<Reply>, Option<Waker>)>);

impl Slot {
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

/// A job's result, to be waited for. Dropping it cancels the job.
pub(super) struct Pending {
    id: u64,
    slot: Arc<Slot>,
    inbox: Inbox,
    replied: bool,
}

impl Future for Pending {
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

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.replied {
            let mut mail = self.inbox.mail();
            if !mail.closed {
                mail.unwanted.push(self.id);
                self.inbox.signal(mail);
            }
        }
    }
}

/// An async iterable, asked for one item after the other.
pub(super) struct Pull {
    inbox: Inbox,
    iterator: Py<PyAny>,
    next: Arc<Py<PyAny>>,
}

impl Pull {
    pub(super) fn new(
        py: Python<'_>,
        inbox: &Inbox,
        iterable: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let iterator = iterable.call_method0(intern!(py, "__aiter__"))?;
        let next = Arc::new(iterator.getattr(intern!(py, "__anext__"))?.unbind());
        Ok(Pull { inbox: inbox.clone(), iterator: iterator.unbind(), next })
    }

    /// Waits for the next item, without the GIL. `None` at the end.
    pub(super) fn next(&mut self) -> Reply {
        let reply = block_on(self.inbox.submit(&self.next, None));
        let ended = |error: &PyErr| {
            with_python(|py| error.is_instance_of::<PyStopAsyncIteration>(py)).unwrap_or(false)
        };
        match reply {
            Err(NoReply::Raised(error)) if ended(&error) => Ok(None),
            Ok(None) => with_python(|py| Ok(Some(py.None()))).unwrap_or_else(|stopped| {
                // Nobody is left to take it.
                Err(NoReply::Stopped(stopped))
            }),
            reply => reply,
        }
    }

    /// Lets a generator that is not at its end clean up, without the GIL.
    pub(super) fn close(&mut self) {
        let close =
            with_python(|py| self.iterator.getattr(py, intern!(py, "aclose")).ok().map(Arc::new));
        if let Ok(Some(close)) = close
            && let Err(NoReply::Raised(error)) = block_on(self.inbox.submit(&close, None))
        {
            // Where Python ends, nobody can be told any more.
            drop(with_python(|py| error.write_unraisable(py, Some(self.iterator.bind(py)))));
        }
    }
}
