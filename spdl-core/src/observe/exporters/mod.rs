//! Exporters of statistics and events to other crates of the ecosystem.

#[cfg(feature = "tracing")]
mod folding;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
#[cfg(feature = "tracing")]
pub(crate) mod tracing;
