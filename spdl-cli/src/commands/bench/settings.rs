//! Settings of the stages that `spdl tune` changes.

use spdl_core::{Batch, Pipeline, Result};

use super::run::DECODE;

/// The stage that reads.
const FETCH: &str = "fetch";

/// Settings of the stages; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageSettings {
    /// Number of samples that are read at the same time.
    pub(crate) in_flight: Option<usize>,
    /// Number of samples that are decoded at the same time.
    pub(crate) decoding: Option<usize>,
    /// Number of finished batches that wait for the consumer.
    pub(crate) prefetch: Option<usize>,
}

impl StageSettings {
    /// Applies the settings of a running pipeline: all but `prefetch`.
    ///
    /// # Errors
    /// Errors of [`Control::set_concurrency`](spdl_core::pipeline::Control::set_concurrency).
    pub(super) fn apply(&self, pipeline: Pipeline<Batch>) -> Result<Pipeline<Batch>> {
        let control = pipeline.control();
        for (stage, concurrency) in [(FETCH, self.in_flight), (DECODE, self.decoding)] {
            if let Some(concurrency) = concurrency {
                control.set_concurrency(stage, concurrency)?;
            }
        }
        Ok(pipeline)
    }
}
