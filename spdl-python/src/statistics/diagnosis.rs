//! CPU time of threads that run Python functions, and their requests for the GIL, as part of the
//! engine's statistics.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use spdl_core::Statistics;
use spdl_core::observe::{
    CacheUse, Diagnosis, ExternalTimes, GilRequests, Limit, StageKind, WorkerTimes,
};
use spdl_io::layers::CacheStatistics;

use crate::interop::wait;

/// The CPU time of threads, and their requests for the GIL.
#[derive(Debug, Default)]
pub(crate) struct ThreadTimes {
    times: spdl_core::observe::ThreadTimes,
    gil: Arc<wait::GilRequests>,
}

impl ThreadTimes {
    /// Runs `work`, and counts the time of this thread.
    pub(crate) fn count(&self, work: impl FnOnce()) {
        self.gil.count_on_this_thread();
        self.times.count(work);
    }
}

/// Adds CPU time that a worker process has used for the item that this thread processes.
#[pyfunction]
pub(crate) fn add_cpu_time(seconds: f64) {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    spdl_core::observe::add_cpu_time(time);
}

/// The times of all pools of a pipeline and of its event loop so far. `has_gil` is false in a free-threaded Python.
pub(crate) fn external_times(
    pools: &[Arc<ThreadTimes>],
    event_loop: Option<&ThreadTimes>,
    has_gil: bool,
) -> ExternalTimes {
    let mut requests = GilRequests::default();
    for pool in pools {
        let of_pool = pool.gil.total();
        requests.all += of_pool.all;
        requests.contended += of_pool.contended;
        requests.waited += of_pool.waited;
    }
    let workers = pools.iter().filter_map(|pool| pool.times.read()).reduce(sum);
    let event_loop = event_loop.and_then(|thread| thread.times.read());
    let mut times = ExternalTimes::default();
    (times.workers, times.event_loop, times.gil) =
        (workers, event_loop, has_gil.then_some(requests));
    times
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
