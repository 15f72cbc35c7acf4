//! [`Tune`]: the tuner of a running pipeline, and settings of earlier runs.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
#[cfg(feature = "serde")]
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;

#[cfg(feature = "serde")]
use crate::error::{Error, ErrorKind};
use crate::error::{Result, guarded};
use crate::observe::hooks::Hook;
use crate::observe::interval::Snapshotter;
use crate::observe::tuner::{Tuner, TuningDecision};
use crate::pipeline::control::Control;
use crate::scheduler::window::LearnedWindows;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The consumer wakes the tuner at most this often.
const INTERVAL: Duration = Duration::from_millis(500);
/// An evaluation needs so many items of the fastest stage, or [`LONGEST_INTERVAL`].
const MIN_ITEMS: u64 = 64;
const LONGEST_INTERVAL: Duration = Duration::from_secs(2);

/// How [`PipelineBuilder::tune`](crate::PipelineBuilder::tune) chooses settings.
pub struct Tune(TuneMode);

#[derive(Debug)]
enum TuneMode {
    Automatic,
    Waiting,
    Fixed(StaticSettings),
}

impl Tune {
    /// Changes settings while the pipeline runs, as [`Tuner`] chooses.
    pub fn automatic() -> Self {
        Tune(TuneMode::Automatic)
    }

    /// Raises only the number of threads, and only while the threads mostly wait, for example for
    /// files.
    pub fn waiting() -> Self {
        Tune(TuneMode::Waiting)
    }

    /// Uses the settings of an earlier run, see [`Control::freeze`]. They do not change; the
    /// in-flight window and the prefetch depth do not adapt.
    pub fn fixed(settings: StaticSettings) -> Self {
        Tune(TuneMode::Fixed(settings))
    }

    /// Whether a concurrency that is set in the builder is only a starting value.
    pub(crate) fn changes_concurrency(&self) -> bool {
        matches!(self.0, TuneMode::Automatic)
    }

    /// The settings, if they do not change.
    pub(crate) fn fixed_settings(&self) -> Option<&StaticSettings> {
        match &self.0 {
            TuneMode::Fixed(settings) => Some(settings),
            _ => None,
        }
    }

    /// Applies the settings, and returns the task that tunes them.
    pub(crate) fn begin(
        self,
        control: Control,
        hooks: Arc<[Arc<dyn Hook>]>,
        learned: LearnedSettings,
    ) -> Result<Option<TuningTask>> {
        if let Some(settings) = self.fixed_settings() {
            control.check(settings)?;
            control.restore(settings)?;
            return Ok(None);
        }
        let mut tuner = match self.0 {
            TuneMode::Waiting => Tuner::new().only_waiting(),
            _ => Tuner::new(),
        };
        let earlier = learned.tuned.lock().clone();
        if let Some((of_last_run, mut settings)) = earlier {
            // The stages restore their windows themselves.
            settings.stages.retain(|stage, _| learned.windows.of(stage).is_none());
            control.restore(&settings)?;
            tuner = of_last_run;
            if let Some(undo) = tuner.next_run() {
                control.apply(&undo)?;
            }
            // This run may be too short for an evaluation.
            *learned.tuned.lock() = Some((tuner.clone(), control.freeze()));
        }
        Ok(Some(TuningTask {
            tuner: control.fixed_stages().fold(tuner, Tuner::keep_concurrency),
            learned,
            control,
            hooks,
            snapshotter: Snapshotter::default(),
            evaluated: (Duration::ZERO, 0),
            due: Arc::default(),
        }))
    }
}

impl fmt::Display for Tune {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            TuneMode::Automatic => "automatic",
            TuneMode::Waiting => "threads that wait",
            TuneMode::Fixed(_) => "fixed settings",
        })
    }
}

impl fmt::Debug for Tune {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tune({:?})", self.0)
    }
}

/// Threads, concurrency and queues of a pipeline, from [`Control::freeze`].
///
/// With the feature `serde`, the settings can be written as a JSON file:
///
/// ```
/// # #[cfg(feature = "serde")] {
/// # use spdl_core::PipelineBuilder;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("settings.json");
/// use spdl_core::pipeline::{StaticSettings, Tune};
/// let build = || PipelineBuilder::from_iter(0..9).map("work", |n| Ok(n));
/// let mut pipeline = build().tune(Tune::automatic()).build()?;
/// assert_eq!(pipeline.by_ref().count(), 9);
/// pipeline.control().freeze().save(&path)?;
///
/// let settings = StaticSettings::load(&path)?;
/// assert_eq!(build().tune(Tune::fixed(settings)).build()?.count(), 9);
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct StaticSettings {
    /// Number of threads of the shared worker pool.
    pub threads: usize,
    /// The stages, by [identity](crate::StageOptions::identity): the name, unless another is set.
    pub stages: BTreeMap<String, StaticStage>,
}

/// Settings of a stage in [`StaticSettings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct StaticStage {
    /// Maximum number of items that the stage processes concurrently; `None` if it is always 1.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub concurrency: Option<usize>,
    /// Capacity of the queue after the stage. Each item in progress has a place in the queue, so
    /// that a smaller capacity than `concurrency` counts as `concurrency`.
    pub queue: usize,
}

#[cfg(feature = "serde")]
impl StaticSettings {
    /// Writes the settings as a JSON file.
    ///
    /// # Errors
    /// `Io` if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other);
        text.and_then(|text| std::fs::write(path, text + "\n")).map_err(|error| {
            let message = format!("cannot write the settings {:?}", path.display());
            Error::new(ErrorKind::Io, message).with_source(error)
        })
    }

    /// Reads settings that [`save`](Self::save) has written.
    ///
    /// # Errors
    /// `NotFound` or `Io` if the file cannot be read. `InvalidArgument` if it has another format.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = std::fs::read(path).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Io,
            };
            let message = format!("cannot read the settings {:?}", path.display());
            Error::new(kind, message).with_source(error)
        })?;
        serde_json::from_slice(&text).map_err(|error| {
            let message = format!(
                "{:?} has no settings of a pipeline; pass a file that `save` or `freeze` has written",
                path.display()
            );
            Error::new(ErrorKind::InvalidArgument, message).with_source(error)
        })
    }
}

/// Settings that the runs of a loader have learned. Clones share them.
///
/// [`PipelineBuilder::learned`](crate::PipelineBuilder::learned) passes them from run to run.
#[derive(Clone, Debug, Default)]
pub struct LearnedSettings {
    pub(crate) windows: LearnedWindows,
    /// The tuner of the last run, and its settings.
    tuned: Arc<Mutex<Option<(Tuner, StaticSettings)>>>,
}

/// Wakes the tuner when an evaluation is due.
#[derive(Default)]
struct EvaluationDue {
    is_due: AtomicBool,
    task: AtomicWaker,
}

/// Runs a tuner: a task that sleeps until the consumer has received an item.
pub(crate) struct TuningTask {
    control: Control,
    tuner: Tuner,
    learned: LearnedSettings,
    hooks: Arc<[Arc<dyn Hook>]>,
    snapshotter: Snapshotter,
    /// When the last evaluation was, and how many items a stage had processed.
    evaluated: (Duration, u64),
    due: Arc<EvaluationDue>,
}

/// Part of the consumer: wakes the tuner at a delivery, at most every [`INTERVAL`]. So a pipeline
/// whose consumer pauses needs no timer.
pub(crate) struct TuningClock {
    due: Arc<EvaluationDue>,
    next: Option<Instant>,
}

impl TuningClock {
    /// Called after items were delivered.
    pub(crate) fn delivered(&mut self, now: Instant) {
        if self.next.is_none_or(|next| now >= next) {
            self.next = now.checked_add(INTERVAL);
            self.due.is_due.store(true, Ordering::SeqCst);
            self.due.task.wake();
        }
    }
}

impl TuningTask {
    pub(crate) fn clock(&self) -> TuningClock {
        TuningClock { due: Arc::clone(&self.due), next: None }
    }

    pub(crate) async fn run(mut self) {
        let due = Arc::clone(&self.due);
        loop {
            poll_fn(|cx| {
                due.task.register(cx.waker());
                match due.is_due.swap(false, Ordering::SeqCst) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            self.evaluate();
        }
    }

    fn evaluate(&mut self) {
        let shared = &self.control.shared;
        let items = shared.meters().iter().map(|meter| meter.progress().items).max().unwrap_or(0);
        let (last, before) = self.evaluated;
        let now = shared.elapsed();
        let length = now.saturating_sub(last);
        let is_precise = items.saturating_sub(before) >= MIN_ITEMS || length >= LONGEST_INTERVAL;
        if length < self.tuner.length() || !is_precise {
            return;
        }
        self.evaluated = (now, items);
        let interval = self.snapshotter.interval(shared.raw());
        let change = self.tuner.next(&interval);
        if let Some(change) = change {
            // If a thread cannot be created, the trial measures no gain.
            drop(self.control.apply(&change));
        }
        *self.learned.tuned.lock() = Some((self.tuner.clone(), self.control.freeze()));
        let decisions: Vec<TuningDecision> = self.tuner.decisions().cloned().collect();
        let before = std::mem::replace(&mut *shared.decisions.lock(), decisions.clone());
        // One evaluation ends at most one trial, and starts at most one.
        let recent = decisions.iter().rev().take(2).rev();
        for decision in recent.filter(|decision| !before.contains(decision)) {
            let called = guarded(|| {
                self.hooks.iter().for_each(|hook| hook.tuned(shared.number, decision));
                Ok(())
            });
            drop(called);
        }
    }
}
