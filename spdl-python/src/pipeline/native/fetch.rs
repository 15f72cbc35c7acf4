//! The operator that reads local files and store objects.

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{AsyncContext, AsyncStage, PipelineBuilder, Result, async_trait};
use spdl_io::{Fetcher, LocalFetcher};

use super::super::Item;
use super::{Labels, NativeItem, OperatorSettings, failed};
use crate::operators::{Location, Stores, location_of};

/// The bytes of a file, or the error of reading it.
pub(super) type Encoded = NativeItem<Result<Bytes>>;

/// Reads files and objects.
pub(super) struct FetchPart {
    pub(super) settings: OperatorSettings,
    max_bytes: u64,
    pub(super) stores: Stores,
}

impl FetchPart {
    pub(super) fn new(settings: OperatorSettings, max_bytes: u64) -> Self {
        FetchPart { settings, max_bytes, stores: Stores::default() }
    }

    pub(super) fn add_to(
        &self,
        pipeline: PipelineBuilder<Item>,
        labels: Option<Labels>,
    ) -> PipelineBuilder<Encoded> {
        let locations = self.settings.enter(pipeline, labels, location_of);
        let mut options = self.settings.options();
        let files = match self.settings.concurrency {
            Some(concurrency) => {
                options = options.concurrency(concurrency);
                LocalFetcher::with_threads(concurrency)
            }
            // The stage adjusts its in-flight window.
            None => LocalFetcher::new(),
        };
        let (max_bytes, stage) = (self.max_bytes, Arc::clone(&self.settings.name));
        let read = FetchWorker { files, stores: self.stores.clone(), max_bytes, stage };
        locations.async_stage(options, read)
    }
}

struct FetchWorker {
    files: LocalFetcher,
    stores: Stores,
    max_bytes: u64,
    stage: Arc<str>,
}

#[async_trait]
impl AsyncStage<NativeItem<Result<Location>>> for FetchWorker {
    type Out = Encoded;

    async fn process(
        &self,
        item: NativeItem<Result<Location>>,
        _: &AsyncContext,
    ) -> Result<Encoded> {
        let NativeItem { name, value, label } = item;
        let read = match value? {
            Location::File(key) => self.files.read_whole(&key, &self.max_bytes).await,
            Location::Object(address) => self.stores.read(&address, self.max_bytes).await,
        };
        let bytes = read.map_err(|error| failed(error, &self.stage, &name))?;
        Ok(NativeItem { name, value: Ok(bytes), label })
    }
}
