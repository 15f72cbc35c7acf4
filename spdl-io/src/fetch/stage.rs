//! The stage from keys to bytes.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{AsyncContext, AsyncStage, Labeled, Result};

use crate::fetch::{Fetcher, Key};

/// The pipeline stage that turns labelled keys into labelled bytes by a [`Fetcher`].
#[derive(Clone, Debug)]
pub struct Fetch {
    fetcher: Arc<dyn Fetcher>,
    max_bytes: u64,
}

impl Fetch {
    /// The largest object that is read unless [`with_max_bytes`](Fetch::with_max_bytes) says
    /// otherwise: 1 GiB.
    pub const DEFAULT_MAX_BYTES: u64 = 1 << 30;

    /// How many objects may wait to be decoded in a loader of images: for
    /// [`StageOptions::queue`](spdl_core::StageOptions::queue). More gain nothing.
    pub const READ_AHEAD: usize = 16;

    /// How many bytes those may have together, or as many as all batches, where that is more: large
    /// photographs are read a few ahead, as that hides the time a disk takes. For
    /// [`PipelineBuilder::largest_item`](spdl_core::PipelineBuilder::largest_item) behind
    /// [`measured`](spdl_core::PipelineBuilder::measured). 16 MiB.
    pub const READ_AHEAD_BYTES: usize = 16 << 20;

    /// Fetches whole objects of up to [`DEFAULT_MAX_BYTES`](Fetch::DEFAULT_MAX_BYTES).
    pub fn new(fetcher: Arc<dyn Fetcher>) -> Self {
        Fetch { fetcher, max_bytes: Fetch::DEFAULT_MAX_BYTES }
    }

    /// Refuses objects of more than `max_bytes` with `LimitExceeded`; where the fetcher knows the
    /// size beforehand, without reading them.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }
}

#[async_trait]
impl AsyncStage<Labeled<Key>> for Fetch {
    type Out = Labeled<Bytes>;

    async fn process(&self, item: Labeled<Key>, _: &AsyncContext) -> Result<Labeled<Bytes>> {
        let bytes = self.fetcher.read_at_most(&item.value, self.max_bytes).await?;
        Ok(Labeled { value: bytes, label: item.label })
    }
}
