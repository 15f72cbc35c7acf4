//! [`TracingHook`]: spans and events of the crate `tracing`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::span::EnteredSpan;
use tracing::{Level, Span};

use crate::error::{ErrorKind, Result};
use crate::observe::exporters::folding::{Fold, RepeatFolder};
use crate::observe::hooks::{Hook, ItemInfo, ItemOutcome, StageInfo};
use crate::observe::interval::Interval;
use crate::observe::tuner::TuningDecision;
use crate::source::sample::SampleId;
use crate::sync::Mutex;

/// A [`Hook`] that emits [`tracing`](https://docs.rs/tracing) spans and events.
///
/// All spans and events have the target `spdl`.
///
/// | level | span or event | fields |
/// |---|---|---|
/// | `INFO` | span `stage`, from start to end of a stage | `pipeline`, `index`, `stage`, `kind`, `concurrency` |
/// | `DEBUG` | span `item` in `stage`, for each item of a stage that computes | `stage`, `epoch`, `index`, `key` |
/// | `TRACE` | event `item done`, for each item of a stage that computes or is async | the fields of `item`, `elapsed_us`, `ok` |
/// | `WARN` | event `item failed` | the fields of `item`, `kind`, `error`, `count`, `hidden` |
/// | `INFO` | event `setting tuned` | `pipeline`, `setting`, `stage`, `from`, `to`, `rate_before`, `rate_after`, `kept`, `reason` |
/// | `INFO` | event `stage ended` | `stage`, `hidden` |
///
/// Repeated failures are rate-limited. Failures form a group if they have the same stage and kind,
/// and the first 120 characters of their messages are equal, apart from numbers. All failures
/// beyond 256 groups form one additional group. The first five failures of a group are logged, then
/// every hundredth. `count` is the number of failures in the group. In `item failed`, `hidden` is
/// the number of failures of the group since the last logged one. In `stage ended`, `hidden` is the
/// sum over the groups of the stage. Items interrupted by the end of the pipeline are not failures.
///
/// Items of async stages have events but no span, because many items share a thread. If `DEBUG` is
/// disabled, successful items create no span and take no lock.
///
/// ```
/// # use spdl_core::Hook;
/// # use spdl_core::observe::{StageInfo, StageKind, TracingHook};
/// let hook = TracingHook::new();
/// hook.stage_started(&StageInfo::new(0, 1, "decode", StageKind::Cpu, 4))?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct TracingHook {
    stages: Mutex<BTreeMap<(u64, usize), StageTrace>>,
    failures: Mutex<RepeatFolder>,
}

#[derive(Debug)]
struct StageTrace {
    span: Span,
    /// The name of the stage, unique among all pipelines.
    name: Arc<str>,
}

/// Identifies the item of a span: pipeline, stage, sample.
type ItemId = (u64, usize, SampleId);

thread_local! {
    /// The entered spans of this thread, innermost last. If a stage waits for a full queue, its
    /// worker processes items of downstream stages, whose spans are nested.
    static ENTERED: RefCell<Vec<(ItemId, EnteredSpan)>> = const { RefCell::new(Vec::new()) };
}

fn item_id(stage: &StageInfo, item: &ItemInfo<'_>) -> ItemId {
    (stage.pipeline, stage.index, item.id)
}

impl TracingHook {
    /// Creates a hook, which several pipelines may share.
    pub fn new() -> Self {
        TracingHook::default()
    }

    /// Emits an event `interval` at `INFO` for the pipeline, and one for each of its stages.
    ///
    /// Call it from the callback of
    /// [`PipelineBuilder::every`](crate::PipelineBuilder::every).
    pub fn report(&self, interval: &Interval) {
        tracing::info!(
            target: "spdl",
            pipeline = interval.pipeline,
            number = interval.number,
            seconds = interval.length.as_secs_f64(),
            items = interval.consumer.items,
            items_per_second = interval.items_per_second(),
            data_readiness = interval.data_readiness(),
            wait_p50_us = micros(interval.consumer.wait.p50),
            wait_p99_us = micros(interval.consumer.wait.p99),
            live_bytes = interval.memory.live_bytes,
            dropped = interval.dropped,
            "interval"
        );
        for (index, stage) in interval.stages.iter().enumerate() {
            tracing::info!(
                target: "spdl",
                pipeline = interval.pipeline,
                number = interval.number,
                index,
                stage = &*stage.name,
                items = stage.items,
                items_out = stage.items_out,
                failures = stage.failures,
                busy_share = stage.busy_share(interval.length),
                service_p50_us = micros(stage.service.p50),
                service_p99_us = micros(stage.service.p99),
                "interval"
            );
        }
    }

    /// A clone of the span of a stage, because no foreign code may run under the lock.
    fn stage_span(&self, stage: &StageInfo) -> Span {
        let stages = self.stages.lock();
        let trace = stages.get(&(stage.pipeline, stage.index));
        trace.map_or_else(Span::none, |trace| trace.span.clone())
    }

    fn failed(&self, stage: &StageInfo, item: &ItemInfo<'_>, error: &crate::error::Error) {
        let trace = {
            let stages = self.stages.lock();
            let trace = stages.get(&(stage.pipeline, stage.index));
            trace.map(|trace| (Arc::clone(&trace.name), trace.span.clone()))
        };
        let (name, span) = trace.unwrap_or_else(|| (unique_name(stage), Span::none()));
        let fold = self.failures.lock().record(&name, error.kind(), error.message());
        let Fold::Print { count, hidden } = fold else { return };
        tracing::warn!(
            target: "spdl",
            parent: &span,
            stage = &*stage.name,
            epoch = item.id.epoch,
            index = item.id.index,
            key = item.key,
            kind = error.kind().as_str(),
            error = error.reason(),
            count,
            hidden,
            "item failed"
        );
    }
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn unique_name(stage: &StageInfo) -> Arc<str> {
    stage.to_string().into()
}

impl Hook for TracingHook {
    fn stage_started(&self, stage: &StageInfo) -> Result<()> {
        let span = tracing::info_span!(
            target: "spdl",
            "stage",
            pipeline = stage.pipeline,
            index = stage.index,
            stage = &*stage.name,
            kind = stage.kind.as_str(),
            concurrency = stage.concurrency,
        );
        let trace = StageTrace { span, name: unique_name(stage) };
        let replaced = self.stages.lock().insert((stage.pipeline, stage.index), trace);
        // Closing a span runs code of the subscriber, which must not run under the lock.
        drop(replaced);
        Ok(())
    }

    fn tuned(&self, pipeline: u64, decision: &TuningDecision) {
        let (setting, stage) = decision.setting();
        tracing::info!(
            target: "spdl",
            pipeline,
            setting,
            stage,
            from = decision.from,
            to = decision.to(),
            rate_before = decision.rate_before,
            rate_after = decision.rate_after,
            kept = decision.kept,
            reason = decision.reason,
            "setting tuned"
        );
    }

    fn stage_ended(&self, stage: &StageInfo) {
        let trace = self.stages.lock().remove(&(stage.pipeline, stage.index));
        let Some(trace) = trace else { return };
        let hidden = self.failures.lock().remove_stage(&trace.name);
        tracing::info!(
            target: "spdl",
            parent: &trace.span,
            stage = &*stage.name,
            hidden,
            "stage ended"
        );
    }

    fn before_item(&self, stage: &StageInfo, item: &ItemInfo<'_>) -> Result<()> {
        if stage.kind.uses_cpu_pool() && tracing::enabled!(target: "spdl", Level::DEBUG) {
            let parent = self.stage_span(stage);
            let span = tracing::debug_span!(
                target: "spdl",
                parent: &parent,
                "item",
                stage = &*stage.name,
                epoch = item.id.epoch,
                index = item.id.index,
                key = item.key,
            );
            let entered = span.entered();
            ENTERED.with_borrow_mut(|spans| spans.push((item_id(stage, item), entered)));
        }
        Ok(())
    }

    fn after_item(&self, stage: &StageInfo, item: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
        if tracing::enabled!(target: "spdl", Level::TRACE) {
            tracing::trace!(
                target: "spdl",
                parent: &self.stage_span(stage),
                stage = &*stage.name,
                epoch = item.id.epoch,
                index = item.id.index,
                key = item.key,
                elapsed_us = micros(outcome.elapsed),
                ok = outcome.result.is_ok(),
                "item done"
            );
        }
        if let Err(error) = outcome.result
            && error.kind() != ErrorKind::Stopped
        {
            self.failed(stage, item, error);
        }
        if stage.kind.uses_cpu_pool() {
            let id = item_id(stage, item);
            // The item has no span if the level was changed after `before_item`.
            let span =
                ENTERED.with_borrow_mut(|spans| spans.pop_if(|(innermost, _)| *innermost == id));
            drop(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::observe::model::SettingChange;
    use crate::observe::statistics::StageKind;
    use crate::source::sample::SampleId;
    use std::fmt;
    use std::time::Duration;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// Records spans and events up to a level.
    struct Recorder {
        level: Level,
        log: Arc<Mutex<Vec<String>>>,
        spans: std::sync::atomic::AtomicU64,
    }

    struct Fields(String);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            let name = field.name();
            if name == "message" {
                self.0.insert_str(0, &format!(" {value:?}"));
            } else if name != "elapsed_us" {
                self.0.push_str(&format!(" {name}={value:?}"));
            }
        }
    }

    fn parent(id: Option<&Id>) -> String {
        id.map_or_else(|| "-".into(), |id| id.into_u64().to_string())
    }

    impl Subscriber for Recorder {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "spdl" && *metadata.level() <= self.level
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            let id = 1 + self.spans.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let mut fields = Fields(String::new());
            span.record(&mut fields);
            let (meta, parent) = (span.metadata(), parent(span.parent()));
            self.log.lock().push(format!(
                "new {id} in {parent}: {} {}{}",
                meta.level(),
                meta.name(),
                fields.0
            ));
            Id::from_u64(id)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut fields = Fields(String::new());
            event.record(&mut fields);
            let level = event.metadata().level();
            let parent = parent(event.parent());
            self.log.lock().push(format!("event in {parent}: {level}{}", fields.0));
        }

        fn enter(&self, id: &Id) {
            self.log.lock().push(format!("enter {}", id.into_u64()));
        }

        fn exit(&self, id: &Id) {
            self.log.lock().push(format!("exit {}", id.into_u64()));
        }
    }

    fn recorded(level: Level, work: impl FnOnce(&TracingHook)) -> Vec<String> {
        let log = Arc::new(Mutex::new(Vec::new()));
        let recorder = Recorder { level, log: Arc::clone(&log), spans: 0.into() };
        tracing::subscriber::with_default(recorder, || work(&TracingHook::new()));
        log.lock().clone()
    }

    #[test]
    fn changes_of_settings_are_events() {
        let mut decision = TuningDecision {
            time: Duration::from_secs(3),
            change: SettingChange::Concurrency { stage: "fetch".into(), items: 64 },
            from: 16,
            reason: "why".into(),
            rate_before: 100.0,
            rate_after: None,
            kept: None,
        };
        let log = recorded(Level::INFO, |hook| {
            hook.tuned(7, &decision);
            (decision.rate_after, decision.kept) = (Some(390.0), Some(true));
            hook.tuned(7, &decision);
        });
        let start = "event in -: INFO setting tuned pipeline=7 setting=\"concurrency\" stage=\"fetch\" \
                     from=16 to=64 rate_before=100.0";
        assert_eq!(log[0], format!("{start} reason=\"why\""));
        assert_eq!(log[1], format!("{start} rate_after=390.0 kept=true reason=\"why\""));
    }

    fn stage(kind: StageKind) -> StageInfo {
        StageInfo::new(7, 1, "decode", kind, 4)
    }

    fn item(index: u64) -> ItemInfo<'static> {
        ItemInfo::new(SampleId { epoch: 2, index }, Some("cat.jpg"))
    }

    fn run_one(hook: &TracingHook, stage: &StageInfo) {
        hook.stage_started(stage).unwrap();
        hook.before_item(stage, &item(5)).unwrap();
        hook.after_item(stage, &item(5), ItemOutcome::new(Ok(()), Duration::from_micros(3)));
        hook.stage_ended(stage);
    }

    // feature: T06
    #[test]
    fn a_stage_has_a_span_with_a_span_for_each_item() {
        let log = recorded(Level::TRACE, |hook| run_one(hook, &stage(StageKind::Cpu)));
        assert_eq!(
            log,
            [
                "new 1 in -: INFO stage pipeline=7 index=1 stage=\"decode\" kind=\"cpu\" concurrency=4",
                "new 2 in 1: DEBUG item stage=\"decode\" epoch=2 index=5 key=\"cat.jpg\"",
                "enter 2",
                "event in 1: TRACE item done stage=\"decode\" epoch=2 index=5 key=\"cat.jpg\" ok=true",
                "exit 2",
                "event in 1: INFO stage ended stage=\"decode\" hidden=0",
            ]
        );
    }

    #[test]
    fn async_items_have_no_span() {
        let log = recorded(Level::TRACE, |hook| run_one(hook, &stage(StageKind::Async)));
        assert_eq!(log.len(), 3, "{log:?}");
        assert!(log[1].starts_with("event in 1: TRACE item done"), "{log:?}");
    }

    #[test]
    fn items_have_no_events_at_info() {
        let log = recorded(Level::INFO, |hook| run_one(hook, &stage(StageKind::Cpu)));
        assert_eq!(log.len(), 2, "{log:?}");
    }

    #[test]
    fn spans_of_nested_items_are_nested() {
        let (outer, inner) = (stage(StageKind::Cpu), StageInfo::new(7, 2, "b", StageKind::Fill, 1));
        let log = recorded(Level::DEBUG, |hook| {
            hook.before_item(&outer, &item(5)).unwrap();
            hook.before_item(&inner, &item(5)).unwrap();
            hook.after_item(&inner, &item(5), ItemOutcome::new(Ok(()), Duration::ZERO));
            hook.after_item(&outer, &item(5), ItemOutcome::new(Ok(()), Duration::ZERO));
            assert!(ENTERED.with_borrow(Vec::is_empty));
        });
        let crossings: Vec<&String> = log.iter().filter(|line| !line.starts_with("new")).collect();
        assert_eq!(crossings, ["enter 1", "enter 2", "exit 2", "exit 1"]);
    }

    #[test]
    fn an_item_without_a_span_exits_no_other_span() {
        let (outer, inner) = (stage(StageKind::Cpu), StageInfo::new(7, 2, "b", StageKind::Fill, 1));
        let log = recorded(Level::DEBUG, |hook| {
            hook.before_item(&outer, &item(5)).unwrap();
            let coarse = Recorder { level: Level::INFO, log: Arc::default(), spans: 0.into() };
            tracing::subscriber::with_default(coarse, || hook.before_item(&inner, &item(6)))
                .unwrap();
            hook.after_item(&inner, &item(6), ItemOutcome::new(Ok(()), Duration::ZERO));
            assert_eq!(ENTERED.with_borrow(Vec::len), 1);
            hook.after_item(&outer, &item(5), ItemOutcome::new(Ok(()), Duration::ZERO));
        });
        assert_eq!(log.last().map(String::as_str), Some("exit 1"), "{log:?}");
    }

    // feature: T04
    #[test]
    fn failures_are_rate_limited_warnings() {
        let log = recorded(Level::WARN, |hook| {
            let stage = stage(StageKind::Cpu);
            hook.stage_started(&stage).unwrap();
            for index in 1..=250 {
                let error = Error::new(ErrorKind::Corrupt, format!("marker {index} is wrong"));
                hook.after_item(
                    &stage,
                    &item(index),
                    ItemOutcome::new(Err(&error), Duration::ZERO),
                );
            }
            hook.stage_ended(&stage);
        });
        assert_eq!(log.len(), 7, "{log:?}");
        assert_eq!(
            log[0],
            "event in -: WARN item failed stage=\"decode\" epoch=2 index=1 key=\"cat.jpg\" \
             kind=\"corrupt\" error=\"marker 1 is wrong\" count=1 hidden=0"
        );
        assert!(log[5].contains("marker 100 is wrong") && log[5].ends_with("count=100 hidden=94"));
        assert!(log[6].ends_with("count=200 hidden=99"));
    }

    #[test]
    fn failures_of_two_pipelines_are_separate_groups() {
        let log = recorded(Level::INFO, |hook| {
            let error = Error::new(ErrorKind::Corrupt, "no image");
            let stages = [1, 2].map(|n| StageInfo::new(n, 1, "decode", StageKind::Cpu, 1));
            for stage in &stages {
                hook.stage_started(stage).unwrap();
            }
            for stage in &stages {
                for index in 0..8 {
                    let outcome = ItemOutcome::new(Err(&error), Duration::ZERO);
                    hook.after_item(stage, &item(index), outcome);
                }
            }
            for stage in &stages {
                hook.stage_ended(stage);
            }
        });
        assert_eq!(log.iter().filter(|line| line.contains("WARN")).count(), 10, "{log:?}");
        assert_eq!(log.iter().filter(|line| line.ends_with("hidden=3")).count(), 2, "{log:?}");
    }

    #[test]
    fn an_interrupted_item_is_not_a_failure() {
        let log = recorded(Level::WARN, |hook| {
            let error = Error::new(ErrorKind::Stopped, "interrupted");
            let outcome = ItemOutcome::new(Err(&error), Duration::ZERO);
            hook.after_item(&stage(StageKind::Cpu), &item(1), outcome);
        });
        assert!(log.is_empty(), "{log:?}");
    }

    #[test]
    fn report_emits_an_event_for_the_pipeline_and_each_stage() {
        let meter = crate::observe::statistics::StageMeter::new("decode".into(), StageKind::Cpu, 2);
        meter.record(10, 1, Duration::from_millis(100));
        let interval = Interval {
            pipeline: 7,
            length: Duration::from_secs(1),
            stages: vec![meter.snapshot()],
            ..Default::default()
        };
        let log = recorded(Level::INFO, |hook| hook.report(&interval));
        assert_eq!(log.len(), 2, "{log:?}");
        assert!(log[0].starts_with("event in -: INFO interval pipeline=7 number=0 seconds=1.0"));
        assert!(
            log[1].contains("stage=\"decode\" items=10 items_out=0 failures=1 busy_share=0.05")
        );
    }
}
