//! CPU time of threads, as the system reports it.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::observe::statistics::{GilStatistics, StageMeter, WorkerTimes};

/// The CPU time of a set of threads, from the scheduler statistics of Linux.
///
/// Threads register themselves, so that the times are read only when they are requested.
#[derive(Debug, Default)]
pub struct ThreadTimes {
    times: Mutex<Times>,
}

#[derive(Debug, Default)]
struct Times {
    ended: WorkerTimes,
    /// The files with the times of the running threads.
    running: Vec<PathBuf>,
    /// Whether the system does not report a thread's times.
    unknown: bool,
}

impl ThreadTimes {
    /// Runs `work`, and counts the whole CPU time of this thread.
    pub fn count<R>(&self, work: impl FnOnce() -> R) -> R {
        let path = fs::read_link("/proc/thread-self").ok();
        let path = path.map(|thread| Path::new("/proc").join(thread).join("schedstat"));
        let Some(path) = path.filter(|path| read(path).is_some()) else {
            self.times().unknown = true;
            return work();
        };
        self.times().running.push(path.clone());
        let _ended = Ended(self, path);
        work()
    }

    /// The times of all threads so far; `None` if no thread was counted, or if the system does not
    /// report the times.
    pub fn read(&self) -> Option<WorkerTimes> {
        let times = self.times();
        let running = times.running.iter().map(|path| read(path)).collect::<Option<Vec<_>>>()?;
        let total = running.into_iter().fold(times.ended, WorkerTimes::plus);
        (!times.unknown && total != WorkerTimes::default()).then_some(total)
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Times of threads that run stages but that the pipeline has not started, so far.
///
/// [`PipelineBuilder::external_times`](crate::PipelineBuilder::external_times) adds them to the statistics.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExternalTimes {
    /// CPU time of threads that run CPU stages, for example of a [`CpuExecutor`](crate::runtime::CpuExecutor).
    pub workers: Option<WorkerTimes>,
    /// CPU time of the thread of an event loop.
    pub event_loop: Option<WorkerTimes>,
    /// Requests for Python's GIL by threads that run stages which [hold it](crate::StageOptions::holds_gil).
    pub gil: Option<GilRequests>,
}

/// Requests of threads for Python's GIL, so far.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default)]
pub struct GilRequests {
    /// Number of requests.
    pub all: u64,
    /// Number of requests that waited for another thread.
    pub contended: u64,
    /// Waiting time of the requests, summed over threads.
    pub waited: Duration,
}

impl GilRequests {
    /// The requests since `earlier`.
    pub(crate) fn since(self, earlier: GilRequests) -> GilRequests {
        GilRequests {
            all: self.all.saturating_sub(earlier.all),
            contended: self.contended.saturating_sub(earlier.contended),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }

    pub(crate) fn statistics(self) -> GilStatistics {
        let contended = self.contended as f64 / self.all.max(1) as f64;
        GilStatistics { contended, waited: self.waited }
    }
}

/// Adds the times of a thread to those of ended threads, also after a panic.
struct Ended<'a>(&'a ThreadTimes, PathBuf);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut times = self.0.times();
        times.running.retain(|path| *path != self.1);
        times.ended = times.ended.plus(read(&self.1).unwrap_or_default());
    }
}

/// Parses the time on a CPU and the time in the queue for one.
fn read(path: &Path) -> Option<WorkerTimes> {
    let text = fs::read_to_string(path).ok()?;
    let mut nanos = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (on_cpu, waited) = (nanos.next()?.ok()?, nanos.next()?.ok()?);
    Some(WorkerTimes { on_cpu: Duration::from_nanos(on_cpu), waited: Duration::from_nanos(waited) })
}

/// Mean time between the sampled runs of a thread. Two reads of the thread's clock take less than 1 µs.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(2);
/// After this time without a sampled run, fewer runs are left out.
const SAMPLE_OVERDUE: Duration = Duration::from_millis(8);

thread_local! {
    static SAMPLING: Cell<Sampling> = const { Cell::new(Sampling::new()) };
    static ELSEWHERE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Adds CPU time that another process has used for the item that this thread processes.
///
/// A stage of the CPU pool that waits for a worker process calls this in
/// [`process`](crate::Stage::process). Then [`cpu_share`](crate::observe::StageStatistics::cpu_share)
/// counts the work of that process, and predictions know that it needs a CPU.
///
/// ```
/// use std::time::Duration;
/// use spdl_core::observe::add_cpu_time;
///
/// // A worker process has answered, and states its CPU time.
/// add_cpu_time(Duration::from_millis(5));
/// ```
pub fn add_cpu_time(time: Duration) {
    ELSEWHERE.set(ELSEWHERE.get().saturating_add(time));
}

/// Chooses the runs of a thread that are sampled: after a random number of others.
///
/// The first run after a fixed time would often be the successor of a long run: if a long and a short stage alternate,
/// only the short one would be sampled.
#[derive(Clone, Copy)]
struct Sampling {
    last: Option<Instant>,
    /// Runs since the last sampled one.
    runs: u32,
    /// How many of the next runs are left out.
    left_out: u32,
    random: u32,
}

impl Sampling {
    const fn new() -> Self {
        Sampling { last: None, runs: 0, left_out: 0, random: 1 }
    }

    /// Whether a run that starts at `now` is sampled.
    fn next(&mut self, now: Instant) -> bool {
        self.runs = self.runs.saturating_add(1);
        let since = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let is_sampled = self.left_out == 0;
        if is_sampled {
            // The length of a run is unknown at first.
            self.left_out = match self.last {
                Some(_) => self.draw(since),
                None => self.next_random() % 2,
            };
            (self.last, self.runs) = (Some(now), 0);
        } else if since > SAMPLE_OVERDUE {
            // The runs have become long.
            self.left_out = (self.next_random() % 2).min(self.left_out - 1);
        } else {
            self.left_out -= 1;
        }
        is_sampled
    }

    /// Draws a number of runs. In the mean, they take [`SAMPLE_INTERVAL`].
    fn draw(&mut self, since: Duration) -> u32 {
        let nanos = since.as_nanos().max(1) as u64;
        let mean = u64::from(self.runs) * SAMPLE_INTERVAL.as_nanos() as u64 / nanos;
        (u64::from(self.next_random()) % (2 * mean + 2)) as u32
    }

    /// Xorshift of 32 bits (G. Marsaglia, 2003).
    fn next_random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }
}

/// A run whose CPU time may be measured, about one of a thread in each [`SAMPLE_INTERVAL`].
pub(crate) struct CpuSample {
    began: Option<Duration>,
}

impl CpuSample {
    /// Starts a run at `now`.
    pub(crate) fn start(now: Instant) -> Self {
        let mut sampling = SAMPLING.get();
        let is_sampled = sampling.next(now);
        SAMPLING.set(sampling);
        CpuSample { began: if is_sampled { cpu_time() } else { None } }
    }

    /// Ends a run that took `busy`.
    pub(crate) fn end(self, meter: &StageMeter, busy: Duration) {
        if let (Some(began), Some(now)) = (self.began, self.began.and_then(|_| cpu_time())) {
            meter.sampled(busy, now.saturating_sub(began));
        }
    }
}

/// The CPU time of this thread, and that of other processes for its items.
fn cpu_time() -> Option<Duration> {
    thread_cpu_time().map(|time| time + ELSEWHERE.get())
}

/// The CPU time of this thread.
#[cfg(target_os = "linux")]
fn thread_cpu_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).ok()
}

#[cfg(not(target_os = "linux"))]
fn thread_cpu_time() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::statistics::StageKind;

    #[test]
    fn threads_are_counted_while_they_run_and_after_their_end() {
        let times = ThreadTimes::default();
        assert_eq!(times.read(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                times.count(|| {
                    let until = Instant::now() + Duration::from_millis(60);
                    while Instant::now() < until {}
                    assert!(times.read().is_none_or(|it| it.on_cpu > Duration::ZERO));
                })
            });
        });
        if let Some(ended) = times.read() {
            let total = ended.on_cpu + ended.waited;
            assert!(total >= Duration::from_millis(40), "{ended:?}");
        }
    }

    #[test]
    fn runs_of_all_lengths_are_sampled() {
        let mut sampling = Sampling::new();
        let mut now = Instant::now();
        let mut sampled = [0; 3];
        // A long and a short run alternate.
        for run in 0..1000 {
            sampled[run % 2] += u32::from(sampling.next(now));
            now += if run % 2 == 0 { Duration::from_millis(5) } else { Duration::from_micros(13) };
        }
        assert!(sampled[..2].iter().all(|count| *count > 150), "{sampled:?}");
        // Of short runs, about one in each interval is sampled, also before long runs.
        for run in 0..1_000_000 {
            sampled[2] += u32::from(sampling.next(now));
            now += Duration::from_nanos(100 + run % 7);
        }
        assert!((25..100).contains(&sampled[2]), "{sampled:?}");
        let sampled = (0..20).filter(|_| {
            now += Duration::from_millis(5);
            sampling.next(now)
        });
        assert!(sampled.count() > 5);
    }

    #[test]
    fn samples_distinguish_computing_from_waiting() {
        let share = |work: fn(Duration)| {
            let meter = StageMeter::new("stage".into(), StageKind::Cpu, 1);
            for _ in 0..3 {
                let started = Instant::now();
                let sample = CpuSample::start(started);
                work(Duration::from_millis(8));
                sample.end(&meter, started.elapsed());
            }
            meter.snapshot().cpu_share
        };
        let waiting = share(std::thread::sleep).unwrap();
        assert!(waiting < 0.2, "{waiting}");
        let by_another_process = share(|time| {
            std::thread::sleep(time);
            add_cpu_time(time / 2);
        });
        let by_another_process = by_another_process.unwrap();
        assert!((0.3..0.7).contains(&by_another_process), "{by_another_process}");
        let computing = |time| {
            let began = thread_cpu_time().unwrap();
            while thread_cpu_time().unwrap() - began < time {}
        };
        // On a busy machine, a thread that computes gets a small part of a CPU.
        let computing = share(computing).unwrap();
        assert!(computing > 3.0 * waiting, "{computing}, {waiting}");
    }
}
