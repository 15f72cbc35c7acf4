//! Orders of distributed samplers: the indices that a rank draws, and the position of the next index.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use spdl_core::source::sampler::{Distributed, NumpyRandom, SampleOrder, Sampler, Sequential};

use crate::interop::error::to_exception;
use crate::interop::wait::interruptible;

/// Orders of at most this many items or draws are computed without checking for signals.
const UNINTERRUPTIBLE_MAX: u64 = 1 << 16;

/// The part of a data set's order that one rank draws.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct RankOrder {
    sampler: Arc<dyn Sampler>,
    items: u64,
    len: u64,
    is_short: bool,
}

#[pymethods]
impl RankOrder {
    /// Every `world_size`-th of the numbers 0, 1, 2 and so on, from `rank` on. The seed has no
    /// effect.
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

    /// Every `world_size`-th draw of NumPy's generator, from draw `rank` on. The seed selects the
    /// order.
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
            // `each_epoch` makes the seed `0 + epoch`, so the epoch number serves as the seed here.
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

    /// The indices for `seed`, from `position` on.
    fn indices(&self, seed: u64, position: u64) -> Indices {
        let RankOrder { items, len, is_short, .. } = *self;
        let state = Mutex::new(IndicesState { position, order: None });
        Indices { sampler: Arc::clone(&self.sampler), items, seed, len, is_short, state }
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
        let is_short = items.max(draws) <= UNINTERRUPTIBLE_MAX;
        Ok(RankOrder { sampler: Arc::new(sampler), items, len, is_short })
    }
}

/// Iterator over the indices of one pass.
///
/// The order is computed for the first index, without the GIL, and freed after the last. Threads
/// that share the iterator get different indices.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Indices {
    sampler: Arc<dyn Sampler>,
    items: u64,
    seed: u64,
    len: u64,
    is_short: bool,
    state: Mutex<IndicesState>,
}

struct IndicesState {
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
                let mut state = self.state();
                if state.position >= self.len {
                    state.order = None;
                    return Ok(None);
                }
                if let Some(order) = &state.order {
                    let item = order.at(state.position);
                    state.position += 1;
                    return Ok(Some(item));
                }
            }
            // The lock is not held here, because a thread that waits for the lock may hold the GIL.
            let (sampler, items, seed) = (Arc::clone(&self.sampler), self.items, self.seed);
            let make = move || sampler.epoch(items, seed);
            let order = if self.is_short { py.detach(make) } else { interruptible(py, make)? };
            let order = order.map_err(|error| to_exception(py, &error))?;
            self.state().order.get_or_insert(order);
        }
    }

    fn __length_hint__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.len.saturating_sub(self.position()))?)
    }

    /// The number of indices drawn so far, including those before the start position.
    #[getter]
    fn position(&self) -> u64 {
        self.state().position
    }
}

impl Indices {
    fn state(&self) -> MutexGuard<'_, IndicesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
