//! What an epoch did, for those who do not hold it.

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

use super::dict::{self, Told};
use super::pace::Pace;
use crate::interop::error::to_exception;
use crate::interop::fork::Home;

/// Tells an epoch's statistics, and how far it has come, while it runs and afterwards. Does not keep
/// it running.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Monitor {
    view: Mutex<View>,
    /// Images that are black in part; `None` where that is an error.
    partial: Option<Counter>,
    store: Option<Arc<str>>,
    /// Of what was given to whoever asks.
    pace: Mutex<Pace>,
    home: Home,
}

/// Work that reports how far it has come.
pub(crate) trait Progress: Send + Sync {
    /// `None` once the work has ended.
    fn state(&self) -> Option<Result<State>>;
}

enum View {
    Running(Running),
    /// The last word. The pipeline's own monitor would keep its buffers.
    Ended(Box<Ended>),
}

struct Running {
    pipeline: spdl_core::pipeline::Monitor,
    work: Option<Weak<dyn Progress>>,
    /// The cache, and what it had done before.
    cache: Option<(Cache, CacheStatistics)>,
    /// Where the device decodes.
    decoded: Option<Box<DeviceImages>>,
}

#[derive(Clone, Default)]
struct Ended {
    statistics: Statistics,
    cache: Option<CacheStatistics>,
    decoded: Option<ImageStatistics>,
    /// `None` where nothing was begun.
    state: Option<Result<State>>,
}

#[pymethods]
impl Monitor {
    /// A monitor of nothing.
    #[new]
    fn new() -> Self {
        let view = View::Ended(Box::default());
        Monitor {
            view: Mutex::new(view),
            partial: None,
            store: None,
            pace: Mutex::default(),
            home: Home::here(),
        }
    }

    /// What was done so far.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let last = if self.home.is_elsewhere() {
            self.last_word().ok_or_else(Home::numbers_error)?
        } else {
            py.detach(|| self.view().so_far())
        };
        let told = Told {
            partial: self.partial.as_ref().map(Counter::get),
            cache: last.cache,
            decoded: last.decoded,
            store: self.store(),
        };
        dict::to_dict(py, &last.statistics, &told)
    }

    /// How many seconds a stretch of time takes, and how many were given in each, from the first on.
    #[getter]
    pub(crate) fn pace(&self) -> (f64, Vec<u64>) {
        match self.home.is_elsewhere() {
            // What another thread had locked stays locked.
            true => Pace::default().told(),
            false => self.its_pace().told(),
        }
    }

    /// How far the epoch has come with what was delivered, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let state = if self.home.is_elsewhere() {
            self.last_word().ok_or_else(Home::numbers_error)?.state
        } else {
            py.detach(|| self.position())
        };
        let text = state.map(|state| state.and_then(|state| state_to_json(&state)));
        text.transpose().map_err(|error| to_exception(py, &error))
    }
}

impl Monitor {
    pub(crate) fn of(pipeline: spdl_core::pipeline::Monitor, partial: Option<Counter>) -> Self {
        let running = Running { pipeline, work: None, cache: None, decoded: None };
        let view = Mutex::new(View::Running(running));
        Monitor { view, partial, store: None, pace: Mutex::default(), home: Home::here() }
    }

    /// One that also tells how far this work has come, and what the cache of these images did.
    pub(crate) fn with_work(
        mut self,
        work: Weak<dyn Progress>,
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

    /// One that also tells who has decoded the images, where the device does.
    pub(crate) fn with_decoded(mut self, decoded: Option<DeviceImages>) -> Self {
        let view = self.view.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let View::Running(running) = view {
            running.decoded = decoded.map(Box::new);
        }
        self
    }

    /// The store that the images lie in, as it may be shown.
    pub(crate) fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    fn position(&self) -> Option<Result<State>> {
        let work = match &*self.view() {
            View::Running(running) => running.work.as_ref().and_then(Weak::upgrade),
            View::Ended(ended) => return ended.state.clone(),
        };
        // It is not locked while the work is: whoever ends that tells this.
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

    /// The numbers of what had ended when this process was forked. Waits for nobody.
    fn last_word(&self) -> Option<Ended> {
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

    /// Takes in that one was given.
    pub(crate) fn gave(&self) {
        self.its_pace().came(Instant::now());
    }

    /// Keeps the numbers as they are now.
    pub(crate) fn end(&self) {
        let mut view = self.view();
        let ended = view.so_far();
        *view = View::Ended(Box::new(ended));
    }

    /// And how far the epoch has come.
    pub(crate) fn end_at(&self, state: Result<State>) {
        let mut view = self.view();
        let ended = Ended { state: Some(state), ..view.so_far() };
        *view = View::Ended(Box::new(ended));
    }

    fn its_pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    fn so_far(&self) -> Ended {
        match self {
            View::Running(Running { pipeline, cache, decoded, .. }) => Ended {
                statistics: pipeline.statistics(),
                cache: cache.as_ref().map(|(cache, before)| cache.statistics().since(before)),
                decoded: decoded.as_ref().map(|images| images.statistics()),
                state: None,
            },
            View::Ended(ended) => (**ended).clone(),
        }
    }
}

/// A state as JSON.
///
/// # Errors
/// `Internal`, never in fact: a state can always be written.
pub(crate) fn state_to_json(state: &State) -> Result<String> {
    serde_json::to_string(state).map_err(|error| {
        Error::new(ErrorKind::Internal, "the state cannot be written").with_source(error)
    })
}
