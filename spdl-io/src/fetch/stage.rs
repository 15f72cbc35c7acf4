//! [`Fetch`]: the pipeline stage that reads objects.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{AsyncContext, AsyncStage, Labeled, Result};

use crate::fetch::{Fetcher, Key, ReadMemory};

/// The pipeline stage that reads the object of each key with a [`Fetcher`]. The stage forwards
/// labels unchanged.
#[derive(Clone, Debug)]
pub struct Fetch {
    fetcher: Arc<dyn Fetcher>,
    max_bytes: u64,
}

impl Fetch {
    /// Default for the largest object: 64 MiB. See [`with_max_bytes`](Fetch::with_max_bytes).
    ///
    /// One object per stage may exceed the memory budget of a pipeline, so this limit bounds the
    /// memory beyond the budget.
    pub const DEFAULT_MAX_BYTES: u64 = 64 << 20;

    /// Recommended queue length, in objects, between reading and decoding images: 16. Use it as
    /// [`StageOptions::queue`](spdl_core::StageOptions::queue).
    pub const READ_AHEAD: usize = 16;

    /// Recommended limit of the bytes in the queue between reading and decoding images: 16 MiB. If
    /// the total size of the live batches is larger, use that size instead.
    ///
    /// Large photographs are read ahead to hide the latency of a disk. Use it as
    /// [`PipelineBuilder::largest_item`](spdl_core::PipelineBuilder::largest_item) after
    /// [`measured`](spdl_core::PipelineBuilder::measured).
    pub const READ_AHEAD_BYTES: usize = 16 << 20;

    /// Reads whole objects of up to [`DEFAULT_MAX_BYTES`](Fetch::DEFAULT_MAX_BYTES).
    pub fn new(fetcher: Arc<dyn Fetcher>) -> Self {
        Fetch { fetcher, max_bytes: Fetch::DEFAULT_MAX_BYTES }
    }

    /// Sets the maximum size of an object in bytes. Larger objects fail with `LimitExceeded`,
    /// before reading if the fetcher knows the size.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }
}

#[async_trait]
impl AsyncStage<Labeled<Key>> for Fetch {
    type Out = Labeled<Bytes>;

    async fn process(&self, item: Labeled<Key>, cx: &AsyncContext) -> Result<Labeled<Bytes>> {
        let memory = ItemMemory { cx, max_bytes: self.max_bytes, used: 0 };
        let bytes = self.fetcher.read_whole(&item.value, &memory).await?;
        Ok(Labeled { value: bytes, label: item.label })
    }
}

/// Memory from the reservation of an item in a pipeline's memory budget.
pub(crate) struct ItemMemory<'a> {
    pub(crate) cx: &'a AsyncContext,
    /// The limit of one object in bytes.
    pub(crate) max_bytes: u64,
    /// Bytes of the item's other parts.
    pub(crate) used: u64,
}

#[async_trait]
impl ReadMemory for ItemMemory<'_> {
    fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    fn reserved_bytes(&self) -> u64 {
        (self.cx.reserved_bytes() as u64).saturating_sub(self.used)
    }

    async fn reserve(&self, bytes: u64) {
        let all = self.used.saturating_add(bytes);
        self.cx.reserve(usize::try_from(all).unwrap_or(usize::MAX)).await;
    }
}
