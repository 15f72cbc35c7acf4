//! CPU time of threads that run Python functions, and their requests for the GIL, as part of the
//! engine's statistics.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use spdl_core::Statistics;
use spdl_core::observe::{
    CacheUse, Diagnosis, GilStatistics, Interval, Limit, StageKind, StageStatistics, WorkerTimes,
};
use spdl_io::layers::CacheStatistics;

use super::dict::has_gil;
use crate::interop::wait::GilRequests;

/// The CPU time of threads, and their requests for the GIL.
#[derive(Debug, Default)]
pub(crate) struct ThreadTimes {
    times: spdl_core::observe::ThreadTimes,
    gil: Arc<GilRequests>,
}

impl ThreadTimes {
    /// Runs `work`, and counts the time of this thread.
    pub(crate) fn count(&self, work: impl FnOnce()) {
        self.gil.count_on_this_thread();
        self.times.count(work);
    }
}

/// A summary of [`ThreadTimes`] of all pools of a pipeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolTimes {
    workers: Option<WorkerTimes>,
    /// The share of the requests for the GIL that had to wait, in 0..=1.
    contended: f64,
    /// The time that the requests for the GIL waited.
    waited: Duration,
    /// Whether stages run on executors of the user.
    has_executors: bool,
    event_loop: Option<WorkerTimes>,
}

impl PoolTimes {
    /// The times so far. The first pool runs the stages that have no executor.
    pub(crate) fn of(pools: &[Arc<ThreadTimes>], event_loop: Option<&ThreadTimes>) -> Option<Self> {
        let counts = pools.iter().map(|pool| pool.gil.counts());
        let (all, contended) = counts.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        (!pools.is_empty()).then(|| PoolTimes {
            workers: pools.iter().filter_map(|pool| pool.times.read()).reduce(sum),
            contended: contended as f64 / all.max(1) as f64,
            waited: pools.iter().map(|pool| pool.gil.waited()).sum(),
            has_executors: pools.len() > 1,
            event_loop: event_loop.and_then(|thread| thread.times.read()),
        })
    }

    /// Whether stages run on executors of the user.
    pub(super) fn has_executors(&self) -> bool {
        self.has_executors
    }

    /// Adds the times to the statistics of the engine. `has_gil` is false in a free-threaded Python.
    pub(super) fn add_to(&self, statistics: &mut Statistics, has_gil: bool) {
        // The engine counts the threads of native stages, which are dedicated.
        statistics.workers = statistics.workers.into_iter().chain(self.workers).reduce(sum);
        statistics.event_loop = self.event_loop;
        if has_gil {
            let mut gil = GilStatistics::default();
            (gil.contended, gil.waited) = (self.contended, self.waited);
            statistics.gil = Some(gil);
        }
        mark_python(&mut statistics.stages, has_gil);
    }
}

/// Adds the times of threads that run Python functions to successive intervals.
pub(crate) struct IntervalTimes {
    pools: Vec<Arc<ThreadTimes>>,
    event_loop: Option<Arc<ThreadTimes>>,
    has_gil: bool,
    /// The times at the end of the last interval.
    last: RunTimes,
}

/// Times since the start of a run.
#[derive(Clone, Copy, Default)]
struct RunTimes {
    workers: Option<WorkerTimes>,
    event_loop: Option<WorkerTimes>,
    /// The requests for the GIL: all, and those that waited.
    requests: (u64, u64),
    waited: Duration,
}

impl IntervalTimes {
    pub(crate) fn new(
        py: Python<'_>,
        pools: Vec<Arc<ThreadTimes>>,
        event_loop: Option<Arc<ThreadTimes>>,
    ) -> PyResult<Self> {
        let has_gil = has_gil(py)?;
        Ok(IntervalTimes { pools, event_loop, has_gil, last: RunTimes::default() })
    }

    /// Adds the times since the last call.
    pub(crate) fn add_to(&mut self, interval: &mut Interval) {
        let counts = self.pools.iter().map(|pool| pool.gil.counts());
        let now = RunTimes {
            workers: self.pools.iter().filter_map(|pool| pool.times.read()).reduce(sum),
            event_loop: self.event_loop.as_ref().and_then(|thread| thread.times.read()),
            requests: counts.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1)),
            waited: self.pools.iter().map(|pool| pool.gil.waited()).sum(),
        };
        let last = std::mem::replace(&mut self.last, now);
        let workers = now.workers.map(|now| since(now, last.workers));
        interval.workers = interval.workers.into_iter().chain(workers).reduce(sum);
        interval.event_loop = now.event_loop.map(|now| since(now, last.event_loop));
        if self.has_gil && !self.pools.is_empty() {
            let mut gil = GilStatistics::default();
            let all = now.requests.0.saturating_sub(last.requests.0);
            let contended = now.requests.1.saturating_sub(last.requests.1);
            gil.contended = contended as f64 / all.max(1) as f64;
            gil.waited = now.waited.saturating_sub(last.waited);
            interval.gil = Some(gil);
        }
        mark_python(&mut interval.stages, self.has_gil);
    }
}

/// Marks the stages that run Python functions.
fn mark_python(stages: &mut [StageStatistics], has_gil: bool) {
    for stage in stages {
        stage.holds_gil = has_gil && stage.kind.uses_cpu_pool() && !stage.dedicated;
    }
}

fn since(now: WorkerTimes, earlier: Option<WorkerTimes>) -> WorkerTimes {
    let earlier = earlier.unwrap_or_default();
    let mut since = WorkerTimes::default();
    since.on_cpu = now.on_cpu.saturating_sub(earlier.on_cpu);
    since.waited = now.waited.saturating_sub(earlier.waited);
    since
}

fn sum(a: WorkerTimes, b: WorkerTimes) -> WorkerTimes {
    let mut sum = WorkerTimes::default();
    (sum.on_cpu, sum.waited) = (a.on_cpu + b.on_cpu, a.waited + b.waited);
    sum
}

/// Adds the use of a cache to the statistics of the stage that reads.
pub(super) fn add_cache(statistics: &mut Statistics, cache: &CacheStatistics) {
    let hits = cache.memory_hits + cache.disk_hits;
    let reads = |stage: &&mut spdl_core::observe::StageStatistics| stage.kind == StageKind::Async;
    if let Some(stage) = statistics.stages.iter_mut().find(reads).filter(|_| hits > 0) {
        // The time of a hit is not measured, and short.
        stage.cache = Some(CacheUse::new(cache.hit_rate(), Duration::ZERO));
    }
}

/// The diagnosis in words, with advice in terms of Python's arguments.
pub(super) fn in_words(diagnosis: &Diagnosis, has_executors: bool) -> String {
    match &diagnosis.limit {
        // The engine does not know how many threads an executor of the user has.
        limit @ Limit::Threads { .. } if has_executors => format!(
            "{limit} Raise the concurrency of the stage, and num_threads or the workers of its executor."
        ),
        _ => diagnosis.to_string(),
    }
}
