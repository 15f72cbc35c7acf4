//! Consuming a pipeline: timeouts, checks while waiting, stopping, other threads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use common::{bad_number, delivered, numbers, until, within_seconds};
use futures_util::{StreamExt, stream};
use spdl_core::pipeline::path;
use spdl_core::stage::Arrival;
use spdl_core::{
    AsyncContext, AsyncStage, Error, ErrorKind, OnError, Pipeline, PipelineBuilder, Result, Stage,
    StageContext, StageOptions, async_trait, block_on,
};

const MOMENT: Duration = Duration::from_millis(20);
/// Longer than any operation of these tests, and shorter than the waits that must be interrupted.
const SOON: Duration = Duration::from_secs(10);

/// Blocks items until it is open.
#[derive(Clone, Default)]
struct Gate(Arc<AtomicBool>);
impl Gate {
    fn open(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
    fn pass(&self) {
        until("the gate is open", || self.0.load(Ordering::SeqCst));
    }
}

/// A pipeline of numbers that a gate blocks.
fn gated(count: i64) -> (Gate, Pipeline<i64>) {
    let gate = Gate::default();
    let closed = gate.clone();
    let work = move |n| {
        closed.pass();
        Ok(n)
    };
    let pipeline = PipelineBuilder::new(numbers(count)).map("gated", work).deterministic();
    (gate, pipeline.build().unwrap())
}

// feature: L05
#[test]
fn try_next_starts_the_pipeline_and_returns_immediately() {
    within_seconds(60, || {
        let (gate, mut pipeline) = gated(3);
        assert!(pipeline.try_next().is_pending());
        assert!(pipeline.try_next().is_pending());
        gate.open();
        let mut items = Vec::new();
        let end = loop {
            match pipeline.try_next() {
                Poll::Ready(Some(item)) => items.push(item.unwrap()),
                Poll::Ready(None) => break Instant::now(),
                Poll::Pending => std::thread::yield_now(),
            }
        };
        assert!(end.elapsed() < SOON);
        assert_eq!(items, [0, 1, 2]);
        assert!(matches!(pipeline.try_next(), Poll::Ready(None)), "the pipeline remains ended");
    });
}

// feature: L04
#[test]
fn next_timeout_waits_for_its_timeout_and_can_be_repeated() {
    within_seconds(60, || {
        let (gate, mut pipeline) = gated(2);
        for _ in 0..3 {
            let start = Instant::now();
            assert!(pipeline.next_timeout(MOMENT).is_pending());
            let waited = start.elapsed();
            assert!(waited >= MOMENT && waited < SOON, "{waited:?}");
        }
        gate.open();
        assert_eq!(pipeline.map(Result::unwrap).collect::<Vec<_>>(), [0, 1]);
    });
}

// feature: L04
#[test]
fn an_item_ends_next_timeout_immediately() {
    within_seconds(60, || {
        let (gate, mut pipeline) = gated(1);
        let opener = std::thread::spawn(move || {
            std::thread::sleep(MOMENT);
            gate.open();
        });
        let start = Instant::now();
        assert!(matches!(pipeline.next_timeout(SOON), Poll::Ready(Some(Ok(0)))));
        assert!(start.elapsed() < SOON);
        opener.join().unwrap();
    });
}

// feature: L04
#[test]
fn all_methods_return_the_error_and_the_end() {
    within_seconds(60, || {
        let build = || {
            PipelineBuilder::new(numbers(5))
                .map("fails", |n| if n == 2 { Err(bad_number(n)) } else { Ok(n) })
                .deterministic()
                .build()
                .unwrap()
        };
        let text = |error: Error| error.to_string();
        let mut waits = build();
        assert_eq!(waits.by_ref().take(2).map(Result::unwrap).collect::<Vec<_>>(), [0, 1]);
        match waits.next_timeout(SOON) {
            Poll::Ready(Some(Err(error))) => assert_eq!(text(error), "fails: 2 is bad"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(waits.next_timeout(SOON), Poll::Ready(None)));

        let mut checks = build();
        let mut next = || checks.next_checked(SOON, || Err("too many checks")).unwrap();
        assert_eq!((next().unwrap().unwrap(), next().unwrap().unwrap()), (0, 1));
        assert_eq!(text(next().unwrap().unwrap_err()), "fails: 2 is bad");
        assert!(next().is_none());

        let mut by_epoch = build();
        let mut epoch = by_epoch.next_epoch().unwrap();
        assert_eq!((epoch.next().unwrap().unwrap(), epoch.next().unwrap().unwrap()), (0, 1));
        assert_eq!(text(epoch.next().unwrap().unwrap_err()), "fails: 2 is bad");
        assert!(epoch.next().is_none());
        assert!(by_epoch.next_epoch().is_none());

        let items: Vec<_> = block_on(build().into_stream().collect());
        assert_eq!(items.len(), 3);
        assert_eq!(text(items.into_iter().next_back().unwrap().unwrap_err()), "fails: 2 is bad");
    });
}

#[test]
fn an_error_before_the_first_item_of_an_epoch_is_in_that_epoch() {
    within_seconds(60, || {
        let pipeline =
            PipelineBuilder::new(numbers(5)).map("fails", |n| Err::<i64, _>(bad_number(n)));
        let mut pipeline = pipeline.threads(1).build().unwrap();
        let items: Vec<_> = pipeline.next_epoch().unwrap().collect();
        assert_eq!(items.len(), 1);
        assert_eq!(items[0].as_ref().unwrap_err().to_string(), "fails: 0 is bad");
        assert!(pipeline.next_epoch().is_none());
        // Also if the epoch's iterator was not used.
        let pipeline =
            PipelineBuilder::new(numbers(5)).map("fails", |n| Err::<i64, _>(bad_number(n)));
        let mut pipeline = pipeline.threads(1).build().unwrap();
        assert!(pipeline.next_epoch().is_some());
        assert_eq!(pipeline.next().unwrap().unwrap_err().to_string(), "fails: 0 is bad");
    });
}

// feature: L06
#[test]
fn no_epoch_follows_an_error_inside_an_epoch() {
    within_seconds(60, || {
        // A consumer that continues after an error must reach the end.
        let fails = |n| if n == 3 { Err(bad_number(n)) } else { Ok(n) };
        let build =
            || PipelineBuilder::new(numbers(9)).map("fails", fails).epochs(0..).deterministic();
        let mut pipeline = build().build().unwrap();
        let (mut items, mut errors, mut epochs) = (0, 0, 0);
        while let Some(epoch) = pipeline.next_epoch() {
            epochs += 1;
            assert!(epochs < 10, "endless epochs");
            for item in epoch {
                *(if item.is_ok() { &mut items } else { &mut errors }) += 1;
            }
        }
        assert_eq!((items, errors, epochs), (3, 1, 1));
        let mut stopped = build().build().unwrap();
        assert!(stopped.next_epoch().unwrap().next().is_some());
        stopped.stop();
        assert!(stopped.next_epoch().is_none());
    });
}

// feature: L04, L10
#[test]
fn next_checked_returns_the_error_of_the_check_and_the_pipeline_continues() {
    within_seconds(60, || {
        let (gate, mut pipeline) = gated(3);
        let mut checks = 0;
        let interrupted = pipeline.next_checked(Duration::from_millis(1), || {
            checks += 1;
            if checks == 5 { Err("ctrl-c") } else { Ok(()) }
        });
        assert_eq!((interrupted.unwrap_err(), checks), ("ctrl-c", 5));
        let (gate, checks) = (gate, AtomicUsize::new(0));
        let first = pipeline.next_checked(Duration::from_millis(1), || {
            if checks.fetch_add(1, Ordering::SeqCst) == 3 {
                gate.open();
            }
            Ok::<_, ()>(())
        });
        assert_eq!(first.unwrap().unwrap().unwrap(), 0);
        assert!(checks.load(Ordering::SeqCst) > 3);
        assert_eq!(pipeline.map(Result::unwrap).collect::<Vec<_>>(), [1, 2]);
    });
}

#[test]
fn next_checked_does_not_check_if_an_item_is_ready() {
    within_seconds(60, || {
        let mut pipeline = PipelineBuilder::new(numbers(3)).build().unwrap();
        pipeline.start().unwrap();
        until("an item is ready", || pipeline.statistics().queues[0].len > 0);
        let item = pipeline.next_checked(SOON, || Err("checked"));
        assert_eq!(item.unwrap().unwrap().unwrap(), 0);
    });
}

// Stopping.

// feature: L02
#[test]
fn stop_timeout_joins_all_threads() {
    within_seconds(60, || {
        // All kinds of sources and threads.
        for round in 0..50 {
            let source = if round % 2 == 0 {
                PipelineBuilder::from_iter(0..)
            } else {
                PipelineBuilder::new(numbers(1_000_000))
            };
            let mut pipeline = source
                .map("work", Ok)
                .map(StageOptions::new("own").dedicated(), Ok)
                .map_async("wait", |n: i64| async move { Ok(n) })
                .build()
                .unwrap();
            for _ in 0..round {
                pipeline.next().unwrap().unwrap();
            }
            pipeline.stop_timeout(SOON).unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert!(pipeline.next().is_none());
            pipeline.stop_timeout(Duration::ZERO).unwrap();
        }
    });
}

// feature: L02
#[test]
fn stop_timeout_returns_in_time_and_drop_does_not_wait_afterwards() {
    within_seconds(60, || {
        for place in ["pool", "own", "source"] {
            let (hangs, over) = (Arc::new(AtomicBool::new(false)), Gate::default());
            let (flag, gate) = (Arc::clone(&hangs), over.clone());
            let hang = move |n: i64| {
                flag.store(true, Ordering::SeqCst);
                gate.pass();
                Ok(n)
            };
            let mut pipeline = match place {
                "pool" => PipelineBuilder::new(numbers(100)).map("hang", hang),
                "own" => PipelineBuilder::new(numbers(100))
                    .map(StageOptions::new("hang").dedicated(), hang),
                _ => PipelineBuilder::from_iter((0..100).inspect(move |&n| drop(hang(n)))),
            }
            .build()
            .unwrap();
            assert!(pipeline.try_next().is_pending());
            until("it hangs", || hangs.load(Ordering::SeqCst));
            let start = Instant::now();
            let error = pipeline.stop_timeout(MOMENT).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{place}");
            assert!(start.elapsed() >= MOMENT, "{place}: {:?}", start.elapsed());
            assert!(pipeline.next().is_none());
            drop(pipeline);
            assert!(start.elapsed() < SOON, "{place}: drop does not wait");
            over.open();
        }
    });
}

// feature: L01
#[test]
fn stop_works_before_the_start_and_after_the_end() {
    within_seconds(60, || {
        let mut never = PipelineBuilder::new(numbers(3)).map("a", Ok).build().unwrap();
        never.stop();
        assert!(never.next().is_none());
        assert_eq!(never.start().unwrap_err().kind(), ErrorKind::Stopped);
        let mut ended = PipelineBuilder::new(numbers(3)).map("a", Ok).build().unwrap();
        assert_eq!(ended.by_ref().count(), 3);
        ended.stop();
        ended.stop_timeout(Duration::ZERO).unwrap();
        assert_eq!(ended.start().unwrap_err().kind(), ErrorKind::Stopped, "no second start");
        let mut twice = PipelineBuilder::new(numbers(3)).map("a", Ok).build().unwrap();
        twice.start().unwrap();
        twice.start().unwrap();
        assert_eq!(twice.count(), 3);
    });
}

/// Waits in `emit` and in `wait` until the pipeline ends.
struct Busy {
    waits: bool,
    ended: Arc<AtomicUsize>,
}
impl Stage<i64> for Busy {
    type Out = i64;
    fn process(&mut self, n: i64, cx: &mut StageContext<'_, i64>) -> Result<()> {
        let result = if self.waits {
            cx.wait(Duration::from_secs(3600))
        } else {
            std::iter::repeat(n).try_for_each(|n| cx.emit(n))
        };
        self.ended.fetch_add(1, Ordering::SeqCst);
        assert_eq!(result.as_ref().map_err(Error::kind), Err(ErrorKind::Stopped));
        result
    }
}

// feature: L02
#[test]
fn stop_wakes_all_waiting_stages() {
    within_seconds(60, || {
        // Waits of a full queue, a timer, an async stage, a stream, a merge and a route.
        let ended = Arc::new(AtomicUsize::new(0));
        fn busy(
            ended: &Arc<AtomicUsize>,
            waits: bool,
        ) -> impl Fn() -> Result<Busy> + Send + Sync + use<> {
            let ended = Arc::clone(ended);
            move || Ok(Busy { waits, ended: Arc::clone(&ended) })
        }
        for round in 0..20 {
            ended.store(0, Ordering::SeqCst);
            let (emits, waits) = (busy(&ended, false), busy(&ended, true));
            let silent = PipelineBuilder::from_stream(stream::pending::<Result<i64>>());
            let endless = PipelineBuilder::from_iter(0..).map("endless", Ok);
            let merged = PipelineBuilder::merge([silent, endless], Arrival)
                .route(
                    "route",
                    |n| Ok((n % 4) as usize),
                    [
                        path(move |items: PipelineBuilder<i64>| {
                            items.stage(StageOptions::new("emits").dedicated(), emits)
                        }),
                        path(move |items: PipelineBuilder<i64>| {
                            items.stage(StageOptions::new("waits").dedicated(), waits)
                        }),
                        path(|items: PipelineBuilder<i64>| {
                            items.map_async("never", |n| async move {
                                std::future::pending::<()>().await;
                                Ok(n)
                            })
                        }),
                        path(|items| items),
                    ],
                )
                .threads(2);
            let merged = if round % 2 == 0 { merged.deterministic() } else { merged };
            let mut pipeline = merged.build().unwrap();
            pipeline.start().unwrap();
            std::thread::sleep(Duration::from_millis(round % 5));
            let begun = Instant::now();
            pipeline.stop();
            assert!(begun.elapsed() < SOON);
            assert!(ended.load(Ordering::SeqCst) <= 2);
            assert_eq!(pipeline.statistics().dropped_total, 0, "interrupted items are not dropped");
            assert!(pipeline.next().is_none());
        }
    });
}

#[test]
fn stop_wakes_a_consumer_in_another_thread() {
    within_seconds(60, || {
        let (gate, mut pipeline) = gated(10);
        let consumer =
            std::thread::spawn(move || pipeline.by_ref().map(Result::unwrap).sum::<i64>());
        std::thread::sleep(MOMENT);
        gate.open();
        assert_eq!(consumer.join().unwrap(), 45);
    });
}

// feature: L08
#[test]
fn a_pipeline_can_move_between_threads() {
    within_seconds(60, || {
        let mut pipeline =
            PipelineBuilder::new(numbers(100)).map("a", Ok).deterministic().build().unwrap();
        let mut items = Vec::new();
        while items.len() < 100 {
            let thread = std::thread::spawn(move || {
                let some: Vec<i64> = pipeline.by_ref().take(7).map(Result::unwrap).collect();
                (pipeline, some)
            });
            let (back, some) = thread.join().unwrap();
            pipeline = back;
            items.extend(some);
        }
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        let monitor = pipeline.monitor();
        std::thread::spawn(move || drop(pipeline)).join().unwrap();
        assert_eq!(monitor.statistics().consumer.items, 100, "the monitor outlives the pipeline");
    });
}

#[cfg(target_os = "linux")]
mod in_a_fork {
    use super::*;

    unsafe extern "C" {
        fn fork() -> i32;
        fn _exit(code: i32) -> !;
        fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        fn kill(process: i32, signal: i32) -> i32;
    }

    /// Runs `work` in a forked process; it must return 0.
    fn forked(work: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child calls only `work` and `_exit`, and no code of the test harness.
        let child = unsafe { fork() };
        assert!(child >= 0, "cannot fork");
        if child == 0 {
            let code = work();
            // SAFETY: `_exit` ends the process.
            unsafe { _exit(code) }
        }
        let mut status = -1;
        let deadline = Instant::now() + SOON;
        // SAFETY: `status` is valid during the call; 1 is WNOHANG.
        while unsafe { waitpid(child, &mut status, 1) } == 0 {
            if Instant::now() >= deadline {
                // SAFETY: the child was not reaped, so its process id is still valid.
                unsafe { kill(child, 9) };
                panic!("the forked process hangs");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        status
    }

    #[test]
    fn a_running_pipeline_returns_an_error_in_the_fork_and_can_be_dropped() {
        within_seconds(60, || {
            let mut pipeline = PipelineBuilder::new(numbers(1_000_000))
                .map("work", Ok)
                .map_async("wait", |n| async move { Ok(n) })
                .prefetch(1)
                .build()
                .unwrap();
            pipeline.next().unwrap().unwrap();
            // Items that were ready before the fork may still be delivered.
            let status = forked(|| {
                for _ in 0..100 {
                    match pipeline.next() {
                        Some(Ok(_)) => {}
                        Some(Err(error)) if error.kind() == ErrorKind::Stopped => {
                            let ended = pipeline.next().is_none();
                            pipeline.stop();
                            drop(pipeline);
                            return i32::from(!ended);
                        }
                        _ => return 2,
                    }
                }
                3
            });
            assert_eq!(status, 0);
        });
    }

    // promise: R8
    #[test]
    fn the_parents_pipeline_continues_and_a_new_one_runs_in_the_fork() {
        within_seconds(60, || {
            let build = || PipelineBuilder::new(numbers(100)).map("work", Ok).build().unwrap();
            let mut parents = build();
            parents.next().unwrap().unwrap();
            let childs = build();
            assert_eq!(forked(move || i32::from(childs.filter(Result::is_ok).count() != 100)), 0);
            assert_eq!(parents.filter(Result::is_ok).count(), 99);
        });
    }
}

// feature: L06
#[test]
fn a_stream_wakes_its_task_and_ends() {
    within_seconds(60, || {
        let (gate, pipeline) = gated(5);
        let mut items = pipeline.into_stream();
        let mut next = items.next();
        let mut cx = std::task::Context::from_waker(futures_util::task::noop_waker_ref());
        assert!(std::pin::Pin::new(&mut next).poll(&mut cx).is_pending());
        drop(next);
        let opener = std::thread::spawn(move || {
            std::thread::sleep(MOMENT);
            gate.open();
        });
        let all: Vec<i64> = block_on(items.by_ref().map(Result::unwrap).collect());
        assert_eq!(all, [0, 1, 2, 3, 4]);
        assert!(block_on(items.next()).is_none());
        opener.join().unwrap();
    });
}

// Background tasks and interval reports.

// feature: B11, C10, S08
#[test]
fn a_background_task_runs_and_ends_with_the_pipeline() {
    within_seconds(60, || {
        let (turns, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        struct Guard(Arc<AtomicBool>);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (counter, guard) = (Arc::clone(&turns), Guard(Arc::clone(&dropped)));
        let mut pipeline = PipelineBuilder::new(numbers(1000))
            .background("count", move |runtime| async move {
                let _guard = guard;
                loop {
                    counter.fetch_add(1, Ordering::SeqCst);
                    runtime.sleep(Duration::from_millis(1)).await;
                }
            })
            .background("short", |_| async { Ok(()) })
            .background("fails", |_| async { Err(Error::new(ErrorKind::User, "no disk")) })
            .background("panics", |_| async { panic!("no idea") })
            .build()
            .unwrap();
        assert_eq!(turns.load(Ordering::SeqCst), 0, "nothing runs before the start");
        let monitor = pipeline.monitor();
        assert!(pipeline.next().is_some());
        until("the task has run several times", || turns.load(Ordering::SeqCst) > 3);
        until("errors are listed", || monitor.background_errors().len() == 2);
        assert_eq!(
            pipeline.by_ref().map(Result::unwrap).count(),
            999,
            "errors of tasks do not end the pipeline"
        );
        drop(pipeline);
        assert!(dropped.load(Ordering::SeqCst));
        let mut errors: Vec<String> =
            monitor.background_errors().iter().map(ToString::to_string).collect();
        errors.sort();
        assert_eq!(errors, ["fails: no disk", "panics: panicked: no idea"]);
    });
}

// feature: S03
#[test]
fn a_panic_of_an_interval_listener_ends_the_pipeline_with_an_error() {
    within_seconds(60, || {
        let mut pipeline = PipelineBuilder::from_iter(0..)
            .map("work", |n: i64| {
                std::thread::sleep(Duration::from_micros(100));
                Ok(n)
            })
            .every(Duration::from_millis(5), |_| panic!("cannot listen"))
            .on_error(OnError::SKIP)
            .build()
            .unwrap();
        let error = pipeline.find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert_eq!(error.stage(), Some("interval listener"));
    });
}

// feature: S03
#[test]
fn the_last_interval_is_reported_at_the_end_of_any_run() {
    within_seconds(60, || {
        let heard = Arc::new(AtomicUsize::new(0));
        let items = Arc::clone(&heard);
        let builder =
            PipelineBuilder::new(numbers(7)).every(Duration::from_secs(3600), move |interval| {
                items.fetch_add(interval.consumer.items as usize, Ordering::SeqCst);
            });
        assert_eq!(delivered(builder).len(), 7);
        assert_eq!(heard.load(Ordering::SeqCst), 7);
    });
}

struct ShortSleep;
#[async_trait]
impl AsyncStage<i64> for ShortSleep {
    type Out = i64;
    async fn process(&self, n: i64, cx: &AsyncContext) -> Result<i64> {
        cx.runtime().sleep(Duration::from_micros(300)).await;
        Ok(n)
    }
}

// feature: B08, L09
#[test]
fn an_idle_consumer_pauses_the_pipeline_without_losses() {
    within_seconds(60, || {
        let mut pipeline = PipelineBuilder::new(numbers(2000))
            .async_stage(StageOptions::new("nap").queue(8), ShortSleep)
            .map(StageOptions::new("work").queue(8), Ok)
            .prefetch(3)
            .build()
            .unwrap();
        let mut items: Vec<i64> = pipeline.by_ref().take(10).map(Result::unwrap).collect();
        let made = |pipeline: &Pipeline<i64>| pipeline.statistics().stages[1].items;
        until("all queues are full", || {
            let now = made(&pipeline);
            std::thread::sleep(MOMENT);
            now == made(&pipeline)
        });
        let ahead = made(&pipeline);
        assert!(ahead < 200, "{ahead} items prefetched");
        items.extend(pipeline.map(Result::unwrap));
        items.sort_unstable();
        assert_eq!(items, (0..2000).collect::<Vec<_>>());
    });
}
