//! Thread pools of the caller, as an alternative to the pipeline's worker pool.

use std::fmt;

/// A thread pool of the caller that runs CPU stages.
///
/// Most programs need no executor, because a pipeline has its own worker pool. Implement this trait
/// to run all computation of a program on one existing pool. The feature `rayon` provides
/// `RayonExecutor`, an adapter for rayon.
///
/// # Contract
/// * The pipeline calls [`execute`](CpuExecutor::execute) from any thread. Each job processes items
///   of the stages on this pool until none of these stages is ready, and then returns. Concurrent
///   jobs that process items of one stage are at most as many as the concurrency of the stage.
/// * The pool runs each job once, on any thread, concurrently with other jobs. `execute` returns
///   without waiting for the job.
/// * Jobs do not panic: the pipeline catches a stage's panic and converts it to an error. A job may
///   block on memory or on queue space that other jobs release, so a dedicated pool is safer than
///   one that runs long unrelated jobs.
/// * The pool runs every job, except that a pool that shuts down may drop a job. If a job is
///   dropped, the pipeline ends with an error.
///
/// ```
/// use spdl_core::runtime::CpuExecutor;
///
/// /// Starts a thread for each job.
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
    /// Submits `work` to the pool and returns immediately.
    fn execute(&self, work: Box<dyn FnOnce() + Send>);

    /// Returns how many jobs can run concurrently, at least 1: the default concurrency of stages
    /// that run on this pool.
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

    /// Runs CPU stages on a rayon pool of the program, never on rayon's global pool.
    ///
    /// A running stage occupies up to as many threads of the pool as its concurrency. Set a lower
    /// concurrency if the pool has other work.
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
        /// Creates an executor that runs stages on `pool`.
        pub fn new(pool: Arc<rayon::ThreadPool>) -> Self {
            RayonExecutor(pool)
        }
    }

    impl CpuExecutor for RayonExecutor {
        fn execute(&self, work: Box<dyn FnOnce() + Send>) {
            // A panic that reaches rayon aborts the process. The pipeline catches panics of stages.
            // For any other panic, the dropped job reports the failure to the pipeline.
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
        fn jobs_run_on_the_given_pool() {
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
        fn jobs_run_concurrently_and_execute_does_not_wait() {
            let executor = executor(2);
            let (to_second, from_first) = mpsc::channel();
            let (to_first, from_second) = mpsc::channel();
            let (done, ends) = mpsc::channel();
            let also_done = done.clone();
            // Each job waits for the other.
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
        fn after_a_panic_the_pool_is_usable_and_the_job_is_dropped() {
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
