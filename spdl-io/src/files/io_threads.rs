//! Threads for work that blocks in the operating system, kept away from the threads that compute.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_channel::oneshot;
use spdl_core::{Error, ErrorKind, Result};

type Job = Box<dyn FnOnce() + Send>;

/// How long a drop waits for the calls under way: far longer than a healthy disk takes.
const GRACE: Duration = Duration::from_millis(200);

/// A few threads that start when work waits for them and end when there has been none for a while.
///
/// Dropping it cancels the jobs not yet started and joins the threads. A thread inside a call that
/// the system does not give back within [`GRACE`] is left to end by itself.
pub(crate) struct IoThreads {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    max_threads: usize,
    /// A thread without work for this long ends.
    linger: Duration,
    state: Mutex<State>,
    work: Condvar,
    /// A thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    /// Threads that take jobs: the idle and the busy.
    live: usize,
    started: usize,
    closed: bool,
    handles: Vec<JoinHandle<()>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No job runs under the lock, so the state is whole even where a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IoThreads {
    /// Up to `max_threads` threads, at least one; none is started yet.
    pub(crate) fn new(name: &'static str, max_threads: usize, linger: Duration) -> Self {
        let max_threads = max_threads.max(1);
        let state = Mutex::default();
        let (work, ended) = (Condvar::new(), Condvar::new());
        IoThreads { shared: Arc::new(Shared { name, max_threads, linger, state, work, ended }) }
    }

    #[cfg(feature = "local")]
    pub(crate) fn max_threads(&self) -> usize {
        self.shared.max_threads
    }

    /// Runs `work` on one of the threads. The future may be polled by any executor; where it is
    /// dropped before the work was started, the work is not done.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.submit(Box::new(move || {
            if !reply.is_canceled() {
                let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                    Err(Error::new(ErrorKind::Panicked, "an I/O thread panicked while reading"))
                });
                // Whoever asked may have lost interest meanwhile.
                let _ = reply.send(result);
            }
        }))?;
        answer
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Stopped, "the fetcher was closed")))
    }

    fn submit(&self, job: Job) -> Result<()> {
        let mut state = self.shared.state();
        state.jobs.push_back(job);
        // A thread that was woken but has not yet taken its job still counts as idle, hence the
        // comparison with all the jobs that wait.
        if state.jobs.len() > state.idle
            && state.live < self.shared.max_threads
            && let Err(error) = self.start_thread(&mut state)
            && state.live == 0
        {
            state.jobs.pop_back();
            return Err(Error::new(ErrorKind::Io, "cannot start an I/O thread").with_source(error));
        }
        // Waking nobody is a call of the system, too.
        let wakes = state.idle > 0;
        drop(state);
        if wakes {
            self.shared.work.notify_one();
        }
        Ok(())
    }

    fn start_thread(&self, state: &mut State) -> io::Result<()> {
        state.handles.retain(|handle| !handle.is_finished());
        let name = format!("{}-{}", self.shared.name, state.started);
        let shared = Arc::clone(&self.shared);
        let handle = thread::Builder::new().name(name).spawn(move || shared.serve())?;
        state.handles.push(handle);
        state.started += 1;
        state.live += 1;
        Ok(())
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
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
            let mut state = self.shared.state();
            state.closed = true;
            (std::mem::take(&mut state.jobs), std::mem::take(&mut state.handles))
        };
        self.shared.work.notify_all();
        // Outside the lock, since this wakes whoever waits for their answers.
        drop(jobs);
        // The last owner may be a task that was woken, and dropped, by one of these threads.
        let is_this = |handle: &JoinHandle<()>| handle.thread().id() == thread::current().id();
        let own = usize::from(handles.iter().any(is_this));
        let waiting = self
            .shared
            .ended
            .wait_timeout_while(self.shared.state(), GRACE, |state| state.live > own);
        let (state, wait) = waiting.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        for handle in handles.into_iter().filter(|handle| !is_this(handle)) {
            // One that holds things up goes on alone: nothing can end its call, and waiting for it
            // would make its hang ours.
            if !wait.timed_out() || handle.is_finished() {
                // A panic of a job was caught and reported where it happened.
                let _ = handle.join();
            }
        }
    }
}

impl fmt::Debug for IoThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state();
        f.debug_struct("IoThreads")
            .field("max_threads", &self.shared.max_threads)
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
        threads.shared.state().live
    }

    /// Submits the job by polling once.
    fn start(future: &mut (impl Future + Unpin)) {
        block_on(std::future::poll_fn(|cx| {
            let _ = std::pin::Pin::new(&mut *future).poll(cx);
            Poll::Ready(())
        }));
    }

    #[test]
    fn no_thread_is_started_before_the_first_job_and_one_serves_one_job_at_a_time() {
        let threads = IoThreads::new("test", 8, LONG);
        assert_eq!(live(&threads), 0);
        for n in 0..100 {
            assert_eq!(block_on(threads.run(move || Ok(n))).unwrap(), n);
            // The thread counts as busy until it is back at the queue.
            while threads.shared.state().idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(live(&threads), 1);
    }

    #[test]
    fn threads_grow_to_the_maximum_and_no_further() {
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
    fn a_dropped_future_cancels_a_job_that_was_not_started() {
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
    fn idle_threads_end_and_new_ones_start_when_needed() {
        let threads = IoThreads::new("test", 2, Duration::from_millis(1));
        for _ in 0..3 {
            block_on(threads.run(|| Ok(()))).unwrap();
            while live(&threads) > 0 {
                thread::yield_now();
            }
        }
        assert_eq!(threads.shared.state().started, 3);
    }

    #[test]
    fn dropping_the_threads_cancels_what_waits_and_joins_them() {
        let threads = IoThreads::new("test", 1, LONG);
        let shared = Arc::clone(&threads.shared);
        let (release, gate) = mpsc::channel::<()>();
        let (reply, answer) = oneshot::channel::<()>();
        threads.submit(Box::new(move || assert!(gate.recv().is_err()))).unwrap();
        threads.submit(Box::new(move || reply.send(()).unwrap())).unwrap();
        let dropper = thread::spawn(move || drop(threads));
        while !shared.state().closed {
            thread::yield_now();
        }
        drop(release);
        dropper.join().unwrap();
        assert_eq!(shared.state().live, 0);
        assert_eq!(Arc::strong_count(&shared), 1, "a thread is left");
        assert!(block_on(answer).is_err(), "the job that waited was run");
    }

    #[test]
    fn a_call_that_does_not_return_does_not_hold_up_the_drop() {
        let threads = IoThreads::new("test", 2, LONG);
        let shared = Arc::clone(&threads.shared);
        let (release, gate) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel::<()>();
        let call = move || {
            begin.send(()).unwrap();
            assert!(gate.recv().is_err());
        };
        threads.submit(Box::new(call)).unwrap();
        begun.recv().unwrap();
        let start = std::time::Instant::now();
        drop(threads);
        assert!(start.elapsed() >= GRACE, "the call was not waited for");
        assert_eq!(shared.state().live, 1, "the call has returned");
        drop(release);
        while shared.state().live > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_thread_lives_on() {
        let threads = IoThreads::new("test", 1, LONG);
        let error = block_on(threads.run(|| -> Result<()> { panic!("on purpose") })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert_eq!(block_on(threads.run(|| Ok(7))).unwrap(), 7);
        assert_eq!(threads.shared.state().started, 1);
    }
}
