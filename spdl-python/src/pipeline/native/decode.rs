//! The operator that decodes images, to arrays or to batch slots.

use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::{
    Batch, BatchLayout, DType, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut,
    StageContext,
};
use spdl_media::{FillImage, ImageTransform, Sample};

use super::super::Item;
use super::super::stage::queue_len;
use super::fetch::Encoded;
use super::{IMAGES, LABELS, Labels, NO_LABEL, NativeItem, OperatorSettings, Pixels, failed};
use crate::operators::{BYTES, DECODE, ImageDecoder, bytes_of};

/// Decodes images on dedicated threads, because all threads of the pipeline may wait for the GIL.
pub(super) struct DecodePart {
    pub(super) settings: OperatorSettings,
    decoder: ImageDecoder,
}

impl DecodePart {
    pub(super) fn new(settings: OperatorSettings, decoder: ImageDecoder) -> Self {
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
        encoded.stage(options.queue(queue_len(self.threads())), self.worker())
    }

    pub(super) fn fill(
        &self,
        encoded: PipelineBuilder<Encoded>,
        layout: BatchLayout,
    ) -> PipelineBuilder<Batch> {
        let options = self.settings.options().concurrency(self.threads()).dedicated();
        encoded.fill(options, layout, self.worker())
    }

    fn worker(&self) -> impl Fn() -> Result<DecodeWorker> + Send + Sync + 'static {
        let (decoder, stage) = (self.decoder.clone(), Arc::clone(&self.settings.name));
        let buffers = BufferPool::new();
        move || {
            let (decoder, buffers) = (decoder.clone(), buffers.clone());
            let stage = Arc::clone(&stage);
            Ok(DecodeWorker { image: decoder.instance()?, decoder, buffers, stage })
        }
    }
}

/// The decoder of one thread.
struct DecodeWorker {
    image: FillImage,
    decoder: ImageDecoder,
    buffers: BufferPool,
    stage: Arc<str>,
}

impl spdl_core::Stage<Encoded> for DecodeWorker {
    type Out = Pixels;

    fn process(&mut self, item: Encoded, cx: &mut StageContext<'_, Self::Out>) -> Result<()> {
        let NativeItem { name, value, label } = item;
        let rng = || cx.rng_of(self.decoder.seed, DECODE);
        let made = self.decoder.write(&mut self.image, &value?, &self.buffers, rng);
        let value = Ok(made.map_err(|error| failed(error, &self.stage, &name))?);
        cx.emit(NativeItem { name, value, label })
    }
}

impl Fill<Encoded> for DecodeWorker {
    fn fill(
        &mut self,
        item: Encoded,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        let encoded = item.value?;
        let sample = match slot.fields()[IMAGES].dtype {
            DType::U16 => Sample::U16(slot.typed_mut(IMAGES)?),
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
