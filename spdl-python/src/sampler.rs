//! The orders of distributed samplers: which items a rank draws, and how far it has come.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use spdl_core::source::sampler::{Distributed, NumpyRandom, SampleOrder, Sampler, Sequential};

use crate::interop::error::to_exception;
use crate::interop::wait::interruptible;

/// An order of so many items or draws is there at once; for a longer one, signals are heard.
const AT_ONCE: u64 = 1 << 16;

/// One rank's part of a data set's order.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct RankOrder {
    sampler: Arc<dyn Sampler>,
    items: u64,
    len: u64,
    is_short: bool,
}

#[pymethods]
impl RankOrder {
    /// Every `world_size`-th item of 0, 1, 2 and so on, the same for every seed.
    #[staticmethod]
    fn sequential(
        py: Python<'_>,
        items: u64,
        rank: u64,
        world_size: u64,
        drop_last_round: bool,
    ) -> PyResult<Self> {
        let part = Distributed::new(Sequential, rank, world_size);
        RankOrder::new(part.map(|part| part.drop_last_round(drop_last_round)), items, items)
            .map_err(|error| to_exception(py, &error))
    }

    /// Every `world_size`-th of NumPy's draws; another order for each seed.
    #[staticmethod]
    #[pyo3(signature = (items, draws, weights, rank, world_size, drop_last_round))]
    fn random(
        py: Python<'_>,
        items: u64,
        draws: u64,
        weights: Option<Vec<f64>>,
        rank: u64,
        world_size: u64,
        drop_last_round: bool,
    ) -> PyResult<Self> {
        let part = py.detach(|| {
            // Of seed 0, and each epoch with its own: what is the epoch there is the seed here.
            let mut all = NumpyRandom::new(0).each_epoch().draws(draws);
            if drop_last_round {
                all = all.multiple_of(world_size)?;
            }
            if let Some(weights) = weights {
                all = all.weights(weights)?;
            }
            Ok(Distributed::new(all, rank, world_size)?.drop_last_round(drop_last_round))
        });
        RankOrder::new(part, items, draws).map_err(|error| to_exception(py, &error))
    }

    /// The items that `seed` gives, from `position` on.
    fn indices(&self, seed: u64, position: u64) -> Indices {
        let RankOrder { items, len, is_short, .. } = *self;
        let progress = Mutex::new(Progress { position, order: None });
        Indices { sampler: Arc::clone(&self.sampler), items, seed, len, is_short, progress }
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.len)?)
    }
}

impl RankOrder {
    fn new<S: Sampler>(
        part: spdl_core::Result<Distributed<S>>,
        items: u64,
        draws: u64,
    ) -> spdl_core::Result<Self> {
        let sampler = part?;
        let len = match sampler.epoch_len(items) {
            Some(len) => len,
            None => sampler.epoch(items, 0)?.len(),
        };
        let is_short = items.max(draws) <= AT_ONCE;
        Ok(RankOrder { sampler: Arc::new(sampler), items, len, is_short })
    }
}

/// The items of one pass, one by one. The order is computed for the first of them, with the GIL
/// free, and given back after the last. Threads that share it get different items.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Indices {
    sampler: Arc<dyn Sampler>,
    items: u64,
    seed: u64,
    len: u64,
    is_short: bool,
    progress: Mutex<Progress>,
}

struct Progress {
    position: u64,
    order: Option<Arc<dyn SampleOrder>>,
}

#[pymethods]
impl Indices {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        loop {
            {
                let mut progress = self.progress();
                if progress.position >= self.len {
                    progress.order = None;
                    return Ok(None);
                }
                if let Some(order) = &progress.order {
                    let item = order.at(progress.position);
                    progress.position += 1;
                    return Ok(Some(item));
                }
            }
            // Without the lock: whoever waits for that may hold the GIL.
            let (sampler, items, seed) = (Arc::clone(&self.sampler), self.items, self.seed);
            let make = move || sampler.epoch(items, seed);
            let order = if self.is_short { py.detach(make) } else { interruptible(py, make)? };
            let order = order.map_err(|error| to_exception(py, &error))?;
            self.progress().order.get_or_insert(order);
        }
    }

    fn __length_hint__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.len.saturating_sub(self.position()))?)
    }

    /// How many items of the pass were given, those before its start among them.
    #[getter]
    fn position(&self) -> u64 {
        self.progress().position
    }
}

impl Indices {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
