//! Failures: what is delivered and reported, and what ends the pipeline.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{WriteNumber, bad_number, before_error, layout, numbers, within_seconds};
use async_trait::async_trait;
use spdl_core::runtime::ThreadRuntime;
use spdl_core::source::Cursor;
use spdl_core::stage::stage_fn;
use spdl_core::{
    AsyncContext, AsyncStage, BatchLayout, BoxStream, DType, Error, ErrorKind, Field, Fill,
    FillContext, OnError, PipelineBuilder, Result, SampleId, SlotMut, Source, Stage, StageContext,
    StageOptions,
};

fn picky(bad: fn(i64) -> bool) -> impl Fn() -> Result<spdl_core::stage::StageFn<PickyFn>> {
    move || {
        Ok(stage_fn(Box::new(move |n| if bad(n) { Err(bad_number(n)) } else { Ok(n) }) as PickyFn))
    }
}
type PickyFn = Box<dyn FnMut(i64) -> Result<i64> + Send>;

#[test]
fn raise_ends_the_pipeline_with_the_error_and_its_stage() {
    within_seconds(60, || {
        let pipeline = PipelineBuilder::new(numbers(1_000_000))
            .stage("picky", picky(|n| n == 100))
            .deterministic()
            .build()
            .unwrap();
        let (items, error) = before_error(pipeline);
        assert_eq!(items, (0..items.len() as i64).collect::<Vec<_>>());
        assert!(items.len() <= 100);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.to_string(), "picky: 100 is bad");
    });
}

// promise: R9
// feature: F01
#[test]
fn skip_drops_counts_and_lists() {
    within_seconds(60, || {
        let pipeline = PipelineBuilder::new(numbers(1000))
            .stage(StageOptions::new("picky").on_error(OnError::SKIP), picky(|n| n % 10 == 3))
            .deterministic()
            .build()
            .unwrap();
        let monitor = pipeline.monitor();
        let items: Result<Vec<i64>> = pipeline.collect();
        assert_eq!(items.unwrap(), (0..1000).filter(|n| n % 10 != 3).collect::<Vec<_>>());
        let statistics = monitor.statistics();
        assert_eq!(statistics.dropped_total, 100);
        let indices: Vec<u64> = statistics.dropped.iter().map(|dropped| dropped.id.index).collect();
        assert_eq!(indices, (0..100).map(|n| n * 10 + 3).collect::<Vec<_>>(), "sorted");
        assert_eq!(statistics.dropped[0].reason, "3 is bad");
        assert_eq!(statistics.stages[1].failures, 100);
        assert_eq!(statistics.stages[1].items, 1000);
    });
}

// feature: F02
#[test]
fn one_failure_above_the_budget_ends_the_pipeline() {
    within_seconds(60, || {
        let run = |budget| {
            let on_error = OnError::Skip { at_most: Some(budget) };
            let pipeline = PipelineBuilder::new(numbers(100))
                .stage(StageOptions::new("picky").on_error(on_error), picky(|n| n % 10 == 3))
                .threads(1)
                .build()
                .unwrap();
            pipeline.collect::<Result<Vec<_>>>()
        };
        assert_eq!(run(10).unwrap().len(), 90);
        let error = run(9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooManyFailures);
        assert!(error.to_string().contains("more than 9 items failed"), "{error}");
        assert_eq!(error.failed_item().unwrap().kind(), ErrorKind::Corrupt);
    });
}

// promise: R24
#[test]
fn after_a_panic_the_stage_continues_with_a_new_instance() {
    within_seconds(60, || {
        let made = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&made);
        let pipeline = PipelineBuilder::new(numbers(100))
            .stage("fragile", move || {
                counter.fetch_add(1, Ordering::Relaxed);
                Ok(stage_fn(|n: i64| {
                    assert!(n % 25 != 7, "cannot process {n}");
                    Ok(n)
                }))
            })
            .threads(1)
            .on_error(OnError::SKIP)
            .build()
            .unwrap();
        let monitor = pipeline.monitor();
        assert_eq!(pipeline.collect::<Result<Vec<_>>>().unwrap().len(), 96);
        let dropped = monitor.statistics().dropped;
        assert_eq!(dropped.len(), 4);
        assert_eq!(dropped[0].kind, ErrorKind::Panicked);
        assert_eq!(dropped[0].reason, "panicked: cannot process 7");
        assert_eq!(made.load(Ordering::Relaxed), 5);
    });
}

// promise: R24
#[test]
fn a_slot_is_reused_after_a_panic_in_a_fill() {
    within_seconds(60, || {
        let pipeline = PipelineBuilder::new(numbers(64))
            .fill("write", layout(16), || Ok(WriteNumber { fails: |_| false, panics: |n| n == 20 }))
            .on_error(OnError::SKIP)
            .build()
            .unwrap();
        let batches: Vec<Vec<i64>> = pipeline
            .map(|batch| batch.unwrap().array("number").unwrap().as_slice().unwrap().to_vec())
            .collect();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 16, 15]);
        assert_eq!(batches.concat(), (0..64).filter(|&n| n != 20).collect::<Vec<_>>());
    });
}

// feature: F11
#[test]
fn a_failing_constructor_is_an_ordinary_error() {
    within_seconds(60, || {
        let no_stage = || -> Result<spdl_core::stage::StageFn<PickyFn>> {
            Err(Error::new(ErrorKind::Unsupported, "no such device"))
        };
        let pipeline = PipelineBuilder::new(numbers(10)).stage("device", no_stage).build().unwrap();
        let (items, error) = before_error(pipeline);
        assert!(items.is_empty());
        assert_eq!(error.to_string(), "device: no such device");

        // The first instance of a fill is made immediately.
        let panics = || -> Result<WriteNumber> { panic!("no scratch") };
        let error =
            PipelineBuilder::new(numbers(10)).fill("write", layout(4), panics).build().unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Panicked, Some("write")));
    });
}

/// Supports only batches of two fields.
struct WriteTwo(WriteNumber);

impl Fill<i64> for WriteTwo {
    fn fill(&mut self, item: i64, slot: SlotMut<'_>, cx: &mut FillContext<'_>) -> Result<()> {
        self.0.fill(item, slot, cx)
    }

    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        match fields {
            [_, _] => Ok(()),
            _ => Err(Error::new(ErrorKind::InvalidArgument, "two fields were expected")),
        }
    }
}

#[test]
fn a_mismatched_layout_is_refused_when_the_pipeline_is_built() {
    let made = Arc::new(AtomicUsize::new(0));
    let build = |fields: &[Field]| {
        let made = Arc::clone(&made);
        PipelineBuilder::new(numbers(10))
            .fill("write", BatchLayout::new(4, fields.to_vec()), move || {
                made.fetch_add(1, Ordering::Relaxed);
                Ok(WriteTwo(WriteNumber { fails: |_| false, panics: |_| false }))
            })
            .threads(1)
            .build()
    };
    let field = |name| Field::new(name, DType::I64, &[]);
    let error = build(&[field("a")]).unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("write")));
    assert_eq!(error.to_string(), "write: two fields were expected");
    made.store(0, Ordering::Relaxed);
    let batches = build(layout(4).fields()).unwrap();
    assert_eq!(batches.map(|batch| batch.unwrap().len()).sum::<usize>(), 10);
    // The instance that was checked is also used.
    assert_eq!(made.load(Ordering::Relaxed), 1);
}

#[test]
fn a_thread_bound_instance_is_made_and_checked_on_its_thread() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let build = |layout| {
        let threads = Arc::clone(&threads);
        PipelineBuilder::new(numbers(10)).fill(
            StageOptions::new("write").dedicated(),
            layout,
            move || {
                threads.lock().unwrap().push(std::thread::current().id());
                Ok(WriteTwo(WriteNumber { fails: |_| false, panics: |_| false }))
            },
        )
    };
    assert_eq!(
        build(layout(4)).build().unwrap().map(|batch| batch.unwrap().len()).sum::<usize>(),
        10
    );
    assert!(!threads.lock().unwrap().contains(&std::thread::current().id()));
    let wrong = BatchLayout::new(4, [Field::new("a", DType::I64, &[])]);
    let error = build(wrong).build().unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "write: two fields were expected");
}

/// Yields numbers with keys; fails or panics at one of them.
#[derive(Debug)]
struct Faulty {
    error_at: Option<i64>,
    panic_at: Option<i64>,
}

impl Source for Faulty {
    type Item = i64;
    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<i64>>> {
        if at.epoch == 9 {
            return Err(Error::new(ErrorKind::NotFound, "no epoch 9"));
        }
        use futures_util::{StreamExt, stream};
        let (error_at, panic_at) = (self.error_at, self.panic_at);
        Ok(stream::iter(0..20)
            .map(move |n| {
                assert_ne!(panic_at, Some(n), "panic of the source");
                if error_at == Some(n) { Err(bad_number(n)) } else { Ok(n) }
            })
            .boxed())
    }
    fn key(&self, item: &i64) -> Option<Arc<str>> {
        Some(format!("number-{item}").into())
    }
}

// feature: F06
#[test]
fn the_failure_policy_applies_to_sources() {
    within_seconds(60, || {
        let pass = |n| Ok(n);
        let build = |source: Faulty, on_error| {
            let pipeline = PipelineBuilder::new(source).stage("pass", move || Ok(stage_fn(pass)));
            pipeline.on_error(on_error).deterministic().build().unwrap()
        };
        let faulty = || Faulty { error_at: Some(5), panic_at: None };
        let (_, error) = before_error(build(faulty(), OnError::Raise));
        assert_eq!(error.to_string(), "source: 5 is bad");
        let items: Result<Vec<i64>> = build(faulty(), OnError::SKIP).collect();
        assert_eq!(items.unwrap(), (0..20).filter(|&n| n != 5).collect::<Vec<_>>());
        let panics = Faulty { error_at: None, panic_at: Some(7) };
        let (_, error) = before_error(build(panics, OnError::SKIP));
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Panicked, Some("source")));
        let no_epoch =
            PipelineBuilder::new(Faulty { error_at: None, panic_at: None }).epochs(8..10);
        let (items, error) = before_error(no_epoch.build().unwrap());
        assert_eq!(items.len(), 20, "the epoch before the failure is delivered");
        assert_eq!(error.to_string(), "source: no epoch 9");
    });
}

// promise: R10
// feature: F07
#[test]
fn errors_and_drops_name_the_key() {
    within_seconds(60, || {
        let build = |on_error| {
            PipelineBuilder::new(Faulty { error_at: None, panic_at: None })
                .stage("picky", picky(|n| n == 3))
                .on_error(on_error)
                .build()
                .unwrap()
        };
        let (_, error) = before_error(build(OnError::Raise));
        assert_eq!(error.to_string(), "picky: number-3: 3 is bad");
        let mut pipeline = build(OnError::SKIP);
        pipeline.by_ref().for_each(drop);
        let dropped = pipeline.statistics().dropped;
        assert_eq!(dropped[0].key.as_deref(), Some("number-3"));
        assert_eq!(dropped[0].id, SampleId { epoch: 0, index: 3 });
    });
}

struct AsyncPicky;
#[async_trait]
impl AsyncStage<i64> for AsyncPicky {
    type Out = i64;
    async fn process(&self, n: i64, _: &AsyncContext) -> Result<i64> {
        assert!(n != 11, "cannot wait for {n}");
        if n == 5 { Err(bad_number(n)) } else { Ok(n) }
    }
}

#[test]
fn the_failure_policy_applies_to_async_stages() {
    within_seconds(60, || {
        let build = |on_error| {
            PipelineBuilder::new(numbers(20))
                .async_stage("wait", AsyncPicky)
                .on_error(on_error)
                .deterministic()
                .build()
                .unwrap()
        };
        let (_, error) = before_error(build(OnError::Raise));
        assert_eq!(error.stage(), Some("wait"));
        let mut pipeline = build(OnError::SKIP);
        let items: Vec<i64> = pipeline.by_ref().map(|item| item.unwrap()).collect();
        assert_eq!(items, (0..20).filter(|&n| n != 5 && n != 11).collect::<Vec<_>>());
        let kinds: Vec<_> =
            pipeline.statistics().dropped.iter().map(|dropped| dropped.kind).collect();
        assert_eq!(kinds, [ErrorKind::Corrupt, ErrorKind::Panicked]);
    });
}

/// Panics when the key of an item is requested.
#[derive(Debug)]
struct Nameless;
impl Source for Nameless {
    type Item = i64;
    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<i64>>> {
        use futures_util::{StreamExt, stream};
        Ok(stream::iter((0..5).map(Ok)).boxed())
    }
    fn key(&self, n: &i64) -> Option<Arc<str>> {
        assert!(*n != 3, "no name for {n}");
        None
    }
}

// promise: R24
#[test]
fn a_panic_while_reading_a_key_is_an_error() {
    within_seconds(60, || {
        let (_, error) = before_error(PipelineBuilder::new(Nameless).build().unwrap());
        assert_eq!(error.to_string(), "source: panicked: no name for 3");
    });
}

#[test]
fn a_runtime_that_drops_its_tasks_ends_the_pipeline() {
    within_seconds(60, || {
        let build = |runtime: &Arc<ThreadRuntime>| {
            PipelineBuilder::new(numbers(1_000_000))
                .runtime(Arc::<ThreadRuntime>::clone(runtime))
                .build()
                .unwrap()
        };
        let runtime = Arc::new(ThreadRuntime::new().unwrap());
        let mut running = build(&runtime);
        running.next().unwrap().unwrap();
        runtime.shut_down();
        assert_eq!(before_error(running).1.kind(), ErrorKind::Stopped);
        let error = build(&runtime).next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stopped);
    });
}

/// Panics while it processes an item, and then in its destructor.
struct PanicsTwice(bool);
impl Stage<i64> for PanicsTwice {
    type Out = i64;
    fn process(&mut self, n: i64, _: &mut StageContext<'_, i64>) -> Result<()> {
        self.0 = n == 7;
        assert!(!self.0, "cannot process {n}");
        Ok(())
    }
}
impl Drop for PanicsTwice {
    fn drop(&mut self) {
        assert!(!self.0 || std::thread::panicking(), "cannot be dropped");
    }
}

// promise: R24
#[test]
fn a_panic_in_a_destructor_ends_the_pipeline_without_a_hang() {
    within_seconds(60, || {
        let pipeline = PipelineBuilder::new(numbers(100))
            .stage("panics", || Ok(PanicsTwice(false)))
            .on_error(OnError::SKIP)
            .threads(2)
            .build()
            .unwrap();
        let (_, error) = before_error(pipeline);
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert!(error.to_string().contains("cannot be dropped"), "{error}");
    });
}

// feature: B09
#[test]
fn an_invalid_description_is_refused() {
    let twice =
        PipelineBuilder::new(numbers(1)).stage("a", picky(|_| false)).stage("a", picky(|_| false));
    let error = twice.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("\"a\""), "{error}");
    for (batch_size, shape) in [(0, vec![3]), (4, vec![0]), (2, vec![usize::MAX, 2])] {
        let layout = BatchLayout::new(batch_size, [Field::new("x", DType::I64, &shape)]);
        let fill = || Ok(WriteNumber { fails: |_| false, panics: |_| false });
        let error = PipelineBuilder::new(numbers(1)).fill("f", layout, fill).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}
