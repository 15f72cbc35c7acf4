//! [`Hook`]: callbacks before and after stages and items.

use std::fmt::{self, Debug};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
// Standard atomics instead of `crate::sync`: model checkers need not explore these.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use crate::error::{Error, ErrorKind, Result, panicked};
use crate::item::ItemHeader;
use crate::observe::statistics::StageKind;
use crate::observe::tuner::TuningDecision;
use crate::source::sample::SampleId;

/// Callbacks of a pipeline, called before and after each stage and each item.
///
/// By default, `wants_items` returns `true`, and the other methods do nothing. The threads of the
/// pipeline call hooks concurrently. The time of the item methods is part of an item's processing
/// time, so keep them short. The order of calls for a stage is:
///
/// 1. `stage_started` once, before its first item
/// 2. `before_item` and `after_item` in pairs, for async stages and stages that compute; they are
///    not called for sources, merges and routes
/// 3. `stage_ended` once, after its last item, even if the pipeline is stopped, fails or is dropped
///
/// Each `before_item` that returns `Ok` is followed by an `after_item`, even if the stage fails,
/// panics, or is interrupted by the end of the pipeline while it processes the item.
///
/// # Threads
/// For a stage that computes, the same thread makes both calls for an item. Between them, the
/// thread may process items of downstream stages. For an async stage, different threads may make
/// the two calls.
///
/// # Several hooks
/// Hooks nest. `stage_started` and `before_item` are called in the order in which the hooks were
/// added. `after_item` and `stage_ended` are called in reverse order. A panic of a hook is caught
/// and becomes an error of kind [`Panicked`](ErrorKind::Panicked). If the item or the stage has
/// already failed, its first error is returned instead.
///
/// ```
/// use spdl_core::Hook;
/// use spdl_core::observe::{ItemInfo, ItemOutcome, StageInfo};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// /// Counts slow items.
/// #[derive(Debug, Default)]
/// struct Slow(AtomicU64);
/// impl Hook for Slow {
///     fn after_item(&self, stage: &StageInfo, item: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
///         if outcome.elapsed.as_millis() > 100 {
///             self.0.fetch_add(1, Ordering::Relaxed);
///             eprintln!("{stage}: {} took {:?}", item.key.unwrap_or("?"), outcome.elapsed);
///         }
///     }
/// }
/// ```
pub trait Hook: Debug + Send + Sync + 'static {
    /// Called before the first item of a stage, once for all its instances and epochs.
    ///
    /// # Errors
    /// Any error ends the pipeline.
    fn stage_started(&self, stage: &StageInfo) -> Result<()> {
        let _ = stage;
        Ok(())
    }

    /// Called after the last item of a stage, if `stage_started` returned `Ok`.
    fn stage_ended(&self, stage: &StageInfo) {
        let _ = stage;
    }

    /// Whether to call `before_item` and `after_item`. Default: `true`.
    ///
    /// Called before each item, so it must be fast. If any hook of the pipeline returns `true`, the
    /// item methods of all hooks are called. Otherwise no hook's item methods are called for the
    /// item.
    fn wants_items(&self) -> bool {
        true
    }

    /// Called before an item is processed.
    ///
    /// # Errors
    /// Any error fails the item before it is processed. The stage's failure policy decides whether
    /// the pipeline continues.
    fn before_item(&self, stage: &StageInfo, item: &ItemInfo<'_>) -> Result<()> {
        let _ = (stage, item);
        Ok(())
    }

    /// Called after an item was processed, failed, or was interrupted by the end of the pipeline.
    fn after_item(&self, stage: &StageInfo, item: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
        let _ = (stage, item, outcome);
    }

    /// Called after [`tune`](crate::PipelineBuilder::tune) has changed a setting, and again when the
    /// change is kept or reset. `pipeline` is [`StageInfo::pipeline`].
    fn tuned(&self, pipeline: u64, decision: &TuningDecision) {
        let _ = (pipeline, decision);
    }
}

impl<H: Hook + ?Sized> Hook for Arc<H> {
    fn stage_started(&self, stage: &StageInfo) -> Result<()> {
        (**self).stage_started(stage)
    }

    fn stage_ended(&self, stage: &StageInfo) {
        (**self).stage_ended(stage);
    }

    fn wants_items(&self) -> bool {
        (**self).wants_items()
    }

    fn before_item(&self, stage: &StageInfo, item: &ItemInfo<'_>) -> Result<()> {
        (**self).before_item(stage, item)
    }

    fn after_item(&self, stage: &StageInfo, item: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
        (**self).after_item(stage, item, outcome);
    }

    fn tuned(&self, pipeline: u64, decision: &TuningDecision) {
        (**self).tuned(pipeline, decision);
    }
}

/// A stage of a pipeline. `Display` writes pipeline, index, name and concurrency: `0:1:decode[4]`.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageInfo {
    /// The pipeline's number in this process, counted from 0 in the order of building.
    pub pipeline: u64,
    /// The stage's index in the pipeline; the source has index 0.
    pub index: usize,
    /// The name given to the builder.
    pub name: Arc<str>,
    /// The kind of the stage.
    pub kind: StageKind,
    /// The concurrency of the stage when the pipeline starts.
    pub concurrency: usize,
}

impl StageInfo {
    /// Creates the value to pass to a method of a hook, for example in a test.
    pub fn new(
        pipeline: u64,
        index: usize,
        name: impl Into<Arc<str>>,
        kind: StageKind,
        concurrency: usize,
    ) -> Self {
        StageInfo { pipeline, index, name: name.into(), kind, concurrency }
    }
}

impl fmt::Display for StageInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}[{}]", self.pipeline, self.index, self.name, self.concurrency)
    }
}

/// The id and the key of an item.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemInfo<'a> {
    /// Epoch and position of the item.
    pub id: SampleId,
    /// The item's key, such as a path or an object key, if the source provides one.
    pub key: Option<&'a str>,
}

impl<'a> ItemInfo<'a> {
    /// Creates the value to pass to a method of a hook, for example in a test.
    pub fn new(id: SampleId, key: Option<&'a str>) -> Self {
        ItemInfo { id, key }
    }
}

/// The result and the time of processing an item.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct ItemOutcome<'a> {
    /// The error if the item failed. An item that the end of the pipeline interrupted has an error
    /// of kind [`Stopped`](ErrorKind::Stopped).
    pub result: Result<(), &'a Error>,
    /// Start of processing, before the first hook's `before_item`.
    pub began: Instant,
    /// Time since `began`.
    pub elapsed: Duration,
}

impl<'a> ItemOutcome<'a> {
    /// Creates the outcome of an item that ends now, to pass to a method of a hook.
    pub fn new(result: Result<(), &'a Error>, elapsed: Duration) -> Self {
        let now = Instant::now();
        ItemOutcome { result, began: now.checked_sub(elapsed).unwrap_or(now), elapsed }
    }
}

/// A number for a new pipeline, unique in this process.
pub(crate) fn next_pipeline() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The hooks of one stage. Without hooks, each call only executes one branch instruction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks(Option<Arc<StageHooks>>);

#[derive(Debug)]
struct StageHooks {
    hooks: Arc<[Arc<dyn Hook>]>,
    stage: StageInfo,
    started: OnceLock<Result<()>>,
    ended: AtomicBool,
}

impl Hooks {
    pub(crate) fn new(hooks: &Arc<[Arc<dyn Hook>]>, stage: StageInfo) -> Self {
        let with_hooks = || StageHooks {
            hooks: Arc::clone(hooks),
            stage,
            started: OnceLock::new(),
            ended: AtomicBool::new(false),
        };
        Hooks((!hooks.is_empty()).then(|| Arc::new(with_hooks())))
    }

    /// Calls `stage_started` of all hooks, once. Concurrent callers wait until the calls are done.
    ///
    /// If a hook fails, `stage_ended` is called for the hooks that were added before it.
    ///
    /// # Errors
    /// Every call returns the hook's error, or `Panicked` if it panicked. The pipeline must end with
    /// this error.
    pub(crate) fn started_once(&self) -> Result<()> {
        match &self.0 {
            Some(hooks) => hooks.started.get_or_init(|| hooks.start()).clone(),
            None => Ok(()),
        }
    }

    /// Calls `stage_ended` of all hooks, once, if the stage has started. Also called when the last
    /// clone is dropped.
    ///
    /// # Errors
    /// `Panicked` if a hook panicked. The pipeline must end with this error.
    pub(crate) fn ended(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |hooks| hooks.end())
    }

    /// Calls `before_item`, `work` and `after_item`. A panic of `work` is resumed after the hooks.
    ///
    /// # Errors
    /// The error of `work` or of `before_item`, or `Panicked` if a hook panicked.
    pub(crate) fn item<'a, R>(
        &'a self,
        item: impl Into<ItemInfo<'a>>,
        work: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let Some(hooks) = self.for_an_item() else { return work() };
        let entered = hooks.enter(item.into())?;
        entered.leave(catch_unwind(AssertUnwindSafe(work)))
    }

    /// Like [`item`](Self::item), for async work. If the future is dropped, the outcome is
    /// `Stopped`.
    ///
    /// # Errors
    /// The errors of [`item`](Self::item).
    pub(crate) async fn item_async<'a, R>(
        &'a self,
        item: impl Into<ItemInfo<'a>>,
        work: impl Future<Output = Result<R>>,
    ) -> Result<R> {
        let Some(hooks) = self.for_an_item() else { return work.await };
        let entered = hooks.enter(item.into())?;
        let result = AssertUnwindSafe(work).catch_unwind().await;
        entered.leave(result)
    }

    /// The hooks, if [`wants_items`](Hook::wants_items) of any hook returns true.
    fn for_an_item(&self) -> Option<&StageHooks> {
        self.0.as_deref().filter(|stage| stage.hooks.iter().any(|hook| hook.wants_items()))
    }
}

impl StageHooks {
    fn start(&self) -> Result<()> {
        for (at, hook) in self.hooks.iter().enumerate() {
            if let Err(error) = guarded(|| hook.stage_started(&self.stage)) {
                // The first error is returned; errors of `stage_ended` are ignored.
                let _ = in_reverse(&self.hooks[..at], |hook| hook.stage_ended(&self.stage));
                return Err(self.locate(error));
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        let started = matches!(self.started.get(), Some(Ok(())));
        if !started || self.ended.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        in_reverse(&self.hooks, |hook| hook.stage_ended(&self.stage))
            .map_err(|error| self.locate(error))
    }

    fn locate(&self, error: Error) -> Error {
        error.with_stage(Arc::clone(&self.stage.name))
    }

    /// Calls `before_item` of all hooks.
    fn enter<'a>(&'a self, item: ItemInfo<'a>) -> Result<EnteredItem<'a>> {
        let mut entered = EnteredItem { called: 0, hooks: self, item, began: Instant::now() };
        for hook in &*self.hooks {
            if let Err(error) = guarded(|| hook.before_item(&self.stage, &item)) {
                // The first error is returned; errors of `after_item` are ignored.
                let _ = entered.after(Err(&error));
                return Err(error);
            }
            entered.called += 1;
        }
        Ok(entered)
    }
}

impl Drop for StageHooks {
    fn drop(&mut self) {
        // No caller can receive the error of a panic; the process's panic hook has printed it.
        let _ = self.end();
    }
}

/// An item between `before_item` and `after_item`. Dropping it calls `after_item`.
#[derive(Debug)]
struct EnteredItem<'a> {
    /// Number of hooks whose `after_item` must be called, from the first.
    called: usize,
    hooks: &'a StageHooks,
    item: ItemInfo<'a>,
    began: Instant,
}

impl EnteredItem<'_> {
    /// Calls `after_item` of the hooks whose `before_item` returned `Ok`, in reverse order, even if
    /// one panics.
    fn after(&mut self, result: Result<(), &Error>) -> Result<()> {
        let outcome = ItemOutcome { result, began: self.began, elapsed: self.began.elapsed() };
        let hooks = &self.hooks.hooks[..std::mem::take(&mut self.called)];
        in_reverse(hooks, |hook| hook.after_item(&self.hooks.stage, &self.item, outcome))
    }

    fn leave<R>(mut self, result: std::thread::Result<Result<R>>) -> Result<R> {
        match result {
            Ok(Ok(value)) => self.after(Ok(())).map(|()| value),
            Ok(Err(error)) => {
                // The item's error is returned; errors of the hooks are ignored.
                let _ = self.after(Err(&error));
                Err(error)
            }
            Err(payload) => {
                let error = panicked(payload);
                let _ = self.after(Err(&error));
                // The payload was consumed; only its message is used later.
                let message = error.message();
                let message = message.strip_prefix("panicked: ").unwrap_or(message);
                resume_unwind(Box::new(message.to_owned()))
            }
        }
    }
}

impl Drop for EnteredItem<'_> {
    fn drop(&mut self) {
        if self.called > 0 {
            let error = Error::new(ErrorKind::Stopped, "interrupted by the end of the pipeline");
            // No caller can receive the error of a panic; the process's panic hook has printed it.
            let _ = self.after(Err(&error));
        }
    }
}

/// Calls all hooks in reverse order; returns the first panic as an error.
fn in_reverse(hooks: &[Arc<dyn Hook>], call: impl Fn(&dyn Hook)) -> Result<()> {
    let mut result = Ok(());
    for hook in hooks.iter().rev() {
        let called = guarded(|| {
            call(&**hook);
            Ok(())
        });
        result = result.and(called);
    }
    result
}

/// Calls a hook and turns a panic into an error.
fn guarded(call: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let error = panicked(payload);
        Err(Error::new(error.kind(), format!("a hook {}", error.message())))
    })
}

impl<'a> From<&'a ItemHeader> for ItemInfo<'a> {
    fn from(header: &'a ItemHeader) -> Self {
        ItemInfo::new(header.id, header.key().map(|key| &**key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Mutex;

    type Log = Arc<Mutex<Vec<String>>>;

    /// Records its calls; fails or panics in the method of the given name.
    #[derive(Debug)]
    struct RecordingHook {
        name: char,
        log: Log,
        fail_in: &'static str,
        panic_in: &'static str,
    }

    impl RecordingHook {
        fn note(&self, method: &str, arguments: impl fmt::Display) -> Result<()> {
            self.log.lock().push(format!("{} {method}{arguments}", self.name));
            assert!(self.panic_in != method, "in {method}");
            if self.fail_in == method {
                return Err(Error::new(ErrorKind::User, format!("{} fails", self.name)));
            }
            Ok(())
        }
    }

    impl Hook for RecordingHook {
        fn stage_started(&self, stage: &StageInfo) -> Result<()> {
            self.note("started", format_args!(" {stage}"))
        }

        fn stage_ended(&self, _: &StageInfo) {
            self.note("ended", "").unwrap();
        }

        fn before_item(&self, _: &StageInfo, item: &ItemInfo<'_>) -> Result<()> {
            self.note("before", format_args!(" {} {:?}", item.id.index, item.key))
        }

        fn after_item(&self, _: &StageInfo, _: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
            let kind = outcome.result.err().map(Error::kind);
            self.note("after", format_args!(" {kind:?}")).unwrap();
        }
    }

    /// Three hooks: `a`, `b` and `c`.
    fn hooks(fail: (char, &'static str), panic: (char, &'static str)) -> (Hooks, Log) {
        let log = Log::default();
        let hook = |name| {
            let method_of = |(hook, method)| if hook == name { method } else { "" };
            let (fail_in, panic_in) = (method_of(fail), method_of(panic));
            let log = Arc::clone(&log);
            Arc::new(RecordingHook { name, log, fail_in, panic_in }) as Arc<dyn Hook>
        };
        (Hooks::new(&Arc::from(['a', 'b', 'c'].map(hook)), stage()), log)
    }

    const NONE: (char, &str) = ('-', "");

    fn stage() -> StageInfo {
        StageInfo::new(0, 1, "decode", StageKind::Cpu, 4)
    }

    fn item() -> ItemInfo<'static> {
        ItemInfo::new(SampleId { epoch: 2, index: 7 }, Some("cat.jpg"))
    }

    /// Takes the calls so far out of the log.
    fn calls(log: &Log) -> String {
        std::mem::take(&mut *log.lock()).join(", ")
    }

    const BEFORE: &str =
        "a before 7 Some(\"cat.jpg\"), b before 7 Some(\"cat.jpg\"), c before 7 Some(\"cat.jpg\")";

    fn after(kind: Option<ErrorKind>) -> String {
        format!("{BEFORE}, c after {kind:?}, b after {kind:?}, a after {kind:?}")
    }

    #[test]
    fn a_stage_is_displayed_with_pipeline_index_and_concurrency() {
        assert_eq!(stage().to_string(), "0:1:decode[4]");
    }

    #[test]
    fn numbers_of_pipelines_are_unique() {
        assert_ne!(next_pipeline(), next_pipeline());
    }

    #[test]
    fn hooks_nest_in_the_order_given() {
        let (hooks, log) = hooks(NONE, NONE);
        hooks.started_once().unwrap();
        let stage = "0:1:decode[4]";
        assert_eq!(calls(&log), format!("a started {stage}, b started {stage}, c started {stage}"));
        assert_eq!(hooks.item(item(), || Ok(5)).unwrap(), 5);
        assert_eq!(calls(&log), after(None));
        hooks.ended().unwrap();
        assert_eq!(calls(&log), "c ended, b ended, a ended");
    }

    #[test]
    fn stage_started_and_stage_ended_are_called_once() {
        let (hooks, log) = hooks(NONE, NONE);
        for _ in 0..2 {
            hooks.clone().started_once().unwrap();
        }
        assert_eq!(calls(&log).matches("started").count(), 3);
        for _ in 0..2 {
            hooks.clone().ended().unwrap();
        }
        drop(hooks);
        assert_eq!(calls(&log), "c ended, b ended, a ended");
    }

    #[test]
    fn dropping_a_stage_calls_stage_ended_only_if_it_started() {
        let (started, log) = hooks(NONE, NONE);
        started.started_once().unwrap();
        calls(&log);
        let copy = started.clone();
        drop(started);
        assert_eq!(calls(&log), "");
        drop(copy);
        assert_eq!(calls(&log), "c ended, b ended, a ended");
        let (never, log) = hooks(NONE, NONE);
        never.ended().unwrap();
        drop(never);
        assert_eq!(calls(&log), "");
    }

    #[test]
    fn concurrent_callers_wait_for_stage_started() {
        #[derive(Debug, Default)]
        struct Slow(AtomicU64);
        impl Hook for Slow {
            fn stage_started(&self, _: &StageInfo) -> Result<()> {
                std::thread::sleep(Duration::from_millis(20));
                self.0.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        }
        let slow = Arc::new(Slow::default());
        let hooks = Hooks::new(&Arc::from([Arc::clone(&slow) as Arc<dyn Hook>]), stage());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    hooks.started_once().unwrap();
                    assert_eq!(slow.0.load(Ordering::SeqCst), 1);
                });
            }
        });
    }

    #[test]
    fn a_failed_before_item_calls_after_item_of_earlier_hooks_only() {
        let (hooks, log) = hooks(('b', "before"), NONE);
        let error = hooks.item(item(), || -> Result<()> { unreachable!() }).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::User, "b fails"));
        assert_eq!(
            calls(&log),
            "a before 7 Some(\"cat.jpg\"), b before 7 Some(\"cat.jpg\"), a after Some(User)"
        );
    }

    #[test]
    fn a_failed_stage_started_calls_stage_ended_of_earlier_hooks_only() {
        let (hooks, log) = hooks(('b', "started"), NONE);
        for _ in 0..2 {
            let error = hooks.started_once().unwrap_err();
            assert_eq!(error.to_string(), "decode: b fails");
        }
        drop(hooks);
        assert_eq!(calls(&log), "a started 0:1:decode[4], b started 0:1:decode[4], a ended");
    }

    #[test]
    fn a_panic_in_any_method_is_an_error_and_the_other_hooks_are_still_called() {
        let check = |result: Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Panicked);
            assert!(error.message().starts_with("a hook panicked: in "), "{error}");
        };
        let (started, log) = hooks(NONE, ('c', "started"));
        check(started.started_once());
        assert!(calls(&log).ends_with("b ended, a ended"));
        let (before, log) = hooks(NONE, ('c', "before"));
        check(before.item(item(), || Ok(())));
        assert!(calls(&log).ends_with("b after Some(Panicked), a after Some(Panicked)"));
        let (in_after, log) = hooks(NONE, ('b', "after"));
        check(in_after.item(item(), || Ok(())));
        assert_eq!(calls(&log), after(None));
        let (ended, log) = hooks(NONE, ('b', "ended"));
        ended.started_once().unwrap();
        calls(&log);
        check(ended.ended());
        assert_eq!(calls(&log), "c ended, b ended, a ended");
    }

    #[test]
    fn an_error_of_an_item_takes_precedence_over_a_panic_of_a_hook() {
        let (hooks, log) = hooks(NONE, ('c', "after"));
        let fail = || Err::<(), _>(Error::new(ErrorKind::Corrupt, "no image"));
        assert_eq!(hooks.item(item(), fail).unwrap_err().message(), "no image");
        assert_eq!(calls(&log), after(Some(ErrorKind::Corrupt)));
    }

    #[test]
    fn a_panic_of_a_stage_resumes_after_the_hooks() {
        let (hooks, log) = hooks(NONE, NONE);
        let work = || hooks.item(item(), || -> Result<()> { panic!("no {}", "image") });
        let payload = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
        assert_eq!(calls(&log), after(Some(ErrorKind::Panicked)));
        assert_eq!(panicked(payload).message(), "panicked: no image");
    }

    #[test]
    fn async_items_call_the_same_hooks() {
        let (hooks, log) = hooks(NONE, NONE);
        assert_eq!(crate::runtime::block_on(hooks.item_async(item(), async { Ok(5) })).unwrap(), 5);
        assert_eq!(calls(&log), after(None));
        let fail = async { Err::<(), _>(Error::new(ErrorKind::Timeout, "too late")) };
        crate::runtime::block_on(hooks.item_async(item(), fail)).unwrap_err();
        assert_eq!(calls(&log), after(Some(ErrorKind::Timeout)));
        let panics = hooks.item_async(item(), async { panic!("no image") });
        let panics: std::pin::Pin<Box<dyn Future<Output = Result<()>>>> = Box::pin(panics);
        catch_unwind(AssertUnwindSafe(|| crate::runtime::block_on(panics)))
            .unwrap_err()
            .downcast::<String>()
            .unwrap();
        assert_eq!(calls(&log), after(Some(ErrorKind::Panicked)));
    }

    #[test]
    fn the_outcome_of_a_dropped_future_is_stopped() {
        let (hooks, log) = hooks(NONE, NONE);
        let mut work = Box::pin(hooks.item_async(item(), std::future::pending::<Result<()>>()));
        assert!(work.as_mut().now_or_never().is_none());
        assert_eq!(calls(&log), BEFORE);
        drop(work);
        assert_eq!(format!("{BEFORE}, {}", calls(&log)), after(Some(ErrorKind::Stopped)));
    }

    #[test]
    fn elapsed_includes_the_time_of_the_work() {
        #[derive(Debug, Default)]
        struct Longest(Mutex<Duration>);
        impl Hook for Longest {
            fn after_item(&self, _: &StageInfo, _: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
                *self.0.lock() = outcome.elapsed;
            }
        }
        let longest = Arc::new(Longest::default());
        let hooks = Hooks::new(&Arc::from([Arc::clone(&longest) as Arc<dyn Hook>]), stage());
        let nap = Duration::from_millis(5);
        let work = || {
            std::thread::sleep(nap);
            Ok(())
        };
        hooks.item(item(), work).unwrap();
        assert!(*longest.0.lock() >= nap);
    }

    // feature: S07
    #[test]
    fn without_hooks_no_item_info_is_created() {
        struct Unseen;
        impl From<Unseen> for ItemInfo<'_> {
            fn from(_: Unseen) -> Self {
                unreachable!()
            }
        }
        let hooks = Hooks::new(&Arc::from([]), stage());
        hooks.started_once().unwrap();
        assert_eq!(hooks.item(Unseen, || Ok(1)).unwrap(), 1);
        assert_eq!(crate::runtime::block_on(hooks.item_async(Unseen, async { Ok(2) })).unwrap(), 2);
        hooks.ended().unwrap();
    }

    #[test]
    fn wants_items_enables_the_item_methods_of_all_hooks() {
        #[derive(Debug, Default)]
        struct SwitchableHook {
            wants: AtomicBool,
            calls: AtomicU64,
        }
        impl Hook for SwitchableHook {
            fn wants_items(&self) -> bool {
                self.wants.load(Ordering::Relaxed)
            }

            fn before_item(&self, _: &StageInfo, _: &ItemInfo<'_>) -> Result<()> {
                self.calls.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }

            fn after_item(&self, _: &StageInfo, _: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
                assert!(outcome.began.elapsed() >= outcome.elapsed);
                self.calls.fetch_add(10, Ordering::Relaxed);
            }
        }
        let hook = Arc::new(SwitchableHook::default());
        let hooks = Hooks::new(&Arc::from([Arc::clone(&hook) as Arc<dyn Hook>]), stage());
        let check = |calls| {
            hooks.item(item(), || Ok(())).unwrap();
            crate::runtime::block_on(hooks.item_async(item(), async { Ok(()) })).unwrap();
            assert_eq!(hook.calls.swap(0, Ordering::Relaxed), calls);
        };
        check(0);
        hook.wants.store(true, Ordering::Relaxed);
        check(22);
        // A change during an item takes effect with the next item.
        hook.wants.store(false, Ordering::Relaxed);
        let turn_on = || {
            hook.wants.store(true, Ordering::Relaxed);
            Ok(())
        };
        hooks.item(item(), turn_on).unwrap();
        assert_eq!(hook.calls.load(Ordering::Relaxed), 0);
        let log = Log::default();
        let other = RecordingHook { name: 'a', log: Arc::clone(&log), fail_in: "", panic_in: "" };
        let both: [Arc<dyn Hook>; 2] = [Arc::new(other), Arc::clone(&hook) as Arc<dyn Hook>];
        let both = Hooks::new(&Arc::from(both), stage());
        hook.wants.store(false, Ordering::Relaxed);
        both.item(item(), || Ok(())).unwrap();
        assert_eq!(hook.calls.load(Ordering::Relaxed), 11);
        assert_eq!(calls(&log).matches("after").count(), 1);
    }

    #[test]
    fn all_methods_of_a_hook_are_optional() {
        #[derive(Debug)]
        struct IgnoringHook;
        impl Hook for IgnoringHook {}
        let hooks = Hooks::new(&Arc::from([Arc::new(IgnoringHook) as Arc<dyn Hook>]), stage());
        hooks.started_once().unwrap();
        hooks.item(item(), || Ok(())).unwrap();
        hooks.ended().unwrap();
    }
}
