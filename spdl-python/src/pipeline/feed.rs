//! Python iterables as sources of the engine. A Python thread iterates each source.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyIterator;
use spdl_core::source::{Cursor, Fingerprint, Stream};
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
    /// Returns the key of an item, if keys are needed.
    key: Option<Py<PyAny>>,
    /// The number of items of an epoch, if known, for checkpoint states.
    len: Option<u64>,
    /// Whether the first pass starts at a position, by `source.iterate_from(position)`.
    resumes: bool,
    pub(super) queue: Arc<FeedQueue>,
}

#[pymethods]
impl Feed {
    #[new]
    #[pyo3(signature = (name, source, continuous, inbox=None, epoch_end=None, key=None, len=None, resumes=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        name: String,
        source: Bound<'_, PyAny>,
        continuous: bool,
        inbox: Option<PyRef<'_, Inbox>>,
        epoch_end: Option<Py<PyAny>>,
        key: Option<Py<PyAny>>,
        len: Option<u64>,
        resumes: bool,
    ) -> Self {
        let inbox = inbox.map(|inbox| inbox.clone());
        // Items of a Python queue stay in that queue, whose size the user chose.
        let max_len = if epoch_end.is_some() { MIN_LEN } else { MAX_LEN };
        let queue = Arc::new(FeedQueue::new(max_len));
        if let Ok(tasks) = source.cast::<TaskQueue>() {
            tasks.get().connect(Arc::clone(&queue));
        }
        let source = Mutex::new(Some(source.unbind()));
        Feed { name, source, inbox, continuous, epoch_end, key, len, resumes, queue }
    }

    /// Iterates the source to its end, or until `close`.
    fn __call__(&self, py: Python<'_>) {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(source) = source else { return };
        trace::name_python_thread(py);
        without_python(py, || self.queue.push(self.run(&source)));
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

    pub(super) fn source<T: FeedItem>(&self) -> FeedSource<T> {
        FeedSource { queue: Arc::clone(&self.queue), len: self.len, item: PhantomData }
    }

    /// Whether items have keys.
    pub(super) fn has_keys(&self) -> bool {
        self.key.is_some()
    }

    pub(super) fn continuous(&self) -> bool {
        self.continuous
    }

    fn run(&self, source: &Py<PyAny>) -> FeedEvent {
        // The position at which the first pass starts.
        let mut start = None;
        if self.resumes {
            start = self.queue.opened();
            if start.is_none() {
                return FeedEvent::End;
            }
        }
        loop {
            let mut items = match self.begin(source, start) {
                Ok(items) => items,
                Err(error) => return FeedEvent::Failed(error),
            };
            // The rest of an epoch that resumes from a state may be empty.
            let mut any = start.take().is_some_and(|position| position > 0);
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

    /// The key of an item.
    ///
    /// # Errors
    /// The exception of the function, which ends the pipeline.
    fn key(&self, item: &Bound<'_, PyAny>) -> Result<Option<Arc<str>>> {
        let Some(key) = &self.key else { return Ok(None) };
        let key = key.bind(item.py()).call1((item,)).and_then(|key| key.extract::<String>());
        let key = key.map_err(|error| fatal_failure(item.py(), error, &self.name))?;
        Ok(Some(key.into()))
    }

    /// Starts a pass, at a position if it resumes.
    fn begin(&self, source: &Py<PyAny>, position: Option<u64>) -> Result<SourceIterator> {
        if let Some(inbox) = &self.inbox {
            let iteration = try_python(|py| {
                AsyncIteration::new(py, inbox, source.bind(py))
                    .map_err(|error| fatal_failure(py, error, &self.name))
            })?;
            return Ok(SourceIterator::Async(iteration));
        }
        with_python(|py| {
            let source = source.bind(py);
            let items = match position {
                Some(position) => source
                    .call_method1(intern!(py, "iterate_from"), (position,))
                    .and_then(|items| items.try_iter()),
                None => source.try_iter(),
            };
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
                let key = with_python(|py| self.key(item.bind(py)))??;
                let pushed = self.queue.push_item((item, key), started.elapsed());
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
                        let key = self.key(&item)?;
                        if !self.queue.push_item((item.unbind(), key), now - started) {
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

/// An item with its key, if items have keys.
pub(super) type KeyedItem = (Item, Option<Arc<str>>);

/// An element of the queue.
enum FeedEvent {
    Item(KeyedItem),
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
    /// The position at which the engine opened the source first.
    opened: Option<u64>,
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

    /// Waits until the engine opens the source. Returns the position; `None` if the queue is closed.
    fn opened(&self) -> Option<u64> {
        let mut state = self.state();
        while state.opened.is_none() && !state.closed {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.opened
    }

    fn open(&self, position: u64) {
        self.state().opened.get_or_insert(position);
        self.room.notify_all();
    }

    fn push_item(&self, item: KeyedItem, duration: Duration) -> bool {
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
        self.push(FeedEvent::Item((item, None)));
    }

    /// Adds an element. Returns `false` if the queue is closed.
    fn push(&self, event: FeedEvent) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        // Under the same lock as the event: an engine that takes the end may poll again before this thread continues.
        state.ended = matches!(event, FeedEvent::End | FeedEvent::Failed(_));
        state.events.push_back(event);
        state.full = state.events.len() >= state.target_len();
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
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

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<KeyedItem>>> {
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
pub(super) struct FeedSource<T> {
    queue: Arc<FeedQueue>,
    len: Option<u64>,
    item: PhantomData<fn() -> T>,
}

/// An item of a source, with or without its key.
pub(super) trait FeedItem: Send + 'static {
    fn of(item: KeyedItem) -> Self;

    fn key(&self) -> Option<Arc<str>>;
}

impl FeedItem for Item {
    fn of((item, _): KeyedItem) -> Self {
        item
    }

    fn key(&self) -> Option<Arc<str>> {
        None
    }
}

impl FeedItem for KeyedItem {
    fn of(item: KeyedItem) -> Self {
        item
    }

    fn key(&self) -> Option<Arc<str>> {
        self.1.clone()
    }
}

impl<T: FeedItem> Source for FeedSource<T> {
    type Item = T;

    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<T>>> {
        self.queue.open(at.position);
        let queue = Arc::clone(&self.queue);
        Ok(Box::pin(FeedPass { queue, ended: false, item: PhantomData }))
    }

    fn busy(&self) -> Option<Duration> {
        Some(self.queue.state().busy)
    }

    fn fingerprint(&self) -> Fingerprint {
        let items = self.len.map_or("unknown".into(), |len| len.to_string());
        Fingerprint::default().with("items", items)
    }

    fn key(&self, item: &T) -> Option<Arc<str>> {
        item.key()
    }
}

impl<T> fmt::Debug for FeedSource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FeedSource")
    }
}

struct FeedPass<T> {
    queue: Arc<FeedQueue>,
    ended: bool,
    item: PhantomData<fn() -> T>,
}

impl<T: FeedItem> Stream for FeedPass<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let polled = self.queue.poll(cx);
        self.ended = matches!(polled, Poll::Ready(None));
        polled.map(|event| event.map(|item| item.map(T::of)))
    }
}
