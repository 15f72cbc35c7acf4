//! The operator that reads files of this machine, and objects of stores.

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{AsyncContext, AsyncStage, PipelineBuilder, Result, async_trait};
use spdl_io::{Fetcher, LocalFetcher};

use super::super::Item;
use super::{Carried, Labels, Settings, failed};
use crate::operators::{Place, Stores, place_of};

/// The bytes of a file, or why there are none.
pub(super) type Encoded = Carried<Result<Bytes>>;

/// What reads files and objects.
pub(super) struct FetchPart {
    pub(super) settings: Settings,
    max_bytes: u64,
    pub(super) stores: Stores,
}

impl FetchPart {
    pub(super) fn new(settings: Settings, max_bytes: u64) -> Self {
        FetchPart { settings, max_bytes, stores: Stores::default() }
    }

    pub(super) fn add_to(
        &self,
        pipeline: PipelineBuilder<Item>,
        labels: Option<Labels>,
    ) -> PipelineBuilder<Encoded> {
        let places = self.settings.enter(pipeline, labels, place_of);
        let mut options = self.settings.options();
        let files = match self.settings.concurrency {
            Some(concurrency) => {
                options = options.concurrency(concurrency);
                LocalFetcher::with_threads(concurrency)
            }
            // How many are under way the stage finds out by trying.
            None => LocalFetcher::new(),
        };
        let (max_bytes, stage) = (self.max_bytes, Arc::clone(&self.settings.name));
        let read = Read { files, stores: self.stores.clone(), max_bytes, stage };
        places.async_stage(options, read)
    }
}

struct Read {
    files: LocalFetcher,
    stores: Stores,
    max_bytes: u64,
    stage: Arc<str>,
}

#[async_trait]
impl AsyncStage<Carried<Result<Place>>> for Read {
    type Out = Encoded;

    async fn process(&self, item: Carried<Result<Place>>, _: &AsyncContext) -> Result<Encoded> {
        let Carried { name, value, label } = item;
        let read = match value? {
            Place::File(key) => self.files.read_at_most(&key, self.max_bytes).await,
            Place::Object(address) => self.stores.read(&address, self.max_bytes).await,
        };
        let bytes = read.map_err(|error| failed(error, &self.stage, &name))?;
        Ok(Carried { name, value: Ok(bytes), label })
    }
}
