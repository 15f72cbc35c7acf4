//! Sources: what Python iterates on a thread of its own, as a source of the engine.

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
use super::inbox::{Inbox, Pull};
use super::raised::fatal_failure;
use super::tasks::TaskQueue;
use crate::interop::wait::without_python;
use crate::interop::wait::{try_python, with_python};
use crate::trace;

/// The fewest items that wait for the engine, where the source has that many.
const SHALLOWEST: usize = 2;
/// The most.
const DEEPEST: usize = 256;
/// As many items wait as the source makes in this time: many small keys, and few large arrays.
const DEPTH_TIME: Duration = Duration::from_millis(1);
/// For how long the source's thread holds the GIL, where iterating does not let go of it.
const HOLD: Duration = Duration::from_micros(50);

/// A source, and the body of the thread that iterates it: `threading.Thread(target=feed)`. The
/// source may be what another pipeline gives, through a queue of Python's; a [`TaskQueue`] needs no
/// thread.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Feed {
    name: String,
    source: Mutex<Option<Py<PyAny>>>,
    /// Present where the source is an async iterable.
    inbox: Option<Inbox>,
    continuous: bool,
    /// What ends an epoch, where the source gives those of another pipeline.
    epoch_end: Option<Py<PyAny>>,
    pub(super) line: Arc<Line>,
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
        // What waits in a queue of the user's is to wait there.
        let deepest = if epoch_end.is_some() { SHALLOWEST } else { DEEPEST };
        let line = Arc::new(Line::new(deepest));
        if let Ok(tasks) = source.cast::<TaskQueue>() {
            tasks.get().lead_to(Arc::clone(&line));
        }
        let source = Mutex::new(Some(source.unbind()));
        Feed { name, source, inbox, continuous, epoch_end, line }
    }

    /// Iterates the source to its end, or until `close`.
    fn __call__(&self, py: Python<'_>) {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(source) = source else { return };
        trace::name_python_thread(py);
        without_python(py, || self.line.push_last(self.run(&source)));
        drop(source);
    }

    /// Lets the thread end; what waits is dropped.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.line.close());
    }
}

impl Feed {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn continuous(&self) -> bool {
        self.continuous
    }

    fn run(&self, source: &Py<PyAny>) -> Fed {
        loop {
            let mut items = match self.begin(source) {
                Ok(items) => items,
                Err(error) => return Fed::Failed(error),
            };
            let mut any = false;
            loop {
                match self.push_some(&mut items, &mut any) {
                    Ok(Push::GoOn) => {}
                    Ok(Push::PassEnded) => break,
                    Ok(Push::Closed) => {
                        items.close();
                        return Fed::End;
                    }
                    Err(error) => return Fed::Failed(error),
                }
            }
            // A pass without items would be followed by another one, and so on for ever.
            if !self.continuous
                || self.epoch_end.is_some()
                || !any
                || !self.line.push(Fed::EpochEnd)
            {
                return Fed::End;
            }
        }
    }

    fn ends_epoch(&self, item: &Bound<'_, PyAny>) -> bool {
        self.epoch_end.as_ref().is_some_and(|end| item.is(end))
    }

    /// Begins a pass.
    fn begin(&self, source: &Py<PyAny>) -> Result<Items> {
        if let Some(inbox) = &self.inbox {
            let pull = try_python(|py| {
                Pull::new(py, inbox, source.bind(py))
                    .map_err(|error| fatal_failure(py, error, &self.name))
            })?;
            return Ok(Items::Async(pull));
        }
        with_python(|py| {
            let items = source.bind(py).try_iter();
            let items = items.map_err(|error| fatal_failure(py, error, &self.name))?;
            Ok(Items::Sync(items.unbind()))
        })?
    }

    /// Takes items from the source and puts them in line, for as long as there is room and a moment
    /// has not passed.
    fn push_some(&self, items: &mut Items, any: &mut bool) -> Result<Push> {
        if !self.line.wait_for_room() {
            return Ok(Push::Closed);
        }
        let iterator = match items {
            Items::Async(pull) => {
                let asked = Instant::now();
                let item = match pull.next() {
                    Ok(Some(item)) => item,
                    Ok(None) => return Ok(Push::PassEnded),
                    Err(error) => {
                        return Err(
                            error.into_error(|py, error| fatal_failure(py, error, &self.name))
                        );
                    }
                };
                *any = true;
                trace::span("source", "source", asked, Instant::now());
                let pushed = self.line.push_item(item, asked.elapsed());
                return Ok(if pushed { Push::GoOn } else { Push::Closed });
            }
            Items::Sync(iterator) => iterator,
        };
        with_python(|py| {
            let mut iterator = iterator.bind(py).clone();
            let since = Instant::now();
            let mut asked = since;
            loop {
                match iterator.next() {
                    Some(Ok(item)) if self.ends_epoch(&item) => {
                        let pushed = self.line.push(Fed::EpochEnd);
                        return Ok(if pushed { Push::GoOn } else { Push::Closed });
                    }
                    Some(Ok(item)) => {
                        *any = true;
                        let now = Instant::now();
                        trace::span("source", "source", asked, now);
                        if !self.line.push_item(item.unbind(), now - asked) {
                            return Ok(Push::Closed);
                        }
                        if now - since > HOLD || !self.line.has_room() {
                            return Ok(Push::GoOn);
                        }
                        asked = now;
                    }
                    None => return Ok(Push::PassEnded),
                    Some(Err(error)) => return Err(fatal_failure(py, error, &self.name)),
                }
            }
        })?
    }
}

/// A pass through the source.
enum Items {
    Sync(Py<PyIterator>),
    Async(Pull),
}

impl Items {
    /// Lets a generator that is not at its end clean up.
    fn close(&mut self) {
        match self {
            // Where Python ends, nothing can be closed any more.
            Items::Sync(items) => drop(with_python(|py| close(items.bind(py)))),
            Items::Async(pull) => pull.close(),
        }
    }
}

enum Push {
    GoOn,
    PassEnded,
    Closed,
}

/// What comes from a source.
enum Fed {
    Item(Item),
    EpochEnd,
    Failed(Error),
    End,
}

/// The items that wait for the engine.
pub(super) struct Line {
    state: Mutex<LineState>,
    room: Condvar,
}

#[derive(Default)]
struct LineState {
    /// The most items that may wait.
    deepest: usize,
    fed: VecDeque<Fed>,
    /// What wakes the engine, where it waits.
    waker: Option<Waker>,
    /// The mean time in which the source makes an item, of late.
    nanos: f64,
    /// Whether it has been full, and is not half empty yet.
    full: bool,
    ended: bool,
    closed: bool,
}

impl LineState {
    fn depth(&self) -> usize {
        let depth = DEPTH_TIME.as_nanos() as f64 / self.nanos.max(1.0);
        (depth as usize).clamp(SHALLOWEST, self.deepest)
    }
}

impl Line {
    fn new(deepest: usize) -> Self {
        let state = LineState { deepest, ..LineState::default() };
        Line { state: Mutex::new(state), room: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push_item(&self, item: Item, made_in: Duration) -> bool {
        let nanos = made_in.as_nanos() as f64;
        let mut state = self.state();
        // The first one says how deep the line may be.
        state.nanos =
            if state.nanos == 0.0 { nanos } else { state.nanos + (nanos - state.nanos) / 8.0 };
        drop(state);
        self.push(Fed::Item(item))
    }

    /// Puts in an item that nobody has looked for room for.
    pub(super) fn push_unasked(&self, item: Item) {
        self.push(Fed::Item(item));
    }

    /// Puts something in line. Says whether anybody wants it.
    fn push(&self, fed: Fed) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.fed.push_back(fed);
        state.full = state.fed.len() >= state.depth();
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    fn push_last(&self, end: Fed) {
        self.push(end);
        self.state().ended = true;
    }

    fn has_room(&self) -> bool {
        !self.state().full
    }

    /// Says whether anybody wants more.
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
        let dropped = std::mem::take(&mut state.fed);
        drop(state);
        drop(dropped);
        self.room.notify_all();
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Item>>> {
        let mut state = self.state();
        let Some(fed) = state.fed.pop_front() else {
            // Where it was closed, this is no end of data, of which the stages should hear.
            if state.ended && !state.closed {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if state.full && state.fed.len() <= state.depth() / 2 {
            state.full = false;
            self.room.notify_one();
        }
        drop(state);
        Poll::Ready(match fed {
            Fed::Item(item) => Some(Ok(item)),
            Fed::Failed(error) => Some(Err(error)),
            Fed::EpochEnd | Fed::End => None,
        })
    }
}

/// What waits in line as a source: one pass after the other.
pub(super) struct FeedSource(pub(super) Arc<Line>);

impl Source for FeedSource {
    type Item = Item;

    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<Item>>> {
        Ok(Box::pin(Pass { line: Arc::clone(&self.0), ended: false }))
    }
}

impl fmt::Debug for FeedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FeedSource")
    }
}

struct Pass {
    line: Arc<Line>,
    ended: bool,
}

impl Stream for Pass {
    type Item = Result<Item>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Item>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let polled = self.line.poll(cx);
        self.ended = matches!(polled, Poll::Ready(None));
        polled
    }
}
