//! Thread pool for blocking I/O, separate from the workers that compute.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_channel::oneshot;
use spdl_core::memory::free_address_space;
use spdl_core::{Error, ErrorKind, Result};

#[cfg(feature = "local")]
mod stall_watch;

#[cfg(feature = "local")]
pub(crate) use self::stall_watch::ReadProgress;
#[cfg(feature = "local")]
use self::stall_watch::WatchedCall;

type Job = Box<dyn FnOnce(Option<Error>) + Send>;

/// How long a drop waits for calls in flight. A read from a working disk takes less time.
const GRACE: Duration = Duration::from_millis(200);

/// Maximum number of threads in calls that have timed out.
const MAX_STUCK: usize = 64;

/// A thread pool that starts threads on demand and ends idle ones.
///
/// Dropping the pool cancels queued jobs and joins the threads. A thread whose system call does not
/// return within [`GRACE`] is detached.
pub(crate) struct IoThreads {
    inner: Arc<IoThreadsInner>,
}

struct IoThreadsInner {
    name: &'static str,
    max_threads: usize,
    /// Time after which an idle thread ends.
    linger: Duration,
    state: Mutex<IoThreadsState>,
    work: Condvar,
    /// Signals that a thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct IoThreadsState {
    /// Each job is called with `None` on a thread, or with the error because of which it does not run.
    jobs: VecDeque<Job>,
    /// Number of threads that wait for a job.
    idle: usize,
    /// Number of idle and busy threads.
    live: usize,
    started: usize,
    closed: bool,
    handles: Vec<JoinHandle<()>>,
    #[cfg(feature = "local")]
    watched: Vec<WatchedCall>,
    /// Whether the thread that watches calls runs.
    is_watching: bool,
    /// Number of threads in calls that have timed out. They do not count in the maximum.
    stuck: usize,
}

impl IoThreadsState {
    /// Whether all threads are in calls that have timed out, and no further thread may start.
    fn is_blocked(&self) -> bool {
        self.stuck > MAX_STUCK && self.live == self.stuck
    }
}

/// The error of jobs that no thread can run.
fn blocked() -> Error {
    let message = format!(
        "not read, because {MAX_STUCK} other reads make no progress: is the disk or the file server down?"
    );
    Error::new(ErrorKind::Timeout, message)
}

impl IoThreadsInner {
    fn state(&self) -> MutexGuard<'_, IoThreadsState> {
        // Jobs do not run under the lock, so the state is consistent after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a job failed for which no thread could be started.
const START_FAILED: &str = "cannot start an I/O thread; raise the limits on processes (ulimit -u) and \
                            address space (ulimit -v)";

/// Size of the stack of a thread: the default of the standard library.
const STACK_BYTES: u64 = 2 << 20;

impl IoThreads {
    /// Creates a pool of up to `max_threads` threads, at least 1. No thread is started yet.
    ///
    /// Under a limit on the address space, the stacks of the threads use at most a 16th of it.
    pub(crate) fn new(name: &'static str, max_threads: usize, linger: Duration) -> Self {
        let fitting = free_address_space().map_or(usize::MAX, |free| {
            usize::try_from(free / 16 / STACK_BYTES).unwrap_or(usize::MAX)
        });
        let max_threads = max_threads.min(fitting).max(1);
        let state = Mutex::default();
        let (work, ended) = (Condvar::new(), Condvar::new());
        IoThreads {
            inner: Arc::new(IoThreadsInner { name, max_threads, linger, state, work, ended }),
        }
    }

    #[cfg(feature = "local")]
    pub(crate) fn max_threads(&self) -> usize {
        self.inner.max_threads
    }

    /// Runs `work` on a thread of the pool. Any executor may poll the future.
    ///
    /// Dropping the future cancels work that has not started.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.submit(Box::new(move |refused| {
            if !reply.is_canceled() {
                let result = match refused {
                    Some(error) => Err(error),
                    None => catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                        Err(Error::new(ErrorKind::Panicked, "an I/O thread panicked"))
                    }),
                };
                // Fails if the future was dropped meanwhile.
                let _ = reply.send(result);
            }
        }))?;
        answer
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Stopped, "the I/O threads were stopped")))
    }

    fn submit(&self, job: Job) -> Result<()> {
        let mut state = self.inner.state();
        if state.is_blocked() {
            return Err(blocked());
        }
        state.jobs.push_back(job);
        // A thread that was woken counts as idle until it takes its job, so all queued jobs count.
        if state.jobs.len() > state.idle
            && state.live - state.stuck < self.inner.max_threads
            && state.stuck <= MAX_STUCK
            && let Err(error) = self.start_thread(&mut state)
            && state.live == state.stuck
        {
            state.jobs.pop_back();
            return Err(Error::new(ErrorKind::Io, START_FAILED).with_source(error));
        }
        // Notifying without a waiting thread would cost a system call.
        let wakes = state.idle > 0;
        drop(state);
        if wakes {
            self.inner.work.notify_one();
        }
        Ok(())
    }

    fn start_thread(&self, state: &mut IoThreadsState) -> io::Result<()> {
        self.inner.start_thread(state)
    }
}

impl IoThreadsInner {
    fn start_thread(self: &Arc<Self>, state: &mut IoThreadsState) -> io::Result<()> {
        state.handles.retain(|handle| !handle.is_finished());
        let name = format!("{}-{}", self.name, state.started);
        let inner = Arc::clone(self);
        let handle = thread::Builder::new().name(name).spawn(move || inner.serve())?;
        state.handles.push(handle);
        state.started += 1;
        state.live += 1;
        Ok(())
    }

    fn serve(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job(None);
                state = self.state();
            } else if state.closed {
                break;
            } else {
                state.idle += 1;
                let waited = self.work.wait_timeout(state, self.linger);
                let (woken, wait) = waited.unwrap_or_else(PoisonError::into_inner);
                state = woken;
                state.idle -= 1;
                if wait.timed_out() && state.jobs.is_empty() {
                    break;
                }
            }
        }
        state.live -= 1;
        self.ended.notify_all();
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        let (jobs, handles) = {
            let mut state = self.inner.state();
            state.closed = true;
            (std::mem::take(&mut state.jobs), std::mem::take(&mut state.handles))
        };
        self.inner.work.notify_all();
        self.inner.ended.notify_all();
        // Not under the lock, because dropping a job wakes the task that waits for the job.
        drop(jobs);
        // The last owner may be a task that one of these threads woke and dropped.
        let is_this = |handle: &JoinHandle<()>| handle.thread().id() == thread::current().id();
        let own = usize::from(handles.iter().any(is_this));
        let runs = |state: &mut IoThreadsState| state.live > own || state.is_watching;
        let waiting = self.inner.ended.wait_timeout_while(self.inner.state(), GRACE, runs);
        let (state, wait) = waiting.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        for handle in handles.into_iter().filter(|handle| !is_this(handle)) {
            // A thread in a system call that does not return is detached, so that drop returns.
            if !wait.timed_out() || handle.is_finished() {
                // Panics of jobs were caught and returned as errors.
                let _ = handle.join();
            }
        }
    }
}

impl fmt::Debug for IoThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.state();
        f.debug_struct("IoThreads")
            .field("max_threads", &self.inner.max_threads)
            .field("live", &state.live)
            .field("waiting_jobs", &state.jobs.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spdl_core::block_on;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::task::Poll;

    const LONG: Duration = Duration::from_secs(3600);

    fn live(threads: &IoThreads) -> usize {
        threads.inner.state().live
    }

    /// Submits the job by polling its future once.
    fn start(future: &mut (impl Future + Unpin)) {
        block_on(std::future::poll_fn(|cx| {
            let _ = std::pin::Pin::new(&mut *future).poll(cx);
            Poll::Ready(())
        }));
    }

    #[test]
    fn threads_start_on_demand_and_are_reused() {
        let threads = IoThreads::new("test", 8, LONG);
        assert_eq!(live(&threads), 0);
        for n in 0..100 {
            assert_eq!(block_on(threads.run(move || Ok(n))).unwrap(), n);
            // A thread counts as busy until it waits for the next job.
            while threads.inner.state().idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(live(&threads), 1);
    }

    #[test]
    fn threads_are_limited_to_the_maximum() {
        let threads = IoThreads::new("test", 3, LONG);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let mut jobs: Vec<_> = (0..10)
            .map(|n| {
                let gate = Arc::clone(&gate);
                Box::pin(threads.run(move || {
                    let _ = gate.lock().unwrap().recv();
                    Ok(n)
                }))
            })
            .collect();
        for job in &mut jobs {
            start(job);
        }
        assert_eq!(live(&threads), 3);
        drop(release);
        let answers: Vec<i32> = jobs.into_iter().map(|job| block_on(job).unwrap()).collect();
        assert_eq!(answers, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn dropping_a_future_cancels_a_queued_job() {
        let threads = IoThreads::new("test", 1, LONG);
        let (release, gate) = mpsc::channel::<()>();
        let ran = Arc::new(AtomicUsize::new(0));
        let mut first = Box::pin(threads.run(move || {
            let _ = gate.recv();
            Ok(())
        }));
        start(&mut first);
        let mut jobs: Vec<_> = (0..2)
            .map(|_| {
                let ran = Arc::clone(&ran);
                Box::pin(threads.run(move || {
                    ran.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                }))
            })
            .collect();
        for job in &mut jobs {
            start(job);
        }
        let last = jobs.pop().unwrap();
        drop(jobs);
        drop(release);
        block_on(first).unwrap();
        block_on(last).unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn idle_threads_end_and_restart_on_demand() {
        let threads = IoThreads::new("test", 2, Duration::from_millis(1));
        for _ in 0..3 {
            block_on(threads.run(|| Ok(()))).unwrap();
            while live(&threads) > 0 {
                thread::yield_now();
            }
        }
        assert_eq!(threads.inner.state().started, 3);
    }

    #[test]
    fn dropping_the_pool_cancels_queued_jobs_and_joins_threads() {
        let threads = IoThreads::new("test", 1, LONG);
        let inner = Arc::clone(&threads.inner);
        let (release, gate) = mpsc::channel::<()>();
        let (reply, answer) = oneshot::channel::<()>();
        threads.submit(Box::new(move |_| assert!(gate.recv().is_err()))).unwrap();
        threads.submit(Box::new(move |_| reply.send(()).unwrap())).unwrap();
        let dropper = thread::spawn(move || drop(threads));
        while !inner.state().closed {
            thread::yield_now();
        }
        drop(release);
        dropper.join().unwrap();
        assert_eq!(inner.state().live, 0);
        assert_eq!(Arc::strong_count(&inner), 1, "a thread is still running");
        assert!(block_on(answer).is_err(), "the queued job was run");
    }

    #[test]
    fn drop_does_not_wait_for_a_blocked_call() {
        let threads = IoThreads::new("test", 2, LONG);
        let inner = Arc::clone(&threads.inner);
        let (release, gate) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel::<()>();
        let call = move |_: Option<Error>| {
            begin.send(()).unwrap();
            assert!(gate.recv().is_err());
        };
        threads.submit(Box::new(call)).unwrap();
        begun.recv().unwrap();
        let start = std::time::Instant::now();
        drop(threads);
        assert!(start.elapsed() >= GRACE, "the drop did not wait");
        assert_eq!(inner.state().live, 1, "the call has returned");
        drop(release);
        while inner.state().live > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_panic_becomes_an_error_and_the_thread_continues() {
        let threads = IoThreads::new("test", 1, LONG);
        let error = block_on(threads.run(|| -> Result<()> { panic!("on purpose") })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert_eq!(block_on(threads.run(|| Ok(7))).unwrap(), 7);
        assert_eq!(threads.inner.state().started, 1);
    }
}
