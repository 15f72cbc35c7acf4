//! The operator that decodes a field, such as video or audio, to arrays.

use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::{FillContext, PipelineBuilder, Result, StageContext};

use super::super::Item;
use super::super::stage::queue_len;
use super::fetch::Encoded;
use super::{NativeItem, OperatorSettings, Pixels, failed};
use crate::operators::{BYTES, DECODE, FieldDecoder, FieldWorker, file_bytes};

/// Decodes files on dedicated threads, because all threads of the pipeline may wait for the GIL.
pub(super) struct FieldPart {
    pub(super) settings: OperatorSettings,
    decoder: FieldDecoder,
}

impl FieldPart {
    pub(super) fn new(settings: OperatorSettings, decoder: FieldDecoder) -> Self {
        FieldPart { settings, decoder }
    }

    pub(super) fn enter(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Encoded> {
        let read = |data: &Bound<'_, PyAny>| Ok((BYTES.into(), file_bytes(data)?));
        self.settings.enter(pipeline, None, read)
    }

    pub(super) fn add_to(&self, encoded: PipelineBuilder<Encoded>) -> PipelineBuilder<Pixels> {
        let threads = self.settings.threads();
        let options = self.settings.options().concurrency(threads).dedicated();
        let (decoder, stage) = (self.decoder.clone(), Arc::clone(&self.settings.name));
        encoded.stage(options.queue(queue_len(threads)), move || {
            let (worker, stage) = (decoder.worker()?, Arc::clone(&stage));
            Ok(DecodeFieldWorker { worker, seed: decoder.seed, stage })
        })
    }
}

/// The decoder of one thread.
struct DecodeFieldWorker {
    worker: FieldWorker,
    seed: u64,
    stage: Arc<str>,
}

impl spdl_core::Stage<Encoded> for DecodeFieldWorker {
    type Out = Pixels;

    fn process(&mut self, item: Encoded, cx: &mut StageContext<'_, Self::Out>) -> Result<()> {
        let NativeItem { name, value, label } = item;
        let mut fill = FillContext::of_item(cx.item_rng(), self.seed, DECODE);
        let made = self.worker.decode(value?, &mut fill);
        let value = Ok(made.map_err(|error| failed(error, &self.stage, &name))?);
        cx.emit(NativeItem { name, value, label })
    }
}
