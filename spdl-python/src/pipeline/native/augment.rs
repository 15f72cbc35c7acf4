//! The operator that changes decoded images at random, in place.

use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::{
    Batch, BatchLayout, Fill, FillContext, PipelineBuilder, Result, SlotMut, StageContext,
};
use spdl_media::augment::{Augmenter, ImageMut};

use super::super::Item;
use super::super::stage::between;
use super::{Carried, IMAGES, LABELS, NO_LABEL, Pixels, Settings, failed};
use crate::operators::{AUGMENT, ImageAugmenter, change, pixels_of, size_of};

/// What the pixels are called in messages that Python gave.
const PIXELS: &str = "pixels";

/// What changes images, on threads of its own.
pub(super) struct AugmentPart {
    pub(super) settings: Settings,
    augmenter: ImageAugmenter,
}

impl AugmentPart {
    pub(super) fn new(settings: Settings, augmenter: ImageAugmenter) -> Self {
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
        pixels.stage(options.queue(between(self.threads())), self.worker())
    }

    /// Changes images in their place in a batch, into which they are copied.
    pub(super) fn fill(
        &self,
        pixels: PipelineBuilder<Pixels>,
        layout: BatchLayout,
    ) -> PipelineBuilder<Batch> {
        let options = self.settings.options().concurrency(self.threads()).dedicated();
        pixels.fill(options, layout, self.worker())
    }

    fn worker(&self) -> impl Fn() -> Result<Change> + Send + Sync + 'static {
        let (described, stage) = (self.augmenter.clone(), Arc::clone(&self.settings.name));
        move || {
            let (augmenter, stage) = (described.instance(), Arc::clone(&stage));
            Ok(Change { augmenter, seed: described.seed, stage })
        }
    }
}

/// What a thread changes images with.
struct Change {
    augmenter: Augmenter,
    seed: u64,
    stage: Arc<str>,
}

impl spdl_core::Stage<Pixels> for Change {
    type Out = Pixels;

    fn process(&mut self, item: Pixels, cx: &mut StageContext<'_, Pixels>) -> Result<()> {
        let Carried { name, value, label } = item;
        let (mut pixels, mut rng) = (value?, cx.rng_of(self.seed, AUGMENT));
        let changed = change(&mut self.augmenter, &mut pixels, &mut rng);
        changed.map_err(|error| failed(error, &self.stage, &name))?;
        cx.emit(Carried { name, value: Ok(pixels), label })
    }
}

impl Fill<Pixels> for Change {
    fn fill(
        &mut self,
        item: Pixels,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        let Carried { name, value, label } = item;
        let (pixels, mut rng) = (value?, cx.rng_of(self.seed, AUGMENT));
        let place = slot.typed_mut::<u8>(IMAGES)?;
        place.copy_from_slice(pixels.as_bytes());
        let image = size_of(pixels.shape()).and_then(|size| ImageMut::new(place, size));
        let changed = image.and_then(|mut image| self.augmenter.apply(&mut image, &mut rng));
        changed.map_err(|error| failed(error, &self.stage, &name))?;
        slot.set(LABELS, label.unwrap_or(NO_LABEL))
    }
}
