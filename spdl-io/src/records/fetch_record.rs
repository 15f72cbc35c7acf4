//! [`FetchRecord`]: the stage that reads the fields of a sample.

use std::sync::Arc;

use async_trait::async_trait;
use spdl_core::stage::Medium;
use spdl_core::{AsyncContext, AsyncStage, Result};

use super::read_fields::{known_bytes, read_record};
use crate::fetch::{Fetch, Fetcher, medium_of};
use crate::records::{FieldRequest, Record, StoredRecord};

/// The pipeline stage that reads and decodes the fields of stored samples.
///
/// If several fields are ranges of one object, one call of [`read_ranges`](Fetcher::read_ranges)
/// reads them. [`Resilient`](crate::Resilient) coalesces ranges that are close to each other, such
/// as the members of a tar archive. Several objects are read concurrently.
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::PipelineBuilder;
/// use spdl_io::{FetchRecord, MemoryFetcher, StoredRecord};
/// use spdl_io::records::{Encoding, Extent};
///
/// let store = MemoryFetcher::from_iter([("shard", "...the image...7")]);
/// let samples = vec![
///     StoredRecord::new("shard:1")
///         .with_stored("jpg", Extent::part("shard", 3..12), Encoding::Bytes)
///         .with_stored("cls", Extent::part("shard", 15..16), Encoding::Integer),
/// ];
/// let mut pipeline = PipelineBuilder::from_iter(samples)
///     .async_stage("fetch", FetchRecord::new(Arc::new(store)))
///     .build()?;
/// let record = pipeline.next().expect("one sample")?;
/// assert_eq!(record.get("jpg")?.as_bytes().map(|it| &it[..]), Some(&b"the image"[..]));
/// assert_eq!(record.get("cls")?.as_i64(), Some(7));
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// The key of an error is the key of the sample, or `SAMPLE.FIELD`. If reading a whole object
/// fails, the key is that of the object. The offset of an error counts bytes from the start of the
/// object.
///
/// - `NotFound` if a requested field does not exist.
/// - `LimitExceeded` if the fields are larger than the limit.
/// - The errors of the fetcher and of [`Encoding::decode`](crate::records::Encoding::decode).
#[derive(Clone, Debug)]
pub struct FetchRecord {
    fetcher: Arc<dyn Fetcher>,
    request: FieldRequest,
}

impl FetchRecord {
    /// Reads all fields, with at most [`Fetch::DEFAULT_MAX_BYTES`] per sample.
    pub fn new(fetcher: Arc<dyn Fetcher>) -> Self {
        FetchRecord { fetcher, request: FieldRequest::all(Fetch::DEFAULT_MAX_BYTES) }
    }

    /// Reads only these fields and returns them in this order. A sample that lacks one of the fields is an
    /// error.
    #[must_use]
    pub fn with_fields<N: Into<Arc<str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.request = self.request.only(names);
        self
    }

    /// Sets the maximum total size of the fields of a sample, in bytes. If the sizes are known, a
    /// larger sample fails before it is read.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        let names = self.request.names().map(<[_]>::to_vec);
        self.request = FieldRequest::all(max_bytes);
        self.request = match names {
            Some(names) => self.request.only(names),
            None => self.request,
        };
        self
    }
}

#[async_trait]
impl AsyncStage<StoredRecord> for FetchRecord {
    type Out = Record;

    async fn process(&self, item: StoredRecord, cx: &AsyncContext) -> Result<Record> {
        read_record(&self.fetcher, item, &self.request, cx).await
    }

    fn output_bytes(&self, item: &StoredRecord) -> Option<usize> {
        known_bytes(item, &self.request)
    }

    fn medium(&self) -> Medium {
        medium_of(&*self.fetcher)
    }
}
