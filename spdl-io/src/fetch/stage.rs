//! [`Fetch`]: the pipeline stage that reads objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::memory::usable_memory;
use spdl_core::stage::Medium;
use spdl_core::{AsyncContext, AsyncStage, BatchLayout, Labeled, Result};

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

    /// The recommended memory in bytes of a stage that reads images or fills batches, for
    /// [`PipelineBuilder::largest_item`](spdl_core::PipelineBuilder::largest_item).
    ///
    /// The memory is enough for the live batches of `workers` workers, and at least
    /// [`READ_AHEAD_BYTES`](Fetch::READ_AHEAD_BYTES). But two stages together use at most a quarter
    /// of the [usable memory](usable_memory), unless a single batch is larger.
    pub fn stage_memory(layout: &BatchLayout, workers: usize) -> usize {
        stage_memory(layout, workers, usable_memory())
    }

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

/// Computes [`Fetch::stage_memory`] for `usable` bytes of memory.
fn stage_memory(layout: &BatchLayout, workers: usize, usable: u64) -> usize {
    let batches = layout.live_bytes(workers);
    let batch = batches / layout.live_batches(workers).max(1);
    let most = usize::try_from(usable / 8).unwrap_or(usize::MAX).max(batch);
    batches.max(Fetch::READ_AHEAD_BYTES).min(most).max(1)
}

#[async_trait]
impl AsyncStage<Labeled<Key>> for Fetch {
    type Out = Labeled<Bytes>;

    async fn process(&self, item: Labeled<Key>, cx: &AsyncContext) -> Result<Labeled<Bytes>> {
        let memory = ItemMemory::new(cx, self.max_bytes);
        let bytes = self.fetcher.read_whole(&item.value, &memory).await?;
        Ok(Labeled { value: bytes, label: item.label })
    }

    fn medium(&self) -> Medium {
        medium_of(&*self.fetcher)
    }
}

/// What reads from a fetcher wait for.
pub(crate) fn medium_of(fetcher: &dyn Fetcher) -> Medium {
    match fetcher.capability().local_versions {
        true => Medium::Disk,
        false => Medium::Network,
    }
}

/// Memory from the reservation of an item in a pipeline's memory budget.
pub(crate) struct ItemMemory<'a> {
    cx: &'a AsyncContext,
    /// The limit of one object in bytes.
    max_bytes: u64,
    /// Bytes of this part of the item.
    own: AtomicU64,
    /// Bytes of all parts of the item, if it has several.
    all: Option<&'a AtomicU64>,
}

impl<'a> ItemMemory<'a> {
    pub(crate) fn new(cx: &'a AsyncContext, max_bytes: u64) -> Self {
        ItemMemory { cx, max_bytes, own: AtomicU64::new(0), all: None }
    }

    /// Memory of one of several parts, which are read concurrently. `all` counts the bytes of all
    /// parts.
    pub(crate) fn part(cx: &'a AsyncContext, max_bytes: u64, all: &'a AtomicU64) -> Self {
        ItemMemory { all: Some(all), ..ItemMemory::new(cx, max_bytes) }
    }
}

#[async_trait]
impl ReadMemory for ItemMemory<'_> {
    fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    fn reserved_bytes(&self) -> u64 {
        let own = self.own.load(Ordering::Relaxed);
        let all = self.all.map_or(own, |all| all.load(Ordering::Relaxed));
        (self.cx.reserved_bytes() as u64).saturating_sub(all.saturating_sub(own))
    }

    async fn reserve(&self, bytes: u64) {
        let before = self.own.fetch_max(bytes, Ordering::Relaxed);
        let more = bytes.saturating_sub(before);
        let all = match self.all {
            Some(all) => all.fetch_add(more, Ordering::Relaxed).saturating_add(more),
            None => bytes,
        };
        self.cx.reserve(usize::try_from(all).unwrap_or(usize::MAX)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spdl_core::{DType, Field};

    // promise: R4
    #[test]
    fn the_default_budget_fits_the_usable_memory() {
        const MIB: usize = 1 << 20;
        let layout =
            |size| BatchLayout::new(32, [Field::new("image", DType::U8, &[size, size, 3])]);
        let (usual, large) = (layout(224), layout(2048));
        let memory = |layout: &BatchLayout, workers, usable_mib: u64| {
            stage_memory(layout, workers, usable_mib << 20)
        };
        // Without a limit: the live batches, at least 16 MiB.
        assert_eq!(memory(&usual, 2, 16 << 10), usual.live_bytes(2));
        assert_eq!(memory(&layout(8), 2, 16 << 10), 16 * MIB);
        // In a control group of 600 MiB: two stages use a quarter.
        assert_eq!(memory(&usual, 512, 600), 75 * MIB);
        assert!(usual.live_bytes(512) > 75 * MIB);
        assert_eq!(memory(&layout(8), 2, 64), 8 * MIB);
        // A single batch fits always.
        assert_eq!(memory(&large, 2, 600), 32 * 2048 * 2048 * 3);
    }
}
