//! The bottleneck of a pipeline of Python functions: the engine's verdict, refined by the CPU time
//! of the worker threads.
//!
//! The engine counts a worker thread as busy while a Python function waits for I/O or for the GIL.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spdl_core::Statistics;
use spdl_core::observe::{Limit, StageStatistics};

use crate::interop::wait::GilRequests;

/// A stage computes if its threads use a CPU, or wait for one, for at least this share of its time.
const COMPUTES: f64 = 0.75;
/// The GIL is the bottleneck if more than this share of the requests for it had to wait: a thread
/// that runs long Python functions waits mostly within them.
const CONTENDED: f64 = 0.5;
/// Or if the threads spent more than this share of their time on waiting for their requests.
const WAITED: f64 = 0.3;
/// The worker threads are saturated above this share.
const SATURATED: f64 = 0.85;

/// The time in which threads used a CPU or waited for one, not for I/O or a lock, and their requests
/// for the GIL.
#[derive(Debug, Default)]
pub(crate) struct ThreadTimes {
    times: Mutex<Times>,
    gil: Arc<GilRequests>,
}

/// A summary of [`ThreadTimes`] of all pools of a pipeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolTimes {
    /// The time in which threads used a CPU or waited for one, if the system reports it.
    runnable: Option<Duration>,
    /// The share of the requests for the GIL that had to wait, in 0..=1.
    contended: f64,
    /// The time that the requests for the GIL waited.
    waited: Duration,
    /// Whether stages run on executors of the user.
    has_executors: bool,
    /// The time in which the thread of the event loop used a CPU or waited for one.
    event_loop: Option<Duration>,
}

impl PoolTimes {
    /// The times so far. The first pool runs the stages that have no executor.
    pub(crate) fn of(pools: &[Arc<ThreadTimes>], event_loop: Option<&ThreadTimes>) -> Option<Self> {
        let counts = pools.iter().map(|pool| pool.gil.counts());
        let (all, contended) = counts.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        (!pools.is_empty()).then(|| PoolTimes {
            runnable: pools.iter().map(|pool| pool.runnable()).sum(),
            contended: contended as f64 / all.max(1) as f64,
            waited: pools.iter().map(|pool| pool.gil.waited()).sum(),
            has_executors: pools.len() > 1,
            event_loop: event_loop.and_then(ThreadTimes::runnable),
        })
    }
}

#[derive(Debug, Default)]
struct Times {
    ended: Duration,
    /// The files with the times of the running threads.
    running: Vec<PathBuf>,
    /// Whether the system does not report a thread's times.
    unknown: bool,
}

impl ThreadTimes {
    /// Runs `work`, and counts the time of this thread.
    pub(crate) fn count(&self, work: impl FnOnce()) {
        self.gil.count_on_this_thread();
        let path = fs::read_link("/proc/thread-self").ok();
        let path = path.map(|thread| PathBuf::from("/proc").join(thread).join("schedstat"));
        let Some(path) = path.filter(|path| runnable(path).is_some()) else {
            self.times().unknown = true;
            return work();
        };
        self.times().running.push(path.clone());
        let _ended = Ended(self, path);
        work();
    }

    /// The time of all threads so far, or `None` if the system does not report it.
    pub(crate) fn runnable(&self) -> Option<Duration> {
        let times = self.times();
        let running: Option<Duration> = times.running.iter().map(|path| runnable(path)).sum();
        running.filter(|_| !times.unknown).map(|running| times.ended + running)
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the time of a thread to those of ended threads, also after a panic.
struct Ended<'a>(&'a ThreadTimes, PathBuf);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut times = self.0.times();
        times.running.retain(|path| *path != self.1);
        times.ended += runnable(&self.1).unwrap_or_default();
    }
}

/// The time of a thread on a CPU and in the queue for one.
fn runnable(path: &Path) -> Option<Duration> {
    let text = fs::read_to_string(path).ok()?;
    let mut nanos = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (on_cpu, waiting) = (nanos.next()?.ok()?, nanos.next()?.ok()?);
    Some(Duration::from_nanos(on_cpu.saturating_add(waiting)))
}

/// A sentence that names the bottleneck, with advice in terms of Python's arguments.
///
/// `times` are those of the worker threads; `has_gil` is false in a free-threaded Python.
pub(super) fn diagnosis(
    statistics: &Statistics,
    times: Option<PoolTimes>,
    has_gil: bool,
) -> String {
    let limit = statistics.limit();
    let Some(times) = times else { return limit.to_string() };
    let of_cpu = || statistics.stages.iter().filter(|stage| stage.kind.uses_cpu_pool());
    // Native stages have dedicated threads, and never wait for the GIL.
    let on_pool = || of_cpu().filter(|stage| !stage.dedicated);
    let busy: f64 = on_pool().map(|stage| stage.busy.as_secs_f64()).sum();
    let elapsed = statistics.elapsed.as_secs_f64();
    let occupied = busy / elapsed;
    let used = times.runnable.map(|runnable| runnable.as_secs_f64() / elapsed);
    let share_text = |part: f64| match (part * 100.0).round() {
        100.0 => "all".to_owned(),
        percent => format!("{percent} %"),
    };
    let loop_share = times.event_loop.map_or(0.0, |runnable| runnable.as_secs_f64() / elapsed);
    if let Limit::Concurrency { stage, waits: true, .. } | Limit::Balance { stage, .. } = &limit
        && loop_share > SATURATED
    {
        return format!(
            "The event loop is the bottleneck: its thread uses a CPU {} % of the time, because coroutines \
             compute, most of all in stage {stage:?}. Make the function of the stage synchronous, so that it runs \
             on the worker threads, or run the stage in processes (to(ProcessPoolExecutorConfig())).",
            (loop_share.min(1.0) * 100.0).round(),
        );
    }
    let waits_for_gil = times.contended > CONTENDED || times.waited.as_secs_f64() > WAITED * busy;
    let threads = statistics.threads;
    // If a Python source waits for the GIL as well, no thread is saturated.
    let may_be_gil = matches!(limit, Limit::Cpu { .. } | Limit::Balance { .. });
    let busiest = on_pool().max_by_key(|stage| stage.busy);
    if let Some(busiest) = busiest.filter(|_| has_gil && threads > 1 && may_be_gil && waits_for_gil)
    {
        return format!(
            "The GIL is the bottleneck: the {threads} worker threads run Python code one at a time, \
             and {} of the work is in stage {:?}. Run the stage in processes \
             (to(ProcessPoolExecutorConfig())) or in a free-threaded Python, or call functions that \
             release the GIL; more threads or cores do not help, and fewer threads cost less.",
            share_text(busiest.busy.as_secs_f64() / busy),
            busiest.name,
        );
    }
    let (Limit::Cpu { stage, cpus, part, .. }, Some(used)) = (&limit, used) else {
        return limit.to_string();
    };
    // A native stage computes whenever it is busy.
    if of_cpu().any(|each| each.dedicated && each.name == *stage) {
        return limit.to_string();
    }
    let share = share_text(*part);
    let of_threads = occupied / threads as f64;
    if used >= COMPUTES * occupied {
        return match (has_gil, threads < *cpus) {
            (true, true) => format!(
                "The CPU is the bottleneck: num_threads={threads}, although the process may use {cpus} \
                 CPUs, and {share} of the work is in stage {stage:?}. If the stage releases the GIL, \
                 raise num_threads; otherwise run it in processes (to(ProcessPoolExecutorConfig())) \
                 or in a free-threaded Python."
            ),
            (false, true) => format!(
                "The CPU is the bottleneck: num_threads={threads}, although the process may use {cpus} \
                 CPUs, and {share} of the work is in stage {stage:?}. Raise num_threads."
            ),
            (_, false) => limit.to_string(),
        };
    }
    // Threads are free, so the stage that always runs as many functions as its concurrency allows
    // limits the rate. Another stage may take more time in total.
    let occupied_share = |stage: &StageStatistics| {
        stage.busy.as_secs_f64() / elapsed / stage.concurrency.max(1) as f64
    };
    let fullest =
        on_pool().max_by(|a, b| occupied_share(a).total_cmp(&occupied_share(b))).filter(|stage| {
            of_threads <= SATURATED && !times.has_executors && occupied_share(stage) > SATURATED
        });
    if let Some(fullest) = fullest {
        return format!(
            "Stage {:?} is the bottleneck: with a concurrency of {}, it is occupied {} % of the time, \
             while num_threads={threads} threads are occupied {} %. They use a CPU for {} % of that, so \
             they mostly wait: raise the concurrency of the stage.",
            fullest.name,
            fullest.concurrency,
            (occupied_share(fullest).min(1.0) * 100.0).round(),
            (of_threads * 100.0).round(),
            (used / occupied * 100.0).round(),
        );
    }
    let concurrency = on_pool().find(|each| each.name == *stage).map_or(1, |it| it.concurrency);
    let advice = match (of_threads > SATURATED, concurrency > threads) {
        _ if times.has_executors => {
            "raise the concurrency of the stage, and num_threads or the workers of its executor"
                .to_owned()
        }
        (true, true) => format!("raise num_threads; the concurrency of the stage is {concurrency}"),
        (true, false) => "raise num_threads, and the concurrency of the stage".to_owned(),
        (false, _) => format!("raise the concurrency of the stage, which is {concurrency}"),
    };
    format!(
        "The worker threads are the bottleneck: with num_threads={threads}, they are occupied {} % of \
         the time, but use a CPU for {} % of that, so they mostly wait; {share} of the work is in \
         stage {stage:?}: {advice}.",
        (of_threads.min(1.0) * 100.0).round(),
        (used / occupied * 100.0).round(),
    )
}
