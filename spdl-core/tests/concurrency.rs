//! Threads and concurrency: dedicated threads, affinity, executors, changes at run time, priority.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use common::{WriteNumber, within_seconds};
use common::{before_error, delivered, delivered_sorted, layout, numbers, sleep_by_number, until};
use spdl_core::pipeline::{Control, path};
use spdl_core::runtime::CpuExecutor;
use spdl_core::{
    AsyncContext, AsyncStage, Error, ErrorKind, OnError, PipelineBuilder, Result, Stage,
    StageContext, StageOptions,
};

/// Names and ids of threads.
type Threads = Arc<Mutex<Vec<(String, ThreadId)>>>;

fn note(threads: &Threads) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default().to_owned();
    threads.lock().unwrap().push((name, thread.id()));
}

fn names(threads: &Threads) -> HashSet<String> {
    threads.lock().unwrap().iter().map(|(name, _)| name.clone()).collect()
}

fn ids(threads: &Threads) -> HashSet<ThreadId> {
    threads.lock().unwrap().iter().map(|(_, id)| *id).collect()
}

fn noting(threads: &Threads) -> impl Fn(i64) -> Result<i64> + Send + Sync + 'static {
    let threads = Arc::clone(threads);
    move |n| {
        note(&threads);
        sleep_by_number(n);
        Ok(n)
    }
}

/// A stage that records the threads that create, call and drop it.
struct Bound(Threads);
impl Bound {
    fn new(threads: &Threads) -> Result<Self> {
        note(threads);
        Ok(Bound(Arc::clone(threads)))
    }
}
impl Stage<i64> for Bound {
    type Out = i64;
    fn process(&mut self, n: i64, cx: &mut StageContext<'_, i64>) -> Result<()> {
        note(&self.0);
        sleep_by_number(n);
        cx.emit(n)
    }
    fn finish(&mut self, _: &mut StageContext<'_, i64>) -> Result<()> {
        note(&self.0);
        Ok(())
    }
}
impl Drop for Bound {
    fn drop(&mut self) {
        note(&self.0);
    }
}

// Dedicated threads.

// feature: C05
#[test]
fn a_dedicated_thread_creates_runs_and_drops_its_stage() {
    within_seconds(60, || {
        for ends_early in [false, true] {
            let (bound, shared) = (Threads::default(), Threads::default());
            let lives = Arc::clone(&bound);
            let mut pipeline = PipelineBuilder::new(numbers(300))
                .map("before", noting(&shared))
                .stage(StageOptions::new("device").dedicated(), move || Bound::new(&lives))
                .map("after", noting(&shared))
                .epochs(0..3)
                .threads(3)
                .build()
                .unwrap();
            let monitor = pipeline.monitor();
            if ends_early {
                assert_eq!(pipeline.by_ref().take(50).count(), 50);
                pipeline.stop();
            } else {
                assert_eq!(pipeline.by_ref().count(), 900);
            }
            assert_eq!(monitor.statistics().stages[2].concurrency, 1, "one thread by default");
            drop(pipeline);
            assert_eq!(names(&bound), HashSet::from(["spdl-device-0".to_owned()]));
            assert_eq!(ids(&bound).len(), 1, "the instance is dropped there too");
            assert!(ids(&bound).is_disjoint(&ids(&shared)), "no other stage uses the thread");
            assert!(names(&shared).iter().all(|name| name.starts_with("spdl-worker-")));
        }
    });
}

#[test]
fn a_dedicated_stage_has_as_many_threads_as_its_concurrency() {
    within_seconds(60, || {
        let (threads, max_in_flight) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        let (noted, now) = (Arc::clone(&threads), Arc::clone(&max_in_flight));
        let options = StageOptions::new("three").dedicated().concurrency(3);
        let builder = PipelineBuilder::new(numbers(30)).map(options, move |n| {
            note(&noted);
            now.fetch_add(1, Ordering::SeqCst);
            // Continues only if three items are processed concurrently.
            until("three items in the stage", || now.load(Ordering::SeqCst) >= 3);
            Ok(n)
        });
        assert_eq!(delivered_sorted(builder.threads(1)), (0..30).collect::<Vec<_>>());
        let expected = (0..3).map(|at| format!("spdl-three-{at}")).collect();
        assert_eq!(names(&threads), expected);
    });
}

#[test]
fn fill_and_aggregate_can_have_dedicated_threads() {
    within_seconds(60, || {
        let options = |name| StageOptions::new(name).dedicated().concurrency(2);
        let builder = PipelineBuilder::new(numbers(100))
            .batch(options("pairs"), 2, false)
            .unbatch(options("apart"))
            .fill(options("write"), layout(16), || {
                Ok(WriteNumber { fails: |_| false, panics: |_| false })
            })
            .deterministic();
        let sizes: Vec<usize> = delivered(builder).iter().map(spdl_core::Batch::len).collect();
        assert_eq!(sizes, [16, 16, 16, 16, 16, 16, 4]);
    });
}

// promise: R24
#[test]
fn a_panic_in_a_dedicated_stage_fails_the_item_and_the_thread_continues() {
    within_seconds(60, || {
        let threads = Threads::default();
        let noted = Arc::clone(&threads);
        let builder = PipelineBuilder::new(numbers(100))
            .map(StageOptions::new("device").dedicated(), move |n| {
                note(&noted);
                assert!(n % 10 != 3, "panic for {n}");
                Ok(n)
            })
            .on_error(OnError::SKIP);
        assert_eq!(delivered(builder).len(), 90);
        assert_eq!(ids(&threads).len(), 1);
        let raises = PipelineBuilder::new(numbers(100))
            .map(StageOptions::new("device").dedicated(), |n| {
                assert!(n != 30, "panic for {n}");
                Ok(n)
            })
            .build()
            .unwrap();
        let (items, error) = before_error(raises);
        assert_eq!(items, (0..30).collect::<Vec<_>>());
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Panicked, Some("device")));
    });
}

#[test]
fn a_failing_factory_on_a_dedicated_thread_is_an_error() {
    within_seconds(60, || {
        let none =
            || -> Result<Bound> { Err(Error::new(ErrorKind::Unsupported, "no such device")) };
        let pipeline = PipelineBuilder::new(numbers(10))
            .stage(StageOptions::new("device").dedicated(), none)
            .build()
            .unwrap();
        let (items, error) = before_error(pipeline);
        assert_eq!((items, error.to_string().as_str()), (vec![], "device: no such device"));
    });
}

// feature: B03
#[test]
fn dedicated_threads_of_an_async_stage_are_an_error() {
    let builder = PipelineBuilder::new(numbers(1))
        .map_async(StageOptions::new("wait").dedicated(), |n| async move { Ok(n) });
    let error = builder.build().unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("wait")));
}

#[cfg(all(feature = "affinity", target_os = "linux"))]
mod pinned {
    use super::*;

    /// The CPUs that the calling thread may run on.
    fn allowed() -> Vec<usize> {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
        let list = line.split(':').nth(1).unwrap().trim();
        let ranges = list.split(',').map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse::<usize>().unwrap()..=last.parse().unwrap()
        });
        ranges.flatten().collect()
    }

    #[test]
    fn a_pinned_stage_runs_on_its_cpus_and_other_threads_are_not_pinned() {
        within_seconds(60, || {
            let all = allowed();
            let cpu = *all.last().unwrap();
            let (pinned, others) =
                (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
            let seen = |list: &Arc<Mutex<Vec<Vec<usize>>>>| {
                let list = Arc::clone(list);
                move |n: i64| {
                    list.lock().unwrap().push(allowed());
                    Ok(n)
                }
            };
            let builder = PipelineBuilder::new(numbers(20))
                .map(StageOptions::new("here").pinned([cpu]).concurrency(2), seen(&pinned))
                .map("anywhere", seen(&others));
            assert_eq!(delivered_sorted(builder), (0..20).collect::<Vec<_>>());
            assert!(pinned.lock().unwrap().iter().all(|cpus| *cpus == [cpu]));
            assert!(others.lock().unwrap().iter().all(|cpus| *cpus == all));
            assert_eq!(allowed(), all);
        });
    }

    #[test]
    fn a_missing_cpu_ends_the_pipeline_with_an_error() {
        within_seconds(60, || {
            let options = StageOptions::new("nowhere").pinned([100_000]);
            let pipeline = PipelineBuilder::new(numbers(20)).map(options, Ok).build().unwrap();
            let (_, error) = before_error(pipeline);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        });
    }
}

// Custom executors.

type Work = Box<dyn FnOnce() + Send>;

/// A small thread pool with a queue.
#[derive(Debug)]
struct Pool {
    work: Mutex<Option<mpsc::Sender<Work>>>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    size: usize,
    handed_over: AtomicUsize,
    most_at_once: Arc<AtomicUsize>,
}

impl Pool {
    fn new(size: usize) -> Arc<Self> {
        let (sender, receiver) = mpsc::channel::<Work>();
        let receiver = Arc::new(Mutex::new(receiver));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let thread = |at| {
            let (receiver, now, most) =
                (Arc::clone(&receiver), Arc::clone(&now), Arc::clone(&most));
            let run = move || loop {
                let next = receiver.lock().unwrap().recv();
                let Ok(work) = next else { return };
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                work();
                now.fetch_sub(1, Ordering::SeqCst);
            };
            std::thread::Builder::new().name(format!("mine-{at}")).spawn(run).unwrap()
        };
        Arc::new(Pool {
            work: Mutex::new(Some(sender)),
            threads: Mutex::new((0..size).map(thread).collect()),
            size,
            handed_over: AtomicUsize::new(0),
            most_at_once: most,
        })
    }

    /// Ends the threads after the queued work; later work is dropped.
    fn shut_down(&self) {
        drop(self.work.lock().unwrap().take());
        for thread in self.threads.lock().unwrap().drain(..) {
            thread.join().unwrap();
        }
    }
}

impl CpuExecutor for Pool {
    fn execute(&self, work: Work) {
        self.handed_over.fetch_add(1, Ordering::SeqCst);
        let sender = self.work.lock().unwrap().clone();
        if let Some(sender) = sender {
            drop(sender.send(work));
        }
    }
    fn parallelism(&self) -> usize {
        self.size
    }
}

// feature: C05
#[test]
fn a_pipeline_can_run_on_a_custom_executor() {
    within_seconds(60, || {
        let (pool, threads) = (Pool::new(3), Threads::default());
        for round in 0..20 {
            let builder = PipelineBuilder::new(numbers(500))
                .map("a", noting(&threads))
                .map_async("b", |n| async move { Ok(n) })
                .flat_map("c", |n| [Ok(n), Ok(n)])
                .batch("d", 7, false)
                .unbatch("e")
                .map("f", noting(&threads))
                .executor(Arc::clone(&pool) as Arc<dyn CpuExecutor>)
                .epochs(0..2);
            let builder = if round % 2 == 0 { builder.deterministic() } else { builder };
            let mut pipeline = builder.build().unwrap();
            let mut items: Vec<i64> = pipeline.by_ref().map(Result::unwrap).collect();
            items.sort_unstable();
            assert_eq!(items, (0..500).flat_map(|n| [n; 4]).collect::<Vec<_>>());
            assert_eq!(
                pipeline.statistics().threads,
                3,
                "the default is the parallelism of the executor"
            );
        }
        assert!(names(&threads).iter().all(|name| name.starts_with("mine-")));
        pool.shut_down();
    });
}

// feature: C05
#[test]
fn a_stage_on_a_custom_executor_respects_its_concurrency() {
    within_seconds(60, || {
        let (pool, mine, ours) = (Pool::new(16), Threads::default(), Threads::default());
        let executor = Arc::clone(&pool) as Arc<dyn CpuExecutor>;
        let (now, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let (noting_mine, seen) = (noting(&mine), Arc::clone(&most));
        let counting = move |n| {
            seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let passed = noting_mine(n);
            now.fetch_sub(1, Ordering::SeqCst);
            passed
        };
        let builder = PipelineBuilder::new(numbers(500))
            .map("ours", noting(&ours))
            .map(StageOptions::new("mine").executor(executor).concurrency(2), counting)
            .fill("write", layout(10), || Ok(WriteNumber { fails: |_| false, panics: |_| false }));
        assert_eq!(delivered(builder).len(), 50);
        assert!(names(&mine).iter().all(|name| name.starts_with("mine-")));
        assert!(names(&ours).iter().all(|name| name.starts_with("spdl-worker-")));
        assert!(most.load(Ordering::SeqCst) <= 2);
        // A finished piece of work may still be counted when the next one starts.
        let pieces = pool.most_at_once.load(Ordering::SeqCst);
        assert!(pieces <= 4, "{pieces} concurrent pieces of work");
        pool.shut_down();
    });
}

// feature: C05
#[test]
fn an_executor_outlives_its_pipelines_for_any_ending() {
    within_seconds(60, || {
        let pool = Pool::new(2);
        for take in 0..40 {
            let mut pipeline = PipelineBuilder::new(numbers(1000))
                .map("work", move |n| {
                    assert!(take % 3 != 1 || n != 20, "panic for {n}");
                    Ok(n)
                })
                .executor(Arc::clone(&pool) as Arc<dyn CpuExecutor>)
                .build()
                .unwrap();
            for _ in 0..take {
                let _ = pipeline.next();
            }
        }
        // No work remains that would keep the pool from ending.
        let done = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&done);
        pool.execute(Box::new(move || flag.store(true, Ordering::SeqCst)));
        until("the pool continues", || done.load(Ordering::SeqCst));
        pool.shut_down();
    });
}

/// Drops all work from a given piece on.
#[derive(Debug)]
struct Drops {
    pool: Arc<Pool>,
    from: usize,
}
impl CpuExecutor for Drops {
    fn execute(&self, work: Work) {
        if self.pool.handed_over.load(Ordering::SeqCst) < self.from {
            self.pool.execute(work);
        }
    }
    fn parallelism(&self) -> usize {
        self.pool.size
    }
}

// feature: C05
#[test]
fn an_executor_that_drops_work_ends_the_pipeline_with_an_error() {
    within_seconds(60, || {
        for from in [0, 1, 3] {
            for whole in [true, false] {
                let drops = Arc::new(Drops { pool: Pool::new(2), from });
                let executor = Arc::clone(&drops) as Arc<dyn CpuExecutor>;
                // Slow items, so that the executor receives many pieces of work.
                let slow = PipelineBuilder::from_iter((0..1_000_000).inspect(|_| {
                    std::thread::sleep(Duration::from_micros(200));
                }));
                let builder = if whole {
                    slow.map("work", Ok).executor(executor)
                } else {
                    slow.map(StageOptions::new("work").executor(executor), Ok)
                };
                let (_, error) = before_error(builder.build().unwrap());
                assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
                assert!(error.to_string().contains("executor"), "{error}");
                drops.pool.shut_down();
            }
        }
    });
}

#[cfg(feature = "rayon")]
// feature: C05
#[test]
fn a_rayon_pool_can_run_a_pipeline_and_other_work() {
    within_seconds(60, || {
        let pool = rayon_pool(3);
        let threads = Threads::default();
        let executor = Arc::new(spdl_core::runtime::RayonExecutor::new(Arc::clone(&pool)));
        let mut pipeline = PipelineBuilder::new(numbers(2000))
            .map("a", noting(&threads))
            .map("b", noting(&threads))
            .executor(executor)
            .deterministic()
            .build()
            .unwrap();
        let first: Vec<i64> = pipeline.by_ref().take(10).map(Result::unwrap).collect();
        assert_eq!(first, (0..10).collect::<Vec<_>>());
        assert_eq!(pool.install(|| 6 * 7), 42);
        let rest: Vec<i64> = pipeline.map(Result::unwrap).collect();
        assert_eq!(rest, (10..2000).collect::<Vec<_>>());
        assert!(names(&threads).iter().all(|name| name.starts_with("mine-")));
    });
}

#[cfg(feature = "rayon")]
fn rayon_pool(threads: usize) -> Arc<rayon::ThreadPool> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    Arc::new(pool.thread_name(|at| format!("mine-{at}")).build().unwrap())
}

// Changes of concurrency at run time.

/// Blocks the items of a stage, counts them, and releases a given number.
#[derive(Default)]
struct Turnstile {
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}
impl Turnstile {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        state = self
            .changed
            .wait_timeout_while(state, Duration::from_secs(30), |(_, tickets)| *tickets == 0)
            .unwrap()
            .0;
        state.0 -= 1;
        state.1 = state.1.saturating_sub(1);
    }
    fn let_through(&self, items: usize) {
        self.state.lock().unwrap().1 += items;
        self.changed.notify_all();
    }
    fn inside(&self) -> usize {
        self.state.lock().unwrap().0
    }
}

/// Waits until the number of items in the stage is `at` and remains so.
fn settle(inside: &dyn Fn() -> usize, at: usize) {
    until(&format!("{at} items in the stage"), || inside() == at);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(inside(), at);
}

fn settles(turnstile: &Turnstile, at: usize) {
    settle(&|| turnstile.inside(), at);
}

// promise: CORE3
#[test]
fn the_number_of_workers_can_change_at_run_time() {
    within_seconds(100, || {
        let turnstile = Arc::new(Turnstile::default());
        let gate = Arc::clone(&turnstile);
        let mut pipeline = PipelineBuilder::new(numbers(100))
            .map(StageOptions::new("work").concurrency(100), move |n| {
                gate.pass();
                Ok(n)
            })
            .threads(1)
            .prefetch(100)
            .build()
            .unwrap();
        let control = pipeline.control();
        pipeline.start().unwrap();
        settles(&turnstile, 1);
        control.set_threads(6).unwrap();
        settles(&turnstile, 6);
        assert_eq!(pipeline.statistics().threads, 6);
        // Excess workers finish their items first.
        control.set_threads(2).unwrap();
        settles(&turnstile, 6);
        turnstile.let_through(4);
        settles(&turnstile, 2);
        control.set_threads(0).unwrap();
        assert_eq!(pipeline.statistics().threads, 1, "the minimum is 1");
        turnstile.let_through(1);
        settles(&turnstile, 1);
        control.set_threads(4).unwrap();
        settles(&turnstile, 4);
        turnstile.let_through(1000);
        let mut items: Vec<i64> = pipeline.by_ref().map(Result::unwrap).collect();
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        drop(pipeline);
        control.set_threads(8).unwrap();
    });
}

/// Raises and lowers the concurrency of the stage `work`, which is 2 at first.
fn up_and_down(control: &Control, inside: &dyn Fn() -> usize, let_through: &dyn Fn(usize)) {
    settle(inside, 2);
    control.set_concurrency("work", 5).unwrap();
    settle(inside, 5);
    control.set_concurrency("work", 2).unwrap();
    settle(inside, 5);
    let_through(3);
    settle(inside, 2);
    control.set_concurrency("work", 0).unwrap();
    let_through(1);
    settle(inside, 1);
    control.set_concurrency("work", 3).unwrap();
    settle(inside, 3);
    let_through(1000);
}

// promise: CORE3
#[test]
fn the_concurrency_of_a_stage_can_change_at_run_time() {
    within_seconds(100, || {
        for dedicated in [false, true] {
            let turnstile = Arc::new(Turnstile::default());
            let gate = Arc::clone(&turnstile);
            let options = StageOptions::new("work").concurrency(2);
            let options = if dedicated { options.dedicated() } else { options };
            let mut pipeline = PipelineBuilder::new(numbers(100))
                .map(options, move |n| {
                    gate.pass();
                    Ok(n)
                })
                .threads(8)
                .prefetch(100)
                .build()
                .unwrap();
            pipeline.start().unwrap();
            let (inside, through) = (|| turnstile.inside(), |items| turnstile.let_through(items));
            up_and_down(&pipeline.control(), &inside, &through);
            let mut items: Vec<i64> = pipeline.by_ref().map(Result::unwrap).collect();
            items.sort_unstable();
            assert_eq!(items, (0..100).collect::<Vec<_>>());
            assert_eq!(pipeline.statistics().stages[1].concurrency, 3);
        }
    });
}

// promise: CORE3
#[test]
fn the_concurrency_of_an_async_stage_can_change_at_run_time() {
    within_seconds(100, || {
        let (tickets, gate) = async_channel::unbounded::<()>();
        // Permits may outlive the stage.
        let _kept = gate.clone();
        let at_work = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&at_work);
        let stage = move |n: i64| {
            let (gate, counter) = (gate.clone(), Arc::clone(&counter));
            async move {
                counter.fetch_add(1, Ordering::SeqCst);
                gate.recv().await.unwrap();
                counter.fetch_sub(1, Ordering::SeqCst);
                Ok(n)
            }
        };
        let mut pipeline = PipelineBuilder::new(numbers(60))
            .map_async(StageOptions::new("work").concurrency(2).queue(100), stage)
            .map("next", Ok)
            .prefetch(100)
            .build()
            .unwrap();
        pipeline.start().unwrap();
        let let_through = |items| (0..items).for_each(|_| tickets.try_send(()).unwrap());
        let inside = || at_work.load(Ordering::SeqCst);
        up_and_down(&pipeline.control(), &inside, &let_through);
        let mut items: Vec<i64> = pipeline.by_ref().map(Result::unwrap).collect();
        items.sort_unstable();
        assert_eq!(items, (0..60).collect::<Vec<_>>());
    });
}

// promise: CORE3
#[test]
fn the_number_of_workers_on_an_executor_can_change_at_run_time() {
    within_seconds(100, || {
        let pool = Pool::new(8);
        let turnstile = Arc::new(Turnstile::default());
        let gate = Arc::clone(&turnstile);
        let mut pipeline = PipelineBuilder::new(numbers(100))
            .map(StageOptions::new("work").concurrency(100), move |n| {
                gate.pass();
                Ok(n)
            })
            .executor(Arc::clone(&pool) as Arc<dyn CpuExecutor>)
            .threads(2)
            .prefetch(100)
            .build()
            .unwrap();
        let control = pipeline.control();
        pipeline.start().unwrap();
        settles(&turnstile, 2);
        control.set_threads(5).unwrap();
        settles(&turnstile, 5);
        control.set_threads(1).unwrap();
        turnstile.let_through(4);
        settles(&turnstile, 1);
        turnstile.let_through(1000);
        assert_eq!(pipeline.by_ref().count(), 100);
        pool.shut_down();
    });
}

#[test]
fn set_concurrency_requires_an_adjustable_stage() {
    within_seconds(60, || {
        let halves = [PipelineBuilder::new(numbers(4)), PipelineBuilder::new(numbers(4))];
        let pipeline = PipelineBuilder::merge(halves, spdl_core::stage::Arrival)
            .map("work", Ok)
            .route("route", |_| Ok(0), [path(|items: PipelineBuilder<i64>| items.map("inner", Ok))])
            .batch("batch", 2, false)
            .build()
            .unwrap();
        let control = pipeline.control();
        for name in ["source", "merge", "batch", "unknown"] {
            let error = control.set_concurrency(name, 2).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
            assert!(error.to_string().contains("work, route, inner"), "{error}");
        }
        control.set_concurrency("inner", 2).unwrap();
        assert_eq!(pipeline.map(Result::unwrap).map(|batch| batch.len()).sum::<usize>(), 8);
    });
}

// promise: CORE3
#[test]
fn a_thousand_changes_of_workers_leak_nothing() {
    within_seconds(100, || {
        let mut pipeline = PipelineBuilder::from_iter(0..)
            .map("work", Ok::<i64, Error>)
            .threads(1)
            .build()
            .unwrap();
        let control = pipeline.control();
        let memory = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().count()
        };
        let mut before = 0;
        for round in 0..1000 {
            control.set_threads(if round % 2 == 0 { 4 } else { 1 }).unwrap();
            pipeline.next().unwrap().unwrap();
            if round == 100 {
                before = memory();
            }
        }
        // A thread that was not joined keeps two memory mappings for its stack.
        let after = memory();
        assert!(after < before + 200, "{before} memory mappings before, {after} after");
    });
}

// Priority of stages.

// feature: C04, C07
#[test]
fn workers_prefer_downstream_stages() {
    within_seconds(60, || {
        // One worker: each slow item passes all stages before the next one starts.
        let order = Arc::new(Mutex::new(Vec::new()));
        let noting = |stage: usize| {
            let order = Arc::clone(&order);
            move |n: i64| {
                std::thread::sleep(Duration::from_micros(300));
                order.lock().unwrap().push((n, stage));
                Ok(n)
            }
        };
        let builder = PipelineBuilder::new(numbers(20))
            .map("first", noting(0))
            .map("second", noting(1))
            .map("third", noting(2))
            .threads(1)
            .prefetch(20);
        assert_eq!(delivered(builder), (0..20).collect::<Vec<_>>());
        let expected: Vec<_> = (0..20).flat_map(|n| (0..3).map(move |stage| (n, stage))).collect();
        assert_eq!(*order.lock().unwrap(), expected);
    });
}

// feature: C04
#[test]
fn a_slow_stage_does_not_occupy_all_workers() {
    within_seconds(60, || {
        // The slow stage blocks; the other worker processes the items of the other path.
        let turnstile = Arc::new(Turnstile::default());
        let gate = Arc::clone(&turnstile);
        let mut pipeline = PipelineBuilder::new(numbers(60))
            .route(
                "route",
                |n| Ok(usize::from(*n % 20 == 0)),
                [
                    path(|items: PipelineBuilder<i64>| items.map("quick", Ok)),
                    path(move |items: PipelineBuilder<i64>| {
                        items.map(StageOptions::new("slow").concurrency(1), move |n| {
                            gate.pass();
                            Ok(n)
                        })
                    }),
                ],
            )
            .map("last", Ok)
            .threads(2)
            .build()
            .unwrap();
        let mut items: Vec<i64> = pipeline.by_ref().take(57).map(Result::unwrap).collect();
        assert!(items.iter().all(|n| n % 20 != 0));
        assert!(pipeline.try_next().is_pending());
        turnstile.let_through(3);
        items.extend(pipeline.map(Result::unwrap));
        items.sort_unstable();
        assert_eq!(items, (0..60).collect::<Vec<_>>());
    });
}

// feature: C04
#[test]
fn a_worker_that_waits_for_a_full_queue_runs_downstream_stages() {
    within_seconds(60, || {
        // A stage emits more outputs per item than the queues hold; its only worker drains them.
        let builder = PipelineBuilder::new(numbers(3))
            .flat_map(StageOptions::new("many").queue(2), |n| (0..500).map(move |_| Ok(n)))
            .map(StageOptions::new("next").queue(1), Ok)
            .map("last", Ok)
            .threads(1)
            .prefetch(1);
        assert_eq!(delivered(builder).len(), 1500);
    });
}

/// Sleeps like a request to a store, and counts concurrent items.
struct RemoteStage {
    in_flight: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

#[spdl_core::async_trait]
impl AsyncStage<i64> for RemoteStage {
    type Out = i64;
    async fn process(&self, n: i64, cx: &AsyncContext) -> Result<i64> {
        self.most.fetch_max(1 + self.in_flight.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
        cx.runtime().sleep(Duration::from_millis(10)).await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        Ok(n)
    }
}

/// Returns the maximum number of items in flight, and the concurrency in the statistics at the end.
fn max_in_flight(options: StageOptions, is_last: bool) -> (usize, usize) {
    let most = Arc::new(AtomicUsize::new(0));
    let remote = RemoteStage { in_flight: Arc::default(), most: Arc::clone(&most) };
    let pipeline = PipelineBuilder::from_iter(0..4000).async_stage(options, remote);
    let pipeline = if is_last { pipeline } else { pipeline.map("use", Ok) };
    let mut pipeline = pipeline.deterministic().build().unwrap();
    let items: Vec<i64> = pipeline.by_ref().map(Result::unwrap).collect();
    assert_eq!(items, (0..4000).collect::<Vec<_>>());
    (most.load(Ordering::SeqCst), pipeline.statistics().stages[1].concurrency)
}

#[test]
fn the_in_flight_window_of_an_async_stage_grows() {
    within_seconds(60, || {
        for is_last in [false, true] {
            let most = Arc::new(AtomicUsize::new(0));
            let remote = RemoteStage { in_flight: Arc::default(), most: Arc::clone(&most) };
            let pipeline = PipelineBuilder::from_iter(0..i64::MAX).async_stage("remote", remote);
            let pipeline = if is_last { pipeline } else { pipeline.map("use", Ok) };
            let mut pipeline = pipeline.deterministic().build().unwrap();
            // On a loaded machine, the window may take longer, and may shrink meanwhile.
            while most.load(Ordering::SeqCst) < 48 {
                pipeline.next().unwrap().unwrap();
            }
            while pipeline.statistics().stages[1].concurrency <= 16 {
                pipeline.next().unwrap().unwrap();
            }
        }
    });
}

#[test]
fn a_configured_concurrency_is_fixed() {
    within_seconds(60, || {
        for (options, expected) in [
            (StageOptions::new("remote").concurrency(20), 20),
            (StageOptions::new("remote").queue(64), 16),
        ] {
            assert_eq!(max_in_flight(options, false), (expected, expected));
        }
    });
}

#[test]
fn a_concurrency_set_at_run_time_is_fixed() {
    within_seconds(60, || {
        let remote = RemoteStage { in_flight: Arc::default(), most: Arc::default() };
        let mut pipeline = PipelineBuilder::from_iter(0..4000)
            .async_stage("remote", remote)
            .map("use", Ok)
            .build()
            .unwrap();
        pipeline.next().unwrap().unwrap();
        pipeline.control().set_concurrency("remote", 8).unwrap();
        assert_eq!(pipeline.by_ref().count(), 3999);
        assert_eq!(pipeline.statistics().stages[1].concurrency, 8);
    });
}
