//! [`Stall`]: a stage that has work but makes no progress while the consumer waits.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::guarded;
use crate::observe::statistics::StageKind;
use crate::sync::Mutex;

/// Default time without progress after which a stall is reported.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(60);

/// A stage that has work, but has finished no item for a time in which the consumer waited.
///
/// [`PipelineBuilder::on_stall`](crate::PipelineBuilder::on_stall) reports stalls. `Display` writes
/// one sentence for a log.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The name of the stage.
    pub stage: Arc<str>,
    /// The kind of the stage.
    pub kind: StageKind,
    /// What the stage waits for.
    pub cause: StallCause,
    /// Time without progress until now.
    pub lasted: Duration,
    /// Number of items that the stage has finished since the start of the pipeline.
    pub items: u64,
}

/// What a stage without progress waits for.
///
/// If several stages make no progress, the first cause in this list is reported: a function that
/// does not return may be the reason why other stages wait.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StallCause {
    /// The function of the stage has not returned, or its future has not completed.
    Function,
    /// The stage waits for free memory in the memory budget.
    Memory,
    /// The source has not yielded its next item.
    Source,
    /// The stage has items and room for results, but no worker processes them.
    Worker,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stall { stage, cause, lasted, items, .. } = self;
        let seconds = lasted.as_secs_f64();
        match cause {
            StallCause::Function => write!(
                f,
                "stage {stage:?} has finished no item for {seconds:.1} s: its function has not \
                 returned"
            ),
            StallCause::Memory => write!(
                f,
                "stage {stage:?} has waited for memory for {seconds:.1} s: the memory budget is in \
                 use; raise the budget, or shorten the queues"
            ),
            StallCause::Source => {
                write!(f, "source {stage:?} has yielded no item for {seconds:.1} s")
            }
            StallCause::Worker => write!(
                f,
                "stage {stage:?} has had items for {seconds:.1} s, but no worker has processed \
                 them; check that the threads of its executor are not blocked"
            ),
        }?;
        write!(f, " ({items} finished before)")
    }
}

/// What a stage does at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Activity {
    /// The stage has no input, has ended, or waits because its output queue is full.
    #[default]
    Idle,
    /// User code runs.
    Working,
    /// The next item waits for memory.
    WaitsForMemory,
    /// The next item waits for a worker.
    WaitsForWorker,
}

impl Activity {
    /// The activity with this discriminant.
    pub(crate) fn from_number(number: u8) -> Self {
        use Activity::{Idle, WaitsForMemory, WaitsForWorker, Working};
        let all = [Idle, Working, WaitsForMemory, WaitsForWorker];
        all.into_iter().find(|activity| *activity as u8 == number).unwrap_or_default()
    }

    fn cause(self, kind: StageKind) -> Option<StallCause> {
        match self {
            Activity::Idle => None,
            Activity::Working if kind == StageKind::Source => Some(StallCause::Source),
            Activity::Working => Some(StallCause::Function),
            Activity::WaitsForMemory => Some(StallCause::Memory),
            Activity::WaitsForWorker => Some(StallCause::Worker),
        }
    }
}

/// The progress and the activity of a stage at one moment.
#[derive(Clone, Debug)]
pub(crate) struct StageProgress {
    pub(crate) stage: Arc<str>,
    pub(crate) kind: StageKind,
    pub(crate) items: u64,
    pub(crate) items_out: u64,
    pub(crate) activity: Activity,
}

pub(crate) type StallListener = Box<dyn Fn(&Stall) + Send + Sync>;

/// Detects stalls by comparing the counters of the stages at successive times.
///
/// A thread calls [`check`](Self::check) while it waits for the pipeline, so items cost nothing.
pub(crate) struct StallWatch {
    /// Time without progress after which a stall is reported.
    after: Duration,
    listener: Option<StallListener>,
    state: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    checked: Option<Instant>,
    stages: Vec<WatchedStage>,
}

struct WatchedStage {
    /// Counts of inputs and outputs.
    counts: (u64, u64),
    /// When the stage last made progress or had no work.
    since: Instant,
    /// Whether the current stall was reported.
    reported: bool,
    /// Time without progress after which the next stall is reported. Doubles with each report, so
    /// that a stage with a slow function is not reported for each item.
    limit: Duration,
}

impl StallWatch {
    pub(crate) fn new(after: Duration, listener: Option<StallListener>) -> Self {
        StallWatch { after, listener, state: Mutex::default() }
    }

    /// The time between checks.
    pub(crate) fn interval(&self) -> Duration {
        (self.after / 8).max(Duration::from_millis(1))
    }

    /// Compares the progress of the stages with that of earlier checks, and reports a stall once.
    ///
    /// `stages` returns `None` if the consumer does not wait for an item. Returns immediately if
    /// the last check is more recent than the interval.
    pub(crate) fn check(&self, now: Instant, stages: impl FnOnce() -> Option<Vec<StageProgress>>) {
        let mut state = self.state.lock();
        let elapsed = state.checked.map(|checked| now.saturating_duration_since(checked));
        if elapsed.is_some_and(|elapsed| elapsed < self.interval()) {
            return;
        }
        state.checked = Some(now);
        let stall = state.compare(now, self.after, stages());
        drop(state);
        if let Some(stall) = stall {
            self.report(&stall);
        }
    }

    fn report(&self, stall: &Stall) {
        #[cfg(feature = "tracing")]
        tracing::warn!(target: "spdl", stage = &*stall.stage, "{stall}");
        if let Some(listener) = &self.listener {
            // The panic hook has already reported a panic.
            let _ = guarded(|| {
                listener(stall);
                Ok(())
            });
        }
    }
}

impl WatchState {
    /// Returns the stall to report now, if any.
    fn compare(
        &mut self,
        now: Instant,
        after: Duration,
        stages: Option<Vec<StageProgress>>,
    ) -> Option<Stall> {
        let Some(stages) = stages else {
            self.stages.iter_mut().for_each(|watched| watched.restart(now));
            return None;
        };
        let new = || WatchedStage { counts: (0, 0), since: now, reported: false, limit: after };
        self.stages.resize_with(stages.len(), new);
        let mut found: Option<(&mut WatchedStage, Stall)> = None;
        // From the consumer to the source: the stage nearest to the consumer is reported.
        for (progress, watched) in stages.into_iter().zip(&mut self.stages).rev() {
            let counts = (progress.items, progress.items_out);
            let cause = progress.activity.cause(progress.kind);
            let Some(cause) = cause.filter(|_| counts == watched.counts) else {
                watched.counts = counts;
                watched.restart(now);
                continue;
            };
            let lasted = now.saturating_duration_since(watched.since);
            if lasted >= after && found.as_ref().is_none_or(|(_, other)| cause < other.cause) {
                let StageProgress { stage, kind, items, .. } = progress;
                found = Some((watched, Stall { stage, kind, cause, lasted, items }));
            }
        }
        let (watched, stall) = found?;
        if watched.reported || stall.lasted < watched.limit {
            return None;
        }
        watched.reported = true;
        watched.limit = stall.lasted.saturating_mul(2);
        Some(stall)
    }
}

impl WatchedStage {
    fn restart(&mut self, now: Instant) {
        self.since = now;
        self.reported = false;
    }
}

impl fmt::Debug for StallWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallWatch").field("after", &self.after).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    struct Watched {
        watch: WatchState,
        start: Instant,
    }

    impl Watched {
        fn new() -> Self {
            Watched { watch: WatchState::default(), start: Instant::now() }
        }

        /// Compares stages after `seconds`, each with its items and activity.
        fn at(&mut self, seconds: u32, stages: &[(&str, u64, Activity)]) -> Option<Stall> {
            let progress = |&(name, items, activity): &(&str, u64, Activity)| StageProgress {
                stage: name.into(),
                kind: if name == "keys" { StageKind::Source } else { StageKind::Cpu },
                items,
                items_out: items,
                activity,
            };
            let stages = stages.iter().map(progress).collect();
            self.watch.compare(self.start + seconds * S, 60 * S, Some(stages))
        }
    }

    use Activity::{Idle, WaitsForMemory, WaitsForWorker, Working};

    #[test]
    // promise: R18
    fn a_stall_is_reported_once_and_progress_resets_it() {
        let mut stages = Watched::new();
        let decode = |items| [("keys", 9, Idle), ("decode", items, Working), ("batch", 3, Idle)];
        assert_eq!(stages.at(0, &decode(3)), None);
        assert_eq!(stages.at(59, &decode(3)), None);
        let stall = stages.at(61, &decode(3)).unwrap();
        assert_eq!((&*stall.stage, stall.cause, stall.items), ("decode", StallCause::Function, 3));
        assert_eq!(stall.lasted, 61 * S);
        assert_eq!(
            stall.to_string(),
            "stage \"decode\" has finished no item for 61.0 s: its function has not returned (3 \
             finished before)"
        );
        assert_eq!(stages.at(500, &decode(3)), None, "reported once");
        // The next stall is reported after twice the time.
        assert_eq!(stages.at(510, &decode(4)), None);
        assert_eq!(stages.at(580, &decode(4)), None);
        assert_eq!(stages.at(640, &decode(4)).unwrap().lasted, 130 * S);
    }

    #[test]
    // promise: R18
    fn a_stage_without_work_does_not_stall() {
        let mut stages = Watched::new();
        for seconds in [0, 50, 100, 1000] {
            assert_eq!(stages.at(seconds, &[("keys", 9, Idle), ("decode", 9, Idle)]), None);
        }
        // Work that arrives later counts from then on.
        assert_eq!(stages.at(1010, &[("keys", 9, Idle), ("decode", 9, Working)]), None);
        assert_eq!(stages.at(1050, &[("keys", 9, Idle), ("decode", 9, Working)]), None);
        assert!(stages.at(1061, &[("keys", 9, Idle), ("decode", 9, Working)]).is_some());
    }

    #[test]
    // promise: R18
    fn no_stall_is_reported_while_the_consumer_does_not_wait() {
        let mut stages = Watched::new();
        let blocked = [("decode", 9, Working)];
        assert_eq!(stages.at(0, &blocked), None);
        assert_eq!(stages.watch.compare(stages.start + 59 * S, 60 * S, None), None);
        assert_eq!(stages.at(100, &blocked), None);
        assert!(stages.at(120, &blocked).is_some());
    }

    #[test]
    // promise: R18
    fn the_cause_of_other_stalls_is_reported() {
        let causes = |stages: &[(&str, u64, Activity)]| {
            let mut watched = Watched::new();
            assert_eq!(watched.at(0, stages), None);
            let stall = watched.at(60, stages).unwrap();
            (stall.stage.to_string(), stall.cause)
        };
        let of = |stage: &str, cause| (stage.to_owned(), cause);
        let waits = [("keys", 9, Working), ("decode", 9, Working), ("resize", 0, WaitsForWorker)];
        assert_eq!(causes(&waits), of("decode", StallCause::Function));
        assert_eq!(causes(&waits[..1]), of("keys", StallCause::Source));
        assert_eq!(
            causes(&[("keys", 9, Working), ("decode", 9, WaitsForMemory)]),
            of("decode", StallCause::Memory)
        );
        assert_eq!(
            causes(&[("keys", 9, Idle), ("decode", 9, WaitsForWorker)]),
            of("decode", StallCause::Worker)
        );
        // Of several functions, the one nearest to the consumer.
        assert_eq!(
            causes(&[("decode", 9, Working), ("resize", 9, Working)]),
            of("resize", StallCause::Function)
        );
    }
}
