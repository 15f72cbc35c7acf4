//! Iterables of samples: Python objects without positions, such as generators.
//!
//! ```text
//! iter(source) ──► a thread ──► SampleQueue ──► stream of the engine
//! ```
//!
//! The thread skips the items of other ranks and of earlier runs, and holds the GIL only in Python code.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use spdl_core::source::{Cursor, Fingerprint, Positions, Remainder, Stream};
use spdl_core::{BoxStream, Dataset, Error, ErrorKind, Footprint, Result, Shard, Source};
use spdl_io::records::StoredField;
use spdl_io::{Key, StoredRecord};

use super::items;
use crate::interop::error::Raised;
use crate::interop::wait::{try_python, with_python, without_python};
use crate::trace;

/// The queue holds at most this many samples, and pauses the iteration at this many bytes.
const MOST_SAMPLES: usize = 64;
const MOST_BYTES: usize = 16 << 20;
/// How long the thread holds the GIL if the iteration does not release it.
const MAX_GIL_HOLD: Duration = Duration::from_micros(50);

/// An iterable of samples.
#[derive(Debug)]
pub(super) struct Iterable {
    pub(super) name: String,
    /// The number of items of an epoch, if the iterable has `__len__`.
    pub(super) len: Option<u64>,
}

/// What an [`OpenedDataset`](spdl_io::datasets::OpenedDataset) needs to read fields. The samples have no positions.
impl Dataset for Iterable {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.len.unwrap_or(u64::MAX)
    }

    fn item(&self, _: u64) -> Result<StoredRecord> {
        let message = "the samples of an iterable have no positions";
        Err(Error::new(ErrorKind::Unsupported, message).with_key(self.name.as_str()))
    }
}

impl Iterable {
    /// # Errors
    /// `InvalidArgument` for settings that need positions.
    pub(super) fn check(&self, shuffle: bool, shard: Shard) -> Result<()> {
        let message = if shuffle {
            "an iterable of samples has no positions, so it cannot be shuffled as a whole; pass \
             shuffle=False and sources.shuffled(source, window=10_000), which shuffles within a window"
        } else if shard.world() > 1 && shard == shard.remainder(Remainder::Pad) {
            "remainder=\"pad\" repeats samples from the beginning of the epoch, which an iterable cannot \
             repeat; pass remainder=\"drop\" or \"uneven\""
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, message).with_key(self.name.as_str()))
    }
}

/// Joins the thread of an iteration when the loader has dropped its pipeline.
pub(crate) struct FeedThread(Arc<ThreadSlot>);

type ThreadSlot = Mutex<Option<JoinHandle<()>>>;

impl Drop for FeedThread {
    fn drop(&mut self) {
        let thread = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // The stream has reported a panic.
            let _ = thread.join();
        }
    }
}

/// The source of an epoch over an iterable.
pub(super) struct IterableSource {
    iterable: Arc<Iterable>,
    /// Starts an iteration: `Iterations` in `_iterables.py`.
    iterate: Arc<Py<PyAny>>,
    /// The part of this rank. The engine does not know the length, so the remainder is handled here.
    shard: Shard,
    thread: Arc<ThreadSlot>,
    busy: Arc<Mutex<Duration>>,
}

impl IterableSource {
    pub(super) fn new(iterable: Arc<Iterable>, iterate: Arc<Py<PyAny>>, shard: Shard) -> Self {
        let (thread, busy) = Default::default();
        IterableSource { iterable, iterate, shard, thread, busy }
    }

    /// Drop this value after the pipeline.
    pub(super) fn thread(&self) -> FeedThread {
        FeedThread(Arc::clone(&self.thread))
    }

    fn drops_rest(&self) -> bool {
        self.shard != self.shard.remainder(Remainder::Uneven)
    }
}

impl fmt::Debug for IterableSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IterableSource").field(&self.iterable).finish()
    }
}

impl Source for IterableSource {
    type Item = StoredRecord;

    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<StoredRecord>>> {
        let message = format!("an iterable cannot be opened at position {}", at.position);
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    fn open_at(
        &self,
        positions: Positions,
    ) -> Result<BoxStream<'static, (u64, Result<StoredRecord>)>> {
        let queue = Arc::<SampleQueue>::default();
        let feed = SampleFeed {
            queue: Arc::clone(&queue),
            iterable: Arc::clone(&self.iterable),
            iterate: Arc::clone(&self.iterate),
            positions,
            is_single: self.shard.world() == 1,
            drops_rest: self.drops_rest(),
            busy: Arc::clone(&self.busy),
        };
        let started = thread::Builder::new().name("spdl-source".into()).spawn(move || feed.run());
        let thread = started.map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start a thread for the source").with_source(error)
        })?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(Box::pin(FeedStream(queue)))
    }

    fn busy(&self) -> Option<Duration> {
        Some(*self.busy.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fingerprint(&self) -> Fingerprint {
        let items = self.iterable.len.map_or("unknown".into(), |len| len.to_string());
        let order = match self.drops_rest() {
            true => "of the iterable",
            false => "of the iterable, uneven",
        };
        Fingerprint::default().with("items", items).with("order", order)
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        Some(item.key.display_name())
    }
}

/// The work of the thread.
struct SampleFeed {
    queue: Arc<SampleQueue>,
    iterable: Arc<Iterable>,
    iterate: Arc<Py<PyAny>>,
    positions: Positions,
    /// Whether there is one rank.
    is_single: bool,
    /// Whether samples of a step in which not all ranks have a sample are left out.
    drops_rest: bool,
    busy: Arc<Mutex<Duration>>,
}

/// A sample with the index of its identity.
type FedSample = (u64, Result<StoredRecord>);

/// The progress of an iteration.
struct FeedProgress {
    /// An `Iteration` of `_iterables.py`.
    iteration: Py<PyAny>,
    /// The position of the next item.
    at: u64,
    /// A sample of which not all ranks are known to have one, and the last position of its step.
    held: Option<(u64, FedSample)>,
}

impl SampleFeed {
    fn run(self) {
        let end = EndOfFeed(Arc::clone(&self.queue));
        // The thread keeps its Python state between items, and with it thread-local and context variables.
        let attached = Python::try_attach(|py| without_python(py, || self.feed()));
        if let Some(Err(error)) = attached {
            let id = self.positions.clone().next().map_or(0, |position| position.id);
            self.queue.push(0, (id, Err(error.fatal())));
        }
        drop(end);
    }

    fn feed(&self) -> Result<()> {
        let mut wanted = self.positions.clone().peekable();
        let Some(first) = wanted.peek().map(|position| position.at) else { return Ok(()) };
        let (iteration, at) = try_python(|py| {
            let begun = self.iterate.bind(py).call1((self.positions.epoch(), first));
            let begun = begun.and_then(|begun| begun.extract::<(Py<PyAny>, u64)>());
            begun.map_err(|exception| Raised::into_error(py, exception))
        })?;
        let mut progress = FeedProgress { iteration, at, held: None };
        let fed = loop {
            if !self.queue.wait_for_room() {
                break Ok(());
            }
            match try_python(|py| self.feed_some(py, &mut progress, &mut wanted)) {
                Ok(true) => {}
                Ok(false) => {
                    if self.is_single && progress.at < first {
                        break Err(self.too_short(progress.at, first));
                    }
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        // Fails only during finalization, when generators cannot be closed.
        let _ = with_python(|py| {
            if let Err(error) = progress.iteration.call_method0(py, intern!(py, "close")) {
                error.write_unraisable(py, Some(progress.iteration.bind(py)));
            }
        });
        fed
    }

    /// Moves items to the queue, until the queue is full or `MAX_GIL_HOLD` has passed. Returns `false` at the end.
    fn feed_some(
        &self,
        py: Python<'_>,
        progress: &mut FeedProgress,
        wanted: &mut std::iter::Peekable<Positions>,
    ) -> Result<bool> {
        let iteration = progress.iteration.bind(py).clone();
        let begun = Instant::now();
        let mut started = begun;
        loop {
            let at = progress.at;
            let item = iteration.call_method1(intern!(py, "take"), (at,));
            let item = item.map_err(|exception| Raised::into_error(py, exception))?;
            if item.is_none() {
                return Ok(false);
            }
            let next = wanted.peek().filter(|next| next.at == at).copied();
            let mut is_open = true;
            if let Some(next) = next {
                wanted.next();
                let sample = item.get_item(0).map_err(|error| Raised::into_error(py, error))?;
                let sample = self.record(&iteration, &sample, at);
                let last = match self.drops_rest {
                    true => self.positions.last_of_step(at).unwrap_or(at),
                    false => at,
                };
                progress.held = Some((last, (next.id, sample)));
            }
            if let Some((_, (id, sample))) = progress.held.take_if(|(last, _)| *last <= at) {
                let bytes = sample.as_ref().map_or(0, size_of_record);
                is_open = self.queue.push(bytes, (id, sample));
            }
            progress.at += 1;
            let now = Instant::now();
            *self.busy.lock().unwrap_or_else(PoisonError::into_inner) += now - started;
            if next.is_some() {
                trace::span("source", "source", started, now);
            }
            started = now;
            if !is_open || now - begun > MAX_GIL_HOLD || !self.queue.has_room() {
                // A closed queue ends the wait for room.
                return Ok(true);
            }
        }
    }

    /// The fields of an item.
    ///
    /// # Errors
    /// If the item is not a sample. The failure policy applies.
    fn record(
        &self,
        iteration: &Bound<'_, PyAny>,
        item: &Bound<'_, PyAny>,
        at: u64,
    ) -> Result<StoredRecord> {
        let py = item.py();
        let key = format!("{}:{at}", self.iterable.name);
        let fields = match item.is_exact_instance_of::<PyDict>() {
            true => items::fields_of(item),
            false => iteration
                .call_method1(intern!(py, "fields"), (item, at))
                .map_err(|exception| Raised::into_error(py, exception))
                .and_then(|fields| items::fields_of(&fields)),
        };
        let mut record = StoredRecord::new(Key::from(key.as_str()));
        record.fields = fields.map_err(|error| error.with_key(key))?;
        Ok(record)
    }

    fn too_short(&self, items: u64, first: u64) -> Error {
        let message = format!(
            "cannot resume: the iterable has yielded {items} items, but the state was saved after {first}; it \
             must yield the same items as before"
        );
        Error::new(ErrorKind::Changed, message).with_key(self.iterable.name.as_str())
    }
}

/// The memory of the values of a sample.
fn size_of_record(record: &StoredRecord) -> usize {
    let bytes = |(_, field): &(_, StoredField)| match field {
        StoredField::Known(value) => value.footprint(),
        _ => 0,
    };
    record.fields.iter().map(bytes).sum()
}

/// Ends the stream when the thread ends.
struct EndOfFeed(Arc<SampleQueue>);

impl Drop for EndOfFeed {
    fn drop(&mut self) {
        if thread::panicking() {
            let message = "the thread of the source panicked; see standard error for the message";
            let error = Error::new(ErrorKind::Panicked, message).fatal();
            self.0.push(0, (0, Err(error)));
        }
        self.0.end();
    }
}

/// The queue between the thread and the engine.
#[derive(Default)]
struct SampleQueue {
    state: Mutex<SampleQueueState>,
    room: Condvar,
}

#[derive(Default)]
struct SampleQueueState {
    samples: VecDeque<(usize, FedSample)>,
    bytes: usize,
    /// Wakes the engine, if it waits for a sample.
    waker: Option<Waker>,
    /// Whether the queue was filled, and has not been half emptied since.
    is_full: bool,
    has_ended: bool,
    is_closed: bool,
}

impl SampleQueue {
    fn state(&self) -> MutexGuard<'_, SampleQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sample. Returns `false` if the queue is closed.
    fn push(&self, bytes: usize, sample: FedSample) -> bool {
        let mut state = self.state();
        if state.is_closed {
            return false;
        }
        state.samples.push_back((bytes, sample));
        state.bytes += bytes;
        state.is_full = state.samples.len() >= MOST_SAMPLES || state.bytes >= MOST_BYTES;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn has_room(&self) -> bool {
        !self.state().is_full
    }

    /// Waits for room. Returns `false` if the queue is closed.
    fn wait_for_room(&self) -> bool {
        let mut state = self.state();
        while state.is_full && !state.is_closed {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.is_closed
    }

    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let dropped = std::mem::take(&mut state.samples);
        drop(state);
        drop(dropped);
        self.room.notify_all();
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Option<FedSample>> {
        let mut state = self.state();
        let Some((bytes, sample)) = state.samples.pop_front() else {
            if state.has_ended {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        state.bytes -= bytes;
        if state.is_full && state.samples.len() <= MOST_SAMPLES / 2 && state.bytes <= MOST_BYTES / 2
        {
            state.is_full = false;
            self.room.notify_one();
        }
        Poll::Ready(Some(sample))
    }
}

/// The samples of the queue.
struct FeedStream(Arc<SampleQueue>);

impl Stream for FeedStream {
    type Item = FedSample;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<FedSample>> {
        self.0.poll(cx)
    }
}

impl Drop for FeedStream {
    fn drop(&mut self) {
        self.0.close();
    }
}
