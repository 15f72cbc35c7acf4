//! Calls that fail if they make no progress.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use spdl_core::{Error, ErrorKind, Result};

use super::{IoThreads, IoThreadsInner, MAX_STUCK, blocked};

/// A call that must make progress.
pub(super) struct WatchedCall {
    progress: ReadProgress,
    timeout: Duration,
    /// The value of `progress` at the time `since`.
    seen: u64,
    since: Instant,
    /// Fails the call.
    fail: Box<dyn FnOnce() + Send>,
}

/// A counter that a call increments when it makes progress.
#[derive(Clone, Default)]
pub(crate) struct ReadProgress(Arc<AtomicU64>);

impl ReadProgress {
    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl IoThreads {
    /// Like [`run`](IoThreads::run), but fails with `Timeout` if the call makes no progress for
    /// `timeout`. Its thread is then replaced by another one.
    pub(crate) async fn run_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        work: impl FnOnce(&ReadProgress) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, answer) = oneshot::channel();
        let reply = Arc::new(Mutex::new(Some(sender)));
        let take = |reply: &Mutex<Option<_>>| -> Option<oneshot::Sender<Result<T>>> {
            reply.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let inner = Arc::clone(&self.inner);
        let call = move |refused: Option<Error>| {
            if let Some(error) = refused {
                let _ = take(&reply).map(|reply| reply.send(Err(error)));
                return;
            }
            let progress = ReadProgress::default();
            let failed = Arc::clone(&reply);
            let fail = move || {
                let Some(reply) = take(&failed) else { return };
                let message =
                    format!("the file system made no progress for {} s", timeout.as_secs());
                let _ = reply.send(Err(Error::new(ErrorKind::Timeout, message)));
            };
            inner.watch(progress.clone(), timeout, Box::new(fail));
            let result = catch_unwind(AssertUnwindSafe(|| work(&progress)));
            inner.unwatch(&progress);
            let result = result
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Panicked, "an I/O thread panicked")));
            if let Some(reply) = take(&reply) {
                let _ = reply.send(result);
            }
        };
        self.submit(Box::new(call))?;
        answer
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Stopped, "the I/O threads were stopped")))
    }
}

impl IoThreadsInner {
    fn watch(
        self: &Arc<Self>,
        progress: ReadProgress,
        timeout: Duration,
        fail: Box<dyn FnOnce() + Send>,
    ) {
        let mut state = self.state();
        let (seen, since) = (0, Instant::now());
        state.watched.push(WatchedCall { progress, timeout, seen, since, fail });
        if state.is_watching || state.closed {
            return;
        }
        let inner = Arc::clone(self);
        let watcher = thread::Builder::new().name(format!("{}-watch", self.name));
        // Without this thread, calls have no timeout.
        if let Ok(handle) = watcher.spawn(move || inner.watch_calls(timeout)) {
            state.handles.push(handle);
            state.is_watching = true;
        }
    }

    fn unwatch(&self, progress: &ReadProgress) {
        let mut state = self.state();
        let same = |call: &WatchedCall| Arc::ptr_eq(&call.progress.0, &progress.0);
        match state.watched.iter().position(same) {
            Some(at) => drop(state.watched.swap_remove(at)),
            // The call has timed out.
            None => state.stuck = state.stuck.saturating_sub(1),
        }
    }

    /// Fails calls that make no progress, until the pool is idle or closed.
    fn watch_calls(self: &Arc<Self>, timeout: Duration) {
        let interval = (timeout / 8).max(Duration::from_millis(1));
        let mut idle_intervals = 0;
        let mut state = self.state();
        while !state.closed && idle_intervals < 8 {
            let waited = self.ended.wait_timeout(state, interval);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            idle_intervals = if state.watched.is_empty() { idle_intervals + 1 } else { 0 };
            let now = Instant::now();
            let is_stuck = |call: &mut WatchedCall| {
                let progress = call.progress.0.load(Ordering::Relaxed);
                if progress != call.seen {
                    (call.seen, call.since) = (progress, now);
                }
                now.duration_since(call.since) >= call.timeout
            };
            let stuck: Vec<_> = state.watched.extract_if(.., is_stuck).collect();
            if stuck.is_empty() {
                continue;
            }
            state.stuck += stuck.len();
            if !state.jobs.is_empty() && state.stuck <= MAX_STUCK {
                // If no thread can be started, the next submitted job tries again.
                let _ = self.start_thread(&mut state);
            }
            let refused =
                if state.is_blocked() { std::mem::take(&mut state.jobs) } else { VecDeque::new() };
            drop(state);
            stuck.into_iter().for_each(|call| (call.fail)());
            refused.into_iter().for_each(|job| job(Some(blocked())));
            state = self.state();
        }
        state.is_watching = false;
        drop(state);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;

    use super::*;
    use spdl_core::block_on;
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
    fn a_call_without_progress_fails_and_its_thread_is_replaced() {
        const TIMEOUT: Duration = Duration::from_millis(200);
        let threads = IoThreads::new("test", 1, LONG);
        let (release, gate) = mpsc::channel::<()>();
        let blocked = threads.run_within(TIMEOUT, move |_| {
            let _ = gate.recv();
            Ok(0)
        });
        let mut queued = Box::pin(threads.run_within(TIMEOUT, |_| Ok(1)));
        let mut blocked = Box::pin(blocked);
        start(&mut blocked);
        start(&mut queued);
        let error = block_on(blocked).unwrap_err();
        assert_eq!((error.kind(), live(&threads)), (ErrorKind::Timeout, 2));
        assert!(error.message().contains("no progress"), "{error}");
        assert_eq!(block_on(queued).unwrap(), 1);
        assert_eq!(block_on(threads.run(|| Ok(2))).unwrap(), 2);
        drop(release);
        while threads.inner.state().stuck > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn calls_fail_if_too_many_others_make_no_progress() {
        const TIMEOUT: Duration = Duration::from_millis(100);
        let threads = IoThreads::new("test", 4, LONG);
        let release = Arc::new((Mutex::new(false), Condvar::new()));
        let calls = (0..3 * MAX_STUCK).map(|_| {
            let release = Arc::clone(&release);
            threads.run_within(TIMEOUT, move |_| {
                let (released, changed) = &*release;
                drop(changed.wait_while(released.lock().unwrap(), |released| !*released));
                Ok(())
            })
        });
        let results = block_on(futures_util::future::join_all(calls));
        let blocked = results.iter().filter(|result| {
            let error = result.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            error.message().contains("other reads make no progress")
        });
        assert!(blocked.count() > MAX_STUCK);
        assert!(block_on(threads.run(|| Ok(1))).is_err());
        *release.0.lock().unwrap() = true;
        release.1.notify_all();
        while threads.inner.state().stuck > 0 {
            thread::yield_now();
        }
        assert_eq!(block_on(threads.run(|| Ok(2))).unwrap(), 2);
    }

    #[test]
    fn a_slow_call_with_progress_does_not_fail() {
        const TIMEOUT: Duration = Duration::from_millis(400);
        let threads = IoThreads::new("test", 1, LONG);
        let slow = threads.run_within(TIMEOUT, |progress| {
            for _ in 0..50 {
                thread::sleep(TIMEOUT / 20);
                progress.advance();
            }
            Ok(7)
        });
        assert_eq!(block_on(slow).unwrap(), 7);
    }
}
