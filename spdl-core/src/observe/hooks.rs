//! Code of the user's around stages and items: to trace, to count, to check.

use std::fmt::{self, Debug};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
// Numbers for display, and calls that are made once: nothing for a model checker to explore.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use crate::error::{Error, ErrorKind, Result, panicked};
use crate::item::ItemHeader;
use crate::observe::statistics::StageKind;
use crate::source::sample::SampleId;

/// Is told what a pipeline does, stage by stage and item by item.
///
/// All methods do nothing by default. They are called on the threads that do the work, for several
/// items at once, and what they do is part of an item's time: keep them short. For each stage the
/// calls come in this order: `stage_started` once, before its first item; `before_item` and
/// `after_item` in pairs; `stage_ended` once, after its last item, also where the pipeline is
/// stopped, fails or is dropped. An `after_item` follows each `before_item` that returned `Ok`, also
/// where the item failed, panicked or was cut short by the end. Of a source only the life is told,
/// since its items begin there.
///
/// For a stage that computes, both calls for an item come from the same thread, and between them
/// that thread may process items of stages nearer to the consumer. For one that waits, they may come
/// from different threads.
///
/// Several hooks nest: `before` and `started` are called in the order in which the hooks were given,
/// `after` and `ended` in the reverse. A hook that panics is caught; the panic becomes an error of
/// kind [`Panicked`](ErrorKind::Panicked).
///
/// ```
/// use spdl_core::Hook;
/// use spdl_core::observe::{ItemInfo, ItemOutcome, StageInfo};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// /// Counts the items that took too long.
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
    /// A stage begins its life: before its first item, once for all its instances and epochs.
    ///
    /// # Errors
    /// An error ends the pipeline.
    fn stage_started(&self, stage: &StageInfo) -> Result<()> {
        let _ = stage;
        Ok(())
    }

    /// A stage has ended. Called for each `stage_started` that returned `Ok`.
    fn stage_ended(&self, stage: &StageInfo) {
        let _ = stage;
    }

    /// Whether it is to be told of items just now: asked before each, and quick. Where no hook of a
    /// pipeline wants that, nothing is measured and nobody told; where one does, all are told, of
    /// `before_item` and of `after_item`. Default: yes.
    fn wants_items(&self) -> bool {
        true
    }

    /// An item is about to be processed.
    ///
    /// # Errors
    /// An error is a failure of the item, which then is not processed; the stage's policy decides
    /// what follows.
    fn before_item(&self, stage: &StageInfo, item: &ItemInfo<'_>) -> Result<()> {
        let _ = (stage, item);
        Ok(())
    }

    /// An item was processed, or failed.
    fn after_item(&self, stage: &StageInfo, item: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
        let _ = (stage, item, outcome);
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
}

/// Which stage of which pipeline. Displayed, it reads `0:1:decode[4]`: pipeline, position, name and
/// concurrency.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageInfo {
    /// The pipeline's number in this process, counted from 0 in the order of building.
    pub pipeline: u64,
    /// The stage's position, counted from the source, which is 0.
    pub index: usize,
    /// The name given to the builder.
    pub name: Arc<str>,
    /// What kind of work it does.
    pub kind: StageKind,
    /// How many items it may work on at once, as of the start.
    pub concurrency: usize,
}

impl StageInfo {
    /// For calling a hook by hand, in its tests say.
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

/// Which item.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemInfo<'a> {
    /// Who it is.
    pub id: SampleId,
    /// What people call it: a path, an object key.
    pub key: Option<&'a str>,
}

impl<'a> ItemInfo<'a> {
    /// For calling a hook by hand, in its tests say.
    pub fn new(id: SampleId, key: Option<&'a str>) -> Self {
        ItemInfo { id, key }
    }
}

/// How processing an item went.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct ItemOutcome<'a> {
    /// Whether it was processed, and if not, why. An item that was cut short because the pipeline
    /// ends has an error of kind [`Stopped`](ErrorKind::Stopped).
    pub result: Result<(), &'a Error>,
    /// When it began: before the first hook's `before_item`.
    pub began: Instant,
    /// How long it took since then.
    pub elapsed: Duration,
}

impl<'a> ItemOutcome<'a> {
    /// For calling a hook by hand, in its tests say: of an item that ends now.
    pub fn new(result: Result<(), &'a Error>, elapsed: Duration) -> Self {
        let now = Instant::now();
        ItemOutcome { result, began: now.checked_sub(elapsed).unwrap_or(now), elapsed }
    }
}

/// A number for a new pipeline, unlike all others in this process.
pub(crate) fn next_pipeline() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The hooks of one stage. Where there are none, each call is one branch.
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
    /// The hooks of a pipeline, for one of its stages.
    pub(crate) fn new(hooks: &Arc<[Arc<dyn Hook>]>, stage: StageInfo) -> Self {
        let with_hooks = || StageHooks {
            hooks: Arc::clone(hooks),
            stage,
            started: OnceLock::new(),
            ended: AtomicBool::new(false),
        };
        Hooks((!hooks.is_empty()).then(|| Arc::new(with_hooks())))
    }

    /// Says that the stage begins, the first time it is called; whoever calls it meanwhile waits
    /// until the hooks have been told. Where one of them refuses, those before it are told of the
    /// end.
    ///
    /// # Errors
    /// The hook's own, or `Panicked` where it panicked, each time. The pipeline is to end with it.
    pub(crate) fn started_once(&self) -> Result<()> {
        match &self.0 {
            Some(hooks) => hooks.started.get_or_init(|| hooks.start()).clone(),
            None => Ok(()),
        }
    }

    /// Says that the stage has ended, once, if it ever began. The last copy does it at the latest
    /// when it is dropped. All hooks are told, whatever happens in one of them.
    ///
    /// # Errors
    /// `Panicked` where a hook panicked. The pipeline is to end with it.
    pub(crate) fn ended(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |hooks| hooks.end())
    }

    /// Processes an item between the hooks. A panic goes on after the hooks were told of it.
    ///
    /// # Errors
    /// A failure of the item: that of `work`, the refusal of a hook, or the panic of one.
    pub(crate) fn item<'a, R>(
        &'a self,
        item: impl Into<ItemInfo<'a>>,
        work: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let Some(hooks) = self.for_an_item() else { return work() };
        let entered = hooks.enter(item.into())?;
        entered.leave(catch_unwind(AssertUnwindSafe(work)))
    }

    /// As [`item`](Self::item), for work that waits. Where the future is dropped in the middle, the
    /// hooks are told that the item was cut short.
    ///
    /// # Errors
    /// As for [`item`](Self::item).
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

    /// The hooks, where one of them wants to be told of items.
    fn for_an_item(&self) -> Option<&StageHooks> {
        self.0.as_deref().filter(|told| told.hooks.iter().any(|hook| hook.wants_items()))
    }
}

impl StageHooks {
    fn start(&self) -> Result<()> {
        for (at, hook) in self.hooks.iter().enumerate() {
            if let Err(error) = guarded(|| hook.stage_started(&self.stage)) {
                // This error is the one to tell, not what comes of undoing the rest.
                let _ = in_reverse(&self.hooks[..at], |hook| hook.stage_ended(&self.stage));
                return Err(self.locate(error));
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        let begun = matches!(self.started.get(), Some(Ok(())));
        if !begun || self.ended.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        in_reverse(&self.hooks, |hook| hook.stage_ended(&self.stage))
            .map_err(|error| self.locate(error))
    }

    fn locate(&self, error: Error) -> Error {
        error.with_stage(Arc::clone(&self.stage.name))
    }

    /// Tells the hooks that an item is about to be processed.
    fn enter<'a>(&'a self, item: ItemInfo<'a>) -> Result<Entered<'a>> {
        let mut entered = Entered { told: 0, hooks: self, item, began: Instant::now() };
        for hook in &*self.hooks {
            if let Err(error) = guarded(|| hook.before_item(&self.stage, &item)) {
                // This error is the one to tell, not what comes of undoing the rest.
                let _ = entered.after(Err(&error));
                return Err(error);
            }
            entered.told += 1;
        }
        Ok(entered)
    }
}

impl Drop for StageHooks {
    fn drop(&mut self) {
        // Nobody is left to be told of a panic; the process's panic hook has printed it.
        let _ = self.end();
    }
}

/// An item of which the hooks have been told that it is being processed. They are told how that
/// went at the latest when this is dropped.
#[derive(Debug)]
struct Entered<'a> {
    /// How many of the hooks, from the first on, are to be told of the outcome.
    told: usize,
    hooks: &'a StageHooks,
    item: ItemInfo<'a>,
    began: Instant,
}

impl Entered<'_> {
    /// Tells the hooks how it went, the last one first. All are told, whatever happens in one.
    fn after(&mut self, result: Result<(), &Error>) -> Result<()> {
        let outcome = ItemOutcome { result, began: self.began, elapsed: self.began.elapsed() };
        let hooks = &self.hooks.hooks[..std::mem::take(&mut self.told)];
        in_reverse(hooks, |hook| hook.after_item(&self.hooks.stage, &self.item, outcome))
    }

    fn leave<R>(mut self, result: std::thread::Result<Result<R>>) -> Result<R> {
        match result {
            Ok(Ok(value)) => self.after(Ok(())).map(|()| value),
            Ok(Err(error)) => {
                // The item has failed already, and that is what to tell.
                let _ = self.after(Err(&error));
                Err(error)
            }
            Err(payload) => {
                let error = panicked(payload);
                let _ = self.after(Err(&error));
                // The payload's words are all that anyone makes of it.
                let words = error.message();
                let words = words.strip_prefix("panicked: ").unwrap_or(words);
                resume_unwind(Box::new(words.to_owned()))
            }
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.told > 0 {
            let error = Error::new(ErrorKind::Stopped, "cut short by the end of the pipeline");
            // Nobody is left to be told of a panic; the process's panic hook has printed it.
            let _ = self.after(Err(&error));
        }
    }
}

/// Calls all hooks, the last one first; gives the first panic as an error.
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

/// Calls a hook; a panic becomes an error.
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

    /// Writes down its calls; does `trouble` in the method of that name.
    #[derive(Debug)]
    struct Scribe {
        name: char,
        log: Log,
        refuse_in: &'static str,
        panic_in: &'static str,
    }

    impl Scribe {
        fn note(&self, method: &str, rest: impl fmt::Display) -> Result<()> {
            self.log.lock().push(format!("{} {method}{rest}", self.name));
            assert!(self.panic_in != method, "in {method}");
            if self.refuse_in == method {
                return Err(Error::new(ErrorKind::User, format!("{} refuses", self.name)));
            }
            Ok(())
        }
    }

    impl Hook for Scribe {
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

    fn hooks(refuse: (char, &'static str), panic: (char, &'static str)) -> (Hooks, Log) {
        let log = Log::default();
        let scribe = |name| {
            let only = |(who, method)| if who == name { method } else { "" };
            let (refuse_in, panic_in) = (only(refuse), only(panic));
            Arc::new(Scribe { name, log: Arc::clone(&log), refuse_in, panic_in }) as Arc<dyn Hook>
        };
        (Hooks::new(&Arc::from(['a', 'b', 'c'].map(scribe)), stage()), log)
    }

    const NO: (char, &str) = ('-', "");

    fn stage() -> StageInfo {
        StageInfo::new(0, 1, "decode", StageKind::Cpu, 4)
    }

    fn item() -> ItemInfo<'static> {
        ItemInfo::new(SampleId { epoch: 2, index: 7 }, Some("cat.jpg"))
    }

    /// The calls so far, which are forgotten.
    fn calls(log: &Log) -> String {
        std::mem::take(&mut *log.lock()).join(", ")
    }

    const BEFORE: &str =
        "a before 7 Some(\"cat.jpg\"), b before 7 Some(\"cat.jpg\"), c before 7 Some(\"cat.jpg\")";

    fn after(kind: Option<ErrorKind>) -> String {
        format!("{BEFORE}, c after {kind:?}, b after {kind:?}, a after {kind:?}")
    }

    #[test]
    fn a_stage_is_displayed_with_pipeline_position_and_concurrency() {
        assert_eq!(stage().to_string(), "0:1:decode[4]");
    }

    #[test]
    fn each_pipeline_has_its_own_number() {
        assert_ne!(next_pipeline(), next_pipeline());
    }

    #[test]
    fn hooks_nest_in_the_order_given() {
        let (hooks, log) = hooks(NO, NO);
        hooks.started_once().unwrap();
        let stage = "0:1:decode[4]";
        assert_eq!(calls(&log), format!("a started {stage}, b started {stage}, c started {stage}"));
        assert_eq!(hooks.item(item(), || Ok(5)).unwrap(), 5);
        assert_eq!(calls(&log), after(None));
        hooks.ended().unwrap();
        assert_eq!(calls(&log), "c ended, b ended, a ended");
    }

    #[test]
    fn a_stage_begins_and_ends_once() {
        let (hooks, log) = hooks(NO, NO);
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
    fn a_stage_that_is_dropped_has_ended_and_one_that_never_began_has_not() {
        let (begun, log) = hooks(NO, NO);
        begun.started_once().unwrap();
        calls(&log);
        let copy = begun.clone();
        drop(begun);
        assert_eq!(calls(&log), "");
        drop(copy);
        assert_eq!(calls(&log), "c ended, b ended, a ended");
        let (never, log) = hooks(NO, NO);
        never.ended().unwrap();
        drop(never);
        assert_eq!(calls(&log), "");
    }

    #[test]
    fn nobody_goes_on_before_all_hooks_know_of_the_stage() {
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
    fn a_hook_that_refuses_an_item_is_undone_by_those_before_it_only() {
        let (hooks, log) = hooks(('b', "before"), NO);
        let error = hooks.item(item(), || -> Result<()> { unreachable!() }).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::User, "b refuses"));
        assert_eq!(
            calls(&log),
            "a before 7 Some(\"cat.jpg\"), b before 7 Some(\"cat.jpg\"), a after Some(User)"
        );
    }

    #[test]
    fn a_hook_that_refuses_a_stage_ends_it_for_those_before_it_only() {
        let (hooks, log) = hooks(('b', "started"), NO);
        for _ in 0..2 {
            let error = hooks.started_once().unwrap_err();
            assert_eq!(error.to_string(), "decode: b refuses");
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
        let (started, log) = hooks(NO, ('c', "started"));
        check(started.started_once());
        assert!(calls(&log).ends_with("b ended, a ended"));
        let (before, log) = hooks(NO, ('c', "before"));
        check(before.item(item(), || Ok(())));
        assert!(calls(&log).ends_with("b after Some(Panicked), a after Some(Panicked)"));
        let (in_after, log) = hooks(NO, ('b', "after"));
        check(in_after.item(item(), || Ok(())));
        assert_eq!(calls(&log), after(None));
        let (ended, log) = hooks(NO, ('b', "ended"));
        ended.started_once().unwrap();
        calls(&log);
        check(ended.ended());
        assert_eq!(calls(&log), "c ended, b ended, a ended");
    }

    #[test]
    fn the_hooks_see_why_an_item_failed_and_nothing_hides_that() {
        let (hooks, log) = hooks(NO, ('c', "after"));
        let fail = || Err::<(), _>(Error::new(ErrorKind::Corrupt, "no image"));
        assert_eq!(hooks.item(item(), fail).unwrap_err().message(), "no image");
        assert_eq!(calls(&log), after(Some(ErrorKind::Corrupt)));
    }

    #[test]
    fn the_hooks_see_the_panic_of_a_stage_which_then_goes_on() {
        let (hooks, log) = hooks(NO, NO);
        let work = || hooks.item(item(), || -> Result<()> { panic!("no {}", "image") });
        let payload = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
        assert_eq!(calls(&log), after(Some(ErrorKind::Panicked)));
        assert_eq!(panicked(payload).message(), "panicked: no image");
    }

    #[test]
    fn an_item_that_waits_is_told_like_one_that_computes() {
        let (hooks, log) = hooks(NO, NO);
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
    fn an_item_that_is_dropped_while_it_waits_was_stopped() {
        let (hooks, log) = hooks(NO, NO);
        let mut work = Box::pin(hooks.item_async(item(), std::future::pending::<Result<()>>()));
        assert!(work.as_mut().now_or_never().is_none());
        assert_eq!(calls(&log), BEFORE);
        drop(work);
        assert_eq!(format!("{BEFORE}, {}", calls(&log)), after(Some(ErrorKind::Stopped)));
    }

    #[test]
    fn the_time_of_an_item_is_that_of_its_work() {
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
    fn without_hooks_the_item_is_not_even_looked_at() {
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
    fn where_no_hook_wants_items_none_is_told_of() {
        #[derive(Debug, Default)]
        struct AtTimes {
            wants: AtomicBool,
            told: AtomicU64,
        }
        impl Hook for AtTimes {
            fn wants_items(&self) -> bool {
                self.wants.load(Ordering::Relaxed)
            }

            fn before_item(&self, _: &StageInfo, _: &ItemInfo<'_>) -> Result<()> {
                self.told.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }

            fn after_item(&self, _: &StageInfo, _: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
                assert!(outcome.began.elapsed() >= outcome.elapsed);
                self.told.fetch_add(10, Ordering::Relaxed);
            }
        }
        let hook = Arc::new(AtTimes::default());
        let hooks = Hooks::new(&Arc::from([Arc::clone(&hook) as Arc<dyn Hook>]), stage());
        let told = |of| {
            hooks.item(item(), || Ok(())).unwrap();
            crate::runtime::block_on(hooks.item_async(item(), async { Ok(()) })).unwrap();
            assert_eq!(hook.told.swap(0, Ordering::Relaxed), of);
        };
        told(0);
        hook.wants.store(true, Ordering::Relaxed);
        told(22);
        // Who wants it in the middle of an item hears of the next one.
        hook.wants.store(false, Ordering::Relaxed);
        let turn_on = || {
            hook.wants.store(true, Ordering::Relaxed);
            Ok(())
        };
        hooks.item(item(), turn_on).unwrap();
        assert_eq!(hook.told.load(Ordering::Relaxed), 0);
        let log = Log::default();
        let scribe = Scribe { name: 'a', log: Arc::clone(&log), refuse_in: "", panic_in: "" };
        let both: [Arc<dyn Hook>; 2] = [Arc::new(scribe), Arc::clone(&hook) as Arc<dyn Hook>];
        let beside = Hooks::new(&Arc::from(both), stage());
        hook.wants.store(false, Ordering::Relaxed);
        beside.item(item(), || Ok(())).unwrap();
        assert_eq!(hook.told.load(Ordering::Relaxed), 11);
        assert_eq!(calls(&log).matches("after").count(), 1);
    }

    #[test]
    fn a_hook_may_leave_out_every_method() {
        #[derive(Debug)]
        struct IgnoringHook;
        impl Hook for IgnoringHook {}
        let hooks = Hooks::new(&Arc::from([Arc::new(IgnoringHook) as Arc<dyn Hook>]), stage());
        hooks.started_once().unwrap();
        hooks.item(item(), || Ok(())).unwrap();
        hooks.ended().unwrap();
    }
}
