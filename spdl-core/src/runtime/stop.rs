//! [`block_on_in_stage`], and `StopSignal`: waits that end when a pipeline stops.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::block_on;
use crate::error::{Result, stopped};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{MODELLED, Mutex};

thread_local! {
    /// The signal of the pipeline whose stages this thread runs.
    static CURRENT: RefCell<Option<Arc<StopSignal>>> = const { RefCell::new(None) };
}

/// Blocks the current thread until the future completes, or the pipeline that runs a stage on this
/// thread stops.
///
/// Use it in CPU stages for waits that may be long, such as requests to a server. Outside the stages
/// of a pipeline it only waits for the future, like [`block_on`].
///
/// ```
/// use spdl_core::PipelineBuilder;
/// use spdl_core::runtime::block_on_in_stage;
/// let wait = |_: i32| block_on_in_stage(std::future::pending::<()>());
/// let mut pipeline = PipelineBuilder::from_iter([1]).map("wait", wait).build()?;
/// pipeline.start()?;
/// // Without `block_on_in_stage`, the worker never ends.
/// pipeline.stop();
/// assert_eq!(block_on_in_stage(async { 1 + 1 })?, 2);
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// `Stopped` if the pipeline stops first. The future is then dropped.
pub fn block_on_in_stage<F: Future>(future: F) -> Result<F::Output> {
    match CURRENT.with_borrow(Clone::clone) {
        None => Ok(block_on(future)),
        Some(signal) => block_on(signal.while_running(future)).ok_or_else(stopped),
    }
}

/// Whether a pipeline has stopped, and the tasks that wait until then.
#[derive(Debug)]
pub(crate) struct StopSignal {
    stopped: AtomicBool,
    /// Wakers of the waiting tasks, by number.
    waiting: Mutex<BTreeMap<u64, Waker>>,
    tasks: AtomicU64,
}

impl StopSignal {
    pub(crate) fn new() -> Self {
        StopSignal {
            stopped: AtomicBool::new(false),
            waiting: Mutex::new(BTreeMap::new()),
            tasks: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Stops, and wakes all waiting tasks.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_values().for_each(Waker::wake);
    }

    /// Polls `task` until it or the pipeline ends. Returns `None` if the pipeline ended first.
    pub(crate) async fn while_running<R>(&self, task: impl Future<Output = R>) -> Option<R> {
        let number = self.tasks.fetch_add(1, Ordering::Relaxed);
        let mut task = pin!(task);
        let ended = poll_fn(|cx| {
            self.waiting.lock().insert(number, cx.waker().clone());
            if self.is_stopped() {
                return Poll::Ready(None);
            }
            task.as_mut().poll(cx).map(Some)
        })
        .await;
        self.waiting.lock().remove(&number);
        ended
    }

    /// Runs `work`, in which [`block_on_in_stage`] ends when the pipeline stops.
    pub(crate) fn enter<R>(self: &Arc<Self>, work: impl FnOnce() -> R) -> R {
        // Under shuttle, all threads are one thread of the system.
        if MODELLED {
            return work();
        }
        let _outer = OuterSignal(CURRENT.replace(Some(Arc::clone(self))));
        work()
    }
}

/// Restores the signal of the pipeline whose stage runs stages of another pipeline on this thread.
struct OuterSignal(Option<Arc<StopSignal>>);

impl Drop for OuterSignal {
    fn drop(&mut self) {
        drop(CURRENT.replace(self.0.take()));
    }
}

#[cfg(all(test, not(any(spdl_loom, spdl_shuttle))))]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_wait_ends_with_the_innermost_pipeline() {
        let (outer, inner) = (Arc::new(StopSignal::new()), Arc::new(StopSignal::new()));
        outer.stop();
        let wait = || block_on_in_stage(async { 7 }).map_err(|error| error.kind());
        assert_eq!(wait(), Ok(7));
        outer.enter(|| {
            assert_eq!(wait(), Err(ErrorKind::Stopped));
            assert_eq!(inner.enter(wait), Ok(7));
            assert_eq!(wait(), Err(ErrorKind::Stopped));
        });
        assert_eq!(wait(), Ok(7));
    }
}
