//! Automatic tuning of running pipelines, and static settings.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{numbers, within_seconds};
use spdl_core::async_trait;
use spdl_core::observe::{Hook, SettingChange, StageKind, TuningDecision};
use spdl_core::pipeline::{LearnedSettings, StaticSettings, StaticStage, Tune};
use spdl_core::{
    AsyncContext, AsyncStage, ErrorKind, PipelineBuilder, Result, StageOptions, Statistics,
};

/// A store that responds after a latency in microseconds.
#[derive(Clone)]
struct Store(Arc<AtomicU64>);

#[async_trait]
impl AsyncStage<i64> for Store {
    type Out = i64;

    async fn process(&self, n: i64, cx: &AsyncContext) -> Result<i64> {
        cx.runtime().sleep(Duration::from_micros(self.0.load(Ordering::Relaxed))).await;
        Ok(n)
    }
}

/// Reads from a store with a window of 4, for a consumer of about 1,000 items per second.
fn stored(latency: &Arc<AtomicU64>) -> PipelineBuilder<i64> {
    let fetch = StageOptions::new("fetch").concurrency(4);
    PipelineBuilder::new(numbers(1_000_000))
        .async_stage(fetch, Store(Arc::clone(latency)))
        .deterministic()
}

/// Takes items for some time, with a step of 1 ms. Returns items per second, and checks the order.
fn consume(items: &mut impl Iterator<Item = Result<i64>>, first: &mut i64, seconds: f64) -> f64 {
    let (started, before) = (Instant::now(), *first);
    while started.elapsed().as_secs_f64() < seconds {
        assert_eq!(items.next().unwrap().unwrap(), *first);
        *first += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    (*first - before) as f64 / started.elapsed().as_secs_f64()
}

#[test]
fn a_window_grows_and_follows_the_latency_of_a_store() {
    within_seconds(120, || {
        let latency = Arc::new(AtomicU64::new(5_000));
        let mut pipeline = stored(&latency).tune(Tune::automatic()).build().unwrap();
        let window =
            |pipeline: &spdl_core::Pipeline<i64>| pipeline.statistics().stages[1].concurrency;
        let mut next = 0;
        consume(&mut pipeline, &mut next, 2.5);
        let before = window(&pipeline);
        latency.store(80_000, Ordering::Relaxed);
        consume(&mut pipeline, &mut next, 10.0);
        let after = window(&pipeline);
        // 1,000 items per second of 80 ms need 80 in flight. A busy machine needs fewer.
        assert!(after >= 32 && after > before, "{before}, {after}");
        let decisions = pipeline.statistics().decisions;
        let raised = |it: &&TuningDecision| {
            it.kept == Some(true)
                && matches!(&it.change, SettingChange::Concurrency { stage, .. } if &**stage == "fetch")
        };
        let raised = decisions.iter().find(raised).unwrap();
        assert!(raised.rate_after.unwrap() > raised.rate_before, "{raised}");
        assert!(raised.to() > raised.from && raised.reason.contains("in flight"), "{raised}");
    });
}

#[test]
fn threads_grow_for_functions_that_wait_and_stages_follow() {
    #[derive(Debug, Default)]
    struct Decisions(AtomicU64);
    impl Hook for Decisions {
        fn wants_items(&self) -> bool {
            false
        }
        fn tuned(&self, _pipeline: u64, decision: &TuningDecision) {
            self.0.fetch_add(1, Ordering::Relaxed);
            assert!(decision.rate_before > 0.0);
        }
    }
    within_seconds(120, || {
        let wait = |n: i64| {
            std::thread::sleep(Duration::from_millis(5));
            Ok(n)
        };
        let hook = Arc::new(Decisions::default());
        let mut pipeline = PipelineBuilder::new(numbers(1_000_000))
            .map("wait", wait)
            .map(StageOptions::new("one").concurrency(1), Ok)
            .threads(2)
            .deterministic()
            .hook(Arc::clone(&hook))
            .tune(Tune::automatic())
            .build()
            .unwrap();
        let is_tuned = |statistics: &Statistics| {
            let kept = statistics.decisions.iter().any(|it| it.kept == Some(true));
            let follows = statistics.stages[1].concurrency == statistics.threads;
            // A trial and its end.
            let reported = hook.0.load(Ordering::Relaxed) >= 2;
            statistics.threads >= 4 && kept && follows && reported
        };
        // Two trials take 4 s. On a busy machine, the first trials may measure no gain.
        let (started, mut next) = (Instant::now(), 0);
        let mut statistics = pipeline.statistics();
        while !is_tuned(&statistics) && started.elapsed() < Duration::from_secs(60) {
            consume(&mut pipeline, &mut next, 0.2);
            statistics = pipeline.statistics();
        }
        assert!(is_tuned(&statistics), "{statistics} {:#?}", statistics.decisions);
        assert_eq!(statistics.stages[2].concurrency, 1, "a concurrency of 1 is kept");
    });
}

#[test]
fn threads_grow_only_for_functions_that_wait() {
    within_seconds(120, || {
        // Runs until there are four threads, for at most `seconds`.
        let run = |seconds: u64, function: fn(i64) -> Result<i64>| {
            let mut pipeline = PipelineBuilder::new(numbers(1_000_000))
                .map("work", function)
                .map(StageOptions::new("other").concurrency(2), Ok)
                .threads(1)
                .deterministic()
                .tune(Tune::waiting())
                .build()
                .unwrap();
            let (started, mut next) = (Instant::now(), 0);
            while started.elapsed() < Duration::from_secs(seconds)
                && pipeline.statistics().threads < 4
            {
                consume(&mut pipeline, &mut next, 0.2);
            }
            pipeline.statistics()
        };
        // On a busy machine, the first trials may measure no gain.
        let waiting = run(80, |n| {
            std::thread::sleep(Duration::from_millis(5));
            Ok(n)
        });
        assert!(waiting.threads >= 4, "{waiting} {:#?}", waiting.decisions);
        assert_eq!(waiting.stages[2].concurrency, 2, "a set concurrency is kept");
        let is_threads = |it: &TuningDecision| it.setting().0 == "threads";
        assert!(waiting.decisions.iter().all(is_threads), "{:#?}", waiting.decisions);
        let computing = run(4, |n| {
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(2) {}
            Ok(n)
        });
        assert_eq!((computing.threads, computing.decisions.len()), (1, 0), "{computing}");
    });
}

#[test]
fn a_consumer_that_limits_changes_nothing() {
    within_seconds(60, || {
        let latency = Arc::new(AtomicU64::new(100));
        let mut pipeline = stored(&latency).tune(Tune::automatic()).build().unwrap();
        let mut next = 0;
        consume(&mut pipeline, &mut next, 2.5);
        assert_eq!(pipeline.statistics().decisions, []);
    });
}

#[test]
fn static_settings_are_restored_and_do_not_adapt() {
    within_seconds(60, || {
        let build = || {
            PipelineBuilder::new(numbers(3000))
                .map_async(StageOptions::new("fetch").identity("first"), |n| async move { Ok(n) })
                .map("work", Ok)
                .batch("batch", 10, false)
                .deterministic()
        };
        let pipeline = build().threads(2).build().unwrap();
        let control = pipeline.control();
        control.set_threads(3).unwrap();
        control.set_concurrency("fetch", 20).unwrap();
        control.set_queue("work", 7).unwrap();
        control.set_queue("batch", 5).unwrap();
        assert_eq!(control.set_queue("other", 5).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let settings = control.freeze();
        assert_eq!(settings.threads, 3);
        let stage = |name: &str| settings.stages[name];
        assert_eq!(stage("first"), StaticStage { concurrency: Some(20), queue: 40 });
        assert_eq!(stage("work"), StaticStage { concurrency: Some(3), queue: 7 });
        assert_eq!(stage("batch"), StaticStage { concurrency: None, queue: 5 });

        let again = build().tune(Tune::fixed(settings.clone())).build().unwrap();
        assert_eq!(again.control().freeze(), settings);
        let monitor = again.monitor();
        let plain: Vec<_> = build().build().unwrap().map(Result::unwrap).collect();
        assert_eq!(again.map(Result::unwrap).collect::<Vec<_>>(), plain);
        let statistics = monitor.statistics();
        assert_eq!((statistics.threads, statistics.stages[1].concurrency), (3, 20));
        assert_eq!(
            (statistics.queues[3].capacity, statistics.stages[1].kind),
            (5, StageKind::Async)
        );

        let unknown = StaticSettings {
            stages: [("other".to_owned(), StaticStage::default())].into(),
            ..settings.clone()
        };
        let error = build().tune(Tune::fixed(unknown)).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.to_string().contains("no stage \"other\"; stages: first, work, batch"),
            "{error}"
        );
    });
}

#[test]
fn a_small_queue_does_not_limit_the_concurrency_of_static_settings() {
    let build = || PipelineBuilder::new(numbers(10)).map("work", Ok).batch("batch", 2, false);
    let work = StaticStage { concurrency: Some(6), queue: 2 };
    let stages = [("work".to_owned(), work)].into();
    let settings = StaticSettings { threads: 6, stages };
    let pipeline = build().tune(Tune::fixed(settings)).build().unwrap();
    let restored = pipeline.control().freeze().stages["work"];
    assert_eq!(restored, StaticStage { concurrency: Some(6), queue: 6 });
}

#[test]
fn the_next_run_begins_with_the_window_of_the_last_one() {
    within_seconds(120, || {
        let run = |learned: &LearnedSettings| {
            let store = Store(Arc::new(AtomicU64::new(20_000)));
            let mut pipeline = PipelineBuilder::new(numbers(600))
                .async_stage("fetch", store)
                .deterministic()
                .learned(learned)
                .build()
                .unwrap();
            let first = pipeline.next().unwrap().unwrap();
            let window = pipeline.statistics().stages[1].concurrency;
            let items = std::iter::once(first).chain(pipeline.map(Result::unwrap));
            (window, items.collect::<Vec<_>>())
        };
        let learned = LearnedSettings::default();
        let (first, items) = run(&learned);
        let (second, again) = run(&learned);
        assert!(first == 16 && second >= 36, "{first}, {second}");
        assert_eq!(items, again);
        assert_eq!(run(&LearnedSettings::default()).0, 16);
    });
}

#[test]
fn the_next_run_begins_with_the_threads_of_the_last_one() {
    within_seconds(120, || {
        let run = |learned: &LearnedSettings| {
            let wait = |n: i64| {
                std::thread::sleep(Duration::from_millis(5));
                Ok(n)
            };
            PipelineBuilder::new(numbers(1_000_000))
                .map("wait", wait)
                .threads(2)
                .deterministic()
                .tune(Tune::automatic())
                .learned(learned)
                .build()
                .unwrap()
        };
        let mut learned = LearnedSettings::default();
        let mut threads = 2;
        for number in 1..=40 {
            let (mut pipeline, mut next) = (run(&learned), 0);
            threads = pipeline.statistics().threads;
            if threads >= 4 {
                break;
            }
            consume(&mut pipeline, &mut next, 1.8);
            // On a busy machine, trials may measure no gain. Then the tuner pauses: begin anew.
            if number % 8 == 0 {
                learned = LearnedSettings::default();
            }
        }
        assert!(threads >= 4, "{threads}");
    });
}

#[cfg(feature = "serde")]
#[test]
fn static_settings_are_a_small_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.json");
    let settings = PipelineBuilder::new(numbers(1)).map("work", Ok).batch("batch", 2, false);
    let settings = settings.threads(2).build().unwrap().control().freeze();
    settings.save(&path).unwrap();
    assert_eq!(StaticSettings::load(&path).unwrap(), settings);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.len() < 200 && !text.contains("null"), "{text}");
    std::fs::write(&path, text.replace("threads", "thread")).unwrap();
    let error = StaticSettings::load(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("settings.json"), "{error}");
    let missing = StaticSettings::load(folder.path().join("none")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}
