//! Observation: statistics, diagnosis, hooks, and the quarantine list of failed samples.
//!
//! | file | what |
//! |---|---|
//! | `statistics` | [`Statistics`], and the counters from which they are computed |
//! | `histogram` | [`Quantiles`]: a log-linear histogram of durations |
//! | `interval` | [`Interval`]: the difference between two snapshots of the counters |
//! | `diagnosis` | [`Limit`]: which stage or resource limits the throughput, and what to change |
//! | `stalls` | [`Stall`]: a stage that makes no progress while the consumer waits |
//! | `hooks` | [`Hook`]: callbacks of stages and items |
//! | `quarantine` | `Quarantine`: a file that lists the samples that failure policies dropped |
//! | `exporters/` | [`Hook`]s and listeners for the crates `tracing` and `metrics` |
//!
//! Imports: `error`, `sync`, `seconds`, `runtime`, `memory`, `source`, `item`, `stage`.

pub(crate) mod diagnosis;
pub(crate) mod exporters;
pub(crate) mod histogram;
pub(crate) mod hooks;
pub(crate) mod interval;
#[cfg(feature = "serde")]
pub(crate) mod quarantine;
pub(crate) mod stalls;
pub(crate) mod statistics;

pub use crate::sync::Counter;
pub use diagnosis::Limit;
#[cfg(feature = "metrics")]
pub use exporters::metrics::MetricsExporter;
#[cfg(feature = "tracing")]
pub use exporters::tracing::TracingHook;
pub use histogram::Quantiles;
pub use hooks::{Hook, ItemInfo, ItemOutcome, StageInfo};
pub use interval::Interval;
#[cfg(feature = "serde")]
pub use quarantine::{Entry, Quarantine, QuarantineList};
pub use stalls::{Stall, StallCause};
pub use statistics::{
    ConsumerStatistics, Dropped, DroppedCount, MAX_DROPPED_LISTED, QueueStatistics, StageKind,
    StageStatistics, Statistics,
};
