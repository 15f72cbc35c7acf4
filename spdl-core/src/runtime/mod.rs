//! Runtimes that poll async tasks, and thread pools that run CPU stages.
//!
//! | file | what |
//! |---|---|
//! | this file | [`Runtime`], [`ThreadRuntime`], `TokioRuntime`: async executors with a clock |
//! | `executor` | [`CpuExecutor`], `RayonExecutor`: thread pools of the caller |
//! | `affinity` | pins threads to CPUs |
//! | `stop` | [`block_on_in_stage`], and `StopSignal`: waits that end when a pipeline stops |
//! | `watched` | [`run_watched`], [`read_file`]: file reads that fail if they make no progress |
//!
//! Imports: `error`, `sync`.

pub(crate) mod affinity;
pub(crate) mod executor;
pub(crate) mod stop;
mod watched;

pub use executor::CpuExecutor;
#[cfg(feature = "rayon")]
pub use executor::RayonExecutor;
pub use stop::block_on_in_stage;
pub use watched::{ReadProgress, STALL_TIMEOUT, WatchedFile, read_file, run_watched};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_core::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::thread::{self, JoinHandle, Thread};
use crate::sync::{Mutex, MutexGuard, ThreadEnd, ThreadEndGuard};

/// An async executor with timers, which runs async stages and sources.
///
/// [`ThreadRuntime`] is the default. With the feature `tokio`, `TokioRuntime` uses a tokio runtime.
/// For another async executor, implement this trait.
pub trait Runtime: Debug + Send + Sync + 'static {
    /// Starts to run `task` in the background, to completion, and returns immediately. Tasks do not
    /// block and do not panic.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Returns a future that completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Blocks the current thread until the future completes.
///
/// ```
/// assert_eq!(spdl_core::block_on(async { 1 + 1 }), 2);
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = ThreadWaker::current();
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A waker that unparks a thread.
pub(crate) struct ThreadWaker(Thread);

impl ThreadWaker {
    pub(crate) fn current() -> Waker {
        Waker::from(Arc::new(ThreadWaker(thread::current())))
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// The built-in runtime: one thread that polls all its tasks, with a timer.
///
/// One thread is enough, because the tasks of async stages only wait or copy memory. Blocking reads
/// and decoding run on other threads. Dropping the runtime drops unfinished tasks and joins the
/// thread.
#[derive(Debug)]
pub struct ThreadRuntime {
    shared: Arc<RuntimeShared>,
    thread: Mutex<Option<(JoinHandle<()>, Arc<ThreadEnd>)>>,
}

#[derive(Default)]
struct RuntimeShared {
    inbox: Mutex<Inbox>,
    /// Wakes the thread. `ThreadRuntime::new` sets it before it returns.
    waker: OnceLock<Waker>,
}

/// New tasks and timers, which the runtime's thread has not taken yet.
#[derive(Default)]
struct Inbox {
    tasks: Vec<BoxFuture<'static, ()>>,
    timers: Vec<Timer>,
    closed: bool,
    thread: ThreadActivity,
}

/// Whether the runtime's thread runs or is parked.
#[derive(Clone, Copy, Default)]
enum ThreadActivity {
    /// The thread checks the inbox before it parks.
    #[default]
    Running,
    Parked,
    ParkedUntil(Instant),
}

impl Inbox {
    /// Returns whether a new timer must wake the thread.
    ///
    /// Most timers need no wake-up: they are due after the thread's next wake-up, and their futures
    /// are dropped before they are due.
    fn is_urgent(&self, at: Instant) -> bool {
        match self.thread {
            ThreadActivity::Running => false,
            ThreadActivity::Parked => true,
            // The limit bounds the number of dropped timers in the inbox.
            ThreadActivity::ParkedUntil(then) => at < then || self.timers.len() >= MAX_INBOX_TIMERS,
        }
    }
}

/// If the inbox has this many timers, the thread is woken to take them.
const MAX_INBOX_TIMERS: usize = 1024;

/// A sleeping future and its due time. The weak reference is invalid if the future was dropped.
struct Timer {
    at: Instant,
    sleeper: Weak<Sleeper>,
}

/// The waker of a sleeping future.
struct Sleeper(Mutex<Option<Waker>>);

impl ThreadRuntime {
    /// Starts the runtime's thread.
    ///
    /// # Errors
    /// `Io` if the operating system cannot start a thread.
    pub fn new() -> Result<Self> {
        let shared = Arc::<RuntimeShared>::default();
        let shared_with_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("spdl-async".into());
        let ended = Arc::<ThreadEnd>::default();
        let guard = ThreadEndGuard(Arc::clone(&ended));
        let work = move || {
            let _guard = guard;
            run(&shared_with_thread);
        };
        let thread = thread.spawn(work).map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start the thread of the async runtime")
                .with_source(error)
        })?;
        let waker = ThreadWaker(thread.thread().clone());
        let _ = shared.waker.set(Waker::from(Arc::new(waker)));
        Ok(ThreadRuntime { shared, thread: Mutex::new(Some((thread, ended))) })
    }
}

impl RuntimeShared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }
}

impl Debug for RuntimeShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RuntimeShared")
    }
}

impl Runtime for ThreadRuntime {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let mut inbox = self.shared.inbox();
        if !inbox.closed {
            inbox.tasks.push(task);
            drop(inbox);
            self.shared.wake();
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // If the clock cannot represent the due time, the timer never fires.
        let Some(at) = Instant::now().checked_add(duration) else {
            return Box::pin(std::future::pending());
        };
        let shared = Arc::clone(&self.shared);
        let mut sleeper: Option<Arc<Sleeper>> = None;
        Box::pin(poll_fn(move |cx| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            match &sleeper {
                Some(sleeper) => *sleeper.0.lock() = Some(cx.waker().clone()),
                None => {
                    let new = Arc::new(Sleeper(Mutex::new(Some(cx.waker().clone()))));
                    let timer = Timer { at, sleeper: Arc::downgrade(&new) };
                    sleeper = Some(new);
                    let mut inbox = shared.inbox();
                    inbox.timers.push(timer);
                    let is_urgent = inbox.is_urgent(at);
                    drop(inbox);
                    if is_urgent {
                        shared.wake();
                    }
                }
            }
            Poll::Pending
        }))
    }
}

impl ThreadRuntime {
    /// Drops unfinished tasks and joins the thread, even if other handles exist. If a task of this
    /// runtime calls `shut_down`, the tasks are dropped after the call, and the thread is not
    /// joined.
    ///
    /// Tasks that are spawned later are dropped immediately.
    pub fn shut_down(&self) {
        self.shut_down_until(None);
    }

    /// Shuts down, and waits at most until `deadline` if a task blocks the thread. Returns whether
    /// the thread has ended.
    pub(crate) fn shut_down_until(&self, deadline: Option<Instant>) -> bool {
        self.shared.inbox().closed = true;
        self.shared.wake();
        let thread = self.thread.lock().take();
        // A task may drop the last handle; then this thread is the runtime's thread.
        if let Some((thread, ended)) = thread
            && thread.thread().id() != thread::current().id()
        {
            if deadline.is_some_and(|deadline| !ended.wait_until(deadline)) {
                return false;
            }
            let _ = thread.join();
        }
        true
    }
}

impl Drop for ThreadRuntime {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn run(shared: &RuntimeShared) {
    let mut tasks: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    let mut timers: BinaryHeap<Reverse<TimerKey>> = BinaryHeap::new();
    // Number of timers after the last removal of dropped ones.
    let mut live_timers = 0;
    let waker = ThreadWaker::current();
    let mut cx = Context::from_waker(&waker);
    loop {
        {
            let mut inbox = shared.inbox();
            inbox.thread = ThreadActivity::Running;
            if inbox.closed {
                // Drop tasks after the lock is released: their destructors may lock the inbox.
                let unstarted = std::mem::take(&mut inbox.tasks);
                drop(inbox);
                drop(unstarted);
                return;
            }
            tasks.extend(inbox.tasks.drain(..));
            timers.extend(inbox.timers.drain(..).map(|timer| Reverse(TimerKey(timer))));
        }
        let now = Instant::now();
        while timers.peek().is_some_and(|Reverse(timer)| timer.0.at <= now) {
            let sleeper = timers.pop().and_then(|Reverse(timer)| timer.0.sleeper.upgrade());
            if let Some(waker) = sleeper.and_then(|sleeper| sleeper.0.lock().take()) {
                waker.wake();
            }
        }
        // Remove dropped timers, which would otherwise stay until they are due.
        if timers.len() > 2 * live_timers + 64 {
            timers.retain(|Reverse(timer)| timer.0.sleeper.strong_count() > 0);
            live_timers = timers.len();
        }
        match Pin::new(&mut tasks).poll_next(&mut cx) {
            Poll::Ready(Some(())) => {}
            // A wake-up after the poll sets the token of `unpark`, so `park` returns immediately.
            Poll::Ready(None) | Poll::Pending => {
                let due = timers.peek().map(|Reverse(timer)| timer.0.at);
                let mut inbox = shared.inbox();
                if !inbox.timers.is_empty() {
                    continue;
                }
                inbox.thread = due.map_or(ThreadActivity::Parked, ThreadActivity::ParkedUntil);
                drop(inbox);
                match due {
                    Some(due) => {
                        thread::park_timeout(due.saturating_duration_since(Instant::now()));
                    }
                    None => thread::park(),
                }
            }
        }
    }
}

/// A timer ordered by its due time.
struct TimerKey(Timer);

impl PartialEq for TimerKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.at == other.0.at
    }
}
impl Eq for TimerKey {}
impl PartialOrd for TimerKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for TimerKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.at.cmp(&other.0.at)
    }
}

/// Runs async stages and sources on the caller's tokio runtime.
///
/// If stages sleep, the time driver of the tokio runtime must be enabled.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct TokioRuntime(tokio::runtime::Handle);

#[cfg(feature = "tokio")]
impl TokioRuntime {
    /// Creates a runtime that spawns on `handle`.
    pub fn new(handle: tokio::runtime::Handle) -> Self {
        TokioRuntime(handle)
    }
}

#[cfg(feature = "tokio")]
impl Runtime for TokioRuntime {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(self.0.spawn(task));
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let _inside = self.0.enter();
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn tasks_run_and_sleep_concurrently() {
        let runtime = Arc::new(ThreadRuntime::new().unwrap());
        let (send, receive) = mpsc::channel();
        for millis in [30, 10, 20] {
            let send = send.clone();
            let nap = runtime.sleep(Duration::from_millis(millis));
            runtime.spawn(Box::pin(async move {
                nap.await;
                let _ = send.send(millis);
            }));
        }
        let order: Vec<u64> = (0..3).map(|_| receive.recv().unwrap()).collect();
        assert_eq!(order, [10, 20, 30]);
    }

    #[test]
    fn dropping_the_runtime_drops_its_tasks_and_joins_its_thread() {
        let alive = Arc::new(());
        let runtime = ThreadRuntime::new().unwrap();
        let witness = Arc::clone(&alive);
        runtime.spawn(Box::pin(async move {
            let _witness = witness;
            std::future::pending::<()>().await;
        }));
        drop(runtime);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_new_timer_that_is_due_earlier_wakes_the_thread() {
        let runtime = Arc::new(ThreadRuntime::new().unwrap());
        let (send, receive) = mpsc::channel();
        let long = runtime.sleep(Duration::from_secs(3600));
        runtime.spawn(Box::pin(long));
        while !matches!(runtime.shared.inbox().thread, ThreadActivity::ParkedUntil(_)) {
            std::thread::yield_now();
        }
        let nap = runtime.sleep(Duration::from_millis(1));
        std::thread::spawn(move || {
            block_on(nap);
            let _ = send.send(());
        });
        receive.recv_timeout(Duration::from_secs(60)).expect("the thread was not woken");
    }

    #[test]
    fn earlier_timers_and_a_full_inbox_are_urgent() {
        let then = Instant::now() + Duration::from_secs(60);
        let sooner = then - Duration::from_secs(1);
        let timer = || Timer { at: then, sleeper: Weak::new() };
        let mut inbox = Inbox { timers: vec![timer()], ..Inbox::default() };
        assert!(!inbox.is_urgent(sooner), "a running thread checks the inbox before it parks");
        inbox.thread = ThreadActivity::Parked;
        assert!(inbox.is_urgent(then));
        inbox.thread = ThreadActivity::ParkedUntil(then);
        assert!(!inbox.is_urgent(then), "the thread wakes by then anyway");
        assert!(inbox.is_urgent(sooner));
        inbox.timers.extend((1..MAX_INBOX_TIMERS).map(|_| timer()));
        assert!(inbox.is_urgent(then), "the number of timers in the inbox is bounded");
    }

    #[test]
    fn a_task_may_spawn_another() {
        let runtime = Arc::new(ThreadRuntime::new().unwrap());
        let (send, receive) = mpsc::channel();
        let inner = Arc::downgrade(&runtime);
        runtime.spawn(Box::pin(async move {
            if let Some(runtime) = inner.upgrade() {
                runtime.spawn(Box::pin(async move { send.send(1).unwrap() }));
            }
        }));
        assert_eq!(receive.recv().unwrap(), 1);
    }
}
