//! Runtimes and thread pools: where tasks and CPU work run.
//!
//! | file | what |
//! |---|---|
//! | this file | [`Runtime`], [`ThreadRuntime`], `TokioRuntime`: async executors with a clock |
//! | `executor` | [`CpuExecutor`], `RayonExecutor`: thread pools of the caller |
//! | `affinity` | pins threads to CPUs |
//!
//! Imports: `error`, `sync`.

pub(crate) mod affinity;
pub(crate) mod executor;

pub use executor::CpuExecutor;
#[cfg(feature = "rayon")]
pub use executor::RayonExecutor;

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
use crate::sync::{Ended, Ends, Mutex, MutexGuard};

/// An executor with a clock. Async stages and sources run on one; which one is the caller's choice.
///
/// [`ThreadRuntime`] is the default. With feature `tokio`, `TokioRuntime` runs them on a tokio
/// handle. Any other executor can be plugged in by implementing the two methods.
pub trait Runtime: Debug + Send + Sync + 'static {
    /// Runs `task` to its end in the background. Tasks never block and never panic.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// A future that is ready after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Polls a future on this thread until it is done.
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

/// Wakes a parked thread.
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
/// Enough for the drivers of async stages, which wait, or copy what is in memory; long reads and
/// decodes run elsewhere.
/// Dropping the last handle drops unfinished tasks and joins the thread.
#[derive(Debug)]
pub struct ThreadRuntime {
    shared: Arc<RuntimeShared>,
    thread: Mutex<Option<(JoinHandle<()>, Arc<Ended>)>>,
}

#[derive(Default)]
struct RuntimeShared {
    inbox: Mutex<Inbox>,
    /// Wakes the thread. Set before anybody has a handle.
    waker: OnceLock<Waker>,
}

#[derive(Default)]
struct Inbox {
    tasks: Vec<BoxFuture<'static, ()>>,
    timers: Vec<Timer>,
    closed: bool,
    thread: Now,
}

/// What the thread does.
#[derive(Clone, Copy, Default)]
enum Now {
    /// It looks into the inbox before it sleeps.
    #[default]
    Works,
    Sleeps,
    SleepsUntil(Instant),
}

impl Inbox {
    /// Whether the thread has to be woken for a timer that was just put in. Most are for later than what
    /// it wakes for anyway, and dropped before they are due.
    fn is_urgent(&self, at: Instant) -> bool {
        match self.thread {
            Now::Works => false,
            Now::Sleeps => true,
            // Of those that were dropped, no more than so many are kept.
            Now::SleepsUntil(then) => at < then || self.timers.len() >= MOST_WAITING,
        }
    }
}

/// So many timers may wait for the thread to take them in.
const MOST_WAITING: usize = 1024;

/// When to wake whom; nobody, where the sleep was dropped.
struct Timer {
    at: Instant,
    sleeper: Weak<Sleeper>,
}

/// Who sleeps.
struct Sleeper(Mutex<Option<Waker>>);

impl ThreadRuntime {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Io` where the operating system refuses a thread.
    pub fn new() -> Result<Self> {
        let shared = Arc::<RuntimeShared>::default();
        let its_own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("spdl-async".into());
        let ended = Arc::<Ended>::default();
        let ends = Ends(Arc::clone(&ended));
        let work = move || {
            let _ends = ends;
            run(&its_own);
        };
        let thread = thread.spawn(work).map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start the runtime's thread").with_source(error)
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
        // A time that no clock reaches never comes.
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
    /// Drops unfinished tasks and joins the thread, though there may be other handles; what is
    /// spawned on them later is dropped at once.
    pub fn shut_down(&self) {
        self.shut_down_until(None);
    }

    /// The same, but waits no longer than until `deadline` for a task that blocks. Says whether the
    /// thread has ended.
    pub(crate) fn shut_down_until(&self, deadline: Option<Instant>) -> bool {
        self.shared.inbox().closed = true;
        self.shared.wake();
        let thread = self.thread.lock().take();
        // A task may drop the last handle, on this very thread.
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
    // How many timers there were when they were last looked through.
    let mut awake = 0;
    let waker = ThreadWaker::current();
    let mut cx = Context::from_waker(&waker);
    loop {
        {
            let mut inbox = shared.inbox();
            inbox.thread = Now::Works;
            if inbox.closed {
                // Tasks may hold the last handle of something that locks the inbox.
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
        // Time-outs that were not needed would else stay until their time.
        if timers.len() > 2 * awake + 64 {
            timers.retain(|Reverse(timer)| timer.0.sleeper.strong_count() > 0);
            awake = timers.len();
        }
        match Pin::new(&mut tasks).poll_next(&mut cx) {
            Poll::Ready(Some(())) => {}
            // A wake between the poll and here leaves a token, so that `park` returns at once.
            Poll::Ready(None) | Poll::Pending => {
                let due = timers.peek().map(|Reverse(timer)| timer.0.at);
                let mut inbox = shared.inbox();
                if !inbox.timers.is_empty() {
                    continue;
                }
                inbox.thread = due.map_or(Now::Sleeps, Now::SleepsUntil);
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

/// Runs async stages and sources on a tokio runtime of the caller's.
///
/// The handle's runtime must have its timer enabled where stages sleep.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct TokioRuntime(tokio::runtime::Handle);

#[cfg(feature = "tokio")]
impl TokioRuntime {
    /// Spawns on `handle`.
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
    fn tasks_run_and_sleep_side_by_side() {
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
    fn a_sleep_that_ends_sooner_than_what_the_thread_waits_for_ends_in_time() {
        let runtime = Arc::new(ThreadRuntime::new().unwrap());
        let (send, receive) = mpsc::channel();
        let long = runtime.sleep(Duration::from_secs(3600));
        runtime.spawn(Box::pin(long));
        // By now it sleeps.
        while !matches!(runtime.shared.inbox().thread, Now::SleepsUntil(_)) {
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
    fn the_thread_is_woken_for_timers_that_are_due_sooner_and_for_many() {
        let then = Instant::now() + Duration::from_secs(60);
        let sooner = then - Duration::from_secs(1);
        let timer = || Timer { at: then, sleeper: Weak::new() };
        let mut inbox = Inbox { timers: vec![timer()], ..Inbox::default() };
        assert!(!inbox.is_urgent(sooner), "it looks before it sleeps");
        inbox.thread = Now::Sleeps;
        assert!(inbox.is_urgent(then));
        inbox.thread = Now::SleepsUntil(then);
        assert!(!inbox.is_urgent(then), "it wakes by then anyway");
        assert!(inbox.is_urgent(sooner));
        inbox.timers.extend((1..MOST_WAITING).map(|_| timer()));
        assert!(inbox.is_urgent(then), "dropped ones are not kept without end");
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
