//! Observation: statistics, diagnosis, hooks, and the quarantine list of failed samples.
//!
//! | file | what |
//! |---|---|
//! | `statistics` | [`Statistics`], and the counters from which they are computed |
//! | `histogram` | [`Quantiles`]: a log-linear histogram of durations |
//! | `interval` | [`Interval`]: the difference between two snapshots of the counters |
//! | `slowest` | [`SlowItem`]: the items that took longest |
//! | `thread_times` | [`ThreadTimes`]: CPU time of threads, as the system reports it; [`ExternalTimes`]; [`add_cpu_time`] |
//! | `queueing` | formulas: mean-value analysis, stages that restore the order |
//! | `model` | [`PipelineModel`]: predicts the throughput after a change |
//! | `sizing` | [`Workload`]: what a training needs of store, network, cores and memory |
//! | `diagnosis` | [`Diagnosis`]: what limits the throughput, and how much a change would gain |
//! | `setting_names` | [`SettingNames`]: how the users of a program change settings, for the advice of a diagnosis |
//! | `tuner` | [`Tuner`]: tries changes of settings, and keeps those that raise the throughput |
//! | `stalls` | [`Stall`]: a stage that makes no progress while the consumer waits |
//! | `starvation` | [`Starvation`]: a consumer that waited for data for much of the time |
//! | `hooks` | [`Hook`]: callbacks of stages and items |
//! | `quarantine` | `Quarantine`: a file that lists the samples that failure policies dropped |
//! | `exporters/` | [`Hook`]s and listeners for the crates `tracing` and `metrics`; a socket for other programs |
//!
//! Imports: `error`, `sync`, `seconds`, `runtime`, `memory`, `source`, `item`, `stage`.

pub(crate) mod diagnosis;
pub(crate) mod exporters;
pub(crate) mod histogram;
pub(crate) mod hooks;
pub(crate) mod interval;
pub(crate) mod model;
#[cfg(feature = "serde")]
pub(crate) mod quarantine;
mod queueing;
pub(crate) mod setting_names;
pub(crate) mod sizing;
pub(crate) mod slowest;
pub(crate) mod stalls;
pub(crate) mod starvation;
pub(crate) mod statistics;
pub(crate) mod thread_times;
pub(crate) mod tuner;

pub use crate::stage::Medium;
pub use crate::sync::Counter;
pub use diagnosis::{Diagnosis, Effect, Limit};
#[cfg(feature = "metrics")]
pub use exporters::metrics::MetricsExporter;
#[cfg(feature = "tracing")]
pub use exporters::tracing::TracingHook;
pub use histogram::Quantiles;
pub use hooks::{Hook, ItemInfo, ItemOutcome, StageInfo};
pub use interval::Interval;
pub use model::{PipelineModel, Prediction, Resource, SettingChange};
#[cfg(feature = "serde")]
pub use quarantine::{Entry, Quarantine, QuarantineList};
pub use setting_names::SettingNames;
pub use sizing::{ClusterPlan, PlanLimit, PlanNeeds, PlannedShards, PlannedUse, Workload};
pub use slowest::{MAX_SLOWEST_LISTED, SlowCause, SlowItem};
pub use stalls::{Stall, StallCause};
pub use starvation::Starvation;
pub use statistics::{
    CacheUse, ConsumerStatistics, Dropped, DroppedCount, GilStatistics, InFlightRate,
    MAX_DROPPED_LISTED, QueueStatistics, StageKind, StageStatistics, Statistics, WorkerTimes,
};
pub use thread_times::{ExternalTimes, GilRequests, ThreadTimes, add_cpu_time};
pub use tuner::{Tuner, TuningDecision};
