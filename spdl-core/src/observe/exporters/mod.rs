//! Exporters of statistics and events to the crates `metrics` and `tracing`.

#[cfg(feature = "tracing")]
mod folding;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
#[cfg(feature = "tracing")]
pub(crate) mod tracing;
