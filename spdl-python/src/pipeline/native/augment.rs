//! The operator that augments decoded images, in arrays or in batch slots.

use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::{
    Batch, BatchLayout, Fill, FillContext, PipelineBuilder, Result, SlotMut, StageContext,
};
use spdl_media::augment::{Augmenter, ImageMut};

use super::super::Item;
use super::super::stage::queue_len;
use super::{IMAGES, LABELS, NO_LABEL, NativeItem, OperatorSettings, Pixels, failed};
use crate::operators::{AUGMENT, ImageAugmenter, augment_pixels, pixels_of, size_of};

/// The key, in error messages, of pixels passed from Python.
const PIXELS: &str = "pixels";

/// Augments images on dedicated threads.
pub(super) struct AugmentPart {
    pub(super) settings: OperatorSettings,
    augmenter: ImageAugmenter,
}

impl AugmentPart {
    pub(super) fn new(settings: OperatorSettings, augmenter: ImageAugmenter) -> Self {
        AugmentPart { settings, augmenter }
    }

    pub(super) fn threads(&self) -> usize {
        self.settings.threads()
    }

    pub(super) fn enter(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Pixels> {
        let buffers = BufferPool::new();
        let read = move |data: &Bound<'_, PyAny>| Ok((PIXELS.into(), pixels_of(data, &buffers)?));
        self.settings.enter(pipeline, None, read)
    }

    pub(super) fn add_to(&self, pixels: PipelineBuilder<Pixels>) -> PipelineBuilder<Pixels> {
        let options = self.settings.options().concurrency(self.threads()).dedicated();
        pixels.stage(options.queue(queue_len(self.threads())), self.worker())
    }

    /// Copies images to batch slots and augments them there.
    pub(super) fn fill(
        &self,
        pixels: PipelineBuilder<Pixels>,
        layout: BatchLayout,
    ) -> PipelineBuilder<Batch> {
        let options = self.settings.options().concurrency(self.threads()).dedicated();
        pixels.fill(options, layout, self.worker())
    }

    fn worker(&self) -> impl Fn() -> Result<AugmentWorker> + Send + Sync + 'static {
        let (described, stage) = (self.augmenter.clone(), Arc::clone(&self.settings.name));
        move || {
            let (augmenter, stage) = (described.instance(), Arc::clone(&stage));
            Ok(AugmentWorker { augmenter, seed: described.seed, stage })
        }
    }
}

/// The augmenter of one thread.
struct AugmentWorker {
    augmenter: Augmenter,
    seed: u64,
    stage: Arc<str>,
}

impl spdl_core::Stage<Pixels> for AugmentWorker {
    type Out = Pixels;

    fn process(&mut self, item: Pixels, cx: &mut StageContext<'_, Pixels>) -> Result<()> {
        let NativeItem { name, value, label } = item;
        let (mut pixels, mut rng) = (value?, cx.rng_of(self.seed, AUGMENT));
        let changed = augment_pixels(&mut self.augmenter, &mut pixels, &mut rng);
        changed.map_err(|error| failed(error, &self.stage, &name))?;
        cx.emit(NativeItem { name, value: Ok(pixels), label })
    }
}

impl Fill<Pixels> for AugmentWorker {
    fn fill(
        &mut self,
        item: Pixels,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        let NativeItem { name, value, label } = item;
        let (pixels, mut rng) = (value?, cx.rng_of(self.seed, AUGMENT));
        let pixels_out = slot.typed_mut::<u8>(IMAGES)?;
        pixels_out.copy_from_slice(pixels.as_bytes());
        let image = size_of(pixels.shape()).and_then(|size| ImageMut::new(pixels_out, size));
        let changed = image.and_then(|mut image| self.augmenter.apply(&mut image, &mut rng));
        changed.map_err(|error| failed(error, &self.stage, &name))?;
        slot.set(LABELS, label.unwrap_or(NO_LABEL))
    }
}
