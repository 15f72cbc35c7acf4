//! Statistics of an epoch or pipeline, which do not keep the epoch or pipeline running.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use spdl_core::observe::Counter;
use spdl_core::{Error, ErrorKind, Result, State, Statistics};
use spdl_cuda::DeviceImages;
use spdl_cuda::images::ImageStatistics;
use spdl_io::Cache;
use spdl_io::layers::CacheStatistics;

use super::diagnosis::add_cache;
use super::dict::{self, ExtraStatistics};
use super::pace::Pace;
use crate::interop::error::to_exception;
use crate::interop::fork::OwnerProcess;

/// Reports statistics and checkpoint state, during a run and after it.
///
/// A monitor does not keep the run alive.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Monitor {
    view: Mutex<View>,
    /// Counts truncated images with black rows; `None` if a truncated image is an error.
    partial: Option<Counter>,
    /// Count the samples that a function filtered out, or that are quarantined; empty without such samples.
    filtered: Vec<Counter>,
    store: Option<Arc<str>>,
    /// Whether stages run on executors of the user.
    has_executors: bool,
    /// Counts the items that were delivered to the consumer.
    pace: Mutex<Pace>,
    owner: OwnerProcess,
}

/// A run that has a checkpoint state.
pub(crate) trait HasState: Send + Sync {
    /// The checkpoint state; `None` after the run has ended.
    fn state(&self) -> Option<Result<State>>;
}

enum View {
    Running(RunningView),
    /// The final statistics. The pipeline's own monitor would keep its buffers allocated.
    Ended(Box<FinalStatistics>),
}

struct RunningView {
    pipeline: spdl_core::pipeline::Monitor,
    work: Option<Weak<dyn HasState>>,
    /// The cache, and its statistics when the run started.
    cache: Option<(Cache, CacheStatistics)>,
    /// Present if a device decodes.
    decoded: Option<Box<DeviceImages>>,
}

#[derive(Clone, Default)]
struct FinalStatistics {
    statistics: Statistics,
    cache: Option<CacheStatistics>,
    decoded: Option<ImageStatistics>,
    /// The final checkpoint state; `None` if the run never started.
    state: Option<Result<State>>,
}

#[pymethods]
impl Monitor {
    /// A monitor without a run.
    #[new]
    fn new() -> Self {
        let view = View::Ended(Box::default());
        Monitor {
            view: Mutex::new(view),
            partial: None,
            filtered: Vec::new(),
            store: None,
            has_executors: false,
            pace: Mutex::default(),
            owner: OwnerProcess::current(),
        }
    }

    /// The statistics so far.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut last = if self.owner.is_forked_child() {
            self.final_statistics().ok_or_else(OwnerProcess::numbers_error)?
        } else {
            py.detach(|| self.view().snapshot())
        };
        if let Some(cache) = &last.cache {
            add_cache(&mut last.statistics, cache);
        }
        let extra = ExtraStatistics {
            partial: self.partial.as_ref().map(Counter::get),
            filtered: self.filtered.iter().map(Counter::get).reduce(u64::saturating_add),
            cache: last.cache,
            decoded: last.decoded,
            store: self.store(),
            has_executors: self.has_executors,
        };
        dict::to_dict(py, &last.statistics, &extra)
    }

    /// The length of a time slot in seconds, and the number of items delivered in each slot.
    #[getter]
    pub(crate) fn pace(&self) -> (f64, Vec<u64>) {
        match self.owner.is_forked_child() {
            // The parent may have held the lock at the fork.
            true => Pace::default().counts(),
            false => self.lock_pace().counts(),
        }
    }

    /// The checkpoint state after the last delivered item, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let state = if self.owner.is_forked_child() {
            self.final_statistics().ok_or_else(OwnerProcess::numbers_error)?.state
        } else {
            py.detach(|| self.position())
        };
        let text = state.map(|state| state.and_then(|state| state_to_json(&state)));
        text.transpose().map_err(|error| to_exception(py, &error))
    }
}

impl Monitor {
    pub(crate) fn of(pipeline: spdl_core::pipeline::Monitor, partial: Option<Counter>) -> Self {
        let running = RunningView { pipeline, work: None, cache: None, decoded: None };
        let view = Mutex::new(View::Running(running));
        Monitor {
            view,
            partial,
            filtered: Vec::new(),
            store: None,
            has_executors: false,
            pace: Mutex::default(),
            owner: OwnerProcess::current(),
        }
    }

    /// Sets whether stages run on executors of the user.
    pub(crate) fn with_executors(self, has_executors: bool) -> Self {
        Monitor { has_executors, ..self }
    }

    /// Adds the source of the checkpoint state, the cache, and the store of the samples.
    pub(crate) fn with_work(
        mut self,
        work: Weak<dyn HasState>,
        cache: Option<&Cache>,
        store: Option<Arc<str>>,
    ) -> Self {
        let view = self.view.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let View::Running(running) = view {
            running.work = Some(work);
            running.cache = cache.map(|cache| (cache.clone(), cache.statistics()));
        }
        Monitor { store, ..self }
    }

    /// Adds counters of the samples that a function filtered out, or that are quarantined.
    pub(crate) fn with_filtered(self, filtered: impl IntoIterator<Item = Counter>) -> Self {
        Monitor { filtered: filtered.into_iter().collect(), ..self }
    }

    /// Adds the decoder statistics of a device.
    pub(crate) fn with_decoded(mut self, decoded: Option<DeviceImages>) -> Self {
        let view = self.view.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let View::Running(running) = view {
            running.decoded = decoded.map(Box::new);
        }
        self
    }

    /// The address of the store that holds the images, without credentials.
    pub(crate) fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// The statistics so far, without those of stores and devices.
    pub(crate) fn last_statistics(&self) -> Statistics {
        self.view().snapshot().statistics
    }

    fn position(&self) -> Option<Result<State>> {
        let work = match &*self.view() {
            View::Running(running) => running.work.as_ref().and_then(Weak::upgrade),
            View::Ended(ended) => return ended.state.clone(),
        };
        // Do not hold the view's lock here, because `end_with_state` locks the run first. If the run has
        // ended by then, the view has the last state of the run.
        if let Some(work) = work
            && let Some(state) = work.state()
        {
            return Some(state);
        }
        match &*self.view() {
            View::Running(_) => None,
            View::Ended(ended) => ended.state.clone(),
        }
    }

    /// The final statistics, if the run had ended before the fork. Does not block.
    fn final_statistics(&self) -> Option<FinalStatistics> {
        let view = match self.view.try_lock() {
            Ok(view) => view,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        match &*view {
            View::Running(_) => None,
            View::Ended(ended) => Some((**ended).clone()),
        }
    }

    /// Counts a delivered item.
    pub(crate) fn count_item(&self) {
        self.lock_pace().count(Instant::now());
    }

    /// Stores the final statistics.
    pub(crate) fn end(&self) {
        let mut view = self.view();
        let ended = view.snapshot();
        *view = View::Ended(Box::new(ended));
    }

    /// Stores the final statistics and the last checkpoint state.
    pub(crate) fn end_with_state(&self, state: Result<State>) {
        let mut view = self.view();
        let ended = FinalStatistics { state: Some(state), ..view.snapshot() };
        *view = View::Ended(Box::new(ended));
    }

    fn lock_pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    fn snapshot(&self) -> FinalStatistics {
        match self {
            View::Running(RunningView { pipeline, cache, decoded, .. }) => FinalStatistics {
                statistics: pipeline.statistics(),
                cache: cache.as_ref().map(|(cache, before)| cache.statistics().since(before)),
                decoded: decoded.as_ref().map(|images| images.statistics()),
                state: None,
            },
            View::Ended(ended) => (**ended).clone(),
        }
    }
}

/// Serializes a checkpoint state as JSON.
///
/// # Errors
/// `Internal` if serialization fails, which is a bug.
pub(crate) fn state_to_json(state: &State) -> Result<String> {
    serde_json::to_string(state).map_err(|error| {
        Error::new(ErrorKind::Internal, "cannot serialize the checkpoint state").with_source(error)
    })
}
