//! Exporters of statistics and events to the crates `metrics` and `tracing`, and to a Unix socket.

#[cfg(feature = "tracing")]
mod folding;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
#[cfg(all(feature = "serde", unix))]
pub(crate) mod monitor_socket;
#[cfg(feature = "tracing")]
pub(crate) mod tracing;
