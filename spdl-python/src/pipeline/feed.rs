//! Python iterables as sources of the engine. A Python thread iterates each source.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyIterator;
use spdl_core::source::{Cursor, Stream};
use spdl_core::{BoxStream, Error, Result, Source};

use super::Item;
use super::call::close;
use super::inbox::{AsyncIteration, Inbox};
use super::raised::fatal_failure;
use super::tasks::TaskQueue;
use crate::interop::wait::without_python;
use crate::interop::wait::{try_python, with_python};
use crate::trace;

/// Minimum queue length.
const MIN_LEN: usize = 2;
/// Maximum queue length.
const MAX_LEN: usize = 256;
/// The queue holds as many items as the source yields in this time: many keys, or few large arrays.
const BUFFERED_TIME: Duration = Duration::from_millis(1);
/// How long the thread of the source holds the GIL if iteration does not release it.
const MAX_GIL_HOLD: Duration = Duration::from_micros(50);

/// A source, and the target of the thread that iterates the source: `threading.Thread(target=feed)`.
///
/// The source may be a Python queue with the output of another pipeline. A [`TaskQueue`] needs no
/// thread.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Feed {
    name: String,
    source: Mutex<Option<Py<PyAny>>>,
    /// Present if the source is an async iterable.
    inbox: Option<Inbox>,
    continuous: bool,
    /// The end-of-epoch marker, if the source is the output of another pipeline.
    epoch_end: Option<Py<PyAny>>,
    pub(super) queue: Arc<FeedQueue>,
}

#[pymethods]
impl Feed {
    #[new]
    #[pyo3(signature = (name, source, continuous, inbox=None, epoch_end=None))]
    fn new(
        name: String,
        source: Bound<'_, PyAny>,
        continuous: bool,
        inbox: Option<PyRef<'_, Inbox>>,
        epoch_end: Option<Py<PyAny>>,
    ) -> Self {
        let inbox = inbox.map(|inbox| inbox.clone());
        // Items of a Python queue stay in that queue, whose size the user chose.
        let max_len = if epoch_end.is_some() { MIN_LEN } else { MAX_LEN };
        let queue = Arc::new(FeedQueue::new(max_len));
        if let Ok(tasks) = source.cast::<TaskQueue>() {
            tasks.get().connect(Arc::clone(&queue));
        }
        let source = Mutex::new(Some(source.unbind()));
        Feed { name, source, inbox, continuous, epoch_end, queue }
    }

    /// Iterates the source to its end, or until `close`.
    fn __call__(&self, py: Python<'_>) {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(source) = source else { return };
        trace::name_python_thread(py);
        without_python(py, || self.queue.push_end(self.run(&source)));
        drop(source);
    }

    /// Stops the thread and drops the queued items.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.queue.close());
    }
}

impl Feed {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn continuous(&self) -> bool {
        self.continuous
    }

    fn run(&self, source: &Py<PyAny>) -> FeedEvent {
        loop {
            let mut items = match self.begin(source) {
                Ok(items) => items,
                Err(error) => return FeedEvent::Failed(error),
            };
            let mut any = false;
            loop {
                match self.push_some(&mut items, &mut any) {
                    Ok(Push::Continue) => {}
                    Ok(Push::PassEnded) => break,
                    Ok(Push::Closed) => {
                        items.close();
                        return FeedEvent::End;
                    }
                    Err(error) => return FeedEvent::Failed(error),
                }
            }
            // Stop after an empty pass: a continuous source would repeat the empty pass forever.
            if !self.continuous
                || self.epoch_end.is_some()
                || !any
                || !self.queue.push(FeedEvent::EpochEnd)
            {
                return FeedEvent::End;
            }
        }
    }

    fn ends_epoch(&self, item: &Bound<'_, PyAny>) -> bool {
        self.epoch_end.as_ref().is_some_and(|end| item.is(end))
    }

    /// Starts a pass.
    fn begin(&self, source: &Py<PyAny>) -> Result<SourceIterator> {
        if let Some(inbox) = &self.inbox {
            let iteration = try_python(|py| {
                AsyncIteration::new(py, inbox, source.bind(py))
                    .map_err(|error| fatal_failure(py, error, &self.name))
            })?;
            return Ok(SourceIterator::Async(iteration));
        }
        with_python(|py| {
            let items = source.bind(py).try_iter();
            let items = items.map_err(|error| fatal_failure(py, error, &self.name))?;
            Ok(SourceIterator::Sync(items.unbind()))
        })?
    }

    /// Moves items from the source to the queue, until the queue is full or `MAX_GIL_HOLD` has passed.
    fn push_some(&self, items: &mut SourceIterator, any: &mut bool) -> Result<Push> {
        if !self.queue.wait_for_room() {
            return Ok(Push::Closed);
        }
        let iterator = match items {
            SourceIterator::Async(iteration) => {
                let started = Instant::now();
                let item = match iteration.next() {
                    Ok(Some(item)) => item,
                    Ok(None) => return Ok(Push::PassEnded),
                    Err(error) => {
                        return Err(
                            error.into_error(|py, error| fatal_failure(py, error, &self.name))
                        );
                    }
                };
                *any = true;
                trace::span("source", "source", started, Instant::now());
                let pushed = self.queue.push_item(item, started.elapsed());
                return Ok(if pushed { Push::Continue } else { Push::Closed });
            }
            SourceIterator::Sync(iterator) => iterator,
        };
        with_python(|py| {
            let mut iterator = iterator.bind(py).clone();
            let since = Instant::now();
            let mut started = since;
            loop {
                match iterator.next() {
                    Some(Ok(item)) if self.ends_epoch(&item) => {
                        let pushed = self.queue.push(FeedEvent::EpochEnd);
                        return Ok(if pushed { Push::Continue } else { Push::Closed });
                    }
                    Some(Ok(item)) => {
                        *any = true;
                        let now = Instant::now();
                        trace::span("source", "source", started, now);
                        if !self.queue.push_item(item.unbind(), now - started) {
                            return Ok(Push::Closed);
                        }
                        if now - since > MAX_GIL_HOLD || !self.queue.has_room() {
                            return Ok(Push::Continue);
                        }
                        started = now;
                    }
                    None => return Ok(Push::PassEnded),
                    Some(Err(error)) => return Err(fatal_failure(py, error, &self.name)),
                }
            }
        })?
    }
}

/// An iterator of one pass over the source.
enum SourceIterator {
    Sync(Py<PyIterator>),
    Async(AsyncIteration),
}

impl SourceIterator {
    /// Closes an unfinished generator, so that its cleanup code runs.
    fn close(&mut self) {
        match self {
            // Fails only during finalization, when generators cannot be closed.
            SourceIterator::Sync(items) => drop(with_python(|py| close(items.bind(py)))),
            SourceIterator::Async(iteration) => iteration.close(),
        }
    }
}

enum Push {
    Continue,
    PassEnded,
    Closed,
}

/// An element of the queue.
enum FeedEvent {
    Item(Item),
    EpochEnd,
    Failed(Error),
    End,
}

/// The queue between a source and the engine.
pub(super) struct FeedQueue {
    state: Mutex<FeedQueueState>,
    room: Condvar,
}

#[derive(Default)]
struct FeedQueueState {
    /// The maximum queue length.
    max_len: usize,
    events: VecDeque<FeedEvent>,
    /// Wakes the engine, if it waits for an item.
    waker: Option<Waker>,
    /// The time in the source for all items so far.
    busy: Duration,
    /// Moving average of the time per item of the source, in nanoseconds.
    nanos: f64,
    /// Whether the queue was filled, and has not been half emptied since.
    full: bool,
    ended: bool,
    closed: bool,
}

impl FeedQueueState {
    fn target_len(&self) -> usize {
        let len = BUFFERED_TIME.as_nanos() as f64 / self.nanos.max(1.0);
        (len as usize).clamp(MIN_LEN, self.max_len)
    }
}

impl FeedQueue {
    fn new(max_len: usize) -> Self {
        let state = FeedQueueState { max_len, ..FeedQueueState::default() };
        FeedQueue { state: Mutex::new(state), room: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, FeedQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push_item(&self, item: Item, duration: Duration) -> bool {
        let nanos = duration.as_nanos() as f64;
        let mut state = self.state();
        state.busy += duration;
        // The first sample initializes the moving average.
        state.nanos =
            if state.nanos == 0.0 { nanos } else { state.nanos + (nanos - state.nanos) / 8.0 };
        drop(state);
        self.push(FeedEvent::Item(item))
    }

    /// Adds an item without checking the queue length.
    pub(super) fn push_unbounded(&self, item: Item) {
        self.push(FeedEvent::Item(item));
    }

    /// Adds an element. Returns `false` if the queue is closed.
    fn push(&self, event: FeedEvent) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.events.push_back(event);
        state.full = state.events.len() >= state.target_len();
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    fn push_end(&self, end: FeedEvent) {
        self.push(end);
        self.state().ended = true;
    }

    fn has_room(&self) -> bool {
        !self.state().full
    }

    /// Waits for room in the queue. Returns `false` if the queue is closed.
    fn wait_for_room(&self) -> bool {
        let mut state = self.state();
        while state.full && !state.closed {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.closed
    }

    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let dropped = std::mem::take(&mut state.events);
        drop(state);
        drop(dropped);
        self.room.notify_all();
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Item>>> {
        let mut state = self.state();
        let Some(event) = state.events.pop_front() else {
            // A closed queue is not an end of data: stages must not flush.
            if state.ended && !state.closed {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if state.full && state.events.len() <= state.target_len() / 2 {
            state.full = false;
            self.room.notify_one();
        }
        drop(state);
        Poll::Ready(match event {
            FeedEvent::Item(item) => Some(Ok(item)),
            FeedEvent::Failed(error) => Some(Err(error)),
            FeedEvent::EpochEnd | FeedEvent::End => None,
        })
    }
}

/// A source of the engine that reads passes from the queue.
pub(super) struct FeedSource(pub(super) Arc<FeedQueue>);

impl Source for FeedSource {
    type Item = Item;

    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<Item>>> {
        Ok(Box::pin(FeedPass { queue: Arc::clone(&self.0), ended: false }))
    }

    fn busy(&self) -> Option<Duration> {
        Some(self.0.state().busy)
    }
}

impl fmt::Debug for FeedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FeedSource")
    }
}

struct FeedPass {
    queue: Arc<FeedQueue>,
    ended: bool,
}

impl Stream for FeedPass {
    type Item = Result<Item>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Item>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let polled = self.queue.poll(cx);
        self.ended = matches!(polled, Poll::Ready(None));
        polled
    }
}
