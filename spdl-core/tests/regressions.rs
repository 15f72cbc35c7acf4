//! Regression tests for faults that reviews found.

mod common;

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use common::{bad_number, spdl_threads, within_seconds};
use spdl_core::pipeline::Control;
use spdl_core::runtime::CpuExecutor;
use spdl_core::stage::Aggregator;
use spdl_core::{ErrorKind, OnError, PipelineBuilder, Result, Stage, StageContext, StageOptions};

/// A thread pool of the caller.
#[derive(Debug)]
struct Pool {
    work: Mutex<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    threads: usize,
}

impl Pool {
    fn new(threads: usize) -> Arc<Self> {
        let (send, receive) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let receive = Arc::new(Mutex::new(receive));
        for _ in 0..threads {
            let receive = Arc::clone(&receive);
            std::thread::spawn(move || {
                loop {
                    let work =
                        receive.lock().expect("no thread panics while it holds the lock").recv();
                    match work {
                        Ok(work) => work(),
                        Err(_) => return,
                    }
                }
            });
        }
        Arc::new(Pool { work: Mutex::new(send), threads })
    }
}

impl CpuExecutor for Pool {
    fn execute(&self, work: Box<dyn FnOnce() + Send>) {
        let _ = self.work.lock().expect("no thread panics while it holds the lock").send(work);
    }

    fn parallelism(&self) -> usize {
        self.threads
    }
}

#[test]
fn stages_on_one_pool_of_the_caller_do_not_deadlock() {
    for threads in [1, 4] {
        let count = within_seconds(20, move || {
            let pool = Pool::new(threads);
            PipelineBuilder::from_iter(0..30)
                .flat_map(StageOptions::new("many").executor(pool.clone()), |_| (0..1000).map(Ok))
                .map(StageOptions::new("same").executor(pool), Ok)
                .build()
                .unwrap()
                .count()
        });
        assert_eq!(count, 30_000, "{threads} threads");
    }
}

#[test]
fn the_failure_share_of_a_pipeline_counts_items_and_not_stages() {
    within_seconds(20, || {
        let mut pipeline = numbers(10_000)
            .map("a", Ok)
            .map("b", Ok)
            .map("c", Ok)
            .map("d", |n| if n % 10 == 0 { Err(bad_number(n)) } else { Ok(n) })
            .on_error(OnError::SkipShare { at_most: 0.05, after: 100, at_end: false })
            .build()
            .unwrap();
        assert!(pipeline.by_ref().any(|item| item.is_err()), "10 % fail, above the limit of 5 %");
    });
}

/// A pipeline over the numbers `0..count`.
fn numbers(count: i64) -> PipelineBuilder<i64> {
    PipelineBuilder::new(common::numbers(count))
}

#[test]
fn a_slow_generator_forwards_each_output_immediately() {
    within_seconds(20, || {
        let mut pipeline = numbers(1)
            .flat_map("slow", |_| {
                (0..2).map(|n| {
                    if n == 1 {
                        std::thread::sleep(Duration::from_secs(2));
                    }
                    Ok(n)
                })
            })
            .build()
            .unwrap();
        let started = Instant::now();
        assert_eq!(pipeline.next().unwrap().unwrap(), 0);
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    });
}

#[test]
fn concurrency_set_before_the_start_takes_effect() {
    within_seconds(20, || {
        let mut pipeline = numbers(200)
            .map(StageOptions::new("nap").concurrency(8), |n| {
                std::thread::sleep(Duration::from_millis(20));
                Ok(n)
            })
            .threads(1)
            .build()
            .unwrap();
        let control: Control = pipeline.control();
        control.set_threads(4).unwrap();
        pipeline.next();
        let started = Instant::now();
        assert_eq!(pipeline.by_ref().take(40).filter(Result::is_ok).count(), 40);
        // One worker takes 800 ms.
        assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    });
}

struct FailsAtTheEnd;

impl Stage<i64> for FailsAtTheEnd {
    type Out = i64;

    fn process(&mut self, n: i64, cx: &mut StageContext<'_, i64>) -> Result<()> {
        cx.emit(n)
    }

    fn finish(&mut self, _: &mut StageContext<'_, i64>) -> Result<()> {
        Err(bad_number(-1))
    }
}

#[test]
fn a_failure_at_the_end_of_an_epoch_is_not_a_dropped_item() {
    within_seconds(20, || {
        let mut pipeline = numbers(10)
            .stage("end", || Ok(FailsAtTheEnd))
            .threads(1)
            .on_error(OnError::SKIP)
            .build()
            .unwrap();
        let items: Vec<_> = pipeline.by_ref().collect();
        assert_eq!(items.iter().filter(|item| item.is_ok()).count(), 10);
        assert_eq!(items.last().unwrap().as_ref().unwrap_err().stage(), Some("end"));
        assert_eq!(pipeline.statistics().dropped_total, 0);
    });
}

struct FlushFails(Vec<i64>);

impl Aggregator<i64> for FlushFails {
    type Out = Vec<i64>;

    fn accumulate(&mut self, n: i64) -> Result<Option<Vec<i64>>> {
        self.0.push(n);
        Ok((self.0.len() == 6).then(|| std::mem::take(&mut self.0)))
    }

    fn flush(&mut self) -> Result<Option<Vec<i64>>> {
        Err(bad_number(-1))
    }
}

#[test]
fn items_of_a_failed_flush_are_left_out_and_counted() {
    within_seconds(20, || {
        let mut pipeline = numbers(22)
            .aggregate("sixes", || Ok(FlushFails(Vec::new())))
            .on_error(OnError::SKIP)
            .deterministic()
            .build()
            .unwrap();
        let lists = pipeline.by_ref().filter_map(Result::ok);
        let delivered: usize = lists.map(|list| list.len()).sum();
        let statistics = pipeline.statistics();
        assert_eq!((delivered, statistics.dropped_total, statistics.left_out), (18, 0, 4));
    });
}

// promise: R24
#[test]
fn a_panic_while_measuring_an_item_fails_that_item() {
    within_seconds(20, || {
        let build = || {
            numbers(100)
                .measured_by(|n| {
                    assert_ne!(*n, 20, "panic of the test");
                    8
                })
                .map_async("wait", |n| async move { Ok(n) })
                .measured_by(|n| {
                    assert_ne!(*n, 30, "panic of the test");
                    8
                })
        };
        let mut pipeline = build().on_error(OnError::SKIP).deterministic().build().unwrap();
        assert_eq!(pipeline.by_ref().filter(Result::is_ok).count(), 98);
        let dropped = pipeline.statistics().dropped;
        let what: Vec<_> = dropped.iter().map(|drop| (&*drop.stage, drop.kind)).collect();
        assert_eq!(what, [("source", ErrorKind::Panicked), ("wait", ErrorKind::Panicked)]);
        let items: Vec<_> = build().deterministic().build().unwrap().collect();
        assert_eq!(items.len(), 21);
        assert_eq!(items[20].as_ref().unwrap_err().stage(), Some("source"));
    });
}

/// Number 7 panics when it is dropped.
struct PanicsOnDrop(i64);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        assert!(self.0 != 7 || std::thread::panicking(), "panic of the test");
    }
}

// promise: R24
#[test]
fn an_item_that_panics_on_drop_does_not_block_shutdown() {
    // In a child process, because the test counts threads and others of this file run concurrently.
    let name = "an_item_that_panics_on_drop_does_not_block_shutdown";
    if std::env::var_os("SPDL_ALONE").is_none() {
        let program = std::env::current_exe().unwrap();
        let status = std::process::Command::new(program)
            .args([name, "--exact", "--test-threads=1"])
            .env("SPDL_ALONE", "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    within_seconds(20, || {
        let mut pipeline = numbers(100)
            .map("touchy", |n| Ok(PanicsOnDrop(n)))
            .map(StageOptions::new("next").dedicated(), Ok)
            .deterministic()
            .prefetch(2)
            .threads(1)
            .build()
            .unwrap();
        std::mem::forget(pipeline.next());
        std::thread::sleep(Duration::from_millis(100));
        drop(pipeline);
        assert_eq!(spdl_threads(), [""; 0]);
    });
}

#[test]
fn a_wait_times_out_during_endless_empty_epochs() {
    within_seconds(20, || {
        let nothing = || numbers(2).filter("none", |_| Ok(false)).epochs(0..).build().unwrap();
        let waited = nothing().next_timeout(Duration::from_millis(50));
        assert!(waited.is_pending());
        let mut looks = 0;
        let checked = nothing().next_checked(Duration::from_millis(10), || {
            looks += 1;
            if looks < 3 { Ok(()) } else { Err("enough") }
        });
        assert_eq!(checked.err(), Some("enough"));
    });
}

#[test]
fn the_list_of_dropped_samples_contains_the_key_of_the_error() {
    within_seconds(20, || {
        let mut pipeline = PipelineBuilder::from_iter(["a.jpg"])
            .map("decode", |name: &str| Err::<i64, _>(bad_number(0).with_key(name)))
            .on_error(OnError::SKIP)
            .allow_total_loss()
            .build()
            .unwrap();
        assert!(pipeline.next().is_none());
        assert_eq!(pipeline.statistics().dropped[0].key.as_deref(), Some("a.jpg"));
    });
}

#[test]
fn invalid_settings_are_refused_when_the_pipeline_is_built() {
    let kind = |result: Result<spdl_core::ErrorKind>| result.unwrap_err().kind();
    let zero = numbers(1).batch("none", 0, false).build().map(|_| ErrorKind::User);
    assert_eq!(kind(zero), ErrorKind::InvalidArgument);
    let unnamed = numbers(1).map("", Ok).build().map(|_| ErrorKind::User);
    assert_eq!(kind(unnamed), ErrorKind::InvalidArgument);
    let weights = spdl_core::stage::WeightedMerge::new([1.0]).unwrap();
    let merged = PipelineBuilder::merge([numbers(1), numbers(1)], weights);
    assert_eq!(kind(merged.build().map(|_| ErrorKind::User)), ErrorKind::InvalidArgument);
    let many = numbers(1).map("a", Ok).build().unwrap().control().set_threads(100_000);
    assert_eq!(many.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn the_first_item_of_a_slow_iterator_does_not_wait_for_the_second() {
    within_seconds(20, || {
        let slow = (0..2).inspect(|&n| std::thread::sleep(Duration::from_secs(2 * n)));
        let started = Instant::now();
        let mut pipeline = PipelineBuilder::from_iter(slow).build().unwrap();
        assert_eq!(pipeline.next().unwrap().unwrap(), 0);
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    });
}

/// Two generators whose items are consumed alternately. With one worker, each blocks in `emit`
/// until the other one proceeds.
fn alternating_generators(
    set: impl Fn(PipelineBuilder<i64>) -> PipelineBuilder<i64>,
) -> spdl_core::Pipeline<i64> {
    let many = |name: &str| {
        numbers(4).flat_map(StageOptions::new(name).queue(2), |n| (0..500).map(move |k| Ok(n + k)))
    };
    let merged = PipelineBuilder::merge(
        [many("left"), many("right")],
        spdl_core::stage::RoundRobin::default(),
    );
    set(merged).build().expect("the settings are valid")
}

#[test]
fn branches_that_wait_for_each_other_need_only_one_worker() {
    within_seconds(60, || {
        assert_eq!(alternating_generators(|merged| merged.threads(1)).count(), 4000);
        let pool = Pool::new(1);
        let lent = alternating_generators(|merged| merged.executor(pool.clone()));
        assert_eq!(lent.count(), 4000);
        // Fewer workers while all of them wait, and an end at any time.
        for taken in [1, 7, 100, 3999] {
            let mut pipeline = alternating_generators(|merged| merged.threads(3));
            let control = pipeline.control();
            assert_eq!(pipeline.by_ref().take(taken).filter(Result::is_ok).count(), taken);
            control.set_threads(1).unwrap();
            if taken > 50 {
                assert_eq!(pipeline.by_ref().filter(Result::is_ok).count(), 4000 - taken);
            }
        }
    });
}

#[test]
fn polling_endless_empty_epochs_returns() {
    within_seconds(20, || {
        let mut pipeline = numbers(1).filter("none", |_| Ok(false)).epochs(0..).build().unwrap();
        for _ in 0..100 {
            assert!(pipeline.try_next().is_pending());
        }
    });
}

#[test]
fn a_stop_with_a_deadline_does_not_wait_for_a_blocking_task() {
    within_seconds(20, || {
        let mut pipeline = numbers(3)
            .map_async("blocks", |n| async move {
                std::thread::sleep(Duration::from_secs(3));
                Ok(n)
            })
            .build()
            .unwrap();
        assert!(pipeline.next_timeout(Duration::from_millis(100)).is_pending());
        let started = Instant::now();
        let stopped = pipeline.stop_timeout(Duration::from_millis(100));
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Timeout);
        drop(pipeline);
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    });
}
