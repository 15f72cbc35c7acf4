//! Hooks of whole pipelines: their calls, errors and panics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{WriteNumber, numbers, within_seconds};
use spdl_core::observe::{ItemInfo, ItemOutcome, StageInfo, StageKind};
use spdl_core::stage::stage_fn;
use spdl_core::{
    AsyncContext, AsyncStage, BatchLayout, DType, Error, ErrorKind, Field, Hook, OnError,
    PipelineBuilder, Result, async_trait,
};

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
struct Calls {
    started: u64,
    ended: u64,
    before: u64,
    ok: u64,
    failed: u64,
    stopped: u64,
}

/// Counts its calls for a stage; fails or panics in one method if configured.
#[derive(Debug, Default)]
struct Counter {
    stage: &'static str,
    calls: Mutex<Calls>,
    refuses: Option<&'static str>,
    panics: Option<&'static str>,
}

impl Counter {
    fn of(stage: &'static str) -> Arc<Self> {
        Arc::new(Counter { stage, ..Counter::default() })
    }

    fn calls(&self) -> Calls {
        *self.calls.lock().expect("no thread panics while it holds the lock")
    }

    fn note(&self, stage: &StageInfo, method: &str, count: impl Fn(&mut Calls)) -> Result<()> {
        if *stage.name != *self.stage {
            return Ok(());
        }
        count(&mut self.calls.lock().expect("no thread panics while it holds the lock"));
        assert!(self.panics != Some(method), "in {method}");
        match self.refuses {
            Some(refused) if refused == method => Err(Error::new(ErrorKind::User, "refused")),
            _ => Ok(()),
        }
    }
}

impl Hook for Counter {
    fn stage_started(&self, stage: &StageInfo) -> Result<()> {
        self.note(stage, "started", |calls| calls.started += 1)
    }

    fn stage_ended(&self, stage: &StageInfo) {
        self.note(stage, "ended", |calls| calls.ended += 1).expect("no error at an end");
    }

    fn before_item(&self, stage: &StageInfo, _: &ItemInfo<'_>) -> Result<()> {
        self.note(stage, "before", |calls| calls.before += 1)
    }

    fn after_item(&self, stage: &StageInfo, _: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
        let count = |calls: &mut Calls| match outcome.result.map_err(Error::kind) {
            Ok(()) => calls.ok += 1,
            Err(ErrorKind::Stopped) => calls.stopped += 1,
            Err(_) => calls.failed += 1,
        };
        self.note(stage, "after", count).expect("no error after an item");
    }
}

/// Sleeps for a short time, and forever for number 1000. Number 7 fails.
struct Nap;
#[async_trait]
impl AsyncStage<i64> for Nap {
    type Out = i64;
    async fn process(&self, n: i64, cx: &AsyncContext) -> Result<i64> {
        let naps = if n == 1000 { Duration::from_secs(3600) } else { Duration::from_micros(50) };
        cx.runtime().sleep(naps).await;
        if n == 7 { Err(crate::common::bad_number(n)) } else { Ok(n) }
    }
}

fn compute(n: i64) -> Result<i64> {
    assert!(n != 9, "panic of the test at {n}");
    if n == 8 { Err(crate::common::bad_number(n)) } else { Ok(n) }
}

fn number_layout() -> BatchLayout {
    let fields = [Field::new("number", DType::I64, &[]), Field::new("noise", DType::F32, &[])];
    BatchLayout::new(8, fields)
}

// feature: S01
#[test]
fn each_kind_of_stage_calls_hooks_for_itself_and_each_item() {
    within_seconds(20, || {
        let names = ["nap", "compute", "write"];
        let hooks = names.map(Counter::of);
        let mut builder = PipelineBuilder::new(numbers(100))
            .async_stage("nap", Nap)
            .stage("compute", || Ok(stage_fn(compute)))
            .fill("write", number_layout(), || {
                Ok(WriteNumber { fails: |n| n == 10, panics: |n| n == 11 })
            })
            .on_error(OnError::SKIP);
        for hook in &hooks {
            builder = builder.hook(Arc::clone(hook) as Arc<dyn Hook>);
        }
        let delivered: usize = builder.build().unwrap().map(|batch| batch.unwrap().len()).sum();
        assert_eq!(delivered, 95);
        let [nap, compute, write] = hooks.map(|hook| hook.calls());
        let life = Calls { started: 1, ended: 1, ..Calls::default() };
        assert_eq!(nap, Calls { before: 100, ok: 99, failed: 1, ..life });
        assert_eq!(compute, Calls { before: 99, ok: 97, failed: 2, ..life });
        assert_eq!(write, Calls { before: 97, ok: 95, failed: 2, ..life });
    });
}

// feature: S01
#[test]
fn a_dropped_pipeline_calls_the_hooks_for_every_end() {
    within_seconds(20, || {
        let nap = Counter::of("nap");
        let compute = Counter::of("compute");
        let source = spdl_core::DatasetSource::new((990..1100).collect::<Vec<i64>>());
        let mut pipeline = PipelineBuilder::new(source)
            .async_stage("nap", Nap)
            .stage("compute", || Ok(stage_fn(compute_slowly)))
            .hook(Arc::clone(&nap) as Arc<dyn Hook>)
            .hook(Arc::clone(&compute) as Arc<dyn Hook>)
            .build()
            .unwrap();
        for _ in 0..20 {
            pipeline.next().unwrap().unwrap();
        }
        drop(pipeline);
        for calls in [nap.calls(), compute.calls()] {
            assert_eq!((calls.started, calls.ended), (1, 1), "{calls:?}");
            assert_eq!(calls.before, calls.ok + calls.failed + calls.stopped, "{calls:?}");
        }
        assert!(nap.calls().stopped >= 1, "{:?}", nap.calls());
    });
}

fn compute_slowly(n: i64) -> Result<i64> {
    std::thread::sleep(Duration::from_micros(200));
    Ok(n)
}

// feature: F10
#[test]
fn an_item_fails_if_a_hook_returns_an_error() {
    within_seconds(20, || {
        for kind in ["nap", "compute"] {
            let hook = Counter { stage: kind, refuses: Some("before"), ..Counter::default() };
            let mut pipeline = PipelineBuilder::new(numbers(5))
                .async_stage("nap", Nap)
                .stage("compute", || Ok(stage_fn(compute)))
                .on_error(OnError::SKIP)
                .allow_total_loss()
                .hook(Arc::new(hook))
                .build()
                .unwrap();
            assert_eq!(pipeline.by_ref().count(), 0);
            let dropped = pipeline.statistics().dropped;
            assert_eq!(dropped.len(), 5);
            assert!(dropped.iter().all(|dropped| *dropped.stage == *kind));
        }
    });
}

// promise: R24
// feature: F10
#[test]
fn an_error_or_panic_of_a_hook_at_the_start_of_a_stage_ends_the_pipeline() {
    within_seconds(20, || {
        for stage in ["nap", "compute", "write"] {
            for (refuses, panics, kind) in [
                (Some("started"), None, ErrorKind::User),
                (None, Some("started"), ErrorKind::Panicked),
            ] {
                let hook = Counter { stage, refuses, panics, ..Counter::default() };
                let pipeline = PipelineBuilder::new(numbers(5))
                    .async_stage("nap", Nap)
                    .stage("compute", || Ok(stage_fn(compute)))
                    .fill("write", number_layout(), || {
                        Ok(WriteNumber { fails: |_| false, panics: |_| false })
                    })
                    .hook(Arc::new(hook))
                    .build()
                    .unwrap();
                let results: Vec<_> = pipeline.collect();
                assert_eq!(results.len(), 1, "{stage}: {results:?}");
                let error = results[0].as_ref().unwrap_err();
                assert_eq!((error.kind(), error.stage()), (kind, Some(stage)));
            }
        }
    });
}

// promise: R24
// feature: F10
#[test]
fn a_panic_of_a_hook_at_an_item_is_an_error_in_every_kind_of_stage() {
    within_seconds(30, || {
        for stage in ["nap", "compute", "write"] {
            for method in ["before", "after"] {
                let hook = Counter { stage, panics: Some(method), ..Counter::default() };
                let pipeline = PipelineBuilder::new(numbers(5))
                    .async_stage("nap", Nap)
                    .stage("compute", || Ok(stage_fn(compute)))
                    .fill("write", number_layout(), || {
                        Ok(WriteNumber { fails: |_| false, panics: |_| false })
                    })
                    .hook(Arc::new(hook))
                    .build()
                    .unwrap();
                let error = pipeline.filter_map(Result::err).next().unwrap();
                assert_eq!((error.kind(), error.stage()), (ErrorKind::Panicked, Some(stage)));
                assert!(error.message().contains("a hook panicked: in "), "{error}");
            }
        }
    });
}

// promise: R24
// feature: F10
#[test]
fn a_panic_of_a_hook_at_the_end_of_a_stage_is_an_error_after_all_items() {
    within_seconds(20, || {
        for stage in ["nap", "compute"] {
            let hook = Counter { stage, panics: Some("ended"), ..Counter::default() };
            let pipeline = PipelineBuilder::new(numbers(5))
                .async_stage("nap", Nap)
                .stage("compute", || Ok(stage_fn(compute)))
                .hook(Arc::new(hook))
                .build()
                .unwrap();
            let error = pipeline.filter_map(Result::err).next().unwrap();
            assert_eq!((error.kind(), error.stage()), (ErrorKind::Panicked, Some(stage)));
        }
    });
}

// feature: S02, S06
#[test]
fn stages_are_identified_by_pipeline_position_and_kind() {
    #[derive(Debug, Default)]
    struct Names(Mutex<Vec<StageInfo>>);
    impl Hook for Names {
        fn stage_started(&self, stage: &StageInfo) -> Result<()> {
            self.0.lock().expect("pushing does not panic").push(stage.clone());
            Ok(())
        }
    }
    within_seconds(20, || {
        let names = Arc::new(Names::default());
        let mut pipelines = Vec::new();
        for _ in 0..2 {
            let mut pipeline = PipelineBuilder::new(numbers(5))
                .async_stage(spdl_core::StageOptions::new("nap").concurrency(3), Nap)
                .stage("compute", || Ok(stage_fn(compute)))
                .threads(2)
                .hook(Arc::clone(&names) as Arc<dyn Hook>)
                .build()
                .unwrap();
            assert_eq!(pipeline.by_ref().count(), 5);
            pipelines.push(pipeline.statistics().pipeline);
        }
        assert_ne!(pipelines[0], pipelines[1]);
        let stages = names.0.lock().unwrap();
        for number in pipelines {
            let mut mine: Vec<String> = stages
                .iter()
                .filter(|stage| stage.pipeline == number && stage.kind != StageKind::Source)
                .map(ToString::to_string)
                .collect();
            mine.sort();
            assert_eq!(mine, [format!("{number}:1:nap[3]"), format!("{number}:2:compute[2]")]);
        }
    });
}

#[test]
fn intervals_contain_the_external_times_of_the_interval() {
    within_seconds(20, || {
        // Each snapshot finds 100 further requests for the GIL, half of which waited.
        let requests = AtomicU64::new(0);
        let times = move || {
            let mut times = spdl_core::observe::ExternalTimes::default();
            let mut gil = spdl_core::observe::GilRequests::default();
            gil.all = requests.fetch_add(100, Ordering::Relaxed) + 100;
            gil.contended = gil.all / 2;
            times.gil = Some(gil);
            times
        };
        let (sender, intervals) = std::sync::mpsc::channel();
        let pipeline = PipelineBuilder::new(numbers(50))
            .map(spdl_core::StageOptions::new("wait").holds_gil(true), |n| {
                std::thread::sleep(Duration::from_millis(2));
                Ok(n)
            })
            .external_times(times)
            .every(Duration::from_millis(5), move |it| drop(sender.send(it.clone())))
            .build()
            .unwrap();
        assert_eq!(pipeline.count(), 50);
        let intervals: Vec<spdl_core::observe::Interval> = intervals.iter().collect();
        assert!(intervals.len() > 1);
        for interval in intervals {
            assert_eq!(interval.gil.unwrap().contended, 0.5);
            assert!(interval.stages[1].holds_gil && !interval.stages[0].holds_gil);
        }
    });
}

// promise: CORE2
// feature: S03
#[test]
fn intervals_of_a_running_pipeline_add_up_to_its_statistics() {
    within_seconds(20, || {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let parts = Arc::new(Mutex::new(Vec::<spdl_core::observe::Interval>::new()));
        let heard = Arc::clone(&parts);
        let mut pipeline = PipelineBuilder::new(numbers(300))
            .every(Duration::from_millis(5), move |interval| {
                heard.lock().unwrap().push(interval.clone());
            })
            .async_stage("nap", Nap)
            .stage("compute", move || {
                let counted = Arc::clone(&counted);
                Ok(stage_fn(move |n| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    compute(n)
                }))
            })
            .on_error(OnError::SKIP)
            .build()
            .unwrap();
        for item in pipeline.by_ref() {
            item.unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
        let whole = pipeline.statistics();
        drop(pipeline);
        let parts = parts.lock().unwrap();
        assert!(parts.len() > 2, "{}", parts.len());
        assert_eq!(parts.iter().map(|part| part.dropped).sum::<u64>(), 3);
        assert_eq!(parts.iter().map(|part| part.length).sum::<Duration>(), whole.elapsed);
        assert_eq!(parts.iter().map(|part| part.consumer.items).sum::<u64>(), 297);
        for (at, stage) in whole.stages.iter().enumerate() {
            let sum = |get: fn(&spdl_core::observe::StageStatistics) -> u64| {
                parts.iter().map(|part| get(&part.stages[at])).sum::<u64>()
            };
            assert_eq!(sum(|stage| stage.items), stage.items);
            assert_eq!(sum(|stage| stage.failures), stage.failures);
            assert_eq!(sum(|stage| stage.items_out), stage.items_out);
        }
        assert_eq!((whole.stages[1].items_out, whole.stages[2].items_out), (299, 297));
        for (at, queue) in whole.queues.iter().enumerate() {
            assert_eq!(parts.iter().map(|part| part.queues[at].items).sum::<u64>(), queue.items);
            assert!((0.0..=1.0).contains(&queue.occupancy));
        }
    });
}

// feature: S05
#[test]
fn each_queue_reports_the_waits_of_puts_and_gets() {
    within_seconds(20, || {
        let slow_consumer = {
            let mut pipeline = PipelineBuilder::new(numbers(12)).prefetch(1).build().unwrap();
            for item in pipeline.by_ref() {
                item.unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            pipeline.statistics().queues[0].clone()
        };
        assert!(slow_consumer.wait_per_put.p50 >= Duration::from_millis(10), "{slow_consumer:?}");
        assert!(slow_consumer.occupancy > 0.5, "{slow_consumer:?}");
        let slow_stage = {
            let mut pipeline = PipelineBuilder::new(numbers(12))
                .stage("slow", || {
                    Ok(stage_fn(|n: i64| {
                        std::thread::sleep(Duration::from_millis(20));
                        Ok(n)
                    }))
                })
                .threads(1)
                .build()
                .unwrap();
            assert_eq!(pipeline.by_ref().count(), 12);
            pipeline.statistics().queues[1].clone()
        };
        assert!(slow_stage.wait_per_get.p50 >= Duration::from_millis(10), "{slow_stage:?}");
        assert!(slow_stage.occupancy < 0.5, "{slow_stage:?}");
    });
}
