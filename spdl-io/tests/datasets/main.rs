//! Tests of data sets: shards equal `webdataset`, file lists, labels, damaged and missing files.
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]

mod annotations;
#[cfg(feature = "arrow")]
mod arrow;
mod braces;
mod classes;
mod fetch_record;
mod file_list;
mod grouping;
mod labels;
mod opening;
mod several;
mod stored_shards;
mod webdataset;
#[cfg(feature = "zip")]
mod zip_shards;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use spdl_core::{AsyncStage, Dataset, DatasetSource, PipelineBuilder, Result};
use spdl_io::{
    Capability, FetchRecord, Fetcher, Key, MemoryFetcher, ObjectMeta, ReadMemory, Record,
    StoredRecord,
};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/datasets/golden").join(name)
}

fn golden_lines(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(golden(name)).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// A tar archive with these files.
fn archive<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, data).unwrap();
    }
    tar.into_inner().unwrap()
}

/// A tar archive of samples `0000…`, with an image and a class each.
fn numbered(samples: Range<usize>) -> Vec<u8> {
    let files = samples.flat_map(|number| {
        [
            (format!("{number:04}.jpg"), format!("picture {number}")),
            (format!("{number:04}.cls"), number.to_string()),
        ]
    });
    let files: Vec<_> = files.collect();
    archive(files.iter().map(|(name, data)| (&name[..], data.as_bytes())))
}

/// A store in memory that records requests.
#[derive(Clone, Debug)]
struct Recording {
    store: Arc<MemoryFetcher>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Recording {
    fn new<K: Into<Key>, B: Into<Bytes>>(objects: impl IntoIterator<Item = (K, B)>) -> Self {
        let store = Arc::new(objects.into_iter().collect());
        Recording { store, requests: Arc::default() }
    }

    fn record(&self, request: String) {
        self.requests.lock().unwrap().push(request);
    }

    /// The requests since the last call.
    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    fn arc(&self) -> Arc<dyn Fetcher> {
        Arc::new(self.clone())
    }
}

#[spdl_core::async_trait]
impl Fetcher for Recording {
    fn capability(&self) -> Capability {
        self.store.capability()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        self.record(format!("read {key} {range:?}"));
        self.store.read(key, range).await
    }

    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        self.record(format!("read {key}"));
        self.store.read_whole(key, memory).await
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.record(format!("ranges {key} {ranges:?}"));
        self.store.read_ranges(key, ranges).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        self.record(format!("stat {key}"));
        self.store.stat(key).await
    }

    async fn list(
        &self,
        prefix: &Key,
    ) -> Result<spdl_core::BoxStream<'static, Result<ObjectMeta>>> {
        self.store.list(prefix).await
    }
}

/// The outputs of a stage, up to the first error.
fn process<S: AsyncStage<StoredRecord>>(
    samples: impl Dataset<Item = StoredRecord>,
    stage: S,
) -> Vec<Result<S::Out>> {
    let pipeline = PipelineBuilder::new(DatasetSource::new(samples))
        .deterministic()
        .async_stage("fetch", stage)
        .build()
        .unwrap();
    pipeline.collect()
}

/// All fields of all samples. Panics on errors.
fn read_all(samples: impl Dataset<Item = StoredRecord>, fetcher: Arc<dyn Fetcher>) -> Vec<Record> {
    process(samples, FetchRecord::new(fetcher)).into_iter().map(Result::unwrap).collect()
}
