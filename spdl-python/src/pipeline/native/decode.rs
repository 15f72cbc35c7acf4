//! The operator that makes pixels of encoded images: each in an array, or in its place in a batch.

use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::{
    Batch, BatchLayout, DType, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut,
    StageContext,
};
use spdl_media::{FillImage, ImageTransform, Sample};

use super::super::Item;
use super::super::stage::between;
use super::fetch::Encoded;
use super::{Carried, IMAGES, LABELS, Labels, NO_LABEL, Pixels, Settings, failed};
use crate::operators::{BYTES, DECODE, ImageDecoder, bytes_of};

/// What decodes images. The stage has threads of its own: those of the pipeline may all be waiting for
/// the GIL.
pub(super) struct DecodePart {
    pub(super) settings: Settings,
    decoder: ImageDecoder,
}

impl DecodePart {
    pub(super) fn new(settings: Settings, decoder: ImageDecoder) -> Self {
        DecodePart { settings, decoder }
    }

    pub(super) fn transform(&self) -> &ImageTransform {
        &self.decoder.transform
    }

    pub(super) fn threads(&self) -> usize {
        self.settings.threads()
    }

    pub(super) fn enter(
        &self,
        pipeline: PipelineBuilder<Item>,
        labels: Option<Labels>,
    ) -> PipelineBuilder<Encoded> {
        let read = |data: &Bound<'_, PyAny>| Ok((BYTES.into(), bytes_of(data)?));
        self.settings.enter(pipeline, labels, read)
    }

    pub(super) fn add_to(&self, encoded: PipelineBuilder<Encoded>) -> PipelineBuilder<Pixels> {
        let options = self.settings.options().concurrency(self.threads()).dedicated();
        encoded.stage(options.queue(between(self.threads())), self.worker())
    }

    pub(super) fn fill(
        &self,
        encoded: PipelineBuilder<Encoded>,
        layout: BatchLayout,
    ) -> PipelineBuilder<Batch> {
        let options = self.settings.options().concurrency(self.threads()).dedicated();
        encoded.fill(options, layout, self.worker())
    }

    fn worker(&self) -> impl Fn() -> Result<Decode> + Send + Sync + 'static {
        let (decoder, stage) = (self.decoder.clone(), Arc::clone(&self.settings.name));
        let buffers = BufferPool::new();
        move || {
            let (decoder, buffers) = (decoder.clone(), buffers.clone());
            let stage = Arc::clone(&stage);
            Ok(Decode { image: decoder.instance()?, decoder, buffers, stage })
        }
    }
}

/// What a thread decodes with.
struct Decode {
    image: FillImage,
    decoder: ImageDecoder,
    buffers: BufferPool,
    stage: Arc<str>,
}

impl spdl_core::Stage<Encoded> for Decode {
    type Out = Pixels;

    fn process(&mut self, item: Encoded, cx: &mut StageContext<'_, Self::Out>) -> Result<()> {
        let Carried { name, value, label } = item;
        let rng = || cx.rng_of(self.decoder.seed, DECODE);
        let made = self.decoder.write(&mut self.image, &value?, &self.buffers, rng);
        let value = Ok(made.map_err(|error| failed(error, &self.stage, &name))?);
        cx.emit(Carried { name, value, label })
    }
}

impl Fill<Encoded> for Decode {
    fn fill(
        &mut self,
        item: Encoded,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        let encoded = item.value?;
        let sample = match slot.fields()[IMAGES].dtype {
            DType::F16 => Sample::F16(slot.typed_mut(IMAGES)?),
            DType::BF16 => Sample::BF16(slot.typed_mut(IMAGES)?),
            DType::F32 => Sample::F32(slot.typed_mut(IMAGES)?),
            _ => Sample::U8(slot.typed_mut(IMAGES)?),
        };
        let written = self.image.write(&encoded, sample, || cx.rng_of(self.decoder.seed, DECODE));
        written.map_err(|error| failed(error, &self.stage, &item.name))?;
        slot.set(LABELS, item.label.unwrap_or(NO_LABEL))
    }

    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        self.image.check_field(&fields[IMAGES])
    }
}
