//! Thread pools of the caller's, on which CPU stages can run instead of on the pipeline's own.

use std::fmt;

/// A pool of threads that belongs to somebody else.
///
/// A pipeline's own pool suits most programs. Where a program has a pool already, and wants all
/// its computing bounded by that one, it implements this for it: a line or two. (The feature
/// `rayon` has an adapter for rayon's.)
///
/// # Contract
/// * The pipeline calls [`execute`](CpuExecutor::execute) from any thread, with pieces of work that
///   each run for as long as there is something to do, and then end. It hands over at most as many
///   at a time as the stage's concurrency allows.
/// * Each piece of work runs once, soon, on any thread, beside others. `execute` itself returns
///   without waiting for it.
/// * Work does not panic: what a stage panics with has been caught, and is an error of the
///   pipeline. It may wait for memory or for room in a queue, which other work makes; so a pool of
///   its own is safer than one that is busy with other things for long.
/// * Work may be dropped without having run only if the pool is shut down. The pipeline then ends
///   with an error.
///
/// ```
/// use spdl_core::runtime::CpuExecutor;
///
/// /// A thread for each piece of work.
/// #[derive(Debug)]
/// struct NewThreads;
///
/// impl CpuExecutor for NewThreads {
///     fn execute(&self, work: Box<dyn FnOnce() + Send>) {
///         std::thread::spawn(work);
///     }
///     fn parallelism(&self) -> usize {
///         4
///     }
/// }
///
/// let (sender, receiver) = std::sync::mpsc::channel();
/// NewThreads.execute(Box::new(move || sender.send(6 * 7).unwrap_or_default()));
/// assert_eq!(receiver.recv(), Ok(42));
/// ```
pub trait CpuExecutor: fmt::Debug + Send + Sync + 'static {
    /// Has `work` run on one of the threads, and returns at once.
    fn execute(&self, work: Box<dyn FnOnce() + Send>);

    /// How many pieces of work can run at the same time, at least 1. It is the default concurrency
    /// of the stages that run here.
    fn parallelism(&self) -> usize;
}

#[cfg(feature = "rayon")]
pub use with_rayon::RayonExecutor;

#[cfg(feature = "rayon")]
mod with_rayon {
    use std::fmt;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::CpuExecutor;

    /// CPU stages on a rayon pool that the program made. The global pool is never touched.
    ///
    /// While stages run here they occupy threads of the pool, up to their concurrency; give them
    /// less than all if the pool has other work to do in the meantime.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use spdl_core::runtime::{CpuExecutor, RayonExecutor};
    ///
    /// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
    /// let executor = RayonExecutor::new(Arc::new(pool));
    /// assert_eq!(executor.parallelism(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Clone)]
    pub struct RayonExecutor(Arc<rayon::ThreadPool>);

    impl RayonExecutor {
        /// Runs stages on this pool.
        pub fn new(pool: Arc<rayon::ThreadPool>) -> Self {
            RayonExecutor(pool)
        }
    }

    impl CpuExecutor for RayonExecutor {
        fn execute(&self, work: Box<dyn FnOnce() + Send>) {
            // A panic that reaches rayon ends the process. The pipeline lets none out; should one
            // get here all the same, it hears of it when the work is dropped, and the panic hook
            // has printed it.
            self.0.spawn(move || drop(catch_unwind(AssertUnwindSafe(work))));
        }

        fn parallelism(&self) -> usize {
            self.0.current_num_threads()
        }
    }

    impl fmt::Debug for RayonExecutor {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "RayonExecutor({} threads)", self.parallelism())
        }
    }

    #[cfg(test)]
    mod tests {
        use std::sync::mpsc;

        use super::*;

        fn executor(threads: usize) -> RayonExecutor {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|at| format!("mine-{at}"));
            RayonExecutor::new(Arc::new(pool.build().unwrap()))
        }

        #[test]
        fn work_runs_on_the_pool_that_was_given() {
            let executor = executor(3);
            assert_eq!(executor.parallelism(), 3);
            assert_eq!(format!("{executor:?}"), "RayonExecutor(3 threads)");
            let (sender, receiver) = mpsc::channel();
            for _ in 0..50 {
                let sender = sender.clone();
                executor.execute(Box::new(move || {
                    let name = std::thread::current().name().map(str::to_owned);
                    sender.send(name).unwrap();
                }));
            }
            drop(sender);
            let names: Vec<_> = receiver.iter().flatten().collect();
            assert_eq!(names.len(), 50);
            assert!(names.iter().all(|name| name.starts_with("mine-")), "{names:?}");
        }

        #[test]
        fn pieces_of_work_run_side_by_side_and_execute_waits_for_none() {
            let executor = executor(2);
            let (to_second, from_first) = mpsc::channel();
            let (to_first, from_second) = mpsc::channel();
            let (done, ends) = mpsc::channel();
            let also_done = done.clone();
            // Each waits for the other.
            executor.execute(Box::new(move || {
                to_second.send(()).unwrap();
                done.send(from_second.recv()).unwrap();
            }));
            executor.execute(Box::new(move || {
                to_first.send(()).unwrap();
                also_done.send(from_first.recv()).unwrap();
            }));
            assert_eq!(ends.iter().collect::<Vec<_>>(), [Ok(()), Ok(())]);
        }

        #[test]
        fn a_panic_leaves_the_pool_usable_and_drops_what_the_work_held() {
            let executor = executor(1);
            let (sender, receiver) = mpsc::channel::<()>();
            executor.execute(Box::new(move || {
                let _sender = sender;
                panic!("on purpose");
            }));
            assert_eq!(receiver.recv(), Err(mpsc::RecvError), "dropped, not sent");
            let (sender, receiver) = mpsc::channel();
            executor.execute(Box::new(move || sender.send(1).unwrap()));
            assert_eq!(receiver.recv(), Ok(1));
        }
    }
}
