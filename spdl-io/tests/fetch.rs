//! Tests of the `Fetch` stage in a pipeline.
#![cfg(feature = "local")]

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use spdl_core::{DatasetSource, ErrorKind, Labeled, PipelineBuilder, Result, StageOptions};
use spdl_io::{
    Body, Capability, Fetch, Fetcher, ImageFolder, Key, LocalFetcher, ReadRequest, Resilient,
    ResilientOptions,
};

#[test]
fn folders_become_labelled_bytes() {
    let root = tempfile::tempdir().unwrap();
    for (name, content) in [("cat/1.jpg", "one"), ("cat/2.jpg", "two"), ("dog/3.jpg", "three")] {
        fs::create_dir_all(root.path().join(name).parent().unwrap()).unwrap();
        fs::write(root.path().join(name), content).unwrap();
    }
    let pipeline =
        PipelineBuilder::new(DatasetSource::new(ImageFolder::open(root.path()).unwrap()))
            .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
            .deterministic()
            .build()
            .unwrap();
    let samples: Vec<_> = pipeline.map(|sample| sample.unwrap()).collect();
    let found: Vec<_> = samples.iter().map(|sample| (sample.label, &*sample.value)).collect();
    assert_eq!(found, [(0, &b"one"[..]), (0, b"two"), (1, b"three")]);
}

#[test]
fn errors_name_the_stage_and_the_file() {
    let images = ImageFolder::from_paths(["no/such/file.jpg"], None).unwrap();
    let mut pipeline = PipelineBuilder::new(DatasetSource::new(images))
        .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
        .build()
        .unwrap();
    let error = pipeline.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!((error.stage(), error.key()), (Some("fetch"), Some("no/such/file.jpg")));
}

#[test]
fn objects_over_the_limit_are_rejected() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("image.jpg");
    fs::write(&path, [0; 11]).unwrap();
    let first = |max_bytes| {
        let images = ImageFolder::from_paths([&path], None).unwrap();
        let fetch = Fetch::new(Arc::new(LocalFetcher::new())).with_max_bytes(max_bytes);
        let builder = PipelineBuilder::new(DatasetSource::new(images));
        builder.async_stage("fetch", fetch).build().unwrap().next().unwrap()
    };
    assert_eq!(first(11).unwrap().value.len(), 11);
    let error = first(10).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.message().contains("holds 11 bytes, but at most 10"), "{error}");
}

/// Objects of the given size, without or with a known length, in pieces of 100 kB.
#[derive(Debug)]
struct Pieces {
    size: usize,
    has_length: bool,
}

#[spdl_core::async_trait]
impl Fetcher for Pieces {
    fn capability(&self) -> Capability {
        Capability::default().with_streams()
    }

    async fn read(&self, key: &Key, _: Option<Range<u64>>) -> Result<Bytes> {
        self.open(key, &ReadRequest::whole()).await?.bytes().await
    }

    async fn open(&self, _: &Key, _: &ReadRequest) -> Result<Body> {
        let pieces = stream::iter((0..self.size / 100_000).map(|_| Ok(vec![7; 100_000].into())));
        let body = Body::new(pieces.boxed());
        Ok(if self.has_length { body.with_size(self.size as u64) } else { body })
    }
}

// promise: R4
#[test]
fn encoded_files_exceed_the_memory_budget_by_at_most_one_file() {
    const SIZE: usize = 3_000_000;
    let folder = tempfile::tempdir().unwrap();
    let paths = (0..40).map(|number| folder.path().join(number.to_string()));
    let paths: Vec<_> = paths.inspect(|path| fs::write(path, vec![7; SIZE]).unwrap()).collect();
    let resilient = |has_length| {
        let pieces = Arc::new(Pieces { size: SIZE, has_length });
        Resilient::new(pieces, ResilientOptions::default()).unwrap()
    };
    let fetchers: [(Arc<dyn Fetcher>, _); 5] = [
        (Arc::new(LocalFetcher::new()), 1),
        (Arc::new(Pieces { size: SIZE, has_length: true }), 1),
        (Arc::new(Pieces { size: SIZE, has_length: false }), 2),
        (Arc::new(resilient(true)), 1),
        (Arc::new(resilient(false)), 2),
    ];
    for (fetcher, copies) in fetchers {
        let shown = format!("{fetcher:?}");
        let images = ImageFolder::from_paths(&paths, None).unwrap();
        let options = StageOptions::new("fetch").concurrency(16);
        let pipeline = PipelineBuilder::new(DatasetSource::new(images))
            .async_stage(options, Fetch::new(fetcher))
            .measured()
            .map("slow", |image: Labeled<Bytes>| {
                std::thread::sleep(Duration::from_millis(1));
                Ok(image.value.len())
            })
            .memory(8_000_000)
            .largest_item(1_000_000)
            .deterministic()
            .build()
            .unwrap();
        let monitor = pipeline.monitor();
        let lens: Vec<usize> = pipeline.collect::<Result<_>>().unwrap();
        assert_eq!(lens, [SIZE; 40], "{shown}");
        let memory = monitor.statistics().memory;
        assert!(memory.peak_bytes <= 8_000_000 + copies * SIZE, "{shown}: {memory:?}");
        assert!(memory.peak_bytes >= 2 * SIZE, "{shown}: {memory:?}");
    }
}

#[test]
fn the_default_limit_of_a_file_is_64_mib() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len((64 << 20) + 1).unwrap();
    let sample = Labeled { value: Key::from_path(file.path()), label: 0 };
    let read = |fetch: Fetch| {
        let mut images =
            PipelineBuilder::from_iter([sample.clone()]).async_stage("fetch", fetch).build()?;
        images.next().unwrap()
    };
    let fetch = || Fetch::new(Arc::new(LocalFetcher::new()));
    let error = read(fetch()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
    assert!(error.message().contains("67108865"), "{error}");
    assert_eq!(read(fetch().with_max_bytes(1 << 30)).unwrap().value.len(), (64 << 20) + 1);
}
